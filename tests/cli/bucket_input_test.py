"""s3://: all of testdata from a bucket, what is moved for it, and what is left when a run ends.

A tool must print and write the same as for that folder on a disk. BUCKETS=all takes every checkpoint and every
command; without it, they take turns.
"""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import cli_common
import large_checkpoint
import object_server
import tools
from bucket_case import BucketCase
from cli_common import tree

ALL = os.environ.get("BUCKETS") == "all"
TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"]).resolve()
# Each with IN for the input and OUT for the output.
CONVERSIONS = [
    ["zero-to-fp32", "IN", "OUT"],
    ["to-universal", "IN", "OUT"],
    ["reshard", "IN", "OUT", "--dp", "2"],
    ["to-dcp", "IN", "OUT", "--dp", "2"],
    ["ckpt-pack", "pack", "IN", "OUT"],
    ["zero-to-fp32", "IN", "OUT", "--safe-serialization", "--max-shard-size", "20KB", "--dtype", "bf16"],
    ["ckpt-pack", "strip", "IN", "OUT", "--keep", "weights"],
]
LOOKS = [
    ["ckpt-inspect", "IN"],
    ["ckpt-inspect", "list", "IN"],
    ["ckpt-inspect", "verify", "IN", "--finite"],
    ["ckpt-inspect", "stats", "IN", "--states"],
    ["ckpt-inspect", "scan", "IN"],
    ["zero-to-fp32", "IN", "OUT", "--dry-run"],
]
COMMANDS = CONVERSIONS + LOOKS
PARAMS = 400_000_000 if ALL else 20_000_000

setUpModule = tools.skip_without_object_stores


def inputs(half=None):
    """Paths below testdata/ of everything that is a checkpoint, or a file of one. `half`, 0 or 1: only this half of
    them, without BUCKETS=all. Stores are read in tests of the first half, and written in those of the second."""
    found = []
    for case in sorted(TESTDATA.glob("*/*/case.json")):
        folder = json.loads(case.read_text()).get("load_dir", "ckpt")
        found.append((case.parent / folder).relative_to(TESTDATA))
    found += [path.relative_to(TESTDATA) for path in sorted((TESTDATA / "formats").iterdir())]
    every = [str(path) for path in found] + ["dcp/nested"]
    return every if ALL or half is None else every[half::2]


class BucketInputTest(BucketCase):

    def secret_free(self, *texts):
        for text in texts:
            for secret in (object_server.KEY, object_server.SECRET, object_server.TOKEN, "IMDS-TOKEN-456",
                           "CONTAINER-TOKEN-789"):
                self.assertNotIn(secret, text)


class SameTest(BucketInputTest):

    def test_all_of_testdata(self):
        compared = succeeded = 0
        with self.serve(TESTDATA.parent, page=7):
            for number, path in enumerate(inputs(0)):
                # Without BUCKETS=all one command each, so that all have had their turn.
                for command in COMMANDS if ALL else [COMMANDS[number % len(COMMANDS)]]:
                    with self.subTest(path=path, command=command):
                        here = self.outcome(command, TESTDATA / path)
                        url = f"s3://{TESTDATA.name}/{path}"
                        there = self.outcome(command, url)
                        self.assertEqual(there[:2], here[:2])
                        self.assertEqual(set(there[2]) ^ set(here[2]), set())
                        self.assertTrue(there[2] == here[2], "other bytes")
                        compared += 1
                        succeeded += here[0] == 0
        self.assertGreater(succeeded, compared // 2)

    def test_unpack(self):
        buckets = self.new_path("buckets")
        packed = buckets / "packs" / "z3"
        packed.parent.mkdir(parents=True)
        source = tools.case_named("z3_fp32_full_w2").load_dir
        self.assertEqual(self.tool("ckpt-pack", "pack", source, packed).returncode, 0)
        with self.serve(buckets):
            for command in (["ckpt-pack", "unpack", "IN", "OUT"], ["ckpt-inspect", "verify", "IN"],
                            ["zero-to-fp32", "IN", "OUT"]):
                here = self.outcome(command, packed)
                self.assertEqual(here[0], 0)
                there = self.outcome(command, "s3://packs/z3")
                self.assertEqual(there[:2], here[:2])
                self.assertTrue(there[2] == here[2])

    def test_like(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        like = tools.case_named("z2_bf16_w4").load_dir
        with self.serve(TESTDATA.parent):
            written = []
            for word in (like, f"s3://{TESTDATA.name}/{like.relative_to(TESTDATA)}"):
                output = self.new_path() / "out"
                done = self.tool("reshard", source, output, "--dp", "2", "--like", word)
                self.assertEqual(done.returncode, 0, done.stderr)
                written.append(tree(output))
            self.assertTrue(written[0] == written[1])


class MovedTest(BucketInputTest):
    """For a checkpoint that is large beside its metadata."""

    def large(self):
        """The buckets that it is in, and where."""
        buckets = self.new_path("buckets")
        folder = buckets / "models" / "large"
        folder.parent.mkdir(parents=True)
        large_checkpoint.write(folder, large_checkpoint.decoder(PARAMS), 3, 4)
        return buckets, folder

    def bytes_asked_for_twice(self, store):
        by_path = {}
        for _, path, header in store.requests:
            if header:
                begin, end = map(int, header[len("bytes="):].split("-"))
                by_path.setdefault(path, []).append((begin, end + 1))
        twice = 0
        for ranges in by_path.values():
            reached = 0
            for begin, end in sorted(ranges):
                twice += max(0, min(reached, end) - begin)
                reached = max(reached, end)
        return twice

    def test_what_is_not_needed_stays(self):
        buckets, folder = self.large()
        total = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self.assertGreater(total, 100_000_000)
        with self.serve(buckets, delay=0.02) as store:
            done = self.zero_to_fp32("s3://models/large", self.new_path(), "--dry-run", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            lines = [json.loads(line)["data"] for line in done.stdout.splitlines()]
            plan = next(data for data in lines if "bytes_read" in data)
            metadata, asked = store.sent, len(store.requests)
            # Ends of files and their pickles.
            self.assertLess(metadata, 0.01 * total if ALL else 2_000_000)
            self.assertLess(asked, 40)
            store.sent = 0
            store.requests.clear()
            output = self.new_path()
            done = self.zero_to_fp32("s3://models/large", output)
            self.assertEqual(done.returncode, 0, done.stderr)
            print(f"{total:,} bytes, {plan['bytes_read']:,} needed, {metadata:,} of metadata in {asked} requests, "
                  f"{store.sent:,} moved: {store.sent / plan['bytes_read']:.4f}", file=sys.stderr)
            self.assertGreaterEqual(store.sent, plan["bytes_read"])
            self.assertLessEqual(store.sent, plan["bytes_read"] + 1.01 * metadata)
            self.assertEqual(self.bytes_asked_for_twice(store), 0)
            if PARAMS >= 400_000_000:
                self.assertLessEqual(store.sent, 1.02 * plan["bytes_read"])
            self.assertLessEqual(store.most_at_once, 32)
        local = self.new_path()
        self.assertEqual(self.zero_to_fp32(folder, local).returncode, 0)
        self.assertTrue(tree(local) == tree(output))


    def test_data_that_does_not_come_is_not_waited_for(self):
        """By who is told to stop, and where other data fails that is needed first."""
        buckets, _ = self.large()

        def is_long(number):
            _, _, header = store.requests[number - 1]
            begin, end = map(int, header[len("bytes="):].split("-")) if header else (0, 0)
            return end - begin >= 1 << 19

        def stalls(number, path):
            return "stall" if is_long(number) else None

        def fails(number, path):
            return (403 if "rank_0" in path else "stall") if is_long(number) else None

        program = pathlib.Path(os.environ["DSCKPT_BIN"]) / "zero-to-fp32"
        for fault, status, words in ((stalls, 130, ["interrupted"]),
                                     (fails, 4, ["403", "pp_rank_0_mp_rank_00_optim_states.pt: at "])):
            output = self.new_path()
            with self.subTest(status), self.serve(buckets, fault=fault) as store:
                process = subprocess.Popen([program, "s3://models/large", output], env=self.environment, text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                while store.at_once < 12 and process.poll() is None:
                    time.sleep(0.01)
                begin = time.monotonic()
                if fault is stalls:
                    process.send_signal(signal.SIGINT)
                said = process.communicate(timeout=30)
                self.assertLess(time.monotonic() - begin, 3)
                self.assertEqual(process.returncode, status, said)
                for word in words:
                    self.assertIn(word, said[1])
                self.assertFalse(output.exists())


class EndTest(BucketInputTest):
    """Nothing is left, and nothing is said that should not be."""

    CASE = f"s3://{TESTDATA.name}/checkpoints/z2_fp32_full_w3/ckpt"

    @contextlib.contextmanager
    def stalled(self, *options):
        """A run whose shards do not come: the process, and where it was to write."""
        output = self.new_path()
        is_asked = threading.Event()

        def fault(number, path):
            if path.endswith("optim_states.pt"):
                is_asked.set()
                return "stall"
            return None

        with self.serve(TESTDATA.parent, fault=fault):
            program = pathlib.Path(os.environ["DSCKPT_BIN"]) / "zero-to-fp32"
            process = subprocess.Popen([program, self.CASE, output, *options], env=self.environment, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                self.assertTrue(is_asked.wait(20))
                time.sleep(0.1)
                yield process, output
            finally:
                process.kill()
                process.communicate()

    def assert_nothing_left(self, output):
        end = time.monotonic() + 3
        while list(self.tmp.iterdir()) and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(list(self.tmp.iterdir()), [])
        self.assertFalse(output.exists())

    def test_signals_are_heard_while_nothing_comes(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            seconds = []
            while not seconds or min(seconds) > 0.5 and len(seconds) < 3:  # others may have the processors
                with self.subTest(number), self.stalled() as (process, output):
                    process.send_signal(number)
                    begin = time.monotonic()
                    said = process.communicate(timeout=20)
                    seconds.append(time.monotonic() - begin)
                    self.assertEqual(process.returncode, 130, said)
                    self.assertIn("interrupted", said[1])
                    self.secret_free(*said)
                    self.assert_nothing_left(output)
            self.assertLess(min(seconds), 0.5)

    def test_a_kill_leaves_no_stand_ins(self):
        with self.stalled() as (process, output):
            self.assertEqual(len(list(self.tmp.iterdir())), 1)
            process.kill()
            process.communicate()
            self.assert_nothing_left(output)

    def test_keys_are_in_no_process_list(self):
        with self.stalled("--json") as (process, _):
            found = 0
            for entry in pathlib.Path("/proc").iterdir():
                with contextlib.suppress(OSError):
                    if entry.name.isdigit() and os.getpgid(int(entry.name)) == os.getpgid(process.pid):
                        self.secret_free((entry / "cmdline").read_text(errors="replace"))
                        found += int(entry.name) == process.pid
            self.assertEqual(found, 1)

    def test_stand_ins_are_for_their_owner(self):
        with self.stalled():
            folder, = self.tmp.iterdir()
            self.assertEqual(folder.stat().st_mode & 0o077, 0)

    def test_refusals_say_what_to_do_and_no_keys(self):
        def without(*names, **more):
            return {**{key: value for key, value in self.environment.items() if key not in names}, **more}

        with self.serve(TESTDATA.parent):
            refusals = [
                ("a wrong secret", self.CASE, without(AWS_SECRET_ACCESS_KEY="WRONGSECRET999"), 4, "403"),
                ("an unknown key", self.CASE, without(AWS_ACCESS_KEY_ID="WRONGKEY999"), 4, "403"),
                ("a wrong token", self.CASE, without(AWS_SESSION_TOKEN="WRONGTOKEN999"), 4, "403"),
                ("no region", self.CASE, without("AWS_REGION"), 4, f"--s3-region {object_server.REGION}"),
                ("no keys", self.CASE, without("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), 4, "--s3-unsigned"),
                ("no such bucket", "s3://there-is-none/a", self.environment, 4, "404"),
                ("an empty prefix", f"s3://{TESTDATA.name}/none", self.environment, 2, "there is no such folder"),
            ]
            for what, url, variables, status, word in refusals:
                for options in ([], ["--json"]):
                    with self.subTest(what, options=options):
                        output = self.new_path()
                        done = self.zero_to_fp32(url, output, *options, env=variables)
                        self.assertEqual(done.returncode, status, done.stderr)
                        self.assertIn(word, done.stderr)
                        self.assertIn("hint: ", done.stderr)
                        self.secret_free(done.stdout, done.stderr)
                        self.assertNotIn("999", done.stdout + done.stderr)
                        self.assertNotIn(str(self.tmp), done.stdout + done.stderr)
                        self.assert_nothing_left(output)

    def test_a_server_that_is_not_there(self):
        done = self.zero_to_fp32(self.CASE, self.new_path(), env={
            **self.environment, **object_server.environment("http://127.0.0.1:1")})
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("--s3-endpoint", done.stderr)
        self.secret_free(done.stderr)

    def test_changed_objects_are_refused(self):
        for minds_match in (True, False):
            numbers = []

            def fault(number, path):
                if path.endswith("optim_states.pt"):
                    numbers.append(number)
                    return "changed" if len(numbers) == 4 else None
                return None

            with self.subTest(minds_match), self.serve(TESTDATA.parent, fault=fault, minds_match=minds_match):
                output = self.new_path()
                # Its files are small: verify reads all of each again.
                done = self.zero_to_fp32(self.CASE, output, "--json", "--s3-requests", "1")
                if len(numbers) < 4:
                    continue
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("changed while it was being read", done.stderr)
                self.assertIn("optim_states.pt", done.stderr)
                self.assert_nothing_left(output)


if __name__ == "__main__":
    cli_common.main()
