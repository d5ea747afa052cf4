"""Conversions in steps: one process plans, any number work, one commits, and each may be killed and called again.

STEPS=all takes every checkpoint, and STEPS_ROUNDS=N so many rounds of the campaign; STEPS_SEED chooses them. On a
Slurm cluster (slurm_cluster.py) `srun` starts the processes of the campaign.
"""
import json
import os
import pathlib
import random
import shutil
import signal
import time
import unittest

import tools
from cli_common import STAGING, CliTest, memory_limit, tree
from group_test import COMMANDS
from resume_test import PowerCase
from step_processes import STEPS, StepProcesses
from tools import filled, run_tool

ALL = os.environ.get("STEPS") == "all"
ROUNDS = int(os.environ.get("STEPS_ROUNDS", "20"))
SEED = int(os.environ.get("STEPS_SEED", "1"))
CUT = ["--emit-plan", "--portions", "9"]


class StepsTest(StepProcesses, CliTest):

    def large(self, elements=6 << 20):
        return super().large(elements)

    def plan(self, command, source, out, options=CUT):
        done = run_tool(*filled(command, source, out), *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return pathlib.Path(done.stdout.splitlines()[-1])

    def alone(self, command, source):
        out = self.new_path("alone")
        done = run_tool(*filled(command, source, out))
        return done.returncode, tree(out) if out.exists() else None

    def left_in(self, folder):
        return [path for path in folder.rglob(STAGING + "*")]


class SameBytesTest(StepsTest):

    def assert_same(self, command, source, workers, at_once):
        status, expected = self.alone(command, source)
        if status != 0:
            return 0
        out = self.new_path("out")
        folder = self.plan(command, source, out)
        running = [self.start("dsckpt", "work", out if number % 2 else folder, "--share", f"{number}/{workers}")
                   for number in range(workers)] if at_once else []
        for number in range(0 if at_once else workers):
            self.run_step("work", folder, "--share", f"{number}/{workers}", "--only-share")
        for each in running:
            self.finish(each)
        self.assertEqual(self.state(out)["state"], "complete")
        self.run_step("commit", out)
        # Not assertEqual, which shows all bytes.
        self.assertTrue(tree(out) == expected, f"{workers} workers make other bytes than one process")
        self.assertEqual(self.left_in(self.root), [])
        self.assertEqual(self.state(out)["state"], "committed")
        return 1

    def test_any_number_of_workers_makes_the_bytes_of_one_process(self):
        cases = [*tools.all_cases(), *tools.model_parallel_cases()]
        compared = 0
        for number, case in enumerate(cases if ALL else cases[::12]):
            for index, command in enumerate(COMMANDS):
                if not ALL and (number + index) % 3:
                    continue
                workers = 1 + (number + index) % 4
                with self.subTest(case=case.name, command=command, workers=workers):
                    compared += self.assert_same(command, case.load_dir, workers, (number + index) % 2 == 0)
        self.assertGreater(compared, 10)

    def test_one_file_of_many_portions(self):
        source = self.large()
        for command in (["zero-to-fp32", "IN", "OUT"], ["zero-to-fp32", "IN", "OUT", "--safe-serialization"],
                        ["zero-to-fp32", "IN", "OUT", "--verify-output", "--fsync"],
                        ["to-universal", "IN", "OUT"], ["to-dcp", "IN", "OUT", "--dp", "3"]):
            for workers in (1, 2, 3, 4):
                with self.subTest(command=command, workers=workers):
                    self.assertEqual(self.assert_same(command, source, workers, workers % 2 == 0), 1)

    def test_packed_files_are_unpacked(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        packed = self.new_path("packed")
        self.assertEqual(run_tool("ckpt-pack", "pack", source, packed, "--sha256").returncode, 0)
        self.assertEqual(self.assert_same(["ckpt-pack", "unpack", "IN", "OUT", "--sha256"], packed, 2, True), 1)

    def test_the_report_is_that_of_one_process(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        alone, out = self.new_path("alone"), self.new_path("out")
        command = ["zero-to-fp32", "IN", "OUT"]
        one = json.loads(run_tool(*filled(command, source, alone), "--json").stdout)["data"]
        self.plan(command, source, out)
        self.run_step("work", out)
        several = json.loads(self.run_step("commit", out, "--json").stdout)["data"]
        for changes in ("output", "next", "seconds", "bytes_kept"):
            self.assertIn(changes, several)
            one.pop(changes), several.pop(changes)
        self.assertEqual(several, one)

    def test_shares_of_one_command_do_all_steps(self):
        source = self.large()
        command = ["zero-to-fp32", "IN", "OUT", "--safe-serialization"]
        _, expected = self.alone(command, source)
        out = self.new_path("out")
        later = [self.start(*filled(command, source, out), "--share", f"{number}/3") for number in (2, 1)]
        time.sleep(0.3)
        self.finish(self.start(*filled(command, source, out), "--share", "0/3"))
        for each in later:
            self.finish(each)
        self.assertTrue(tree(out) == expected)
        self.assertEqual(self.left_in(self.root), [])

    def test_an_output_in_a_folder_that_is_there(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        out = self.new_path("out")
        out.mkdir()
        (out / "config.json").write_text("{}")
        command = ["zero-to-fp32", "IN", "OUT", "--safe-serialization"]
        folder = self.plan(command, source, out)
        self.assertEqual(folder.parent, out)
        self.run_step("work", folder)
        self.run_step("commit", folder)
        self.assertEqual(sorted(path.name for path in out.iterdir()), ["config.json", "model.safetensors"])
        self.run_step("commit", folder)


class RepeatedTest(StepsTest):
    COMMAND = ["zero-to-fp32", "IN", "OUT"]

    def test_each_step_may_be_called_again(self):
        source, out = self.large(), self.new_path("out")
        _, expected = self.alone(self.COMMAND, source)
        folder = self.plan(self.COMMAND, source, out)
        self.assertEqual(self.state(folder)["state"], "planned")
        self.assertEqual(self.plan(self.COMMAND, source, out), folder)
        other = run_tool("zero-to-fp32", source, out, "--dtype", "bf16", "--emit-plan")
        self.assertEqual(other.returncode, 2)
        self.assertIn("something else is planned there", other.stderr)
        for _ in range(2):
            self.run_step("work", folder)
            self.assertEqual(self.state(folder)["state"], "complete")
        for path in (folder, out, folder):
            self.run_step("commit", path)
            self.run_step("work", path)
            self.assertEqual(self.state(path)["state"], "committed")
        self.assertTrue(tree(out) == expected)

    def test_commit_hands_its_options_on(self):
        source, out = self.large(), self.new_path("out")
        folder = self.plan(self.COMMAND, source, out)
        if limit := memory_limit("24MB"):
            self.assertIn("--max-memory", self.run_step("commit", folder, *limit, status=4).stderr)
        self.run_step("commit", folder, *memory_limit("400MB"), "--threads", "2", "--progress", "never", "--quiet")

    def test_commit_does_what_is_left(self):
        source = self.large()
        _, expected = self.alone(self.COMMAND, source)
        for done in (0, 1, 2):
            with self.subTest(done=done):
                out = self.new_path("out")
                folder = self.plan(self.COMMAND, source, out)
                for number in range(done):
                    self.run_step("work", folder, "--share", f"{2 * number}/4", "--only-share")
                self.run_step("commit", folder)
                self.assertTrue(tree(out) == expected)

    def test_a_run_that_goes_on_commits_what_was_planned(self):
        source, out = self.large(), self.new_path("out")
        _, expected = self.alone(self.COMMAND, source)
        self.plan(self.COMMAND, source, out)
        self.run_step("work", out, "--share", "1/2", "--only-share")
        done = run_tool(*filled(self.COMMAND, source, out), "--resume", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["data"]["bytes_kept"], 0)
        self.assertTrue(tree(out) == expected)
        self.assertEqual(self.left_in(self.root), [])

    def test_what_is_committed_is_not_made_anew(self):
        source, out = self.large(), self.new_path("out")
        for _ in range(2):  # the second one replaces
            self.plan([*self.COMMAND, "--force"], source, out)
            self.run_step("commit", out)
        before = out.joinpath("pytorch_model.bin").stat()
        self.run_step("commit", out)
        # As one that has found the plan, and then finds that another one has committed it.
        late = run_tool(*filled(self.COMMAND, source, out), "--force", "--commit-planned")
        self.assertEqual(late.returncode, 0)
        self.assertIn("was committed before", late.stderr)
        self.assertEqual(out.joinpath("pytorch_model.bin").stat(), before)

    def test_what_was_begun_and_no_more_is_removed(self):
        source = self.large()
        for left in ([], ["owner"]):
            out = self.new_path("out")
            folder = self.plan(self.COMMAND, source, out)
            shutil.rmtree(folder)
            folder.mkdir(0o700)
            for name in left:
                (folder / name).write_text("")
            self.run_step("steps", out, status=2)
            self.run_step("abandon", out)
            self.assertFalse(folder.exists())

    def test_abandon_removes_all(self):
        source, out = self.large(), self.root / "new" / "place" / "out"
        folder = self.plan(self.COMMAND, source, out)
        self.run_step("work", folder, "--share", "0/2", "--only-share")
        self.run_step("abandon", folder)
        self.assertFalse((self.root / "new").exists())
        for step in STEPS:
            self.assertIn("nothing is planned there", self.run_step(step, folder, status=2).stderr)

    def test_a_worker_waits_for_the_plan(self):
        source, out = self.large(), self.new_path("out")
        late = self.run_step("work", out, "--wait", "1", status=4)
        self.assertIn("no process planned it within 1 second", late.stderr)
        worker = self.start("dsckpt", "work", out, "--wait", "60")
        self.plan(self.COMMAND, source, out)
        self.finish(worker)
        self.run_step("commit", out, "--wait", "60")

    def test_commit_waits_for_workers(self):
        source, out = self.large(), self.new_path("out")
        folder = self.plan([*self.COMMAND, "--limit-rate", "8MB"], source, out)
        worker = self.start("dsckpt", "work", folder)
        done = self.run_step("commit", out, "--wait", "60", "--json")
        self.finish(worker)
        data = json.loads(done.stdout)["data"]
        # But for places of checksums, which commit writes.
        self.assertGreater(data["bytes_kept"], 0.99 * data["bytes_written"])

    def test_several_tags_are_several_conversions(self):
        case = tools.case_named("z2_bf16_w2")
        done = run_tool("zero-to-fp32", case.load_dir, self.new_path("out"), "--tag", "all", "--emit-plan")
        self.assertEqual(done.returncode, 2)
        self.assertIn("steps are for a single one", done.stderr)


class StatesTest(StepsTest):
    """Every command in every state: its status, and what it says. A committed output is no error, however often the
    command is given. A path where nothing was planned is one."""
    COMMAND = ["zero-to-fp32", "IN", "OUT"]
    UNPLANNED = [(2, "nothing is planned there, and it is not an output of steps")] * 4  # work, commit, steps, abandon
    COMPLETE = [(0, "is complete: nothing is left to do"), (0, "is complete: nothing is left to do"), (0, "committed"),
                (0, "is complete: nothing is left to be removed")]

    def setUp(self):
        super().setUp()
        self.source = tools.case_named("z2_bf16_w2").load_dir

    def assert_states(self, make, expected, repeats=1):
        """make: returns a path in that state; a new one for each command."""
        for step, (status, said) in zip(STEPS, expected):
            path = make()
            for _ in range(repeats):
                with self.subTest(state=make.__name__, step=step):
                    done = self.run_step(step, path, status=status)
                    self.assertIn(said, done.stdout + done.stderr)
                    self.assertEqual(status == 2, "hint:" in done.stderr, done.stderr)
            answer = json.loads(run_tool("dsckpt", step, make(), "--json").stdout)
            self.assertEqual(answer["type"] == "error", status != 0)

    def planned(self):
        out = self.new_path("out")
        return self.plan(self.COMMAND, self.source, out), out

    def test_nothing_was_planned(self):

        def misspelt_output():
            _, out = self.planned()
            return out.with_name(out.name + "x")

        def misspelt_folder():
            folder, _ = self.planned()
            return folder.with_name(folder.name + "x")

        def empty_folder():
            out = self.new_path("out")
            out.mkdir()
            return out

        def folder_of_others():
            out = empty_folder()
            (out / "notes.txt").write_text("")
            return out

        def file_of_others():
            out = self.new_path("out")
            out.write_text("")
            return out

        def abandoned():
            folder, out = self.planned()
            self.run_step("abandon", folder)
            return out

        def abandoned_folder():
            folder, _ = self.planned()
            self.run_step("abandon", folder)
            return folder

        def weights_of_others():
            out = empty_folder()
            (out / "model.safetensors").write_bytes(b"")
            return out

        def file_of_tensors():
            return next(self.source.rglob("*model_states.pt"))

        def input_of_a_plan():
            self.planned()
            return self.source

        def output_of_a_plain_run():
            out = self.new_path("out")
            self.assertEqual(run_tool(*filled(self.COMMAND, self.source, out)).returncode, 0)
            return out

        for make in (misspelt_output, misspelt_folder, empty_folder, folder_of_others, file_of_others, abandoned,
                     abandoned_folder, weights_of_others, file_of_tensors, input_of_a_plan, output_of_a_plain_run):
            self.assert_states(make, self.UNPLANNED, 2)

    def test_it_is_committed(self):

        def committed():
            folder, out = self.planned()
            self.run_step("commit", folder)
            return out

        def folder_of_committed():
            folder, _ = self.planned()
            self.run_step("commit", folder)
            return folder

        def packed():
            out = self.new_path("out")
            self.run_step("commit", self.plan(["ckpt-pack", "pack", "IN", "OUT"], self.source, out))
            return out

        def universal():
            out = self.new_path("out")
            self.run_step("commit", self.plan(["to-universal", "IN", "OUT"], self.source, out))
            return out

        def native():
            out = self.new_path("out")
            self.run_step("commit", self.plan(["reshard", "IN", "OUT", "--dp", "3"], self.source, out))
            return out

        def dcp():
            out = self.new_path("out")
            self.run_step("commit", self.plan(["to-dcp", "IN", "OUT", "--dp", "2"], self.source, out))
            return out

        def in_a_folder_that_was_there():
            out = self.new_path("out")
            out.mkdir()
            (out / "config.json").write_text("{}")
            self.run_step("commit", self.plan([*self.COMMAND, "--safe-serialization"], self.source, out))
            return out

        def replaced():
            for _ in range(2):
                self.run_step("commit", self.plan([*self.COMMAND, "--force"], self.source, self.root / "replaced"))
            return self.root / "replaced"

        def of_a_run_that_went_on():
            _, out = self.planned()
            self.assertEqual(run_tool(*filled(self.COMMAND, self.source, out), "--resume").returncode, 0)
            return out

        for make in (committed, folder_of_committed, packed, universal, native, dcp, in_a_folder_that_was_there,
                     replaced, of_a_run_that_went_on):
            self.assert_states(make, self.COMPLETE, 2)

    def test_it_is_planned_or_done(self):

        def planned():
            return self.planned()[0]

        def complete():
            folder, _ = self.planned()
            self.run_step("work", folder)
            return folder

        self.assert_states(planned, [(0, "all have a result"), (0, "in "), (0, "planned"), (0, "removed ")])
        self.assert_states(complete, [(0, "0 portions"), (0, "in "), (0, "complete"), (0, "removed ")])

    def test_a_run_was_stopped_and_nothing_is_planned(self):

        def stopped():
            folder, out = self.planned()
            (folder / "plan").unlink()
            return out

        def stopped_in_an_output():
            out = self.new_path("out")
            self.assertEqual(run_tool(*filled(self.COMMAND, self.source, out)).returncode, 0)
            folder = self.plan([*self.COMMAND, "--force"], self.source, out)
            (folder / "plan").unlink()
            return out

        no_plan = (2, "holds a run that was stopped, and no plan")
        for make in (stopped, stopped_in_an_output):
            self.assert_states(make, [no_plan, no_plan, (0, "begun"), (0, "removed ")])


class HostileFolderTest(StepsTest):
    """A folder that is not as this program has made it is refused, and nothing is written anywhere."""
    COMMAND = ["zero-to-fp32", "IN", "OUT", "--safe-serialization"]

    def planned(self):
        out = self.new_path("out")
        return self.plan(self.COMMAND, self.source, out), out

    def setUp(self):
        super().setUp()
        self.source = self.large()

    def assert_refused(self, folder, out, steps=("work", "commit"), statuses=(2, 4)):
        for step in steps:
            done = run_tool("dsckpt", step, folder)
            self.assertIn(done.returncode, statuses, f"{step}: {done.stderr}")
            self.assertIn("hint:", done.stderr)
        self.assertFalse(out.exists())

    def test_others_may_enter_it(self):
        folder, out = self.planned()
        folder.chmod(0o770)
        self.assert_refused(folder, out)

    @unittest.skipIf(os.geteuid() != 0, "only root makes files of others")
    def test_it_is_anothers(self):
        folder, out = self.planned()
        os.chown(folder, 12345, 12345)
        self.assert_refused(folder, out)
        os.chown(folder, 0, 0)
        for name in ("plan", "portions"):
            os.chown(folder / name, 12345, 12345)
            self.assert_refused(folder, out)
            os.chown(folder / name, 0, 0)
        self.run_step("work", folder)
        os.chown(folder / "results" / "0", 12345, 12345)
        self.assert_refused(folder, out, ["commit"])

    def test_a_link_is_in_the_place_of_a_file(self):
        for name in ("plan", "portions", "job"):
            folder, out = self.planned()
            moved = self.new_path("moved")
            (folder / name).rename(moved)
            (folder / name).symlink_to(moved)
            self.assert_refused(folder, out, ["commit"] if name == "job" else ["work", "commit"])

    def test_a_link_is_in_the_place_of_a_folder(self):
        folder, out = self.planned()
        elsewhere = self.new_path("elsewhere")
        files = next(folder.glob("files-*"))
        files.rename(elsewhere)
        files.symlink_to(elsewhere)
        before = tree(elsewhere)
        self.assert_refused(folder, out)
        self.assertEqual(tree(elsewhere), before)

    def test_it_is_a_copy(self):
        folder, out = self.planned()
        copy = folder.with_name(folder.name + "2")
        shutil.copytree(folder, copy)
        self.assert_refused(copy, out.with_name(out.name + "2"))

    def test_bytes_were_lost_or_changed(self):
        generator = random.Random(SEED)
        for name in ("plan", "portions", "results/1"):
            for _ in range(6):
                folder, out = self.planned()
                if name.startswith("results"):
                    self.run_step("work", folder)
                content = (folder / name).read_bytes()
                at = generator.randrange(len(content))
                flipped = bytes([content[at] ^ 1 << generator.randrange(8)])
                cut = generator.random() < 0.5
                (folder / name).write_bytes(content[:at] + (b"" if cut else flipped + content[at + 1:]))
                with self.subTest(name=name, at=at, cut=cut):
                    # A part of `portions` that nobody reads any more does not concern commit.
                    self.assert_refused(folder, out, {"plan": ("work", "commit"), "portions": ["work"]}.get(
                        name, ["commit"]))
                    self.run_step("abandon", folder)

    def test_a_result_of_another_portion_is_none(self):
        folder, out = self.planned()
        self.run_step("work", folder)
        shutil.copy(folder / "results" / "0", folder / "results" / "1")
        self.assert_refused(folder, out, ["commit"])
        (folder / "results" / "1").unlink()
        self.run_step("work", folder)
        self.run_step("commit", folder)

    def test_an_input_was_changed(self):
        folder, out = self.planned()
        shard = next(self.source.rglob("*optim_states.pt"))
        os.utime(shard, (1, 1))
        self.assert_refused(folder, out)

    def test_a_record_is_damaged(self):
        out = self.new_path("packed")
        self.assertEqual(run_tool("ckpt-pack", "pack", self.source, out).returncode, 0)
        packed = next(out.rglob("*optim_states.pt.dspack"))
        weights = self.new_path("out")
        content = bytearray(packed.read_bytes())
        content[len(content) // 2] ^= 1
        packed.write_bytes(content)
        folder = self.plan(self.COMMAND, out, weights)
        self.run_step("work", folder, status=3)
        state = self.state(folder)
        self.assertFalse(state["failures"][0]["may_be_tried_again"])
        # Nobody tries it again but who commits, and then nothing is left.
        again = self.run_step("work", folder, status=3)
        self.assertIn("portion ", again.stderr)
        self.run_step("commit", folder, status=3)
        self.assertFalse(weights.exists())
        self.assertEqual(self.left_in(self.root), [])


class PowerTest(PowerCase):
    """The power fails while somebody plans or works: whatever has a result is on the disk."""
    PLAN = ["zero-to-fp32", "in", "place/out", "--emit-plan", "--portions=9", "--threads=1"]
    WORK = ["dsckpt", "work", "place/out", "--share=0/1", "--threads=1"]
    COMMIT = ["dsckpt", "commit", "place/out", "--threads=1"]

    def done(self, folder, command):
        done = self.call(folder, command)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_has_a_result_is_on_the_disk(self):
        source = self.large()
        clean = self.fresh(source, {})
        self.done(clean, ["zero-to-fp32", "in", "place/out"])
        expected = tree(clean / "place")
        for steps, last in (([], self.PLAN), ([self.PLAN], self.WORK), ([self.PLAN, self.WORK], self.COMMIT)):
            folder = self.fresh(source, {})
            for step in steps:
                self.done(folder, step)
            self.assertEqual(self.lose(folder, last, count=self.counts).returncode, 0)
            count = int(self.counts.read_text())
            losses = 0
            for keeps in ("nothing", "names"):
                for at in range(1, count + 1, 1 if self.all else max(1, count // 6)):
                    with self.subTest(command=last, keeps=keeps, at=at):
                        folder = self.fresh(source, {})
                        for step in steps:
                            self.done(folder, step)
                        losses += self.lose(folder, last, keeps, at=at).returncode == -signal.SIGKILL
                        if last is self.PLAN:
                            self.done(folder, self.PLAN)
                        # Names that the commit has given, and that were lost, are given again.
                        self.done(folder, self.COMMIT)
                        self.assertTrue(tree(folder / "place") == expected)
                        shutil.rmtree(folder)
            self.assertGreater(losses, 6)


class CampaignTest(StepsTest):
    """Planners, workers and committers that are killed or stopped at any time, late ones, and two at once."""
    COMMANDS = [["zero-to-fp32", "IN", "OUT"], ["zero-to-fp32", "IN", "OUT", "--safe-serialization"],
                ["zero-to-fp32", "IN", "OUT", "--zstd", "--max-shard-size", "3MB"],
                ["to-dcp", "IN", "OUT", "--dp", "5"], ["to-universal", "IN", "OUT"]]
    launcher = ["srun", "--oversubscribe", "--overcommit", "-N1", "-n1"] if "SLURM_CONF" in os.environ else []

    def test_the_bytes_are_the_same_whoever_is_lost(self):
        source = self.large()
        for number in range(ROUNDS):
            command = self.COMMANDS[number % len(self.COMMANDS)]
            with self.subTest(seed=SEED, round=number, command=command):
                self.round(command, source, random.Random(SEED * 100003 + number))
                if ROUNDS > 100 and number % 50 == 49:
                    print(f"{number + 1} rounds", flush=True)

    def round(self, command, source, generator):
        _, expected = self.expected.setdefault(str(command), None) or self.expected.update(
            {str(command): self.alone(command, source)}) or self.expected[str(command)]
        out = self.new_path("out")
        plan = [*filled(command, source, out), *CUT, "--limit-rate", "40MB", "--resume", "--save-every", "0"]
        self.plan_among_losses(plan, generator, 0.06)
        stopped = self.work_among_losses(out, generator.randrange(2, 7), generator, 0.25)
        committed = tree(out)
        self.assertTrue(committed == expected, "other bytes")
        late = self.start("dsckpt", "work", out)
        self.wake(stopped, (0, 4))
        self.finish(late)
        self.assertTrue(tree(out) == expected, "an output was touched after its commit")
        self.assertEqual(self.left_in(self.root), [])
        shutil.rmtree(out)

    expected = {}


if __name__ == "__main__":
    unittest.main()
