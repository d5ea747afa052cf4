"""Checkpoints of older releases of DeepSpeed (testdata/releases) through every tool, against what their engines held."""
import pickletools
import zipfile

import oracle
import tools
import torch
from oracle import OracleTest
from safetensors import safe_open
from safetensors.torch import load_file
from tools import run_tool


def number(version):
    return tuple(int(part) for part in version.split("."))


def release_cases():
    return oracle.cases_in("releases")


def has_masters(case):
    """bf16 saves the weights alone from 0.17.6 to 0.18.4 at stage 0, and at stage 1 where gradients are in fp32."""
    saves_none = (0, 17, 6) <= number(case.facts["version"]) < (0, 18, 5)
    at_stage = case.stage == 0 or (case.stage == 1 and "data_types" in case.facts["config"])
    return not (at_stage and "bf16" in case.facts["config"] and saves_none)


def lost(case):
    """The values that stage 3 did not save before 0.9.2."""
    return set(case.facts["frozen"]) if case.stage == 3 and number(case.facts["version"]) < (0, 9, 2) else set()


def told_apart(case):
    """At stage 0 in fp32 states have no names; here several parameters have one shape, and some of them are frozen."""
    return case.stage != 0 or "bf16" in case.facts["config"] or "fp16" in case.facts["config"]


# Keys that not all releases have.
CHANGING = {"param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params", "group_paddings",
            "param_slice_mappings", "param_alignment_paddings", "zero_stage", "ds_version", "partition_count"}


class ReleasesTest(OracleTest):

    def truth(self, case):
        if has_masters(case):
            return {name: value for name, value in case.truth().items() if name not in lost(case)}
        return {name: value.float() if value.is_floating_point() else value for name, value in case.module.items()}

    def states(self, case):
        states = {}
        for key, value in case.expected("master").items():
            name, state = key.rsplit("|", 1)
            if state != "fp32":
                states.setdefault(state, {})[name] = value.float()
        return states

    def test_weights_are_what_the_engine_held(self):
        cases = release_cases()
        for case in cases:
            with self.each_case(case) as folder:
                done = run_tool("zero-to-fp32", case.load_dir, folder)
                self.assertEqual(done.returncode, 1 if lost(case) else 0, done.stderr)
                self.assert_same_tensors(oracle.load_bin(folder / "pytorch_model.bin"), self.truth(case))
                named = {line.split("\t")[1] for line in done.stdout.splitlines() if line.startswith("no values\t")}
                self.assertEqual(named, lost(case))
                notes = [line for line in done.stderr.splitlines() if "note:" in line and "no file holds" not in line]
                self.assertEqual(notes, [])
        self.require(len(cases), "releases")

    def test_states_are_the_optimizers(self):
        compared = 0
        for case in release_cases():
            with self.each_case(case) as folder:
                done = run_tool("zero-to-fp32", case.load_dir, folder, "--states", "--safe-serialization")
                if not has_masters(case) or not told_apart(case):
                    self.assertEqual(done.returncode, 3, done.stderr)
                    self.assertRegex(done.stderr, "only the 16-bit weights|the shapes do not show which parameter")
                    continue
                self.assertEqual(done.returncode, 1 if lost(case) else 0, done.stderr)
                written = {file.stem: load_file(file) for file in (folder / "optimizer_states").iterdir()}
                expected = self.states(case)
                self.assertEqual(set(written), set(expected))
                for state, tensors in expected.items():
                    self.assert_same_tensors({name: value.float() for name, value in written[state].items()}, tensors)
                    compared += len(tensors)
        self.require(compared, "states")

    def test_universal_checkpoints_hold_the_same(self):
        compared = 0
        for case in release_cases():
            with self.each_case(case) as folder:
                done = run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder", folder / "out")
                if not has_masters(case) or not told_apart(case):
                    self.assertEqual(done.returncode, 3, done.stderr)
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                for key, value in case.expected("master").items():
                    name, state = key.rsplit("|", 1)
                    found = torch.load(folder / "out" / "zero" / name / f"{state}.pt", weights_only=False)
                    found = found["param"] if isinstance(found, dict) else found
                    self.assertTrue(torch.equal(found.detach().float().reshape(value.shape), value.float()), key)
                    compared += 1
        self.require(compared, "universal checkpoints")

    def test_they_are_whole_and_harmless(self):
        for case in release_cases():
            with self.subTest(case=case.name):
                self.assert_whole_and_harmless(case.load_dir)

    def test_resharded_they_hold_the_same(self):
        compared = 0
        for case in release_cases():
            with self.each_case(case) as folder:
                for ranks in (1, 2, 3):
                    done = run_tool("reshard", case.load_dir, folder / str(ranks), "--dp", ranks)
                    if not has_masters(case):
                        self.assertEqual(done.returncode, 3, done.stderr)
                        self.assertIn("neither fp32 masters nor optimizer states", done.stderr)
                        continue
                    self.assertEqual(done.returncode, 0, done.stderr)
                    done = run_tool("ckpt-inspect", "diff", case.load_dir, folder / str(ranks))
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    done = run_tool("ckpt-inspect", "verify", folder / str(ranks))
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    compared += 1
        self.require(compared, "resharded checkpoints")

    def test_zero_stage_is_written_as_the_release_knows_it(self):
        """ZeroStageEnum came with 0.7.1; a release before cannot load it."""
        compared = 0
        for case in release_cases():
            if case.stage != 3:
                continue
            with self.each_case(case) as folder:
                self.run_well("reshard", folder, case.load_dir, folder / "out", "--dp", 3)
                file = next((folder / "out").glob("*/*optim_states.pt"))
                with zipfile.ZipFile(file) as archive:
                    pickle, = (name for name in archive.namelist() if name.endswith("data.pkl"))
                    names = {value for _, value, _ in pickletools.genops(archive.read(pickle))}
                enum = any("ZeroStageEnum" in str(name) for name in names)
                self.assertEqual(enum, number(case.facts["version"]) >= (0, 7, 1))
                compared += 1
        self.require(compared, "checkpoints of stage 3")

    def keys_of(self, folder):
        """The keys of the first files of a tag: of the model's, of the optimizer's, of its
        optimizer_state_dict."""
        model, optim = (torch.load(min(folder.glob(f"*/*{kind}_states.pt")), weights_only=False)
                        for kind in ("model", "optim"))
        return set(model), set(optim), set(optim["optimizer_state_dict"])

    def test_files_for_another_release_have_its_keys(self):
        """A release's own file says which keys it has."""
        for source, other in (("0.19.8", "0.16.4"), ("0.19.8", "0.9.5"), ("0.14.5", "0.8.3"), ("0.10.3", "0.6.7"),
                              ("0.6.7", "0.18.2"), ("0.8.3", "0.12.6")):
            for stage in (2, 3):
                saved, known = (oracle.case_of_release(f"ds{version}_z{stage}_bf16_w2") for version in (source, other))
                with self.each_case(saved) as folder:
                    self.run_well("reshard", folder, saved.load_dir, folder / "out", "--dp", 2, "--ds-version", other)
                    for found, expected in zip(self.keys_of(folder / "out"), self.keys_of(known.load_dir)):
                        # The values that a source before 0.9.1 has not saved, and keys that releases do not
                        # look for.
                        self.assertEqual(found & CHANGING, expected & CHANGING)

    def test_what_a_release_does_not_have_is_refused(self):
        case = oracle.case_of_release("ds0.19.8_z0_bf16_w2")
        for version, status, words in (("0.17.6", 3, "stage 0 in bf16"), ("soon", 2, "not a release of DeepSpeed"),
                                       ("0.3.1", 3, "before 0.4")):
            with self.each_case(case) as folder:
                done = run_tool("reshard", case.load_dir, folder / "out", "--dp", 1, "--ds-version", version)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(words, done.stderr)

    def test_weights_without_masters_are_called_that(self):
        compared = 0
        for case in release_cases():
            if has_masters(case):
                continue
            with self.each_case(case) as folder:
                done = run_tool("zero-to-fp32", case.load_dir, folder, "--safe-serialization")
                self.assertIn("weights without fp32 masters", done.stderr)
                with safe_open(folder / "model.safetensors", "pt") as file:
                    self.assertEqual(file.metadata()["masters"], "none")
                compared += 1
        self.require(compared, "checkpoints without masters")


if __name__ == "__main__":
    tools.main()
