#!/usr/bin/env python3
"""Compares the results of two builds for every checkpoint in testdata.

    scripts/compare_builds.py record BIN RESULT.json     runs all tools of the folder BIN
    scripts/compare_builds.py diff OLD.json NEW.json     exit 1 if anything differs

    RUN_WITH=qemu-aarch64 scripts/compare_builds.py record build/aarch64/bin ARM.json

For each command it keeps the exit status, the output (with masked times) and the SHA-256 of every written file. Run
`record` once with the tools of each build.
"""

import concurrent.futures
import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TESTDATA = os.path.join(ROOT, "testdata")


def commands():
    """Yields (name, arguments); {out} is a placeholder for a new folder's path."""
    checkpoints = sorted(glob.glob(os.path.join(TESTDATA, "checkpoints", "*", "ckpt")))
    split = sorted(glob.glob(os.path.join(TESTDATA, "model_parallel", "*", "ckpt")))
    adapters = sorted(glob.glob(os.path.join(TESTDATA, "peft", "*", "ckpt")))
    for path in checkpoints + split + adapters:
        name = os.path.relpath(os.path.dirname(path), TESTDATA)
        for key, arguments in {
            "bin": ["zero-to-fp32", path, "{out}"],
            "safetensors": ["zero-to-fp32", path, "{out}", "--safe-serialization", "--json",
                            "--max-shard-size", "20KB"],
            "bf16 states": ["zero-to-fp32", path, "{out}", "--safe-serialization", "--dtype", "bf16",
                            "--states"],
            "no frozen": ["zero-to-fp32", path, "{out}", "--exclude-frozen-parameters"],
            "weights dry": ["zero-to-fp32", path, "{out}", "--dry-run", "--states"],
            "weights dry json": ["zero-to-fp32", path, "{out}", "--dry-run", "--json"],
            "peft": ["zero-to-fp32", path, "--peft", "{out}", "--lora-alpha", "8"],
            "universal": ["to-universal", "--input-folder", path, "--output-folder",
                          "{out}/global_step5_universal"],
            "universal dry": ["to-universal", "--input-folder", path, "--output-folder",
                              "{out}/u", "--dry-run"],
            "universal json": ["to-universal", "--input-folder", path, "--output-folder",
                               "{out}/u", "--json", "--zstd"],
            "reshard 1": ["reshard", path, "{out}", "--dp", "1"],
            "reshard 3": ["reshard", path, "{out}", "--dp", "3", "--json"],
            "reshard stage": ["reshard", path, "{out}", "--dp", "2", "--stage", "3"],
            "reshard batch": ["reshard", path, "{out}", "--dp", "4", "--plan-batch"],
            "reshard dry": ["reshard", path, "{out}", "--dp", "3", "--dry-run", "--plan-batch"],
            "reshard dry json": ["reshard", path, "{out}", "--dp", "3", "--dry-run", "--json",
                                 "--plan-batch"],
            "pack": ["ckpt-pack", "pack", path, "{out}", "--sha256"],
            "pack dry": ["ckpt-pack", "pack", path, "{out}", "--dry-run"],
            "unpack dry": ["ckpt-pack", "unpack", path, "{out}", "--dry-run", "--json"],
            "unpack": ["ckpt-pack", "unpack", path, "{out}", "--json"],
            "strip weights": ["ckpt-pack", "strip", path, "{out}", "--keep", "weights"],
            "strip resume": ["ckpt-pack", "strip", path, "{out}", "--keep", "resume", "--json"],
            "strip dry": ["ckpt-pack", "strip", path, "{out}", "--keep", "weights", "--dry-run"],
            "summary": ["ckpt-inspect", path],
            "summary json": ["ckpt-inspect", path, "--json"],
            "list": ["ckpt-inspect", "list", path, "--states"],
            "tree": ["ckpt-inspect", "tree", path],
            "verify": ["ckpt-inspect", "verify", path, "--json"],
            "stats": ["ckpt-inspect", "stats", path, "--states", "--json"],
            "inside": ["zero-to-fp32", path, path + "/global_step_inside/../"],
        }.items():
            yield f"{name}: {key}", arguments


def digest(folder):
    files = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                files[os.path.relpath(path, folder)] = hashlib.sha256(file.read()).hexdigest()
    return files


def masked(text, out):
    text = text.replace(out, "{out}").replace(ROOT, "{root}")
    text = re.sub(r"\d+\.\d+ s\b", "N s", text)
    return re.sub(r'"seconds":[0-9.e-]+', '"seconds":0', text)


def run(binaries, arguments):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        filled = [argument.replace("{out}", out) for argument in arguments]
        emulator = os.environ.get("RUN_WITH", "").split()
        done = subprocess.run([*emulator, os.path.join(binaries, filled[0]), *filled[1:]],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, "COLUMNS": "100"})
        return {"exit": done.returncode, "stdout": masked(done.stdout, out),
                "stderr": masked(done.stderr, out), "files": digest(folder)}


def record(binaries, result):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = {name: pool.submit(run, binaries, arguments) for name, arguments in commands()}
        results = {name: future.result() for name, future in waiting.items()}
    with open(result, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, sort_keys=True)
    files = sum(len(each["files"]) for each in results.values())
    done = sum(each["exit"] == 0 for each in results.values())
    print(f"{len(results)} commands, {done} of them with exit status 0, {files} files written")
    return 0


def diff(old, new):
    with open(old, encoding="utf-8") as file:
        left = json.load(file)
    with open(new, encoding="utf-8") as file:
        right = json.load(file)
    differing = 0
    for name in sorted(left.keys() | right.keys()):
        one, two = left.get(name), right.get(name)
        if one == two:
            continue
        differing += 1
        print(name)
        for key in ("exit", "stdout", "stderr", "files"):
            if one and two and one[key] != two[key]:
                print(f"  {key}: {str(one[key])[:600]}\n  {' ' * len(key)}  {str(two[key])[:600]}")
    print(f"{len(left)} commands, {differing} differ")
    return 1 if differing or not left else 0


def main():
    if len(sys.argv) == 4 and sys.argv[1] in ("record", "diff"):
        return {"record": record, "diff": diff}[sys.argv[1]](sys.argv[2], sys.argv[3])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
