#!/usr/bin/env python3
"""How small and how fast ckpt-pack is, against zstd and cp on the same files.

    scripts/python tests/bench/trained_checkpoint.py /tmp/trained
    scripts/python tests/bench/bench_pack.py /tmp/trained --out tests/bench/runs/NAME

The programs take turns, with the input in the page cache; medians and ranges. Sizes stand beside what entropy coding
of byte planes can reach at best (their order-0 entropy). Needs torch, and the program zstd to compare with.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess

import numpy
import torch

import bench_report
from bench_files import files_of, make_warm, remove, size_of
from measure import in_turn, measure, output_of

ROTATED = {torch.float32: "u4", torch.bfloat16: "u2"}


def entropy_bytes(tensor):
    """The sizes of a tensor's byte planes, each by how often its bytes occur."""
    flat = tensor.detach().flatten()
    elements = flat.view(torch.uint8).numpy().reshape(flat.numel(), flat.element_size())
    if flat.dtype in ROTATED:
        width = 8 * flat.element_size()
        bits = elements.reshape(-1).view(ROTATED[flat.dtype])
        elements = (bits << 1 | bits >> (width - 1)).view("u1").reshape(elements.shape)
    total = 0.0
    for plane in elements.T:
        counts = numpy.bincount(plane, minlength=256)
        counts = counts[counts > 0]
        total -= (counts * numpy.log2(counts / counts.sum())).sum() / 8
    return total


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)


def kinds_of(checkpoint):
    """The tensors of a checkpoint of stage 2, by kind."""
    kinds = {"fp32 masters": [], "exp_avg": [], "exp_avg_sq": [], "weights (bfloat16)": []}
    for file in sorted(checkpoint.rglob("*optim_states.pt")):
        states = torch.load(file, weights_only=False)["optimizer_state_dict"]
        kinds["fp32 masters"] += tensors_in(states["single_partition_of_fp32_groups"])
        for state in states["base_optimizer_state"]["state"].values():
            for key in ("exp_avg", "exp_avg_sq"):
                kinds[key].append(state[key])
    for file in sorted(checkpoint.rglob("*model_states.pt")):
        kinds["weights (bfloat16)"] += tensors_in(torch.load(file, weights_only=False)["module"])
    return kinds


def sizes(inspect, checkpoint, packed):
    """For each kind: bytes, bytes that ckpt-pack stores, and the bound."""
    summary = json.loads(output_of([inspect, packed, "--json"]))["data"]
    stored = {kind["kind"]: kind["stored"] for kind in summary["kinds"]}
    rows = []
    for kind, tensors in kinds_of(checkpoint).items():
        size = sum(tensor.nbytes for tensor in tensors)
        bound = sum(map(entropy_bytes, tensors))
        rows.append({"kind": kind, "bytes": size, "stored": stored[kind], "entropy_bytes": bound})
    return rows


def zstd(options):
    """A shell command that compresses every file of $1 into $2."""
    return ["sh", "-c", f'cp -r "$1" "$2" && find "$2" -name "*.pt" -exec zstd -q --rm {options} {{}} +', "zstd"]


UNZSTD = ["sh", "-c", 'cp -r "$1" "$2" && find "$2" -name "*.zst" -exec zstd -q -d --rm {} +', "unzstd"]


class Programs:
    """On `copies` of the checkpoint side by side, so that runs are not over at once."""

    def __init__(self, bin_folder, source, copies, work):
        pack = bin_folder / "ckpt-pack"
        checkpoint, packed, zipped = work / "input", work / "packed", work / "zipped"
        for i in range(copies):
            shutil.copytree(source, checkpoint / f"copy_{i}")
        self.commands = {  # with their inputs; the output follows
            "cp -r": (["cp", "-r"], checkpoint),
            "ckpt-pack pack": ([pack, "pack", "-q"], checkpoint),
            "ckpt-pack pack --threads 1": ([pack, "pack", "-q", "--threads", "1"], checkpoint),
            "zstd -T0 -3": (zstd("-T0 -3"), checkpoint),
            "zstd -T0 --long": (zstd("-T0 --long"), checkpoint),
            "ckpt-pack unpack": ([pack, "unpack", "-q"], packed),
            "ckpt-pack unpack --threads 1": ([pack, "unpack", "-q", "--threads", "1"], packed),
            "zstd -d": (UNZSTD, zipped),
        }
        self.work = work
        self.files = files_of(checkpoint)
        subprocess.run([pack, "pack", "-q", checkpoint, packed], check=True)
        subprocess.run([*zstd("-T0 -3"), checkpoint, zipped], check=True)

    def run(self, name):
        command, source = self.commands[name]
        output = self.work / "output"
        make_warm(files_of(source))
        result = measure([*command, source, output])
        result["output_bytes"] = size_of(files_of(output))
        remove(output)
        return result


def report_text(report):
    kinds = [(row["kind"], bench_report.gigabytes(row["bytes"]), f"{row['stored'] / row['bytes']:.4f}",
              f"{row['entropy_bytes'] / row['bytes']:.4f}", f"{row['stored'] / row['entropy_bytes'] - 1:+.2%}")
             for row in report["kinds"]]
    lines = [f"`tests/bench/bench_pack.py` {report['parameters']}", "", bench_report.host(report), "",
             *bench_report.table(["kind", "bytes", "packed", "order-0 entropy of the planes", "above it"], kinds), ""]
    rows = []
    for name, runs in report["runs"].items():
        seconds = [run["seconds"] for run in runs]
        cpu = statistics.median(run["user_seconds"] + run["system_seconds"] for run in runs)
        size = report["bytes"]
        rows.append((f"`{name}`", bench_report.median_range(seconds),
                     f"{size / statistics.median(seconds) / 1e9:.2f}", f"{cpu:.2f}",
                     f"{runs[0]['output_bytes'] / size:.4f}"))
    lines += bench_report.table(["program", "median s (min..max)", "GB/s of content", "CPU s", "output / content"], rows)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=pathlib.Path, help="of ZeRO stage 2, bfloat16 and Adam")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--copies", type=int, default=8, help="of the checkpoint, to be timed (default 8)")
    bench_report.add_places(parser)
    options = parser.parse_args()

    def measure_all(folder):
        programs = Programs(options.bin.resolve(), options.checkpoint, options.copies, folder)
        files = programs.files
        return {"bytes": size_of(files),
                "parameters": f"on {bench_report.gigabytes(size_of(files))} in {len(files)} files",
                "kinds": sizes(options.bin / "ckpt-inspect", options.checkpoint, programs.work / "packed/copy_0"),
                "runs": in_turn(programs.commands, options.runs, programs.run)}

    bench_report.run("pack", options, measure_all, report_text)


if __name__ == "__main__":
    main()
