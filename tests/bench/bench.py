#!/usr/bin/env python3
"""Time a tool against cp of the same files and against DeepSpeed's own converter.

    scripts/bench --params 400M --stage 2 --deepspeed .venv/bin/python --check
    scripts/bench --params 400M --stage 3 --format safetensors --cache cold --out tests/bench/runs/NAME
    scripts/bench --tool to-universal --params 400M --durable --io direct
    scripts/bench --tool reshard --params 100M --ranks 4 --to 3 --stage 3
    scripts/bench --tool merge --params 400M
    scripts/bench --tool verify --params 400M --runs 15
    scripts/bench --memory-at 400M 4B
    scripts/bench suite --out tests/bench/runs/NAME [--rows REGEX]
    scripts/bench pairs --against OTHER/bin [--rows REGEX]
    scripts/bench pairs --with=--resume [--rows REGEX]

A checkpoint is written (bench_checkpoint.py). Then the programs take turns. Each round has cp -r of the folder
that the tool writes, the tool and, in the first rounds, DeepSpeed. Every second round has cp and the tool in
the other order. Before each run its input is read into the page cache, or dropped from it. The outputs of a run
are deleted and the disk is synced before the next one starts. Subcommands of ckpt-inspect that read everything,
stats and verify, take turns with cat of the same files. tests/bench/README.md explains the columns.

--memory-at measures nothing but the memory of one run, on a sparse checkpoint of zeros: its weights are written
to the disk. `suite` makes all comparisons of one table: bench_suite.py. `pairs` compares two builds, or
one with an option and without: bench_pairs.py.

Needs torch in the Python that runs it.
"""
import argparse
import contextlib
import json
import pathlib
import shutil
import sys
import tempfile

import bench_pairs
import bench_report
import bench_suite
from bench_count import count, positive
from measure import BenchError, ROOT
from bench_run import MERGE, READERS, SYNCS, TOOLS, Bench, program_of


def add_bin(parser):
    parser.add_argument("--bin", type=pathlib.Path, metavar="DIR", default=ROOT / "build/release/bin",
                        help="where the tool is (default: build/release/bin)")


def add_folders(parser):
    """And what else the suite has as well."""
    parser.add_argument("--io", metavar="MODE", help="how the tool writes, for its option of that name")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR",
                        help="for the large files (default: a temporary folder in build/)")
    add_bin(parser)
    parser.add_argument("--deepspeed", metavar="PYTHON", default="none",
                        help="a Python that has DeepSpeed, or none (the default)")
    parser.add_argument("--deepspeed-runs", type=positive, metavar="N", default=2)
    parser.add_argument("--check", action="store_true", help="also compare every tensor once")


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     epilog="scripts/bench suite --help: all comparisons of one table; pairs --help: "
                                            "two builds")
    parser.add_argument("--tool", choices=TOOLS, default=TOOLS[0], help=f"(default {TOOLS[0]})")
    parser.add_argument("--params", type=count, default="400M", help="about this many (default 400M)")
    parser.add_argument("--ranks", type=positive, default=4)
    parser.add_argument("--to", type=positive, metavar="N", help="reshard: ranks of the result (default 3)")
    parser.add_argument("--stage", type=int, choices=(2, 3), default=2)
    parser.add_argument("--sub-group-size", type=count, help="stage 3: elements (default: DeepSpeed's, 1B)")
    parser.add_argument("--runs", type=positive, default=5)
    parser.add_argument("--cache", choices=("warm", "cold"), default="warm",
                        help="whether the input is in the page cache when a program starts (default warm)")
    parser.add_argument("--durable", choices=SYNCS, nargs="?", const="filesystem", metavar="HOW",
                        help="time until all is on the disk: the tool with --fsync, cp and DeepSpeed with one sync of "
                             "the filesystem (the default), or of all files that they wrote (files)")
    parser.add_argument("--format", choices=("bin", "safetensors"), help="zero-to-fp32: (default bin)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="zero-to-fp32, merge: (default float32)")
    add_folders(parser)
    parser.add_argument("--memory-at", type=count, nargs="+", metavar="PARAMS",
                        help="only the memory of zero-to-fp32, with sparse checkpoints of these sizes")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint for the next call with this --work")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR",
                        help="write README.md and results.json there, to be kept")
    return parser


def parse_options(arguments):
    parser = make_parser()
    options = parser.parse_args(arguments)
    reads = options.tool in READERS
    if options.tool == "zero-to-fp32":
        options.format = options.format or "bin"
        options.dtype = options.dtype or "float32"
    elif options.tool == MERGE:
        options.dtype = options.dtype or "float32"
        if options.format or options.memory_at or options.deepspeed != "none":
            parser.error("--format, --memory-at and --deepspeed are not for merge")
    elif options.format or options.dtype or options.memory_at:
        parser.error(f"--format, --dtype and --memory-at are not for {options.tool}")
    if options.tool == "reshard":
        options.to = options.to or 3
        if options.deepspeed != "none":
            parser.error("DeepSpeed has no such tool to compare with")
    elif options.to:
        parser.error(f"--to is not for {options.tool}")
    if reads and (options.deepspeed != "none" or options.check):
        parser.error(f"--deepspeed and --check are not for {options.tool}")
    if reads and (options.durable or options.io):
        parser.error(f"--durable and --io are not for {options.tool}, which writes nothing")
    if options.keep and not options.work:
        parser.error("--keep needs --work")
    if options.deepspeed == "none":
        options.deepspeed = None
    elif not shutil.which(options.deepspeed):
        parser.error(f"--deepspeed: no such program: {options.deepspeed}")
    tool = program_of(options)
    if not tool.is_file():
        parser.error(f"{tool} is missing: build it, for example with scripts/run {tool.name} --help")
    options.bin = options.bin.resolve()
    return options


@contextlib.contextmanager
def work_folder(options):
    """The folder asked for, or a temporary one."""
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
        yield options.work.resolve()
        return
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as folder:
        yield pathlib.Path(folder)


def run_one(options, work):
    """Its results, and the table of them."""
    if not options.memory_at:
        bench = Bench(options, work)
        report = bench.cleaned(bench.measure_all)
        return report, bench_report.single(report)
    reports = [bench_suite.memory_at(options, params, work) for params in options.memory_at]
    return {"schema": 1, "memory": reports}, bench_report.memory(reports)


def run_suite(arguments):
    parser = bench_suite.make_parser(add_folders)
    options = parser.parse_args(arguments)
    rows = bench_suite.chosen_rows(options)
    if options.list:
        print("\n".join(f"{row.name}: scripts/bench {' '.join(row.arguments)}" for row in rows))
        return 0
    if not options.out:
        parser.error("--out is needed")
    with work_folder(options) as work:
        failed = bench_suite.run(rows, options, work, parse_options)
    return 1 if failed else 0


def run_pairs(arguments):
    parser = bench_pairs.make_parser(add_bin)
    options = parser.parse_args(arguments)
    if not options.against and not options.besides:
        parser.error("--against or --with is needed")
    with work_folder(options) as work:
        bench_pairs.run(options, work, parse_options)
    return 0


def main():
    if sys.argv[1:2] == ["suite"]:
        return run_suite(sys.argv[2:])
    if sys.argv[1:2] == ["pairs"]:
        return run_pairs(sys.argv[2:])
    options = parse_options(sys.argv[1:])
    with work_folder(options) as work:
        report, table = run_one(options, work)
    text = json.dumps(report, indent=1) + "\n"
    print(table, end="")
    if options.json:
        options.json.write_text(text)
    if options.out:
        bench_report.keep(options.out, table, text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench.py: error: {error}")
