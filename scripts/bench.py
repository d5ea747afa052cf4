#!/usr/bin/env python3
"""Time a tool against cp of the same files and against DeepSpeed's own converter.

    scripts/bench.py --params 400M --stage 2 --deepspeed .venv/bin/python --check
    scripts/bench.py --params 400M --stage 3 --format safetensors --out tests/bench/runs/NAME
    scripts/bench.py --tool to-universal --params 100M --deepspeed .venv/bin/python --check
    scripts/bench.py --tool reshard --params 100M --ranks 4 --to 3 --stage 3
    scripts/bench.py --tool stats --params 400M --runs 15

A checkpoint is written (bench_checkpoint.py) and read once, so that the page cache holds it. Then the
programs take turns: in each round cp -r of the folder that the tool writes, the tool and, in the first
rounds, DeepSpeed, every second round with cp and the tool in the other order. What a run wrote is
deleted and the disk synced before the next one starts. tests/bench/README.md says what the columns mean.
Subcommands of ckpt-inspect that read everything, stats and verify, take turns with cat of the same files.

Needs torch in the Python that runs it.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Subcommands of ckpt-inspect that write nothing: their options, and the files whose bytes they read.
READERS = {"stats": (["--states"], "*optim_states.pt"), "verify": ([], "*.pt")}
TOOLS = ("zero-to-fp32", "to-universal", "reshard", *READERS)
POLL_SECONDS = 0.005

# The same call as DeepSpeed's zero_to_fp32.py and zero_to_torch.py make.
DEEPSPEED_CODE = """
import sys
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_state_dict as convert
convert(sys.argv[1], sys.argv[2], dtype=sys.argv[3], safe_serialization=sys.argv[4] == "safetensors")
"""
DEEPSPEED_FP32_CODE = """
import sys
from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert
convert(sys.argv[1], sys.argv[2], safe_serialization=sys.argv[4] == "safetensors")
"""
VERSIONS_CODE = """
import json, platform
from importlib.metadata import version
print(json.dumps({"python": platform.python_version(), "torch": version("torch"), "deepspeed": version("deepspeed")}))
"""


def fail(message):
    raise SystemExit(f"bench.py: error: {message}")


def say(message):
    print(f"bench.py: {message}", file=sys.stderr)


def anonymous_memory(pid):
    """RssAnon of a process and of those that it has started, in bytes."""
    total = 0
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        anonymous = re.search(r"^RssAnon:\s*(\d+) kB$", status, re.MULTILINE)
        if anonymous:  # a process that has ended has none
            total = int(anonymous[1]) * 1024
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(map(anonymous_memory, children.read_text().split()))
    except OSError:  # it has ended
        pass
    return total


def watch_memory(pid, peak, stop):
    """Keeps the largest anonymous_memory in peak[0]."""
    while True:
        peak[0] = max(peak[0], anonymous_memory(pid))
        if stop.wait(POLL_SECONDS):
            return


def measure(command, *, memory=False):
    """Runs a program to its end; returns seconds and bytes. `memory` also polls its anonymous memory."""
    with tempfile.TemporaryFile() as log:
        environment = os.environ | {"DS_ACCELERATOR": "cpu"}
        peak, stop, watcher = [0], threading.Event(), None
        begin = time.perf_counter()
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, env=environment)
        if memory:
            watcher = threading.Thread(target=watch_memory, args=(process.pid, peak, stop))
            watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if watcher:
            stop.set()
            watcher.join()
        if process.returncode != 0:
            log.seek(0)
            fail(f"{command[0]} ended with {process.returncode}:\n{log.read().decode(errors='replace')[-4000:]}")
    result = {"seconds": seconds, "user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime,
              "peak_rss": usage.ru_maxrss * 1024}
    if memory:
        result["peak_anonymous_rss"] = peak[0]
    return result


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def folder_size(folder):
    return sum(path.stat().st_size for path in files_of(folder))


def read_all(folder):
    buffer = bytearray(1 << 20)
    for path in files_of(folder):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def output_of(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def file_system(folder):
    folder, best, kind = folder.resolve(), -1, "unknown"
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        mount = mount.encode().decode("unicode_escape")
        if folder.is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), found
    return kind


def machine(work):
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = re.search(r"^MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    return {"cpu": model[1] if model else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": int(memory[1]) * 1024, "kernel": re.match(r"[\d.]*\d", platform.release())[0],
            "file_system": file_system(work)}


def git_commit():
    """The short hash of HEAD, with a + when tracked files differ from it; None outside a repository."""
    try:
        commit = output_of(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"]).strip()
        return commit + ("+" if output_of(["git", "-C", ROOT, "status", "--porcelain", "-uno"]).strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None


class Bench:
    def __init__(self, options, work):
        self.options = options
        self.work = work
        self.reads = options.tool in READERS
        self.tool = program_of(options)
        self.baseline = "cat" if self.reads else "cp"
        settings = f"stage{options.stage}_{options.params}_w{options.ranks}"
        if options.sub_group_size:
            settings += f"_g{options.sub_group_size}"
        self.checkpoint = work / f"checkpoint_{settings}"
        self.results = work / "results"  # made by the tool once; what cp copies
        self.fresh = work / "fresh"  # what the run at hand writes
        self.runs = {self.baseline: [], options.tool: []}
        if options.deepspeed:
            self.runs["deepspeed"] = []

    def checkpoint_script(self, *arguments):
        script = pathlib.Path(__file__).with_name("bench_checkpoint.py")
        # It needs torch, which scripts/test puts there.
        installed = script.parent.parent / ".venv/bin/python"
        python = installed if installed.exists() else sys.executable
        done = subprocess.run([str(part) for part in (python, script, *arguments)],
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            fail(f"{script.name} {arguments[0]}: {done.stderr.strip()}")

    def prepare(self):
        for folder in (self.results, self.fresh):
            remove(folder)
        if not (self.checkpoint / "latest").exists():
            say(f"writing a checkpoint of {self.options.params} parameters")
            remove(self.checkpoint)
            arguments = ["--params", self.options.params, "--ranks", self.options.ranks,
                         "--stage", self.options.stage]
            if self.options.sub_group_size:
                arguments += ["--sub-group-size", self.options.sub_group_size]
            self.checkpoint_script("write", self.checkpoint, *arguments)
        os.sync()
        read_all(self.checkpoint)

    def read_files(self):
        """What a reading tool reads."""
        return sorted(self.checkpoint.rglob(READERS[self.options.tool][1]))

    def command(self, name, output):
        if name == "cat":
            return ["sh", "-c", 'cat "$@" > /dev/null', "cat", *self.read_files()]
        if self.reads:
            return [self.tool, self.options.tool, self.checkpoint, *READERS[self.options.tool][0]]
        if name == "cp":
            return ["cp", "-r", self.results, output]
        if self.options.tool == "reshard":
            return [self.tool, self.checkpoint, output, "--dp", self.options.to]
        if self.options.tool == "to-universal":
            program = [self.tool]
            if name == "deepspeed":
                program = [self.options.deepspeed, "-m", "deepspeed.checkpoint.ds_to_universal"]
            return [*program, "--input_folder", self.checkpoint / (self.checkpoint / "latest").read_text(),
                    "--output_folder", output, "--num_extract_workers", "2", "--num_merge_workers", "2",
                    "--inject_missing_state"]
        if name == "deepspeed":
            # The function for fp32 is the one that every release of DeepSpeed has.
            code = DEEPSPEED_FP32_CODE if self.options.dtype == "float32" else DEEPSPEED_CODE
            return [self.options.deepspeed, "-c", code, self.checkpoint, output, self.options.dtype,
                    self.options.format]
        return [self.tool, self.checkpoint, output, "--dtype", self.options.dtype,
                *(["--safe-serialization"] if self.options.format == "safetensors" else [])]

    def run(self, name, memory=False):
        result = measure(self.command(name, self.fresh), memory=memory)
        remove(self.fresh)
        return result

    def check(self):
        """Compares the results with the values the checkpoint was made of, and DeepSpeed's with them too."""
        folders = [self.results]
        if self.options.deepspeed:
            measure(self.command("deepspeed", self.fresh))
            folders.append(self.fresh)
        arguments = ["--params", self.options.params]
        if self.options.tool == "to-universal":
            self.checkpoint_script("check-universal", *folders, *arguments, "--stage", self.options.stage)
        elif self.options.tool == "reshard":
            # What the masters have become, by the tool whose own benchmark checks it against the same values.
            measure([self.tool.with_name("zero-to-fp32"), self.results, self.fresh])
            self.checkpoint_script("check", self.fresh, *arguments, "--dtype", "float32")
        else:
            self.checkpoint_script("check", *folders, *arguments, "--dtype", self.options.dtype)
        remove(self.fresh)
        say("all tensors are right" + (", DeepSpeed's as well" if self.options.deepspeed else ""))

    def start_up(self):
        """The second program does nothing: what it takes is what starting any program takes."""
        commands = {self.options.tool: [self.tool, "--version"], "true": ["true"]}
        seconds = {name: [] for name in commands}
        for _ in range(20):
            for name, command in commands.items():
                seconds[name].append(measure(command)["seconds"])
        return {name: {"median_seconds": statistics.median(values), "seconds": values}
                for name, values in seconds.items()}

    def measure_all(self):
        self.prepare()
        # Memory is polled in runs that are not timed, lest the polling takes time from the others.
        tool = self.options.tool
        memory = {tool: measure(self.command(tool, self.results), memory=True)}
        if not self.reads:
            os.sync()
            read_all(self.results)
        memory[self.baseline] = self.run(self.baseline, memory=True)
        if self.options.check:
            self.check()
        for i in range(self.options.runs):
            for name in (self.baseline, tool) if i % 2 == 0 else (tool, self.baseline):
                self.runs[name].append(self.run(name))
            if self.options.deepspeed and i < self.options.deepspeed_runs:
                self.runs["deepspeed"].append(self.run("deepspeed", memory=True))
            say(f"round {i + 1}: " + ", ".join(f"{name} {runs[i]['seconds']:.2f} s"
                                               for name, runs in self.runs.items() if i < len(runs)))
        return self.report(memory)

    def report(self, memory):
        options = self.options
        size = sum(path.stat().st_size for path in (self.read_files() if self.reads else files_of(self.results)))
        programs = {}
        for name, runs in self.runs.items():
            if not runs:
                continue
            seconds = [run["seconds"] for run in runs]
            watched = runs if name == "deepspeed" else [memory[name]]
            programs[name] = {
                "median_seconds": statistics.median(seconds),
                "min_seconds": min(seconds),
                "max_seconds": max(seconds),
                f"ratio_to_{self.baseline}": statistics.median(
                    run["seconds"] / other["seconds"] for run, other in zip(runs, self.runs[self.baseline])),
                "gigabytes_per_second": size / statistics.median(seconds) / 1e9,
                "peak_rss": max(run["peak_rss"] for run in runs + watched),
                "peak_anonymous_rss": max(run["peak_anonymous_rss"] for run in watched),
                "runs": runs}
            if name != "deepspeed":
                programs[name]["memory_run"] = memory[name]
        return {
            "schema": 1,
            "tool": options.tool,
            "date": datetime.date.today().isoformat(),
            "command": self.command_line(),
            "commit": git_commit(),
            "tool_version": output_of([self.tool, "--version"]).strip(),
            "machine": machine(self.work),
            "deepspeed": json.loads(output_of([options.deepspeed, "-c", VERSIONS_CODE]))
                         if options.deepspeed else None,
            "stage": options.stage,
            "ranks": options.ranks,
            "to_ranks": options.to,
            "params": options.params,
            "format": options.format,
            "dtype": options.dtype,
            "input_bytes": folder_size(self.checkpoint),
            "baseline": self.baseline,
            "read_bytes" if self.reads else "output_bytes": size,
            **({} if self.reads else {"output_files": len(files_of(self.results))}),
            "checked": options.check,
            "start_up": self.start_up(),
            "programs": programs}

    def command_line(self):
        """What was asked for, without the paths of this machine."""
        options = self.options
        parts = ["scripts/bench.py", "--tool", options.tool, "--params", options.params, "--ranks", options.ranks,
                 "--stage", options.stage, "--runs", options.runs]
        if options.to:
            parts += ["--to", options.to]
        if options.format:
            parts += ["--format", options.format, "--dtype", options.dtype]
        if options.sub_group_size:
            parts += ["--sub-group-size", options.sub_group_size]
        if options.deepspeed:
            parts += ["--deepspeed", "PYTHON", "--deepspeed-runs", options.deepspeed_runs]
        return " ".join(map(str, parts + (["--check"] if options.check else [])))


def program_of(options):
    return options.bin / ("ckpt-inspect" if options.tool in READERS else options.tool)


def markdown(report):
    host, baseline = report["machine"], report["baseline"]
    if "read_bytes" in report:
        moved = f"read {report['read_bytes'] / 1e9:.2f} GB"
    else:
        moved = f"output {report['output_bytes'] / 1e9:.2f} GB in {report['output_files']} files"
    lines = [
        f"`{report['command']}`", "",
        f"Commit {report['commit'] or 'unknown'}, {report['date']}. {host['cpu']}, {host['cores']} cores, "
        f"{host['memory_bytes'] / 2**30:.0f} GiB, Linux {host['kernel']}, {host['file_system']}. "
        f"Checkpoint {report['input_bytes'] / 1e9:.2f} GB, {moved}, warm cache.", "",
        f"| program | runs | median s | min s | max s | ratio to {baseline} | GB/s | peak RSS MiB | peak anonymous MiB |",
        "|---|---|---|---|---|---|---|---|---|"]
    for name, result in report["programs"].items():
        lines.append(
            f"| {name} | {len(result['runs'])} | {result['median_seconds']:.3f} | {result['min_seconds']:.3f} | "
            f"{result['max_seconds']:.3f} | {result[f'ratio_to_{baseline}']:.2f} | {result['gigabytes_per_second']:.2f} | "
            f"{result['peak_rss'] / 2**20:.0f} | {result['peak_anonymous_rss'] / 2**20:.1f} |")
    start_up, tool = report["start_up"], report["tool"]
    lines += ["", f"Start-up, median of {len(start_up[tool]['seconds'])}: `{tool} --version` "
                  f"{start_up[tool]['median_seconds'] * 1e3:.1f} ms, `true` "
                  f"{start_up['true']['median_seconds'] * 1e3:.1f} ms."]
    if report["deepspeed"]:
        speedup = (report["programs"]["deepspeed"]["median_seconds"] /
                   report["programs"][tool]["median_seconds"])
        lines.append(f"DeepSpeed {report['deepspeed']['deepspeed']}, torch {report['deepspeed']['torch']}: "
                     f"{speedup:.1f} times the time of {tool}.")
    return "\n".join(lines) + "\n"


def count(text):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMB]?)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"not a count: {text} (for example 400M)")
    return text


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"not a positive number: {text}")
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", choices=TOOLS, default=TOOLS[0], help=f"(default {TOOLS[0]})")
    parser.add_argument("--params", type=count, default="400M", help="about this many (default 400M)")
    parser.add_argument("--ranks", type=positive, default=4)
    parser.add_argument("--to", type=positive, metavar="N", help="reshard: ranks of the result (default 3)")
    parser.add_argument("--stage", type=int, choices=(2, 3), default=2)
    parser.add_argument("--sub-group-size", type=count, help="stage 3: elements (default: DeepSpeed's, 1B)")
    parser.add_argument("--runs", type=positive, default=5)
    parser.add_argument("--format", choices=("bin", "safetensors"), help="zero-to-fp32: (default bin)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="zero-to-fp32: (default float32)")
    parser.add_argument("--work", type=pathlib.Path, metavar="DIR",
                        help="for the large files (default: a temporary folder in build/)")
    parser.add_argument("--bin", type=pathlib.Path, metavar="DIR", default=ROOT / "build/release/bin",
                        help="where the tool is (default: build/release/bin)")
    parser.add_argument("--deepspeed", metavar="PYTHON", default="none",
                        help="a Python that has DeepSpeed, or none (the default)")
    parser.add_argument("--deepspeed-runs", type=positive, metavar="N", default=2)
    parser.add_argument("--check", action="store_true", help="also compare every tensor once")
    parser.add_argument("--keep", action="store_true", help="leave the checkpoint for the next call with this --work")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR",
                        help="write README.md and results.json there, to be kept")
    options = parser.parse_args()
    if options.tool == "zero-to-fp32":
        options.format = options.format or "bin"
        options.dtype = options.dtype or "float32"
    elif options.format or options.dtype:
        parser.error(f"--format and --dtype are not for {options.tool}")
    if options.tool == "reshard":
        options.to = options.to or 3
        if options.deepspeed != "none":
            parser.error("DeepSpeed has no such tool to compare with")
    elif options.to:
        parser.error(f"--to is not for {options.tool}")
    if options.tool in READERS and (options.deepspeed != "none" or options.check):
        parser.error(f"--deepspeed and --check are not for {options.tool}")
    if options.deepspeed == "none":
        options.deepspeed = None
    elif not shutil.which(options.deepspeed):
        parser.error(f"--deepspeed: no such program: {options.deepspeed}")
    tool = program_of(options)
    if not tool.is_file():
        parser.error(f"{tool} is missing: build it, for example with scripts/run {tool.name} --help")
    if options.keep and not options.work:
        parser.error("--keep needs --work")
    options.bin = options.bin.resolve()
    return options


def main():
    options = parse_arguments()
    temporary = options.work is None
    if temporary:
        (ROOT / "build").mkdir(exist_ok=True)
        options.work = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=ROOT / "build"))
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options, options.work.resolve())
    try:
        report = bench.measure_all()
    finally:
        for folder in (bench.results, bench.fresh, *([] if options.keep else [bench.checkpoint])):
            shutil.rmtree(folder, ignore_errors=True)
        (bench.work / "latest_universal").unlink(missing_ok=True)  # both converters write it beside their folder
        if temporary:
            options.work.rmdir()

    text, table = json.dumps(report, indent=1) + "\n", markdown(report)
    print(table, end="")
    if options.json:
        options.json.write_text(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "README.md").write_text(f"# {options.out.name}\n\n{table}")
        (options.out / "results.json").write_text(text)


if __name__ == "__main__":
    main()
