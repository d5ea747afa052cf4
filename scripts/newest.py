#!/usr/bin/env python3
"""The versions that `scripts/test --newest` has tested, as README's table.

    newest.py --requirements    prints what to install: scripts/requirements.txt with the newest of PROGRAMS
    newest.py --write           keeps the versions that this Python has, with the date; README's table follows
    newest.py --check           checks that README's table shows the kept versions
"""
import argparse
import datetime
import importlib.metadata
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "oracle" / "newest.json"
README = ROOT / "README.md"
PROGRAMS = ("torch", "deepspeed", "transformers", "accelerate", "peft", "trl", "lightning", "safetensors")
BEGIN, END = "<!-- versions: scripts/newest.py -->\n", "<!-- end of versions -->\n"


def pins():
    """scripts/requirements.txt: the version of each package in it, or ""."""
    lines = (ROOT / "scripts" / "requirements.txt").read_text().splitlines()
    pairs = [line.partition("==")[::2] for line in lines if line and not line.startswith("#")]
    return dict(pairs)


def requirements():
    others = [f"{name}=={pin}" if pin else name for name, pin in pins().items() if name not in PROGRAMS]
    return [*others, *PROGRAMS]


def table(kept):
    versions, pinned = kept["versions"], pins()
    rows = [["", *versions], ["---"] * (len(versions) + 1), ["newest, " + kept["date"], *versions.values()],
            ["pinned in CI", *(pinned.get(name) or "-" for name in versions)]]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def with_table(text, kept):
    before, _, rest = text.partition(BEGIN)
    _, _, behind = rest.partition(END)
    if not rest:
        raise SystemExit(f"newest.py: README.md has no line {BEGIN.strip()}")
    return before + BEGIN + table(kept) + END + behind


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    for name in ("requirements", "write", "check"):
        action.add_argument("--" + name, action="store_true")
    options = parser.parse_args()
    if options.requirements:
        print("\n".join(requirements()))
        return 0
    if options.write:
        versions = {name: importlib.metadata.version(name).partition("+")[0] for name in PROGRAMS}
        KEPT.write_text(json.dumps({"date": datetime.date.today().isoformat(), "versions": versions}, indent=2) + "\n")
    kept = json.loads(KEPT.read_text())
    text = README.read_text()
    if options.write:
        README.write_text(with_table(text, kept))
        return 0
    if text != with_table(text, kept):
        print("newest.py: README's table of versions is not of tests/oracle/newest.json: run newest.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
