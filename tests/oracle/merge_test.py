"""zero-to-fp32 --merge against peft's merge_and_unload, computed of float64 copies and rounded once."""
import functools
import json
import os
import pathlib
import re
import shutil
import tempfile
import zipfile

import oracle
import peft
import tools
import torch
import transformers
from cli_common import replace_record
from oracle import OracleTest
from safetensors.torch import load_file, save_file
from tools import run_tool

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])


def llama(**settings):
    torch.manual_seed(5)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{
        "vocab_size": 67, "hidden_size": 12, "intermediate_size": 27, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
        "tie_word_embeddings": False, **settings}))


class Layers(torch.nn.Module):
    """One of each kind of layer that LoRA is on; `wide` has rows longer than what is computed at once."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(6)
        self.linear = torch.nn.Linear(10, 7)
        self.wide = torch.nn.Linear(70001, 3)
        self.rows = torch.nn.Linear(13, 5003, bias=False)
        self.flipped = transformers.pytorch_utils.Conv1D(9, 9)
        self.oblong = transformers.pytorch_utils.Conv1D(8, 5)
        self.embedding = torch.nn.Embedding(31, 6)
        self.conv = torch.nn.Conv2d(3, 4, (3, 2))
        self.point = torch.nn.Conv2d(3, 4, 1)


class Experts(torch.nn.Module):

    def __init__(self, transposed, width):
        super().__init__()
        self.is_transposed = transposed
        shapes = (3, 8, 10), (3, width, 8)
        if not transposed:
            shapes = [(count, out, into) for count, into, out in shapes]
        self.gate_up_proj = torch.nn.Parameter(torch.randn(shapes[0]))
        self.down_proj = torch.nn.Parameter(torch.randn(shapes[1]))


class Mixture(torch.nn.Module):

    def __init__(self, transposed, width=5):
        super().__init__()
        torch.manual_seed(7)
        self.router = torch.nn.Linear(8, 3)
        self.experts = Experts(transposed, width)


def trained(model, config):
    """With an adapter whose every value is random."""
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for name, value in wrapped.named_parameters():
            if value.requires_grad:
                value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(len(name))).to(value))
    return wrapped


def merged_in_float64(make, base, adapter):
    """The state_dict of peft's merge of the weights and the adapter in these folders."""
    model = make().double()
    weights = {name: value.double() for name, value in base.items()}
    missing = model.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    model = peft.PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False)
    for name, value in load_file(adapter / "adapter_model.safetensors").items():
        assert any(name.rpartition(".")[0] in own or name in own for own in model.state_dict()), name
    return model.merge_and_unload().state_dict()


def is_rounded(written, exact):
    """True if each element is a value of its type that is nearest to the exact one; of two as near, either."""
    near = exact.to(written.dtype)
    distance = (written.double() - exact).abs()
    return bool((distance <= (near.double() - exact).abs()).all())


class MergeTest(OracleTest):

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def merge(self, source, base, *options, output=None):
        output = output or self.folder / "merged"
        return self.run_well("zero-to-fp32", output, source, output, "--merge", base, "--safe-serialization", *options)

    def save(self, make, config, dtype=torch.float32):
        """A base and an adapter as programs save them, and what they are merged."""
        model = make()
        self.base = {name: value.to(dtype).contiguous() for name, value in model.state_dict().items()}
        (self.folder / "base").mkdir()
        tied = getattr(getattr(model, "config", None), "tie_word_embeddings", False)
        stored = {name: value for name, value in self.base.items() if not (tied and name == "lm_head.weight")}
        save_file(stored, self.folder / "base" / "model.safetensors", {"format": "pt"})
        if hasattr(model, "config"):
            model.config.dtype = dtype
            model.config.architectures = [type(model).__name__]
            model.config.save_pretrained(self.folder / "base")
        trained(model, config).save_pretrained(self.folder / "adapter")
        if config.init_lora_weights is not True:
            return None
        return merged_in_float64(make, self.base, self.folder / "adapter")

    def assert_merged(self, written, exact, dtype=torch.float32):
        self.assertEqual(sorted(written), sorted(exact))
        for name, value in exact.items():
            self.assertEqual((written[name].dtype, written[name].shape), (dtype, value.shape), name)
            self.assertTrue(is_rounded(written[name], value), name)

    def assert_refused(self, status, message, *arguments):
        done = run_tool("zero-to-fp32", *arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(message, done.stderr)
        return done.stderr

    def check(self, make, config, **options):
        exact = self.save(make, config, **options)
        written = load_file(self.merge(self.folder / "adapter", self.folder / "base") / "model.safetensors")
        self.assert_merged(written, exact)
        changed = [name for name, value in self.base.items() if not torch.equal(value.float(), written[name])]
        self.assertTrue(changed)
        return written, changed

    def test_lora_of_a_model_in_every_type_and_format(self):
        exact = self.save(llama, peft.LoraConfig(
            r=3, lora_alpha=5, use_rslora=True, target_modules=["q_proj", "down_proj"],
            rank_pattern={r"layers\.1\.self_attn\.q_proj": 4}, alpha_pattern={"down_proj": 7}), dtype=torch.bfloat16)
        adapter, base = self.folder / "adapter", self.folder / "base"
        for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16), ("float16", torch.float16),
                            ("keep", torch.bfloat16)):
            out = self.merge(adapter, base, "--dtype", name, output=self.folder / name)
            self.assert_merged(load_file(out / "model.safetensors"), exact, dtype)
            config = json.loads((out / "config.json").read_text())
            self.assertEqual(config["dtype"], str(dtype).removeprefix("torch."))
            transformers.LlamaForCausalLM.from_pretrained(out)
        self.run_well("zero-to-fp32", self.folder, adapter, self.folder / "bin", "--merge", base, "--max-shard-size",
                      "2KB", "--keep-fp32", "q_proj", "--dtype", "bf16")
        index = json.loads((self.folder / "bin" / "pytorch_model.bin.index.json").read_text())
        for name, file in index["weight_map"].items():
            value = oracle.load_bin(self.folder / "bin" / file)[name]
            self.assertEqual(value.dtype, torch.float32 if "q_proj" in name else torch.bfloat16)
            self.assertTrue(is_rounded(value, exact[name]), name)

    def test_float32_differs_by_its_own_roundings(self):
        self.save(llama, peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj"]))
        written = load_file(self.merge(self.folder / "adapter", self.folder / "base") / "model.safetensors")
        model = peft.PeftModel.from_pretrained(llama(), self.folder / "adapter")
        for name, value in model.merge_and_unload().state_dict().items():
            torch.testing.assert_close(written[name], value, rtol=2**-22, atol=2**-22)

    LAYERS = ["linear", "wide", "rows", "embedding", "conv", "point"]
    TRANSPOSED = ["flipped", "oblong"]

    def check_layers(self, **settings):
        # peft lets fan_in_fan_out be what the last layer wants.
        for modules, flag in ((self.LAYERS, False), (self.TRANSPOSED, True)):
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            _, changed = self.check(Layers, peft.LoraConfig(r=3, lora_alpha=5, target_modules=modules,
                                                            fan_in_fan_out=flag, **settings))
            self.assertEqual(sorted(changed), sorted(f"{name}.weight" for name in modules))

    def test_layers_of_all_kinds(self):
        self.check_layers()

    def test_dora_of_all_kinds(self):
        self.check_layers(use_dora=True)

    def test_a_square_weight_is_not_guessed(self):
        self.save(Layers, peft.LoraConfig(r=3, target_modules=["flipped", "linear"], fan_in_fan_out=True))
        self.assert_refused(3, "it is unknown whether it is transposed", self.folder / "adapter", self.folder / "out",
                            "--merge", self.folder / "base")

    def test_biases_of_lora_b(self):
        _, changed = self.check(Layers, peft.LoraConfig(r=3, lora_alpha=5, lora_bias=True,
                                                        target_modules=["linear", "wide", "conv"]))
        self.assertEqual(len(changed), 6)

    def test_experts(self):
        """For square ones the others of the module tell whether they are transposed."""
        for transposed, width in ((False, 5), (True, 5), (False, 8), (True, 8)):
            with self.subTest(transposed=transposed, width=width):
                shutil.rmtree(self.folder)
                self.folder.mkdir()
                _, changed = self.check(functools.partial(Mixture, transposed, width), peft.LoraConfig(
                    r=2, lora_alpha=6, target_modules=["router"],
                    target_parameters=["experts.gate_up_proj", "experts.down_proj"]))
                self.assertEqual(len(changed), 3)

    def test_square_experts_alone_are_not_guessed(self):
        self.save(functools.partial(Mixture, False, 8), peft.LoraConfig(
            r=2, target_modules=["router"], target_parameters=["experts.down_proj"]))
        self.assert_refused(3, "whose experts are square", self.folder / "adapter", self.folder / "out", "--merge",
                            self.folder / "base")

    def test_modules_that_are_saved_whole(self):
        _, changed = self.check(llama, peft.LoraConfig(r=3, target_modules=["q_proj"], modules_to_save=["lm_head"]))
        self.assertIn("lm_head.weight", changed)

    def test_rows_of_an_embedding(self):
        written, changed = self.check(llama, peft.LoraConfig(r=3, target_modules=["q_proj"],
                                                             trainable_token_indices=[40, 0, 66]))
        rows = (written["model.embed_tokens.weight"] != self.base["model.embed_tokens.weight"]).any(1)
        self.assertEqual(rows.nonzero().flatten().tolist(), [0, 40, 66])

    def test_a_tied_model_stays_tied(self):
        exact = self.save(functools.partial(llama, tie_word_embeddings=True),
                          peft.LoraConfig(r=3, target_modules=["q_proj"], trainable_token_indices=[4]))
        out = self.merge(self.folder / "adapter", self.folder / "base")
        written = load_file(out / "model.safetensors")
        del exact["lm_head.weight"]
        self.assert_merged(written, exact)
        model = transformers.LlamaForCausalLM.from_pretrained(out)
        self.assertTrue(torch.equal(model.lm_head.weight, written["model.embed_tokens.weight"]))

    def test_tied_rows_that_have_both_names(self):
        """As a run of ZeRO saves them: the output embeddings' adapter shares the tensor of the input embeddings'."""
        exact = self.save(functools.partial(llama, tie_word_embeddings=True),
                          peft.LoraConfig(r=3, target_modules=["q_proj"], trainable_token_indices=[4, 9]))
        del exact["lm_head.weight"]
        file = self.folder / "adapter" / "adapter_model.safetensors"
        tensors = load_file(file)
        file.unlink()
        name, = (name for name in tensors if "trainable_tokens_delta" in name)
        head = name.replace("model.model.embed_tokens", "model.lm_head")
        self.assertNotEqual(head, name)
        for first, second in ((name, head), (head, name)):
            both = {first: tensors[name], second: tensors[name], **tensors}
            torch.save(both, self.folder / "adapter" / "adapter_model.bin")
            out = self.merge(self.folder / "adapter", self.folder / "base", output=self.folder / first)
            self.assert_merged(load_file(out / "model.safetensors"), exact)

    def test_a_base_that_was_changed_before_is_not_guessed(self):
        self.save(llama, peft.LoraConfig(r=3, target_modules=["q_proj"], init_lora_weights="pissa"))
        self.assert_refused(3, "init_lora_weights", self.folder / "adapter", self.folder / "out", "--merge",
                            self.folder / "base")

    def test_other_methods_are_refused_by_their_kind(self):
        for config in (peft.IA3Config(target_modules=["k_proj"], feedforward_modules=[]),
                       peft.LoHaConfig(r=2, target_modules=["q_proj"])):
            with self.subTest(config.peft_type):
                shutil.rmtree(self.folder)
                self.folder.mkdir()
                llama().save_pretrained(self.folder / "base")
                trained(llama(), config).save_pretrained(self.folder / "adapter")
                said = self.assert_refused(3, "is not merged", self.folder / "adapter", self.folder / "out", "--merge",
                                           self.folder / "base")
                self.assertIn("belongs to a PEFT method", said)

    def test_checkpoints_of_deepspeed(self):
        compared = 0
        for case in sorted((TESTDATA / "peft").iterdir()):
            with self.subTest(case.name), tempfile.TemporaryDirectory() as folder:
                adapter = case / "expected" / "adapter"
                base = load_file(case / "base" / "model.safetensors")
                make = functools.partial(transformers.LlamaForCausalLM,
                                         transformers.LlamaConfig.from_pretrained(case / "base"))
                exact = merged_in_float64(make, base, adapter)
                # peft saves biases with it, for it has no other name there.
                for name, value in load_file(adapter / "adapter_model.safetensors").items():
                    plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
                    if plain in exact and value.shape == exact[plain].shape:
                        exact[plain] = value.double()
                for kind, source in (("weights", case / "base"), ("own", "checkpoint")):
                    out = self.merge(case / "ckpt", source, "--peft-config", adapter / "adapter_config.json",
                                     output=pathlib.Path(folder) / kind)
                    self.assert_merged(load_file(out / "model.safetensors"), exact)
                    compared += 1
                model = transformers.LlamaForCausalLM.from_pretrained(pathlib.Path(folder) / "weights").eval()
                live = load_file(case / "expected" / "logits.safetensors")
                with torch.no_grad():
                    logits = model(input_ids=live["tokens"]).logits
                torch.testing.assert_close(logits, live["logits"], rtol=1e-4, atol=1e-4)
        self.assertEqual(compared, 6)

    def program(self, name):
        """A checkpoint without its base, the base as a folder of its own, and all values in float64."""
        case = TESTDATA / "programs" / name
        truth = {key.removeprefix("base_model.model."): value
                 for key, value in load_file(case / "expected" / "truth.safetensors").items()}
        base = {key.replace(".token_adapter", "").replace(".base_layer", ""): value for key, value in truth.items()
                if ".lora_" not in key and "trainable_tokens_delta" not in key}
        (self.folder / name).mkdir()
        save_file(base, self.folder / name / "model.safetensors")
        self.assert_refused(3, "has no frozen parameters", case / "ckpt", self.folder / "out", "--merge", "checkpoint")
        out = self.merge(case / "ckpt", self.folder / name, output=self.folder / "out")
        exact = {key: value.double() for key, value in base.items()}
        return load_file(out / "model.safetensors"), exact, {key: value.double() for key, value in truth.items()}

    def product(self, truth, module, adapter="default"):
        return truth[f"{module}.lora_B.{adapter}.weight"] @ truth[f"{module}.lora_A.{adapter}.weight"]

    def test_the_adapter_of_two_that_was_trained(self):
        written, exact, truth = self.program("two_adapters_z3")
        for layer in (0, 1):
            module = f"model.layers.{layer}.self_attn.q_proj"
            exact[f"{module}.weight"] += 8 / 4 * self.product(truth, module, "first")
        self.assert_merged(written, exact)

    def test_experts_of_deepspeed(self):
        written, exact, truth = self.program("lora_target_parameters_z3")
        for layer in (0, 1):
            module = f"model.layers.{layer}.self_attn.q_proj"
            exact[f"{module}.weight"] += 8 / 2 * self.product(truth, module)
            module = f"model.layers.{layer}.mlp.experts"
            b = truth[f"{module}.lora_B.default.weight"].reshape(48, 2, 4)
            a = truth[f"{module}.lora_A.default.weight"].reshape(4, 2, 16)
            exact[f"{module}.gate_up_proj"] += 8 / 2 * torch.einsum("o r e, e r i -> e o i", b, a)
        self.assert_merged(written, exact)

    def test_tokens_of_deepspeed(self):
        written, exact, truth = self.program("trainable_tokens_z2")
        for layer in (0, 1):
            module = f"model.layers.{layer}.self_attn.q_proj"
            exact[f"{module}.weight"] += 8 / 4 * self.product(truth, module)
        exact["model.embed_tokens.weight"][[1, 5, 7]] = truth[
            "model.embed_tokens.token_adapter.trainable_tokens_delta.default"]
        self.assert_merged(written, exact)

    def test_several_adapters_that_were_trained_are_not_added(self):
        """Layer 1 has one of another name."""
        case = TESTDATA / "peft" / "z2_modules_to_save_w2"
        shutil.copytree(case / "ckpt", self.folder / "ckpt")
        for path in self.folder.glob("ckpt/global_step3/*.pt"):
            with zipfile.ZipFile(path) as archive:
                code = archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))
            other = re.sub(rb"(layers\.1\.self_attn\.[qv]_proj\.lora_[AB]\.)default", rb"\1another", code)
            replace_record(path, "data.pkl", other)
        command = (self.folder / "ckpt", self.folder / "out", "--merge", case / "base", "--peft-config",
                   case / "expected" / "adapter" / "adapter_config.json", "--safe-serialization")
        said = self.assert_refused(2, "several adapters were trained", *command)
        self.assertIn("--exclude '\\.default(\\.|$)'", said)
        self.run_well("zero-to-fp32", self.folder, *command, "--exclude", r"\.default(\.|$)")
        base = load_file(case / "base" / "model.safetensors")
        written = load_file(self.folder / "out" / "model.safetensors")
        self.assertEqual(sorted(name for name in base if not torch.equal(written[name], base[name])),
                         [f"model.layers.1.self_attn.{x}_proj.weight" for x in "qv"])

    def test_copies_that_were_trained_are_tied_no_more(self):
        tied = functools.partial(llama, tie_word_embeddings=True)
        self.save(tied, peft.LoraConfig(r=3, target_modules=["q_proj"], modules_to_save=["lm_head"]))
        out = self.merge(self.folder / "adapter", self.folder / "base")
        adapter = load_file(self.folder / "adapter" / "adapter_model.safetensors")
        model = transformers.LlamaForCausalLM.from_pretrained(out)
        self.assertTrue(torch.equal(model.lm_head.weight, adapter["base_model.model.lm_head.weight"]))
        self.assertTrue(torch.equal(model.model.embed_tokens.weight, self.base["model.embed_tokens.weight"]))

    def test_output_embeddings_keep_the_original_of_a_trained_copy(self):
        def gpt2():
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=31, n_positions=32, n_embd=16, n_layer=1, n_head=2))

        tokens = torch.arange(1, 9)[None]
        for make, module in [(functools.partial(llama, tie_word_embeddings=True), "embed_tokens"), (gpt2, "wte")]:
            with self.subTest(module=module), tempfile.TemporaryDirectory() as folder:
                self.folder = pathlib.Path(folder)
                target = "q_proj" if module == "embed_tokens" else "c_attn"
                self.save(make, peft.LoraConfig(r=3, target_modules=[target], modules_to_save=[module]))
                base = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "base")
                live = peft.PeftModel.from_pretrained(base, self.folder / "adapter").eval()
                out = self.merge(self.folder / "adapter", self.folder / "base")
                merged = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
                self.assertFalse(torch.equal(merged.get_input_embeddings().weight, merged.lm_head.weight))
                with torch.no_grad():
                    torch.testing.assert_close(merged(input_ids=tokens).logits, live(input_ids=tokens).logits)

    def test_weights_stay_tied_only_where_peft_ties_them(self):
        """ensure_weight_tying is for modules of two names, and GPT-2 has others."""
        def gpt2():
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=31, n_positions=32, n_embd=16, n_layer=1, n_head=2))

        for make, module, target in ((functools.partial(llama, tie_word_embeddings=True), "embed_tokens", "q_proj"),
                                     (gpt2, "wte", "c_attn")):
            with self.subTest(module=module), tempfile.TemporaryDirectory() as folder:
                self.folder = pathlib.Path(folder)
                exact = self.save(make, peft.LoraConfig(r=3, target_modules=[target], modules_to_save=[module],
                                                        ensure_weight_tying=True))
                out = self.merge(self.folder / "adapter", self.folder / "base")
                model = transformers.AutoModelForCausalLM.from_pretrained(out)
                for name, value in exact.items():
                    self.assertTrue(is_rounded(model.state_dict()[name], value), name)

    def test_a_trained_copy_of_embeddings_that_three_modules_share_is_refused(self):
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=31, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
        model.save_pretrained(self.folder / "base")
        trained(model, peft.LoraConfig(r=3, target_modules=["q"], modules_to_save=["shared"])).save_pretrained(
            self.folder / "adapter")
        self.assert_refused(3, "encoder, decoder and head share", self.folder / "adapter", self.folder / "out",
                            "--merge", self.folder / "base")

    def test_original_embeddings_in_an_adapter_untie_nothing(self):
        """peft saves them where LoRA is on them, and where they have grown."""
        tied = functools.partial(llama, tie_word_embeddings=True)
        exact = self.save(tied, peft.LoraConfig(r=3, target_modules=["q_proj", "embed_tokens"]))
        adapter = load_file(self.folder / "adapter" / "adapter_model.safetensors")
        self.assertIn("base_model.model.model.embed_tokens.base_layer.weight", adapter)
        out = self.folder / "merged"
        done = run_tool("zero-to-fp32", self.folder / "adapter", out, "--merge", self.folder / "base",
                        "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("output embeddings that are tied to 'model.embed_tokens.weight' change with it", done.stderr)
        del exact["lm_head.weight"]
        self.assert_merged(load_file(out / "model.safetensors"), exact)
        self.assertTrue(json.loads((out / "config.json").read_text())["tie_word_embeddings"])
        # A base with both names.
        shutil.rmtree(self.folder / "base")
        (self.folder / "base").mkdir()
        torch.save(tied().state_dict(), self.folder / "base" / "pytorch_model.bin")
        tied().config.save_pretrained(self.folder / "base")
        out = self.merge(self.folder / "adapter", self.folder / "base", output=self.folder / "both")
        model = transformers.LlamaForCausalLM.from_pretrained(out)
        self.assertTrue(is_rounded(model.lm_head.weight, exact["model.embed_tokens.weight"]))
        self.assertTrue(is_rounded(model.model.embed_tokens.weight, exact["model.embed_tokens.weight"]))
        # Grown.
        shutil.rmtree(self.folder / "adapter")
        model = tied()
        model.resize_token_embeddings(71)
        wrapped = trained(model, peft.LoraConfig(r=3, target_modules=["q_proj"]))
        wrapped.save_pretrained(self.folder / "adapter", save_embedding_layers=True)
        out = self.merge(self.folder / "adapter", self.folder / "base", output=self.folder / "grown")
        merged = transformers.LlamaForCausalLM.from_pretrained(out).eval()
        self.assertIs(merged.lm_head.weight, merged.model.embed_tokens.weight)
        tokens = torch.tensor([[3, 70, 69, 5]])
        with torch.no_grad():
            torch.testing.assert_close(merged(tokens).logits, wrapped.eval()(tokens).logits)

    def test_a_head_that_was_trained_apart_is_written(self):
        """The run had untied it, without a copy of peft's; or what was saved for both tied tensors differs."""
        tied = functools.partial(llama, tie_word_embeddings=True)
        self.save(tied, peft.LoraConfig(r=3, target_modules=["q_proj"]))
        adapter, base = self.folder / "adapter", self.folder / "base"
        both = self.folder / "both"
        shutil.copytree(base, both)
        (both / "model.safetensors").unlink()
        torch.save(tied().state_dict(), both / "pytorch_model.bin")
        saved = load_file(adapter / "adapter_model.safetensors")
        embed = self.base["model.embed_tokens.weight"]
        head = "base_model.model.lm_head.weight"
        save_file({**saved, head: embed + 1}, adapter / "adapter_model.safetensors", {"format": "pt"})
        for folder in (base, both):
            out = self.merge(adapter, folder, output=self.folder / f"of_{folder.name}")
            written = load_file(out / "model.safetensors")
            self.assertTrue(torch.equal(written["lm_head.weight"], embed + 1))
            self.assertTrue(torch.equal(written["model.embed_tokens.weight"], embed))
            self.assertFalse(json.loads((out / "config.json").read_text())["tie_word_embeddings"])
        saved["base_model.model.model.embed_tokens.weight"] = embed + 2
        for folder in (base, both):
            for value in (embed + 1, embed + 2):
                save_file({**saved, head: value}, adapter / "adapter_model.safetensors", {"format": "pt"})
                out = self.folder / f"{folder.name}_{torch.equal(value, embed + 2)}"
                if torch.equal(value, embed + 1):
                    self.assert_refused(3, "are not the same", adapter, out, "--merge", folder, "--safe-serialization")
                    continue
                self.merge(adapter, folder, output=out)
                merged = transformers.LlamaForCausalLM.from_pretrained(out)
                self.assertTrue(torch.equal(merged.model.embed_tokens.weight, embed + 2))
                self.assertIs(merged.lm_head.weight, merged.model.embed_tokens.weight)

    def test_a_head_beside_a_trained_copy_of_tied_embeddings_is_written(self):
        tied = functools.partial(llama, tie_word_embeddings=True)
        self.save(tied, peft.LoraConfig(r=3, target_modules=["q_proj"], modules_to_save=["embed_tokens"]))
        adapter, base = self.folder / "adapter", self.folder / "base"
        both = self.folder / "both"
        shutil.copytree(base, both)
        (both / "model.safetensors").unlink()
        torch.save(tied().state_dict(), both / "pytorch_model.bin")
        saved = load_file(adapter / "adapter_model.safetensors")
        copied, = (value for name, value in saved.items() if name.endswith("embed_tokens.weight"))
        head = self.base["model.embed_tokens.weight"] + 1
        save_file({**saved, "base_model.model.lm_head.weight": head}, adapter / "adapter_model.safetensors",
                  {"format": "pt"})
        for folder in (base, both):
            written = load_file(self.merge(adapter, folder, output=self.folder / f"of_{folder.name}") / "model.safetensors")
            self.assertTrue(torch.equal(written["lm_head.weight"], head))
            self.assertTrue(torch.equal(written["model.embed_tokens.weight"], copied))
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "ensure_weight_tying": True}))
        self.assert_refused(3, "was trained alone, and the adapter keeps it tied", adapter, self.folder / "out", "--merge",
                            base, "--safe-serialization", "--exclude", "embed_tokens")

    def test_a_configuration_that_lists_no_rows_wants_none(self):
        exact = self.save(llama, peft.LoraConfig(r=3, target_modules=["q_proj"]))
        path = self.folder / "adapter" / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "trainable_token_indices": {"embed_tokens": []}}))
        self.assert_merged(load_file(self.merge(self.folder / "adapter", self.folder / "base") / "model.safetensors"), exact)

    def test_a_head_of_another_name_is_not_tied(self):
        self.save(llama, peft.LoraConfig(r=3, target_modules=["q_proj"]))
        path = self.folder / "adapter" / "adapter_model.safetensors"
        save_file({name.replace("model.layers.0.self_attn.q_proj", "language_model.lm_head"): value
                   for name, value in load_file(path).items()}, path, {"format": "pt"})
        self.assert_refused(3, "has no tensor 'language_model.lm_head.weight'", self.folder / "adapter",
                            self.folder / "out", "--merge", self.folder / "base")

    def test_lora_on_tied_output_embeddings_is_refused_for_what_it_is(self):
        self.save(functools.partial(llama, tie_word_embeddings=True),
                  peft.LoraConfig(r=3, target_modules=["q_proj", "lm_head"]))
        said = self.assert_refused(3, "ties 'lm_head.weight' to 'model.embed_tokens.weight': merged, both would change",
                                   self.folder / "adapter", self.folder / "out", "--merge", self.folder / "base")
        self.assertIn("hint: an untied base takes it", said)

    def test_embeddings_that_have_grown(self):
        self.save(llama, peft.LoraConfig(r=3, target_modules=["q_proj"]))
        model = llama()
        model.resize_token_embeddings(71)
        shutil.rmtree(self.folder / "adapter")
        wrapped = trained(model, peft.LoraConfig(r=3, target_modules=["q_proj"]))
        wrapped.save_pretrained(self.folder / "adapter", save_embedding_layers=True)
        out = self.merge(self.folder / "adapter", self.folder / "base")
        merged = transformers.LlamaForCausalLM.from_pretrained(out).eval()
        tokens = torch.tensor([[3, 70, 69, 5]])
        with torch.no_grad():
            torch.testing.assert_close(merged(tokens).logits, wrapped.eval()(tokens).logits)


if __name__ == "__main__":
    tools.main()
