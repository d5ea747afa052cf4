#!/usr/bin/env python3
"""Writes tests/COSTS.md: the seconds that each test took, of the last `scripts/test --all` in this checkout.

    tests/scripts/test_costs.py [--machine TEXT]
"""
import argparse
import collections
import datetime
import pathlib
import re
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREES = {"release": "release", "asan": "sanitizers"}
ALL_BELOW = 1.0  # seconds; tests that took less come as one sum of their kind


def costs(tree):
    """name -> seconds of ctest's log."""
    log = (ROOT / "build" / tree / "tests.log").read_text(errors="replace")
    return {name: float(seconds) for name, seconds in
            re.findall(r"^ *\d+/\d+ Test +#\d+: (\S+) \.*[ *]*\w+ +([\d.]+) sec", log, re.MULTILINE)}


def kind_of(name):
    return name.partition(".")[0]


def number(seconds):
    return "" if seconds is None else f"{seconds:.1f}"


def rows(title, seconds_of):
    yield f"| {title} | " + " | ".join(TREES.values()) + " |"
    yield "|---|" + "---:|" * len(TREES)
    for name, seconds in seconds_of:
        yield f"| {name} | " + " | ".join(number(each) for each in seconds) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machine", default="2 cores", help="what it ran on, and how many tests at a time")
    options = parser.parse_args()
    found = {tree: costs(tree) for tree in TREES}
    kinds = collections.defaultdict(lambda: [0.0] * len(TREES))
    for at, tree in enumerate(TREES):
        for name, seconds in found[tree].items():
            kinds[kind_of(name)][at] += seconds
            kinds["all"][at] += seconds
    long = {name for tree in TREES for name, seconds in found[tree].items() if seconds >= ALL_BELOW}
    text = [
        "# What the tests cost", "",
        textwrap.fill(f"Seconds of each test of `scripts/test --all`, {datetime.date.today().isoformat()}, on "
                      f"{options.machine}.", 118), "", "`tests/scripts/test_costs.py` writes this page.", "",
        *rows("kind", sorted(kinds.items(), key=lambda each: -sum(each[1]))), "",
        f"Tests of {ALL_BELOW:.0f} s and more:", "",
        *rows("test", sorted(((name, [found[tree].get(name) for tree in TREES]) for name in long),
                             key=lambda each: -sum(seconds or 0 for seconds in each[1]))),
    ]
    (ROOT / "tests" / "COSTS.md").write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
