#!/usr/bin/env python3
"""How fast zero-to-fp32 --average is, against reading what it needs and copying what it writes.

    scripts/python tests/bench/bench_average.py --params 100M --checkpoints 5 --out tests/bench/runs/NAME

The programs take turns, with the inputs in the page cache; medians and ranges. The masters of all checkpoints lie in
files of their own for `cat`, which reads what an average needs and nothing else. All checkpoints are equal, and so must
their average be.
"""
import shutil
import subprocess

import numpy
import torch
from safetensors import safe_open

import bench_report
from bench_checkpoint import Writer, decoder_shapes
from bench_count import positive
from bench_files import files_of, make_warm, remove, size_of
from measure import BenchError, in_turn, measure

OUTPUT = "model.safetensors"


class Programs:
    def __init__(self, bin_folder, params, ranks, count, work):
        self.tool, self.work = bin_folder / "zero-to-fp32", work
        shapes = decoder_shapes(params)
        torch.set_num_threads(1)
        self.checkpoints = [work / f"checkpoint-{i}" for i in range(count)]
        Writer(self.checkpoints[0], shapes, 3, ranks, None, False).write()
        for path in self.checkpoints[1:]:
            shutil.copytree(self.checkpoints[0], path)
        self.masters = []
        for path in self.checkpoints:
            weights = path.with_suffix(".masters")
            subprocess.run([self.tool, path, weights, "--safe-serialization", "--max-shard-size", "none", "-q"], check=True)
            self.masters.append(weights / OUTPUT)
        self.average = work / "average"
        self.output = work / "output"
        subprocess.run(self.command(self.average), check=True)
        self.check()

    def command(self, output):
        return [self.tool, *self.checkpoints, output, "--average", "--safe-serialization", "--max-shard-size", "none", "-q"]

    def check(self):
        """The mean of equal checkpoints is the checkpoint."""
        with safe_open(self.average / OUTPUT, "np") as got, safe_open(self.masters[0], "np") as want:
            if set(got.keys()) != set(want.keys()):
                raise BenchError("the average has other tensors")
            for name in got.keys():
                if not numpy.array_equal(got.get_tensor(name), want.get_tensor(name)):
                    raise BenchError(f"the average of '{name}' is wrong")

    def run(self, name):
        self.output.mkdir()
        if name == "cat":
            make_warm(self.masters)
            result = measure(["sh", "-c", 'cat "$@" > /dev/null', "cat", *self.masters])
        elif name == "cp":
            make_warm([self.average / OUTPUT])
            result = measure(["cp", self.average / OUTPUT, self.output])
        else:
            for path in self.checkpoints:
                make_warm(files_of(path))
            result = measure(self.command(self.output / "average"), memory=True)
        remove(self.output)
        return result


def report_text(report):
    ratios = [tool["seconds"] / (cat["seconds"] + cp["seconds"]) for cat, cp, tool in zip(*report["runs"].values())]
    return "\n".join([f"`tests/bench/bench_average.py` {report['parameters']}", "", bench_report.host(report), "",
                      *bench_report.programs(report["runs"]), "",
                      f"`--average` to `cat` and `cp` together: {bench_report.median_range(ratios)}."]) + "\n"


def main():
    parser = bench_report.parser(__doc__.splitlines()[0], 100_000_000)
    parser.add_argument("--checkpoints", type=positive, default=5)
    options = parser.parse_args()

    def measure_all(folder):
        programs = Programs(options.bin.resolve(), options.params, options.ranks, options.checkpoints, folder)
        return {"parameters": f"of {options.checkpoints} checkpoints of "
                              f"{bench_report.gigabytes(size_of([programs.masters[0]]))} of masters on "
                              f"{options.ranks} ranks",
                "runs": in_turn(("cat", "cp", "zero-to-fp32 --average"), options.runs, programs.run)}

    bench_report.run("average", options, measure_all, report_text)


if __name__ == "__main__":
    main()
