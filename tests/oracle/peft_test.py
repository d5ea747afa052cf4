"""zero-to-fp32 --peft against peft itself: the same tensors, and a model that loads them answers as the live one did."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile

import oracle
import tools
import torch
from oracle import OracleTest
from safetensors.torch import load_file
from tools import run_tool


def cases():
    root = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "peft"
    return [folder for folder in sorted(root.iterdir()) if folder.is_dir()]


def logits_with(case, adapter):
    import peft
    import transformers
    base = transformers.LlamaForCausalLM.from_pretrained(case / "base", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, adapter).eval()
    with torch.no_grad():
        return model(input_ids=load_file(case / "expected" / "logits.safetensors")["tokens"]).logits


class PeftTest(OracleTest):

    def adapter(self, source, output, *options):
        done = run_tool("zero-to-fp32", source, "--peft", output, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def assert_live(self, case, adapter):
        """Bit for bit what peft's own folder gives here; the live model ran on another processor."""
        own = case / "expected" / "adapter"
        self.assert_same_tensors(load_file(adapter / "adapter_model.safetensors"),
                                 load_file(own / "adapter_model.safetensors"))
        logits = logits_with(case, adapter)
        self.assertTrue(torch.equal(logits, logits_with(case, own)))
        live = load_file(case / "expected" / "logits.safetensors")["logits"]
        torch.testing.assert_close(logits, live, rtol=1e-4, atol=1e-5)

    @contextlib.contextmanager
    def folder_for(self, case):
        with self.subTest(case.name), tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)

    def one_case(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        return cases()[0], pathlib.Path(holder.name)

    def test_with_the_given_configuration_it_is_pefts_own_folder(self):
        for case in cases():
            with self.folder_for(case) as folder:
                config = case / "expected" / "adapter" / "adapter_config.json"
                adapter = self.adapter(case / "ckpt", folder / "adapter", "--peft-config", config)
                self.assert_live(case, adapter)
                self.assertEqual((adapter / "adapter_config.json").read_bytes(), config.read_bytes())
                self.assertEqual(len(list(adapter.iterdir())), 2)

    def test_a_configuration_beside_the_shards_is_found(self):
        for case in cases():
            with self.folder_for(case) as folder:
                shutil.copytree(case / "ckpt", folder / "ckpt")
                shutil.copy(case / "expected" / "adapter" / "adapter_config.json", folder / "ckpt")
                self.assert_live(case, self.adapter(folder / "ckpt", folder / "adapter"))

    def test_a_derived_configuration_gives_the_same_model(self):
        for case in cases():
            with self.folder_for(case) as folder:
                config = json.loads((case / "expected" / "adapter" / "adapter_config.json").read_text())
                adapter = self.adapter(case / "ckpt", folder / "adapter", "--lora-alpha", config["lora_alpha"])
                derived = json.loads((adapter / "adapter_config.json").read_text())
                for key in ("peft_type", "r", "lora_alpha", "bias", "use_dora", "modules_to_save"):
                    self.assertEqual(derived[key], config[key], key)
                self.assert_live(case, adapter)

    def test_without_lora_alpha_nothing_is_guessed(self):
        for case in cases():
            with self.folder_for(case) as folder:
                done = run_tool("zero-to-fp32", case / "ckpt", "--peft", folder / "adapter")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, "lora_alpha")
                self.assertFalse((folder / "adapter").exists())

    def test_a_configuration_of_another_rank_is_refused(self):
        for case in cases():
            with self.folder_for(case) as folder:
                config = json.loads((case / "expected" / "adapter" / "adapter_config.json").read_text())
                config["r"] += 1
                (folder / "config.json").write_text(json.dumps(config))
                done = run_tool("zero-to-fp32", case / "ckpt", "--peft", folder / "adapter", "--peft-config",
                                folder / "config.json")
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stderr, re.compile(r"config\.json: r: .*lora_A.*the tensor has rank"))

    def test_another_type_is_the_rounding(self):
        case, folder = self.one_case()
        config = case / "expected" / "adapter" / "adapter_config.json"
        written = load_file(self.adapter(case / "ckpt", folder / "bf16", "--peft-config", config, "--dtype", "bf16") /
                            "adapter_model.safetensors")
        for name, value in load_file(case / "expected" / "adapter" / "adapter_model.safetensors").items():
            self.assertTrue(oracle.same_bits(written[name], value.bfloat16()), name)

    def test_trained_rows_of_tied_embeddings_are_saved_once(self):
        """The engine has them under the name of each module."""
        import peft
        import transformers
        sizes = {"vocab_size": 67, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 12,
                 "intermediate_size": 27}
        for model, target, module in (
                (transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True)), "q_proj",
                 "embed_tokens"),
                (transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=67, n_embd=12, n_layer=1, n_head=2)),
                 "c_attn", "wte"),
                (transformers.T5ForConditionalGeneration(transformers.T5Config(
                    vocab_size=67, d_model=12, d_kv=6, d_ff=24, num_layers=1, num_heads=2)), "q", "shared")):
            with self.subTest(module), tempfile.TemporaryDirectory() as holder:
                folder = pathlib.Path(holder)
                wrapped = peft.get_peft_model(model, peft.LoraConfig(
                    r=2, target_modules=[target], trainable_token_indices={module: [4, 9]}))
                state = wrapped.state_dict()
                self.assertGreater(sum("trainable_tokens_delta" in name for name in state), 1)
                wrapped.save_pretrained(folder / "own")
                own = load_file(folder / "own" / "adapter_model.safetensors")
                self.assertEqual(sum("trainable_tokens_delta" in name for name in own), 1)
                for order in (1,) if module == "shared" else (1, -1):
                    torch.save(dict(list(state.items())[::order]), folder / "whole.bin")
                    adapter = self.adapter(folder / "whole.bin", folder / f"adapter{order}", "--peft-config",
                                           folder / "own" / "adapter_config.json", "--dtype", "keep")
                    self.assert_same_tensors(load_file(adapter / "adapter_model.safetensors"), own)

    def test_combinations_that_make_no_sense_are_usage_errors(self):
        case, folder = self.one_case()
        for options in ([folder / "out", "--peft", folder / "adapter"], ["--peft", folder / "adapter", "--states"], [],
                        [folder / "out", "--lora-alpha", "3"]):
            done = run_tool("zero-to-fp32", case / "ckpt", *options)
            self.assertEqual(done.returncode, 2, done.stderr)
        plain = next(c for c in oracle.all_cases() if c.stage == 2)
        done = run_tool("zero-to-fp32", plain.load_dir, "--peft", folder / "adapter", "--lora-alpha", "3")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("no trained parameter is part of a PEFT adapter", done.stderr)


if __name__ == "__main__":
    tools.main()
