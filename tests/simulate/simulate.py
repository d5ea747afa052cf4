#!/usr/bin/env python3
"""Write checkpoints with the shapes of real models, as sparse files that take next to no disk.

    scripts/simulate write FOLDER --model bloom-176b --stage 1 --tp 4 --pp 12 --dp 8
    scripts/simulate write FOLDER --model llama-405b --stage 3 --dp 1024
    scripts/simulate write FOLDER --model kimi-k2 --stage 2 --dp 2048 --ep 64
    scripts/simulate write FOLDER --model deepseek-v3 --stage 3 --dp 64 --lora 16
    scripts/simulate table --models llama-70b bloom-176b --stages 1 3 --out tests/bench/runs/NAME

All tensors are zeros, and the zeros are holes. Names, shapes, partitions, paddings, slice mappings and
checksums are those that DeepSpeed and torch would have written for tensors of these sizes. So whatever works on
the metadata of a checkpoint can be tried at full size: conversions with --dry-run, ckpt-inspect.

With --tp or --pp it is a pipeline of BF16_Optimizer (stage 1). With --tp at stage 2 it has tensor-parallel
ranks and no pipeline, and without both there is data parallelism alone. Models with
experts are of DeepSpeed's own MoE layers, at stage 3 of AutoEP, and --ep ranks share the experts. Stage 0
is a run in fp32, all others are in bf16. There are two parameter groups; only the one
with the matrices has weight decay. DeepSpeed limits the size of the groups of experts. With --lora the model is
frozen, and only adapters of that rank on its attention are trained, at stages 1 to 3.

`write` can be left out. `table` writes checkpoints of real sizes one after the other, runs every tool on
each, and prints what planning takes: simulate_table.py.

Needs nothing but Python.
"""
import argparse
import pathlib
import sys

import simulate_table
from simulate_checkpoint import Writer
from simulate_lora import LoraWriter
from simulate_models import MODELS
from simulate_moe import AutoEpWriter, MoeWriter
from simulate_pipeline import PipelineWriter
from simulate_tensor import TensorWriter

ROOT = pathlib.Path(__file__).resolve().parents[2]


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"not a positive number: {text}")
    return int(text)


def writer(folder, model, *, stage, dp=1, tp=1, pp=1, ep=1, lora=None):
    """Throws ValueError for what there is no such checkpoint of."""
    if lora:
        if stage == 0 or (tp, pp, ep) != (1, 1, 1):
            raise ValueError("--lora is for data parallelism alone, at stages 1 to 3")
        return LoraWriter(folder, model, dp=dp, stage=stage, rank=lora)
    if (stage, pp) == (2, 1) and tp > 1 and model.family == "llama":
        return TensorWriter(folder, model, tp=tp, dp=dp)
    if (tp, pp) != (1, 1):
        if stage != 1 or model.experts:
            raise ValueError("--tp and --pp are for stage 1 of models without experts, and --tp for llama's stage 2")
        return PipelineWriter(folder, model, pp=pp, tp=tp, dp=dp)
    if model.experts:
        return (AutoEpWriter if stage == 3 else MoeWriter)(folder, model, dp=dp, ep=ep, stage=stage)
    if ep != 1:
        raise ValueError("--ep is for models with experts")
    return Writer(folder, model, dp=dp, stage=stage)


def add_write(commands):
    parser = commands.add_parser("write", help="write one checkpoint")
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--stage", type=int, choices=range(4), required=True)
    parser.add_argument("--tp", type=positive, default=1, help="tensor-parallel ranks, stages 1 and 2 (default 1)")
    parser.add_argument("--pp", type=positive, default=1, help="pipeline stages, stage 1 (default 1)")
    parser.add_argument("--ep", type=positive, default=1, help="expert-parallel ranks (default 1)")
    parser.add_argument("--dp", type=positive, default=1, help="data-parallel ranks (default 1)")
    parser.add_argument("--lora", type=positive, metavar="RANK",
                        help="freeze the model and train adapters of this rank, stages 1 to 3")


def add_table(commands):
    names = list(dict.fromkeys(model for model, _, _ in simulate_table.GRIDS))
    parser = commands.add_parser("table", help="measure what planning takes")
    parser.add_argument("--models", nargs="*", choices=names, default=names, help="(default: all)")
    parser.add_argument("--stages", nargs="+", type=int, choices=range(4), default=range(4), help="(default: all)")
    parser.add_argument("--tools", nargs="+", choices=simulate_table.TOOLS, default=simulate_table.TOOLS,
                        help="(default: all)")
    parser.add_argument("--growth", action="store_true", help="also with numbers of ranks and of layers doubled")
    parser.add_argument("--runs", type=positive, default=3, help="of each tool (default 3)")
    parser.add_argument("--limit", type=positive, default=600, metavar="SECONDS", help="for one run (default 600)")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR", default=ROOT / "build",
                        help="for the checkpoints, which take up to 3 GB (default: build/)")
    parser.add_argument("--bin", type=pathlib.Path, metavar="DIR", default=ROOT / "build/release/bin",
                        help="where the tools are (default: build/release/bin)")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR",
                        help="write README.md and results.json there; rows that are there already are kept")


def main():
    arguments = sys.argv[1:]
    if arguments[:1] not in (["table"], ["write"], ["--help"], ["-h"]):
        arguments.insert(0, "write")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    add_write(commands)
    add_table(commands)
    options = parser.parse_args(arguments)
    if options.command == "table":
        simulate_table.run(options, writer)
        return
    try:
        made = writer(options.folder, MODELS[options.model], stage=options.stage, dp=options.dp, tp=options.tp,
                      pp=options.pp, ep=options.ep, lora=options.lora)
    except ValueError as error:
        parser.error(str(error))
    made.write()


if __name__ == "__main__":
    main()
