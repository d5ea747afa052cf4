"""Time, memory and files of every tool's planning, measured on simulated checkpoints, as a table.

Planning is all that a tool does before it copies: converters are run with --dry-run. Nothing of this reads
tensors, so it says nothing of the time to copy them. bench.py has smaller checkpoints with values for that.
With memory for the output one can also copy a simulated one of four ranks by hand:

    scripts/simulate write build/simulated --model llama-8b --stage 2 --dp 4
    build/release/bin/zero-to-fp32 build/simulated build/weights --dtype bfloat16
"""
import datetime
import json
import math
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import typing

from measure import BenchError, git_commit, machine, measure, output_of
from simulate_models import MODELS, parameter_count

# Checkpoints as such models are trained: model, ranks, stages.
GRIDS = (
    ("llama-8b", {"dp": 8}, (0, 1, 2, 3)),
    ("llama-70b", {"dp": 64}, (0, 1, 2, 3)),
    ("bloom-176b", {"dp": 384}, (0, 2, 3)),
    ("bloom-176b", {"tp": 4, "pp": 12, "dp": 8}, (1,)),
    ("llama-405b", {"dp": 1024}, (0, 1, 2, 3)),
    ("llama-405b", {"tp": 8, "pp": 16, "dp": 8}, (1,)),
    ("kimi-k2", {"dp": 2048, "ep": 64}, (0, 1, 2)))
TOOLS = ("zero-to-fp32", "to-universal", "reshard", "ckpt-inspect", "ckpt-inspect list")
SWEEP_MODEL = "llama-70b"
SWEEP_RANKS = (64, 128, 256, 512)
SWEEP_LAYERS = (40, 80, 160, 320)
SWEEP_STAGES = (2, 3)
ENOUGH_SECONDS = 10  # what takes longer is run once


class Row(typing.NamedTuple):
    name: str
    model: tuple
    options: dict  # of simulate.writer
    sweep: str = ""  # what is doubled


def rows_of_table(models, stages):
    return [Row(f"{model} {ranks_text(grid)} stage {stage}", MODELS[model], {"stage": stage, **grid})
            for model, grid, written in GRIDS if model in models
            for stage in written if stage in stages]


def rows_of_sweeps(stages):
    model, rows = MODELS[SWEEP_MODEL], []
    for stage in sorted(stages & set(SWEEP_STAGES)):
        rows += [Row(f"{SWEEP_MODEL} dp {dp} stage {stage}", model, {"stage": stage, "dp": dp}, f"ranks, stage {stage}")
                 for dp in SWEEP_RANKS]
        rows += [Row(f"{SWEEP_MODEL} of {layers} layers dp {SWEEP_RANKS[0]} stage {stage}",
                     model._replace(layers=layers), {"stage": stage, "dp": SWEEP_RANKS[0]}, f"layers, stage {stage}")
                 for layers in SWEEP_LAYERS]
    return rows


def ranks_text(grid):
    return " ".join(f"{axis} {ranks}" for axis, ranks in grid.items())


def tools(folder, checkpoint, binaries, dp):
    """Command lines of TOOLS. `folder`: where nothing will be written."""
    tag, = (path for path in checkpoint.iterdir() if path.is_dir())
    return dict(zip(TOOLS, (
        [binaries / "zero-to-fp32", checkpoint, folder / "weights", "--dry-run"],
        [binaries / "to-universal", "--input_folder", tag, "--output_folder", folder / "universal", "--dry-run"],
        [binaries / "reshard", checkpoint, folder / "resharded", "--dp", dp, "--dry-run"],
        [binaries / "ckpt-inspect", checkpoint],
        [binaries / "ckpt-inspect", "list", checkpoint])))


def say(message):
    print(f"simulate.py: {message}", file=sys.stderr)


class Table:
    def __init__(self, options, writer):
        self.options, self.writer = options, writer
        self.results = {"schema": 1, "type": "planning", "rows": []}
        if options.out and (options.out / "results.json").exists():
            self.results = json.loads((options.out / "results.json").read_text())

    def run(self, rows):
        for i, row in enumerate(rows):
            say(f"{row.name} ({i + 1} of {len(rows)})")
            with tempfile.TemporaryDirectory(prefix="simulated-", dir=self.options.work) as folder:
                self.keep(self.measure_row(row, pathlib.Path(folder)))

    def measure_row(self, row, folder):
        checkpoint = folder / "checkpoint"
        self.writer(checkpoint, row.model, **row.options).write()
        files = [path.stat() for path in checkpoint.rglob("*") if path.is_file()]
        report = {
            "name": row.name, "sweep": row.sweep, **row.options, "layers": row.model.layers,
            "date": datetime.date.today().isoformat(), "commit": git_commit(), "machine": machine(folder),
            "tool_version": output_of([self.options.bin / "zero-to-fp32", "--version"]).strip(),
            "parameters": parameter_count(row.model), "input_files": len(files),
            "input_bytes": sum(file.st_size for file in files),
            "input_disk_bytes": sum(file.st_blocks * 512 for file in files), "tools": {}}
        for name, command in tools(folder, checkpoint, self.options.bin, max(1, row.options["dp"] // 2)).items():
            if name in self.options.tools:
                command = list(map(str, ["timeout", self.options.limit, *command]))
                report["tools"][name] = self.measure_tool(command, checkpoint)
                if "--dry-run" in command and not row.sweep:
                    report["tools"][name].update(planned(command))
                say(f"  {name}: {cell(report['tools'][name])}")
        return report

    def measure_tool(self, command, checkpoint):
        try:
            first = measure([*command, "-q"], memory=True)
            runs = [first]
            while len(runs) < self.options.runs and first["seconds"] < ENOUGH_SECONDS:
                runs.append(measure([*command, "-q"], memory=True))
        except BenchError as error:
            return {"error": reason(str(error), checkpoint)}
        return {
            "median_seconds": statistics.median(run["seconds"] for run in runs),
            "median_cpu_seconds": statistics.median(run["user_seconds"] + run["system_seconds"] for run in runs),
            "peak_rss": max(run["peak_rss"] for run in runs),
            "peak_anonymous_rss": max(run["peak_anonymous_rss"] for run in runs), "runs": runs}

    def keep(self, report):
        self.results["rows"] = [row for row in self.results["rows"] if row["name"] != report["name"]
                                or row["sweep"] != report["sweep"]] + [report]
        if self.options.out:
            self.options.out.mkdir(parents=True, exist_ok=True)
            (self.options.out / "README.md").write_text(f"# {self.options.out.name}\n\n{markdown(self.results)}")
            (self.options.out / "results.json").write_text(json.dumps(self.results, indent=1) + "\n")


def reason(error, checkpoint):
    """The result in a message of measure(): the tool's text, or its end."""
    first, *said = error.splitlines()
    if not said:
        return first.removeprefix("timeout ").rstrip(":")
    errors = [line.partition(": error: ")[2] for line in said if ": error: " in line]
    return errors[-1].replace(f"{checkpoint}/", "") if errors else said[-1]


def planned(command):
    """The bytes that would be written, by a run of its own; none for a tool that refuses."""
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        return {}
    plan = json.loads(done.stdout)["data"]
    return {"output_files": len(plan["files"]), "output_bytes": plan["bytes_written"]}


def cell(result):
    if result is None:  # not asked for
        return ""
    if "error" in result:
        return result["error"]
    return (f"{result['median_seconds']:.2f} s ({result['median_cpu_seconds']:.2f}), "
            f"{result['peak_rss'] / 2**20:.0f} MiB ({result['peak_anonymous_rss'] / 2**20:.0f})")


def lines_of(columns, rows):
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns),
            *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


def checkpoint_row(row):
    written = [result for result in row["tools"].values() if "output_files" in result]
    return [row["name"], f"{row['parameters'] / 1e9:.1f}", row["input_files"], f"{row['input_bytes'] / 1e12:.2f}",
            f"{row['input_disk_bytes'] / 2**20:.0f}",
            *(row["tools"].get(name, {}).get("output_files", "") for name in TOOLS[:3]),
            f"{max((result['output_bytes'] for result in written), default=0) / 1e12:.2f}"]


def exponent(points):
    """The slope of a line through the logarithms."""
    x, y = ([math.log(value) for value in values] for values in zip(*points))
    return statistics.linear_regression(x, y).slope


def sweep_rows(rows):
    for sweep in dict.fromkeys(row["sweep"] for row in rows if row["sweep"]):
        axis = "dp" if sweep.startswith("ranks") else "layers"
        swept = sorted((row for row in rows if row["sweep"] == sweep), key=lambda row: row[axis])
        for name in swept[0]["tools"]:
            done = [(row[axis], row["tools"][name]) for row in swept if "median_seconds" in row["tools"].get(name, {})]
            if len(done) < 2:
                continue
            yield [sweep, " ".join(str(size) for size, _ in done), name,
                   " ".join(f"{result['median_cpu_seconds']:.2f}" for _, result in done),
                   f"{exponent([(size, result['median_cpu_seconds']) for size, result in done]):.2f}",
                   " ".join(f"{result['peak_anonymous_rss'] / 2**20:.0f}" for _, result in done),
                   f"{exponent([(size, result['peak_anonymous_rss']) for size, result in done]):.2f}"]


def markdown(results):
    rows = [row for row in results["rows"] if not row["sweep"]]
    last = results["rows"][-1]
    host = last["machine"]
    names = list(dict.fromkeys(name for row in rows for name in row["tools"]))
    lines = [f"`scripts/simulate table`, commit {last['commit'] or 'unknown'}, {last['date']}. {host['cpu']}, "
             f"{host['cores']} cores, {host['memory_bytes'] / 2**30:.0f} GiB, Linux {host['kernel']}, "
             f"{host['file_system']}."]
    if rows:
        lines += ["", "What is planned:", "",
                  *lines_of(("checkpoint", "10^9 parameters", "files", "TB", "MiB on the disk", "zero-to-fp32: files",
                             "to-universal: files", "reshard: files", "most TB written"), map(checkpoint_row, rows)),
                  "", "Seconds (of all cores), peak RSS (anonymous); the median, or one run from "
                      f"{ENOUGH_SECONDS} s on:", "",
                  *lines_of(("checkpoint", *names),
                            [[row["name"], *(cell(row["tools"].get(name)) for name in names)] for row in rows])]
    growth = list(sweep_rows(results["rows"]))
    if growth:
        lines += ["", f"Growth, {SWEEP_MODEL}: what is doubled, seconds of all cores, anonymous MiB, and the exponents "
                      "e of size^e that fit best:", "",
                  *lines_of(("doubled", "sizes", "tool", "seconds", "e", "MiB", "e"), growth)]
    return "\n".join(lines) + "\n"


def run(options, writer):
    """`writer`: simulate.writer, which takes a model too."""
    missing = [name for name in ("zero-to-fp32", "to-universal", "reshard", "ckpt-inspect")
               if not shutil.which(options.bin / name)]
    if missing:
        raise SystemExit(f"simulate.py: error: {options.bin} has no {', '.join(missing)}: build it")
    options.work.mkdir(parents=True, exist_ok=True)
    table = Table(options, writer)
    stages = set(options.stages)
    table.run([*rows_of_table(options.models, stages), *(rows_of_sweeps(stages) if options.growth else [])])
    print(markdown(table.results), end="")
