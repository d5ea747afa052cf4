#!/usr/bin/env python3
"""Write a DeepSpeed ZeRO checkpoint of any size, quickly and without DeepSpeed.

    bench_checkpoint.py write FOLDER --params 400M --ranks 4 --stage 2 [--sub-group-size N] [--sparse]

It saves the files that DeepSpeed 0.19.8 saves for a decoder transformer that was trained in bf16 with AdamW.
File names, keys, types, record order and storages are the same, so that DeepSpeed's own converters read it.
parameter_values tells its values. --sparse writes zeros instead of all but the step, as holes: a checkpoint of
any size, where the values do not matter.

Needs torch. Large tensors live in mapped files in the folder that is written to, so the memory needed does
not depend on the model's size.
"""
import argparse
import collections
import enum
import functools
import math
import pathlib
import struct
import sys
import types
import zipfile
import zlib

import torch

from bench_count import parse_count

# Elements; a seed of its own for each block makes any range of the values reachable.
BLOCK = 1 << 18
STEPS = 3
TAG = f"global_step{STEPS}"
DEEPSPEED_VERSION = "0.19.8"


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


# The state of every element, as a function of the model's value; all differ.
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


@functools.lru_cache(maxsize=None)
def crc_of_zeros(size):
    crc, zeros = 0, bytes(1 << 20)
    for begin in range(0, size, len(zeros)):
        crc = zlib.crc32(zeros[:size - begin], crc)
    return crc


def save_sparse(value, path):
    """torch.save of tensors that are zeros, and take no room on the disk. Only the optimizer's step, the one
    tensor of four bytes, has its value."""
    step = struct.pack("<f", STEPS)
    with torch.serialization.skip_data():
        torch.save(value, path)
    # torch has left out the two checksums of a record: behind its data and in the directory.
    with zipfile.ZipFile(path) as archive, open(path, "r+b") as file:
        entry = archive.start_dir
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            descriptor = info.header_offset + 30 + sum(struct.unpack("<HH", file.read(4))) + info.file_size
            if "/data/" in info.filename and info.file_size:
                crc = crc_of_zeros(info.file_size)
                if info.file_size == len(step):
                    crc = zlib.crc32(step)
                    file.seek(descriptor - len(step))
                    file.write(step)
                for position in (descriptor + 4, entry + 16):
                    file.seek(position)
                    file.write(struct.pack("<I", crc))
            file.seek(entry + 28)
            entry += 46 + sum(struct.unpack("<HHH", file.read(6)))


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

    def __init__(self, folder, shapes, stage, ranks, sub_group_size=None, sparse=False):
        self.folder = pathlib.Path(folder)
        self.tag = self.folder / TAG
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.starts = starts(self.shapes)
        self.stage = stage
        self.ranks = ranks
        self.sub_group_size = sub_group_size
        self.total = sum(map(math.prod, self.shapes.values()))
        self.scratch = Scratch(self.folder)
        self.sparse = sparse

    def write(self):
        self.tag.mkdir(parents=True)
        (self.write_stage2 if self.stage == 2 else self.write_stage3)()
        # DeepSpeed writes this file last as well; a folder without it is not complete.
        (self.folder / "latest").write_text(TAG)

    def save(self, value, name):
        (save_sparse if self.sparse else torch.save)(value, self.tag / name)

    def fill(self, *arguments):
        if not self.sparse:
            fill(*arguments)

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
        self.save({
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
        }, name)

    def save_optimizer(self, rank, states):
        self.save({"optimizer_state_dict": states, "ds_config": self.config(), "ds_version": DEEPSPEED_VERSION},
                  f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")

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
        self.fill(flat[:self.total], 0)
        self.save_model("mp_rank_00_model_states.pt",
                        {name: flat[start:start + math.prod(self.shapes[name])].view(self.shapes[name])
                         for name, start in self.starts.items()}, [list(self.shapes)])
        del flat
        for rank in range(self.ranks):
            begin = partition * rank
            used = max(0, min(partition, self.total - begin))
            flat = {state: self.scratch.tensor(partition, torch.float32) for state in STATES}
            for state, tensor in flat.items():
                self.fill(tensor[:used], begin, state)
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
                        self.fill(tensor[position:position + used], self.starts[name] + skip, state)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("write",))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--params", type=parse_count, default=400_000_000)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--stage", type=int, choices=(2, 3), default=2)
    parser.add_argument("--sub-group-size", type=parse_count, help="stage 3; DeepSpeed's default is 1B")
    parser.add_argument("--sparse", action="store_true", help="all tensors are zeros, and holes in the files")
    options = parser.parse_args()

    torch.set_num_threads(1)
    Writer(options.folder, decoder_shapes(options.params), options.stage, options.ranks, options.sub_group_size,
           options.sparse).write()


if __name__ == "__main__":
    main()
