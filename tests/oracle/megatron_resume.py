#!/usr/bin/env python3
"""Megatron-DeepSpeed and GPT-NeoX themselves load what reshard and to-universal make of testdata/megatron.

    scripts/python tests/oracle/megatron_resume.py --megatron Megatron-DeepSpeed --neox gpt-neox [--only REGEX]

Each program builds its model from another seed and loads with its own --load, at 1, 2 and 3 data-parallel ranks: then
masters, optimizer states and the model must be those of the run that saved, bit for bit. Exit status: 0 when they are.

Needs the tools in DSCKPT_BIN, and what make_megatron.py needs.
"""
from __future__ import annotations

import argparse
import dataclasses
import pathlib
import re
import sys
import tempfile

import make_megatron
import old_deepspeed
from oracle import every_case
from tools import run_tool

RANKS = (1, 2, 3)
# Megatron-DeepSpeed loads universal checkpoints of stages 1 and 2; GPT-NeoX's configuration has no key for that.
UNIVERSAL = ("megatron_gpt_pp2_tp2_dp1_z1_bf16", "megatron_gpt_tp2_dp2_z2_fp16")


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


def converted(stored, ranks, form, out):
    if form == "native":
        return run_tool("reshard", stored.load_dir, out, "--dp", ranks)
    out.mkdir()
    done = run_tool("to-universal", "--input_folder", stored.load_dir, "--output_folder", out / "universal")
    (out / "latest_universal").write_text("universal")
    iteration = "latest_checkpointed_iteration.txt"
    (out / iteration).write_text((stored.load_dir / iteration).read_text())
    return done


def try_resume(stored, case, form, sources, folder):
    """What went wrong, or None."""
    out = folder / "ckpt"
    done = converted(stored, case.dp, form, out)
    if done.returncode:
        return done.stderr
    # The global batch is another, in samples of which Megatron-DeepSpeed's schedule counts.
    more = {"override-opt_param-scheduler": None} if case.program == "megatron" else {}
    more |= {"universal-checkpoint": None} if form == "universal" else {}
    try:
        make_megatron.run_ranks(make_megatron.load_worker, case, folder / "logs", sources[case.program], stored.folder,
                                out, stored.facts["seed"], more)
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
