"""Reports in steps: one process plans what verify, stats or diff reads, any number read, one prints the report of one
process.

STEPS=all takes every checkpoint and every number of workers.
"""
import json
import os
import random
import shutil
import signal
import time
import unittest

import tools
from cli_common import STAGING, memory_limit, tree
from group_test import LOOKS
from steps_test import SEED, StepsTest
from tools import filled, run_tool

ALL = os.environ.get("STEPS") == "all"
WORKERS = (1, 2, 3, 4, 7)
TEXTS = [
    ["ckpt-inspect", "verify", "IN", "--finite"],
    ["ckpt-inspect", "stats", "IN", "--sort", "norm"],
    ["ckpt-inspect", "diff", "IN", "IN", "--all"],
]


class ReportStepsTest(StepsTest):

    def planned(self, command, portions=9):
        """The folder of a plan, and what the command printed."""
        folder = self.new_path("steps")
        done = run_tool(*command, "--emit-plan", folder, "--portions", portions)
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder, done

    def report(self, folder, *options, **more):
        done = run_tool("dsckpt", "commit", folder, *options, **more)
        return done.returncode, done.stdout

    def alone(self, command, out=None):
        """(status, report, content of OUT) of one process."""
        done = run_tool(*command)
        return (done.returncode, done.stdout), self.taken(out)

    def taken(self, out):
        """The content of a file, which is removed."""
        if out is None or not out.is_file():
            return None
        content = out.read_bytes()
        out.unlink()
        return content

    def work(self, folder, workers, at_once=False):
        words = [("dsckpt", "work", folder, "--share", f"{number}/{workers}", "--only-share")
                 for number in range(workers)]
        for each in [self.start(*every) for every in words] if at_once else []:
            self.finish(each)
        for every in [] if at_once else words:
            self.run_step(*every[1:])
        self.assertEqual(self.state(folder)["state"], "complete")

    def assert_same(self, command, source, workers, at_once=False):
        out = self.new_path("out")
        words = filled(command, source, out)
        expected, written = self.alone(words, out)
        folder, _ = self.planned([word for word in words if word != "--json"])
        self.work(folder, workers, at_once)
        json_option = ["--json"] * ("--json" in words)
        for _ in range(2):  # a commit may be called again
            self.assertEqual(self.report(folder, *json_option), expected)
        self.assertEqual(self.taken(out), written)
        self.run_step("abandon", folder)
        self.assertFalse(folder.exists())
        return expected[0]

    def damaged(self, source, change):
        """A copy with `change`, a function of a bytearray, in a file of the optimizer."""
        copy = self.new_path("damaged")
        shutil.copytree(source, copy)
        shard = sorted(copy.rglob("*optim_states.pt"))[-1]
        content = bytearray(shard.read_bytes())
        change(content)
        shard.write_bytes(content)
        return copy

    @staticmethod
    def flip(content):
        content[len(content) // 2] ^= 1


class SameReportTest(ReportStepsTest):

    def test_any_number_of_workers_makes_the_report_of_one_process(self):
        cases = [*tools.all_cases(), *tools.model_parallel_cases()]
        for number, case in enumerate(cases if ALL else cases[::12]):
            for index, command in enumerate([*LOOKS, *TEXTS]):
                if not ALL and (number + index) % 3:
                    continue
                for workers in WORKERS if ALL else [WORKERS[(number + index) % len(WORKERS)]]:
                    with self.subTest(case=case.name, command=command, workers=workers):
                        self.assertIn(self.assert_same(command, case.load_dir, workers, index % 2 == 0), (0, 1))

    def test_tensors_of_many_pieces(self):
        source = self.large(12 << 20)
        for index, command in enumerate(LOOKS):
            for workers in WORKERS[index % 2::2]:
                with self.subTest(command=command, workers=workers):
                    self.assertIn(self.assert_same(command, source, workers), (0, 1))

    def test_what_is_wrong_is_reported_whoever_reads_it(self):
        case = tools.case_named("z2_bf16_w2")

        def put_nan(content):
            for at in range(1 << 20, len(content), 5 << 20):
                content[at:at + 4] = b"\0\0\xc0\x7f"

        sources = [(case.load_dir, self.flip), (self.large(), put_nan),
                   (tools.case_named("z3_bf16_w2").load_dir, self.flip)]
        for source, change in sources:
            copy = self.damaged(source, change)
            for workers, command in zip((2, 3, 4), LOOKS[:3]):
                with self.subTest(source=source, command=command):
                    status = self.assert_same(command, copy, workers)
                    self.assertIn(status, (0, 1) if "stats" in command else (1,))

    def test_answers_are_those_of_the_workers(self):
        """Bytes that have changed behind their backs are not read again."""
        source = self.large()
        command = ["ckpt-inspect", "verify", source, "--finite"]
        expected, _ = self.alone(command)
        folder, _ = self.planned(command)
        self.work(folder, 3)
        for shard in source.rglob("*_states.pt"):
            before = shard.stat()
            content = bytearray(shard.read_bytes())
            for at in range(1 << 20, len(content) - (1 << 20), 1 << 20):
                content[at:at + 8] = b"\xff" * 8
            shard.write_bytes(content)
            os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
        self.assertNotEqual(self.alone(command)[0], expected)
        self.assertEqual(self.report(folder), expected)

    def test_what_cannot_be_read_is_the_error_of_one_process(self):
        packed = self.new_path("packed")
        self.assertEqual(run_tool("ckpt-pack", "pack", self.large(), packed).returncode, 0)
        shard = sorted(packed.rglob("*optim_states.pt.dspack"))[-1]
        content = bytearray(shard.read_bytes())
        self.flip(content)
        shard.write_bytes(content)
        for command in (["ckpt-inspect", "stats", packed, "--states"], ["ckpt-inspect", "verify", packed]):
            one = run_tool(*command)
            self.assertNotEqual(one.returncode, 0)
            folder, _ = self.planned(command)
            self.work(folder, 2)
            done = run_tool("dsckpt", "commit", folder)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (one.returncode, one.stdout, one.stderr))

    def test_several_paths_of_which_one_is_missing(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        command = ["dsckpt", "verify", source, self.root / "missing", self.damaged(source, self.flip)]
        one = run_tool(*command)
        folder, planned = self.planned(command)
        self.assertEqual(planned.stdout.splitlines(), [str(folder / (STAGING + "resume"))])
        self.work(folder, 3)
        done = run_tool("dsckpt", "commit", folder)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (one.returncode, one.stdout, one.stderr))

    def test_paths_are_those_of_the_planner(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        command = ["diff", "a", "b", "--states", "--json"]
        (self.root / "a").symlink_to(source)
        shutil.copytree(source, self.root / "b")
        one = run_tool("dsckpt", *command, cwd=self.root)
        done = run_tool("dsckpt", *command, "--emit-plan", "steps", cwd=self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        planned = json.loads(done.stdout)["data"]
        self.assertEqual(planned["output"], str(self.root / "steps"))
        self.run_step("work", planned["steps"]["folder"])
        self.assertEqual(self.report(self.root / "steps", "--json", cwd="/"), (one.returncode, one.stdout))

    def test_files_that_are_written_may_be_there_from_a_commit_before(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        page, manifest = self.root / "page.html", self.root / "manifest"
        for command, out in ((["dsckpt", "diff", source, source, "--html", page], page),
                             (["dsckpt", "verify", source, "--write-manifest", manifest], manifest)):
            expected, written = self.alone(command, out)
            folder, _ = self.planned(command)
            for _ in range(2):
                self.assertEqual(self.report(folder), expected)
                self.assertEqual(out.read_bytes(), written)
            out.write_bytes(b"mine")
            self.assertEqual(self.report(folder)[0], 2)
            self.assertEqual(self.taken(out), b"mine")


class RepeatedTest(ReportStepsTest):

    def setUp(self):
        super().setUp()
        self.source = self.large()
        self.command = ["ckpt-inspect", "verify", self.source, "--finite"]

    def test_killed_workers(self):
        expected, _ = self.alone(self.command)
        generator = random.Random(SEED)
        folder, _ = self.planned(self.command, 40)
        for _ in range(6):
            running = [self.start("dsckpt", "work", folder, "--threads", "1") for _ in range(2)]
            time.sleep(generator.uniform(0, 0.1))
            for each in running:
                each.send_signal(signal.SIGKILL)
                each.communicate()
        done = self.state(folder)["portions_done"]
        self.assertEqual(self.report(folder), expected)
        self.assertEqual(self.report(folder), expected, f"after {done} portions")
        self.assertEqual(self.state(folder)["state"], "complete")

    def test_shares_of_one_command_do_all_steps(self):
        expected, _ = self.alone(self.command)
        folder = self.new_path("steps")
        words = [*self.command, "--emit-plan", folder, "--portions", "9"]
        later = [self.start(*words, "--share", f"{number}/3") for number in (2, 1)]
        time.sleep(0.3)
        self.assertEqual(self.finish(self.start(*words, "--share", "0/3"), [expected[0]]).stdout, expected[1])
        for each in later:
            self.assertIn("share", self.finish(each).stderr)
        # One that comes late, and the first one again.
        self.assertEqual(self.finish(self.start(*words, "--share", "1/3")).stdout, "")
        self.assertEqual(self.finish(self.start(*words, "--share", "0/3"), [expected[0]]).stdout, expected[1])
        alone = run_tool(*self.command, "--share", "0/3")
        self.assertEqual(alone.returncode, 2)
        self.assertIn("--share goes with --emit-plan DIR", alone.stderr)

    def test_commit_waits_for_workers_and_does_what_is_left(self):
        expected, _ = self.alone(self.command)
        folder, _ = self.planned(self.command)
        self.run_step("work", folder, "--share", "0/3", "--only-share")
        self.assertEqual(self.state(folder)["state"], "planned")
        worker = self.start("dsckpt", "work", folder)
        self.assertEqual(self.report(folder, "--wait", "60"), expected)
        self.finish(worker)
        self.assertEqual(self.state(folder)["state"], "complete")

    def test_the_same_plan_is_there_and_another_is_refused(self):
        folder, _ = self.planned(self.command)
        again = run_tool(*self.command, "--emit-plan", folder, "--json")
        self.assertTrue(json.loads(again.stdout)["data"]["steps"]["was_planned"], again.stderr)
        other = run_tool("ckpt-inspect", "stats", self.source, "--emit-plan", folder)
        self.assertEqual(other.returncode, 2)
        self.assertIn("something else is planned there", other.stderr)

    def test_an_input_that_has_changed_ends_all(self):
        folder, _ = self.planned(self.command)
        shard = next(self.source.rglob("*optim_states.pt"))
        os.utime(shard)
        for step, status in (("work", 4), ("commit", 2)):
            self.assertIn("is not the same file here as when it was planned",
                          self.run_step(step, folder, status=status).stderr)
        self.assertEqual(run_tool(*self.command, "--emit-plan", folder).returncode, 2)

    def test_a_folder_that_holds_something_is_refused(self):
        mine = self.new_path("mine")
        mine.mkdir()
        for folder in (self.source, mine / "file"):
            (mine / "file").write_text("")
            before = tree(self.source)
            done = run_tool(*self.command, "--emit-plan", folder)
            self.assertIn(done.returncode, (2, 4))
            self.assertTrue(tree(self.source) == before)
        (mine / "file").unlink()
        self.assertEqual(run_tool(*self.command, "--emit-plan", mine).returncode, 0)
        self.run_step("abandon", mine)
        self.assertEqual(list(mine.iterdir()), [])

    def test_bytes_were_lost_or_changed(self):
        expected, _ = self.alone(self.command)
        generator = random.Random(SEED)
        for name in ("plan", "portions", "results/1"):
            for _ in range(4):
                folder, _ = self.planned(self.command)
                self.run_step("work", folder)
                place = folder / (STAGING + "resume") / name
                content = bytearray(place.read_bytes())
                at = generator.randrange(len(content))
                content[at] ^= 1 << generator.randrange(8)
                place.write_bytes(content if generator.random() < 0.5 else content[:at])
                done = run_tool("dsckpt", "commit", folder)
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("is damaged", done.stderr)
            self.assertEqual(self.report(self.planned(self.command)[0]), expected)

    def test_memory_is_limited(self):
        folder, _ = self.planned(self.command)
        self.run_step("work", folder, "--share", "0/2", "--only-share", "--threads", "2", *memory_limit("200MB"))
        self.assertEqual(self.report(folder, "--threads", "2", *memory_limit("200MB")), self.alone(self.command)[0])
        if limit := memory_limit("4MB"):
            self.assertEqual(run_tool("dsckpt", "commit", folder, *limit).returncode, 4)


if __name__ == "__main__":
    tools.main()
