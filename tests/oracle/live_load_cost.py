#!/usr/bin/env python3
"""The costs of dsckpt.load_checkpoint for each rank: bytes read, memory over the loaded engine, seconds.

    scripts/python tests/oracle/live_load_cost.py [--params 120] [--json]

Saves a model in bf16 with AdamW by 4 ranks at stages 2 and 3. Loads it at others, by DeepSpeed itself where it
can. Prints the rank that read, or took, the most. Memory: the highest resident set while loading, less that
afterwards, when the engine has all its states. Read: what the process has read by any means (rchar of
/proc/self/io).
"""
from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import pathlib
import sys
import tempfile
import time

import make_checkpoints
from make_checkpoints import free_port, run_forked

WIDTH = 512
# (stage and ranks that saved, stage and ranks that load, by DeepSpeed itself as well)
LOADS = [(2, 4, 2, 4, True), (2, 4, 2, 2, False), (3, 4, 3, 4, True), (3, 4, 3, 2, False), (2, 4, 3, 2, False),
         (3, 4, 2, 2, False)]


def made_engine(stage, params, rank, world, port):
    import deepspeed
    import torch
    make_checkpoints.start_distributed(rank, world, port)
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
              "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False}  # fmt: skip
    torch.manual_seed(1)
    layers = max(1, round(params * 1e6 / WIDTH / WIDTH))
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    model = model if stage == 3 else model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0], layers * WIDTH * WIDTH


def save_worker(rank, world, port, stage, params, folder):
    import torch
    engine, _ = made_engine(stage, params, rank, world, port)
    engine.backward(engine(torch.ones(1, WIDTH, dtype=torch.bfloat16)).float().square().mean())
    engine.step()
    engine.save_checkpoint(str(folder), tag="global_step1")


def status(key):
    [line] = [line for line in open("/proc/self/status") if line.startswith(key + ":")]
    return int(line.split()[1]) / 1024


def read_bytes():
    [line] = [line for line in open("/proc/self/io") if line.startswith("rchar:")]
    return int(line.split()[1])


def settle():
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def load_worker(rank, world, port, stage, params, folder, live, report):
    import torch
    import dsckpt
    from dsckpt import _live  # noqa: F401  what is imported is not measured
    import dsckpt_native  # noqa: F401
    engine, count = made_engine(stage, params, rank, world, port)
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
    everyone = [None] * world
    torch.distributed.all_gather_object(everyone, own)
    if rank == 0:
        report.write_text(json.dumps({key: max(each[key] for each in everyone) for key in own}))


def measured(params, scratch, loads=LOADS):
    """A dict for each load."""
    entries = []
    for saved, savers, stage, world, natively in loads:
        folder = scratch / f"z{saved}"
        if not folder.exists():
            port = free_port()
            error = run_forked(save_worker, scratch / "logs", [(rank, savers, port, saved, params, folder)
                                                               for rank in range(savers)], timeout=900)
            if error:
                raise AssertionError(error)
        for live in ([False, True] if natively else [True]):
            port, report = free_port(), scratch / "report.json"
            error = run_forked(load_worker, scratch / "logs", [(rank, world, port, stage, params, folder, live, report)
                                                               for rank in range(world)], timeout=900)
            if error:
                raise AssertionError(error)
            found = json.loads(report.read_text())
            entries.append({"from": f"stage {saved}, {savers} ranks", "to": f"stage {stage}, {world} ranks",
                            "by": "load_checkpoint" if live else "DeepSpeed", "stage": stage, "dp": world, **found})
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=float, default=120, help="millions of parameters; default: 120")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        entries = measured(arguments.params, pathlib.Path(scratch))
    if arguments.json:
        print(json.dumps(entries, indent=1))
        return
    print("| from | to | by | read MB | 12 P / dp, MB | over the loaded engine, MiB | s |\n|---|---|---|---|---|---|---|")
    for each in entries:
        print(f"| {each['from']} | {each['to']} | {each['by']} | {each['read_MB']:.0f} | "
              f"{12 * each['params'] / each['dp'] / 1e6:.0f} | {each['over_MiB']:.0f} | {each['seconds']:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
