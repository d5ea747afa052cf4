#!/usr/bin/env python3
"""How fast DCP's folders become safetensors, and ZeRO's become theirs, against cp and torch's dcp_to_torch_save.

    scripts/python tests/bench/bench_dcp.py --params 400M --out tests/bench/runs/NAME

A folder of weights is written by torch's own dcp.save on so many ranks, each with its rows as FSDP2 has them. The
programs take turns, with what they read in the page cache; medians and ranges. The weights of zero-to-fp32 are
compared with those of dcp_to_torch_save.
"""
import subprocess
import sys

import torch
from safetensors import safe_open

import bench_report
from bench_checkpoint import Writer, decoder_shapes
from bench_files import files_of, make_warm, remove, size_of
from measure import BenchError, in_turn, measure

OUTPUT = "model.safetensors"
TORCH_CODE = """
import sys
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
dcp_to_torch_save(sys.argv[1], sys.argv[2])
"""
# One of the ranks that save.
SAVE_CODE = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from safetensors import safe_open
weights, folder, meet, rank, ranks = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=ranks)
mesh = init_device_mesh("cpu", (ranks,))
with safe_open(weights, "pt") as whole:
    dcp.save({"model": {name: distribute_tensor(whole.get_tensor(name), mesh, [Shard(0)], src_data_rank=None)
                        for name in whole.keys()}}, checkpoint_id=folder)
dist.barrier()
os._exit(0)  # gloo's threads may abort a process that takes itself apart
"""
PROGRAMS = ("cp of the result", "zero-to-fp32", "dcp_to_torch_save", "cp of the folder", "to-dcp")


class Programs:
    def __init__(self, bin_folder, params, ranks, work):
        self.bin, self.work = bin_folder, work
        self.checkpoint = work / "checkpoint"
        torch.set_num_threads(1)
        Writer(self.checkpoint, decoder_shapes(params), 3, ranks, None, False).write()
        self.weights, self.folder, self.made = work / "weights", work / "dcp", work / "made"
        self.output = work / "output"
        self.ranks = ranks
        weights = ["--safe-serialization", "--max-shard-size", "none", "-q"]
        self.commands = {
            "cp of the result": lambda: ["cp", self.weights / OUTPUT, self.output],
            "zero-to-fp32": lambda: [self.bin / "zero-to-fp32", self.folder, self.output / "weights", *weights],
            "dcp_to_torch_save": lambda: [sys.executable, "-c", TORCH_CODE, self.folder, self.output / "whole.pt"],
            "cp of the folder": lambda: ["cp", "-r", self.made, self.output],
            "to-dcp": lambda: [self.bin / "to-dcp", self.checkpoint, self.output / "dcp", "--dp", self.ranks, "-q"]}
        self.run_well(self.bin / "zero-to-fp32", self.checkpoint, self.weights, *weights)
        self.run_well(self.bin / "to-dcp", self.checkpoint, self.made, "--dp", ranks, "-q")
        self.save()
        self.check()

    @staticmethod
    def run_well(*command):
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise BenchError(f"{command[0]}: {done.stderr[-2000:]}")

    def save(self):
        words = [sys.executable, "-c", SAVE_CODE, self.weights / OUTPUT, self.folder, self.work / "meet"]
        ranks = [subprocess.Popen([*map(str, words), str(rank), str(self.ranks)]) for rank in range(self.ranks)]
        if any([rank.wait() for rank in ranks]):
            raise BenchError("dcp.save failed")

    def check(self):
        self.output.mkdir()
        self.run_well(*self.commands["dcp_to_torch_save"]())
        self.run_well(*self.commands["zero-to-fp32"]())
        want = torch.load(self.output / "whole.pt", mmap=True)["model"]
        with safe_open(self.output / "weights" / OUTPUT, "pt") as got:
            if set(got.keys()) != set(want):
                raise BenchError("the weights have other tensors")
            for name, value in want.items():
                if not torch.equal(got.get_tensor(name), value):
                    raise BenchError(f"'{name}' is wrong")
        del want
        remove(self.output)

    def run(self, name):
        self.output.mkdir()
        make_warm(files_of({"cp of the result": self.weights, "cp of the folder": self.made,
                            "to-dcp": self.checkpoint}.get(name, self.folder)))
        result = measure(self.commands[name](), memory=True)
        remove(self.output)
        return result


def report_text(report):
    seconds = {name: [run["seconds"] for run in runs] for name, runs in report["runs"].items()}

    def ratios(one, other):
        return bench_report.median_range([a / b for a, b in zip(seconds[one], seconds[other])])

    return "\n".join([f"`tests/bench/bench_dcp.py` {report['parameters']}", "", bench_report.host(report), "",
                      *bench_report.programs(report["runs"]), "",
                      f"`zero-to-fp32` of DCP to `cp` of its result: {ratios('zero-to-fp32', 'cp of the result')}; "
                      f"`dcp_to_torch_save` to `zero-to-fp32`: {ratios('dcp_to_torch_save', 'zero-to-fp32')}; "
                      f"`to-dcp` to `cp` of its result: {ratios('to-dcp', 'cp of the folder')}."]) + "\n"


def main():
    parser = bench_report.parser(__doc__.splitlines()[0], 400_000_000)
    options = parser.parse_args()

    def measure_all(folder):
        programs = Programs(options.bin.resolve(), options.params, options.ranks, folder)
        return {"parameters": f"of {bench_report.gigabytes(size_of(files_of(programs.folder)))} of weights on "
                              f"{options.ranks} ranks, and {bench_report.gigabytes(size_of(files_of(programs.made)))} "
                              "with optimizer states",
                "runs": in_turn(PROGRAMS, options.runs, programs.run)}

    bench_report.run("dcp", options, measure_all, report_text)


if __name__ == "__main__":
    main()
