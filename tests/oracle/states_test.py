"""zero-to-fp32 --states against the live optimizer, and that nobody takes the states for weights."""
import json

import oracle
import tools
import torch
from oracle import OracleTest, all_cases
from safetensors import safe_open
from safetensors.torch import load_file
from tools import run_tool

FOLDER = "optimizer_states"


class StatesTest(OracleTest):

    def live_states(self, case):
        """{state: {name: tensor}} of the live optimizer, aliases not among them."""
        states = {}
        for key, value in case.expected("master").items():
            name, state = key.rsplit("|", 1)
            if state not in ("fp32", "step") and value.numel() == case.masters[name].numel():
                states.setdefault(state, {})[name] = value
        return states

    def test_states_are_the_live_optimizers(self):
        compared = 0
        for case in all_cases():
            with self.each_case(case) as folder:
                done = run_tool("zero-to-fp32", case.load_dir, folder / "out", "--states")
                expected = self.live_states(case)
                if done.returncode:
                    self.assertRegex(done.stderr, "no optimizer states|do not tell which parameter")
                    self.assertTrue(not expected or case.stage == 0, done.stderr)
                    continue
                files = sorted((folder / "out" / FOLDER).iterdir())
                unknown = {"momentum_buffer"} if "muon" in case.name else set()  # which the live engine did not show
                self.assertEqual({file.stem for file in files} - unknown, set(expected) - unknown)
                for file in files:
                    states = load_file(file)
                    wide = {name: states[name].float() for name in expected.get(file.stem, {})}
                    self.assert_same_tensors(wide, expected.get(file.stem, {}))
                    self.assertEqual(set(states) if file.stem not in unknown else set(wide), set(wide))
                    compared += len(wide)
        self.require(compared, "states")

    def test_steps_are_in_the_header(self):
        for case in all_cases():
            if case.name not in ("z2_fp32_full_w3", "z3_fp32_full_w2"):
                continue
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out", "--states")
                with safe_open(out / FOLDER / "exp_avg.safetensors", "pt") as file:
                    metadata = file.metadata()
                    steps = {metadata[f"step.{name}"] for name in file.keys()}
                self.assertEqual(steps, {str(len(case.facts["losses_before_save"]))})
                for alias, owner in case.tied.items():
                    self.assertEqual(metadata[alias], owner)

    def test_files_are_split_and_names_and_choice_follow_the_weights(self):
        case = oracle.case_named("z2_fp32_full_w3")
        with self.each_case(case) as folder:
            out = self.convert(case.load_dir, folder / "out", "--safe-serialization", "--states", "--max-shard-size",
                               "2KB", "--strip-prefix", "blocks.", "--include", "^blocks")
            index = json.loads((out / FOLDER / "exp_avg.safetensors.index.json").read_text())
            expected = {name.removeprefix("blocks."): value
                        for name, value in self.live_states(case)["exp_avg"].items() if name.startswith("blocks.")}
            self.assertEqual(sorted(index["weight_map"]), sorted(expected))
            got = {}
            for file in set(index["weight_map"].values()):
                self.assertRegex(file, r"^exp_avg-\d{5}-of-\d{5}\.safetensors$")
                got |= load_file(out / FOLDER / file)
            self.assert_same_tensors(got, expected)

    def test_loaders_of_weights_see_the_weights_alone(self):
        import transformers
        case = oracle.case_named("hf_trainer_gpt2_z2_bf16_w2")
        for options in ([], ["--safe-serialization"], ["--safe-serialization", "--max-shard-size", "10KB"]):
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out", "--states", "--hf-config", case.load_dir, *options)
                self.assertTrue((out / FOLDER).is_dir())
                model = transformers.GPT2LMHeadModel.from_pretrained(out, dtype=torch.float32)
                for name, value in case.masters.items():
                    self.assertTrue(torch.equal(model.state_dict()[name], value), name)
                listed = run_tool("ckpt-inspect", "list", out, "--json")
                names = [tensor["name"] for tensor in json.loads(listed.stdout)["data"]["tensors"]]
                self.assertEqual(len(names), len(set(names)))

    def test_states_of_another_run_that_stay_are_named(self):
        case = oracle.case_named("z2_fp32_full_w3")
        with self.each_case(case) as folder:
            self.convert(case.load_dir, folder / "out", "--states", "--max-shard-size", "2KB")
            done = run_tool("zero-to-fp32", case.load_dir, folder / "out", "--states", "--force")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"{FOLDER}/exp_avg-00001-of-", done.stderr)


if __name__ == "__main__":
    tools.main()
