#!/usr/bin/env python3
"""Checkpoints of DeepSpeed that combine at random what testdata has one by one, through every tool.

    scripts/python tests/oracle/combinations.py --count 30 --seed 5
    scripts/python tests/oracle/combinations.py --only 'z3.*offload' --count 200 --keep FOLDER

Each case is drawn by its number from the seed, and made by the makers of testdata with their truths. It has a
stage, ranks, sizes, precision, optimizer, kinds of parameters, and a layout of the files. Weights and states
must be the live engine's bit for bit, and the universal checkpoint must hold them. The checkpoint must be whole
and harmless, and packed and unpacked it is the same files. The result of reshard for another number of ranks
must hold the same and be whole. Combinations that DeepSpeed itself does not train or save are named and left
out. Exit status: 0 when all the others hold.
"""
from __future__ import annotations

import argparse
import hashlib
import pathlib
import random
import re
import sys
import tempfile
import traceback

import make_checkpoints as dp
import make_model_parallel as mp
import model_parallel_truth
import oracle
import torch
from safetensors.torch import load_file
from tools import run_tool

DATA_PARALLEL, SPLIT = "data-parallel", "split"
RANKS = (1, 2, 3, 4, 6, 8)  # the global batch is 24


# --- what is drawn

def flips(draw, share, **options):
    """Each of the options with the probability `share`."""
    return {name: value for name, value in options.items() if draw.random() < share}


def zero_options(draw, stage):
    zero = flips(draw, 0.25, offload_optimizer={"device": "cpu", "pin_memory": False})
    if stage == 3:
        zero |= dp.WHOLE | flips(draw, 0.6, sub_group_size=draw.choice((30, 200, 600, 5000)))
        return zero | (flips(draw, 0.3, offload_param={"device": "cpu", "pin_memory": False}) if zero.keys() >= {
            "offload_optimizer"} else {})
    layouts = flips(draw, 0.3, round_robin_gradients=True) if stage == 2 else {}
    return zero | (layouts or flips(draw, 0.2, parameter_alignment=True) or flips(draw, 0.15, elastic_checkpoint=True))


def data_parallel_case(draw, number):
    stage, world = draw.choice((0, 1, 2, 3, 3)), draw.choice(RANKS)
    zero = zero_options(draw, stage) if stage else {}
    offloads = "offload_optimizer" in zero
    optimizer = "cpu_adamw" if offloads else draw.choice(("adamw", "adamw", "fused_adamw", "sgd", "amsgrad"))
    dtype = draw.choice(("fp32", "bf16", "fp16"))
    kinds = flips(draw, 0.5, tied=True, frozen=True, buffers=True) | flips(
        draw, 0.25, frozen_transposed=True, odd_buffers=True, empty_param=True, zero_dim=True, scheduler=True,
        client_state=True)
    kinds |= draw.choice(({}, {"groups": True}, {"tiny_group": True}))
    if kinds.get("frozen") and stage >= 2:
        kinds |= flips(draw, 0.2, exclude_frozen=True)
    config = draw.choice(({}, {}, dp.python_writer(True), dp.python_writer(False), dp.LEGACY))
    if stage and (optimizer in ("sgd", "amsgrad") or offloads):
        config = {**config, **dp.UNTESTED}
    if stage == 1 and dtype == "bf16" and not offloads and not zero and draw.random() < 0.5:
        config = {**config, **dp.FP32_GRADS}
    traits = [name for name in (*kinds, *zero) if name != "stage3_param_persistence_threshold"]
    name = "_".join([f"r{number}", f"z{stage}", dtype, optimizer.replace("_", ""), *traits, f"w{world}"])
    return dp.Case(name, stage, world, dtype, optimizer, hidden=draw.choice((3, 5, 8, 11, 13)),
                   wide=draw.choice((2, 7, 67, 210)), zero=zero, config=config, seed_offset=number, **kinds)


def split_case(draw, number):
    kind, stage = draw.choice((("pipeline", 1), ("pipeline", 0), ("moe", 1), ("moe", 2), ("megatron", 1),
                               ("megatron", 2), ("megatron_pipeline", 1), ("autotp", 1), ("autotp", 2), ("autotp", 3),
                               ("autoep", 2), ("autoep", 3)))
    dtype = draw.choice(("fp32", "bf16")) if stage else "fp32"
    pp = draw.choice((2, 3)) if kind == "pipeline" else 2 if kind == "megatron_pipeline" else 1
    tp = draw.choice((2, 3)) if kind == "megatron" else 2 if kind in ("megatron_pipeline", "autotp") else 1
    ep = draw.choice((1, 2, 4)) if kind in ("moe", "autoep") else 1
    ranks = draw.choice((1, 2, 3)) if ep == 1 else ep * draw.choice((1, 2))
    options = {"info": "widths", "kv_heads": draw.choice((3, 4))} if kind == "megatron" else \
        {"info": "sizes"} if kind == "megatron_pipeline" else {"info": "tied"} if kind == "pipeline" else \
        {"model": draw.choice(("llama", "fused"))} if kind == "autotp" else {}
    name = f"r{number}_{kind}_pp{pp}_tp{tp}_dp{ranks}_ep{ep}_z{stage}_{dtype}"
    return mp.Case(name, kind, stage, dtype, pp=pp, tp=tp, dp=ranks, ep=ep, **options)


def drawn(seed, number):
    draw = random.Random(f"{seed} {number}")
    kind = SPLIT if number % 3 == 2 else DATA_PARALLEL
    return kind, (split_case if kind == SPLIT else data_parallel_case)(draw, number)


# --- what must hold

def require(good, what):
    if not good:
        raise AssertionError(what)


def run_well(tool, *arguments):
    done = run_tool(tool, *arguments, timeout=300)
    require(done.returncode == 0, f"{tool} {' '.join(map(str, arguments))}: status {done.returncode}: "
            f"{(done.stderr or done.stdout)[-1500:]}")
    return done


def hashes(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file()}


def truths(kind, case):
    """(weights by name, states by name and state)."""
    if kind == SPLIT:
        all_of = {key: value for key, (value, _) in model_parallel_truth.model_parallel_truth(case).items()}
        states = {key: value for key, value in all_of.items() if key[1] != "fp32"}
        return model_parallel_truth.weights(case), states
    states = {}
    for key, value in case.expected("master").items():
        name, state = key.rsplit("|", 1)
        if state != "fp32":
            states[name, state] = value
    return case.truth(), states


def same(found, expected, what):
    require(sorted(found) == sorted(expected), f"{what}: names differ: {sorted(set(found) ^ set(expected))[:5]}")
    for name, value in expected.items():
        require(oracle.same_bits(found[name], value.contiguous()), f"{what}: {name} differs")


# Cases that reshard refuses because DeepSpeed does not load them either, or not at that stage.
REFUSED = ("has no base_optimizer_state_step, without which DeepSpeed does not load it", )


def tells_states_apart(case):
    return case.stage != 0 or case.facts["precision"] != "fp32"


def check(kind, case, folder):
    weights, states = truths(kind, case)
    run_well("zero-to-fp32", case.load_dir, folder / "bin")
    same(oracle.load_bin(folder / "bin" / "pytorch_model.bin"), weights, "weights")
    for command in ("verify", "scan"):
        run_well("ckpt-inspect", command, case.load_dir)
    run_well("ckpt-inspect", "tree", case.load_dir)

    done = run_tool("zero-to-fp32", case.load_dir, folder / "states", "--states", "--safe-serialization")
    refused = done.returncode == 3 and not tells_states_apart(case)
    require(refused or done.returncode == 0, f"--states: {done.stderr[-800:]}")
    if not refused:
        files = (folder / "states" / "optimizer_states").glob("*.safetensors")
        written = {path.stem: load_file(path) for path in files}
        for (name, state), value in states.items():
            require(torch.equal(written[state][name].float(), value.float()), f"{state} of {name} differs")

    done = run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder", folder / "universal")
    refused = done.returncode == 3 and not tells_states_apart(case)
    require(refused or done.returncode == 0, f"to-universal: {done.stderr[-800:]}")
    if not refused:
        for (name, state), value in states.items():
            found = torch.load(folder / "universal" / "zero" / name / f"{state}.pt", weights_only=False)
            found = found["param"] if isinstance(found, dict) else found
            good = torch.equal(found.detach().reshape(-1).float(), value.reshape(-1).float())
            require(good, f"universal: {name} {state}")
        run_well("ckpt-inspect", "verify", folder / "universal")

    if case.stage or kind == DATA_PARALLEL:
        for ranks in (1, 5) if kind == DATA_PARALLEL else (4, ):
            out = folder / f"on{ranks}"
            done = run_tool("reshard", case.load_dir, out, "--dp", ranks)
            if done.returncode == 3 and any(reason in done.stderr for reason in REFUSED):
                break
            require(done.returncode == 0, f"reshard: {done.stderr[-800:]}")
            run_well("ckpt-inspect", "diff", case.load_dir, out)
            run_well("ckpt-inspect", "verify", out)
            run_well("zero-to-fp32", out, folder / f"bin{ranks}")
            same(oracle.load_bin(folder / f"bin{ranks}" / "pytorch_model.bin"), weights, f"resharded to {ranks}")

    run_well("ckpt-pack", "pack", case.load_dir, folder / "packed")
    run_well("ckpt-pack", "unpack", folder / "packed", folder / "unpacked")
    require(hashes(folder / "unpacked") == hashes(case.load_dir), "packed and unpacked, files differ")


def make(kind, case, out, seed, logs):
    """The folder, or None and why DeepSpeed cannot."""
    maker = mp if kind == SPLIT else dp
    try:
        maker.make_case(case, out, seed, logs)
    except Exception as error:
        return None, str(error).strip().splitlines()[-1][:200] if str(error).strip() else repr(error)
    return out / case.name, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--only", default="", metavar="REGEX", help="of the names")
    parser.add_argument("--keep", type=pathlib.Path, help="keep the checkpoints in this folder")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    cases = [drawn(arguments.seed, number) for number in range(arguments.count)]
    cases = [(kind, case) for kind, case in cases if re.search(arguments.only, case.name)]
    if arguments.list:
        print("\n".join(case.name for _, case in cases))
        return 0
    held = failed = left_out = 0
    with tempfile.TemporaryDirectory() as temporary:
        out = (arguments.keep or pathlib.Path(temporary) / "cases").resolve()
        for kind, case in cases:
            folder, why = make(kind, case, out, arguments.seed, pathlib.Path(temporary) / "logs" / case.name)
            if folder is None:
                left_out += 1
                print(f"{case.name}: left out: {why}", flush=True)
                continue
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    check(kind, oracle.Case(folder), pathlib.Path(scratch))
                    held += 1
                    print(f"{case.name}: holds", flush=True)
                except Exception as error:
                    failed += 1
                    what = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
                    print(f"{case.name}: FAILED: {what}", flush=True)
    print(f"{held} hold, {failed} failed, {left_out} left out")
    return 1 if failed or not held else 0


if __name__ == "__main__":
    sys.exit(main())
