"""Weights made of universal checkpoints, ours and DeepSpeed's own, against the live engine's values."""
import contextlib
import re
import shutil

from safetensors import safe_open
from safetensors.torch import load_file

import oracle
import tools
from universal_test import DEEPSPEED_FAILS, is_round_robin, run_deepspeed

# DeepSpeed's converter is slow: it gets one case for each trait.
DEEPSPEEDS_CASES = {
    "hf_trainer_gpt2_z2_bf16_w2", "hf_trainer_llama_z3_bf16_w2", "z1_bf16_full_w2", "z1_bf16opt_full_w3",
    "z1_fp32_full_w4", "z1_fp32_tinygroup_w4", "z2_bf16_full_w8", "z2_bf16_legacyserial_w2", "z2_bf16_paramalign_w2",
    "z2_fp16_w2", "z2_fp32_amsgrad_w2", "z2_fp32_emptyparam_w2", "z2_fp32_exclfrozen_w2", "z2_fp32_oddbuffers_w2",
    "z3_bf16_full_subgroups_w4", "z3_bf16_full_w6", "z3_bf16_hpz_w4", "z3_bf16_offloadparam_w2", "z3_fp32_exclfrozen_w2",
    "z3_fp32_full_w8", "z3_fp32_small_subgroups_w2",
}


def metadata(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


class UniversalInputTest(oracle.OracleTest):

    def check(self, case, source, output, *options, **truth_options):
        """zero-to-fp32 of the universal checkpoint `source` gives what the engine held."""
        out = self.convert(source, output, "--safe_serialization", *options)
        truth = case.truth(**truth_options)
        self.assert_same_tensors(load_file(out / "model.safetensors"), case.without_aliases(truth))
        aliases = {name: owner for name, owner in case.tied.items() if name in truth}
        self.assertEqual(metadata(out / "model.safetensors"), {"format": "pt", **aliases})
        return out / "model.safetensors"

    @contextlib.contextmanager
    def universal(self, case):
        """The scratch folder of a sub-test with the universal checkpoint folder/universal in it."""
        with self.each_case(case) as folder:
            self.convert_to_universal(case.tag_folder, folder / "universal")
            yield folder

    def test_ours_holds_the_live_values(self):
        for case in oracle.all_cases():
            with self.universal(case) as folder:
                self.check(case, folder / "universal", folder / "out")

    def test_deepspeeds_holds_the_live_values(self):
        compared = 0
        for case in oracle.all_cases():
            if case.name not in DEEPSPEEDS_CASES:
                continue
            self.assertFalse(is_round_robin(case) or any(re.search(p, case.name) for p in DEEPSPEED_FAILS))
            compared += 1
            with self.each_case(case) as folder:
                self.assertEqual(run_deepspeed(case.tag_folder, folder / "universal"), "")
                self.check(case, folder / "universal", folder / "out")
        self.require(compared, "case of DeepSpeed's converter")

    def test_what_was_not_trained_keeps_its_type(self):
        """zero/NAME/fp32.pt of buffers and frozen parameters is a float32 copy; the model-states file has them."""
        compared = 0
        for case in oracle.all_cases():
            types = {value.dtype for name, value in case.module.items() if name not in case.masters}
            if len(types) < 2:
                continue
            compared += 1
            with self.universal(case) as folder:
                self.check(case, folder / "universal", folder / "out", "--dtype", "keep", dtype="keep")
        self.require(compared, "case with untrained tensors of several types")

    def test_frozen_parameters_are_told_from_trained_ones(self):
        compared = 0
        for case in oracle.all_cases():
            if not case.frozen or case.stage == 0:
                continue
            compared += 1
            with self.universal(case) as folder:
                self.check(case, folder / "universal", folder / "out", "--exclude_frozen_parameters",
                           exclude_frozen=True)
        self.require(compared, "case with frozen parameters")

    def test_latest_universal_and_the_tag_find_it(self):
        compared = 0
        for case in oracle.all_cases():
            if case.name not in ("z1_fp32_w2", "z3_bf16_w2"):
                continue
            compared += 1
            with self.universal(case) as folder:
                first = self.check(case, folder, folder / "a")
                second = self.check(case, folder, folder / "b", "--tag", "universal")
                self.assertEqual(first.read_bytes(), second.read_bytes())
                # With both, `latest` is the checkpoint; the universal one has to be named.
                shutil.copytree(case.tag_folder, folder / "native")
                (folder / "latest").write_text("native")
                listed = tools.run_tool("ckpt-inspect", "list", folder, "--json")
                self.assertIn(f'"layout":"zero-{3 if case.stage == 3 else "1/2"}"', listed.stdout)
                listed = tools.run_tool("ckpt-inspect", "list", folder, "--json", "--tag", "universal")
                self.assertIn('"layout":"universal"', listed.stdout)
                self.assertIn(f'"zero_stage":{case.stage}', listed.stdout)
        self.require(compared, "case to find")


if __name__ == "__main__":
    tools.main()
