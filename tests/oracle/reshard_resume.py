"""The comparisons of resume_check.py --reshard, and its checkpoints and sizes.

A running engine that has just loaded a checkpoint is held against the files that reshard read. Other tests
compare every optimizer state and master. This one compares the counts of steps, hyper-parameters, loss scaler,
scheduler, counters, client state, and the optimizer's states that one rank alone holds.
"""
from __future__ import annotations

import dataclasses
import itertools

import make_checkpoints
from native_checkpoint import NativeCheckpoint, differences, is_state

# Keys of a model file besides the client's state.
WRITTEN_BY_DEEPSPEED = {
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "skipped_steps", "global_steps",
    "global_samples", "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", "ds_config", "ds_version"}


def inner_optimizer(engine):
    return getattr(engine.optimizer, "optimizer", engine.optimizer)


def live_entries(engine, stage):
    """For each tensor that the base optimizer steps: its group, the parameters in it, and the tensor."""
    optimizer = engine.optimizer
    if stage == 3:
        return [(optimizer.sub_group_to_group_id[at], members, flat) for at, (members, flat) in
                enumerate(zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat))]
    if stage:
        if hasattr(optimizer, "fp32_groups_flat_partition"):  # BF16_Optimizer
            pairs = zip(optimizer.bf16_groups, optimizer.fp32_groups_flat_partition)
        else:
            pairs = zip(optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups)
        return [(group, members, flat) for group, (members, flat) in enumerate(pairs)]
    if hasattr(optimizer, "fp32_groups_flat"):
        return list(zip(itertools.count(), optimizer.fp16_groups, optimizer.fp32_groups_flat))
    if hasattr(optimizer, "fp32_groups"):
        pairs = zip(optimizer.fp16_groups, optimizer.fp32_groups)
        return [(group, [p], master) for group, (members, masters) in enumerate(pairs)
                for p, master in zip(members, masters)]
    return [(group, [p], p) for group, options in enumerate(inner_optimizer(engine).param_groups)
            for p in options["params"]]


def compare_scalars(engine, stage, source: NativeCheckpoint) -> list:
    """Counts of steps, and hyper-parameters, of every parameter."""
    inner, names = inner_optimizer(engine), {p: name for name, p in engine.module.named_parameters()}
    scalars, hyper = source.scalars(), source.hyper()
    wrong, seen = [], set()
    for group, members, owner in live_entries(engine, stage):
        held = {key: value for key, value in inner.state.get(owner, {}).items() if not is_state(key, value)}
        options = {key: value for key, value in inner.param_groups[group].items() if key != "params"}
        for p in members:
            if not p.numel() and not getattr(p, "ds_numel", 0):
                continue
            name = names[p]
            seen.add(name)
            wrong += differences(held, scalars.get(name), where=f"{name}: state")
            if hyper is not None:
                wrong += differences(dict(sorted(options.items())), dict(sorted(hyper[name].items())),
                                     where=f"{name}: group")
    if scalars.keys() - seen:
        wrong.append(f"not trained: {sorted(scalars.keys() - seen)}")
    return wrong


def compare_own_states(engine, stage, rank, world, source: NativeCheckpoint) -> list:
    """States that only this rank has: stage 3's parts, and Muon's momentum of whole parameters."""
    import torch
    inner, names = inner_optimizer(engine), {p: name for name, p in engine.module.named_parameters()}
    saved, wrong = source.tensors(), []
    for group, members, owner in live_entries(engine, stage):
        columns = {"fp32": owner, **{key: value for key, value in inner.state.get(owner, {}).items()
                                     if is_state(key, value)}}
        if stage == 3:
            at = 0
            for p in members:
                part = p.partition_numel()
                held = max(0, min(part, p.ds_numel - rank * part))
                for key, value in columns.items():
                    expected = saved.get(f"{names[p]}|{key}", torch.empty(0)).reshape(-1).float()
                    if not torch.equal(value.detach()[at:at + held].float(),
                                       expected[rank * part:rank * part + held]):
                        wrong.append(f"{names[p]}|{key} on rank {rank}")
                at += part
            wrong += [f"sub-group of {names[members[0]]}: {key} has {value.numel()} elements, not {at}"
                      for key, value in columns.items() if value.numel() != at]
        elif inner.param_groups[group].get("use_muon"):
            flat, size = engine.optimizer.bit16_groups_flat[group], owner.numel()
            starts = sorted((make_checkpoints.element_offset(p.data, flat), names[p], p.numel()) for p in members)
            mine = [name for start, name, count in starts
                    if max(start, rank * size) < min(start + count, (rank + 1) * size)]
            expected = torch.cat([torch.empty(0)] + [saved[f"{name}|momentum_buffer"].reshape(-1).float()
                                                     for name in mine])
            momentum = columns.get("momentum_buffer", torch.empty(0)).detach().float()
            if not torch.equal(momentum, expected):
                wrong.append(f"momentum of {mine} on rank {rank}: {momentum.numel()} of {expected.numel()} elements")
        else:
            wrong += [f"{key} of group {group} has {value.numel()} elements, not {owner.numel()}"
                      for key, value in columns.items() if value.numel() != owner.numel()]
    return wrong


def compare_scaler(engine, stage, source: NativeCheckpoint) -> list:
    saved, optimizer = source.scaler(), engine.optimizer
    if stage and source.stage:
        live = dict(vars(optimizer.loss_scaler)) if saved and hasattr(optimizer, "loss_scaler") else saved
        wrong = differences(live, saved, where="loss scaler")
    else:
        holder = optimizer.loss_scaler if stage else getattr(optimizer, "loss_scale_config", optimizer)
        live = dict(vars(holder)) if saved else {}
        common = sorted(saved.keys() & live.keys())
        if saved and not common and saved.get("cur_scale") != 1.0:
            return ["no loss scaler to compare"]  # an fp32 optimizer of stage 0 has none
        wrong = differences({key: live[key] for key in common}, {key: saved[key] for key in common},
                            where="loss scaler")
    if stage and source.stage:
        for key in ("clip_grad", "overflow", "dynamic_loss_scale"):
            if key in source.optims[0] and hasattr(optimizer, key):
                wrong += differences(getattr(optimizer, key), source.optims[0][key], where=key)
    return wrong


def compare_engine(engine, stage, rank, world, client_state, source: NativeCheckpoint) -> list:
    """All that one rank can say about what it loaded; `client_state` is None where a framework keeps it."""
    wrong = compare_scalars(engine, stage, source) + compare_scaler(engine, stage, source)
    if stage:
        wrong += compare_own_states(engine, stage, rank, world, source)
    for key in ("global_steps", "skipped_steps", "global_samples"):
        if getattr(engine, key) != source.model[key]:
            wrong.append(f"{key} is {getattr(engine, key)}, not {source.model[key]}")
    if source.model["lr_scheduler"] is not None:
        wrong += differences(engine.lr_scheduler.state_dict(), source.model["lr_scheduler"], where="lr_scheduler")
    if client_state is not None:
        expected = {key: value for key, value in source.model.items() if key not in WRITTEN_BY_DEEPSPEED}
        wrong += differences({key: client_state[key] for key in expected if key in client_state}, expected,
                             where="client state")
        if stage == source.stage:
            for key in ("ds_version", "buffer_names", "frozen_param_shapes"):
                wrong += differences(client_state.get(key), source.model[key], where=key)
    return wrong


def compare_module(live: dict, expected: dict) -> list:
    """Parameters in the precision of the run, frozen and tied ones included, and buffers."""
    wrong = [f"module has no {name}" for name in sorted(expected.keys() - live.keys())]
    wrong += [f"module has {name}" for name in sorted(live.keys() - expected.keys())]
    return wrong + [line for name in sorted(expected.keys() & live.keys())
                    for line in differences(live[name], expected[name], where=f"module: {name}")]


@dataclasses.dataclass(frozen=True)
class Row:
    case: str
    worlds: tuple
    quick: tuple = ()  # those of the worlds that --quick tries
    stage: int | None = None
    zero: dict = dataclasses.field(default_factory=dict)  # other zero_optimization keys in the run that resumes
    config: dict = dataclasses.field(default_factory=dict)  # other top-level keys; None takes one away
    refused: str = ""  # part of the message with which reshard refuses
    deepspeed_refuses: str = ""  # part of the message with which DeepSpeed's loader stops
    same_init: bool = False  # start with the checkpoint's frozen parameters and buffers: it lacks some
    strict: bool = True
    uninterrupted: bool = True  # the losses must be those of the run that was never interrupted


WORLDS = (1, 2, 3, 4, 5, 8)
NO_GRADS = {"data_types": None}

# The cases of --quick: a pairwise selection over stages, precisions, wrappers, optimizers and numbers of ranks.
QUICK = {"z1_fp32_full_b120_w3": (5, ), "z1_bf16opt_full_b120_w4": (3, ), "z1_fp16_full_b120_w2": (3, ),
         "z2_bf16_full_b120_w3": (2, ), "z2_fp32_amsgrad_full_b120_w4": (1, ), "z3_fp32_full_b120_w2": (3, ),
         "z3_bf16_full_b120_w4": (5, ), "z3_fp16_full_b120_w3": (1, )}

MATRIX = [
    *(Row(case.name, WORLDS, quick=QUICK.get(case.name, ())) for case in make_checkpoints.large_batch_cases()),
    # Other stages
    Row("z2_bf16_full_b120_w3", (1, 2, 4), stage=3, quick=(4, )),
    Row("z2_bf16_full_b120_w3", (2, ), stage=1),
    Row("z2_bf16_full_b120_w3", (2, ), stage=0),
    Row("z3_fp32_full_b120_w2", (1, 3), stage=2, quick=(3, )),
    Row("z3_fp32_full_b120_w2", (3, ), stage=1),
    Row("z3_fp32_full_b120_w2", (1, 3), stage=0),
    Row("z3_fp16_full_b120_w3", (2, ), stage=1),
    Row("z1_fp32_full_b120_w3", (2, 5), stage=3),
    Row("z1_fp32_full_b120_w3", (2, ), stage=2),
    Row("z1_fp32_full_b120_w3", (2, ), stage=0),
    Row("z1_fp16_full_b120_w2", (3, ), stage=3),
    Row("z2_fp32_amsgrad_full_b120_w4", (3, ), stage=3),
    Row("z1_bf16opt_full_b120_w4", (3, ), stage=2, config=NO_GRADS),
    Row("z1_bf16opt_full_b120_w4", (3, ), stage=3, config=NO_GRADS),
    Row("z0_fp32_w2", (1, 3), stage=1),
    Row("z0_fp32_w2", (3, ), stage=2),
    Row("z0_fp32_w2", (3, ), stage=3),
    Row("z0_bf16_full_w2", (3, ), stage=1),
    Row("z0_bf16_full_w2", (3, ), stage=3),
    # At stage 0 DeepSpeed's fp16 steps differ from those of other stages, even from the same start.
    Row("z0_fp16_full_w2", (3, ), stage=2, uninterrupted=False),
    Row("z0_fp32_sgd_w2", (3, ), stage=2),
    Row("z0_fp32_sgd_w2", (3, ), stage=3),
    Row("z0_bf16_fusedadam_w2", (4, ), stage=2),
    Row("z0_fp16_fusedadam_full_w1", (2, ), stage=1, uninterrupted=False),
    Row("z3_fp32_adagrad_w2", (3, ), stage=2),
    Row("z1_bf16_muon_w2", (3, ), stage=2),
    Row("z1_bf16_muon_w2", (3, ), stage=3, zero={"reduce_scatter": False}),
    Row("z3_bf16_muon_w2", (3, ), stage=1),
    Row("z2_bf16_adagrad_offload_w2", (3, ), stage=3),
    # Stage 0 needs no other files, only another number of ranks in them
    Row("z0_fp32_w2", (1, 3)),
    Row("z0_bf16_full_w2", (3, )),
    Row("z0_fp16_w2", (1, )),
    # Other wrappers and layouts, by the configuration of the run that resumes
    Row("z1_bf16opt_full_b120_w4", (3, ), config=NO_GRADS),
    Row("z1_bf16_full_w2", (3, ), config=make_checkpoints.FP32_GRADS),
    Row("z2_bf16_full_b120_w3", (2, ), zero={"round_robin_gradients": True}),
    Row("z2_bf16_roundrobin_full_w3", (2, ), zero={"round_robin_gradients": False}),
    Row("z2_bf16_full_b120_w3", (4, ), zero={"parameter_alignment": True}),
    Row("z2_bf16_paramalign_w2", (3, ), zero={"parameter_alignment": False}),
    Row("z3_fp32_full_b120_w2", (3, ), zero={"sub_group_size": 150}),
    # The optimizer was on NVMe, whence DeepSpeed itself does not resume exactly
    Row("z3_bf16_nvme_w2", (1, 2, 3), zero=make_checkpoints.OFFLOAD, quick=(3, )),
    Row("z3_fp32_nvme_full_w3", (2, 3), zero=make_checkpoints.OFFLOAD),
    Row("z3_bf16_nvmeparam_w2", (2, ), zero={**make_checkpoints.OFFLOAD, "offload_param": {"device": "none"}}),
    # Traits
    Row("z1_fp32_full_w4", (1, 3)),  # scheduler and client state
    Row("z2_fp32_full_w3", (1, 4)),  # scheduler
    Row("z3_fp32_full_w2", (3, )),  # client state
    Row("z3_bf16_full_subgroups_w4", (1, 3)),  # scheduler
    Row("z3_fp32_small_subgroups_w2", (1, 3)),
    Row("z1_fp32_full_w6", (4, )),
    Row("z2_bf16_full_w8", (3, )),
    Row("z3_bf16_full_w6", (8, )),
    Row("z3_fp32_full_w8", (6, )),
    Row("z3_fp32_full_w1", (2, )),
    Row("z1_fp32_w1", (3, )),
    Row("z1_fp32_tinygroup_w4", (1, 3, 8)),
    Row("z1_bf16opt_tinygroup_w4", (1, 3, 8)),
    Row("z3_fp32_tinygroup_w4", (3, 8)),
    Row("z2_fp32_emptyparam_w2", (3, )),
    Row("z1_fp32_zerodim_w2", (3, )),
    Row("z2_bf16_zerodim_w2", (3, )),
    Row("z3_bf16_w2", (3, )),
    Row("z2_fp32_oddbuffers_w2", (3, )),
    Row("z3_bf16_oddbuffers_w2", (3, )),
    Row("z2_fp32_large_param_w8", (3, )),
    Row("z2_bf16_roundrobin_w2", (1, 3, 4)),
    Row("z2_bf16_roundrobin_full_w3", (2, 4)),
    Row("z2_bf16_paramalign_w2", (3, )),
    Row("z2_bf16_offload_w2", (3, )),
    Row("z3_bf16_offload_w2", (3, )),
    Row("z3_bf16_offloadparam_w2", (3, )),
    Row("z3_bf16_hpz_w4", (2, 3, 8)),
    Row("z3_fp32_persist_w2", (3, )),
    Row("z2_bf16_legacyserial_w2", (3, )),
    Row("z3_fp32_legacyserial_w2", (3, )),
    Row("z1_bf16_writer_python_w2", (3, )),
    Row("z1_bf16_writer_pyzip_w2", (1, )),
    Row("z1_fp32_elastic_w2", (1, 3)),
    Row("z2_fp32_elastic_w2", (3, )),
    Row("z1_fp32_elastic_torchadam_w2", (3, ), refused="base_optimizer_state_step"),
    Row("z2_fp32_exclfrozen_w2", (3, ), same_init=True, strict=False),
    Row("z3_fp32_exclfrozen_w2", (3, ), same_init=True, strict=False),
    # Optimizers
    Row("z1_fp32_fusedadam_w2", (3, )),
    Row("z2_bf16_fusedadam_w2", (4, )),
    Row("z3_bf16_fusedadam_w2", (3, )),
    Row("z1_fp32_sgd_w2", (3, )),
    Row("z3_fp32_sgd_w2", (3, )),
    Row("z2_fp32_adagrad_w2", (3, )),
    Row("z2_bf16_adagrad_offload_w2", (3, )),
    Row("z3_fp32_adagrad_w2", (3, ), refused="Adagrad"),
    Row("z2_fp32_radam_w2", (3, )),
    Row("z2_fp32_amsgrad_w2", (3, )),
    Row("z1_bf16_muon_w2", (1, 3, 4)),
    Row("z2_bf16_muon_w2", (3, )),
    Row("z3_bf16_muon_w2", (3, )),
    # Frameworks
    Row("hf_trainer_gpt2_z2_bf16_w2", (1, 3)),
    Row("hf_trainer_llama_z1_bf16_w3", (2, )),
    Row("hf_trainer_llama_z3_bf16_w2", (3, ), quick=(3, )),
    Row("hf_accelerate_gpt2_z2_fp32_w2", (3, )),
    Row("hf_accelerate_llama_z3_fp32_w2", (1, 3)),
]
