"""The facts of a running DeepSpeed engine that decide the layout of its checkpoints. Imports torch."""
import functools
import json
import math
import pickle

import torch

from ._errors import UsageError
from ._wrappers import WRAPPERS

RELEASES = ("0.14.", "0.15.", "0.16.", "0.17.", "0.18.", "0.19.")  # of DeepSpeed that WRAPPERS covers


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
        "universal_info": _rules_of(engine.module),
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


def _rules_of(module):
    """A pickle of the rules by which its slices go together; empty if it has none. Megatron's have a method."""
    rules = getattr(module, "universal_checkpoint_info", None)
    rules = rules() if callable(rules) else rules
    return pickle.dumps(dict(rules), protocol=2) if rules else b""


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
