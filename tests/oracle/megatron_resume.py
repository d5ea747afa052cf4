#!/usr/bin/env python3
"""Megatron-DeepSpeed and GPT-NeoX themselves load what reshard and to-universal make of testdata/megatron.

    scripts/python tests/oracle/megatron_resume.py --megatron Megatron-DeepSpeed --neox gpt-neox [--only REGEX]

Each program builds its model from another seed and loads with its own --load, at 1, 2 and 3 data-parallel
ranks. Then masters, optimizer states and the model must be those of the run that saved, bit for bit. On other
grids of tensor-parallel ranks and pipeline stages, the ranks' tensors together must be the parameters and
states of that run. 16-bit weights are their roundings. Exit status: 0 when all of that holds.

Needs the tools in DSCKPT_BIN, and what make_megatron.py needs.
"""
from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import sys
import tempfile

import make_megatron
import make_model_parallel
import megatron_test
import model_parallel_truth
import old_deepspeed
from make_checkpoints import live_module
from oracle import every_case
from tools import run_tool

RANKS = (1, 2, 3)
# Megatron-DeepSpeed loads universal checkpoints of stages 1 and 2; GPT-NeoX's configuration has no key for that.
UNIVERSAL = ("megatron_gpt_pp2_tp2_dp1_z1_bf16", "megatron_gpt_tp2_dp2_z2_fp16")


# Tensor-parallel ranks, pipeline stages and data-parallel ranks of other runs, and what has to be said besides.
GRIDS = {
    "megatron_gpt_pp2_tp2_dp1_z1_bf16": [(1, 1, 1), (1, 1, 2), (4, 1, 1), (2, 1, 2), (1, 2, 2), (4, 2, 1)],
    "megatron_gpt_tp2_dp2_z2_fp16": [(1, 1, 1), (4, 1, 2)],
    "megatron_swiglu_tp2_dp2_z1_fp32": [(1, 1, 2), (4, 1, 1), (2, 2, 1), (1, 2, 2)],
    "neox_pp1_tp2_dp1_z1_fp16": [(1, 1, 1), (2, 2, 1)],
    "neox_pp2_tp1_dp2_z1_bf16": [(1, 1, 1), (1, 1, 2)],
}


def grid_options(stored, tp, pp, dp):
    rules = megatron_test.NEOX_RULES if stored.name.startswith("neox_pp1_tp2") else ()
    rules = megatron_test.POSITIONS if stored.name == megatron_test.UNTIED else rules
    options = ["--tp", tp, "--pp", pp, "--dp", dp, *(word for rule in rules for word in ("--tp-rule", rule))]
    # GPT-NeoX does not save how many rows it uses: 62 fill 64 whatever the grid.
    return options + (["--padded-vocab-size", 64] if stored.name.startswith("neox_pp1_tp2") else [])


def grid_worker(rank, port, case, source, stored, checkpoint, seed, more):
    """The program loads what was made for its grid into a model of another seed."""
    import torch
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        make_megatron.start(rank, case, port)
        run_program, place, _ = make_megatron.PROGRAMS[case.program]
        engine = run_program(source, case, seed, seed + 1, {"load": str(checkpoint), **more})
    run = place(engine)
    live = make_model_parallel.gathered_by_place(run, make_model_parallel.live_masters(engine, case.stage))
    module = make_model_parallel.gathered_by_place(run, live_module(engine))
    stale = make_model_parallel.stale_copies(module)
    different = []
    slices = {}
    for key, value in live.items():
        name, state, pp, tp, _ = key.split("|")
        slices.setdefault((name, state), {}).setdefault(pp, {})[tp] = value
        weight = module[key.replace(f"|{state}|", "|")]
        if key.replace(f"|{state}|", "|") in stale:
            continue
        if state == "fp32" and not torch.equal(value.to(weight.dtype), weight):
            different.append(f"weight {key}")
    summed = set(stored.facts["rules"].get("sum", ()))
    expected = megatron_test.trained(stored)
    for (name, state), stages in slices.items():
        for pp, ranks in stages.items():
            parts = [ranks[tp] for tp in sorted(ranks)]
            whole = parts[0] if name in summed and state != "fp32" else \
                sum(part.double() for part in parts).float() if name in summed else \
                model_parallel_truth.merge(stored, name, parts)[0]
            truth = expected[name, state]
            if not torch.equal(whole[:len(truth)], truth) and (pp == min(stages) or "position" not in name):
                different.append(f"{name} {state} {pp}")
    if different or set(slices) != set(expected):
        raise AssertionError(f"loading does not rebuild {sorted(different)[:5]} {set(slices) ^ set(expected)}")


def resumes(only):
    cases = {case.name: case for case in make_megatron.CASES}
    for stored in every_case("megatron"):
        if not stored.facts["has_masters"]:
            continue
        for form in ("native", "universal")[:1 + (stored.name in UNIVERSAL)]:
            for ranks in RANKS:
                name = f"{stored.name}, {form}, {ranks} ranks"
                if re.search(only, name):
                    yield name, stored, dataclasses.replace(cases[stored.name], dp=ranks), form
        for tp, pp, dp in GRIDS.get(stored.name, ()):
            name = f"{stored.name}, grid, tp {tp}, pp {pp}, dp {dp}"
            if re.search(only, name):
                yield name, stored, dataclasses.replace(cases[stored.name], tp=tp, pp=pp, dp=dp), "grid"


def converted(stored, case, form, out):
    if form == "native":
        return run_tool("reshard", stored.load_dir, out, "--dp", case.dp)
    if form == "grid":
        return run_tool("reshard", stored.load_dir, out, *grid_options(stored, case.tp, case.pp, case.dp))
    out.mkdir()
    done = run_tool("to-universal", "--input_folder", stored.load_dir, "--output_folder", out / "universal")
    (out / "latest_universal").write_text("universal")
    iteration = "latest_checkpointed_iteration.txt"
    (out / iteration).write_text((stored.load_dir / iteration).read_text())
    return done


def try_resume(stored, case, form, sources, folder):
    """The error, or None."""
    out = folder / "ckpt"
    done = converted(stored, case, form, out)
    if done.returncode:
        return done.stderr
    # The global batch is another, in samples of which Megatron-DeepSpeed's schedule counts.
    more = {"override-opt_param-scheduler": None} if case.program == "megatron" else {}
    more |= {"universal-checkpoint": None} if form == "universal" else {}
    worker, truth = (grid_worker, stored) if form == "grid" else (make_megatron.load_worker, stored.folder)
    try:
        make_megatron.run_ranks(worker, case, folder / "logs", sources[case.program], truth, out,
                                stored.facts["seed"], more)
    except RuntimeError as error:
        return str(error)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", type=pathlib.Path)
    parser.add_argument("--neox", type=pathlib.Path)
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--under", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.under:
        releases = {stored.facts["release"] for _, stored, *_ in resumes(arguments.only)}
        return max((old_deepspeed.start(release, __file__, *sys.argv[1:], "--under", release).returncode
                    for release in sorted(releases)), default=1)
    old_deepspeed.prepare(arguments.under)
    import deepspeed  # noqa: F401
    old_deepspeed.adapt(arguments.under)
    sources = {"megatron": arguments.megatron, "neox": arguments.neox}
    tried = failed = 0
    for name, stored, case, form in resumes(arguments.only):
        if stored.facts["release"] != arguments.under or sources[case.program] is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            failure = try_resume(stored, case, form, {key: path and path.resolve() for key, path in sources.items()},
                                 pathlib.Path(folder))
        tried += 1
        failed += failure is not None
        print(f"{name}: " + ("equal" if failure is None else "FAILED: " + failure.strip()[-800:]), flush=True)
    print(f"{tried} resumes, {failed} failed")
    return 1 if failed or not tried else 0


if __name__ == "__main__":
    sys.exit(main())
