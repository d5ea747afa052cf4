"""The output in its consumers: torch.load in its variants, other dtypes, transformers."""
import os

import torch
from safetensors.torch import load_file

import oracle
import tools

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

SHORT_FORMS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class TorchLoadTest(oracle.OracleTest):

    def test_bin_loads_whole_mapped_and_with_computed_storage_offsets(self):
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                truth = case.truth()
                path = self.convert(case.load_dir, folder / "out") / "pytorch_model.bin"
                self.assert_same_tensors(oracle.load_bin(path), truth)
                self.assert_same_tensors(oracle.load_bin(path, mmap=True), truth)
                # torch then works the offsets out by itself instead of asking the zip directory: any layout
                # other than torch's own gives wrong tensors.
                with torch.utils.serialization.config.patch({"load.calculate_storage_offsets": True}):
                    self.assert_same_tensors(oracle.load_bin(path, mmap=True), truth)


class DtypeTest(oracle.OracleTest):

    def converted(self, case, folder, *options):
        out = self.convert(case.load_dir, folder / "_".join(options), "--safe_serialization", *options)
        return load_file(out / "model.safetensors")

    def test_every_dtype_rounds_as_torch_does(self):
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                for dtype in ("float16", "bfloat16", "keep"):
                    self.assert_same_tensors(self.converted(case, folder, "--dtype", dtype),
                                             case.without_aliases(case.truth(dtype=dtype)))

    def test_bin_output_has_the_same_tensors_in_every_dtype(self):
        for case in oracle.all_cases():
            if case.stage == 2:
                with self.each_case(case) as folder:
                    for dtype in ("float16", "bfloat16", "keep"):
                        out = self.convert(case.load_dir, folder / dtype, "--dtype", dtype)
                        self.assert_same_tensors(oracle.load_bin(out / "pytorch_model.bin", mmap=True),
                                                 case.truth(dtype=dtype))

    def test_short_dtype_names_mean_the_long_ones(self):
        for case in oracle.all_cases()[::10]:
            with self.each_case(case) as folder:
                for dtype, short in SHORT_FORMS.items():
                    self.assert_same_tensors(self.converted(case, folder, "--dtype", short),
                                             case.without_aliases(case.truth(dtype=dtype)))

    def test_keep_fp32_holds_matching_tensors_back(self):
        regex = r".*ln_.*|.*\.bias|odd\..*|.*layernorm.*"
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                truth = case.without_aliases(case.truth(dtype="bfloat16", keep_fp32=regex))
                self.assertGreater(len({value.dtype for value in truth.values()}), 1)
                self.assert_same_tensors(self.converted(case, folder, "--dtype", "bf16", "--keep-fp32", regex), truth)


class TransformersTest(oracle.OracleTest):

    def test_from_pretrained_reads_whole_and_sharded_output(self):
        import transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        cases = [case for case in oracle.all_cases() if case.facts["kind"].startswith("hf_")]
        if not cases:
            self.skipTest("no Hugging Face case selected")
        for case in cases:
            truth = case.truth()
            config = case.load_dir if (case.load_dir / "config.json").exists() else case.folder / "expected/hf_config"
            for safe in (True, False):
                for size in ("5GB", "5KB"):
                    with self.each_case(case) as folder:
                        out = self.convert(case.load_dir, folder / "out", "--hf-config", config, "--max_shard_size",
                                           size, *(["--safe_serialization"] if safe else []))
                        model, report = transformers.AutoModelForCausalLM.from_pretrained(
                            out, use_safetensors=safe, dtype=torch.float32, output_loading_info=True)
                        for key, names in report.items():
                            self.assertFalse(names, key)
                        state = model.state_dict()
                        self.assert_same_tensors({name: state[name] for name in truth}, truth)
                        for alias, owner in case.tied.items():
                            self.assertEqual(state[alias].data_ptr(), state[owner].data_ptr())

    def test_hf_config_copies_the_files_that_from_pretrained_needs(self):
        for case in oracle.all_cases():
            if (case.load_dir / "config.json").exists():
                with self.each_case(case) as folder:
                    out = self.convert(case.load_dir, folder / "out", "--hf-config", case.load_dir)
                    for name in ("config.json", "generation_config.json"):
                        expected = (case.load_dir / name).read_text().replace('"dtype": "bfloat16"', '"dtype": "float32"')
                        self.assertEqual((out / name).read_text(), expected)
                    self.assertEqual(sorted(path.name for path in out.iterdir()),
                                     ["config.json", "generation_config.json", "pytorch_model.bin"])

    def test_weights_are_ready_for_transformers_in_the_type_of_the_configuration(self):
        import transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        cases = [case for case in oracle.all_cases() if (case.load_dir / "config.json").exists()]
        self.assertTrue(cases)
        for case in cases:
            for dtype, written in (("auto", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
                with self.each_case(case) as folder:
                    out = self.convert(case.load_dir, folder / "out", "--safe_serialization", "--dtype", dtype)
                    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto")
                    self.assertEqual(model.config.dtype, written)
                    truth = {name: value.to(written) for name, value in case.truth().items()}
                    state = model.state_dict()
                    self.assert_same_tensors({name: state[name] for name in truth}, truth)


if __name__ == "__main__":
    tools.main()
