"""zero-to-fp32 --merge into weights that have the hub's names, held against peft's merge_and_unload and
save_pretrained of transformers. All is computed of float64 copies and rounded once.

Adapters of transformers 5 have the module's names, which the files of many models do not have.
"""
import json
import pathlib
import shutil
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny_models
import tools
from oracle import OracleTest
from tools import run_tool

ATTENTION = ["q_proj", "v_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
# Special are: prefixes, names of layers, fused experts, names around experts.
CASES = [
    ("LlavaForConditionalGeneration", {"target_modules": ATTENTION}),
    ("Qwen2VLForConditionalGeneration", {"target_modules": ATTENTION, "use_dora": True}),
    ("Qwen2_5_VLForConditionalGeneration", {"target_modules": ATTENTION + ["qkv"]}),
    ("Gemma3ForConditionalGeneration", {"target_modules": ATTENTION}),
    ("PaliGemmaForConditionalGeneration", {"target_modules": ATTENTION}),
    ("ViTForImageClassification", {"target_modules": ATTENTION, "modules_to_save": ["classifier"]}),
    ("MixtralForCausalLM", {"target_modules": ["q_proj"], "target_parameters": EXPERTS + ["mlp.gate.weight"]}),
    ("Qwen3MoeForCausalLM", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    ("Qwen3MoeForCausalLM", {"target_modules": ["q_proj"], "modules_to_save": ["experts"]}),
    ("Qwen3MoeForCausalLM", {"target_modules": ["q_proj"], "modules_to_save": ["mlp", "embed_tokens"]}),
    ("DeepseekV3ForCausalLM", {"target_modules": ["o_proj"], "target_parameters": EXPERTS}),
    ("Qwen3VLMoeForConditionalGeneration", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
]


class MergeNamesTest(OracleTest):

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def make(self, name, settings):
        """Writes a base and an adapter of it; returns the class and the module's state_dict when both are merged."""
        model = tiny_models.make(name)
        model.save_pretrained(self.folder / "base", max_shard_size="200KB")
        wrapped = peft.get_peft_model(model, peft.LoraConfig(r=3, lora_alpha=5, **settings))
        random = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for value in wrapped.parameters():
                if value.requires_grad:
                    value.copy_(torch.randn(value.shape, generator=random) / 8)
        wrapped.save_pretrained(self.folder / "adapter")
        return getattr(transformers, name)

    def peft_merges(self, model_class):
        """The merged model in float64; its save_pretrained is in the folder "expected"."""
        model = model_class.from_pretrained(self.folder / "base", dtype=torch.float64)
        merged = peft.PeftModel.from_pretrained(
            model, self.folder / "adapter", autocast_adapter_dtype=False).merge_and_unload()
        merged.save_pretrained(self.folder / "expected")
        return merged

    def merge(self, *options, base="base", output="out"):
        output = self.folder / output
        self.run_well("zero-to-fp32", output, self.folder / "adapter", output, "--merge", self.folder / base,
                      "--safe-serialization", *options)
        return output

    def assert_rounded(self, written, exact):
        self.assertEqual(sorted(written), sorted(exact))
        for name, value in exact.items():
            self.assertEqual((written[name].dtype, written[name].shape), (torch.float32, value.shape), name)
            self.assertTrue(torch.equal(written[name], value.float()), name)

    def test_names_and_numbers_are_those_of_peft_and_save_pretrained(self):
        for name, settings in CASES:
            with self.subTest(name, **settings):
                for folder in ("base", "adapter", "expected"):
                    shutil.rmtree(self.folder / folder, ignore_errors=True)
                merged = self.peft_merges(self.make(name, settings))
                out = self.merge(output=f"out {name}")
                self.assert_rounded(tiny_models.tensors_in(out), tiny_models.tensors_in(self.folder / "expected"))
                again, said = type(merged).from_pretrained(out, output_loading_info=True)
                self.assertFalse(said["missing_keys"] or said["unexpected_keys"], said)
                for key, value in again.state_dict().items():
                    self.assertTrue(torch.equal(value, merged.state_dict()[key].to(value.dtype)), key)
                shutil.rmtree(out)

    def test_names_of_the_module_are_written_if_asked_for(self):
        for settings in ({"target_parameters": EXPERTS}, {}):
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            merged = self.peft_merges(self.make("MixtralForCausalLM", {"target_modules": ["q_proj"], **settings}))
            written = tiny_models.tensors_in(self.merge("--names", "module"))
            self.assert_rounded(written, merged.state_dict())

    def test_the_adapter_decides_and_not_the_release_of_the_base(self):
        self.peft_merges(self.make("MixtralForCausalLM", {
            "target_modules": ["q_proj"], "target_parameters": EXPERTS}))
        file = self.folder / "base" / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "transformers_version": "4.57.0"}))
        out = self.merge()
        self.assert_rounded(tiny_models.tensors_in(out), tiny_models.tensors_in(self.folder / "expected"))
        # One of transformers 4, on names that only the files have.
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            (self.folder / "adapter" / name).unlink()
        random = torch.Generator().manual_seed(4)
        module = "model.layers.1.block_sparse_moe.experts.2.w1"
        weight = tiny_models.tensors_in(self.folder / "base")[f"{module}.weight"]
        b = torch.randn(weight.shape[0], 2, generator=random)
        a = torch.randn(2, weight.shape[1], generator=random)
        save_file({f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b},
                  self.folder / "adapter" / "adapter_model.safetensors")
        (self.folder / "adapter" / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["w1"]}))
        written = tiny_models.tensors_in(self.merge(output="older"))
        exact = {name: value.double() for name, value in tiny_models.tensors_in(self.folder / "base").items()}
        exact[f"{module}.weight"] += 2 * b.double() @ a.double()
        self.assert_rounded(written, exact)

    def test_a_base_with_names_of_the_module_gets_those_of_the_hub(self):
        model_class = self.make("Qwen3MoeForCausalLM", {"target_modules": ["q_proj"], "target_parameters": EXPERTS})
        self.peft_merges(model_class)
        (self.folder / "module").mkdir()
        model = model_class.from_pretrained(self.folder / "base")
        save_file(model.state_dict(), self.folder / "module" / "model.safetensors", {"format": "pt"})
        shutil.copy(self.folder / "base" / "config.json", self.folder / "module")
        out = self.merge(base="module")
        self.assert_rounded(tiny_models.tensors_in(out), tiny_models.tensors_in(self.folder / "expected"))

    def test_the_base_of_a_run_gets_the_names_of_the_hub(self):
        """A checkpoint of stage 0 with all parameters of the PeftModel."""
        settings = {"target_modules": ["q_proj"], "target_parameters": EXPERTS}
        model_class = self.make("Qwen3MoeForCausalLM", settings)
        self.peft_merges(model_class)
        model = peft.PeftModel.from_pretrained(model_class.from_pretrained(self.folder / "base"),
                                               self.folder / "adapter", is_trainable=True)
        shapes = {True: {}, False: {}}
        for name, value in model.named_parameters():
            shapes[value.requires_grad][name] = value.shape
        step = self.folder / "run" / "global_step1"
        step.mkdir(parents=True)
        torch.save({"module": model.state_dict(), "buffer_names": [], "optimizer": None,
                    "param_shapes": [shapes[True]], "frozen_param_shapes": shapes[False], "shared_params": {},
                    "frozen_param_fragments": {name: model.get_parameter(name).detach() for name in shapes[False]},
                    "lr_scheduler": None, "sparse_tensor_module_names": [], "skipped_steps": 0, "global_steps": 1,
                    "global_samples": 2, "dp_world_size": 1, "mp_world_size": 1, "ds_version": "0.19.8",
                    "ds_config": {"zero_optimization": {"stage": 0}}}, step / "mp_rank_00_model_states.pt")
        shutil.copy(self.folder / "base" / "config.json", step.parent)
        shutil.copy(self.folder / "adapter" / "adapter_config.json", step.parent)
        out = self.folder / "own"
        self.run_well("zero-to-fp32", out, step.parent, out, "--merge", "checkpoint", "--safe-serialization")
        self.assert_rounded(tiny_models.tensors_in(out), tiny_models.tensors_in(self.folder / "expected"))

    def test_the_base_needs_its_configuration_if_its_names_are_the_hubs(self):
        self.make("LlavaForConditionalGeneration", {"target_modules": ATTENTION})
        (self.folder / "base" / "config.json").unlink()
        done = run_tool("zero-to-fp32", self.folder / "adapter", self.folder / "out", "--merge", self.folder / "base")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("has no tensor 'model.language_model.layers.0.self_attn.q_proj.weight'", done.stderr)
        self.assertIn("with its config.json if its names are the hub's", " ".join(done.stderr.split()))

    def test_trained_experts_are_never_left_out_by_a_hint(self):
        self.make("Qwen3MoeForCausalLM", {"target_modules": ["q_proj"], "modules_to_save": ["experts"]})
        (self.folder / "base" / "config.json").unlink()
        done = run_tool("zero-to-fp32", self.folder / "adapter", self.folder / "out", "--merge", self.folder / "base")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertNotIn("--exclude", done.stderr)

    def test_weights_with_the_hubs_names_get_the_modules_if_asked_for(self):
        for name in ("MixtralForCausalLM", "LlavaForConditionalGeneration"):
            with self.subTest(name):
                model = tiny_models.make(name)
                model.save_pretrained(self.folder / name)
                out = self.folder / f"{name} out"
                self.run_well("zero-to-fp32", out, self.folder / name, out, "--names", "module",
                              "--safe-serialization")
                self.assertEqual(tiny_models.differences(
                    dict(model.state_dict()), tiny_models.with_aliases(out)), [])


if __name__ == "__main__":
    tools.main()
