#!/usr/bin/env python3
"""dsckpt.load_checkpoint in releases of DeepSpeed, each in an environment of its own beside this Python's packages.

    scripts/python tests/oracle/live_releases.py 0.14.5 0.19.8          with the module in PYTHONPATH

Installs each release from the package index, without building its operations. Loads native checkpoints into two ranks,
and those of live_split_test.py. Each engine must hold the same bits as one that the release's own loader has filled from
reshard's files. A release may also be unable to make that engine, or to load it itself. Prints a table.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

TIMEOUT = 1800  # seconds


def installed(release, folder):
    """The Python of an environment that has the release."""
    python = folder / release / "bin" / "python"
    if python.exists():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", folder / release], check=True)
    packages = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], check=True,
                              capture_output=True, text=True).stdout.strip()
    pathlib.Path(packages, "other.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", f"deepspeed=={release}"],
                   check=True, env={key: value for key, value in [*os.environ.items(), ("DS_BUILD_OPS", "0")]
                                    if key != "DS_ACCELERATOR"})  # 0.14.0 would import it
    return python


def compared(load, scratch):
    """Does the same as live_split_test.compared() with a load of live_load_test.py."""
    import live_load_test
    work, port = [(load, *live_load_test.made(load, scratch))], live_load_test.free_port()
    error = live_load_test.run_forked(live_load_test.compare_worker, scratch / "logs",
                                      [(rank, load.world, port, work, scratch) for rank in range(load.world)],
                                      timeout=live_load_test.TIMEOUT)
    return error, None if error else json.loads((scratch / "0.json").read_text())


def outcome(compare, *load):
    """The result of a load: "equal", "other: ...", "refused: ..." or "DeepSpeed: ..."."""
    with tempfile.TemporaryDirectory() as scratch:
        error, lines = compare(*load, pathlib.Path(scratch))
    if error is None:
        return "equal" if not lines else f"other: {lines[0][:300]}"
    lines = str(error).splitlines()
    why = next((line for line in reversed(lines) if "Error" in line and not line.startswith(" ")), lines[-1])
    return f"{'refused' if '/dsckpt/_' in str(error) else 'DeepSpeed'}: {why[:300]}"


def outcomes():
    import live_load_test
    import live_split_test
    loads = [load for load in live_load_test.LOADS
             if load.world == 2 and load.source == "native" and not load.options and not load.like]
    found = {str(load): outcome(compared, load) for load in loads}
    for row in live_split_test.LOADS:
        found[" ".join(map(str, row))] = outcome(live_split_test.compared, *live_split_test.load_of(*row))
    return found


def found_in(release, folder):
    python = installed(release, folder)
    done = subprocess.run([python, __file__, "--here"], capture_output=True, text=True, timeout=TIMEOUT,
                          # The loaders of 0.14 and 0.15 do not say weights_only=False.
                          env={**os.environ, "DSCKPT_LOAD_ONLY": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1",
                               "TORCH_EXTENSIONS_DIR": str(folder / release / "extensions")})
    if done.returncode:
        return {"": f"DeepSpeed: {done.stderr.strip().splitlines()[-1:]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("releases", nargs="*")
    parser.add_argument("--folder", type=pathlib.Path, help="where the environments are; default: a temporary folder")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        print(json.dumps(outcomes()))
        return 0
    rows, worst = ["| DeepSpeed | equal | other or refused | DeepSpeed itself fails |", "|---|---|---|---|"], 0
    with tempfile.TemporaryDirectory() as temporary:
        for release in arguments.releases:
            found = found_in(release, arguments.folder or pathlib.Path(temporary))
            equal = [load for load, what in found.items() if what == "equal"]
            theirs = {load: what for load, what in found.items() if what.startswith("DeepSpeed: ")}
            ours = {load: what for load, what in found.items() if load not in equal and load not in theirs}
            rows.append(f"| {release} | {len(equal)} | {len(ours) or '-'} | {len(theirs) or '-'} |")
            for load, what in {**ours, **theirs}.items():
                print(f"{release}: {load}: {what}", flush=True)
            worst = worst or len(ours)
    print("\n".join(rows))
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
