"""zero-to-fp32 --merge of an adapter made by hand, against the product that NumPy computes in double precision."""
import json
import os
import pathlib

import numpy

import cli_common
import ranks
import tools
import torch_files
from cli_common import CliTest

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "use_dora": False, "init_lora_weights": True}
# Rows that do not end where units of 256 KiB do, and one that is longer than a unit.
SHAPES = {"model.q.weight": (523, 301), "model.long.weight": (2, 90001), "model.norm.weight": (301,)}
TARGETS = ("model.q", "model.long")


class MergeTest(CliTest):

    def setUp(self):
        super().setUp()
        random = numpy.random.default_rng(3)
        self.base = {name: torch_files.randn(*shape, random=random, dtype="bfloat16")
                     for name, shape in SHAPES.items()}
        self.lora = {}
        for module in TARGETS:
            out, columns = SHAPES[module + ".weight"]
            self.lora[f"{module}.lora_A.weight"] = torch_files.randn(4, columns, random=random)
            self.lora[f"{module}.lora_B.weight"] = torch_files.randn(out, 4, random=random)

    def folders(self, config=None, **more):
        """BASE and an adapter as peft saves it."""
        base, adapter = self.new_path("base"), self.new_path("adapter")
        for folder in (base, adapter):
            folder.mkdir()
        torch_files.save_file(self.base, base / "model.safetensors")
        (base / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"}))
        torch_files.save_file({f"base_model.model.{name}": value for name, value in {**self.lora, **more}.items()},
                              adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
        return base, adapter

    def merged(self, scale=1.5, magnitudes=None):
        """In float64."""
        exact = {name: value.values.astype("float64") for name, value in self.base.items()}
        for module in TARGETS:
            a, b = (self.lora[f"{module}.lora_{x}.weight"].values.astype("float64") for x in "AB")
            value = exact[module + ".weight"] + scale * (b @ a)
            if magnitudes:
                norms = numpy.sqrt((value * value).sum(1))
                value *= (magnitudes[module].values.astype("float64") / norms)[:, None]
            exact[module + ".weight"] = value
        return exact

    def run_merge(self, base, adapter, *options):
        out = self.new_path("out")
        done = self.tool("zero-to-fp32", adapter, out, "--merge", base, "--safe-serialization", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out

    def assert_rounded(self, out, exact, dtype="float32"):
        """But where the last bit of a sum in double precision decides."""
        written = torch_files.load_file(out / "model.safetensors")
        self.assertEqual(sorted(written), sorted(exact))
        for name, value in exact.items():
            self.assertEqual(written[name].dtype, dtype)
            wanted = torch_files.tensor(value.astype("float32")).to(dtype)
            wrong = (written[name].array != wanted.array).sum()
            self.assertLessEqual(wrong, value.size // 10000, name)
            numpy.testing.assert_allclose(written[name].values, wanted.values, rtol=2**-6 if dtype == "bfloat16" else 3e-7)
        return written

    def test_each_element_is_rounded_once(self):
        base, adapter = self.folders()
        self.assert_rounded(self.run_merge(base, adapter), self.merged())
        out = self.run_merge(base, adapter, "--dtype", "keep")
        self.assert_rounded(out, self.merged(), "bfloat16")
        self.assertEqual(json.loads((out / "config.json").read_text())["dtype"], "bfloat16")
        out = self.run_merge(base, adapter, "--dtype", "auto")
        self.assert_rounded(out, self.merged(), "bfloat16")
        base, adapter = self.folders({"use_rslora": True})
        self.assert_rounded(self.run_merge(base, adapter), self.merged(scale=3.0))

    def test_dora_divides_by_the_norms_of_rows(self):
        magnitudes = {module: torch_files.randn(SHAPES[module + ".weight"][0]) for module in TARGETS}
        base, adapter = self.folders({"use_dora": True}, **{
            f"{module}.lora_magnitude_vector": value for module, value in magnitudes.items()})
        self.assert_rounded(self.run_merge(base, adapter), self.merged(magnitudes=magnitudes))

    def test_threads_files_and_ranks_change_no_byte(self):
        magnitudes = {f"{module}.lora_magnitude_vector": torch_files.randn(SHAPES[module + ".weight"][0])
                      for module in TARGETS}
        base, adapter = self.folders({"use_dora": True}, **magnitudes)
        alone = torch_files.load_file(self.run_merge(base, adapter, "--threads", 1) / "model.safetensors")
        several = torch_files.load_file(self.run_merge(base, adapter, "--threads", 5) / "model.safetensors")
        out = self.new_path("out")
        group = ranks.Ranks(3, ["zero-to-fp32", adapter, out, "--merge", base, "--safe-serialization"], self.root)
        for status, _, errors in group.wait():
            self.assertEqual(status, 0, errors)
        for other in (several, torch_files.load_file(out / "model.safetensors")):
            for name, value in alone.items():
                self.assertTrue(torch_files.same_bits(value, other[name]), name)

    def refused(self, status, pattern, *arguments, output=True):
        out = self.new_path("out")
        done = self.tool("zero-to-fp32", arguments[0], *([out] if output else []), *arguments[1:])
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, pattern)
        self.assertFalse(out.exists())

    def test_what_does_not_fit_is_named(self):
        base, adapter = self.folders(**{"model.extra.lora_A.weight": torch_files.randn(4, 3),
                                        "model.extra.lora_B.weight": torch_files.randn(3, 4)})
        self.refused(3, r"model\.extra\.lora_[AB]\.weight: .*no tensor 'model\.extra\.weight'", adapter, "--merge",
                     base)
        base, adapter = self.folders(**{"model.q.lora_A.weight": torch_files.randn(4, 300)})
        self.refused(3, r"\[523, 4\] and \[4, 300\] does not fit 'model\.q\.weight'", adapter, "--merge", base)
        base, adapter = self.folders({"r": 3})
        self.refused(3, "adapter_config.json: r: .*is 3, the tensors have rank 4", adapter, "--merge", base)
        base, adapter = self.folders(**{"model.head.weight": torch_files.randn(3, 3)})
        self.refused(3, r"model\.head\.weight: has no tensor 'model\.head\.weight'", adapter, "--merge", base)
        base, adapter = self.folders(**{"model.norm.weight": torch_files.randn(300)})
        self.refused(3, r"model\.norm\.weight: .*has shape \[300\], in the base \[301\]", adapter, "--merge", base)
        base, adapter = self.folders({"use_dora": True})
        self.refused(3, "use_dora: .*no lora_magnitude_vector", adapter, "--merge", base)

    def test_an_adapter_without_what_its_configuration_lists_is_refused(self):
        copy = {"model.norm.weight": torch_files.randn(301)}
        for config, more, pattern in (
                ({"modules_to_save": ["norm"]}, {},
                 r"modules_to_save: has \"norm\", .*no trained 'model\.norm\.weight'"),
                ({"trainable_token_indices": [1]}, {}, "trainable_token_indices: has rows, and none were trained"),
                ({"trainable_token_indices": {"q": [1]}}, copy, "trainable_token_indices: has rows")):
            base, adapter = self.folders(config, **more)
            self.refused(3, pattern, adapter, "--merge", base)
        # peft lists modules that only some models have.
        for config, more in (({"modules_to_save": ["norm", "classifier", "score"]}, copy),
                             ({"modules_to_save": ["classifier"], "trainable_token_indices": None}, {})):
            base, adapter = self.folders(config, **more)
            self.run_merge(base, adapter)
        base, adapter = self.folders({"modules_to_save": ["norm"]}, **copy)
        self.run_merge(base, adapter, "--exclude", "norm")

    def test_what_cannot_be_merged_is_refused_by_its_kind(self):
        for config, pattern in (({"peft_type": "VERA"}, "peft_type: .*VERA"), ({"use_qalora": True}, "use_qalora"),
                                ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
                                ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4")):
            base, adapter = self.folders(config)
            self.refused(3, pattern, adapter, "--merge", base)
        torch_files.save_file({"prompt_embeddings": torch_files.randn(4, 301)}, adapter / "adapter_model.safetensors")
        (adapter / "adapter_config.json").write_text('{"peft_type": "PROMPT_TUNING"}')
        self.refused(3, "peft_type: .*PROMPT_TUNING", adapter, "--merge", base)
        self.base["model.q.weight"] = torch_files.tensor(numpy.zeros((523, 301), "uint8"))
        base, adapter = self.folders()
        self.refused(3, r"model\.q\.\S+: .*uint8", adapter, "--merge", base)
        self.base["model.q.qweight"] = self.base.pop("model.q.weight")
        base, adapter = self.folders()
        self.refused(3, "quantized", adapter, "--merge", base)

    def test_wrong_calls_are_usage_errors(self):
        base, adapter = self.folders()
        self.refused(2, "--states", adapter, "--merge", base, "--states")
        self.refused(2, "--peft and --merge", adapter, "--merge", base, "--peft", self.new_path("x"), output=False)
        (adapter / "adapter_config.json").unlink()
        self.refused(2, "lora_alpha", adapter, "--merge", base)
        out = self.run_merge(base, adapter, "--lora-alpha", 6)
        self.assert_rounded(out, self.merged())
        self.refused(2, "no trained parameter is part of a PEFT adapter", base, "--merge", base)
        self.refused(2, "no such", adapter, "--merge", self.new_path("nowhere"), "--lora-alpha", 6)
        before = cli_common.snapshot(base)
        done = self.tool("zero-to-fp32", adapter, base, "--merge", base, "--safe-serialization", "--lora-alpha", 6)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(cli_common.snapshot(base), before)

    def test_an_adapter_is_not_written_under_names_that_nothing_loads(self):
        checkpoint = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "peft" / "z2_modules_to_save_w2" / "ckpt"
        self.refused(2, r"(?s)lora_A\.default\.weight.*--peft.*--merge.*--include \.", checkpoint)
        out = self.new_path("out")
        done = self.tool("zero-to-fp32", checkpoint, out, "--include", ".")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    tools.main()
