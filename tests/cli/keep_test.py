"""ckpt-pack keep: each complete checkpoint of a training comes to a place, whole, and only what is safe there goes.

KEEP_ROUNDS=N takes so many rounds of the campaign; KEEP_SEED chooses them.
"""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import threading
import time
import unittest

import cli_common
import object_server
import tools
from bucket_case import BucketCase
from cli_common import STAGING, CliTest, flip, record_extent, set_step, tree

ROUNDS = int(os.environ.get("KEEP_ROUNDS", "12"))
SEED = int(os.environ.get("KEEP_SEED", "1"))
ZERO = "z2_bf16_w2"
TRAINER = "hf_trainer_gpt2_z2_bf16_w2"
MARK = ".dsckpt-keep"
RECORD = ".dsckpt-keep.json"


def files(folder):
    """path -> bytes of files, but for what keep has put there."""
    return {path: data for path, data in tree(folder).items() if data is not None and MARK not in path}


class KeepCase(CliTest):
    """A run, a place beside it, and templates of saves: folders by step."""

    def setUp(self):
        super().setUp()
        self.run_folder, self.place = self.root / "run", self.root / "place"
        self.run_folder.mkdir()
        self.templates = {}

    def template(self, step, kind=ZERO, loss=None):
        """A save of that step: of ZeRO its tag's folder, of the Trainer a checkpoint-N."""
        key = step, kind, loss
        if key not in self.templates:
            folder = self.new_path("template") / (f"global_step{step}" if kind == ZERO else f"checkpoint-{step}")
            case = tools.case_named(kind)
            shutil.copytree(case.tag_folder if kind == ZERO else case.load_dir, folder)
            for path in [folder, *folder.rglob("*")]:
                path.chmod(path.stat().st_mode | 0o200)
            set_step(folder, step)
            if kind == TRAINER:
                state = json.loads((folder / "trainer_state.json").read_text())
                state["global_step"] = step
                if loss is not None:
                    state["log_history"] = [{"step": step - 1, "eval_loss": -100.0}, {"step": step, "eval_loss": loss}]
                (folder / "trainer_state.json").write_text(json.dumps(state))
            self.templates[key] = folder
        return self.templates[key]

    def save(self, step, kind=ZERO, run=None, latest=True, loss=None):
        run = run or self.run_folder
        template = self.template(step, kind, loss)
        shutil.copytree(template, run / template.name)
        self.age(run / template.name, step)
        if kind == ZERO and latest:
            (run / "latest").write_text(template.name)
        return run / template.name

    def mount(self, options):
        self.place.mkdir(exist_ok=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.place], capture_output=True)
        self.addCleanup(subprocess.run, ["umount", "-q", self.place], capture_output=True)
        return done.returncode == 0

    def age(self, folder, step):
        """As if it was saved a while ago."""
        past = time.time() - 3600 + step
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (past, past), follow_symlinks=False)

    def keep(self, *options, status=0, once=True, run=None, place=None):
        done = self.tool("ckpt-pack", "keep", run or self.run_folder, "--to", place or self.place,
                         *(["--once"] if once else []), "--json", *options)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.said = done
        return [line["data"] for line in map(json.loads, done.stdout.splitlines()) if line["type"] == "keep"]

    def events(self, found, event):
        return [each.get("name") for each in found if each["event"] == event]

    def kept(self, found):
        return sorted(self.events(found, "kept"))

    def names(self, folder):
        return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))

    def start(self, *options, output=subprocess.DEVNULL, place=None):
        program = pathlib.Path(os.environ["DSCKPT_BIN"]) / "ckpt-pack"
        process = subprocess.Popen([program, "keep", self.run_folder, "--to", place or self.place, *options], text=True,
                                   stdout=output, stderr=subprocess.DEVNULL, env=self.environment)
        self.addCleanup(process.kill)
        return process

    def wait_for(self, condition, seconds=30):
        until = time.time() + seconds
        while not condition():
            self.assertLess(time.time(), until, "nothing has come of it")
            time.sleep(0.02)

    def assert_whole(self, name, step, kind=ZERO, place=None):
        """PLACE/NAME has the bytes of the save."""
        there = files((place or self.place) / name)
        template = self.template(step, kind)
        expected = files(template)
        if kind == ZERO:
            expected = {f"{template.name}/{path}": data for path, data in expected.items()}
            expected["latest"] = template.name.encode()
            there = {path: data for path, data in there.items() if path == "latest" or "/" in path}
        self.assertEqual(set(there), set(expected))
        self.assertTrue(there == expected, "other bytes")
        self.assertTrue(((place or self.place) / name / RECORD).exists())


class KeepTest(KeepCase):

    def test_each_complete_checkpoint_comes_to_the_place(self):
        for step in (10, 20, 30):
            self.save(step)
        (self.run_folder / "notes.txt").write_text("of the run")
        os.utime(self.run_folder / "notes.txt", (1, 1))
        (self.run_folder / "train.log").write_text("is written to all the time")
        (self.run_folder / "logs").mkdir()
        before = tree(self.run_folder)
        found = self.keep()
        self.assertEqual(self.events(found, "kept"), ["global_step30", "global_step20", "global_step10"])
        self.assertEqual([each["step"] for each in found if each["event"] == "kept"], [30, 20, 10])
        for step in (10, 20, 30):
            self.assert_whole(f"global_step{step}", step)
            self.assertEqual((self.place / f"global_step{step}" / "notes.txt").read_text(), "of the run")
            self.assertFalse((self.place / f"global_step{step}" / "train.log").exists())
            done = self.tool("ckpt-inspect", "verify", self.place / f"global_step{step}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual({path: data for path, data in tree(self.run_folder).items() if MARK not in path}, before)
        again = self.keep("--last", "3")
        self.assertEqual([each["event"] for each in again], ["looked"])
        self.assertEqual(tree(self.run_folder).keys() - before.keys(),
                         {path.name for path in self.run_folder.glob(MARK + "*")})
        self.assertEqual([path for path in self.root.rglob(STAGING + "*")], [])

    def test_a_trainers_folder_comes_with_all_that_is_in_it(self):
        for step in (100, 200):
            self.save(step, TRAINER)
        self.assertEqual(self.kept(self.keep()), ["checkpoint-100", "checkpoint-200"])
        for step in (100, 200):
            self.assert_whole(f"checkpoint-{step}", step, TRAINER)

    def test_what_is_half_written_is_left_for_the_next_look(self):
        def shard_is_missing(folder):
            next(folder.glob("*rank_1*optim*")).unlink()

        def shard_is_cut(folder):
            path = next(folder.glob("*rank_1*optim*"))
            with open(path, "r+b") as file:
                file.truncate(path.stat().st_size // 2)

        def latest_is_older(folder):
            (folder.parent / "latest").write_text("global_step10")

        def something_has_just_changed(folder):
            os.utime(next(folder.iterdir()))

        for half, event in ((shard_is_missing, "damaged"), (shard_is_cut, "damaged"),
                            (latest_is_older, "unfinished"), (something_has_just_changed, "unfinished")):
            with self.subTest(half.__name__):
                shutil.rmtree(self.run_folder)
                shutil.rmtree(self.place, ignore_errors=True)
                self.run_folder.mkdir()
                self.save(10)
                half(self.save(20))
                if half is not something_has_just_changed:
                    self.age(self.run_folder / "global_step20", 20)
                found = self.keep("--last", "0", status=1 if event == "damaged" else 0)
                self.assertEqual(self.kept(found), ["global_step10"])
                self.assertEqual(self.events(found, event), ["global_step20"])
                self.assertEqual(self.names(self.place), ["global_step10"])
                self.assertIn("global_step20", self.names(self.run_folder))
                shutil.rmtree(self.run_folder / "global_step20")
                self.save(20)
                self.assertEqual(self.kept(self.keep()), ["global_step20"])

    def test_a_trainers_folder_is_complete_once_its_state_and_latest_are_there(self):
        self.save(100, TRAINER)
        for name in ("trainer_state.json", "latest"):
            folder = self.save(200, TRAINER)
            (folder / name).unlink()
            self.age(folder, 200)
            found = self.keep()
            self.assertEqual(self.events(found, "unfinished"), ["checkpoint-200"], name)
            self.assertNotIn("checkpoint-200", self.names(self.place))
            shutil.rmtree(folder)
        folder = self.save(200, TRAINER)
        folder = folder.rename(self.run_folder / "tmp-checkpoint-200")
        self.assertEqual([each["event"] for each in self.keep()], ["looked"])
        folder.rename(self.run_folder / "checkpoint-200")
        self.assertEqual(self.kept(self.keep()), ["checkpoint-200"])

    def test_what_is_damaged_is_neither_kept_nor_removed(self):
        for step in (10, 20, 30):
            self.save(step)
        shard = next((self.run_folder / "global_step20").glob("*rank_1*optim*"))
        times = shard.stat().st_mtime_ns
        flip(shard, record_extent(shard, "data/0")[0] + 5)
        os.utime(shard, ns=(times, times))
        found = self.keep("--last", "1", status=1)
        self.assertEqual(self.kept(found), ["global_step10", "global_step30"])
        finding, = (each for each in found if each["event"] == "damaged")
        self.assertEqual(finding["name"], "global_step20")
        self.assertIn("crc", finding["why"])
        self.assertEqual(self.names(self.run_folder), ["global_step20", "global_step30"])
        self.assertEqual(self.names(self.place), ["global_step10", "global_step30"])

    def test_what_is_packed_there_comes_back_as_it_was(self):
        for kind, step, name in ((ZERO, 10, "global_step10"), (TRAINER, 100, "checkpoint-100")):
            run, place = self.new_path("run"), self.new_path("place")
            run.mkdir()
            self.save(step, kind, run)
            before = files(run)
            self.assertEqual(self.kept(self.keep("--pack=3", run=run, place=place)), [name])
            self.assertTrue([*(place / name).rglob("*.dspack")])
            self.assertEqual(self.tool("ckpt-inspect", "verify", place / name).returncode, 0)
            shutil.rmtree(run / name)
            found = self.keep("--restore", step, once=False, run=run, place=place)
            self.assertEqual(self.events(found, "restored"), [name])
            self.assertTrue(files(run) == before)

    def test_what_is_stripped_there_has_the_weights(self):
        for kind, step, name in ((ZERO, 10, "global_step10"), (TRAINER, 100, "checkpoint-100")):
            run, place = self.new_path("run"), self.new_path("place")
            run.mkdir()
            self.save(step, kind, run)
            self.save(step + 1, kind, run)
            found = self.keep("--strip", "weights", "--last", "1", run=run, place=place)
            self.assertEqual(self.events(found, "removed"), [name])
            self.assertEqual(len(self.names(run)), 1)
            weights = self.new_path("weights"), self.new_path("weights")
            for source, output in zip((place / name, self.template(step, kind)), weights):
                self.assertEqual(self.tool("zero-to-fp32", source, output, "--safe-serialization").returncode, 0)
            self.assertTrue((weights[0] / "model.safetensors").read_bytes() ==
                            (weights[1] / "model.safetensors").read_bytes())
            self.assertLess(sum(map(len, files(place / name).values())),
                            sum(map(len, files(self.template(step, kind)).values())) * 0.7)

    def test_rules_say_what_stays(self):
        steps = (5, 10, 15, 20, 25, 30)
        for rules, stay in ((("--last", 2), {25, 30}), (("--every", 10), {10, 20, 30}), (("--last", 6), set(steps)),
                            (("--last", 1, "--every", 15), {15, 30}), (("--best", "loss"), {15, 30}),
                            (("--best", "eval_loss=max"), {10, 30}), (("--best", "nothing"), {30}),
                            (("--last", 0), set()), (("--last", 0, "--every", 25), {25}), ((), set(steps))):
            with self.subTest(rules=rules):
                run, place = self.new_path("run"), self.new_path("place")
                run.mkdir()
                for step, loss in zip(steps, (3.0, 9.0, 0.5, 2.0, 1.0, 4.0)):
                    self.save(step, TRAINER, run, loss=loss)
                found = self.keep(*rules, run=run, place=place)
                self.assertEqual(set(self.names(run)), {f"checkpoint-{step}" for step in stay})
                self.assertEqual(set(self.events(found, "removed")),
                                 {f"checkpoint-{step}" for step in set(steps) - stay})
                self.assertEqual(len(self.names(place)), len(steps))

    def test_what_latest_names_is_never_removed(self):
        for step in (10, 20, 30):
            self.save(step)
        found = self.keep("--last", "0")
        self.assertEqual(self.names(self.run_folder), ["global_step30"])
        self.assertEqual(sorted(self.events(found, "removed")), ["global_step10", "global_step20"])

    def test_what_has_changed_since_is_not_removed_and_is_kept_besides(self):
        for step in (10, 20):
            self.save(step)
        self.keep()
        first = files(self.place / "global_step10")
        state = next((self.run_folder / "global_step10").glob("mp_rank*"))
        os.utime(state, (1, 1))
        found = self.keep("--last", "1")
        self.assertEqual(self.kept(found), ["global_step10"])
        self.assertEqual(self.names(self.place), ["global_step10", "global_step10.2", "global_step20"])
        self.assertTrue(files(self.place / "global_step10") == first == files(self.place / "global_step10.2"))
        self.assertEqual(self.events(found, "removed"), ["global_step10"])

    def test_links_stay_where_they_are_and_nothing_is_followed(self):
        outside = self.new_path("outside")
        outside.mkdir()
        (outside / "precious").write_text("stays")
        self.save(10)
        self.save(20)
        linked = next((self.run_folder / "global_step10").iterdir())
        linked.with_name("link").symlink_to(linked.name)
        self.age(self.run_folder / "global_step10", 10)
        found = self.keep("--last", "1")
        self.assertEqual(self.kept(found), ["global_step10", "global_step20"])
        self.assertEqual(self.names(self.run_folder), ["global_step10", "global_step20"])
        self.save(30)
        (self.run_folder / "global_step30" / "out").symlink_to(outside)
        self.age(self.run_folder / "global_step30", 30)
        found = self.keep("--last", "1", status=1)
        self.assertEqual(self.events(found, "refused"), ["global_step30"])
        self.assertEqual((outside / "precious").read_text(), "stays")

    def test_nothing_goes_that_is_not_whole_in_the_place_any_more(self):
        self.save(10)
        self.save(20)
        self.keep()
        shard = next((self.place / "global_step10").rglob("*optim*"))
        shard.unlink()
        found = self.keep("--last", "1", status=4)
        self.assertEqual(self.events(found, "stays"), ["global_step10"])
        self.assertEqual(self.names(self.run_folder), ["global_step10", "global_step20"])

    def test_a_vanished_mount_is_not_filled(self):
        self.save(10)
        self.keep()
        away = self.place.rename(self.root / "away")
        self.save(20)
        for there in (False, True):  # nothing, and the folder that it was mounted on
            if there:
                self.place.mkdir()
            done = self.tool("ckpt-pack", "keep", self.run_folder, "--to", self.place, "--once", "--last", "1")
            self.assertEqual(done.returncode, 4, done.stderr)
            if there:
                self.assertIn("its file system may not be mounted", done.stderr)
                self.assertEqual(list(self.place.iterdir()), [])
            else:
                self.assertFalse(self.place.exists())
        self.assertEqual(self.names(self.run_folder), ["global_step10", "global_step20"])
        self.place.rmdir()
        away.rename(self.place)
        found = self.keep("--last", "1")
        self.assertEqual(self.kept(found), ["global_step20"])
        self.assertEqual(self.names(self.run_folder), ["global_step20"])

    def test_a_place_is_of_one_run(self):
        self.save(10)
        self.keep()
        other = self.new_path("run")
        other.mkdir()
        self.save(20, run=other)
        done = self.tool("ckpt-pack", "keep", other, "--to", self.place, "--once")
        self.assertEqual(done.returncode, 2)
        self.assertIn("has the checkpoints of another run", done.stderr)
        self.assertEqual(self.kept(self.keep("--force", run=other)), ["global_step20"])
        # The run under another path, as another machine has it, is known again.
        moved = other.rename(self.new_path("elsewhere"))
        self.assertEqual([each["event"] for each in self.keep(run=moved)], ["looked"])

    def test_one_process_keeps_there(self):
        self.save(10)
        first = self.start("--interval", "0.2")
        try:
            self.wait_for(lambda: (self.place / "global_step10" / RECORD).exists())
            done = self.tool("ckpt-pack", "keep", self.run_folder, "--to", self.place, "--once")
            self.assertEqual(done.returncode, 2)
            self.assertIn("another process keeps checkpoints there", done.stderr)
        finally:
            first.send_signal(signal.SIGTERM)
            self.assertEqual(first.wait(30), 130)
        self.assertEqual([each["event"] for each in self.keep()], ["looked"])

    def test_the_rate_is_also_that_of_verifying(self):
        self.save(10)
        shard = next((self.run_folder / "global_step10").glob("*rank_1*optim*"))
        flip(shard, record_extent(shard, "data/0")[0] + 5)
        self.age(self.run_folder / "global_step10", 10)
        size = sum(path.stat().st_size for path in (self.run_folder / "global_step10").iterdir())
        begun = time.time()
        self.assertEqual(self.events(self.keep("--limit-rate", f"{size / 2000:.1f}KB", status=1), "damaged"), ["global_step10"])
        self.assertGreater(time.time() - begun, 1.6)
        slow = self.start("--limit-rate", "1KB")
        time.sleep(1)
        slow.send_signal(signal.SIGTERM)
        self.assertEqual(slow.wait(20), 130)

    def test_a_checkpoint_comes_back(self):
        for step in (10, 20, 30):
            self.save(step)
        before = tree(self.run_folder)
        self.keep("--last", "1")
        self.assertEqual(self.names(self.run_folder), ["global_step30"])
        for wanted in ("10", "global_step20"):
            self.keep("--restore", wanted, once=False)
        after = {path: data for path, data in tree(self.run_folder).items() if MARK not in path}
        self.assertTrue(after == before)
        # They are known again, and safe: nothing is kept twice.
        self.assertEqual(sorted(self.events(self.keep("--last", "1"), "removed")), ["global_step10", "global_step20"])
        self.assertEqual(len(self.names(self.place)), 3)
        lost = self.new_path("another")
        lost.mkdir()
        self.keep("--restore", "20", "--into", lost, once=False)
        self.assertEqual((lost / "latest").read_text(), "global_step20")
        self.assertTrue(files(lost / "global_step20") == files(self.template(20)))
        self.assertEqual(self.tool("ckpt-inspect", "verify", lost).returncode, 0)
        empty = self.new_path("again")
        empty.mkdir()
        found = self.keep("--restore", "newest", once=False, run=empty)
        self.assertEqual(self.events(found, "restored"), ["global_step30"])
        # Now it is the run that the place is of.
        self.save(40, run=empty)
        self.assertEqual(self.kept(self.keep(run=empty)), ["global_step40"])
        done = self.tool("ckpt-pack", "keep", self.run_folder, "--to", self.place, "--restore", "11")
        self.assertEqual(done.returncode, 2)
        self.assertIn("global_step20, step 20", done.stderr)
        next((self.place / "global_step20").rglob("*optim*")).unlink()
        done = self.tool("ckpt-pack", "keep", self.run_folder, "--to", self.place, "--restore", "20", "--into",
                         self.root / "more")
        self.assertEqual(done.returncode, 3)

    def test_removals_that_were_killed_are_ended(self):
        for step in (10, 15, 20, 30, 40):
            self.save(step)
        self.keep()
        (half := self.run_folder / f"{MARK}-removing-4").mkdir(mode=0o700)
        (self.run_folder / "global_step15").rename(half / "global_step15")
        next((half / "global_step15").iterdir()).unlink()  # by the training
        removing = self.run_folder / f"{MARK}-removing-1"
        changed = self.run_folder / f"{MARK}-removing-2"
        removed = self.run_folder / f"{MARK}-removed-3"
        for folder, step in ((removing, 10), (changed, 20), (removed, 30)):
            folder.mkdir(mode=0o700)
            (self.run_folder / f"global_step{step}").rename(folder / f"global_step{step}")
        os.utime(next((changed / "global_step20").iterdir()), (1, 1))
        next((removed / "global_step30").iterdir()).unlink()
        self.keep()
        # The one that is safe goes; the one that is not what was kept is there again.
        self.assertEqual(self.names(self.run_folder), ["global_step20", "global_step40"])
        self.assertEqual([path for path in self.run_folder.iterdir() if "remov" in path.name], [])

    def test_a_full_disk_is_waited_for(self):
        self.place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", self.place], capture_output=True)
        if done.returncode:
            self.skipTest("no tmpfs can be mounted here")
        self.addCleanup(subprocess.run, ["umount", self.place], capture_output=True)
        for step in (10, 20, 30):
            self.save(step)
        found = self.keep("--last", "1", status=4)
        kept = self.kept(found)
        self.assertIn("global_step30", kept)
        self.assertLess(len(kept), 3)
        for name in self.names(self.place):
            self.assertIn(name, kept)
        self.assertEqual(set(self.names(self.run_folder)) | set(kept), {f"global_step{step}" for step in (10, 20, 30)})
        self.assertEqual(subprocess.run(["mount", "-o", "remount,size=4m", self.place]).returncode, 0)
        self.assertEqual(len(self.kept(self.keep("--last", "1"))), 3 - len(kept))
        for step in (10, 20, 30):
            self.assert_whole(f"global_step{step}", step)

    def test_one_process_goes_on_where_it_was_stopped(self):
        """By a disk that is full in the middle, and then is not."""
        if not self.mount("size=60k"):
            self.skipTest("no tmpfs can be mounted here")
        self.save(10)
        # How small packed files become is seen when they are written: it begins, and stops.
        keeper = self.start("--interval", "0.2", "--pack", output=subprocess.PIPE)
        self.assertIn("waiting", keeper.stdout.readline())
        self.assertTrue([*self.place.glob(STAGING + "*")])
        time.sleep(0.5)
        self.mount("remount,size=4m")
        self.wait_for(lambda: (self.place / "global_step10" / RECORD).exists())
        self.assertIsNone(keeper.poll())
        self.wait_for(lambda: not [*self.place.glob(STAGING + "*")])
        keeper.send_signal(signal.SIGTERM)
        keeper.communicate(timeout=30)

    def test_what_the_training_removes_meanwhile_is_no_error(self):
        """In the middle of a slow copy."""
        for step in (10, 20):
            self.save(step)
        keeper = self.start("--interval", "0.2", "--limit-rate", "60KB")
        self.wait_for(lambda: [*self.place.glob(STAGING + "*global_step20")])
        shutil.rmtree(self.run_folder / "global_step20")
        (self.run_folder / "latest").write_text("global_step10")
        self.wait_for(lambda: (self.place / "global_step10" / RECORD).exists())
        keeper.send_signal(signal.SIGTERM)
        self.assertEqual(keeper.wait(30), 130)
        self.keep()
        self.assert_whole("global_step10", 10)
        self.assertEqual([*self.place.glob(STAGING + "*")], [])

    def test_a_killed_copy_is_gone_on_with(self):
        self.save(10)
        keeper = self.start("--interval", "0.2", "--limit-rate", "60KB")
        self.wait_for(lambda: [*self.place.glob(STAGING + "*global_step10")])
        keeper.kill()
        keeper.wait()
        self.assertEqual(self.kept(self.keep()), ["global_step10"])
        self.assert_whole("global_step10", 10)
        self.assertEqual([*self.place.glob(STAGING + "*")], [])


class GuideTest(KeepCase):
    """The commands to paste in apps/ckpt_pack/KEEP.md, as far as they can be run here."""
    PAGE = (pathlib.Path(__file__).resolve().parents[2] / "apps/ckpt_pack/KEEP.md").read_text()

    def block(self, heading):
        section = re.search(rf"(?ms)^## {re.escape(heading)}.*?(?=^## |\\Z)", self.PAGE)[0]
        block, = re.findall(r"(?ms)^```\n(.*?)^```", section)
        return block

    def test_the_unit_of_systemd(self):
        unit = self.root / "keep-run7.service"
        program = pathlib.Path(os.environ["DSCKPT_BIN"]).resolve() / "ckpt-pack"
        text = self.block("As a service of systemd")
        unit.write_text(text.replace("/usr/bin/ckpt-pack", str(program)).replace("User=trainer\n", ""))
        command = re.search(r"^ExecStart=\S+ keep (.*)$", text, re.MULTILINE)[1]
        self.save(10)
        words = command.replace("/scratch/run7", str(self.run_folder)).replace("/nas/run7", str(self.place)).split()
        done = self.tool("ckpt-pack", "keep", *words, "--once")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_whole("global_step10", 10)
        if shutil.which("systemd-analyze") is None:
            self.skipTest("there is no systemd-analyze; the command alone was run")
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def slurm(self, training):
        """The script with `training` for python train.py, beside commands that play Slurm's."""
        commands = self.new_path("bin")
        commands.mkdir()
        for name, text in (("srun", '#!/bin/bash\nexec "$@"\n'), ("python", "#!/bin/bash\n" + training)):
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        (self.root / "job.sh").write_text(self.block("In a job of Slurm"))
        environment = {**self.environment, "RUN": str(self.run_folder), "PLACE": str(self.place),
                       "PATH": f"{commands}:{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"}
        self.assertEqual(subprocess.run(["bash", "-n", self.root / "job.sh"]).returncode, 0)
        return subprocess.Popen(["bash", self.root / "job.sh"], env=environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def test_the_job_of_slurm(self):
        """The training saves, and ends with a status of its own: that is the job's, and its last save is kept."""
        template = self.template(20)
        self.save(10)
        job = self.slurm(f"cp -r {template} {self.run_folder}\nprintf global_step20 > {self.run_folder}/latest\n"
                         "exit 7\n")
        _, said = job.communicate(timeout=120)
        self.assertEqual(job.returncode, 7, said)
        for step in (10, 20):
            self.assert_whole(f"global_step{step}", step)


class KeepBucketTest(BucketCase, KeepCase):

    def setUp(self):
        super().setUp()
        self.stores = self.new_path("stores")
        self.bucket = self.stores / "models"
        self.bucket.mkdir(parents=True)
        if not tools.reads_object_stores():
            self.skipTest("this build reads no object stores")

    def test_a_bucket(self):
        for step in (10, 20, 30):
            self.save(step)
        before = tree(self.run_folder)
        with self.serve(self.stores):
            found = self.keep("--last", "1", place="s3://models/runs/a")
            self.assertEqual(self.kept(found), ["global_step10", "global_step20", "global_step30"])
            self.assertIn("s3://models/runs/a/global_step10", [each.get("output") for each in found])
            self.assertEqual(self.names(self.run_folder), ["global_step30"])
            for step in (10, 20, 30):
                self.assert_whole(f"global_step{step}", step, place=self.bucket / "runs" / "a")
            self.assertEqual([each["event"] for each in self.keep("--last", "1", place="s3://models/runs/a")],
                             ["looked"])
            for step in (10, 20):
                self.keep("--restore", step, once=False, place="s3://models/runs/a")
            after = {path: data for path, data in tree(self.run_folder).items() if MARK not in path}
            self.assertTrue(after == before)
            next((self.bucket / "runs" / "a" / "global_step10").rglob("*optim*")).unlink()
            found = self.keep("--last", "1", place="s3://models/runs/a", status=4)
            self.assertEqual(self.events(found, "removed"), ["global_step20"])
            self.assertEqual(self.events(found, "stays"), ["global_step10"])

    def test_one_process_keeps_in_a_bucket(self):
        self.save(10)
        place = self.bucket / "a"
        with self.serve(self.stores):
            first = self.start("--interval", "0.2", place="s3://models/a")
            self.wait_for(lambda: (place / "global_step10" / RECORD).exists())
            mark, = (place / MARK).glob("keeper-*")
            second = subprocess.run([first.args[0], "keep", self.run_folder, "--to", "s3://models/a", "--once"], text=True,
                                    capture_output=True, env=self.environment)
            self.assertEqual(second.returncode, 2)
            self.assertRegex(second.stderr, rf"another process keeps checkpoints there, process {first.pid} on .*, "
                                               r"which said so \d+ seconds? ago")
            self.assertEqual(list((place / MARK).glob("keeper-*")), [mark])
            said = mark.read_text()
            first.send_signal(signal.SIGTERM)
            self.assertEqual(first.wait(30), 130)
            self.assertFalse(mark.exists())

            mark.write_text(said)  # as one that was killed leaves it
            self.assertEqual([each["event"] for each in self.keep(place="s3://models/a")], ["looked"])
            self.assertFalse(mark.exists())
            mark.write_text(json.dumps({**json.loads(said), "host": "elsewhere"}))
            self.keep(place="s3://models/a", status=4)
            self.assertIn(f"another process may keep checkpoints there, process {first.pid} on elsewhere",
                          self.said.stderr)
            past = time.time() - 200
            os.utime(mark, (past, past))
            self.assertEqual([each["event"] for each in self.keep(place="s3://models/a")], ["looked"])
            self.assertFalse(mark.exists())

    def test_a_store_that_fails_keeps_nothing_and_loses_nothing(self):
        for step in (10, 20):
            self.save(step)
        with self.serve(self.stores) as store:
            store.fault = lambda number, path: 403 if "optim" in path else None
            found = self.keep("--last", "1", place="s3://models/a", status=4)
            self.assertEqual(self.kept(found), [])
            self.assertEqual(self.names(self.run_folder), ["global_step10", "global_step20"])
            store.fault = lambda number, path: None
            self.assertEqual(len(self.kept(self.keep("--last", "1", place="s3://models/a"))), 2)
            for step in (10, 20):
                self.assert_whole(f"global_step{step}", step, place=self.bucket / "a")


class Training(threading.Thread):
    """Saves every so often, each shard in several writes, and removes its oldest ones itself."""

    def __init__(self, test, generator, kind, steps, limit):
        super().__init__()
        self.test, self.generator, self.kind, self.steps, self.limit = test, generator, kind, steps, limit
        self.complete = {}  # name -> step
        self.removed = set()
        self.lock = threading.Lock()
        self.failure = None

    def run(self):
        try:
            for step in self.steps:
                self.save(step)
                time.sleep(self.generator.uniform(0.0, 0.1))
        except BaseException as error:
            self.failure = error

    def save(self, step):
        run, template = self.test.run_folder, self.test.template(step, self.kind)
        folder = run / template.name
        # latest is written last, and of the Trainer its state after that.
        last = {"latest": 1, "trainer_state.json": 2}
        paths = [path.relative_to(template) for path in template.rglob("*") if path.is_file()]
        self.generator.shuffle(paths)
        for path in sorted(paths, key=lambda path: last.get(path.name, 0)):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            data = (template / path).read_bytes()
            with open(folder / path, "wb") as file:
                for part in range(2):
                    file.write(data[part * len(data) // 2:(part + 1) * len(data) // 2])
                    file.flush()
                    time.sleep(self.generator.uniform(0.0, 0.01))
        if self.kind == ZERO:
            (run / ".latest").write_text(template.name)
            (run / ".latest").rename(run / "latest")
        with self.lock:
            self.complete[template.name] = step
        if self.limit:
            for old in sorted(self.complete, key=self.complete.get)[:-self.limit]:
                with self.lock:
                    self.removed.add(old)
                shutil.rmtree(run / old, ignore_errors=True)


class CampaignTest(KeepCase):
    """Keepers that are killed or stopped at any moment, beside a training that saves and removes, with places
    that vanish and disks that are full. Each complete checkpoint is whole in the run or the place, or the
    training has removed it."""

    def test_nothing_is_lost_whoever_is_killed(self):
        counts = {}
        for number in range(ROUNDS):
            with self.subTest(seed=SEED, round=number):
                self.round(random.Random(SEED * 100003 + number), counts)
            if ROUNDS > 100 and number % 50 == 49:
                print(f"{number + 1} rounds: {counts}", flush=True)
        print(counts, flush=True)

    def count(self, counts, what, number=1):
        counts[what] = counts.get(what, 0) + number

    def check_moment(self, training, away):
        """None of the complete ones is missing in both."""
        with training.lock:
            complete = {name: step for name, step in training.complete.items() if name not in training.removed}
        for name, step in complete.items():
            if (self.run_folder / name).exists():
                continue
            with training.lock:
                if name in training.removed:
                    continue
            for place in (self.place, away):
                if (place / name / RECORD).exists():
                    self.assert_whole(name, step, training.kind, place)
                    break
            else:
                # Renamed back and forth, or the place has just been moved.
                time.sleep(0.1)
                self.assertTrue((self.run_folder / name).exists() or (self.place / name / RECORD).exists() or
                                (away / name / RECORD).exists() or name in training.removed, name)

    def start(self, generator, rules):
        program = pathlib.Path(os.environ["DSCKPT_BIN"]) / "ckpt-pack"
        slow = generator.choice([[], [], ["--limit-rate", "2MB"]])
        return subprocess.Popen([program, "keep", self.run_folder, "--to", self.place, "--interval", "0.1", *rules,
                                 *slow], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=self.environment,
                                text=True)

    def round(self, generator, counts):
        for folder in (self.run_folder, self.place, self.root / "away"):
            shutil.rmtree(folder, ignore_errors=True)
        self.run_folder.mkdir()
        away = self.root / "away"
        kind = generator.choice([ZERO, TRAINER])
        rules = generator.choice([[], ["--last", "1"], ["--last", "2", "--every", "20"], ["--last", "0"]])
        if generator.random() < 0.3:
            rules = [*rules, "--pack"]
        training = Training(self, generator, kind, range(10, 10 * generator.randrange(4, 8), 10),
                            generator.choice([0, 0, 2]))
        packed = "--pack" in rules
        check = (lambda *_: None) if packed else self.check_moment
        # A disk that is too small for all of it, until the end.
        is_small = generator.random() < 0.25 and self.mount("size=300k")
        self.count(counts, "small disks", is_small)
        training.start()
        while training.is_alive() or generator.random() < 0.6:
            keeper = self.start(generator, rules)
            until = time.time() + generator.uniform(0.05, 0.5)
            moved = not is_small and generator.random() < 0.2 and self.place.exists()
            if moved:
                time.sleep(generator.uniform(0, 0.1))
                self.place.rename(away)
                self.place.mkdir()
                self.count(counts, "places gone")
            while time.time() < until:
                check(training, away)
                time.sleep(0.01)
            fate = generator.choice(["kill", "kill", "stop", "end"])
            self.count(counts, fate)
            if keeper.poll() is not None:
                self.fail(f"it has ended by itself: {keeper.stdout.read()}")
            keeper.send_signal({"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM}[fate])
            if fate == "stop":
                time.sleep(generator.uniform(0.0, 0.2))
                check(training, away)
                keeper.send_signal(signal.SIGCONT)
                time.sleep(generator.uniform(0.0, 0.2))
                keeper.kill()
            said, _ = keeper.communicate(timeout=60)
            for line in said.splitlines():
                if "starts again" in line:
                    self.count(counts, re.sub(r".*: ", "", line))
            if moved:
                self.assertEqual([path for path in self.place.rglob(RECORD)], [], "a vanished place was filled")
                shutil.rmtree(self.place)
                away.rename(self.place)
            check(training, away)
        training.join()
        if training.failure:
            raise training.failure
        if is_small:
            self.mount("remount,size=16m")
        time.sleep(0.12)
        last = self.tool("ckpt-pack", "keep", self.run_folder, "--to", self.place, "--once", "--interval", "0.1",
                         *rules, "--json")
        self.assertEqual(last.returncode, 0, last.stdout + last.stderr)
        self.count(counts, "begun anew at last", last.stderr.count("starts again"))
        self.assertEqual([path for path in self.root.rglob(STAGING + "*")], [], last.stdout + last.stderr)
        self.assertEqual([path for path in self.run_folder.iterdir() if "remov" in path.name], [])
        there = set(self.names(self.run_folder))
        for name, step in training.complete.items():
            self.count(counts, "checkpoints")
            in_place = (self.place / name / RECORD).exists()
            if name in training.removed and not in_place:
                self.count(counts, "gone before they were kept")
                continue
            self.assertTrue(in_place, name)
            if packed:
                out = self.new_path("back")
                done = self.tool("ckpt-pack", "keep", self.run_folder, "--to", self.place, "--restore", name, "--into",
                                 out)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(files(out / name) == files(self.template(step, kind)))
                shutil.rmtree(out)
            else:
                self.assert_whole(name, step, kind)
            if name in there:
                self.assertTrue(files(self.run_folder / name) == files(self.template(step, kind)))
        self.assertEqual(self.names(self.place), sorted(set(self.names(self.place)) & set(training.complete)))
        if "--last" not in rules:
            self.assertEqual(there, set(training.complete) - training.removed)
        if kind == ZERO:
            self.assertIn((self.run_folder / "latest").read_text(), there)
        if is_small:
            subprocess.run(["umount", self.place], check=True)
        self.count(counts, "rounds")


if __name__ == "__main__":
    cli_common.main()
