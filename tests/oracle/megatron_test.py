"""Checkpoints that Megatron-DeepSpeed and GPT-NeoX saved (testdata/megatron), through every tool, against what their
live engines held. megatron_resume.py checks that the programs load the results of reshard and to-universal.
"""
import argparse
import json
import pathlib
import re
import shutil
import tempfile

import model_parallel_truth as mp
import oracle
import tools
import torch
from oracle import OracleTest
from safetensors.torch import load_file
from tools import run_tool
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

# How GPT-NeoX's slices go together, which its files do not say; after tools/ckpts/convert_neox_to_hf.py.
NEOX_RULES = (r".*(attention\.dense|mlp\.linear2)\.weight=cat:1",
              r".*(query_key_value|mlp\.linear1)\.(weight|bias)=cat:0",
              r".*(word_embeddings|final_linear)\.weight=cat:0",
              r".*(norm|layernorm)\.(weight|bias)=average",
              r".*(attention\.dense|mlp\.linear2)\.bias=sum")  # each rank adds its own, under gpt_j_residual
# Megatron-DeepSpeed says of them what holds for a tied embedding only: here DeepSpeed would put copies side by side.
UNTIED, POSITIONS = "megatron_swiglu_tp2_dp2_z1_fp32", (r".*position_embeddings\.weight=replicated", )


def cases():
    return oracle.cases_in("megatron")


def named(name):
    case, = (each for each in oracle.every_case("megatron") if each.name == name)
    return case


def needs_rules(case):
    return case.facts["kind"] == "neox" and case.facts["topology"]["tp"] > 1


def tied_names(case):
    return {alias: owner for rank in case.facts["ranks"] for alias, owner in rank["tied"].items()}


def trained(case):
    """(name, state) -> what the live engines held, whole. Every rank has the same states of sums."""
    rules, summed = case.facts["rules"], set(case.facts["rules"].get("sum", ()))
    slices = {}
    for key, value in case.expected("live").items():
        name, state, pp, tp, _ = key.split("|")
        slices.setdefault((name, state), {}).setdefault(pp, {})[tp] = value
    topology = case.facts["topology"]
    if topology["pp"] == topology["tp"] == 1:  # nothing is merged, and vocabularies stay padded
        return {key: next(iter(stages["pp0"].values())) for key, stages in slices.items()}
    result = {}
    for (name, state), stages in slices.items():
        ranks = stages[min(stages)]
        parts = [ranks[tp] for tp in sorted(ranks)]
        if name not in summed:
            result[name, state] = mp.merge(case, name, parts)[0]
        else:
            total = sum(part.double() for part in parts).float()
            result[name, state] = total if state == "fp32" else parts[0]
    assert set(rules) <= {"whole", "cat_dim_0", "cat_dim_1", "replicated", "average", "two_sub_params", "sum",
                          "vocabulary", "on_several_stages"}
    return result


class MegatronTest(OracleTest):

    def cases(self, wanted=lambda case: True):
        found = [case for case in cases() if wanted(case)]
        self.require(found, "checkpoint of Megatron's or GPT-NeoX's")
        return found

    def options(self, case):
        rules = NEOX_RULES if needs_rules(case) else POSITIONS if case.name == UNTIED else ()
        return [part for rule in rules for part in ("--tp-rule", rule)]

    def test_weights_are_what_the_engines_held(self):
        for case in self.cases():
            with self.each_case(case) as folder:
                done = run_tool("zero-to-fp32", case.load_dir, folder, *self.options(case))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("not a tensor", done.stderr)
                written = oracle.load_bin(folder / "pytorch_model.bin")
                expected = {name: value for (name, state), value in trained(case).items() if state == "fp32"}
                if not case.facts["has_masters"]:
                    self.assertIn("weights without fp32 masters", done.stderr)
                    expected = {name: value.to(torch.bfloat16).float() for name, value in expected.items()}
                for name, value in expected.items():
                    self.assertTrue(oracle.same_bits(written[name], value.contiguous()), name)
                self.assertEqual(set(written) - set(expected), set(tied_names(case)) & set(written))

    def test_states_are_the_optimizers(self):
        for case in self.cases(lambda case: case.facts["has_masters"]):
            with self.each_case(case) as folder:
                self.convert(case.load_dir, folder, "--states", "--safe-serialization", *self.options(case))
                for (name, state), value in trained(case).items():
                    if state != "fp32":
                        written = load_file(folder / "optimizer_states" / f"{state}.safetensors")[name]
                        self.assertTrue(oracle.same_bits(written, value.contiguous()), f"{name} {state}")

    def test_dcp_has_the_whole_model_and_its_optimizer(self):
        for case in self.cases(lambda case: case.facts["has_masters"]):
            with self.each_case(case) as folder:
                self.run_well("to-dcp", folder, case.load_dir, folder / "dcp", "--dp", "2", *self.options(case))
                dcp_to_torch_save(folder / "dcp", folder / "whole.pt")
                state = torch.load(folder / "whole.pt", weights_only=False)
                for (name, key), value in trained(case).items():
                    held = state["model"][name] if key == "fp32" else state["optim"]["state"][name][key]
                    self.assertTrue(oracle.same_bits(held, value.contiguous()), f"{name} {key}")
                groups = state["optim"]["param_groups"]
                self.assertEqual([group["lr"] for group in groups], case.facts["lr_at_save"])
                self.assertEqual({name for group in groups for name in group["params"]},
                                 {name for name, _ in trained(case)})

    def test_slices_that_no_rule_is_for_are_refused(self):
        for case in self.cases(needs_rules):
            with self.each_case(case) as folder:
                done = run_tool("zero-to-fp32", case.load_dir, folder / "none")
                self.assertEqual(done.returncode, 3)
                self.assertRegex(done.stderr, "slices of the tensor-parallel ranks differ, and nothing says how")
                self.assertIn("average or sum", done.stderr)

    def test_a_rule_that_the_slices_contradict_is_refused(self):
        case = named(UNTIED)
        with self.each_case(case) as folder:
            done = run_tool("zero-to-fp32", case.load_dir, folder / "out")
            self.assertEqual(done.returncode, 3)
            self.assertIn("1.position_embeddings.weight: says that the tensor-parallel ranks have parts of it, but "
                          "they all have the same", done.stderr)
            self.assertIn("--tp-rule 'REGEX=replicated'", done.stderr)

    def test_universal_checkpoints_hold_the_same(self):
        for case in self.cases():
            with self.each_case(case) as folder:
                done = run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder", folder / "out")
                if self.options(case):  # a loader would not know how to cut them again
                    self.assertEqual(done.returncode, 3)
                    self.assertRegex(done.stderr, "nothing says how they go together|they all have the same")
                    continue
                if not case.facts["has_masters"]:
                    self.assertEqual(done.returncode, 3)
                    self.assertIn("only the 16-bit weights", done.stderr)
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                for (name, state), value in trained(case).items():
                    found = torch.load(folder / "out" / "zero" / name / f"{state}.pt", weights_only=False)
                    found = found["param"] if isinstance(found, dict) else found
                    self.assertTrue(torch.equal(found.detach().reshape(-1), value.reshape(-1)), f"{name} {state}")

    def test_vocabularies_lose_their_padding(self):
        """62 words, padded to 64 rows of which nothing is learned."""
        compared = 0
        for case in self.cases(lambda case: "vocabulary" in case.facts["rules"] and case.facts["topology"]["tp"] > 1):
            with self.each_case(case) as folder:
                written = self.convert(case.load_dir, folder, *self.options(case))
                for name in case.facts["rules"]["vocabulary"]:
                    rows = oracle.load_bin(written / "pytorch_model.bin")[name].shape[0]
                    self.assertEqual(rows, case.facts["vocabulary"])
                    compared += 1
        self.require(compared, "vocabularies")

    def test_they_are_whole_and_harmless(self):
        for case in self.cases():
            with self.subTest(case=case.name):
                done = run_tool("ckpt-inspect", "scan", case.load_dir)
                self.assertEqual(done.returncode, 0, done.stdout)
                kinds = dict(line.split("\t")[1::-1] for line in done.stdout.splitlines())
                self.assertEqual(set(kinds.values()), {"harmless"})
                if case.facts["kind"] == "megatron":
                    self.assertIn("argparse.Namespace", kinds)
                    self.assertIn("megatron.core.enums.ModelType", kinds)
                done = run_tool("ckpt-inspect", "verify", case.load_dir, *self.options(case))
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_summary_says_what_it_is(self):
        for case in self.cases():
            with self.subTest(case=case.name):
                done = run_tool("ckpt-inspect", "--json", case.load_dir, *self.options(case))
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f'"{case.facts["release"]}"', done.stdout)
                self.assertNotIn("not a tensor", done.stderr)

    def test_resharded_they_hold_the_same(self):
        for case in self.cases():
            with self.each_case(case) as folder:
                for ranks in (1, 3):
                    done = run_tool("reshard", case.load_dir, folder / str(ranks), "--dp", ranks)
                    if not case.facts["has_masters"]:
                        self.assertEqual(done.returncode, 3, done.stderr)
                        self.assertIn("neither fp32 masters nor optimizer states", done.stderr)
                        continue
                    self.assertEqual(done.returncode, 0, done.stderr)
                    if not self.options(case):
                        done = run_tool("ckpt-inspect", "diff", case.load_dir, folder / str(ranks))
                        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    done = run_tool("ckpt-inspect", "verify", folder / str(ranks), *self.options(case))
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertNotIn("not checked", done.stderr)

    def test_what_megatron_keeps_beside_the_tag_comes_along(self):
        case = named("megatron_gpt_tp2_dp2_z2_fp16")
        with self.each_case(case) as folder:
            self.run_well("reshard", folder, case.load_dir, folder / "out", "--dp", 1)
            name = "latest_checkpointed_iteration.txt"
            self.assertEqual((folder / "out" / name).read_text(), (case.load_dir / name).read_text())
        case = named("neox_dp2_z2_fp32")
        with self.each_case(case) as folder:
            self.assertEqual(json.loads((case.tag_folder / "configs" / "tiny.yml").read_text())["num_layers"], 2)
            done = run_tool("reshard", case.load_dir, folder / "out", "--dp", 1)
            self.assertIn("configs is a folder beside the shards and is left out", done.stderr)

    def test_module_stays_nested(self):
        """Megatron's own load_state_dict asks for the dicts that its state_dict had."""
        case = named("megatron_gpt_tp2_dp2_z2_fp16")
        with self.each_case(case) as folder:
            self.run_well("reshard", folder, case.load_dir, folder / "out", "--dp", 1)
            listed = []
            for where in (case.load_dir, folder / "out"):
                done = run_tool("ckpt-inspect", "raw", where / case.facts["tag"] / "mp_rank_00_model_states.pt")
                self.assertEqual(done.returncode, 0, done.stderr)
                listed.append(re.findall(r"'(language_model|embedding|encoder|word_embeddings)':", done.stdout))
            self.assertGreaterEqual(len(listed[0]), 4)
            self.assertEqual(listed[0], listed[1])

    def test_stripped_they_have_the_same_weights(self):
        for case in self.cases(lambda case: case.facts["has_masters"]):
            with self.each_case(case) as folder:
                rules = self.options(case)
                self.run_well("ckpt-pack", folder, "strip", case.load_dir, folder / "out", "--keep", "weights", *rules)
                for source, out in ((case.load_dir, "before"), (folder / "out", "after")):
                    self.convert(source, folder / out, *rules)
                before, after = (oracle.load_bin(folder / out / "pytorch_model.bin") for out in ("before", "after"))
                self.assert_same_tensors(after, before)

    def test_megatrons_own_iterations_are_files_of_tensors(self):
        """The files that Megatron-LM saves without DeepSpeed, built as its save_checkpoint does."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            file = folder / "iter_0000010" / "mp_rank_00" / "model_optim_rng.pt"
            file.parent.mkdir(parents=True)
            (folder / "latest_checkpointed_iteration.txt").write_text("10")
            torch.save({"args": argparse.Namespace(hidden_size=4), "checkpoint_version": 3.0, "iteration": 10,
                        "model": {"language_model": {"encoder": {"weight": torch.ones(2, 3)}}}}, file)
            done = run_tool("ckpt-inspect", "list", file)
            self.assertIn("model.language_model.encoder.weight\ttensor\tfloat32\t[2, 3]", done.stdout)
            self.assertEqual(run_tool("ckpt-inspect", "scan", folder).returncode, 0)
            for arguments in (("zero-to-fp32", folder, folder / "out"), ("reshard", folder, folder / "out", "--dp", 1)):
                done = run_tool(*arguments)
                self.assertEqual(done.returncode, 3)
                self.assertIn("holds no DeepSpeed shards", done.stderr)

    def test_a_lost_layer_is_named(self):
        case = named("neox_pp1_tp2_dp1_z1_fp16")
        with self.each_case(case) as folder:
            shutil.copytree(case.load_dir, folder / "ckpt")
            (folder / "ckpt" / case.facts["tag"] / "layer_03-model_01-model_states.pt").unlink()
            done = run_tool("zero-to-fp32", folder / "ckpt", folder / "out", *self.options(case))
            self.assertEqual(done.returncode, 3)
            self.assertIn("layer_03-model_01-model_states.pt", done.stderr)


if __name__ == "__main__":
    tools.main()
