#!/usr/bin/env python3
"""Draws pickles, zips and arrays from a grammar of opcodes, gadgets and forms, loads each in a child, and scans
it. A file may not be harmless if it runs code, ends the child, or takes more than ten times its memory (and 64
MiB).

    scripts/python tests/oracle/scan_campaign.py --files 100000 --seed 1

Loaders: pickle in C and in Python, pickles one after the other, and numpy.load. Also torch.load with
weights_only=False where this Python has torch. A file is drawn anew from its number and the seed: --only NUMBER
shows one again.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import hostile_loads
from hostile_pickles import Grammar

BATCH = 1000
WORDS = {hostile_loads.RUNS: "run", hostile_loads.CRASHES: "end the child", hostile_loads.MEMORY: "take memory"}


def drawn(seed, number, with_torch):
    return Grammar(random.Random(f"{seed}-{number}"), with_torch).file()


def classes_of(folder):
    done = subprocess.run([pathlib.Path(os.environ["DSCKPT_BIN"]) / "ckpt-inspect", "scan", "--json", folder],
                          capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"scan of {folder} ended with {done.returncode}: {done.stderr}")
    order = ["harmless", "allowed", "unknown", "dangerous"]
    classes = collections.defaultdict(lambda: "harmless")
    data = json.loads(done.stdout)["data"]
    for part in data["findings"] + data["unreadable"]:
        classes[part["file"]] = max(classes[part["file"]], part["class"], key=order.index)
    return classes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the files that are called harmless and are not")
    arguments = parser.parse_args()
    loaders = list(hostile_loads.LOADERS)
    try:
        import numpy
        import numpy.random
        import torch
        loaders.append(hostile_loads.by_torch)
        versions = f"torch {torch.__version__}, NumPy {numpy.__version__}"
    except ImportError:
        versions = "without torch"
    with_torch = hostile_loads.by_torch in loaders
    if arguments.only is not None:
        ending, content = drawn(arguments.seed, arguments.only, with_torch)
        print(ending, content)
        return 0
    counts, missed, start = collections.Counter(), [], time.monotonic()
    for begin in range(0, arguments.files, BATCH):
        with tempfile.TemporaryDirectory() as root:
            folder = pathlib.Path(root, "files")
            folder.mkdir()
            paths = []
            for number in range(begin, min(begin + BATCH, arguments.files)):
                ending, content = drawn(arguments.seed, number, with_torch)
                paths.append(folder / f"{number}{ending}")
                paths[-1].write_bytes(content)
            classes = classes_of(folder)
            for path, what in zip(paths, hostile_loads.what_they_do([str(path) for path in paths], loaders)):
                found = classes[path.name]
                counts[found] += 1
                for flag, word in WORDS.items():
                    counts[word] += bool(what & flag)
                counts["do something"] += bool(what)
                if what and found == "harmless":
                    missed.append((path.name, what))
                    if arguments.keep:
                        arguments.keep.mkdir(exist_ok=True)
                        (arguments.keep / path.name).write_bytes(path.read_bytes())
    print(f"Python {sys.version.split()[0]}, {versions}, seed {arguments.seed}: {arguments.files} files in "
          f"{time.monotonic() - start:.0f} s; " + ", ".join(f"{word}: {count}" for word, count in sorted(counts.items())))
    for name, what in missed:
        print(f"HARMLESS, but: {name}: {', '.join(word for flag, word in WORDS.items() if what & flag)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
