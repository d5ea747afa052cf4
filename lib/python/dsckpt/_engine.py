"""What a running DeepSpeed engine is: what decides how a checkpoint is laid out for it, and where it has which tensor.

DeepSpeed's classes, in one table (`WRAPPERS`). Imports torch.
"""
import json
import math
import pickle

import torch

from ._errors import UnsupportedError


class Wrapper:
    """A class that DeepSpeed has around an optimizer, as a rank holds it.

    base: under which key of the rank's file the optimizer's own state_dict is; None: it is that itself.
    masters: under which key the fp32 parameters are, and the attribute that has them.
    groups: the attribute with the parameters of each group, in the order in which the optimizer was given them.
    weights: the attributes with the flat 16-bit parameters of each group, and with the ranks' parts of them; None
        where no rank has a part.
    """

    base: "str | None" = None
    masters, groups = ("", ""), ""
    weights: "tuple[str, str] | None" = None

    def __init__(self, engine):
        self.engine, self.optimizer = engine, engine.optimizer
        self.inner = engine.optimizer if self.base is None else engine.optimizer.optimizer

    def param_groups(self):
        return [list(group) for group in getattr(self.optimizer, self.groups)]

    def flats(self):
        """The tensors that the optimizer steps, in the order of their numbers in its state_dict."""
        return [flat for flat in getattr(self.optimizer, self.masters[1]) if flat is not None]

    def master_places(self, saved):
        """(list, number in it, the engine's tensor) of the fp32 parameters in the rank's file"""
        live = getattr(self.optimizer, self.masters[1])
        _same_length(saved[self.masters[0]], live, "tensors of fp32 parameters")
        for at, flat in enumerate(live):
            if flat is not None:
                yield saved[self.masters[0]], at, flat.data

    def pieces(self):
        """(parameter, its first element that is here, this rank's masters from there on) of trained parameters"""
        for params, flat, parts, masters, group in self.partitions():
            begin = torch.distributed.get_rank(group) * masters.numel()
            for p in params:
                offset = offset_in(p, flat)
                low, high = max(begin, offset), min(begin + masters.numel(), offset + p.numel())
                if low < high:
                    yield p, low - offset, masters.data[low - begin:high - begin]

    def set_weights(self):
        """The 16-bit parameters by the masters, but those that partitions() has."""

    def partitions(self):
        """(parameters, all of them flat, the ranks' parts of that, this rank's masters, process group) of each group"""
        if self.weights is None:
            return []
        flat, parts = (getattr(self.optimizer, name) for name in self.weights)
        return list(zip(self.param_groups(), flat, parts, self.flats(), self.optimizer.real_dp_process_group))


class Plain(Wrapper):
    """No wrapper: stage 0 in fp32. The parameters are the masters."""

    def param_groups(self):
        return [list(group["params"]) for group in self.optimizer.param_groups]

    def flats(self):
        return [p for group in self.param_groups() for p in group]

    def master_places(self, saved):
        return iter(())

    def pieces(self):
        return ((p, 0, p.data.view(-1)) for p in self.flats() if p.numel())


class Fp16Optimizer(Wrapper):
    base, masters, groups = "optimizer_state_dict", ("fp32_groups_flat", "fp32_groups_flat"), "fp16_groups"

    def pieces(self):
        for params, flat in zip(self.param_groups(), self.optimizer.fp32_groups_flat):
            if flat is not None:
                _same_length(range(sum(p.numel() for p in params)), flat, "elements of a group")
                parts = flat.data.split([p.numel() for p in params])
                yield from ((p, 0, part) for p, part in zip(params, parts))

    def set_weights(self):
        for p, _, masters in self.pieces():
            p.data.copy_(masters.view(p.shape))


class Fp16UnfusedOptimizer(Wrapper):
    base, masters, groups = "optimizer_state_dict", ("fp32_groups", "fp32_groups"), "fp16_groups"

    def flats(self):
        return [master for group in self.optimizer.fp32_groups for master in group]

    def pieces(self):
        params = [p for group in self.param_groups() for p in group]
        return ((p, 0, master.data.view(-1)) for p, master in zip(params, self.flats()))

    set_weights = Fp16Optimizer.set_weights

    def master_places(self, saved):
        _same_length(saved["fp32_groups"], self.optimizer.fp32_groups, "groups of fp32 parameters")
        for group, live in zip(saved["fp32_groups"], self.optimizer.fp32_groups):
            _same_length(group, live, "fp32 parameters in a group")
            yield from ((group, at, master.data) for at, master in enumerate(live))


class Zero12Optimizer(Wrapper):
    base = "base_optimizer_state"
    masters = ("single_partition_of_fp32_groups", "single_partition_of_fp32_groups")
    groups, weights = "bit16_groups", ("bit16_groups_flat", "parallel_partitioned_bit16_groups")


class Bf16Optimizer(Zero12Optimizer):
    masters = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition")
    groups, weights = "bf16_groups", ("bf16_groups_flat", "bf16_partitioned_groups")


class Zero3Optimizer(Wrapper):
    base, masters = "optimizer_state_dict", ("fp32_flat_groups", "fp32_partitioned_groups_flat")
    groups = "fp16_groups"  # sub-groups

    def param_groups(self):
        groups = [[] for _ in self.inner.param_groups]
        for number, members in enumerate(self.optimizer.fp16_groups):
            groups[self.optimizer.sub_group_to_group_id[number]] += members
        return groups

    def pieces(self):
        for members, flat in zip(self.optimizer.fp16_groups, self.flats()):
            for p, part in zip(members, flat.data.split([p.partition_numel() for p in members])):
                first, count = part_of(p)
                yield p, first, part[:count]

    def set_weights(self):
        """As stage 3's own load does it."""
        optimizer = self.optimizer
        for flat, masters, parts in zip(optimizer.fp16_partitioned_groups_flat, self.flats(),
                                        optimizer.fp16_partitioned_groups):
            if masters.numel():
                flat.data.copy_(masters.data)
            for part, piece in zip(parts, optimizer.unflatten(flat, parts)):
                part.data = piece.data
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)


WRAPPERS = {
    "": Plain,
    "FP16_Optimizer": Fp16Optimizer,
    "FP16_UnfusedOptimizer": Fp16UnfusedOptimizer,
    "DeepSpeedZeroOptimizer": Zero12Optimizer,
    "BF16_Optimizer": Bf16Optimizer,
    "DeepSpeedZeroOptimizer_Stage3": Zero3Optimizer,
}

RELEASES = ("0.16.", "0.17.", "0.18.", "0.19.")  # of which this table is


def why_unknown(engine):
    """Why DeepSpeed itself has to load this engine; None if its tensors are where the table says."""
    import deepspeed
    optimizer = engine.optimizer
    for attribute in ("checkpoint_engine", "_get_all_ckpt_names", "_get_ckpt_name", "load_module_state_dict"):
        if not hasattr(engine, attribute):
            return f"this DeepSpeed's engine has no {attribute}"
    if not deepspeed.__version__.startswith(RELEASES):
        return f"DeepSpeed {deepspeed.__version__} is not known, only {', '.join(f'{each}x' for each in RELEASES)}"
    if hasattr(engine.module, "forward_funcs") or type(engine).__name__ == "PipelineEngine":
        return "pipelines are not loaded directly"
    if getattr(engine, "has_moe_layers", False):
        return "models with experts are not loaded directly"
    if engine.mp_world_size != 1:
        return "models that are split over tensor-parallel ranks are not loaded directly"
    if optimizer is None or not hasattr(optimizer, "param_groups"):
        return "the engine has no optimizer"
    if _wrapper_name(engine) not in WRAPPERS:
        return f"{type(optimizer).__name__} is not known"
    if _wrapper_name(engine) == "BF16_Optimizer" and not engine.zero_optimization():  # before 0.17.6
        return "BF16_Optimizer at stage 0 is not loaded directly"
    if engine.zero_optimization() and engine.zero_nvme_offload_optimizer():
        return "an optimizer on NVMe is not loaded directly"
    if engine.zero_optimization() and engine.zero_elastic_checkpoint():
        return "zero_optimization.elastic_checkpoint is not loaded directly"
    if engine.zero_optimization_partition_weights() and any(
            flat is None for flat in getattr(optimizer, "fp16_partitioned_groups_flat", ())):
        return "parameters on NVMe are not loaded directly"
    return None


def wrapper_of(engine):
    return WRAPPERS[_wrapper_name(engine)](engine)


def _wrapper_name(engine):
    """Of stages without ZeRO and in fp32 any class is the optimizer itself."""
    name = type(engine.optimizer).__name__
    if name not in WRAPPERS and not engine.zero_optimization() and not engine.fp16_enabled() \
            and not engine.bfloat16_enabled() and isinstance(engine.optimizer, torch.optim.Optimizer):
        return ""
    return name


def part_of(param):
    """The first element that this rank has of a parameter that stage 3 has cut, and how many there are."""
    size = param.partition_numel()
    first = torch.distributed.get_rank(param.ds_process_group) * size
    return first, max(0, min(size, param.ds_numel - first))


def offset_in(param, flat):
    """Where a parameter lies in the flat tensor of its group; one that lies elsewhere is an UnsupportedError."""
    offset, rest = divmod(param.data_ptr() - flat.data_ptr(), flat.element_size())
    inside = not rest and param.dtype == flat.dtype and 0 <= offset <= flat.numel() - param.numel()
    if param.numel() and not inside:
        raise UnsupportedError("the engine has parameters elsewhere than in the flat tensors of their groups")
    return max(0, min(offset, flat.numel()))


def rank_of(engine):
    group = getattr(engine.optimizer, "dp_process_group", None)
    return torch.distributed.get_rank(group) if torch.distributed.is_initialized() else 0


def facts(engine, wrapper, strict):
    """What dsckpt_native.Resume takes: (facts by name, entries of the model's state_dict, groups, settings)."""
    import deepspeed
    optimizer = engine.optimizer
    known = {
        "dp": engine.seq_dp_world_size,
        "rank": rank_of(engine),
        "stage": int(engine.zero_optimization_stage()),
        "wrapper": _wrapper_name(engine),
        "precision": "fp16" if engine.fp16_enabled() else "bf16" if engine.bfloat16_enabled() else "fp32",
        "ds_version": deepspeed.__version__,
        "ds_config": json.dumps(_as_json(_config(engine))),
        "round_robin": bool(getattr(optimizer, "round_robin_gradients", False)),
        "parameter_alignment": bool(getattr(optimizer, "parameter_alignment", False)),
        "sub_group_size": int(getattr(optimizer, "sub_group_size", 0) or 0),
        "strict": strict,
    }  # fmt: skip
    groups = wrapper.param_groups()
    names = [[engine.param_names[p] for p in group] for group in groups]
    trained = {name for group in names for name in group}
    tensors = []
    for name, tensor in state_of(engine).items():
        owner = engine.param_names.get(tensor, name) if isinstance(tensor, torch.nn.Parameter) else name
        kind = "buffer" if not isinstance(tensor, torch.nn.Parameter) else \
            "trainable" if owner in trained else "frozen"
        tensors.append((name, kind, str(tensor.dtype).removeprefix("torch."), list(shape_of(tensor)),
                        owner if owner != name else ""))
    settings = [{key: value for key, value in group.items() if key != "params" and _is_plain(value)}
                for group in wrapper.inner.param_groups]
    return known, tensors, names, pickle.dumps(settings, protocol=2)


def state_of(engine):
    """The tensors of the model's state_dict by name: parameters and persistent buffers themselves."""
    state = engine.module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def shape_of(tensor):
    """Of a parameter that stage 3 has cut, that of all of it."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def _config(engine):
    """The engine's configuration, as if it looked for its own kind of checkpoint."""
    config = dict(engine.config or {})
    checkpoint = config.get("checkpoint")
    if isinstance(checkpoint, dict):
        config["checkpoint"] = {key: value for key, value in checkpoint.items() if key != "load_universal"}
    return config


def _as_json(value):
    """None in the place of what JSON has not: Accelerate prints every float("inf") steps."""
    if isinstance(value, dict):
        return {str(key): _as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if _is_plain(value) else None


def _is_plain(value):
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _same_length(saved, live, what):
    if len(saved) != len(live):
        raise UnsupportedError(f"the plan has {len(saved)} {what}, the engine {len(live)}")
