"""reshard to other tensor-parallel ranks and pipeline stages, from the command line: what it refuses, and says."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import cli_common
import torch_files

TOOL = pathlib.Path(os.environ["DSCKPT_BIN"]) / "reshard"
TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
PIPELINE = "model_parallel/pp2_dp1_z1_bf16"
LAYERS = 7  # of it, with the one that uses the tied embedding again


class RegridTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.out = pathlib.Path(scratch.name) / "out"

    def run_tool(self, name, *options):
        checkpoint = TESTDATA / name / "ckpt" if isinstance(name, str) else name
        return subprocess.run([str(TOOL), str(checkpoint), str(self.out), "--dp", "1", *map(str, options)],
                              capture_output=True, text=True, timeout=60)

    def refused(self, name, options, code, *words):
        done = self.run_tool(name, *options)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertFalse(self.out.exists())

    def planned(self, name, *options):
        done = self.run_tool(name, *options, "--dry-run", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(self.out.exists())
        return json.loads(done.stdout)["data"]

    def test_rows_and_heads_that_the_ranks_cannot_share(self):
        self.refused("model_parallel/autotp2_dp1_z1_bf16", ["--tp", 3], 2, "model.layers.0.self_attn.q_proj.weight",
                     "a size of 16 cannot be divided evenly over 3 tensor-parallel ranks")
        self.refused("model_parallel/autotp2_dp1_z1_uneven", ["--tp", 4], 2,
                     "cannot share its 3 units of size", "such as heads")
        self.refused("megatron/megatron_gpt_tp2_dp2_z2_fp16", ["--tp", 3], 2, "num_attention_heads is 4",
                     "3 tensor-parallel ranks cannot share")

    def test_heads_that_autotps_ranks_share(self):
        split = "model_parallel/autotp2_dp1_z1_bf16"
        self.refused(split, ["--tp", 3, "--kv-heads", 2], 2, "cannot share its 2 units of size")
        self.refused(split, ["--tp", 2, "--kv-heads", 2], 2, "the tensor-parallel ranks stay as they are")
        self.refused(split, ["--tp", 4, "--kv-heads", 1], 2, "its slices are not made of units of size 16")
        self.refused(split, ["--tp", 1, "--kv-heads", 0], 2, "--kv-heads")

    def test_parameters_that_no_rule_is_for_are_named_with_the_rule_to_give(self):
        self.refused("model_parallel/pp2_dp1_z1_bf16", ["--tp", 2], 3, "has no rule that says how",
                     "--tp-rule REGEX=cat:0")
        self.refused("checkpoints/z2_bf16_w2", ["--tp", 2], 3, "has no rule that says how")
        self.refused("megatron/megatron_gpt_dp2_z3_bf16", ["--tp", 2], 3, "word_embeddings.weight", "has no rule that says how")
        self.refused("model_parallel/autotp2_dp1_z1_codegen", ["--tp", 4], 3, "attn.qkv_proj.weight",
                     "has no rule that says how")
        self.refused("megatron/neox_pp1_tp2_dp1_z1_fp16", ["--tp", 4], 3, "nothing says how they go together")

    def test_rules_that_do_not_fit(self):
        self.refused("checkpoints/z2_bf16_w2", ["--tp", 2, "--tp-rule", "nothing=cat:0"], 2, "fits no parameter")
        self.refused("megatron/neox_pp1_tp2_dp1_z1_fp16", ["--tp", 4, "--tp-rule", ".*dense.*=cat:3"], 2,
                     "is not a rule for tensor-parallel slices")

    def test_sums_of_the_ranks_parts_become_those_of_one_rank_only(self):
        rules = [r".*(attention\.dense|mlp\.linear2)\.weight=cat:1", r".*(query_key_value|linear1).*=cat:0",
                 r".*(word_embeddings|final_linear).*=cat:0", r".*norm\..*=average",
                 r".*(attention\.dense|mlp\.linear2)\.bias=sum"]
        words = [word for rule in rules for word in ("--tp-rule", rule)]
        self.refused("megatron/neox_pp1_tp2_dp1_z1_fp16", ["--tp", 4, *words], 2, "dense.bias", "is a sum")

    def test_vocabularies_of_unknown_padding(self):
        rules = [r".*(attention\.dense|mlp\.linear2)\.weight=cat:1", r".*(query_key_value|linear1).*=cat:0",
                 r".*(word_embeddings|final_linear).*=cat:0", r".*norm\..*=average",
                 r".*(attention\.dense|mlp\.linear2)\.bias=sum"]
        words = ["--tp", 1, *(word for rule in rules for word in ("--tp-rule", rule))]
        self.refused("megatron/neox_pp1_tp2_dp1_z1_fp16", words, 3, "nothing tells how many of them are padding",
                     "--padded-vocab-size")
        self.assertEqual(self.planned("megatron/neox_pp1_tp2_dp1_z1_fp16", *words, "--padded-vocab-size", 64)["tp"], 1)
        self.refused("model_parallel/mpu_tp2_dp1_z1_bf16", ["--tp", 2, "--padded-vocab-size", 36], 2, "cannot share")
        self.refused("model_parallel/mpu_tp2_dp1_z1_bf16", ["--tp", 4, "--padded-vocab-size", 42], 2, "cannot share")
        self.refused(PIPELINE, ["--padded-vocab-size", 64], 2, "nothing tells which parameter is a vocabulary")

    def test_a_vocabulary_is_padded_anew_in_the_files_of_layers_too(self):
        sizes = {}
        for rows in (48, 64):
            plan = self.planned("model_parallel/pp2_tp2_dp1_z1_bf16", "--padded-vocab-size", rows)
            sizes[rows] = {pathlib.Path(file["path"]).name: file["bytes"] for file in plan["files"]}
        name = "layer_00-model_00-model_states.pt"
        # Eight more rows of 16 elements of bf16 on each of two ranks.
        self.assertEqual(sizes[64][name] - sizes[48][name], 8 * 16 * 2)

    def test_stages_that_no_layers_are_for(self):
        self.refused("model_parallel/autotp2_dp1_z1_bf16", ["--pp", 2], 2, "is not a pipeline")
        self.refused("model_parallel/autotp2_dp1_z1_bf16", ["--stages", "0"], 2, "is not a pipeline")
        self.refused(PIPELINE, ["--pp", 3], 2, "nothing tells which layers each stage", "--stages gives them")
        self.refused(PIPELINE, ["--pp", 3, "--stages", "0,3"], 2, "names 2 layers for 3 stages")
        self.refused(PIPELINE, ["--pp", 3, "--stages", "1,2,3"], 2, "does not begin with layer 0")
        self.refused(PIPELINE, ["--pp", 3, "--stages", "0,3,3"], 2, "stage 2 would have no layers")
        self.refused(PIPELINE, ["--pp", 2, "--stages", f"0,{LAYERS}"], 2, "stage 1 would have no layers")
        self.refused(PIPELINE, ["--pp", 3, "--stages", "0,3,4"], 2, "stage 1 of 3 stages would have no layers with")
        self.refused(PIPELINE, ["--pp", 3, "--stages", "0,three"], 2, "is not a list of layers")

    def test_other_changes_at_the_same_time(self):
        split = "model_parallel/autotp2_dp1_z1_bf16"
        self.refused(split, ["--tp", 1, "--like", TESTDATA / split / "ckpt"], 2, "the result would be of 1 pipeline")

    def universal(self, name):
        folder = self.out.parent / "universal" / "step"
        subprocess.run([str(TOOL.parent / "to-universal"), str(TESTDATA / name / "ckpt"), str(folder)], check=True,
                       capture_output=True, timeout=60)
        return folder

    def test_layers_that_a_universal_checkpoint_does_not_tell(self):
        """Two layers without parameters may be the tied one; with an example of the new run it is known."""
        folder = self.universal(PIPELINE)
        self.refused(folder, ["--stages", "uniform"], 3, "tied_modules.embed: is tied",
                     "nothing tells whether it is layer 0 or 3", "--like CHECKPOINT takes the layers")
        done = self.run_tool(folder, "--like", TESTDATA / PIPELINE / "ckpt")
        self.assertEqual(done.returncode, 0, done.stderr)
        names = {path.name for path in (self.out / "step").glob("layer_*")}
        self.assertEqual(names, {path.name for path in (TESTDATA / PIPELINE / "ckpt").glob("*/layer_*")})

    def test_buffers_of_a_pipeline_that_a_universal_checkpoint_lacks(self):
        folder = self.universal(PIPELINE)
        shutil.rmtree(folder / "zero" / "1.running")
        self.refused(folder, ["--stages", "uniform"], 3, "1.running: is a buffer of a pipeline, and in no file",
                     "to-universal of dsckpt writes it", "--like CHECKPOINT takes it")
        done = self.run_tool(folder, "--like", TESTDATA / PIPELINE / "ckpt")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr + done.stdout, "lacks have the values of .*: '1.running'")

    def with_buffers(self, *values):
        """A universal checkpoint whose tensor-parallel ranks have these values of one buffer."""
        folder = self.universal("model_parallel/mpu_tp2_dp1_z1_bf16")
        for path, value in zip(sorted(folder.glob("mp_rank_*")), values, strict=True):
            with torch_files.edited(path) as state:
                state["module"]["layers.0.extra"] = torch_files.tensor(value, "float32")
                state["buffer_names"] = [*state["buffer_names"], "layers.0.extra"]
        return folder

    def buffers_in_output(self):
        return [torch_files.load(path)["module"]["layers.0.extra"].values.tolist()
                for path in sorted(self.out.glob("*/mp_rank_*_model_states.pt"))]

    def test_ranks_of_a_universal_checkpoint_keep_their_own_values_of_a_buffer(self):
        done = self.run_tool(self.with_buffers([1, 1], [2, 2]))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.buffers_in_output(), [[1, 1], [2, 2]])

    def test_another_grid_has_the_first_ranks_value_of_a_buffer(self):
        done = self.run_tool(self.with_buffers([1, 1], [2, 2]), "--tp", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("buffer 'layers.0.extra' differs between tensor-parallel ranks; the first rank's is taken",
                      done.stderr + done.stdout)
        self.assertEqual(self.buffers_in_output(), [[1, 1]])

    def test_parts_of_a_buffer_that_no_rule_joins_are_refused(self):
        self.refused(self.with_buffers([1, 1, 1], [2, 2]), ["--tp", 1], 3, "layers.0.extra: the slices",
                     "different shapes, and nothing says how they go together", "--tp-rule")

    def test_a_universal_pipeline_may_have_a_frozen_tied_module(self):
        folder, name = self.universal(PIPELINE), "tied_modules.embed.weight"
        lower = {"4": "3", "5": "4"}  # then only layer 0 can be the tied one

        def renamed(key):
            number, _, rest = key.partition(".")
            return f"{lower.get(number, number)}.{rest}"

        for path in sorted((folder / "zero").glob("[45].*")):
            path.rename(path.with_name(renamed(path.name)))
        value = torch_files.load(folder / "zero" / name / "fp32.pt")["param"]
        for path in folder.glob("mp_rank_*"):
            with torch_files.edited(path) as state:
                state["buffer_names"] = [renamed(each) for each in state["buffer_names"]]
                state["param_shapes"] = [{renamed(key): shape for key, shape in group.items()}
                                         for group in state["param_shapes"]]
                state["frozen_param_shapes"] = {name: group.pop(name) for group in state["param_shapes"] if name in group}
                state["frozen_param_fragments"] = {each: value for each in state["frozen_param_shapes"]}
        for path in (folder / "zero" / name).glob("*.pt"):
            if path.stem != "fp32":
                path.unlink()
        done = self.run_tool(folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in self.out.glob("*/mp_rank_*_model_states.pt"):
            self.assertFalse([group for group in torch_files.load(path)["param_shapes"] if name in group])
        found = torch_files.load(self.out / "step" / "layer_00-model_states.pt")["weight"]
        self.assertEqual(found.shape, value.shape)
        self.assertLess(abs(found.values - value.values).max(), 2.0**-8 * abs(value.values).max())

    def test_a_layer_of_any_number_needs_no_memory(self):
        folder, far = self.universal(PIPELINE), "3000000000."
        for key in ("weight", "bias"):
            (folder / "zero" / f"5.{key}").rename(folder / "zero" / f"{far}{key}")
        for path in sorted(folder.glob("mp_rank_*")):
            with torch_files.edited(path) as state:
                state["param_shapes"] = [{name.replace("5.", far) if name.startswith("5.") else name: shape
                                          for name, shape in group.items()
                                          if "_00_" not in path.name or not name.startswith("tied")}
                                         for group in state["param_shapes"]]
        run = ["prlimit", "--cpu=20", str(TOOL), str(folder), str(self.out), "--dp", "1",
               *cli_common.memory_limit("1GB")]
        done = subprocess.run(run, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 3, done.stderr[-2000:])
        self.assertIn("nothing tells whether it is layer 3 or 5 or 6 or ", done.stderr)
        self.assertLess(len(done.stderr), 1000)
        done = subprocess.run([*run, "--like", str(TESTDATA / PIPELINE / "ckpt")], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 3, done.stderr[-2000:])
        self.assertIn("has a layer 3000000000", done.stderr)

    def test_universal_checkpoints_of_experts_stay_universal(self):
        self.refused(self.universal("model_parallel/moe_ep2_dp2_z1_bf16"), [], 3, "has experts",
                     "checkpoint.load_universal")

    def test_rules_of_a_universal_checkpoint_that_do_not_fit(self):
        """The rules made the parameters of slices: these have to fit both."""
        split = "model_parallel/mpu_tp2_dp1_z1_bf16"
        folder = self.universal(split)
        self.refused(folder, ["--tp-rule", "nothing=cat:0"], 2, "fits no parameter")
        self.refused(folder, ["--tp-rule", r".*input_layernorm.weight=cat:0"], 3, "input_layernorm.weight: has shape",
                     "the slices of the tensor-parallel ranks make")

    def test_a_universal_vocabulary_that_lost_rows(self):
        folder = self.universal("model_parallel/mpu_tp2_dp1_z1_bf16")
        words = folder / "zero" / "embedding.word_embeddings.weight"
        shutil.rmtree(words)
        shutil.copytree(folder / "zero" / "embedding.position_embeddings.weight", words)
        self.refused(folder, ["--tp", 4, "--padded-vocab-size", 64], 3, "embedding.word_embeddings.weight: has ")

    def test_another_set_of_parameters(self):
        self.refused(self.universal("model_parallel/mpu_tp2_dp1_z1_bf16"), ["--freeze", "layernorm"], 3,
                     "whose files a universal checkpoint does not have", "reshard makes native shards of it first")
        whole = self.out.parent / "whole"
        subprocess.run([str(TOOL), str(TESTDATA / "model_parallel/autotp2_dp1_z1_bf16/ckpt"), str(whole), "--dp", "1",
                        "--tp", "1"], check=True, capture_output=True, timeout=60)
        self.refused(whole, ["--resize-vocab", "64"], 3,
                     "universal_checkpoint_info: has the names and shapes of parameters")

    def test_a_universal_pipeline_of_one_stage_has_no_layers(self):
        whole, folder = self.out.parent / "whole", self.out.parent / "universal" / "step"
        for command in ([TOOL, TESTDATA / PIPELINE / "ckpt", whole, "--dp", "1", "--pp", "1"],
                        [TOOL.parent / "to-universal", whole, folder]):
            subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=60)
        for options in ([], ["--pp", 2], ["--like", TESTDATA / PIPELINE / "ckpt"]):
            self.refused(folder, options, 3, "of a pipeline with one stage", "that the run itself has saved")

    def test_weights_have_no_ranks(self):
        weights = self.out.parent / "weights"
        subprocess.run([str(TOOL.parent / "zero-to-fp32"), str(TESTDATA / PIPELINE / "ckpt"), str(weights),
                        "--safe-serialization"], check=True, capture_output=True, timeout=60)
        done = subprocess.run([str(TOOL), str(weights), str(self.out), "--dp", "1", "--tp", "1"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("is not in the files of ZeRO's ranks", done.stderr)

    def test_experts(self):
        self.refused("model_parallel/moe_ep2_dp2_z1_bf16", ["--tp", 2], 3, "has no rule that says how",
                     "--tp-rule REGEX=cat:0")
        self.refused("model_parallel/moe_ep2_dp2_z1_bf16", ["--tp", 2, "--tp-rule", ".*=replicated"], 3,
                     "has experts that every tensor-parallel rank would have whole", "--tp-rule REGEX=cat:0")
        self.refused("model_parallel/autoep2_dp2_z1_bf16", ["--tp", 2], 3, "has experts of AutoEP")
        self.refused("model_parallel/autoep2_autotp2_z1_fp32", ["--tp", 1], 3, "folded with tensor parallelism")

    def test_the_plan_says_the_grid(self):
        plan = self.planned("model_parallel/pp2_tp2_dp2_z1_fp32", "--tp", 1, "--pp", 2)
        self.assertEqual((plan["tp"], plan["pp"], plan["stages"]), (1, 2, [0, 3]))
        self.assertEqual([group["mp_rank"] for group in plan["groups"]], [0, 1])
        names = {pathlib.Path(file["path"]).name for file in plan["files"]}
        self.assertIn("layer_03-model_00-model_states.pt", names)
        self.assertNotIn("layer_03-model_01-model_states.pt", names)

    def test_the_summary_of_every_split_model_that_can_be_listed(self):
        summaries = 0
        for folder in sorted((TESTDATA / "model_parallel").glob("*/ckpt")):
            listed, summary = (subprocess.run([str(TOOL.parent / "ckpt-inspect"), *command, str(folder), "--json"],
                                              capture_output=True, text=True, timeout=60)
                               for command in (["list"], []))
            with self.subTest(folder=str(folder)):
                self.assertEqual(summary.returncode, listed.returncode, summary.stdout)
            summaries += summary.returncode == 0
        self.assertGreater(summaries, 20)


if __name__ == "__main__":
    unittest.main()
