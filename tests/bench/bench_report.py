"""Tables of results, as Markdown, and the runs that they are of."""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from bench_count import parse_count, positive
from measure import BenchError, ROOT, git_commit, machine


def gigabytes(size):
    return f"{size / 1e9:.2f} GB"


def mebibytes(size):
    return f"{size / 2**20:.1f}"


def median_range(seconds):
    return f"{statistics.median(seconds):.3f} ({min(seconds):.3f}..{max(seconds):.3f})"


def seconds_range(program):
    return f"{program['median_seconds']:.3f} ({program['min_seconds']:.3f}..{program['max_seconds']:.3f})"


def ratio_range(program, baseline):
    low, middle, high = (program[f"{prefix}ratio_to_{baseline}"] for prefix in ("min_", "", "max_"))
    return f"{middle:.2f} ({low:.2f}..{high:.2f})"


def faults(program):
    return f"{program['median_minor_faults']:.0f} / {program['median_major_faults']:.0f}"


def table(columns, rows):
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns),
            *("| " + " | ".join(map(str, row)) + " |" for row in rows)]


def programs(runs):
    """A table of what takes turns: name -> its runs."""
    rows = []
    for name, of_name in runs.items():
        cpu = statistics.median(run["user_seconds"] + run["system_seconds"] for run in of_name)
        anonymous = max(run.get("peak_anonymous_rss", 0) for run in of_name)
        rows.append((f"`{name}`", median_range([run["seconds"] for run in of_name]), f"{cpu:.2f}",
                     mebibytes(anonymous) if anonymous else ""))
    return table(["program", "median s (min..max)", "CPU s", "anonymous MiB"], rows)


def host(report):
    machine = report["machine"]
    return (f"Commit {report['commit'] or 'unknown'}, {report['date']}. {machine['cpu']}, {machine['cores']} cores, "
            f"{machine['memory_bytes'] / 2**30:.0f} GiB, Linux {machine['kernel']}, {machine['file_system']}, "
            f"{machine['cp']}.")


def cache(report):
    """And the part of the input that was in the cache, where it was worst."""
    programs = report["programs"].values()
    if report["cache"] == "cold":
        return f"cold, {max(program['max_input_in_cache'] for program in programs):.1%} left"
    return f"warm, {min(program['min_input_in_cache'] for program in programs):.1%}"


def speedup(report):
    """Against DeepSpeed; None if that did not run."""
    programs = report["programs"]
    if "deepspeed" not in programs:
        return None
    return programs["deepspeed"]["median_seconds"] / programs[report["tool"]]["median_seconds"]


def single(report):
    """The figures of one comparison."""
    baseline, tool, start_up = report["baseline"], report["tool"], report["start_up"]
    own_start = start_up[report["program"]]
    moved = (f"read {gigabytes(report['read_bytes'])}" if "read_bytes" in report else
             f"output {gigabytes(report['output_bytes'])} in {report['output_files']} files")
    durable = f"; until all is on the disk, sync of {report['durable']}" if report["durable"] else ""
    lines = [
        f"`{report['command']}`", "",
        f"{host(report)} Checkpoint {gigabytes(report['input_bytes'])}, {moved}; {cache(report)} of the input in the "
        f"cache{durable}.", "",
        *table(("program", "runs", "median s", "min s", "max s", f"ratio to {baseline}", "GB/s", "peak RSS MiB",
                "peak anonymous MiB", "page faults minor / major", "block I/O in / out"),
               ((name, len(result["runs"]), f"{result['median_seconds']:.3f}", f"{result['min_seconds']:.3f}",
                 f"{result['max_seconds']:.3f}", ratio_range(result, baseline), f"{result['gigabytes_per_second']:.2f}",
                 f"{result['peak_rss'] / 2**20:.0f}", mebibytes(result["peak_anonymous_rss"]), faults(result),
                 f"{gigabytes(result['median_block_input_bytes'])} / {gigabytes(result['median_block_output_bytes'])}")
                for name, result in report["programs"].items())),
        "", f"Start-up, median of {len(own_start['seconds'])}: `{report['program']} --version` "
            f"{own_start['median_seconds'] * 1e3:.1f} ms, `true` {start_up['true']['median_seconds'] * 1e3:.1f} ms."]
    if report["deepspeed"]:
        lines.append(f"DeepSpeed {report['deepspeed']['deepspeed']}, torch {report['deepspeed']['torch']}: "
                     f"{speedup(report):.1f} times the time of {tool}.")
    return "\n".join(lines) + "\n"


def memory(reports):
    """The figures of runs on sparse checkpoints."""
    return "\n".join(table(
        ("tool", "params", "stage", "ranks", "format", "dtype", "io", "checkpoint", "on the disk", "output",
         "peak anonymous MiB", "page faults minor / major"),
        ((report["tool"], report["params"], report["stage"], report["ranks"], report["format"], report["dtype"],
          report["io"] or "default", gigabytes(report["input_bytes"]), gigabytes(report["input_bytes_on_disk"]),
          gigabytes(report["output_bytes"]), mebibytes(report["run"]["peak_anonymous_rss"]),
          f"{report['run']['minor_faults']} / {report['run']['major_faults']}") for report in reports))) + "\n"


def suite_row(report):
    tool, baseline = report["tool"], report["baseline"]
    program, other = report["programs"][tool], report["programs"][baseline]
    faster = speedup(report)
    return (tool, report["stage"] or "", report["format"] or "", report["dtype"] or "", report["params"], cache(report),
            report["durable"] or "", report["io"] or "", seconds_range(program),
            f"{baseline} {seconds_range(other)}", ratio_range(program, baseline),
            f"{faster:.1f}" if faster else "", mebibytes(program["peak_anonymous_rss"]), faults(program),
            f"`{report['command']}`")


def start_ups(reports):
    """Medians over all rows, by program."""
    seconds = {}
    for report in reports:
        for name, result in report["start_up"].items():
            seconds.setdefault(name, []).extend(result["seconds"])
    return [(f"`{name} --version`" if name != "true" else "`true`", len(values),
             f"{statistics.median(values) * 1e3:.1f}", f"{min(values) * 1e3:.1f}", f"{max(values) * 1e3:.1f}")
            for name, values in seconds.items()]


def suite(reports, memory_reports):
    lines = []
    for text in dict.fromkeys(map(host, reports)):
        lines += [text, ""]
    for text in dict.fromkeys(f"DeepSpeed {versions['deepspeed']}, torch {versions['torch']}."
                              for versions in (report["deepspeed"] for report in reports) if versions):
        lines += [text, ""]
    lines += table(("tool", "stage", "format", "dtype", "params", "cache: input there", "durable", "io",
                    "median s (min..max)", "cp or cat, s", "ratio to it (range)", "times faster than DeepSpeed",
                    "peak anonymous MiB", "page faults minor / major", "command"), map(suite_row, reports))
    lines += ["", "Start-up:", "", *table(("program", "runs", "median ms", "min ms", "max ms"), start_ups(reports))]
    text = "\n".join(lines) + "\n"
    return text + (f"\nMemory with sparse checkpoints:\n\n{memory(memory_reports)}" if memory_reports else "")


def parser(description, params):
    """For what run() is given; `params`: of the model, if --params is not."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--params", type=parse_count, default=params)
    options.add_argument("--ranks", type=positive, default=4)
    options.add_argument("--runs", type=positive, default=7)
    add_places(options)
    return options


def add_places(options):
    options.add_argument("--bin", type=pathlib.Path, default=os.environ.get("DSCKPT_BIN", ROOT / "build/release/bin"))
    options.add_argument("--work", type=pathlib.Path, default=ROOT / "build", help="for the large files")
    options.add_argument("--out", type=pathlib.Path, metavar="DIR", help="write README.md and results.json there")


def run(kind, options, measure, report_text):
    """Prints what `measure(folder)`, a dict, has found, as `report_text` puts it, and keeps it in options.out.

    The folder is new, in options.work. A failure ends the program with its message.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f"bench-{kind}-", dir=options.work) as name:
            folder = pathlib.Path(name)
            report = {"schema": 1, "type": kind, "date": datetime.date.today().isoformat(), "commit": git_commit(),
                      "machine": machine(folder), **measure(folder)}
    except (BenchError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"bench_{kind}.py: {error}")
    text = report_text(report)
    print(text, end="")
    if options.out:
        keep(options.out, text, json.dumps(report, indent=1) + "\n")


def keep(folder, text, results):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(f"# {folder.name}\n\n{text}")
    (folder / "results.json").write_text(results)
