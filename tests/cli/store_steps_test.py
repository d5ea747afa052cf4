"""Conversions in steps into an object store: the bytes of one process, whoever is lost, and nothing else there.

STEPS_ROUNDS=N takes so many rounds of the campaign; STEPS_SEED chooses them.
"""
import os
import random
import signal
import time
import unittest

import tools
from bucket_output_test import BucketOutputTest, tree
from cli_common import STAGING
from ranks import Ranks
from step_processes import STEPS, StepProcesses
from tools import filled

ROUNDS = int(os.environ.get("STEPS_ROUNDS", "8"))
SEED = int(os.environ.get("STEPS_SEED", "1"))
COMMANDS = [["zero-to-fp32", "IN", "OUT"], ["zero-to-fp32", "IN", "OUT", "--safe-serialization"],
            ["zero-to-fp32", "IN", "OUT", "--zstd", "--max-shard-size", "3MB", "--verify-output"],
            ["to-dcp", "IN", "OUT", "--dp", "3"], ["to-universal", "IN", "OUT"], ["reshard", "IN", "OUT", "--dp", "3"],
            ["ckpt-pack", "pack", "IN", "OUT", "--sha256"]]

setUpModule = tools.skip_without_object_stores


class StoreStepsTest(StepProcesses, BucketOutputTest):

    def large(self, elements=8 << 20):
        return super().large(elements)

    def words_to_plan(self, command, source, url, folder):
        return [*filled(command, source, url), "--emit-plan", "--plan-in", folder, "--portions", "9"]

    def plan(self, command, source, url="s3://models/new"):
        """The folder that was given; the tool prints the one in it."""
        folder = self.new_path("plan")
        done = self.tool(*self.words_to_plan(command, source, url, folder))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines()[-1], f"{folder}/{STAGING}resume")
        return folder

    def alone(self, command, source):
        """The files that one process makes in a folder and beside it; None if it refuses."""
        out = self.new_path("place") / "out"
        out.parent.mkdir()
        done = self.tool(*filled(command, source, out))
        return {path.replace("out/", "new/", 1): data for path, data in tree(out.parent).items()} \
            if done.returncode == 0 else None

    def written(self):
        return tree(self.bucket)

    def empty_the_bucket(self):
        for path in sorted(self.bucket.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    def assert_written(self, store, expected):
        written = {path: b"new" if path == "latest_universal" else data for path, data in self.written().items()}
        expected = {path: b"new" if path == "latest_universal" else data for path, data in expected.items()}
        self.assertEqual(set(written), set(expected))
        self.assertTrue(written == expected, "other bytes")
        self.assertEqual(store.uploads, {})


class SameBytesTest(StoreStepsTest):

    def assert_same(self, store, command, source, workers, at_once):
        expected = self.alone(command, source)
        if expected is None:
            return 0
        self.empty_the_bucket()
        folder = self.plan(command, source)
        self.assertEqual([path for path in self.written() if STAGING not in path], [])
        words = [["dsckpt", "work", folder, "--share", f"{number}/{workers}"] for number in range(workers)]
        if at_once:
            for each in [self.start(*each) for each in words]:
                self.finish(each)
        for each in words[:0 if at_once else workers]:
            done = self.tool(*each, "--only-share")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([path for path in self.written() if STAGING not in path], [])
        self.assertEqual(self.state(folder)["state"], "complete")
        store.writes.clear()
        self.run_step("commit", folder)
        self.assert_written(store, expected)
        self.assertEqual([path.name for path in folder.iterdir()], ["committed"])
        return 1

    def test_any_number_of_workers_makes_the_bytes_of_one_process(self):
        compared = 0
        with self.store() as store:
            for number, case in enumerate(tools.all_cases()[::12]):
                for index, command in enumerate(COMMANDS):
                    if (number + index) % 3:
                        continue
                    workers = 1 + (number + index) % 3
                    with self.subTest(case=case.name, command=command, workers=workers):
                        compared += self.assert_same(store, command, case.load_dir, workers, (number + index) % 2 == 0)
        self.assertGreater(compared, 8)

    def test_one_object_of_many_portions(self):
        source = self.large()
        with self.store() as store:
            for number, command in enumerate(COMMANDS[:5]):
                with self.subTest(command=command):
                    self.assertEqual(self.assert_same(store, command, source, 1 + number % 3, number % 2 == 0), 1)
                    # The commit sends only parts that lie on both sides of a cut, or hold checksums of other parts.
                    sent = sum("partNumber" in target for _, target in store.writes)
                    self.assertLessEqual(sent, 10)

    def test_nothing_is_sent_twice(self):
        with self.store() as store:
            folder = self.plan(COMMANDS[0], self.large())
            self.run_step("work", folder)
            self.run_step("commit", folder)
            parts = [target for _, target in store.writes if "partNumber=" in target]
            self.assertEqual(len(parts), len(set(parts)))

    def test_processes_of_one_command(self):
        source = self.large()
        expected = self.alone(COMMANDS[0], source)
        with self.store() as store:
            words = [*filled(COMMANDS[0], source, "s3://models/new"), "--plan-in", self.new_path("plan")]
            later = [self.start(*words, "--share", f"{number}/3") for number in (2, 1)]
            time.sleep(0.3)
            self.finish(self.start(*words, "--share", "0/3"))
            for each in later:
                self.finish(each)
            self.assert_written(store, expected)
            without = self.tool(*words[:-2], "--share", "1/3")
            self.assertEqual(without.returncode, 2)
            self.assertIn("--plan-in DIR", without.stderr)

    def test_ranks_of_a_launcher(self):
        source = self.large()
        for command in COMMANDS[:1] + COMMANDS[3:5]:
            expected = self.alone(command, source)
            self.empty_the_bucket()
            with self.subTest(command=command), self.store() as store:
                group = Ranks(3, filled(command, source, "s3://models/new"), self.root, self.environment)
                done = group.wait()
                self.assertEqual([status for status, _, _ in done], [0, 0, 0], done)
                self.assert_written(store, expected)


class RepeatedTest(StoreStepsTest):
    COMMAND = COMMANDS[0]

    def test_each_step_may_be_called_again(self):
        source = self.large()
        expected = self.alone(self.COMMAND, source)
        with self.store() as store:
            folder = self.plan(self.COMMAND, source)
            again = self.tool(*self.words_to_plan(self.COMMAND, source, "s3://models/new", folder))
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertIn("was planned before", again.stderr)
            other = self.tool(*self.words_to_plan([*self.COMMAND, "--dtype", "bf16"], source, "s3://models/new",
                                                  folder))
            self.assertEqual(other.returncode, 2)
            self.assertIn("something else is planned there", other.stderr)
            for _ in range(2):
                self.run_step("work", folder)
                self.assertEqual(self.state(folder)["state"], "complete")
            for _ in range(2):
                self.run_step("commit", folder)
                self.run_step("work", folder)
                self.assertEqual(self.state(folder)["state"], "committed")
                self.run_step("abandon", folder)
                self.assert_written(store, expected)

    def test_commit_does_what_is_left(self):
        source = self.large()
        expected = self.alone(self.COMMAND, source)
        with self.store() as store:
            for done in (0, 1):
                self.empty_the_bucket()
                folder = self.plan(self.COMMAND, source)
                for number in range(done):
                    self.run_step("work", folder, "--share", f"{2 * number}/4", "--only-share")
                self.run_step("commit", folder)
                self.assert_written(store, expected)

    def test_abandon_leaves_nothing(self):
        source = self.large()
        with self.store() as store:
            for works in (False, True):
                folder = self.plan(self.COMMAND, source)
                self.assertEqual(len(store.uploads), 1)
                if works:
                    self.run_step("work", folder)
                self.run_step("abandon", folder)
                self.assertEqual((store.uploads, self.written()), ({}, {}))
                self.assertFalse(folder.exists())
                for step in STEPS:
                    self.assertIn("nothing is planned there", self.run_step(step, folder, status=2).stderr)

    def test_abandon_after_a_commit_that_was_killed(self):
        """Some of the objects have their names then."""
        source = self.large()
        with self.store() as store:
            folder = self.plan(COMMANDS[3], source)
            self.run_step("work", folder)
            store.delay = 0.05
            process = self.start("dsckpt", "commit", folder)
            while not any(path for path in self.written() if STAGING not in path) and process.poll() is None:
                time.sleep(0.005)
            process.kill()
            process.communicate()
            store.delay = 0
            self.run_step("abandon", folder)
            self.assertEqual((store.uploads, self.written()), ({}, {}))

    def test_existing_output(self):
        source = self.large()
        with self.store() as store:
            self.assertEqual(self.zero_to_fp32(source, "s3://models/new", "--dtype", "bf16").returncode, 0)
            before = self.written()
            refused = self.tool(*self.words_to_plan(self.COMMAND, source, "s3://models/new", self.new_path("plan")))
            self.assertEqual(refused.returncode, 2)
            self.assertIn("exists already", refused.stderr)
            folder = self.plan([*self.COMMAND, "--force"], source)
            self.run_step("work", folder)
            self.assertEqual({path: data for path, data in self.written().items() if STAGING not in path}, before)
            self.run_step("commit", folder)
            self.assert_written(store, self.alone(self.COMMAND, source))


class LostTest(StoreStepsTest):
    COMMAND = COMMANDS[0]

    def setUp(self):
        super().setUp()
        self.source = self.large()
        self.expected = self.alone(self.COMMAND, self.source)

    def test_an_upload_that_is_gone_is_sent_anew(self):
        """A lifecycle rule of the bucket may have ended it."""
        for works in ([], ["--share", "0/2", "--only-share"], ["--share", "0/1"]):
            self.empty_the_bucket()
            with self.subTest(works=works), self.store() as store:
                folder = self.plan(self.COMMAND, self.source)
                if works:
                    self.run_step("work", folder, *works)
                store.uploads.clear()
                self.run_step("commit", folder)
                self.assert_written(store, self.expected)

    def test_a_run_by_one_process_is_resumed(self):
        """The same command goes on after it was killed while it sent parts, and while it published them."""
        folder = self.new_path("plan")
        words = [*filled(COMMANDS[3], self.source, "s3://models/new"), "--resume", "--plan-in", folder,
                 "--portions", "9", "--threads", "1"]
        self.expected = self.alone(COMMANDS[3], self.source)
        with self.store() as store:
            store.delay = 0.15
            process = self.start(*words)
            while process.poll() is None and not any(folder.glob(f"{STAGING}resume/results/[0-9]")):
                time.sleep(0.005)
            process.kill()
            process.communicate()
            self.assertEqual([path for path in self.written() if STAGING not in path], [])
            sent = sum("partNumber=" in target for _, target in store.writes)
            store.writes.clear()
            process = self.start(*words)
            while process.poll() is None and not any(STAGING not in path for path in self.written()):
                time.sleep(0.005)
            process.kill()
            process.communicate()
            store.delay = 0
            self.finish(self.start(*words))
            self.assert_written(store, self.expected)
            again = sum("partNumber=" in target for _, target in store.writes)
            parts = sum(-(-len(data) // (5 << 20)) for data in self.expected.values() if len(data or b"") > 256 << 10)
            # Those of portions with a result are sent once, and others once more at most.
            self.assertLess(again, parts)
            self.assertLessEqual(sent + again, parts + 2, parts)
            self.assertEqual([path.name for path in folder.iterdir()], ["committed"])

    def test_a_part_that_somebody_has_replaced_is_sent_anew(self):
        with self.store() as store:
            folder = self.plan(self.COMMAND, self.source)
            self.run_step("work", folder)
            upload, = store.uploads.values()
            for number, (_, data) in list(upload.parts.items())[:1]:
                upload.parts[number] = "0" * 32, bytes(len(data))
            self.run_step("commit", folder)
            self.assert_written(store, self.expected)

    def test_workers_whose_upload_is_gone_say_so(self):
        with self.store() as store:
            folder = self.plan(self.COMMAND, self.source)
            store.uploads.clear()
            done = self.run_step("work", folder, status=4)
            self.assertIn("s3://models/new/pytorch_model.bin", done.stderr)
            self.run_step("abandon", folder)
            self.assertEqual(self.written(), {})

    def test_a_worker_that_wakes_up_after_the_commit(self):
        with self.store(rate=3_000_000) as store:
            folder = self.plan(self.COMMAND, self.source)
            store.writes.clear()
            late = self.start("dsckpt", "work", folder)
            while not any("partNumber" in target for _, target in store.writes) and late.poll() is None:
                time.sleep(0.005)
            late.send_signal(signal.SIGSTOP)
            store.rate = 0
            self.run_step("work", folder)
            self.run_step("commit", folder)
            self.assert_written(store, self.expected)
            late.send_signal(signal.SIGCONT)
            self.finish(late, (0, 4))
            self.assert_written(store, self.expected)

    def test_a_planner_that_was_killed_is_swept(self):
        with self.store(delay=0.1) as store:
            folder = self.new_path("plan")
            words = self.words_to_plan(self.COMMAND, self.source, "s3://models/new", folder)
            process = self.start(*words)
            while not store.uploads and process.poll() is None:
                time.sleep(0.005)
            process.kill()
            process.communicate()
            store.delay = 0
            self.assertEqual(self.tool(*words).returncode, 0)
            self.run_step("commit", folder)
            self.assert_written(store, self.expected)

    def test_another_run_leaves_a_plan_alone(self):
        with self.store() as store:
            folder = self.plan([*self.COMMAND, "--force"], self.source)
            done = self.zero_to_fp32(self.source, "s3://models/new", "--safe-serialization")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"belongs to an output that is planned in {folder}", done.stderr)
            self.assertEqual(len(store.uploads), 1)
            self.run_step("work", folder)
            self.run_step("commit", folder)
            self.assertEqual(self.written()["new/pytorch_model.bin"], self.expected["new/pytorch_model.bin"])
            self.assertEqual(store.uploads, {})

    def test_a_worker_fails(self):
        with self.store() as store:
            folder = self.plan(self.COMMAND, self.source)
            with_wrong = {**self.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
            right, self.environment = self.environment, with_wrong
            for step in ("work", "abandon"):
                done = self.run_step(step, folder, status=4)
                self.assertIn("s3://models/new", done.stderr)
                self.assertIn("hint:", done.stderr)
            self.environment = right
            self.run_step("work", folder)
            store.fault = lambda number, path: 403 if path.endswith("pytorch_model.bin") else None
            failed = self.run_step("commit", folder, status=4)
            self.assertIn("dsckpt commit continues it", failed.stderr)
            store.fault = lambda number, path: None
            self.run_step("commit", folder)
            self.assert_written(store, self.expected)

    def test_what_cannot_be(self):
        with self.store() as store:
            words = self.words_to_plan(self.COMMAND, self.source, "s3://models/new", self.new_path("plan"))
            without = self.tool(*words[:-4], "--portions", "9")
            self.assertEqual(without.returncode, 2)
            self.assertIn("--plan-in DIR", without.stderr)
            local = self.tool(*self.words_to_plan(self.COMMAND, self.source, self.new_path("out"),
                                                  self.new_path("plan")))
            self.assertEqual(local.returncode, 2)
            self.assertIn("--plan-in is for outputs in object stores", local.stderr)
            alone = self.zero_to_fp32(self.source, "s3://models/new", "--plan-in", self.new_path("plan"))
            self.assertEqual(alone.returncode, 2)
            self.assertIn("--plan-in goes with --emit-plan", alone.stderr)
            full = self.new_path("full")
            full.mkdir()
            (full / "notes.txt").write_text("")
            refused = self.tool(*self.words_to_plan(self.COMMAND, self.source, "s3://models/new", full))
            self.assertEqual(refused.returncode, 2)
            self.assertIn("holds something other than a plan", refused.stderr)
            self.assertEqual((store.uploads, self.written()), ({}, {}))


class CampaignTest(StoreStepsTest):
    """Planners, workers and committers that are killed or stopped at any time, late ones, and two at once."""
    COMMANDS = COMMANDS[:5]

    def test_the_bytes_are_the_same_whoever_is_lost(self):
        source = self.large(4 << 20)
        expected = {}
        for number in range(ROUNDS):
            index = number % len(self.COMMANDS)
            expected.setdefault(index, self.alone(self.COMMANDS[index], source))
            with self.subTest(seed=SEED, round=number, command=self.COMMANDS[index]):
                self.empty_the_bucket()
                with self.store(rate=20_000_000) as store:
                    self.round(store, self.COMMANDS[index], source, expected[index],
                               random.Random(SEED * 100003 + number))

    def round(self, store, command, source, expected, generator):
        folder = self.new_path("plan")
        self.plan_among_losses(self.words_to_plan(command, source, "s3://models/new", folder), generator, 0.4)
        if generator.random() < 0.2:
            stopped = []
            for _ in range(2):
                self.end_at_some_time(self.start("dsckpt", generator.choice(["work", "commit"]), folder), generator,
                                      stopped, 0.4)
            self.wake(stopped)
            if self.state(folder)["state"] != "committed":
                self.run_step("abandon", folder)
                self.assertEqual((store.uploads, self.written()), ({}, {}))
                return
        stopped = self.work_among_losses(folder, generator.randrange(1, 5), generator, 0.4, (0, 2, 4))
        self.assert_written(store, expected)
        self.wake(stopped, (0, 4))
        self.run_step("work", folder)
        self.assert_written(store, expected)


if __name__ == "__main__":
    unittest.main()
