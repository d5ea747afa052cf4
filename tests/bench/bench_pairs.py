"""Two builds of the tools against each other, in turn, on the benchmark's rows and on plans of a large model.
Or the cost of an option.

    scripts/bench pairs --against ../old/build/release/bin --rows '^(warm|plan)-' --runs 20
    scripts/bench pairs --with=--resume --rows '^(warm|durable)-(weights|universal|reshard)'

Each pair is one run of either, the one that comes first taking turns. The result is the ratio of the two in each
pair: the machine's speed drifts less between neighbours. Memory is polled in a run of its own, which is not timed.
"""
import argparse
import datetime
import json
import pathlib
import statistics
import subprocess
import sys

import bench_report
import bench_suite
from bench_count import positive
from bench_files import remove
from bench_run import Bench
from measure import BenchError, ROOT, git_commit, in_turn, machine, measure, output_of, say

MODEL = ["--model", "llama-405b", "--stage", "3", "--dp", "1024"]
QUICK_MODEL = ["--model", "llama-8b", "--stage", "3", "--dp", "8"]
PLANS = {
    "plan-weights": lambda source, output: ["zero-to-fp32", source, output, "--dry-run"],
    "plan-universal": lambda source, output: ["to-universal", "--input_folder", source, "--output_folder", output,
                                              "--dry-run"],
    "plan-reshard": lambda source, output: ["reshard", source, output, "--dp", "512", "--dry-run"],
    "plan-list": lambda source, output: ["ckpt-inspect", "list", source],
}
BUILDS = ("now", "before")


class Plan:
    """The plans of a simulated checkpoint, which are not run."""

    def __init__(self, name, folders, work, besides):
        self.name, self.folders, self.work, self.besides = name, folders, work, besides

    def command(self, build):
        tool, *arguments = PLANS[self.name](self.work / "simulated", self.work / "planned")
        return [self.folders[build] / tool, *arguments, *(self.besides if build == "now" else [])]

    def run(self, build, **settings):
        return measure(self.command(build), **settings)

    def command_line(self):
        tool, *arguments = PLANS[self.name]("build/simulated", "build/planned")
        return " ".join([tool, *arguments])


class Conversion:
    """A row of the suite, by both builds."""

    def __init__(self, row, folders, work, besides, parse_options):
        self.name = row.name
        options = {build: parse_options([*row.arguments, "--bin", str(folders[build])]) for build in BUILDS}
        self.benches = {build: Bench(options[build], work, besides=besides if build == "now" else ()) for build in BUILDS}
        self.tool = options["now"].tool

    def run(self, build, **settings):
        return self.benches[build].run(self.tool, **settings)

    def command_line(self):
        return self.benches["now"].command_line()


def compare(subject, runs):
    """Ratios are of now to before."""
    memory = {build: subject.run(build, memory=True) for build in BUILDS}
    timed = in_turn(BUILDS, runs, subject.run, f"{subject.name}, ")
    result = {"name": subject.name, "command": subject.command_line(), "runs": timed, "memory_runs": memory}
    for what, value in (("seconds", lambda run: run["seconds"]),
                        ("cpu", lambda run: run["user_seconds"] + run["system_seconds"])):
        ratios = [value(now) / value(before) for now, before in zip(timed["now"], timed["before"])]
        result[f"{what}_ratios"] = ratios
        say(f"{subject.name}: {what} {statistics.median(ratios):.3f} (median of {runs} pairs)")
    return result


def simulate(folder, quick):
    remove(folder)
    say("simulating a checkpoint for the plans")
    done = subprocess.run([sys.executable, ROOT / "tests/simulate/simulate.py", folder, *(QUICK_MODEL if quick else MODEL)],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise BenchError(f"simulate.py: {done.stderr.strip()}")


def compare_conversions(subjects, runs):
    """Those that read the same checkpoint one after the other."""
    subjects.sort(key=lambda subject: str(subject.benches["now"].checkpoint))
    for i, subject in enumerate(subjects):
        bench = subject.benches["now"]

        def measured():
            bench.prepare()
            return compare(subject, runs)

        bench.options.keep = any(other.benches["now"].checkpoint == bench.checkpoint for other in subjects[i + 1:])
        yield bench.cleaned(measured)


def report_text(report):
    def medians(row, value):
        return {build: statistics.median(value(run) for run in row["runs"][build]) for build in BUILDS}

    def mebibytes(row, field):
        return [bench_report.mebibytes(row["memory_runs"][build][field]) for build in BUILDS]

    rows = []
    for row in report["rows"]:
        seconds = medians(row, lambda run: run["seconds"])
        rows.append((f"`{row['command']}`", len(row["seconds_ratios"]), f"{seconds['now']:.3f}",
                     f"{seconds['before']:.3f}", bench_report.median_range(row["seconds_ratios"]),
                     bench_report.median_range(row["cpu_ratios"]), *mebibytes(row, "peak_anonymous_rss"),
                     *mebibytes(row, "peak_rss")))
    columns = ["command", "pairs", "now, s", "before, s", "ratio (min..max)", "of CPU time", "anonymous MiB now", "before",
               "peak MiB now", "before"]
    return "\n".join([bench_report.host(report), "", f"Now: {report['versions']['now']}. Before: "
                      f"{report['versions']['before']}.", "", *bench_report.table(columns, rows)]) + "\n"


def make_parser(add_bin):
    parser = argparse.ArgumentParser(prog="bench.py pairs", description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=pathlib.Path, metavar="DIR", help="the other build's bin (default: the same)")
    parser.add_argument("--with", dest="besides", action="append", default=[], metavar="=OPTION",
                        help="an option of the tools for this build alone, as in --with=--resume (repeatable)")
    add_bin(parser)
    parser.add_argument("--rows", type=bench_suite.regex, metavar="REGEX", default=bench_suite.regex("^(warm|plan)-"),
                        help="those in whose names this is found; suite --list has them, and there are "
                             f"{', '.join(PLANS)} (default ^(warm|plan)-)")
    parser.add_argument("--runs", type=positive, metavar="N", default=10, help="pairs of every row (default 10)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR",
                        help="for the large files (default: a temporary folder in build/)")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="write README.md and results.json there")
    return parser


def run(options, work, parse_options):
    folders = {"now": options.bin.resolve(), "before": (options.against or options.bin).resolve()}
    conversions = [Conversion(row, folders, work, options.besides, parse_options)
                   for row in bench_suite.matrix(options.quick) if options.rows.search(row.name)]
    results = list(compare_conversions(conversions, options.runs))
    plans = [name for name in PLANS if options.rows.search(name)]
    if plans:
        simulate(work / "simulated", options.quick)
        results += [compare(Plan(name, folders, work, options.besides), options.runs) for name in plans]
        remove(work / "simulated")
    if not results:
        raise BenchError("no such row")
    versions = {build: output_of([folder / "zero-to-fp32", "--version"]).splitlines()[0]
                for build, folder in folders.items()}
    if options.besides:
        versions["now"] += " with " + " ".join(options.besides)
    report = {"schema": 1, "type": "pairs", "date": datetime.date.today().isoformat(), "commit": git_commit(),
              "machine": machine(work), "versions": versions, "rows": results}
    text = report_text(report)
    print(text, end="")
    if options.out:
        bench_report.keep(options.out, text, json.dumps(report, indent=1) + "\n")
