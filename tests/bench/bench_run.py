"""One comparison: a tool, cp or cat, and DeepSpeed's converter take turns on one checkpoint."""
import datetime
import json
import pathlib
import shutil
import statistics
import subprocess
import sys

from bench_count import parse_count
from bench_files import files_of, make_cold, make_warm, remove, size_of, sync
from measure import BenchError, git_commit, machine, measure, memory_info, output_of, say

# Subcommands of ckpt-inspect that write nothing: their options, and the files whose bytes they read.
READERS = {"stats": (["--states"], "*optim_states.pt"), "verify": ([], "*.pt")}
# zero-to-fp32 --merge on bench_merge.py's folders.
MERGE = "merge"
TOOLS = ("zero-to-fp32", "to-universal", "reshard", MERGE, *READERS)

# Bytes a parameter, for what has to be there before a comparison begins. Those of DeepSpeed are on the safe side.
CHECKPOINT_BYTES = 14
WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}
DEEPSPEED_MEMORY_BYTES = 14

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
# How a program without an option for it waits for the disk: one syncfs, or fsync of each file and folder.
SYNCS = {"filesystem": 'sync -f "$output"', "files": 'find "$output" -exec sync {} +'}
MEDIANS = ("user_seconds", "system_seconds", "minor_faults", "major_faults", "voluntary_switches",
           "involuntary_switches", "block_input_bytes", "block_output_bytes")


def program_of(options):
    if options.tool in READERS:
        return options.bin / "ckpt-inspect"
    return options.bin / ("zero-to-fp32" if options.tool == MERGE else options.tool)


class Bench:
    """`options`: those of bench.py. `work` is the folder of all large files."""

    def __init__(self, options, work, *, sparse=False, besides=()):
        """`besides`: more options of the tool."""
        self.options = options
        self.besides = besides
        self.work = work
        self.sparse = sparse
        self.reads = options.tool in READERS
        self.tool = program_of(options)
        self.baseline = "cat" if self.reads else "cp"
        settings = f"stage{options.stage}_{options.params}_w{options.ranks}"
        if options.sub_group_size:
            settings += f"_g{options.sub_group_size}"
        self.checkpoint = work / f"checkpoint_{settings}{'_sparse' if sparse else ''}"
        # The file that appears last.
        self.last = self.checkpoint / "latest"
        if options.tool == MERGE:
            self.checkpoint = work / f"merge_{options.params}"
            self.last = self.checkpoint / "adapter/adapter_config.json"
        self.results = work / "results"  # made by the tool once; what cp copies
        self.fresh = work / "fresh"  # what the run at hand writes
        self.runs = {self.baseline: [], options.tool: []}
        if options.deepspeed:
            self.runs["deepspeed"] = []

    def script(self, name, *arguments):
        script = pathlib.Path(__file__).with_name(name)
        done = subprocess.run([str(part) for part in (sys.executable, script, *arguments)],
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise BenchError(f"{name} {arguments[0]}: {done.stderr.strip()}")

    def require_room(self):
        params = parse_count(self.options.params)
        written = 0 if self.reads else 2 * params * WEIGHT_BYTES.get(self.options.dtype, CHECKPOINT_BYTES)
        if self.sparse:  # one output and no checkpoint
            written //= 2
        elif not self.last.exists():
            written += params * CHECKPOINT_BYTES
        free = shutil.disk_usage(self.work).free
        if written > free:
            raise BenchError(f"{self.work}: {written / 1e9:.0f} GB are needed, {free / 1e9:.0f} GB are free")
        memory = params * DEEPSPEED_MEMORY_BYTES
        if self.options.deepspeed and memory > memory_info("MemAvailable"):
            raise BenchError(f"DeepSpeed may need {memory / 1e9:.0f} GB of memory, which are not available")

    def prepare(self):
        for folder in (self.results, self.fresh):
            remove(folder)
        self.require_room()
        if self.last.exists():
            return
        if self.options.tool == MERGE:
            say(f"writing a base model of {self.options.params} parameters, and an adapter")
            remove(self.checkpoint)
            self.script("bench_merge.py", "write", self.checkpoint, "--params", self.options.params)
            return sync(self.work)
        say(f"writing a checkpoint of {self.options.params} parameters, stage {self.options.stage}")
        remove(self.checkpoint)
        arguments = ["--params", self.options.params, "--ranks", self.options.ranks, "--stage", self.options.stage]
        if self.options.sub_group_size:
            arguments += ["--sub-group-size", self.options.sub_group_size]
        self.script("bench_checkpoint.py", "write", self.checkpoint, *arguments,
                    *(["--sparse"] if self.sparse else []))
        sync(self.work)

    def cleaned(self, measured):
        """The result of a function of this object. Removes the output, except a checkpoint to be kept."""
        try:
            return measured()
        finally:
            for folder in (self.results, self.fresh, *([] if self.options.keep else [self.checkpoint])):
                shutil.rmtree(folder, ignore_errors=True)
            # Both converters write it beside their folder.
            (self.work / "latest_universal").unlink(missing_ok=True)

    def read_files(self):
        """The files that a reading tool reads."""
        return sorted(self.checkpoint.rglob(READERS[self.options.tool][1]))

    def input_files(self, name):
        if self.reads:
            return self.read_files()
        return files_of(self.results if name == "cp" else self.checkpoint)

    def command(self, name, output):
        if name == "cat":
            return ["sh", "-c", 'cat "$@" > /dev/null', "cat", *self.read_files()]
        if self.reads:
            return [self.tool, self.options.tool, self.checkpoint, *READERS[self.options.tool][0], *self.besides]
        if name in ("cp", "deepspeed"):
            command = (["cp", "-r", self.results, output] if name == "cp" else
                       self.converter([self.options.deepspeed], output))
            if not self.options.durable:
                return command
            return ["sh", "-c", f'output=$1; shift; "$@" && {SYNCS[self.options.durable]}', "sh", output, *command]
        command = self.converter([self.tool], output)
        if self.options.durable:
            command.append("--fsync")
        return [*command, *(["--io", self.options.io] if self.options.io else []), *self.besides]

    def converter(self, program, output):
        """The tool, or DeepSpeed's converter if the program is a Python."""
        options, deepspeed = self.options, program == [self.options.deepspeed]
        if options.tool == "reshard":
            return [*program, self.checkpoint, output, "--dp", options.to]
        if options.tool == MERGE:
            return [*program, self.checkpoint / "adapter", output, "--merge", self.checkpoint / "base", "--dtype",
                    options.dtype, "--safe-serialization"]
        if options.tool == "to-universal":
            return [*program, *(["-m", "deepspeed.checkpoint.ds_to_universal"] if deepspeed else []),
                    "--input_folder", self.checkpoint / (self.checkpoint / "latest").read_text(),
                    "--output_folder", output, "--num_extract_workers", "2", "--num_merge_workers", "2",
                    "--inject_missing_state"]
        if deepspeed:
            # The function for fp32 is the one that every release of DeepSpeed has.
            code = DEEPSPEED_FP32_CODE if options.dtype == "float32" else DEEPSPEED_CODE
            return [*program, "-c", code, self.checkpoint, output, options.dtype, options.format]
        return [*program, self.checkpoint, output, "--dtype", options.dtype,
                *(["--safe-serialization"] if options.format == "safetensors" else [])]

    def run(self, name, *, memory=False, output=None):
        """Keeps `output` if that is named; else what is written goes."""
        make_ready = make_cold if self.options.cache == "cold" else make_warm
        in_cache = make_ready(self.input_files(name))
        result = measure(self.command(name, output or self.fresh), memory=memory)
        if output:
            sync(output)
        else:
            remove(self.fresh)
        return {**result, "input_in_cache": in_cache}

    def check(self):
        """Compares the results with the values the checkpoint was made of, and DeepSpeed's with them too."""
        folders = [self.results]
        if self.options.deepspeed:
            measure(self.command("deepspeed", self.fresh))
            folders.append(self.fresh)
        arguments = ["--params", self.options.params]
        if self.options.tool == "to-universal":
            self.script("bench_check.py", "universal", *folders, *arguments, "--stage", self.options.stage)
        elif self.options.tool == MERGE:
            self.script("bench_merge.py", "check", self.results, self.checkpoint, *arguments, "--dtype",
                        self.options.dtype)
        elif self.options.tool == "reshard":
            # Read by zero-to-fp32, whose own benchmark checks its output against the same values.
            measure([self.tool.with_name("zero-to-fp32"), self.results, self.fresh])
            self.script("bench_check.py", "weights", self.fresh, *arguments)
        else:
            self.script("bench_check.py", "weights", *folders, *arguments, "--dtype", self.options.dtype)
        remove(self.fresh)
        say("all tensors are right" + (", DeepSpeed's as well" if self.options.deepspeed else ""))

    def start_up(self):
        """The second program does nothing: what it takes is what starting any program takes."""
        commands = {self.tool.name: [self.tool, "--version"], "true": ["true"]}
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
        memory = {tool: self.run(tool, memory=True, output=None if self.reads else self.results)}
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

    def measure_memory(self):
        """Memory of one run of the tool on a sparse checkpoint, however long its input takes to read."""
        self.prepare()
        result = measure(self.command(self.options.tool, self.results), memory=True)
        files = files_of(self.checkpoint)
        return {"tool": self.options.tool, "params": self.options.params, "stage": self.options.stage,
                "ranks": self.options.ranks, "format": self.options.format, "dtype": self.options.dtype,
                "io": self.options.io, "input_bytes": size_of(files),
                "input_bytes_on_disk": sum(path.stat().st_blocks for path in files) * 512,
                "output_bytes": size_of(files_of(self.results)), "run": result}

    def summary(self, name, size, watched):
        """`size`: bytes of the files that were written or read. `watched`: the runs whose memory was polled."""
        runs = self.runs[name]
        seconds = [run["seconds"] for run in runs]
        ratios = [run["seconds"] / other["seconds"] for run, other in zip(runs, self.runs[self.baseline])]
        return {
            "median_seconds": statistics.median(seconds),
            "min_seconds": min(seconds),
            "max_seconds": max(seconds),
            f"ratio_to_{self.baseline}": statistics.median(ratios),
            f"min_ratio_to_{self.baseline}": min(ratios),
            f"max_ratio_to_{self.baseline}": max(ratios),
            "gigabytes_per_second": size / statistics.median(seconds) / 1e9,
            "peak_rss": max(run["peak_rss"] for run in runs + watched),
            "peak_anonymous_rss": max(run["peak_anonymous_rss"] for run in watched),
            **{f"median_{field}": statistics.median(run[field] for run in runs) for field in MEDIANS},
            "min_input_in_cache": min(run["input_in_cache"] for run in runs),
            "max_input_in_cache": max(run["input_in_cache"] for run in runs),
            "runs": runs}

    def report(self, memory):
        options = self.options
        size = size_of(self.read_files() if self.reads else files_of(self.results))
        programs = {}
        for name, runs in self.runs.items():
            programs[name] = self.summary(name, size, runs if name == "deepspeed" else [memory[name]])
            if name != "deepspeed":
                programs[name]["memory_run"] = memory[name]
        return {
            "schema": 1,
            "tool": options.tool,
            "program": self.tool.name,
            "date": datetime.date.today().isoformat(),
            "command": self.command_line(),
            "commit": git_commit(),
            "tool_version": output_of([self.tool, "--version"]).strip(),
            "machine": machine(self.work),
            "deepspeed": json.loads(output_of([options.deepspeed, "-c", VERSIONS_CODE]))
                         if options.deepspeed else None,
            "stage": None if options.tool == MERGE else options.stage,
            "ranks": None if options.tool == MERGE else options.ranks,
            "to_ranks": options.to,
            "params": options.params,
            "format": options.format,
            "dtype": options.dtype,
            "cache": options.cache,
            "durable": options.durable,
            "io": options.io,
            "input_bytes": size_of(files_of(self.checkpoint)),
            "baseline": self.baseline,
            "read_bytes" if self.reads else "output_bytes": size,
            **({} if self.reads else {"output_files": len(files_of(self.results))}),
            "checked": options.check,
            "start_up": self.start_up(),
            "programs": programs}

    def command_line(self):
        """The command line of the benchmark, without the paths of this machine."""
        options = self.options
        parts = ["scripts/bench", "--tool", options.tool, "--params", options.params]
        if options.tool != MERGE:
            parts += ["--ranks", options.ranks, "--stage", options.stage]
        parts += ["--cache", options.cache, "--runs", options.runs]
        if options.durable:
            parts += ["--durable", options.durable]
        if options.io:
            parts += ["--io", options.io]
        if options.to:
            parts += ["--to", options.to]
        if options.format:
            parts += ["--format", options.format]
        if options.dtype:
            parts += ["--dtype", options.dtype]
        if options.sub_group_size:
            parts += ["--sub-group-size", options.sub_group_size]
        if options.deepspeed:
            parts += ["--deepspeed", "PYTHON", "--deepspeed-runs", options.deepspeed_runs]
        return " ".join(map(str, parts + (["--check"] if options.check else [])))
