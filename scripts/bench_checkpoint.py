#!/usr/bin/env python3
"""Write a DeepSpeed ZeRO checkpoint of any size, quickly and without DeepSpeed.

    bench_checkpoint.py write FOLDER --params 400M --ranks 4 --stage 2 [--sub-group-size N]
    bench_checkpoint.py check WEIGHTS [OTHER] --params 400M [--dtype float32|bfloat16]
    bench_checkpoint.py check-universal FOLDER [OTHER] --params 400M --stage 2

`write` saves what DeepSpeed 0.19.8 saves for a decoder transformer that was trained in bf16 with AdamW:
the same file names, keys, types, record order and storages, so that DeepSpeed's own converters read it.
`check` compares the weights that a converter made of it with the values they were written from, and
with the weights in OTHER, bit for bit. `check-universal` does so for universal checkpoints, and compares
all that is in the files of OTHER besides.

Needs torch, and safetensors to check .safetensors files. Large tensors live in mapped files in the
folder that is written to, so the memory needed does not depend on the model's size.
"""
import argparse
import collections
import enum
import functools
import math
import pathlib
import re
import sys
import types

import torch

# Elements; a seed of its own for each block makes any range of the values reachable.
BLOCK = 1 << 18
STEPS = 3
TAG = f"global_step{STEPS}"
DEEPSPEED_VERSION = "0.19.8"


def parse_count(text):
    """400M -> 400000000. Suffixes k, M and B."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKMB]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"not a count: {text}")
    return round(float(match[1]) * {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}[match[2]])


def decoder_shapes(params):
    """Names and shapes of a decoder with about `params` parameters, in the order of its modules.

    The sum is odd, so no number of ranks above one divides it. `embed_scale` has a single element: in
    stage 3 only the first rank holds any of it, and whatever follows it is not aligned to anything.
    """
    hidden = 32 * max(1, round(32 * (params / 400e6) ** 0.4))
    vocab = 2 * max(8, min(16001, params // (16 * hidden)))
    outer = 2 * vocab * hidden + vocab + hidden + 1
    attention = 2 * hidden * hidden + 2 * hidden * (hidden // 4) + 2 * hidden
    layers = max(1, round((params - outer) / (attention + 8 * hidden * hidden)))
    inner = max(1, round(((params - outer) / layers - attention) / (3 * hidden)))

    shapes = {"embed_scale": (1,), "model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "self_attn.q_proj.weight"] = (hidden, hidden)
        shapes[prefix + "self_attn.k_proj.weight"] = (hidden // 4, hidden)
        shapes[prefix + "self_attn.v_proj.weight"] = (hidden // 4, hidden)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, hidden)
        shapes[prefix + "mlp.gate_proj.weight"] = (inner, hidden)
        shapes[prefix + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, inner)
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocab, hidden)
    shapes["lm_head.bias"] = (vocab,)
    return shapes


@functools.lru_cache(maxsize=2)
def block_values(block):
    generator = torch.Generator().manual_seed(block)
    return torch.empty(BLOCK).uniform_(-0.05, 0.05, generator=generator)


# What is kept of every element, as a function of the model's value; all differ.
STATES = {"fp32": torch.clone, "exp_avg": torch.neg, "exp_avg_sq": torch.abs}


def fill(target, begin, state="fp32"):
    """Fills a 1-D tensor with the model's values from element `begin` on, in the order of decoder_shapes."""
    done = 0
    while done < target.numel():
        block, skip = divmod(begin + done, BLOCK)
        count = min(BLOCK - skip, target.numel() - done)
        values = block_values(block)[skip:skip + count]
        target[done:done + count] = STATES[state](values)
        done += count


def parameter_values(begin, shape, state="fp32"):
    values = torch.empty(math.prod(shape))
    fill(values, begin, state)
    return values.reshape(shape)


def starts(shapes):
    """name -> the number of elements before it."""
    result, total = {}, 0
    for name, shape in shapes.items():
        result[name] = total
        total += math.prod(shape)
    return result


class Scratch:
    """Zero-filled tensors that lie in mapped files of a folder, not in anonymous memory."""

    def __init__(self, folder):
        self.path = folder / "scratch"

    def tensor(self, numel, dtype):
        if numel == 0:
            return torch.empty(0, dtype=dtype)
        self.path.unlink(missing_ok=True)
        result = torch.from_file(str(self.path), shared=True, size=numel, dtype=dtype)
        self.path.unlink()
        return result


def as_deepspeed(module, cls):
    """Makes a class pickle as DeepSpeed's of the same name. Nothing here may import DeepSpeed itself."""
    parts = module.split(".")
    for i in range(len(parts)):
        parent = ".".join(parts[:i + 1])
        sys.modules.setdefault(parent, types.ModuleType(parent))
    cls.__module__ = module
    setattr(sys.modules[module], cls.__name__, cls)
    return cls


LossScaler = as_deepspeed("deepspeed.runtime.fp16.loss_scaler", type("LossScaler", (), {}))
FragmentAddress = as_deepspeed("deepspeed.utils.tensor_fragment", type("fragment_address", (), {}))


class ZeroStageEnum(int, enum.Enum):
    gradients = 2
    weights = 3

    def __reduce_ex__(self, protocol):  # early releases of Python 3.11 pickle enums by name
        return type(self), (int(self),)


as_deepspeed("deepspeed.runtime.zero.config", ZeroStageEnum)


def with_attributes(result, **attributes):
    result.__dict__.update(attributes)
    return result


class Writer:
    """Writes the files of one checkpoint, one at a time."""

    def __init__(self, folder, shapes, stage, ranks, sub_group_size=None):
        self.folder = pathlib.Path(folder)
        self.tag = self.folder / TAG
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.starts = starts(self.shapes)
        self.stage = stage
        self.ranks = ranks
        self.sub_group_size = sub_group_size
        self.total = sum(map(math.prod, self.shapes.values()))
        self.scratch = Scratch(self.folder)

    def write(self):
        self.tag.mkdir(parents=True)
        (self.write_stage2 if self.stage == 2 else self.write_stage3)()
        # DeepSpeed writes this file last as well; a folder without it is not complete.
        (self.folder / "latest").write_text(TAG)

    def config(self):
        zero = {"stage": self.stage, "reduce_bucket_size": 100000, "overlap_comm": False,
                "contiguous_gradients": True}
        if self.stage == 2:
            zero["allgather_bucket_size"] = 100000
        else:
            zero |= {"stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 100000,
                     "stage3_param_persistence_threshold": 0}
            if self.sub_group_size:
                zero["sub_group_size"] = self.sub_group_size
        return {
            "train_batch_size": self.ranks, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "steps_per_print": 1000000000,
            "wall_clock_breakdown": False, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.003, "betas": [0.9, 0.95], "eps": 1e-08,
                                                      "weight_decay": 0.01, "torch_adam": True}},
            "bf16": {"enabled": True}}

    def save_model(self, name, module, groups):
        """`groups`: one list of names for each entry of param_shapes."""
        metadata = collections.OrderedDict()
        for parameter in self.shapes:
            parts = parameter.split(".")
            for i in range(len(parts)):
                metadata.setdefault(".".join(parts[:i]), {"version": 1})
        module = collections.OrderedDict(module)
        module._metadata = metadata
        torch.save({
            "module": module,
            "buffer_names": [],
            "optimizer": None,
            "param_shapes": [collections.OrderedDict((name, torch.Size(self.shapes[name])) for name in group)
                             for group in groups],
            "frozen_param_shapes": collections.OrderedDict(),
            "shared_params": {},
            "frozen_param_fragments": collections.OrderedDict(),
            "lr_scheduler": None,
            "data_sampler": None,
            "random_ltd": None,
            "skipped_steps": 0,
            "global_steps": STEPS,
            "global_samples": STEPS * self.ranks,
            "dp_world_size": self.ranks,
            "mp_world_size": 1,
            "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
            "ds_config": self.config(),
            "ds_version": DEEPSPEED_VERSION,
        }, self.tag / name)

    def save_optimizer(self, rank, states):
        torch.save({"optimizer_state_dict": states, "ds_config": self.config(),
                    "ds_version": DEEPSPEED_VERSION},
                   self.tag / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")

    def adam(self, moments):
        """torch's state dict. `moments`: for each group, those of a flat tensor by name."""
        return {
            "state": {i: {"step": torch.tensor(float(STEPS)), **moment} for i, moment in enumerate(moments)},
            "param_groups": [{
                "lr": 0.003, "betas": (0.9, 0.95), "eps": 1e-08, "weight_decay": 0.01, "amsgrad": False,
                "maximize": False, "foreach": None, "capturable": False, "differentiable": False,
                "fused": None, "decoupled_weight_decay": True, "params": list(range(len(moments)))}]}

    def scaler(self):
        return with_attributes(LossScaler(), cur_scale=1.0, dynamic=False)

    def write_stage2(self):
        # stage_1_and_2.py: the flat buffer is padded to nccl_start_alignment_factor (2) times the ranks.
        partition = -(-self.total // (2 * self.ranks)) * 2
        flat = self.scratch.tensor(partition * self.ranks, torch.bfloat16)
        fill(flat[:self.total], 0)
        self.save_model("mp_rank_00_model_states.pt",
                        {name: flat[start:start + math.prod(self.shapes[name])].view(self.shapes[name])
                         for name, start in self.starts.items()}, [list(self.shapes)])
        del flat
        for rank in range(self.ranks):
            begin = partition * rank
            used = max(0, min(partition, self.total - begin))
            flat = {state: self.scratch.tensor(partition, torch.float32) for state in STATES}
            for state, tensor in flat.items():
                fill(tensor[:used], begin, state)
            masters = flat.pop("fp32")
            mapping = collections.OrderedDict()
            for name, start in self.starts.items():
                low = max(start, begin)
                high = min(start + math.prod(self.shapes[name]), begin + partition)
                if low < high:
                    mapping[name] = with_attributes(FragmentAddress(), numel=high - low, start=low - begin)
            self.save_optimizer(rank, {
                "loss_scaler": self.scaler(),
                "dynamic_loss_scale": False,
                "overflow": False,
                "clip_grad": 1.0,
                "base_optimizer_state": self.adam([flat]),
                "single_partition_of_fp32_groups": [masters[:used].requires_grad_()],
                "zero_stage": ZeroStageEnum.gradients,
                "group_paddings": [partition - used],
                "param_alignment_paddings": [[0] * len(self.shapes)],
                "partition_count": [self.ranks],
                "ds_version": DEEPSPEED_VERSION,
                "param_slice_mappings": [mapping]})

    def write_stage3(self):
        parts = {name: -(-math.prod(shape) // self.ranks) for name, shape in self.shapes.items()}
        # stage3.py: the parameter that reaches sub_group_size closes the sub-group.
        groups, group, size = [], [], 0
        for name, part in parts.items():
            group.append(name)
            size += part
            if size >= (self.sub_group_size or 10**9):
                groups.append(group)
                group, size = [], 0
        if group:
            groups.append(group)
        order = {name: i for i, name in enumerate(self.shapes)}
        for rank in range(self.ranks):
            self.save_model(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt",
                            {name: torch.empty(0, dtype=torch.bfloat16) for name in self.shapes}, groups)
            masters, moments = [], []
            for group in groups:
                sizes = sum(parts[name] for name in group)
                flat = {state: self.scratch.tensor(sizes, torch.float32) for state in STATES}
                position = 0
                for name in group:
                    skip = parts[name] * rank
                    used = max(0, min(parts[name], math.prod(self.shapes[name]) - skip))
                    for state, tensor in flat.items():
                        fill(tensor[position:position + used], self.starts[name] + skip, state)
                    position += parts[name]
                master = flat.pop("fp32").requires_grad_()
                master.ds_id = f"{order[group[0]]}_{order[group[-1]]}"
                masters.append(master)
                moments.append(flat)
            self.save_optimizer(rank, {
                "zero_stage": ZeroStageEnum.weights,
                "loss_scaler": self.scaler(),
                "dynamic_loss_scale": False,
                "overflow": False,
                "partition_count": self.ranks,
                "optimizer_state_dict": self.adam(moments),
                "fp32_flat_groups": masters})


class Weights:
    """The tensors in a folder of .bin or .safetensors files, read one by one."""

    def __init__(self, folder):
        self.getters = {}
        for path in sorted(pathlib.Path(folder).iterdir()):
            if path.suffix == ".bin":
                tensors = torch.load(path, weights_only=True, mmap=True)
                for name in tensors:
                    self.add(name, functools.partial(tensors.__getitem__, name))
            elif path.suffix == ".safetensors":
                from safetensors import safe_open
                tensors = safe_open(path, "pt")
                for name in tensors.keys():
                    self.add(name, functools.partial(tensors.get_tensor, name))

    def add(self, name, getter):
        if name in self.getters:
            raise SystemExit(f"{name}: in two files")
        self.getters[name] = getter


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def check(folder, shapes, dtype=torch.float32, other=None):
    """Compares weights with what they were written from, and with the weights in another folder."""
    offsets = starts(shapes)
    for weights in [folder] + ([other] if other else []):
        getters = Weights(weights).getters
        if getters.keys() != shapes.keys():
            raise SystemExit(f"{weights}: names differ: {sorted(getters.keys() ^ shapes.keys())}")
        for name, getter in getters.items():
            if not same(getter(), parameter_values(offsets[name], shapes[name]).to(dtype)):
                raise SystemExit(f"{weights}: {name}: wrong type, shape or values")


def files_of(folder):
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def load(path):
    return torch.load(path, weights_only=False, mmap=True)


def same_object(a, b):
    """Of values as torch.load gives them: types, order of keys and bits are those of the other."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return same(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_object(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_object, a, b))
    if isinstance(a, LossScaler):
        return vars(a) == vars(b)
    return a == b


def check_universal(folder, shapes, stage, other=None):
    """Compares a universal checkpoint with what it was written from, and with the one in another folder."""
    offsets, extra = starts(shapes), {"zero/optimizer_state.pt"}
    keys = [*STATES, "step"] if stage == 2 else [*STATES]
    expected = {f"zero/{name}/{key}.pt" for name in shapes for key in keys}
    for root in [folder] + ([other] if other else []):
        def require(is_right, name):
            if not is_right:
                raise SystemExit(f"{root}: {name}: wrong type, shape or values")
        found = {name for name in files_of(root) if name.startswith("zero/")}
        if found != expected | extra:
            raise SystemExit(f"{root}: files differ: {sorted(found ^ (expected | extra))}")
        for name, shape in shapes.items():
            for state in STATES:
                path = f"zero/{name}/{state}.pt"
                value, right = load(root / path), parameter_values(offsets[name], shape, state)
                if stage == 2:
                    require(type(value) is dict and list(value) == ["cat_dim", "param"] and value["cat_dim"] == 0, path)
                    value = value["param"]
                else:  # plain stage 3 has no shapes
                    right = right.flatten()
                require(same(value, right), path)
            if stage == 2:
                path = f"zero/{name}/step.pt"
                require(same(load(root / path), torch.tensor(float(STEPS))), path)
    if not other:
        return
    if files_of(folder) != files_of(other):
        raise SystemExit(f"{other}: files differ: {sorted(files_of(folder) ^ files_of(other))}")
    # At stage 3 DeepSpeed keeps the flat tensors of rank 0 in optimizer_state.pt, which nothing reads.
    for name in sorted(files_of(folder) - expected - (extra if stage == 3 else set())):
        if not same_object(load(folder / name), load(other / name)):
            raise SystemExit(f"{other}: {name}: differs from that in {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    write = commands.add_parser("write")
    write.add_argument("folder", type=pathlib.Path)
    write.add_argument("--params", type=parse_count, default=400_000_000)
    write.add_argument("--ranks", type=int, default=4)
    write.add_argument("--stage", type=int, choices=(2, 3), default=2)
    write.add_argument("--sub-group-size", type=parse_count, help="stage 3; DeepSpeed's default is 1B")
    compare = commands.add_parser("check")
    compare.add_argument("folder", type=pathlib.Path)
    compare.add_argument("other", type=pathlib.Path, nargs="?")
    compare.add_argument("--params", type=parse_count, default=400_000_000)
    compare.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    compare = commands.add_parser("check-universal")
    compare.add_argument("folder", type=pathlib.Path)
    compare.add_argument("other", type=pathlib.Path, nargs="?")
    compare.add_argument("--params", type=parse_count, default=400_000_000)
    compare.add_argument("--stage", type=int, choices=(2, 3), default=2)
    options = parser.parse_args()

    torch.set_num_threads(1)
    shapes = decoder_shapes(options.params)
    if options.command == "write":
        Writer(options.folder, shapes, options.stage, options.ranks, options.sub_group_size).write()
    elif options.command == "check-universal":
        check_universal(options.folder, shapes, options.stage, options.other)
    else:
        check(options.folder, shapes, getattr(torch, options.dtype), options.other)


if __name__ == "__main__":
    main()
