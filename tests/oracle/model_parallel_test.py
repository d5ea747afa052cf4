"""zero-to-fp32 of pipeline-, tensor- and expert-parallel checkpoints against what the live engines held."""
import unittest

from safetensors.torch import load_file

import model_parallel_truth as mp
import oracle
import tools


class ModelParallelTest(oracle.OracleTest):

    def cases(self):
        self.require(oracle.model_parallel_cases(), "model-parallel case")
        return oracle.model_parallel_cases()

    def test_safetensors_have_the_live_masters_and_buffers(self):
        for case in self.cases():
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out", "--safe-serialization")
                aliases = mp.aliases(case)
                expected = {name: value for name, value in mp.weights(case).items() if name not in aliases}
                self.assert_same_tensors(load_file(out / "model.safetensors"), expected)

    def test_bin_has_tied_names_too(self):
        for case in self.cases():
            with self.each_case(case) as folder:
                out = self.convert(case.tag_folder, folder / "out")
                written = oracle.load_bin(out / "pytorch_model.bin")
                self.assert_same_tensors(written, mp.weights(case))
                for alias, owner in mp.aliases(case).items():
                    self.assertEqual(written[alias].data_ptr(), written[owner].data_ptr(), alias)

    def test_universal_checkpoints_give_the_same_weights(self):
        for case in self.cases():
            if case.stage == 3:
                continue  # universal_input_test: they have no buffers
            with self.each_case(case) as folder:
                universal = self.convert_to_universal(case.load_dir, folder / "universal")
                out = self.convert(universal, folder / "out", "--safe-serialization")
                written = load_file(out / "model.safetensors")
                for name, value in mp.weights(case).items():
                    if name not in mp.aliases(case):
                        self.assertTrue(oracle.same_bits(written[name], value), name)


if __name__ == "__main__":
    tools.main()
