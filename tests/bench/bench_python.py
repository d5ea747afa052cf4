#!/usr/bin/env python3
"""The Python package against DeepSpeed's own functions: state dicts, lazy ones, and opening what is large.

    scripts/python tests/bench/bench_python.py --native build/release/lib --out tests/bench/runs/NAME

At each stage a checkpoint is written. Then DeepSpeed's get_fp32_state_dict_from_zero_checkpoint and dsckpt's
take turns, each in a process of its own, with the files in the page cache. The call is timed, not the imports.
Just before, as much memory as the tensors take is touched and freed. A virtual machine may have to ask its host
for it, which takes longer than all else. `s of the process` is all of it but that. Memory is the anonymous
memory above what there was before the call. `first tensor` is lazy_mode=True and one `.contiguous()`.
`dsckpt.open` opens a simulated model (sparse files). Every tensor of both is compared once.

Needs torch and DeepSpeed in the Python that runs it, and dsckpt_native.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import bench_report
from bench_count import count, parse_count, positive
from bench_files import files_of, make_warm
from measure import BenchError, ROOT, anonymous_memory, in_turn, say, watch_memory

STAGES = (2, 3)
WHAT = {"deepspeed": "DeepSpeed", "dsckpt": "dsckpt", "deepspeed-lazy": "DeepSpeed, first tensor",
        "dsckpt-lazy": "dsckpt, first tensor"}
OPENED = "dsckpt.open"


def one_run(what, path, parameters):
    """In a process of its own: prints seconds and bytes as JSON."""
    import contextlib
    import threading
    import torch
    if what.startswith("deepspeed"):
        from deepspeed.utils import zero_to_fp32 as module
    else:
        import dsckpt
        module = dsckpt.deepspeed
    lazy = what.endswith("-lazy")
    own = time.perf_counter()
    torch.ones(parameters)  # freed at once
    own = time.perf_counter() - own
    before, peak, stop = anonymous_memory(os.getpid()), [0], threading.Event()
    watcher = threading.Thread(target=watch_memory, args=(os.getpid(), peak, stop))
    watcher.start()
    with contextlib.redirect_stdout(sys.stderr):
        begin = time.perf_counter()
        if what == OPENED:
            found = len(dsckpt.open(path))
        else:
            found = module.get_fp32_state_dict_from_zero_checkpoint(path, **({"lazy_mode": True} if lazy else {}))
            if lazy:
                found = next(iter(found.values())).contiguous()
        seconds = time.perf_counter() - begin
    stop.set()
    watcher.join()
    size = 0
    if isinstance(found, dict):
        size = sum({tensor.data_ptr(): tensor.nbytes for tensor in found.values()}.values())
    elif isinstance(found, torch.Tensor):
        size = found.nbytes
    print(json.dumps({"seconds": seconds, "anonymous_bytes": peak[0] - before, "tensor_bytes": size,
                      "own_seconds": own}))


def compare(path):
    import torch
    import dsckpt
    from deepspeed.utils import zero_to_fp32
    expected = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(path)
    got = dsckpt.deepspeed.get_fp32_state_dict_from_zero_checkpoint(path)
    assert list(got) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


class Bench:
    def __init__(self, options, work):
        self.options, self.work = options, work
        path = f"{options.native.resolve()}:{os.environ.get('PYTHONPATH', '')}"
        self.environment = {**os.environ, "PYTHONPATH": path, "DS_ACCELERATOR": "cpu"}

    def call(self, *arguments):
        done = subprocess.run([str(part) for part in (sys.executable, *arguments)], env=self.environment,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"{arguments[0]}: {done.stderr[-4000:]}")
        return done.stdout

    def run(self, what, path):
        if what != OPENED:  # whose files are sparse
            make_warm(files_of(path))
        begin = time.perf_counter()
        result = json.loads(self.call(__file__, "--params", self.options.params, "--one", what, path).splitlines()[-1])
        return {**result, "process_seconds": time.perf_counter() - begin - result.pop("own_seconds")}

    def stage(self, stage):
        """The runs of each of WHAT."""
        path = self.work / f"stage{stage}"
        self.call(pathlib.Path(__file__).with_name("bench_checkpoint.py"), "write", path, "--params",
                  self.options.params, "--ranks", self.options.ranks, "--stage", stage)
        self.call(__file__, "--one", "compare", path)
        say(f"stage {stage}: all tensors are the same")
        names = [what for what in WHAT if not (self.options.whole and what.endswith("-lazy"))]
        runs = in_turn(names, self.options.runs, lambda what: self.run(what, path), f"stage {stage}, ")
        subprocess.run(["rm", "-r", path], check=True)
        return runs

    def open_simulated(self):
        path = self.work / "simulated"
        self.call(ROOT / "tests/simulate/simulate.py", "write", path, "--model", self.options.model, "--stage", "3",
                  "--dp", self.options.dp)
        return [self.run(OPENED, path) for _ in range(self.options.runs)]


def text_of(runs):
    return bench_report.median_range([run["seconds"] for run in runs])


def report_text(report):
    rows = []
    for stage, runs in report["stages"].items():
        for what, name in WHAT.items():
            if what not in runs:
                continue
            slow = runs[what.replace("dsckpt", "deepspeed")]
            ratio = statistics.median(a["seconds"] / b["seconds"] for a, b in zip(slow, runs[what]))
            above = max(run["anonymous_bytes"] - run["tensor_bytes"] for run in runs[what])
            rows.append((name, stage, text_of(runs[what]), f"{ratio:.1f}", bench_report.mebibytes(above),
                         f"{statistics.median(run['process_seconds'] for run in runs[what]):.1f}"))
    above = max(run["anonymous_bytes"] for run in report["open"])
    rows.append((f"`dsckpt.open`, {report['model']}", 3, text_of(report["open"]), "", bench_report.mebibytes(above),
                 f"{statistics.median(run['process_seconds'] for run in report['open']):.1f}"))
    lines = [f"`tests/bench/bench_python.py` {report['arguments']}", "", bench_report.host(report), "",
             *bench_report.table(["what", "stage", "median s (min..max)", "times faster than DeepSpeed",
                                  "MiB besides the tensors", "s of the process"], rows)]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--native", type=pathlib.Path, help="the folder of dsckpt_native")
    parser.add_argument("--params", type=count, default="400M")
    parser.add_argument("--ranks", type=positive, default=4)
    parser.add_argument("--runs", type=positive, default=5)
    parser.add_argument("--whole", action="store_true", help="without lazy_mode, which DeepSpeed has since 0.16")
    parser.add_argument("--model", default="llama-405b", help="of tests/simulate (default llama-405b)")
    parser.add_argument("--dp", type=positive, default=1024, help="ranks of the simulated model (default 1024)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build", help="for the large files")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR", help="write README.md and results.json there")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        what, path = options.one
        return compare(path) if what == "compare" else one_run(what, path, parse_count(options.params))
    if not options.native:
        parser.error("--native is needed")

    def measure_all(folder):
        bench = Bench(options, folder)
        return {"arguments": f"--params {options.params} --ranks {options.ranks} --runs {options.runs}"
                             f"{' --whole' if options.whole else ''}",
                "model": f"{options.model}, {options.dp} ranks",
                "stages": {stage: bench.stage(stage) for stage in STAGES}, "open": bench.open_simulated()}

    bench_report.run("python", options, measure_all, report_text)


if __name__ == "__main__":
    main()
