"""A rank that was suspended while others did its work, and then goes on, changes no byte of what they have committed.

Rank 1 of two is stopped in the middle of a run with --resume. This happens at one of its calls of the system
(support/fail_call.cpp), or at some moment. Rank 0 does its work and commits, or is killed, and the same command
goes on without them. Rank 1 wakes when all is committed, or while that is at work; sometimes it is killed right
after.

SUSPENSIONS=N makes so many runs of each command, SEED=TEXT other ones. A run is made of the seed, the command and its
number.
"""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import ranks

SUSPENSIONS = int(os.environ.get("SUSPENSIONS", "3"))
SEED = os.environ.get("SEED", "1")
AT_ONCE = 12  # most of their time they wait
RANK_TIMEOUT = 2
LONGEST = 60
LIBRARIES = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "lib"
CASE = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "checkpoints" / "z3_fp32_full_w8" / "ckpt"
# How often a rank is stopped at a call of that kind: where files are made and get bytes, more often.
CALLS = ["write"] * 5 + ["open"] * 5 + ["fallocate", "close", "rename", "fsync", "unlink"]


def write_safetensors(path, tensors):
    """`tensors`: name -> float32 values as bytes."""
    header, end = {}, 0
    for name, values in tensors.items():
        header[name] = {"dtype": "F32", "shape": [len(values) // 4], "data_offsets": [end, end + len(values)]}
        end += len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def write_weights(folder):
    """Some 20 MB in tensors of all sizes, so that a checksum lies in nearly every unit of 256 KiB."""
    values = random.Random(SEED)
    tensors = {}
    for i in range(90):
        tensors[f"layer.{i}.weight"] = values.randbytes(4 * values.randrange(1, 110_000))
        tensors[f"layer.{i}.bias"] = values.randbytes(4 * values.randrange(1, 500))
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors)


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in folder.rglob("*")}


class Command:
    """`weights` or a small checkpoint is its input; `rate` slows down the run that is disturbed, to a second or two."""

    def __init__(self, source, rate, *words, into="out"):
        self.source, self.rate, self.words, self.into = source, rate, words, into

    def __str__(self):
        return " ".join(self.words)

    def filled(self, home):
        return ranks_words(self.words, self.source, home / "place" / self.into)

    def start(self, home, *options, variables=None):
        tool, *rest = self.filled(home)
        return subprocess.Popen([ranks.binary(tool), *rest, "--resume", "--save-every", "0", *options],
                                env={**os.environ, **(variables or {})}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")


def ranks_words(words, source, output):
    return [{"IN": str(source), "OUT": str(output)}.get(word, word) for word in words]


def state_of(process):
    """The letter that Linux has for it; nothing once it has ended."""
    try:
        return pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


def is_stopped(process):
    return state_of(process) in ("T", "t")


class SuspendedRanksTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        if not (LIBRARIES / "libfail_call.so").exists():  # sanitizers want to be loaded first
            raise unittest.SkipTest("this build has no support/fail_call.cpp")
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-suspended-")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name).resolve()
        cls.weights = cls.root / "weights"
        write_weights(cls.weights)

    def new_home(self):
        home = pathlib.Path(tempfile.mkdtemp(dir=self.root))
        (home / "place").mkdir()
        return home

    def two_ranks(self, command, home, shim, *options):
        # A rank that was stopped before it had joined is not to join the next group.
        group = {"DSCKPT_GROUP_SIZE": "2", "DSCKPT_GROUP_DIR": tempfile.mkdtemp(dir=home)}
        shim = {"LD_PRELOAD": str(LIBRARIES / "libfail_call.so"),
                **{f"FAIL_{key.upper()}": str(value) for key, value in shim.items()}}
        return [command.start(home, *options, variables={**group, "DSCKPT_GROUP_RANK": str(rank),
                                                         **(shim if rank else {})}) for rank in range(2)]

    def calls_of(self, command):
        """How often rank 1 makes each kind of call."""
        home = self.new_home()
        for process in self.two_ranks(command, home, {"counts": home / "counts"}):
            _, said = process.communicate(timeout=LONGEST)
            self.assertEqual(process.returncode, 0, said)
        counts = {kind: int(count) for kind, count in map(str.split, (home / "counts").read_text().splitlines())}
        shutil.rmtree(home)
        return counts

    def expected_of(self, command):
        home = self.new_home()
        process = command.start(home)
        _, said = process.communicate(timeout=LONGEST)
        self.assertEqual(process.returncode, 0, said)
        expected = tree(home / "place")
        shutil.rmtree(home)
        return expected

    def suspend(self, choose, command, calls, home):
        """Starts two ranks and stops the second. Returns it. None if it was done before."""
        kind = choose.choice([kind for kind in CALLS if calls.get(kind)])
        # Most calls come when its share is begun.
        at = choose.randint(1, max(1, int(calls[kind] * choose.choice((0.3, 1)))))
        at_call = choose.random() < 0.7
        shim = {"call": kind, "at": at, "errno": -2} if at_call else {}
        options = ["--rank-timeout", str(RANK_TIMEOUT), "--threads", str(choose.choice((1, 2, 8)))]
        if not at_call:
            options += ["--limit-rate", command.rate]
        first, second = self.two_ranks(command, home, shim, *options)
        moment = choose.uniform(0, 2)
        begin = time.monotonic()
        while second.poll() is None and not is_stopped(second):
            if not at_call and time.monotonic() - begin > moment:
                second.send_signal(signal.SIGSTOP)
                break
            self.assertLess(time.monotonic() - begin, LONGEST)
            time.sleep(0.002)
        if is_stopped(second) and choose.random() < 0.6:
            first.kill()
        _, said = first.communicate(timeout=LONGEST)
        self.assertIn(first.returncode, (0, -signal.SIGKILL), said)
        if second.poll() is not None:
            second.communicate()
            return None
        return second

    def go_on(self, choose, command, home, sleeper, files):
        """The same command once more, by one or two, and the rank that slept: when it wakes is left to `choose`."""
        wakes = choose.choice(("after", "after", "midway", "at the end"))
        slow = [] if wakes == "after" else ["--limit-rate", command.rate]
        others = ([command.start(home, *slow)] if choose.random() < 0.7 else
                  self.two_ranks(command, home, {}, *slow))
        if wakes == "midway":
            time.sleep(choose.uniform(0, 1.5))
        elif wakes == "at the end":  # of several files
            while others[0].poll() is None and self.files_done(home) < files - 1:
                time.sleep(0.002)
        if wakes != "after":
            sleeper.send_signal(signal.SIGCONT)
            if choose.random() < 0.7:
                time.sleep(choose.uniform(0, 0.01))
                sleeper.kill()
        try:
            said = [process.communicate(timeout=LONGEST)[1] for process in others]
            # Or all was over before.
            self.assertTrue(not any(process.returncode for process in others) or "exists already" in said[0], said)
        finally:
            sleeper.send_signal(signal.SIGCONT)
        sleeper.communicate(timeout=LONGEST)

    @staticmethod
    def files_done(home):
        """How many files have something in them, of all in the staging folders."""
        try:
            return sum(path.is_file() and path.stat().st_size > 0
                       for path in home.glob("place/**/.dsckpt-staging-*/files*/**/*"))
        except FileNotFoundError:  # they have just got their final names
            return 0

    def one(self, command, expected, calls, number):
        choose = random.Random(f"{SEED} {command} {number}")
        home = self.new_home()
        sleeper = self.suspend(choose, command, calls, home)
        if sleeper is None:
            shutil.rmtree(home)
            return None
        self.go_on(choose, command, home, sleeper, len([path for path, content in expected.items() if content]))
        now = tree(home / "place")
        wrong = []
        for path in sorted(set(now) | set(expected)):
            if path not in now or path not in expected:
                wrong.append(f"{path} is {'there' if path in now else 'not there'}")
            elif now[path] != expected[path]:
                old, new = expected[path], now[path]
                differ = [i for i in range(min(len(old), len(new))) if old[i] != new[i]]
                wrong.append(f"{path}: {len(new)} of {len(old)} bytes, {len(differ)} others: {differ[:8]}")
        shutil.rmtree(home)
        return wrong

    def test_no_byte_changes(self):
        commands = [
            Command(self.weights, "16MB", "zero-to-fp32", "IN", "OUT"),
            Command(self.weights, "16MB", "zero-to-fp32", "IN", "OUT", "--io", "direct"),
            Command(self.weights, "16MB", "zero-to-fp32", "IN", "OUT", "--max-shard-size", "9MB", into=""),
            Command(self.weights, "16MB", "zero-to-fp32", "IN", "OUT", "--safe-serialization"),
            Command(self.weights, "16MB", "zero-to-fp32", "IN", "OUT", "--zstd", "--max-shard-size", "4MB"),
            Command(CASE, "150KB", "ckpt-pack", "pack", "IN", "OUT"),
            Command(CASE, "60KB", "reshard", "IN", "OUT", "--dp", "3"),
            Command(CASE, "150KB", "to-universal", "IN", "OUT"),
        ]
        suspended = 0
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            runs = {}
            for command in commands:
                expected, calls = self.expected_of(command), self.calls_of(command)
                for number in range(SUSPENSIONS):
                    runs[str(command), number] = pool.submit(self.one, command, expected, calls, number)
            for (command, number), run in runs.items():
                with self.subTest(command=command, number=number, seed=SEED):
                    wrong = run.result()
                    suspended += wrong is not None
                    self.assertEqual(wrong or [], [])
        # Others were done before the moment came.
        self.assertGreater(suspended, 0)
        if os.environ.get("SUSPENSIONS"):
            print(f"{suspended} of {len(runs)} ranks were suspended")


if __name__ == "__main__":
    unittest.main()
