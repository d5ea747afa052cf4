"""Trainings without ranks, as the Trainer and Accelerate save them on one GPU or with DDP: weights, and an optimizer that
numbers its parameters. Their states become those of other formats under the names that the live model has.
"""
import json
import pathlib
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from oracle import OracleTest, case_named, load_bin, same_bits
from safetensors.torch import load_file, save_file
from tools import run_tool
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer,
                          TrainingArguments)

KEYS = ("exp_avg", "exp_avg_sq")


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": torch.arange(index, index + 8) % 64, "labels": torch.arange(index, index + 8) % 64}


def small_model():
    torch.manual_seed(3)
    return LlamaForCausalLM(LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=11, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=64, tie_word_embeddings=True))


def states_of(model, optimizer):
    """The states of each parameter by its name, from the live optimizer."""
    return {key: {name: optimizer.state[param][key].clone() for name, param in model.named_parameters()
                  if param in optimizer.state} for key in KEYS}


class TrainingsTest(OracleTest):

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory(prefix="dsckpt-trainings-")
        cls.root = pathlib.Path(cls.holder.name)
        cls.trained_run = cls.root / "run"
        model = small_model()
        trainer = Trainer(model, train_dataset=Tokens(), args=TrainingArguments(
            output_dir=str(cls.trained_run), use_cpu=True, max_steps=4, save_steps=2, per_device_train_batch_size=2,
            learning_rate=1e-2, weight_decay=0.1, report_to=[], logging_strategy="no", disable_tqdm=True))
        trainer.train()
        cls.values = {name: param.detach().clone() for name, param in model.named_parameters()}
        cls.states = states_of(model, getattr(trainer.optimizer, "optimizer", trainer.optimizer))
        cls.names = cls.root / "names.txt"
        cls.names.write_text("".join(f"{name}\n" for name in cls.values))
        cls.named = ["--param-names", cls.names]
        cls.newest = cls.trained_run / "checkpoint-4"

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-trainings-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def converted(self, *arguments):
        ran = run_tool(*arguments)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran

    def assert_states(self, checkpoint, values, states, *options):
        out = self.folder / "out"
        self.converted("zero-to-fp32", checkpoint, out, "--states", "--force", *options)
        found = load_bin(out / "pytorch_model.bin")
        for name, value in values.items():
            self.assertTrue(torch.equal(found[name], value), name)
        for key in KEYS:
            found = load_file(out / "optimizer_states" / f"{key}.safetensors")
            self.assertEqual(set(found), set(states[key]))
            for name, value in states[key].items():
                self.assertTrue(torch.equal(found[name], value), (key, name))

    def test_states_have_the_names_of_the_live_model(self):
        for given in (self.trained_run, self.newest, self.newest / "optimizer.pt"):
            with self.subTest(given=given):
                self.assert_states(given, self.values, self.states, *self.named)

    def test_names_of_the_hub_are_those_of_the_optimizers_parameters(self):
        """save_pretrained takes fused experts apart; the optimizer has them fused."""
        torch.manual_seed(4)
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
            hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, head_dim=8, vocab_size=64, num_experts=4, num_experts_per_tok=2))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
        saved = self.folder / "saved"
        model.save_pretrained(saved)
        torch.save(optimizer.state_dict(), saved / "optimizer.pt")
        self.assertTrue(any("experts.3.up_proj" in name for name in load_file(saved / "model.safetensors")))
        names = self.folder / "names.txt"
        names.write_text("".join(f"{name}\n" for name, _ in model.named_parameters()))
        self.assert_states(saved, dict(model.named_parameters()), states_of(model, optimizer), "--param-names", names)

    def test_every_format_has_them(self):
        config = self.folder / "ds.json"
        config.write_text(json.dumps({
            "train_batch_size": 2, "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}}))
        ran = self.converted("reshard", self.trained_run, self.folder / "zero", "--ds-config", config, "--dp", "2",
                             *self.named)
        self.assertIn("checkpoint-4", ran.stderr)
        self.assert_states(self.folder / "zero", self.values, self.states)
        # The groups of a checkpoint of the new run name the numbers as well.
        self.converted("reshard", self.newest, self.folder / "like", "--like", self.folder / "zero", "--dp", "3")
        self.assert_states(self.folder / "like", self.values, self.states)
        self.converted("to-dcp", self.newest, self.folder / "dcp", "--dp", "3", *self.named)
        self.assert_states(self.folder / "dcp", self.values, self.states)
        universal = self.folder / "u" / "universal"
        self.converted("to-universal", "--input-folder", self.newest, "--output-folder", universal, *self.named)
        for name, value in self.states["exp_avg"].items():
            stored = torch.load(universal / "zero" / name / "exp_avg.pt", weights_only=False)
            self.assertTrue(torch.equal(stored["param"], value), name)

    def test_an_optimizer_without_ranks_loads_what_ranks_had(self):
        """There and back: what the engine of DeepSpeed has becomes one file, which torch's optimizer takes."""
        for name in ("z1_bf16opt_tinygroup_w4", "z3_fp32_full_b120_w2", "z1_fp32_sgd_w2", "z2_bf16_w2"):
            case = case_named(name)
            with self.each_case(case) as scratch:
                out = scratch / "out"
                self.converted("zero-to-fp32", case.load_dir, out, "-t", case.facts["tag"], "--torch-optimizer",
                               "--states")
                saved = torch.load(out / "optimizer.pt", weights_only=True)
                weights = load_bin(out / "pytorch_model.bin")
                params = {name: torch.nn.Parameter(weights[name].clone())
                          for group in saved["param_groups"] for name in group["param_names"]}
                groups = [{"params": [params[name] for name in group["param_names"]]} for group in saved["param_groups"]]
                made = torch.optim.SGD if "sgd" in case.name else torch.optim.AdamW
                optimizer = made(groups, lr=1.0)
                optimizer.load_state_dict(saved)
                expected = {tuple(key.split("|")): value for key, value in case.expected("master").items()
                            if not key.endswith("|fp32")}
                found = {(name, key): value for name, param in params.items()
                         for key, value in optimizer.state[param].items() if key != "step"}
                self.assertEqual(set(found), set(expected))
                for key, value in expected.items():
                    self.assertTrue(same_bits(found[key], value), key)
                for param in params.values():
                    param.grad = torch.zeros_like(param)
                optimizer.step()
                # A second reading of it has the names, whatever the order of the weights.
                again = scratch / "again"
                self.converted("zero-to-fp32", out / "optimizer.pt", again, "--states", "--safe_serialization")
                for file in (out / "optimizer_states").iterdir():
                    states, same = load_file(file), load_file(again / "optimizer_states" / file.name)
                    self.assertEqual(set(same), set(states))
                    for key, value in states.items():
                        self.assertTrue(same_bits(same[key], value), key)

    def test_what_is_no_optimizer_is_refused(self):
        for arguments in ([self.newest / "model.safetensors"], [case_named("z1_fp32_elastic_torchadam_w2").load_dir]):
            ran = run_tool("zero-to-fp32", *arguments, self.folder / "out", "--torch-optimizer")
            self.assertIn(ran.returncode, (2, 3), ran.stderr)
            self.assertFalse((self.folder / "out").exists())

    def test_numbers_without_an_order_are_refused(self):
        """safetensors sorts tensors: k, o, q, v, and layer 10 before layer 2."""
        for tool in (["zero-to-fp32", self.newest, self.folder / "out", "--states"],
                     ["to-dcp", self.newest, self.folder / "dcp", "--dp", "2"]):
            ran = run_tool(*tool)
            self.assertNotEqual(ran.returncode, 0)
            self.assertIn("--param-names", ran.stderr)
            self.assertFalse((self.folder / "out").exists() or (self.folder / "dcp").exists())
        # The weights need no order, and nothing is said of states that nobody asked for.
        ran = self.converted("zero-to-fp32", self.trained_run, self.folder / "out")
        self.assertNotIn("states", ran.stderr)
        wrong = self.folder / "wrong.txt"
        wrong.write_text("no.such.name\n" + self.names.read_text())
        ran = run_tool("zero-to-fp32", self.trained_run, self.folder / "other", "--states", "--param-names", wrong)
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertIn("no.such.name", ran.stderr)

    def test_a_state_dict_keeps_the_order(self):
        saved, model, optimizer = self.saved()
        self.assert_states(saved, dict(model.named_parameters()), states_of(model, optimizer))

    def saved(self):
        model, optimizer = self.trained(7)
        folder = self.folder / "saved"
        folder.mkdir()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        return folder, model, optimizer

    def trained(self, seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 8))
        model[0].weight.requires_grad_(False)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        return model, optimizer

    def test_models_of_accelerate_are_told_apart(self):
        accelerator = Accelerator(cpu=True)
        pairs = [self.trained(seed) for seed in (1, 2)]
        prepared = accelerator.prepare(*[each for pair in pairs for each in pair])
        self.assertEqual(len(prepared), 4)
        accelerator.save_state(str(self.folder / "saved"), safe_serialization=False)
        ran = run_tool("zero-to-fp32", self.folder / "saved", self.folder / "out", "--states")
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertIn("pytorch_model_1", ran.stderr)
        for name, (model, optimizer) in zip(("pytorch_model", "pytorch_model_1"), pairs):
            self.assert_states(self.folder / "saved", dict(model.named_parameters()), states_of(model, optimizer),
                               "--model", name)

    def test_files_of_a_number_are_their_own_models(self):
        """The second model has two files and no index. They are not the first one's, which lies beside them."""
        saved, pairs = self.folder / "saved", [self.trained(seed) for seed in (1, 2)]
        saved.mkdir()
        state = pairs[1][0].state_dict()
        parts = [dict(list(state.items())[:3]), dict(list(state.items())[3:])]
        torch.save(pairs[0][0].state_dict(), saved / "pytorch_model.bin")
        for number, part in enumerate(parts, 1):
            save_file(part, saved / f"model_1-0000{number}-of-00002.safetensors")
        for end, (_, optimizer) in zip(("", "_1"), pairs):
            torch.save(optimizer.state_dict(), saved / f"optimizer{end}.bin")
        names = self.folder / "names.txt"
        names.write_text("".join(f"{name}\n" for name, _ in pairs[1][0].named_parameters()))
        model, optimizer = pairs[1]
        self.assert_states(saved, dict(model.named_parameters()), states_of(model, optimizer), "--model", "model_1",
                           "--param-names", names)

    def test_sharded_models_of_accelerate_are_told_apart(self):
        """Two alike of one step: one is not a copy of the other, because both are in one folder."""
        for number in range(2):
            model, optimizer = self.trained(number)
            suffix = f"_{number}"
            dcp.save({"model": model.state_dict()}, checkpoint_id=self.folder / "saved" / f"pytorch_model_fsdp{suffix}")
            state = get_optimizer_state_dict(model, optimizer)
            dcp.save({"optimizer": state}, checkpoint_id=self.folder / "saved" / f"optimizer{suffix}")
        ran = run_tool("zero-to-fp32", self.folder / "saved", self.folder / "out")
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertIn("pytorch_model_fsdp_1", ran.stderr)

    def test_the_optimizers_file_is_verified(self):
        saved, model, optimizer = self.saved()
        self.converted("ckpt-inspect", "verify", saved)
        damaged = bytearray((saved / "optimizer.pt").read_bytes())
        at = damaged.find(optimizer.state[model[2].weight]["exp_avg"].numpy().tobytes())
        self.assertGreater(at, 0)
        damaged[at] ^= 1
        (saved / "optimizer.pt").write_bytes(damaged)
        ran = run_tool("ckpt-inspect", "verify", saved)
        self.assertEqual(ran.returncode, 1, ran.stdout)
        self.assertIn("optimizer.pt", ran.stdout)


if __name__ == "__main__":
    unittest.main()
