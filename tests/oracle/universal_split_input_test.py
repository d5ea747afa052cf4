"""Universal checkpoints of models that were split over ranks, as input: ours, and DeepSpeed's own."""
import pathlib

import oracle
import tools
import torch
from model_parallel_truth import aliases, model_parallel_truth
from safetensors.torch import load_file
from universal_test import run_deepspeed

# DeepSpeed's converter is slow: it gets one case for each kind of parallelism.
DEEPSPEEDS_CASES = {"autoep2_dp4_z2_fp32", "autoep2_dp4_z3_fp32", "autotp2_dp1_z1_uneven", "autotp2_dp2_z3_bf16",
                    "moe_ep1_dp2_z1_bf16", "mpu_tp2_dp2_z1_fp32", "pp2_dp2_z1_fp32", "pp2_tp2_dp2_z1_fp32"}


def stored(folder, name):
    """The tensor in zero/NAME/fp32.pt, and whether rows that fill the vocabulary up are missing in it."""
    value = torch.load(folder / "zero" / name / "fp32.pt", weights_only=False)
    return (value, False) if torch.is_tensor(value) else (value["param"], value.get("vocab_tensor", False))


class UniversalSplitInputTest(oracle.OracleTest):

    def cases(self):
        return oracle.model_parallel_cases()

    def check(self, case, folder, output):
        """zero-to-fp32 gives what the folder holds, whole, which is what the engines held."""
        out = self.convert(folder, output, "--safe_serialization", "--dtype", "keep")
        found = load_file(out / "model.safetensors")
        trained = {name: value for (name, state), (value, *_) in model_parallel_truth(case).items() if state == "fp32"}
        self.assertTrue(trained)
        for name, truth in trained.items():
            value, is_vocabulary = stored(folder, name)
            whole = truth[:len(value)] if is_vocabulary else truth
            self.assertTrue(oracle.same_bits(found[name], value.reshape(whole.shape)), name)
            self.assertTrue(oracle.same_bits(found[name], whole.contiguous()), name)
        folders = {str(path.parent.relative_to(folder / "zero")) for path in folder.glob("zero/**/fp32.pt")}
        self.assertEqual(trained.keys() - folders, set())
        self.assertEqual({name for name in folders if name not in found and name not in aliases(case)}, set())

    def test_ours_holds_the_live_values(self):
        compared = 0
        for case in self.cases():
            compared += 1
            with self.each_case(case) as folder:
                self.convert_to_universal(case.tag_folder, folder / "universal")
                self.check(case, folder / "universal", folder / "out")
        self.require(compared, "split case")

    def test_verify_finds_nothing_wrong_with_ours(self):
        """Not with the first dimension of AutoEP's experts either, which is a rank's own in param_shapes."""
        compared = 0
        for case in self.cases():
            with self.each_case(case) as folder:
                self.convert_to_universal(case.tag_folder, folder / "universal")
                self.assert_whole_and_harmless(folder / "universal")
                compared += 1
        self.require(compared, "split case")

    def test_deepspeeds_holds_the_live_values(self):
        compared = 0
        for case in self.cases():
            if case.name not in DEEPSPEEDS_CASES:
                continue
            compared += 1
            with self.each_case(case) as folder:
                self.assertEqual(run_deepspeed(case.tag_folder, folder / "universal"), "")
                self.check(case, folder / "universal", folder / "out")
        self.require(compared, "case of DeepSpeed's converter")

    def test_an_expert_that_is_missing_is_named(self):
        case = oracle.case_named("moe_ep2_dp2_z1_bf16")
        with self.each_case(case) as folder:
            universal = self.convert_to_universal(case.tag_folder, folder / "universal")
            last = sorted(pathlib.Path(universal).glob("zero/*deepspeed_experts.3.up.weight/fp32.pt"))[0]
            last.unlink()
            done = tools.run_tool("zero-to-fp32", universal, folder / "out")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(last.parent.name, done.stderr)

    def test_other_shapes_are_refused(self):
        for name, param in (("mpu_tp2_dp2_z1_fp32", "layers.0.mlp.dense_h_to_4h.weight"),
                            ("pp2_dp2_z1_fp32", "1.fc1.weight")):
            case = oracle.case_named(name)
            with self.each_case(case) as folder:
                universal = self.convert_to_universal(case.tag_folder, folder / "universal")
                path = pathlib.Path(universal) / "zero" / param / "fp32.pt"
                value = torch.load(path, weights_only=False)
                value["param"] = value["param"][:3, :3].contiguous()
                torch.save(value, path)
                done = tools.run_tool("zero-to-fp32", universal, folder / "out")
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertIn(f"{param}: has shape [3, 3]", done.stderr)


if __name__ == "__main__":
    tools.main()
