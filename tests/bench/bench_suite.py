"""All comparisons of one table: which they are, and one run of them.

    scripts/bench suite --out tests/bench/runs/NAME --deepspeed .venv/bin/python
    scripts/bench suite --out tests/bench/runs/NAME --rows '^cold-(verify|reshard)' --runs 9
    scripts/bench suite --list

Each row is what one command of bench.py measures, the one that stands in the table beside it. A checkpoint is
written for all the rows that need it and then deleted. Results are kept as they come; rows that are not run
again stay as they are in --out.
"""
import argparse
import json
import pathlib
import re
import typing

import bench_report
from bench_count import count, positive
from measure import BenchError, say
from bench_run import MERGE, READERS, Bench

STAGES = (2, 3)
FORMS = [(kind, dtype) for kind in ("bin", "safetensors") for dtype in ("float32", "bfloat16")]
DEEPSPEED_HAS = ("zero-to-fp32", "to-universal")
# --quick makes everything a thousand times smaller.
QUICK_PARAMS = {"100M": "100k", "400M": "400k", "1B": "1M"}
QUICK_RUNS = 2


class Row(typing.NamedTuple):
    name: str
    tool: str
    arguments: list  # of bench.py

    @property
    def writes(self):
        return self.tool not in READERS


class Matrix:
    def __init__(self, quick, runs):
        self.quick, self.runs = quick, runs
        self.rows = []

    def add(self, regime, tool, params, stage, *, form=(), runs=7):
        """`form`: format and dtype of weights, dtype of a merge. `stage`: None of what has none."""
        if self.quick:
            params, runs = QUICK_PARAMS[params], QUICK_RUNS
        kind = "weights" if tool == "zero-to-fp32" else tool.removeprefix("to-")
        arguments = ["--tool", tool, "--params", params]
        if stage:
            arguments += ["--ranks", "4", "--stage", str(stage)]
        arguments += ["--runs", str(self.runs or runs)]
        arguments += {"warm": [], "cold": ["--cache", "cold"], "durable": ["--durable"]}[regime]
        if form and tool == MERGE:
            arguments += ["--dtype", *form]
        elif form:
            arguments += ["--format", form[0], "--dtype", form[1]]
        if tool == "reshard":
            arguments += ["--to", "3"]
        name = [regime, kind, *form, params, *([f"stage{stage}"] if stage else [])]
        self.rows.append(Row("-".join(name), tool, arguments))


def matrix(quick=False, runs=None):
    """Outputs that fit the page cache, larger ones that are waited for, and cold inputs."""
    result = Matrix(quick, runs)
    for stage in STAGES:
        for form in FORMS:
            result.add("warm", "zero-to-fp32", "400M", stage, form=form)
        result.add("warm", "to-universal", "100M", stage)
        result.add("warm", "reshard", "100M", stage)
        result.add("warm", "verify", "400M", stage)
    for dtype in ("float32", "bfloat16"):
        result.add("warm", MERGE, "400M", None, form=(dtype, ))
    for stage in STAGES:
        result.add("durable", "to-universal", "400M", stage, runs=5)
        result.add("durable", "reshard", "400M", stage, runs=5)
        result.add("durable", "zero-to-fp32", "1B", stage, form=FORMS[0], runs=5)
    for stage in STAGES:
        result.add("cold", "zero-to-fp32", "400M", stage, form=FORMS[0])
        result.add("cold", "to-universal", "100M", stage)
        result.add("cold", "reshard", "100M", stage)
        result.add("cold", "verify", "400M", stage)
    return result.rows


def regex(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {text}: {error}")


def make_parser(add_folders):
    parser = argparse.ArgumentParser(prog="bench.py suite", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR",
                        help="README.md and results.json there are made, or get the rows that are run")
    parser.add_argument("--rows", type=regex, metavar="REGEX", default=re.compile(""),
                        help="only rows in whose names this is found")
    parser.add_argument("--list", action="store_true", help="only print the rows and their commands")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--runs", type=positive, metavar="N", help="of every row")
    add_folders(parser)
    parser.add_argument("--deepspeed-rows", type=regex, metavar="REGEX", default=re.compile("^warm-"),
                        help="where DeepSpeed is compared with, if it has such a tool (default ^warm-)")
    parser.add_argument("--memory-at", type=count, nargs="+", metavar="PARAMS", default=[],
                        help="also the memory of zero-to-fp32 with sparse checkpoints of these sizes")
    return parser


def chosen_rows(options):
    """With what was asked for all of them."""
    return [row._replace(arguments=row.arguments + extra_arguments(row, options))
            for row in matrix(options.quick, options.runs) if options.rows.search(row.name)]


def extra_arguments(row, options):
    extra = []
    if row.writes:
        extra += ["--io", options.io] if options.io else []
        extra += ["--check"] if options.check else []
    if options.deepspeed != "none" and row.tool in DEEPSPEED_HAS and options.deepspeed_rows.search(row.name):
        extra += ["--deepspeed", options.deepspeed, "--deepspeed-runs", str(options.deepspeed_runs)]
    return extra


def memory_at(options, params, work):
    """The figures of one run on a sparse checkpoint. `options`: those of bench.py."""
    settings = {**vars(options), "params": params, "deepspeed": None, "keep": False}
    bench = Bench(argparse.Namespace(**settings), work, sparse=True)
    return bench.cleaned(bench.measure_memory)


class Results:
    """The results in --out, by name and in the order of the matrix."""

    def __init__(self, options):
        self.folder = options.out
        self.names = [row.name for row in matrix(options.quick)]
        self.rows, self.memory = {}, {}
        path = self.folder / "results.json"
        if path.exists():
            kept = json.loads(path.read_text())
            self.rows = {row["name"]: row for row in kept["rows"]}
            self.memory = {row["name"]: row for row in kept["memory"]}

    def keep(self):
        rows = [self.rows[name] for name in self.names if name in self.rows]
        memory = list(self.memory.values())
        results = {"schema": 1, "type": "suite", "rows": rows, "memory": memory}
        bench_report.keep(self.folder, bench_report.suite(rows, memory), json.dumps(results, indent=1) + "\n")


    def add(self, rows, name, measured):
        """`measured` is called for the row. Returns the names that have failed: of this row or none."""
        try:
            rows[name] = {"name": name, **measured()}
        except BenchError as error:
            say(f"{name}: error: {error}")
            return [name]
        self.keep()
        return []


def run(rows, options, work, parse_options):
    """`parse_options` is that of bench.py. Returns the names of rows that failed; the others are kept."""
    binaries = ["--bin", str(options.bin)]
    benches = [(row.name, Bench(parse_options([*row.arguments, *binaries]), work)) for row in rows]
    benches.sort(key=lambda named: str(named[1].checkpoint))
    results, failed = Results(options), []
    for i, (name, bench) in enumerate(benches):
        say(f"{name} ({i + 1} of {len(benches)})")
        bench.options.keep = any(other.checkpoint == bench.checkpoint for _, other in benches[i + 1:])
        failed += results.add(results.rows, name, lambda: bench.cleaned(bench.measure_all))
    for params in options.memory_at:
        for stage in STAGES:
            one = parse_options(["--stage", str(stage), *(["--io", options.io] if options.io else []), *binaries])
            failed += results.add(results.memory, f"{params}-stage{stage}",
                                  lambda: memory_at(one, params, work))
    return failed
