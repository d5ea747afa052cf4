"""reshard of model-parallel checkpoints from the command line: what it refuses, and names."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOL = pathlib.Path(os.environ["DSCKPT_BIN"]) / "reshard"
TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "model_parallel"


class ReshardModelParallelTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def run_tool(self, source, *options):
        return subprocess.run([str(TOOL), str(source), str(self.scratch / "out"), *map(str, options)],
                              capture_output=True, text=True, timeout=60)

    def refused(self, source, options, code, *words):
        done = self.run_tool(source, *options)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertFalse((self.scratch / "out").exists())

    def copy_of(self, name):
        shutil.rmtree(self.scratch / "ckpt", ignore_errors=True)
        shutil.copytree(TESTDATA / name / "ckpt", self.scratch / "ckpt")
        return self.scratch / "ckpt", next((self.scratch / "ckpt").glob("global_step*"))

    def test_degrees_that_do_not_divide_are_usage_errors(self):
        moe = TESTDATA / "moe_ep2_dp4_z2_fp32" / "ckpt"
        self.refused(moe, ["--dp", 3], 2, "3 data-parallel", "2 expert-parallel")
        self.refused(moe, ["--dp", 3, "--ep", 3], 2, "cannot be divided evenly over 3")
        self.refused(TESTDATA / "pp2_dp2_z1_fp32" / "ckpt", ["--dp", 2, "--ep", 2], 2, "has no experts")

    def test_folded_experts_are_unsupported(self):
        self.refused(TESTDATA / "autoep2_autotp2_z1_fp32" / "ckpt", ["--dp", 2], 3, "folded with tensor parallelism")

    def test_stages_that_no_engine_has_or_no_files_are_made_for(self):
        self.refused(TESTDATA / "pp2_dp1_z1_bf16" / "ckpt", ["--dp", 1, "--stage", 2], 2,
                     "a pipeline, which DeepSpeed does not train at stage 2", "--stage 1 and --stage 0")
        self.refused(TESTDATA / "moe_ep2_dp2_z1_bf16" / "ckpt", ["--dp", 4, "--stage", 3], 3,
                     "which it does not train at stage 3", "--stage 0, --stage 1")
        self.refused(TESTDATA / "moe_ep2_dp2_z0_fp32" / "ckpt", ["--dp", 4, "--stage", 1], 3,
                     "not marked as theirs, which only stage 0 takes", "--like CHECKPOINT takes the groups")

    def test_an_optimizer_of_experts_that_is_missing_is_named(self):
        source, folder = self.copy_of("moe_ep2_dp2_z0_fp32")
        (folder / "expp_rank_0_mp_rank_00_optim_states.pt").unlink()
        self.refused(source, ["--dp", 2], 3, "expp_rank_0_mp_rank_00_optim_states.pt is missing")

    def test_an_example_on_another_grid(self):
        self.refused(TESTDATA / "autotp2_dp1_z1_bf16" / "ckpt",
                     ["--dp", 1, "--tp", 1, "--like", TESTDATA / "autotp2_dp1_z1_bf16" / "ckpt"], 2,
                     "1 pipeline stage and 2 tensor-parallel ranks, and the result would be of", "--pp 1 --tp 2 says")

    def test_missing_layers_and_experts_are_named(self):
        for name, missing, said in (("pp2_dp2_z1_fp32", "layer_02-model_states.pt", "layer_02-model_states.pt"),
                                    ("pp2_dp2_z1_fp32", "layer_00-model_states.pt", "tied_modules.embed.weight"),
                                    ("autoep2_dp2_z1_bf16", "layer_0_expert_3_mp_rank_00_model_states.pt",
                                     "layer_0_expert_3_mp_rank_00_model_states.pt")):
            with self.subTest(missing=missing):
                source, folder = self.copy_of(name)
                (folder / missing).unlink()
                self.refused(source, ["--dp", 2], 3, said)
                shutil.rmtree(source)

    def test_swapped_files_of_ranks_and_experts_are_named(self):
        for name, one, other in (
                ("autotp2_dp2_z1_fp32", "zero_pp_rank_0_mp_rank_00_optim_states.pt",
                 "zero_pp_rank_0_mp_rank_01_optim_states.pt"),
                ("moe_ep2_dp4_z2_fp32", "layer_0_expert_1_mp_rank_00_model_states.pt",
                 "layer_0_expert_2_mp_rank_00_model_states.pt")):
            with self.subTest(case=name):
                source, folder = self.copy_of(name)
                (folder / one).rename(folder / "held")
                (folder / other).rename(folder / one)
                (folder / "held").rename(folder / other)
                self.refused(source, ["--dp", 2], 3, f"was saved as {other}", "another rank")
                shutil.rmtree(source)

    def test_json_says_groups_of_every_mp_rank_and_dry_run_writes_nothing(self):
        source = TESTDATA / "pp2_tp2_dp2_z1_fp32" / "ckpt"
        done = self.run_tool(source, "--dp", 3, "--dry-run", "--json")
        plan = json.loads(done.stdout)["data"]
        self.assertEqual([group["mp_rank"] for group in plan["groups"]], [0, 1, 2, 3])
        self.assertEqual((plan["dp"], plan["ep"]), (3, 1))
        self.assertFalse((self.scratch / "out").exists())

    def test_force_replaces_an_earlier_result_of_other_degrees(self):
        source = TESTDATA / "moe_ep2_dp4_z2_fp32" / "ckpt"
        for dp, ep in ((4, 4), (2, 1)):
            done = self.run_tool(source, "--dp", dp, "--ep", ep, "--force")
            self.assertEqual(done.returncode, 0, done.stderr)
        shards = list(self.scratch.glob("out/*/zero_pp_rank_*"))
        self.assertEqual(len(shards), 2)


if __name__ == "__main__":
    unittest.main()
