#!/usr/bin/env python3
"""A store that fails and lies to who writes there: what is there then is right, or nothing, or named.

    scripts/python tests/cli/bucket_output_faults.py --runs 500

A run ends in the time that its faults explain. If it succeeds, the bytes are those of a local run, and nothing else is
there. If not, one message says why, and names what of its output can be seen and what it took the place of. Uploads
that are left have a marker, which is named, too. Then the same command meets no fault: it writes what it should, and
nothing of the run before is left.

A run is made of the seed and its number, so that `--only NUMBER` makes it once more.
"""
import collections
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import types

import bucket_faults
import large_checkpoint
import tools
from bucket_faults import MESSAGE
from cli_common import tree as whole_tree
from object_server import KEY, SECRET, Store, environment, serving
from tools import filled

# Faults that may pass: the request is repeated.
PASSING = ("delay", "drop", "reset", "cut", "stall", 500, 503, 429, "lost", "error in 200", "done, error in 200", 409)
# Faults that are an error at once.
FINAL = (403, 404, 412, "wrong form")
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")
WORDS = (*PASSING, *FINAL, *SIGNALS, "another's")
# The requests to which these replies are possible.
MEANT_FOR = {409: ("complete", "object"), "error in 200": ("complete",), "done, error in 200": ("complete",)}
# Requests of a failed run, and after a reply that leaves the result open.
CLEANING = ("remove", "abort", "uploads", "ask")
CASES = ("z3_bf16_full_subgroups_w4", "hf_trainer_llama_z3_bf16_w2")
LARGE = "large"
COMMANDS = (("zero-to-fp32", "IN", "OUT"), ("zero-to-fp32", "IN", "OUT", "--safe-serialization", "--verify-output"),
            ("zero-to-fp32", "IN", "OUT", "--max-shard-size", "9MB"),
            ("zero-to-fp32", "IN", "OUT", "--safe-serialization", "--max-shard-size", "20KB", "--verify-output"),
            ("to-universal", "IN", "OUT"), ("reshard", "IN", "OUT", "--dp", "2"), ("to-dcp", "IN", "OUT", "--dp", "2"),
            ("ckpt-pack", "pack", "IN", "OUT"))
# Objects that are written last.
LAST = ("model.safetensors.index.json", "pytorch_model.bin.index.json", ".metadata", "latest_universal")
MARKER = ".dsckpt-staging-"
# Files beside a checkpoint that are copied too, unless the output has them already.
NEIGHBOURS = ("config.json", "generation_config.json")
# Six tries, each of which may be silent for 20 s, and the waits between them.
LONGEST_STALL = 25
LONGEST_WAIT = 60
LONGEST_RUN = 300


def tree(folder):
    """path -> bytes: stores have no folders."""
    return {path: data for path, data in whole_tree(folder).items() if data is not None}


def kind_of(method, target):
    """The purpose of a request."""
    path, _, query = target.partition("?")
    is_marker = MARKER in path
    if method == "GET":
        return "uploads" if "uploads=" in query else "list" if "list-type" in query else "read"
    if method == "POST":
        return "begin" if "uploads=" in query else "complete"
    if method == "PUT":
        return "part" if "partNumber=" in query else "mark" if is_marker else "object"
    if method == "DELETE":
        return "abort" if "uploadId=" in query else "unmark" if is_marker else "remove"
    return "ask"


class Campaign:

    def __init__(self, folder, seed):
        self.folder, self.seed = folder, seed
        self.sources = {name: tools.case_named(name).load_dir for name in CASES}
        self.sources[LARGE] = folder / LARGE
        large_checkpoint.write(folder / LARGE, large_checkpoint.decoder(5_000_000), 3, 2)
        self.expected, self.counts = {}, {}
        for name, source in self.sources.items():
            for command in COMMANDS:
                output = self.new_place() / "run" / "out"
                output.parent.mkdir()
                done = tools.run_tool(*filled(command, source, output))
                assert done.returncode == 0, done.stderr
                self.expected[name, command] = tree(output.parent)
                shutil.rmtree(output.parent.parent)
                self.counts[name, command] = self.count(name, command)

    def new_place(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def count(self, name, command):
        """How many requests a run without faults makes, by what they are for."""
        run = types.SimpleNamespace(command=command, case=name, requests=4, seconds=[], wrong=[])
        home = self.new_place()
        (home / "tmp").mkdir()
        (home / "stores" / "models").mkdir(parents=True)
        store = Store(home / "stores")
        done = self.run_tool(run, store, home, False)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(home)
        return collections.Counter(kind_of(*request[:2]) for request in store.requests)

    def plan(self, number):
        """The plan of run `number`, the same each time."""
        choose = random.Random(f"{self.seed} {number} writes")
        run = types.SimpleNamespace(number=number, command=choose.choice(COMMANDS))
        run.case = choose.choice((*CASES, LARGE, LARGE))
        run.requests = choose.choice((1, 4, 32))
        run.minds_match, run.page = choose.random() < 0.8, choose.choice((3, 1000))
        run.word = choose.choice(WORDS)
        run.is_forced = choose.random() < 0.3 and run.word != "another's"
        run.kind = choose.choice(("once", "once", "often", "always", "gone"))
        if run.word in (*SIGNALS, "another's"):
            run.kind = "once"
        elif run.word in ("stall", "delay"):
            run.kind = choose.choice(("once", "often"))
        # By what a request is for, or by its number; a request that is sent again has another number.
        counts = self.counts[run.case, run.command]
        meant = [kind for kind in MEANT_FOR.get(run.word, ()) if counts[kind]]
        run.request = choose.choice(meant or (None, None, *counts, *CLEANING))
        # The refused request after which the run cleans up.
        run.trigger = choose.choice([kind for kind in ("part", "complete", "object") if counts[kind]])
        run.trigger_at = choose.randint(1, counts[run.trigger])
        if run.request not in CLEANING:
            run.trigger = None
        most = sum(counts.values()) if run.request is None else counts[run.request]
        run.at = choose.randint(1, max(1, most if choose.random() < 0.5 else min(most, 3)))
        run.chance = choose.choice((0.05, 0.3)) if run.word not in ("stall", "delay") else 0.05
        return run

    def fault_of(self, run, store, place):
        """The store's behaviour by the plan."""
        choose = random.Random(f"{self.seed} {run.number} requests")
        seen = triggered = 0

        def meets(kind):
            nonlocal seen
            # It is what these want; and nothing says what a DELETE removes.
            if kind in ("remove", "unmark", "abort") and run.word in (404, "another's"):
                return False
            if run.request and kind != run.request:
                return run.kind == "gone" and seen >= run.at
            seen += 1
            if run.kind == "often":
                return choose.random() < run.chance
            return seen == run.at or (seen > run.at and run.kind in ("always", "gone"))

        def fault(number, path):
            nonlocal triggered
            kind = kind_of(*store.requests[number - 1][:2])
            triggered += kind == run.trigger
            if kind == run.trigger and triggered >= run.trigger_at:
                return 403
            if not meets(kind):
                return None
            run.met += 1
            if run.word in SIGNALS:
                run.started.wait(10)
                run.process.send_signal(getattr(signal, run.word))
                return choose.choice((None, "lost", "delay"))
            if run.word == "another's":
                run.another = choose.choice(sorted(self.expected[run.case, run.command]))
                path = place / run.another
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("another's")
                store.runs.pop(path, None)
                return None
            return run.word

        return fault

    def one(self, number):
        run = self.plan(number)
        run.wrong, run.met, run.another, run.seconds = [], 0, None, []
        home = self.new_place()
        (home / "tmp").mkdir()
        place = home / "stores" / "models" / "run"
        place.mkdir(parents=True)
        before = {}
        if run.is_forced:
            before = {path: data + b"old" for path, data in self.expected[run.case, run.command].items()
                      if pathlib.PurePath(path).name not in NEIGHBOURS}
            for path, data in before.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_bytes(data)
        store = Store(home / "stores", minds_match=run.minds_match, page=run.page)
        store.fault = self.fault_of(run, store, place)
        done = self.run_tool(run, store, home, run.is_forced)
        run.asked = len(store.requests)
        stalls = run.met if run.word in ("stall", "delay") else 0
        run.outcome = "no end" if done is None else "done" if done.returncode == 0 else "refused"
        if done is not None:
            self.judge(run, store, done, before, tree(place))
        self.run_again(run, store, home, place)
        run.seconds = run.seconds[0] if run.seconds else LONGEST_RUN
        if run.seconds > LONGEST_WAIT + LONGEST_STALL * stalls:
            run.wrong.append(f"took {run.seconds:.0f} s")
        if left := [path.name for path in (home / "tmp").iterdir()]:
            run.wrong.append(f"left: {left}")
        shutil.rmtree(home)
        return run

    def run_tool(self, run, store, home, is_forced):
        """The finished run, or None if it is not finished after 5 minutes."""
        tool, *words = filled(run.command, self.sources[run.case], "s3://models/run/out")
        program = pathlib.Path(os.environ["DSCKPT_BIN"]) / tool
        words = [*words, "--s3-requests", str(run.requests), *(["--force"] if is_forced else [])]
        run.started = threading.Event()
        with serving(store) as endpoint:
            begin = time.monotonic()
            run.process = subprocess.Popen([program, *map(str, words)], text=True, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE,
                                           env={**os.environ, **environment(endpoint), "TMPDIR": str(home / "tmp")})
            run.started.set()
            try:
                said = run.process.communicate(timeout=LONGEST_RUN)
            except subprocess.TimeoutExpired:
                run.wrong.append("has not ended")
                run.process.kill()
                run.process.communicate()
                return None
            run.seconds.append(time.monotonic() - begin)
        return subprocess.CompletedProcess(words, run.process.returncode, *said)

    def judge(self, run, store, done, before, there):
        run.status, run.errors = done.returncode, done.stderr
        expected = self.expected[run.case, run.command]
        if SECRET in done.stdout + done.stderr or KEY in done.stdout + done.stderr:
            run.wrong.append("a key is said")
        is_killed = done.returncode == -signal.SIGKILL
        markers = {path: data for path, data in there.items() if MARKER in path}
        files = {path: data for path, data in there.items() if path not in markers}
        for path, data in markers.items():
            if not is_killed and f"s3://models/run/{path}" not in done.stderr:
                run.wrong.append(f"{path} is left and not named")
        for upload in store.uploads.values():
            if not any(f'"{upload.name.removeprefix("/models/")}"'.encode() in data for data in markers.values()):
                run.wrong.append(f"an upload of {upload.name} is left, and no marker has it")
        for last in LAST:
            ends = [path for path in files if pathlib.PurePath(path).name == last and files[path] == expected[path]]
            earlier = {path: data for path, data in expected.items() if path != "latest_universal" and path not in ends}
            if ends and not earlier.items() <= files.items() and run.another is None:
                run.wrong.append(f"{last} is there before all else")
        if done.returncode == 0:
            if run.another in files:  # it came after ours
                files[run.another] = expected[run.another]
            if files != expected:
                run.wrong.append("different bytes than from a disk")
            return
        if is_killed:
            return
        for path in sorted(set(files) | set(before)):
            is_another = files.get(path) == b"another's"
            if files.get(path) != before.get(path) and not is_another and \
                    not re.search(re.escape(f"s3://models/run/{path}") + r"(?![\w./-])", done.stderr):
                run.wrong.append(f"{path} is {'there' if path in files else 'gone'}, and not named")
        if run.another and run.minds_match and files.get(run.another) != b"another's":
            run.wrong.append("another's object is gone")
        status = {4, 2} if run.word in (412, "another's", "wrong form") else {4}
        if run.word in SIGNALS:
            status = {4, 130} if run.trigger else {130}
        if done.returncode not in status or (done.returncode != 130 and len(MESSAGE.findall(done.stderr)) != 1):
            run.wrong.append(f"no message of its own, status {done.returncode}")
        if not run.trigger and (not run.met or (run.kind == "once" and run.word in PASSING)):
            run.wrong.append("gave up where it could go on")

    def run_again(self, run, store, home, place):
        """The same without a fault."""
        store.fault, store.minds_match = lambda number, path: None, True
        there = tree(place)
        markers = [path for path in there if MARKER in path]
        is_forced = len(markers) < len(there)
        done = self.run_tool(run, store, home, is_forced)
        if done is None:
            return
        if done.returncode != 0:
            run.wrong.append(f"cannot be made again: {done.stderr}")
            return
        for path in markers:
            if f"removed s3://models/run/{path} and " not in done.stderr:
                run.wrong.append(f"{path} is not swept: {done.stderr}")
        if store.uploads:
            run.wrong.append("uploads are not swept")
        if tree(place) != self.expected[run.case, run.command]:
            run.wrong.append("made again, it is not right")


def describe(run):
    return "\n".join([f"run {run.number}: {'; '.join(run.wrong)}",
                      f"    {' '.join(run.command)} of {run.case}{' --force' if run.is_forced else ''}, {run.word} "
                      f"({run.kind}, {run.request or 'any'}, {run.chance if run.kind == 'often' else run.at}"
                      f"{f', 403 of {run.trigger} {run.trigger_at}' if run.trigger else ''}) "
                      f"met {run.met} times in {run.asked} requests, {run.requests} at once, "
                      f"{'' if run.minds_match else 'no conditions, '}{run.outcome}, {run.seconds:.1f} s",
                      *(f"    {line}" for line in getattr(run, "errors", "").splitlines())])


if __name__ == "__main__":
    bucket_faults.main(__doc__, Campaign, WORDS, describe)
