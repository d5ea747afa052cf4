"""Names on the hub and in the module: held against save_pretrained of transformers, which is what they stand for.

Each class has a tiny model with random numbers. zero-to-fp32 of its state_dict has to have the names, shapes
and bits that save_pretrained writes, and to-universal of these the module's. tests/oracle/hub_names_all.py does
it for all.
"""
import os
import pathlib
import tempfile
import unittest

import torch
import transformers
from safetensors.torch import load_file

import tiny_models
import tools

os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"

# The most used, with what is special of each.
CLASSES = [
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM", "PhiForCausalLM",
    "Glm4ForCausalLM", "T5ForConditionalGeneration", "WhisperForConditionalGeneration",  # nothing
    "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeForCausalLM",  # experts
    "MixtralForCausalLM",  # experts, and other names around them
    "GptOssForCausalLM", "Qwen3VLMoeForConditionalGeneration",  # experts that are fused on the hub, too
    "Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration", "Gemma3ForConditionalGeneration",
    "LlavaForConditionalGeneration",  # prefixes
    "BertForMaskedLM", "ViTForImageClassification",  # other names of layers
]


def models_of_parts():
    """Models whose parts are of different types than by default."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    image = {**sizes, "image_size": 32, "patch_size": 8}
    text = {**sizes, "num_key_value_heads": 2, "vocab_size": 200, "head_dim": 16}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    for vision, words in ((transformers.SiglipVisionConfig(**image), transformers.Qwen3MoeConfig(**text, **experts)),
                          (transformers.CLIPVisionConfig(**image), transformers.MixtralConfig(**text)),
                          (transformers.Dinov2Config(**image), transformers.LlamaConfig(**text))):
        config = transformers.LlavaConfig(vision_config=vision, text_config=words, image_token_index=5)
        yield f"{vision.model_type} and {words.model_type}", transformers.LlavaForConditionalGeneration(config)
    yield "vit and bert", transformers.VisionEncoderDecoderModel(
        transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
            transformers.ViTConfig(**image), transformers.BertConfig(**sizes, vocab_size=99)))


class HubNamesTest(unittest.TestCase):

    def check(self, model):
        """Both ways; returns whether names differ."""
        with tempfile.TemporaryDirectory() as folder:
            hub, module = tiny_models.save(model, folder)
            self.assertEqual(tiny_models.check_to_hub(model, hub, module, pathlib.Path(folder, "out")), [])
            self.assertEqual(tiny_models.check_to_module(model, hub, module, folder), ([], []))
            saved, again = tiny_models.tensors_in(hub), pathlib.Path(folder, "again")
            done = tools.run_tool("zero-to-fp32", hub, again, "--safe-serialization", "--dtype=keep")
            self.assertNotIn("names", done.stderr)
            self.assertEqual(tiny_models.differences(saved, tiny_models.tensors_in(again)), [])
            return not set(saved) <= set(model.state_dict())

    def test_names_are_those_of_save_pretrained_and_back(self):
        changed = 0
        for name in CLASSES:
            with self.subTest(name):
                model = tiny_models.make(name)
                self.assertIsNotNone(model, "no tiny model of it")
                changed += self.check(model)
        self.assertGreaterEqual(changed, 6)

    def test_parts_have_the_names_of_their_own_types(self):
        for name, model in models_of_parts():
            with self.subTest(name):
                tiny_models.fill(model, 1)
                self.assertTrue(self.check(model))

    def test_a_model_in_a_wrapper(self):
        """Names with another "model." in front, as Lightning has them. No rule is for them."""
        model = tiny_models.make("Qwen2VLForConditionalGeneration")
        with tempfile.TemporaryDirectory() as folder:
            hub, module = tiny_models.save(model, folder)
            torch.save({f"model.{name}": value for name, value in model.state_dict().items()},
                       module / "pytorch_model.bin")
            for options in (["--strip-prefix=model."], ["--strip-prefix=model.", "--names=hub"]):
                out = pathlib.Path(folder, f"out {len(options)}")
                done = tools.run_tool("zero-to-fp32", module, out, "--safe-serialization", "--dtype=keep", *options)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(
                    tiny_models.differences(tiny_models.tensors_in(hub), tiny_models.with_aliases(out)), [])
            done = tools.run_tool("zero-to-fp32", module, pathlib.Path(folder, "refused"), "--names=hub")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("--strip-prefix model. takes a wrapper's prefix off", done.stderr)

    def test_deepspeeds_functions_have_the_modules_names(self):
        from dsckpt import deepspeed
        case = pathlib.Path(os.environ["DSCKPT_TESTDATA"], "hub_names", "trainer_qwen3moe_z3")
        truth = load_file(case / "expected" / "truth.safetensors")
        with tempfile.TemporaryDirectory() as folder:
            deepspeed.convert_zero_checkpoint_to_state_dict(case / "ckpt", folder, safe_serialization=True)
            for found in (deepspeed.get_fp32_state_dict_from_zero_checkpoint(case / "ckpt"),
                          load_file(pathlib.Path(folder, "model.safetensors"))):
                self.assertEqual(sorted(found), sorted(truth))
                for name, value in truth.items():
                    self.assertTrue(torch.equal(found[name], value.float()), name)


if __name__ == "__main__":
    unittest.main()
