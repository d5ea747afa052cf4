#!/usr/bin/env python3
"""The costs of dsckpt.load_checkpoint for each rank: bytes read, memory over the loaded engine, seconds.

    scripts/python tests/oracle/live_load_cost.py [--params 120] [--split] [--json]

Saves a model in bf16 with AdamW by 4 ranks at stages 2 and 3. Loads it at others, by DeepSpeed itself where it
can. Prints the rank that read, or took, the most. Memory: the highest resident set while loading, less that
afterwards, when the engine has all its states. Read: what the process has read by any means (rchar of
/proc/self/io).
"""
from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import os
import pathlib
import sys
import tempfile
import time

import make_checkpoints
import make_model_parallel
from make_checkpoints import free_port, run_forked

WIDTH = 512


@dataclasses.dataclass(frozen=True)
class Run:
    """An engine, of a pipeline if it is split at stage 1."""
    stage: int
    dp: int
    tp: int = 1
    pp: int = 1
    ep: int = 0  # expert-parallel ranks; 0: it has no experts
    split: bool = False  # over tensor-parallel ranks or pipeline stages

    @property
    def world(self):
        return self.pp * self.tp * self.dp

    def __str__(self):
        axes = ", ".join(f"{axis} {getattr(self, axis)}" for axis in ("pp", "tp", "ep") if getattr(self, axis) > 1)
        return f"stage {self.stage}, {self.dp} ranks" + (f", {axes}" if axes else "")


# (the run that saved, the run that loads, by DeepSpeed itself as well)
LOADS = [(Run(2, 4), Run(2, 4), True), (Run(2, 4), Run(2, 2), False), (Run(3, 4), Run(3, 4), True),
         (Run(3, 4), Run(3, 2), False), (Run(2, 4), Run(3, 2), False), (Run(3, 4), Run(2, 2), False)]
TENSOR, PIPELINE, EXPERTS = Run(2, 2, tp=2, split=True), Run(1, 2, pp=2, split=True), Run(2, 4, ep=2)
SPLIT_LOADS = [
    *((saved, saved, True) for saved in (TENSOR, PIPELINE, EXPERTS)),
    *((TENSOR, dataclasses.replace(TENSOR, **size), False) for size in (
        {"dp": 1}, {"tp": 1}, {"tp": 4, "dp": 1}, {"dp": 1, "stage": 3}, {"tp": 1, "stage": 3})),
    *((PIPELINE, dataclasses.replace(PIPELINE, **size), False) for size in ({"dp": 1}, {"pp": 1}, {"pp": 4, "dp": 1})),
    *((EXPERTS, dataclasses.replace(EXPERTS, **size), False) for size in ({"dp": 2}, {"ep": 4}, {"dp": 2, "ep": 1})),
]  # fmt: skip


def part_of_model(run):
    """A class of modules, and how many plain weights the whole of one has."""
    from deepspeed.moe.layer import MoE
    from torch import nn

    class Plain(nn.Sequential):

        def __init__(self):
            super().__init__(nn.Linear(WIDTH, WIDTH, bias=False))

    class Halves(nn.Sequential):
        """The tensor-parallel ranks share what is between both."""

        def __init__(self):
            inner = WIDTH // run.tp
            super().__init__(nn.Linear(WIDTH, inner, bias=False), nn.Linear(inner, WIDTH, bias=False))

    class Mixture(nn.Module):

        def __init__(self):
            super().__init__()
            self.moe = MoE(hidden_size=WIDTH, expert=Plain(), num_experts=4, ep_size=run.ep, use_rts=False, min_capacity=4)

        def forward(self, x):
            return self.moe(x)[0]

    return (Mixture, 4) if run.ep else (Halves, 2) if run.split else (Plain, 1)


def made_engine(run, params, rank, port):
    import deepspeed
    import torch
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    make_checkpoints.start_distributed(rank, run.world, port)
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "zero_optimization": {"stage": run.stage}, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False}  # fmt: skip
    torch.manual_seed(1 + rank % run.tp)
    more = {}
    Part, weights = part_of_model(run)
    parts = max(1, round(params * 1e6 / WIDTH / WIDTH / weights))
    if run.split and run.stage == 1:
        from deepspeed.pipe import LayerSpec, PipelineModule
        model = PipelineModule([LayerSpec(Part) for _ in range(parts)], num_stages=run.pp,
                               loss_fn=lambda x, _: x.float().square().mean())
    else:
        group = None
        if run.split:
            more["mpu"] = make_model_parallel.ModelParallelUnit(rank, run.tp, run.dp)
            group = more["mpu"].get_data_parallel_group()
        with deepspeed.zero.Init(data_parallel_group=group, config_dict_or_path=config, enabled=run.stage == 3):
            model = torch.nn.Sequential(*(Part() for _ in range(parts)))
    model = model if run.stage == 3 else model.bfloat16()
    group = {"params": list(model.parameters()), "name": "all"}
    groups = split_params_into_different_moe_groups_for_optimizer(group) if run.ep else [group]
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=1e-3), config=config, **more)[0]
    return engine, weights * parts * WIDTH * WIDTH


RULES = {"universal_checkpoint_info": {"parameter_with_row_parallelism_patterns": [r".*\.1\.weight"],
                                       "universal_checkpoint_version": 0.2}}


def save_worker(rank, run, port, params, folder):
    import torch
    engine, _ = made_engine(run, params, rank, port)
    x = torch.ones(8, WIDTH, dtype=torch.bfloat16)
    if hasattr(engine, "train_batch"):
        engine.train_batch(iter([(x, x)]))
    else:
        engine.backward(engine(x).float().square().mean())
        engine.step()
    engine.save_checkpoint(str(folder), tag="global_step1", client_state=RULES if run.split else {})


def status(key):
    [line] = [line for line in open("/proc/self/status") if line.startswith(key + ":")]
    return int(line.split()[1]) / 1024


def read_bytes():
    [line] = [line for line in open("/proc/self/io") if line.startswith("rchar:")]
    return int(line.split()[1])


def settle():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def load_worker(rank, run, port, params, folder, live, report):
    import torch
    import dsckpt
    from dsckpt import _live  # noqa: F401  what is imported is not measured
    import dsckpt_native  # noqa: F401
    engine, count = made_engine(run, params, rank, port)
    settle()
    torch.distributed.barrier()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    read, started = read_bytes(), time.monotonic()
    if live:
        dsckpt.load_checkpoint(engine, folder)
    else:
        engine.load_checkpoint(str(folder))
    seconds, read, peak = time.monotonic() - started, read_bytes() - read, status("VmHWM")
    settle()
    own = {"read_MB": read / 1e6, "over_MiB": peak - status("VmRSS"), "seconds": seconds, "params": count}
    everyone = [None] * run.world
    torch.distributed.all_gather_object(everyone, own)
    if rank == 0:
        report.write_text(json.dumps({key: max(each[key] for each in everyone) for key in own}))


def measured(params, scratch, loads=LOADS):
    """Yields a dict for each load."""
    for saved, run, natively in loads:
        folder = scratch / str(saved)
        if not folder.exists():
            port = free_port()
            error = run_forked(save_worker, scratch / "logs", [(rank, saved, port, params, folder)
                                                               for rank in range(saved.world)], timeout=900)
            if error:
                raise AssertionError(error)
        for live in ([False, True] if natively else [True]):
            port, report = free_port(), scratch / "report.json"
            error = run_forked(load_worker, scratch / "logs", [(rank, run, port, params, folder, live, report)
                                                               for rank in range(run.world)], timeout=900)
            if error:
                raise AssertionError(error)
            found = json.loads(report.read_text())
            yield {"from": str(saved), "to": str(run), "by": "load_checkpoint" if live else "DeepSpeed",
                   "ranks": run.world, **found}


def main():
    global WIDTH
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=float, default=120, help="millions of parameters; default: 120")
    parser.add_argument("--width", type=int, default=WIDTH, help="rows and columns of a weight; default: 512")
    parser.add_argument("--split", action="store_true", help="models with tensor parallelism, in pipelines, of experts")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    WIDTH = arguments.width
    if not arguments.json:
        print("| from | to | by | read MB | 12 P / ranks, MB | over the loaded engine, MiB | s |\n"
              "|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for each in measured(arguments.params, pathlib.Path(scratch), SPLIT_LOADS if arguments.split else LOADS):
            line = f"| {each['from']} | {each['to']} | {each['by']} | {each['read_MB']:.0f} | " \
                   f"{12 * each['params'] / each['ranks'] / 1e6:.0f} | {each['over_MiB']:.0f} | {each['seconds']:.1f} |"
            print(json.dumps(each) if arguments.json else line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
