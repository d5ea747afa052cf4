"""Which of the states that lie in a folder each tool takes: the newest of one model, or none and a list.

SCENES=500 makes that many folders in place of some; SEED another kind of chance.
"""
import os
import pathlib
import re
import shutil

import cli_common
import torch_files
import training_folders
from cli_common import CliTest
from tools import run_tool

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])


class SavedStatesTest(CliTest):

    def assert_right_weights(self, scene, output):
        found = torch_files.load(output / "pytorch_model.bin")
        taken = [state for state in scene.states if self.is_of(state.case, found)]
        self.assertTrue(taken, "the weights of no state")
        self.assertTrue(any(state in taken for state in scene.right),
                        f"took {[state.path for state in taken]}, not {[state.path for state in scene.right]}")

    @staticmethod
    def is_of(case, found):
        truth = case.truth()
        return set(truth) == set(found) and all(torch_files.same_bits(found[name], truth[name]) for name in truth)

    def check(self, scene, scratch):
        output = scratch / "weights"
        ran = run_tool("zero-to-fp32", scene.folder, output, *scene.arguments)
        chosen = re.findall("reading (.*?),", ran.stderr)
        if ran.returncode == 0:
            self.assert_right_weights(scene, output)
        else:
            self.assertEqual(ran.returncode, 3, ran.stderr)
            self.assertFalse(scene.clear, ran.stderr)
            self.assertIn("holds", ran.stderr)
            for state in scene.states:
                self.assertIn(str(pathlib.Path(state.path)), ran.stderr)
        for tool, *arguments in [("reshard", scene.folder, scratch / "r", "--dp", "1"),
                                 ("to-universal", "--input-folder", scene.folder, "--output-folder", scratch / "u/u"),
                                 ("to-dcp", scene.folder, scratch / "d", "--dp", "1")]:
            other = run_tool(tool, *arguments, "--dry-run", *scene.arguments)
            self.assertEqual(other.returncode, ran.returncode, (tool, other.stderr))
            self.assertEqual(re.findall("reading (.*?),", other.stderr), chosen, tool)
        summary = run_tool("ckpt-inspect", scene.folder, *scene.arguments)
        self.assertEqual(summary.returncode, ran.returncode, summary.stderr)

    def test_the_right_one_or_none_in_folders_made_by_chance(self):
        scratch = self.new_path("scenes")
        maker = training_folders.Maker(scratch, int(os.environ.get("SEED", "1")))
        for number in range(int(os.environ.get("SCENES", "24"))):
            scene = maker.make(number)
            with self.subTest(number=number, what=scene.what, arguments=scene.arguments):
                self.check(scene, scene.folder.parent)
            shutil.rmtree(scene.folder.parent)

    def test_weights_beside_shards_without_latest_are_two_answers(self):
        scratch = self.scratch("z2_bf16_w2")
        (scratch.folder / "latest").unlink()
        torch_files.save_file({"a": torch_files.zeros(2)}, scratch.folder / "model.safetensors")
        for tool, *arguments in [("zero-to-fp32", scratch.folder, self.new_path()),
                                 ("to-universal", scratch.folder, self.new_path() / "u"),
                                 ("ckpt-inspect", scratch.folder), ("ckpt-inspect", "verify", scratch.folder)]:
            done = run_tool(tool, *arguments)
            self.assertEqual(done.returncode, 3, done.stderr)
            for text in ("model.safetensors", scratch.tag.name, "give one of them"):
                self.assertIn(text, done.stderr)
        for path in (scratch.tag, scratch.folder / "model.safetensors"):
            self.assertEqual(run_tool("zero-to-fp32", path, self.new_path()).returncode, 0)

    def copy(self, case, folder, step):
        shutil.copytree(self.scratch(case).tag, folder)
        cli_common.set_step(folder, step)

    def test_one_of_two_models_is_averaged_and_converted_at_each_step(self):
        runs = self.new_path("runs")
        self.copy("z2_bf16_w2", runs / "actor" / "step_1", 1)
        for step in (1, 2, 3):
            self.copy("z1_fp32_w2", runs / "critic" / f"step_{step}", step)
        self.copy("z1_fp32_w2", runs.parent / "other" / "step_1", 1)  # of nobody who was asked
        out = self.new_path()
        done = run_tool("zero-to-fp32", "--average", runs, out, "--last", "2", "--model", "critic")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step_2 (50.0 %), step_3 (50.0 %)", done.stderr)
        self.assertTrue(self.is_of(self.scratch("z1_fp32_w2").case, torch_files.load(out / "pytorch_model.bin")))
        done = run_tool("zero-to-fp32", "--average", runs, self.new_path(), "--last", "2")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("--model", done.stderr)
        each = self.new_path()
        done = run_tool("zero-to-fp32", runs, each, "--tag", "all", "--model", "critic")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(path.name for path in each.iterdir()), ["step_1", "step_2", "step_3"])
        done = run_tool("ckpt-inspect", "verify", runs, "--tag", "all", "--model", "critic")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("actor", done.stdout)

    def test_every_tag_of_the_working_folder_counts_once(self):
        scratch = self.scratch("z2_bf16_w2")
        older = scratch.tag.with_name("global_step1")
        shutil.copytree(scratch.tag, older)
        cli_common.set_step(older, 1)
        out = self.new_path("every")
        done = run_tool("zero-to-fp32", ".", out, "--tag", "all", cwd=scratch.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(path.name for path in out.iterdir()), sorted([older.name, scratch.tag.name]))
        done = run_tool("zero-to-fp32", "--average", ".", self.new_path(), "--last", "3", cwd=scratch.folder)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("has 2 complete tags", done.stderr)

    def test_a_model_that_is_named_is_never_passed_over(self):
        scratch = self.scratch("z2_bf16_w2")
        dcp = TESTDATA / "dcp" / "nested"
        shutil.copytree(dcp, scratch.folder / "dcp")
        done = run_tool("zero-to-fp32", dcp, alone := self.new_path())
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run_tool("zero-to-fp32", scratch.folder, out := self.new_path(), "--model", "model")
        self.assertEqual(done.returncode, 0, done.stderr)  # though `latest` names the shards
        expected, found = (torch_files.load(path / "pytorch_model.bin") for path in (alone, out))
        self.assertEqual(set(found), set(expected))
        for folder in (scratch.folder, scratch.tag, TESTDATA / "torch_dist" / "tp1_pp1_moe" / "ckpt"):
            for tool, *options in (("zero-to-fp32", ), ("to-universal", ), ("to-dcp", "--dp", "1")):
                done = run_tool(tool, folder, self.new_path() / "u", *options, "--model", "NONSENSE")
                self.assertEqual(done.returncode, 2, (folder, done.stderr))
                self.assertIn("called 'NONSENSE'", done.stderr)

    def hinted_file(self, folder):
        """The hint for states in one folder names a file, which is of one of them."""
        done = run_tool("zero-to-fp32", folder, self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        found = re.search("give the file of one: (.*)", done.stderr)
        self.assertTrue(found, done.stderr)
        return pathlib.Path(found[1])

    def test_a_file_tells_shards_from_dcp_in_one_folder(self):
        scratch = self.scratch("z2_bf16_w2")
        folder = scratch.tag
        dcp = self.new_path("dcp")
        self.assertEqual(run_tool("to-dcp", folder, dcp, "--dp", "1").returncode, 0)
        for path in dcp.iterdir():
            shutil.copy(path, folder / path.name)
        for path in (self.hinted_file(folder), next(folder.glob("*optim_states.pt")), folder / ".metadata"):
            done = run_tool("zero-to-fp32", path, self.new_path())
            self.assertEqual(done.returncode, 0, (path, done.stderr))

    def test_a_file_tells_sets_of_ranks_in_one_folder(self):
        folder = self.new_path("ranks")
        folder.mkdir()
        for ranks, first in ((1, 0), (2, 10)):
            for rank in range(ranks):
                torch_files.save({"a": torch_files.full(2, value=float(first + rank))},
                                 folder / f"model_world_size_{ranks}_rank_{rank}.pt")
        hinted = self.hinted_file(folder)
        self.assertRegex(hinted.name, "model_world_size_[12]_rank_0.pt")
        done = run_tool("zero-to-fp32", folder / "model_world_size_1_rank_0.pt", self.new_path())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(run_tool("ckpt-inspect", "list", hinted).returncode, 0)


if __name__ == "__main__":
    cli_common.main()
