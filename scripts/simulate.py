#!/usr/bin/env python3
"""Write checkpoints with the shapes of real models, as sparse files that take next to no disk.

    scripts/simulate.py FOLDER --model bloom-176b --stage 1 --tp 4 --pp 12 --dp 8
    scripts/simulate.py FOLDER --model llama-405b --stage 3 --dp 1024

All tensors are zeros, and the zeros are holes; names, shapes, partitions, paddings, slice mappings and
checksums are those that DeepSpeed and torch would have written for tensors of these sizes. So whatever
works on the metadata of a checkpoint can be tried at full size: to-universal --dry-run, ckpt-inspect.

Stage 1 is a pipeline of BF16_Optimizer, as Megatron-DeepSpeed trains BLOOM, with universal_checkpoint_info
and without the files of the layers, whose 16-bit weights no converter reads. Stage 3 is data parallelism
alone. Either has two parameter groups, of which only the one with the matrices has weight decay.

Needs nothing but Python.
"""
import argparse
import collections
import contextlib
import functools
import io
import math
import pathlib
import pickle
import re
import struct
import sys
import types
import typing
import zlib


class Model(typing.NamedTuple):
    family: str
    layers: int
    hidden: int
    inner: int  # the width of the feed-forward layers
    heads: int
    kv_heads: int
    vocab: int


MODELS = {
    "bloom-560m": Model("bloom", 24, 1024, 4096, 16, 16, 250680),
    "bloom-7b1": Model("bloom", 30, 4096, 16384, 32, 32, 250680),
    "bloom-176b": Model("bloom", 70, 14336, 57344, 112, 112, 250680),
    "llama-8b": Model("llama", 32, 4096, 14336, 32, 8, 128256),
    "llama-70b": Model("llama", 80, 8192, 28672, 64, 8, 128256),
    "llama-405b": Model("llama", 126, 16384, 53248, 128, 8, 128256),
    "mistral-7b": Model("llama", 32, 4096, 14336, 32, 8, 32000),
    # For tests. Numbers with remainders, wherever a real model may have them.
    "tiny-bloom": Model("bloom", 5, 24, 92, 4, 4, 301),
    "tiny-llama": Model("llama", 5, 24, 92, 4, 2, 301),
}

STEPS = 1000
TAG = f"global_step{STEPS}"
DEEPSPEED_VERSION = "0.19.8"
SERIALIZATION_ID = b"0" * 40  # torch makes a hash of it, and only logs it
SUB_GROUP_SIZE = 10**9  # DeepSpeed's default
VOCAB_MULTIPLE = 128  # Megatron pads the vocabulary to this many rows a rank


def fail(message):
    raise SystemExit(f"simulate.py: error: {message}")


# How tensor-parallel ranks share a parameter: cut along dimension 0 or 1, or each with a copy. Copies
# of layer norms are not kept equal in training, so they are averaged.
COLUMN, ROW, VOCABULARY, REPLICATED, AVERAGED = "column", "row", "vocabulary", "replicated", "averaged"


class Module(typing.NamedTuple):
    pipeline_prefix: str  # of the names of its parameters in a pipeline
    path: str  # and elsewhere
    params: list  # of (name, shape, how it is shared)
    counts: bool = True  # where a pipeline is cut: every stage gets as many of these


def bloom(model, vocab):
    width = model.hidden
    norm = [("weight", (width,), AVERAGED), ("bias", (width,), AVERAGED)]
    embedding = Module("tied_modules.embed.", "transformer.", [
        ("word_embeddings.weight", (vocab, width), VOCABULARY),
        ("word_embeddings.norm.weight", (width,), AVERAGED),
        ("word_embeddings.norm.bias", (width,), AVERAGED)])
    layers = [Module(f"{3 + i}.", f"transformer.h.{i}.", [
        ("input_layernorm.weight", (width,), AVERAGED),
        ("input_layernorm.bias", (width,), AVERAGED),
        ("self_attention.query_key_value.weight", (3 * width, width), COLUMN),
        ("self_attention.query_key_value.bias", (3 * width,), COLUMN),
        ("self_attention.dense.weight", (width, width), ROW),
        ("self_attention.dense.bias", (width,), REPLICATED),
        ("post_attention_layernorm.weight", (width,), AVERAGED),
        ("post_attention_layernorm.bias", (width,), AVERAGED),
        ("mlp.dense_h_to_4h.weight", (model.inner, width), COLUMN),
        ("mlp.dense_h_to_4h.bias", (model.inner,), COLUMN),
        ("mlp.dense_4h_to_h.weight", (width, model.inner), ROW),
        ("mlp.dense_4h_to_h.bias", (width,), REPLICATED)]) for i in range(model.layers)]
    last = Module(f"{4 + model.layers}.", "transformer.ln_f.", norm, counts=False)
    # The last stage has the whole module of the embeddings once more, for its matrix.
    return [embedding, *layers, last, embedding]


def llama(model, vocab):
    width, kv_width = model.hidden, model.hidden // model.heads * model.kv_heads
    layers = [Module(f"{1 + i}.", f"model.layers.{i}.", [
        ("self_attn.q_proj.weight", (width, width), COLUMN),
        ("self_attn.k_proj.weight", (kv_width, width), COLUMN),
        ("self_attn.v_proj.weight", (kv_width, width), COLUMN),
        ("self_attn.o_proj.weight", (width, width), ROW),
        ("mlp.gate_proj.weight", (model.inner, width), COLUMN),
        ("mlp.up_proj.weight", (model.inner, width), COLUMN),
        ("mlp.down_proj.weight", (width, model.inner), ROW),
        ("input_layernorm.weight", (width,), REPLICATED),
        ("post_attention_layernorm.weight", (width,), REPLICATED)]) for i in range(model.layers)]
    return [Module("0.", "model.", [("embed_tokens.weight", (vocab, width), VOCABULARY)]),
            *layers,
            Module(f"{1 + model.layers}.", "model.norm.", [("weight", (width,), REPLICATED)], counts=False),
            Module(f"{2 + model.layers}.", "", [("lm_head.weight", (vocab, width), VOCABULARY)])]


FAMILIES = {"bloom": bloom, "llama": llama}


def padded(size, multiple):
    return -(-size // multiple) * multiple


def slice_shape(name, shape, how, tp):
    dim = {COLUMN: 0, VOCABULARY: 0, ROW: 1}.get(how)
    if dim is None:
        return shape
    if shape[dim] % tp != 0:
        fail(f"{name}: {shape[dim]} cannot be cut into {tp} slices")
    return (*shape[:dim], shape[dim] // tp, *shape[dim + 1:])


def grouped(shapes):
    """The two parameter groups: matrices, then vectors."""
    return [{name: shape for name, shape in shapes.items() if (len(shape) > 1) == matrices}
            for matrices in (True, False)]


def stand_in(module, name, base=object):
    """A class that pickles under the name of somebody else's class or function."""
    return type(name, (base,), {"__module__": module, "__qualname__": name})


rebuild_tensor = stand_in("torch._utils", "_rebuild_tensor_v2")
rebuild_from_type = stand_in("torch._tensor", "_rebuild_from_type_v2")
TorchTensor = stand_in("torch", "Tensor")
FloatStorage = stand_in("torch", "FloatStorage")
BFloat16Storage = stand_in("torch", "BFloat16Storage")
Size = stand_in("torch", "Size", tuple)
Size.__reduce_ex__ = lambda self, protocol: (Size, (tuple(self),))
FragmentAddress = stand_in("deepspeed.utils.tensor_fragment", "fragment_address")
LossScaler = stand_in("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
ZeroStageEnum = stand_in("deepspeed.runtime.zero.config", "ZeroStageEnum", int)
ZeroStageEnum.__reduce_ex__ = lambda self, protocol: (ZeroStageEnum, (int(self),))
STAND_INS = (rebuild_tensor, rebuild_from_type, TorchTensor, FloatStorage, BFloat16Storage, Size,
             FragmentAddress, LossScaler, ZeroStageEnum)
ELEMENT_SIZE = {FloatStorage: 4, BFloat16Storage: 2}


@contextlib.contextmanager
def stand_ins_importable():
    """pickle looks every class up where its module says it is."""
    modules = {}
    for cls in STAND_INS:
        parts = cls.__module__.split(".")
        for i in range(len(parts)):
            name = ".".join(parts[:i + 1])
            modules.setdefault(name, types.ModuleType(name))
        setattr(modules[cls.__module__], cls.__name__, cls)
    hidden = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update(hidden)


def with_attributes(result, **attributes):
    result.__dict__.update(attributes)
    return result


class Storage:
    """`data` is None for zeros."""

    def __init__(self, numel, kind=FloatStorage, data=None):
        self.numel, self.kind, self.data = numel, kind, data
        self.size = numel * ELEMENT_SIZE[kind]


class Tensor:
    """Contiguous, the first elements of its storage."""

    def __init__(self, storage, shape=None, requires_grad=False, ds_id=None):
        self.storage, self.requires_grad, self.ds_id = storage, requires_grad, ds_id
        self.shape = (storage.numel,) if shape is None else shape

    def __reduce_ex__(self, protocol):
        stride = tuple(math.prod(self.shape[i + 1:]) for i in range(len(self.shape)))
        arguments = (self.storage, 0, self.shape, stride, self.requires_grad, collections.OrderedDict())
        if self.ds_id is None:
            return rebuild_tensor, arguments
        return rebuild_from_type, (rebuild_tensor, TorchTensor, arguments, {"ds_id": self.ds_id})


class Pickled:
    """An object's pickle, and the storages that its tensors lie in."""

    def __init__(self, value):
        self.storages, keys = [], {}

        class Pickler(pickle.Pickler):
            def persistent_id(_, item):
                if type(item) is not Storage:
                    return None
                if id(item) not in keys:
                    keys[id(item)] = str(len(self.storages))
                    self.storages.append(item)
                return ("storage", item.kind, keys[id(item)], "cpu", item.numel)

        buffer = io.BytesIO()
        with stand_ins_importable():
            Pickler(buffer, protocol=2).dump(value)
        self.data = buffer.getvalue()


CRC_POLYNOMIAL = 0xEDB88320  # of zip, bits reversed: bit 31 is x to the power of 0


def crc_product(a, b):
    result = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            result ^= b
        b = (b >> 1) ^ CRC_POLYNOMIAL if b & 1 else b >> 1
    return result


@functools.lru_cache(maxsize=None)
def crc_of_zeros(count):
    """The CRC32 of `count` zero bytes. Each of them multiplies the register by x to the power of 8."""
    power, square = 1 << 31, 1 << 23
    while count:
        if count & 1:
            power = crc_product(square, power)
        square = crc_product(square, square)
        count >>= 1
    return crc_product(power, 0xFFFFFFFF) ^ 0xFFFFFFFF


class Archive:
    """A zip file, record by record as torch writes it: lib/format/FORMATS.md."""
    LIMIT = 0xFFFFFFFF

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.file = open(self.path, "wb")
        self.position = 0
        self.directory = []

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if failure[0] is None:
            self.finish()
        self.file.close()

    def write(self, data):
        self.file.write(data)
        self.position += len(data)

    def add(self, name, data=None, zeros=0):
        """`data`, or a hole of as many zeros."""
        name = f"{self.path.name.rpartition('.')[0]}/{name}".encode()
        size = zeros if data is None else len(data)
        crc = crc_of_zeros(zeros) if data is None else zlib.crc32(data)
        header, flags = self.position, 0x0808 if size else 0x0800
        large, far = size >= self.LIMIT, header >= self.LIMIT
        extra = b""
        if large or far:
            sizes = (struct.pack("<QQ", size, 0) if large else b"") + (struct.pack("<Q", header) if far else b"")
            extra = struct.pack("<HH", 1, len(sizes)) + sizes
        # The data begins at a multiple of 64.
        padding = -(header + 30 + len(name) + len(extra) + 4) % 64
        extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
        self.write(struct.pack("<4sHHHIIIIHH", b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, len(name), len(extra)) + name +
                   extra)
        if data is None and size:
            self.file.seek(size, io.SEEK_CUR)
            self.position += size
        elif size:
            self.write(data)
        if size:
            self.write(struct.pack("<4sIQQ" if large or far else "<4sIII", b"PK\7\x08", crc, size, size))
        sizes = (struct.pack("<QQ", size, size) if large else b"") + (struct.pack("<Q", header) if far else b"")
        extra = struct.pack("<HH", 1, len(sizes)) + sizes if sizes else b""
        self.directory.append(struct.pack(
            "<4sHHHHIIIIHHHHHII", b"PK\1\2", 0, 0, flags, 0, 0, crc, min(size, self.LIMIT), min(size, self.LIMIT),
            len(name), len(extra), 0, 0, 0, 0, min(header, self.LIMIT)) + name + extra)

    def finish(self):
        start, count = self.position, len(self.directory)
        self.write(b"".join(self.directory))
        end, size = self.position, self.position - start
        self.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, size, start))
        self.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        self.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF),
                               min(size, self.LIMIT), min(start, self.LIMIT), 0))


def save(path, pickled):
    with Archive(path) as archive:
        archive.add("data.pkl", pickled.data)
        archive.add(".format_version", b"1")
        archive.add(".storage_alignment", b"64")
        archive.add("byteorder", b"little")
        for i, storage in enumerate(pickled.storages):
            archive.add(f"data/{i}", storage.data, storage.size)
        archive.add("version", b"3\n")
        archive.add(".data/serialization_id", SERIALIZATION_ID)


class Writer:
    """`grid`: (pp, tp, dp)."""

    def __init__(self, folder, model, grid):
        self.folder = pathlib.Path(folder)
        self.tag = self.folder / TAG
        self.model = model
        self.pp, self.tp, self.dp = grid

    def write(self, stage):
        (self.write_stage1 if stage == 1 else self.write_stage3)()
        (self.folder / "latest").write_text(TAG)

    def make_folder(self):
        try:
            self.tag.mkdir(parents=True)
        except FileExistsError:
            fail(f"{self.tag}: exists already")

    def config(self, zero, **more):
        return {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
            "zero_optimization": zero, "bf16": {"enabled": True}, **more}

    def adam(self, sizes, params):
        """torch's state_dict, for flat tensors of `sizes`. `params`: those of each parameter group."""
        def step():
            return Tensor(Storage(1, data=struct.pack("<f", STEPS)), ())
        return {
            "state": {i: {"step": step(), "exp_avg": Tensor(Storage(size)), "exp_avg_sq": Tensor(Storage(size))}
                      for i, size in enumerate(sizes)},
            "param_groups": [{
                "lr": 6e-05, "betas": (0.9, 0.95), "eps": 1e-08, "weight_decay": weight_decay, "amsgrad": False,
                "maximize": False, "foreach": None, "capturable": False, "differentiable": False, "fused": None,
                "decoupled_weight_decay": True, "params": indices}
                for indices, weight_decay in zip(params, (0.1, 0.0))]}

    def model_states(self, groups, config, *, module=None, stage3=False, aliases=None, **client_state):
        return {
            "module": module,
            "buffer_names": [],
            "optimizer": None,
            "param_shapes": [collections.OrderedDict((name, Size(shape)) for name, shape in group.items())
                             for group in groups],
            "frozen_param_shapes": collections.OrderedDict() if stage3 else None,
            "shared_params": aliases or {},
            "frozen_param_fragments": collections.OrderedDict() if stage3 else None,
            "lr_scheduler": None,
            "data_sampler": None,
            "random_ltd": None,
            "skipped_steps": 0,
            "global_steps": STEPS,
            "global_samples": STEPS * self.dp,
            "dp_world_size": self.dp,
            "mp_world_size": self.pp * self.tp,
            "checkpoint_parallel_dimensions": {"pp_degree": self.pp, "tp_degree": self.tp},
            "ds_config": config,
            "ds_version": DEEPSPEED_VERSION,
            **client_state}

    def save_optimizer(self, pickled, dp_rank, mp_rank):
        save(self.tag / f"bf16_zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_optim_states.pt", pickled)

    def universal_checkpoint_info(self, modules, vocab):
        patterns = collections.defaultdict(dict)  # as ordered sets
        for module in modules:
            prefix = re.sub(r"\d+", r"\\d+", module.pipeline_prefix.replace(".", r"\."))
            for name, _, how in module.params:
                patterns[how]["^" + prefix + name.replace(".", r"\.") + "$"] = None
        tied = [module for module in modules if modules.count(module) > 1]
        return {
            "universal_checkpoint_version": 0.2,
            "original_vocab_size": self.model.vocab,
            "padded_vocab_size": vocab,
            "vocabulary_parameter_patterns": list(patterns[VOCABULARY]),
            "pipeline_replicated_parameter_patterns": [r"^tied_modules\.embed\."] if tied else [],
            "tp_replicated_parameter_patterns": list(patterns[REPLICATED]),
            "parameter_to_average_patterns": list(patterns[AVERAGED]),
            "parameter_with_row_parallelism_patterns": list(patterns[ROW])}

    def write_stage1(self):
        vocab = padded(self.model.vocab, VOCAB_MULTIPLE * self.tp)
        modules = FAMILIES[self.model.family](self.model, vocab)
        total = sum(module.counts for module in modules)
        if total < self.pp:
            fail(f"{total} modules cannot be {self.pp} pipeline stages")
        stages, before = [{} for _ in range(self.pp)], 0
        for module in modules:
            stage = stages[before * self.pp // total]
            for name, shape, how in module.params:
                name = module.pipeline_prefix + name
                stage[name] = slice_shape(name, shape, how, self.tp)
            before += module.counts

        self.make_folder()
        info = self.universal_checkpoint_info(modules, vocab)
        config = self.config({"stage": 1}, data_types={"grad_accum_dtype": "fp32"})
        # All tensor-parallel ranks of a stage have slices of the same shapes.
        for pp_rank, shapes in enumerate(stages):
            mp_ranks = range(pp_rank * self.tp, (pp_rank + 1) * self.tp)
            groups = grouped(shapes)
            pickled = Pickled(self.model_states(groups, config, universal_checkpoint_info=info, iteration=STEPS))
            for mp_rank in mp_ranks:
                save(self.tag / f"mp_rank_{mp_rank:02d}_model_states.pt", pickled)
            for dp_rank in range(self.dp):
                pickled = Pickled(self.stage1_optimizer(groups, config, dp_rank))
                for mp_rank in mp_ranks:
                    self.save_optimizer(pickled, dp_rank, mp_rank)

    def stage1_optimizer(self, groups, config, dp_rank):
        sizes, paddings, mappings = [], [], []
        for group in groups:
            used = sum(map(math.prod, group.values()))
            # bf16_optimizer.py: the flat buffer is padded to nccl_start_alignment_factor (2) times the ranks.
            whole = padded(used, 2 * self.dp)
            partition = whole // self.dp
            low, high = partition * dp_rank, partition * (dp_rank + 1)
            mapping, begin = collections.OrderedDict(), 0
            for name, shape in group.items():
                end = begin + math.prod(shape)
                start, stop = max(begin, low), min(end, high)
                if start < stop:
                    mapping[name] = with_attributes(FragmentAddress(), numel=stop - start, start=start - low)
                begin = end
            sizes.append(partition)
            paddings.append(whole - used if dp_rank == self.dp - 1 else 0)
            mappings.append(mapping)
        return {
            "optimizer_state_dict": {
                "clip_grad": 1.0,
                "base_optimizer_state": self.adam(sizes, [[i] for i in range(len(groups))]),
                "single_partition_of_fp32_groups": [Tensor(Storage(size), requires_grad=True) for size in sizes],
                "group_paddings": paddings,
                "partition_count": [self.dp] * len(groups),
                "ds_version": DEEPSPEED_VERSION,
                "param_slice_mappings": mappings},
            "ds_config": config,
            "ds_version": DEEPSPEED_VERSION}

    def sub_groups(self, shapes):
        """The sub-groups, and the indices of those of each parameter group.

        stage3.py: the parameter that reaches sub_group_size closes the sub-group.
        """
        result, indices = [], []
        for group in grouped(shapes):
            first, current, size = len(result), {}, 0
            for name, shape in group.items():
                current[name] = shape
                size += -(-math.prod(shape) // self.dp)
                if size >= SUB_GROUP_SIZE:
                    result.append(current)
                    current, size = {}, 0
            if current:
                result.append(current)
            indices.append(list(range(first, len(result))))
        return result, indices

    def write_stage3(self):
        modules = FAMILIES[self.model.family](self.model, self.model.vocab)
        shapes = {module.path + name: shape for module in modules for name, shape, _ in module.params}
        aliases = {}
        if modules.count(modules[0]) > 1:
            aliases["lm_head.weight"] = next(iter(shapes))
        groups, indices = self.sub_groups(shapes)
        self.make_folder()
        config = self.config({"stage": 3})
        # Only rank 0 tells which names are tied.
        for dp_ranks, tied in ((range(1), aliases), (range(1, self.dp), {})):
            module = collections.OrderedDict((name, Tensor(Storage(0, BFloat16Storage)))
                                             for name in [*shapes, *aliases])
            pickled = Pickled(self.model_states(groups, config, module=module, stage3=True, aliases=tied))
            for dp_rank in dp_ranks:
                save(self.tag / f"zero_pp_rank_{dp_rank}_mp_rank_00_model_states.pt", pickled)

        order = {name: i for i, name in enumerate(shapes)}
        sizes = [sum(-(-math.prod(shape) // self.dp) for shape in group.values()) for group in groups]
        flat = []
        for size, group in zip(sizes, groups):
            first, *_, last = [*group, *group]
            flat.append(Tensor(Storage(size), requires_grad=True, ds_id=f"{order[first]}_{order[last]}"))
        # All ranks' partitions are equally long, so their files have the same content.
        pickled = Pickled({
            "optimizer_state_dict": {
                "zero_stage": ZeroStageEnum(3),
                "loss_scaler": with_attributes(LossScaler(), cur_scale=1.0, dynamic=False),
                "dynamic_loss_scale": False,
                "overflow": False,
                "partition_count": self.dp,
                "optimizer_state_dict": self.adam(sizes, indices),
                "fp32_flat_groups": flat},
            "ds_config": config,
            "ds_version": DEEPSPEED_VERSION})
        for dp_rank in range(self.dp):
            self.save_optimizer(pickled, dp_rank, 0)


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"not a positive number: {text}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--stage", type=int, choices=(1, 3), required=True)
    parser.add_argument("--tp", type=positive, default=1, help="tensor-parallel ranks, stage 1 (default 1)")
    parser.add_argument("--pp", type=positive, default=1, help="pipeline stages, stage 1 (default 1)")
    parser.add_argument("--dp", type=positive, default=1, help="data-parallel ranks (default 1)")
    options = parser.parse_args()
    if options.stage == 3 and (options.tp, options.pp) != (1, 1):
        parser.error("--stage 3 has neither --tp nor --pp")
    Writer(options.folder, MODELS[options.model], (options.pp, options.tp, options.dp)).write(options.stage)


if __name__ == "__main__":
    main()
