"""A running DeepSpeed engine: the facts that decide the layout of its checkpoints, and the places of its tensors.

DeepSpeed's classes are in one table (`WRAPPERS`). Imports torch.
"""
import contextlib
import functools
import json
import math
import pickle

import torch

from ._errors import UnsupportedError, UsageError


class Wrapper:
    """A class that DeepSpeed wraps around an optimizer, as a rank holds it.

    base: the key of the optimizer's own state_dict in the rank's file. None: the file has nothing else.
    masters: the key of the fp32 parameters, and the attribute that has them.
    groups: the attribute with the parameters of each group, in the optimizer's order.
    weights: the attributes with the flat 16-bit parameters of each group, and with the ranks' parts of them; None
        if ranks have no parts.
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
        """The tensors that the optimizer updates, in the order of its state_dict."""
        return [flat for flat in getattr(self.optimizer, self.masters[1]) if flat is not None]

    def master_places(self, saved):
        """(list, index in it, the engine's tensor) of the fp32 parameters in the rank's file"""
        live = getattr(self.optimizer, self.masters[1])
        _same_length(saved[self.masters[0]], live, "tensors of fp32 parameters")
        for at, flat in enumerate(live):
            if flat is not None:
                yield saved[self.masters[0]], at, flat.data

    def pieces(self):
        """(parameter, its first element on this rank, this rank's masters from there on) of trained parameters"""
        for params, flat, parts, masters, group in self.partitions():
            begin = torch.distributed.get_rank(group) * masters.numel()
            for p in params:
                offset = offset_in(p, flat)
                low, high = max(begin, offset), min(begin + masters.numel(), offset + p.numel())
                if low < high:
                    yield p, low - offset, masters.data[low - begin:high - begin]

    def swapped(self):
        """The elements of those of flats() that are on NVMe, by their numbers. They have none in memory."""
        return {}

    def set_weights(self):
        """Sets the 16-bit parameters from the masters, except those of partitions() and swapped()."""

    def partitions(self):
        """(parameters, their flat tensor, the ranks' parts of it, this rank's masters, process group) of each group"""
        if self.weights is None:
            return []
        flat, parts = (getattr(self.optimizer, name) for name in self.weights)
        return list(zip(self.param_groups(), flat, parts, self.flats(), self.optimizer.real_dp_process_group))


class Plain(Wrapper):
    """No wrapper: stage 0 in fp32. The parameters are their own masters."""

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
        return (piece for at in range(len(self.flats())) if at not in self.swapped() for piece in self.pieces_of(at))

    def pieces_of(self, at):
        """The pieces of a sub-group, whose masters are in memory."""
        members, flat = self.optimizer.fp16_groups[at], self.flats()[at]
        for p, part in zip(members, flat.data.split([p.partition_numel() for p in members])):
            first, count = part_of(p)
            yield p, first, part[:count]

    def swapped(self):
        sizes = self.optimizer.fp16_partitioned_groups_flat_numel if self.optimizer.swap_optimizer else []
        return {at: int(size) for at, size in enumerate(sizes) if self.optimizer._swappable_optimizer_subgroup(at)}

    @contextlib.contextmanager
    def swapped_in(self, at):
        """Has a sub-group of swapped() in memory, with its states. Afterwards sets its 16-bit parameters."""
        optimizer, swapper, flat = self.optimizer, self.optimizer.optimizer_swapper, self.flats()[at]
        swapper.swap_in_optimizer_state(parameter=flat, async_parameter=None)
        try:
            yield flat
            optimizer._reassign_or_swap_out_partitioned_parameters(at)
        finally:
            swapper.swap_out_optimizer_state(parameter=flat, async_swap=False)
            flat.grad = None

    def restore_masters(self):
        """Does the same as stage 3's _restore_from_bit16_weights, except for what is on NVMe."""
        swapped = self.swapped()
        for at, (flat, weights) in enumerate(zip(self.flats(), self.optimizer.fp16_partitioned_groups_flat)):
            if at not in swapped:
                flat.data.copy_(weights.data)

    def round_masters(self, at):
        """Makes the masters of a sub-group in memory the 16-bit parameters that they give."""
        flat = self.flats()[at]
        flat.data.copy_(flat.data.to(self.optimizer.dtype))

    def set_weights(self):
        """Does the same as stage 3's own load."""
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

RELEASES = ("0.14.", "0.15.", "0.16.", "0.17.", "0.18.", "0.19.")  # of DeepSpeed that this table covers


def check(engine):
    from deepspeed.runtime.engine import DeepSpeedEngine
    if not isinstance(engine, DeepSpeedEngine):
        raise UsageError(f"{type(engine).__name__} is not an engine of DeepSpeed",
                         hint="deepspeed.initialize() returns one, and so does Accelerate's prepare() for the model; "
                         "the Trainer has it as `deepspeed`")


def why_unknown(engine):
    """Why DeepSpeed itself must load this engine; None if the table has the places of its tensors."""
    import deepspeed
    optimizer = engine.optimizer
    for attribute in ("checkpoint_engine", "_get_all_ckpt_names", "_get_ckpt_name", "load_module_state_dict"):
        if not hasattr(engine, attribute):
            return f"this DeepSpeed's engine has no {attribute}"
    if not deepspeed.__version__.startswith(RELEASES):
        return f"DeepSpeed {deepspeed.__version__} is not known, only {', '.join(f'{each}x' for each in RELEASES)}"
    if is_pipeline(engine):
        from deepspeed.pipe import PipelineModule
        theirs = getattr(type(engine.module), "load_state_dir", None) is PipelineModule.load_state_dir
        if type(engine).__name__ != "PipelineEngine" or not theirs:
            return "pipelines with a loader of their own are not loaded directly"
    if has_experts(engine) and not engine.zero_optimization():
        return "the model has experts, whose optimizers are in files of their own at stage 0"
    if getattr(getattr(engine, "_autoep_folding_spec", None), "tp_size", 1) > 1:
        return "AutoEP is folded with tensor parallelism, which is not resharded"
    if optimizer is None or not hasattr(optimizer, "param_groups"):
        return "the engine has no optimizer"
    if _wrapper_name(engine) not in WRAPPERS:
        return f"{type(optimizer).__name__} is not known"
    if _wrapper_name(engine) == "BF16_Optimizer" and not engine.zero_optimization():  # before 0.17.6
        return "BF16_Optimizer at stage 0 is not loaded directly"
    if engine.zero_optimization() and engine.zero_elastic_checkpoint():
        return "zero_optimization.elastic_checkpoint is not loaded directly"
    if engine.zero_optimization_partition_weights() and any(
            flat is None for flat in getattr(optimizer, "fp16_partitioned_groups_flat", ())):
        return "parameters on NVMe are not loaded directly"
    return None


def is_pipeline(engine):
    return hasattr(engine.module, "forward_funcs") or type(engine).__name__ == "PipelineEngine"


def has_experts(engine):
    return bool(getattr(engine, "has_moe_layers", False))


def expert_ranks(tensor):
    """The number of expert-parallel ranks that have other experts under a tensor's name; 0 if it is of none."""
    from deepspeed.utils import groups
    if getattr(tensor, "allreduce", True):
        return 0
    return groups._get_expert_parallel_world_size(tensor.group_name)


def left_alone(engine):
    """The names of tensors that a pipeline's own load does not change: in further copies of a tied layer."""
    if not is_pipeline(engine) or has_experts(engine):
        return set()
    module = engine.module
    loaded = [tensor for layer in module.forward_funcs if hasattr(layer, "load_state_dict")
              for tensor in layer.state_dict(keep_vars=True).values()]
    loaded += [functools.reduce(getattr, name.split("."), tied["module"]) for tied in module.tied_comms.values()
               for name in tied["weight_attr"]]
    known = {id(tensor) for tensor in loaded}
    return {name for name, tensor in state_of(engine).items() if id(tensor) not in known}


def wrapper_of(engine):
    return WRAPPERS[_wrapper_name(engine)](engine)


def _wrapper_name(engine):
    """Without ZeRO and in fp32, a class of any name is the optimizer itself."""
    name = type(engine.optimizer).__name__
    if name not in WRAPPERS and not engine.zero_optimization() and not engine.fp16_enabled() \
            and not engine.bfloat16_enabled() and isinstance(engine.optimizer, torch.optim.Optimizer):
        return ""
    return name


def part_of(param):
    """This rank's first element of a parameter that stage 3 has partitioned, and the number of its elements."""
    size = param.partition_numel()
    first = torch.distributed.get_rank(param.ds_process_group) * size
    return first, max(0, min(size, param.ds_numel - first))


def offset_in(param, flat):
    """The offset of a parameter in the flat tensor of its group. Raises UnsupportedError if it is not in there."""
    offset, rest = divmod(param.data_ptr() - flat.data_ptr(), flat.element_size())
    inside = not rest and param.dtype == flat.dtype and 0 <= offset <= flat.numel() - param.numel()
    if param.numel() and not inside:
        raise UnsupportedError("the engine has parameters elsewhere than in the flat tensors of their groups")
    return max(0, min(offset, flat.numel()))


def rank_of(engine):
    group = getattr(engine.optimizer, "dp_process_group", None) or engine.seq_data_parallel_group
    return torch.distributed.get_rank(group) if torch.distributed.is_initialized() else 0


def facts(engine, wrapper, strict):
    """The arguments of dsckpt_native.Plans: (facts by name, entries of the model's state_dict, groups, settings)."""
    import deepspeed
    optimizer = engine.optimizer
    known = {
        "dp": engine.seq_dp_world_size,
        "stages": [int(layer) for layer in engine.module.parts[:-1]] if is_pipeline(engine) else [],
        "tp": engine.mpu.get_slice_parallel_world_size() if is_pipeline(engine) else engine.mp_world_size,
        "mp_rank": engine.mpu.get_model_parallel_rank() if engine.mp_world_size > 1 else 0,
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
                        owner if owner != name else "", expert_ranks(tensor)))
    settings = [{key: value for key, value in group.items() if key != "params" and _is_plain(value)}
                for group in wrapper.inner.param_groups]
    return known, tensors, names, pickle.dumps(settings, protocol=2)


def state_of(engine):
    """The tensors in the model's state_dict by name: the parameters and persistent buffers themselves."""
    state = engine.module.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}


def shape_of(tensor):
    """The shape of a tensor. For a parameter that stage 3 has partitioned, it is the full shape."""
    return tuple(getattr(tensor, "ds_shape", tensor.shape))


def _config(engine):
    """The engine's configuration, as if it loaded its own kind of checkpoint, and that had whole files."""
    config = dict(engine.config or {})
    zero = config.get("zero_optimization")
    if getattr(engine.optimizer, "swap_optimizer", False):
        config["zero_optimization"] = {**zero, "offload_optimizer": {**zero["offload_optimizer"], "device": "cpu"}}
    checkpoint = config.get("checkpoint")
    if isinstance(checkpoint, dict):
        config["checkpoint"] = {key: value for key, value in checkpoint.items() if key != "load_universal"}
    return config


def _as_json(value):
    """Replaces values that JSON lacks by None: Accelerate sets steps_per_print to float("inf")."""
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
