#!/usr/bin/env python3
"""A store that delays, drops, cuts, lies and changes: what a run leaves then is right, or nothing.

    scripts/python tests/cli/bucket_faults.py --runs 500

A run ends in the time that its faults explain. If it succeeds, it has written the same as from a folder on a
disk. If not, it has one message with the reason, and neither output nor stand-in is there. Faults that may pass
and are few must not make it fail; of lies and changed objects it must not succeed with other bytes.

A run is made of the seed and its number, so that `--only NUMBER` makes it once more.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types

import tools
from cli_common import tree
from object_server import KEY, SECRET, Store, environment, serving
from tools import filled

# Faults that may pass: the request is repeated.
PASSING = ("delay", "drop", "reset", "cut", "stall", 500, 503, 429)
# Faults that are an error at once.
FINAL = (403, 404, 412, "changed", "longer", "shorter", "shifted")
# Six tries, each of which may be silent for 20 s, and the waits between them.
LONGEST_STALL = 25
LONGEST_WAIT = 60
CASES = ("z2_fp32_full_w3", "z3_fp32_full_w8", "z1_bf16_full_w2", "hf_trainer_llama_z3_bf16_w2")
COMMANDS = (("zero-to-fp32", "IN", "OUT"), ("zero-to-fp32", "IN", "OUT", "--safe-serialization"),
            ("to-universal", "IN", "OUT"), ("reshard", "IN", "OUT", "--dp", "2"), ("to-dcp", "IN", "OUT", "--dp", "2"),
            ("ckpt-pack", "pack", "IN", "OUT"), ("ckpt-inspect", "verify", "IN"), ("ckpt-inspect", "stats", "IN"))
MESSAGE = re.compile(r"^[a-z0-9-]+: error: ", re.MULTILINE)


class Campaign:

    def __init__(self, folder, seed):
        self.folder, self.seed = folder, seed
        self.expected = {}
        self.buckets = folder / "buckets"
        (self.buckets / "models").mkdir(parents=True)
        for name in CASES:
            shutil.copytree(tools.case_named(name).load_dir, self.buckets / "models" / name)
            for command in COMMANDS:
                output = self.place() / "place" / "out"
                output.parent.mkdir()
                done = tools.run_tool(*filled(command, self.buckets / "models" / name, output))
                assert done.returncode == 0, done.stderr
                self.expected[name, command] = self.result(done.stdout, output, self.buckets / "models" / name)
                shutil.rmtree(output.parent.parent)

    def place(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def result(self, said, output, source):
        return said.replace(str(source), "IN").replace(str(output), "OUT"), tree(output.parent)

    def plan(self, number):
        """The plan of run `number`, the same each time."""
        choose = random.Random(f"{self.seed} {number}")
        run = types.SimpleNamespace(number=number, case=choose.choice(CASES), command=choose.choice(COMMANDS))
        run.requests = choose.choice((1, 4, 32))
        run.minds_match, run.answers_200 = choose.random() < 0.8, choose.random() < 0.1
        run.kind = ("passing", "final", "often")[number % 3]
        run.word = choose.choice(FINAL if run.kind == "final" else PASSING)
        # By the number of the request; a request that is sent again has another number.
        if run.kind == "often":
            run.chance = choose.choice((0.05, 0.3, 1.0)) if run.word not in ("stall", "delay") else 0.05
            run.at = {}
        else:
            count = choose.choice((1, 1, 3))
            run.chance, run.at = 0, {choose.randint(1, choose.choice((6, 12, 40))) for _ in range(count)}
        return run

    def one(self, number):
        run = self.plan(number)
        run.wrong, run.met, run.met_objects = [], 0, 0
        choose = random.Random(f"{self.seed} {number} requests")

        def fault(request, path):
            if request in run.at or choose.random() < run.chance:
                run.met += 1
                run.met_objects += path.count("/") > 2
                return run.word
            return None

        home = self.place()
        (home / "tmp").mkdir()
        output = home / "place" / "out"
        output.parent.mkdir()
        store = Store(self.buckets, fault=fault, minds_match=run.minds_match, answers_200=run.answers_200)
        url = f"s3://models/{run.case}"
        with serving(store) as endpoint:
            tool, *words = filled(run.command, url, output)
            variables = {**os.environ, **environment(endpoint), "TMPDIR": str(home / "tmp")}
            begin = time.monotonic()
            try:
                done = tools.run_tool(tool, *words, "--s3-requests", str(run.requests), env=variables, timeout=300)
            except subprocess.TimeoutExpired:
                run.wrong.append("has not ended")
                done = None
            run.seconds = time.monotonic() - begin
        run.asked = len(store.requests)
        stalls = run.met if run.word in ("stall", "delay") else 0
        if run.seconds > LONGEST_WAIT + LONGEST_STALL * stalls:
            run.wrong.append(f"took {run.seconds:.0f} s")
        run.outcome = "no end" if done is None else "done" if done.returncode == 0 else "refused"
        if done is not None:
            self.judge(run, done, output, url)
        if left := [path.name for path in (home / "tmp").iterdir()]:
            run.wrong.append(f"left: {left}")
        shutil.rmtree(home)
        return run

    def judge(self, run, done, output, url):
        run.status, run.errors = done.returncode, done.stderr
        if SECRET in done.stdout + done.stderr or KEY in done.stdout + done.stderr:
            run.wrong.append("a key is said")
        if done.returncode == 0:
            if self.result(done.stdout, output, url) != self.expected[run.case, run.command]:
                run.wrong.append("different bytes than from a disk")
            # Objects beside the folder may be forbidden.
            if run.met_objects and run.kind == "final" and run.word in (403, 404, 412, "longer"):
                run.wrong.append("went on after what cannot pass")
            return
        if any(output.parent.iterdir()):
            run.wrong.append("something of its output is there")
        if run.command[1] == "verify" and done.returncode == 1:  # it goes on with what can be read
            if "cannot be read" not in done.stderr + done.stdout:
                run.wrong.append("does not say what cannot be read")
        elif len(MESSAGE.findall(done.stderr)) != 1 or done.returncode not in (3, 4):
            run.wrong.append(f"no message of its own, status {done.returncode}")
        if done.returncode == 3:
            run.wrong.append("takes the network's fault for the checkpoint's")
        if not run.met or run.kind == "passing":
            run.wrong.append("gave up where it could go on")
        if run.word == "changed" and done.returncode == 4 and "changed while it was being read" not in done.stderr:
            run.wrong.append("does not say that the object changed")


def describe(run):
    return "\n".join([f"run {run.number}: {'; '.join(run.wrong)}",
                      f"    {' '.join(run.command)} of {run.case}, {run.word} ({run.kind}, {run.chance or run.at}) "
                      f"met {run.met} times in {run.asked} requests, {run.requests} at once, "
                      f"{'200 for ranges, ' if run.answers_200 else ''}"
                      f"{'' if run.minds_match else 'no conditions, '}{run.outcome}, {run.seconds:.1f} s",
                      *(f"    {line}" for line in getattr(run, "errors", "").splitlines())])


def table(runs, words):
    """Rows of Markdown: what came of the runs, by fault."""
    lines = ["| fault | runs | met | done | refused | requests | seconds | wrong |",
             "|---|---|---|---|---|---|---|---|"]
    for word in words:
        mine = [run for run in runs if run.word == word]
        if not mine:
            continue
        outcomes = collections.Counter(run.outcome for run in mine)
        seconds = [run.seconds for run in mine]
        lines.append(f"| {word} | {len(mine)} | {sum(run.met > 0 for run in mine)} | {outcomes['done']} | "
                     f"{outcomes['refused']} | {sum(run.asked for run in mine)} | "
                     f"{statistics.median(seconds):.1f}, {max(seconds):.1f} | {sum(bool(run.wrong) for run in mine)} |")
    return lines


def main(description, campaign_of, words, describe):
    """`campaign_of(folder, seed).one(number)` makes a run; its faults are `words`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this run alone")
    parser.add_argument("--jobs", type=int, default=4, help="runs at a time")
    options = parser.parse_args()
    if not tools.reads_object_stores():
        print("skipped: this build reads no object stores", file=sys.stderr)
        return
    numbers = range(options.runs) if options.only is None else [options.only]
    with tempfile.TemporaryDirectory(prefix="bucket-faults-") as folder:
        campaign = campaign_of(pathlib.Path(folder), options.seed)

        def one(number):
            run = campaign.one(number)
            if run.wrong:
                print(describe(run), file=sys.stderr, flush=True)
            return run

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            runs = list(pool.map(one, numbers))
    print("\n".join(table(runs, words)))
    sys.exit(1 if any(run.wrong for run in runs) else 0)


if __name__ == "__main__":
    main(__doc__, Campaign, PASSING + FINAL, describe)
