"""Checkpoints of real programs (testdata/programs) through every tool, against what the programs held.

DSCKPT_PROGRAMS names another folder of such cases: those of testdata/makers/make_features.py, or of make_programs.py.
"""
import json
import os
import pathlib
import unittest

import oracle
import tools
import torch
from oracle import OracleTest
from safetensors.torch import load_file
from tools import run_tool


class Program:

    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name
        self.checkpoint = folder / "ckpt"
        self.truth = load_file(folder / "expected" / "truth.safetensors")
        tag = self.checkpoint / (self.checkpoint / "latest").read_text().strip()
        model = torch.load(min(tag.glob("*model_states.pt")), weights_only=False)
        # With exclude_frozen_parameters they are in no file.
        self.saved = set(model["module"])
        self.trained = {name for group in model["param_shapes"] or () for name in group}
        stage = model["ds_config"]["zero_optimization"]["stage"]
        self.leaves_out_frozen = stage >= 2 and model["frozen_param_shapes"] is None

    @property
    def adapters(self):
        return sorted(self.checkpoint.rglob("adapter_model.safetensors"))


OTHERS = os.environ.get("DSCKPT_PROGRAMS")
ROOT = pathlib.Path(OTHERS or pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "programs")
LACK_VALUES = ("deepspeed_optlinearsharded_z2", "quantized_frozen_z3")


def programs():
    return [Program(folder) for folder in sorted(ROOT.iterdir())
            if (folder / "ckpt").is_dir() and folder.name not in LACK_VALUES]


def named(name):
    if OTHERS and not (ROOT / name).exists():
        raise unittest.SkipTest(f"{name} is not there")
    return Program(ROOT / name)


class ProgramsTest(OracleTest):

    def weights(self, program, folder, *options):
        # Adapters under the names that the model has.
        self.convert(program.checkpoint, folder, "--include", ".", *options)
        return oracle.load_bin(folder / "pytorch_model.bin")

    def test_weights_are_what_the_program_held(self):
        for program in programs():
            with self.each_case(program) as folder:
                written = self.weights(program, folder)
                self.assertEqual(program.saved - set(written), set())
                compared = 0
                for name, value in written.items():
                    if name in program.truth:
                        self.assertTrue(torch.equal(value.float(), program.truth[name].float()), name)
                        compared += 1
                self.assertGreater(compared, 0)

    def test_names_of_one_module_are_one_parameter_at_stage_3(self):
        """DeepSpeed's shared_params lacks the second name; the placeholders have one storage."""
        program = named("sharedmod_z3")
        with self.each_case(program) as folder:
            written = self.weights(program, folder / "weights")
            for name in ("weight", "bias"):
                self.assertTrue(torch.equal(written[f"again.{name}"], program.truth[f"l2.{name}"].float()))
            self.run_well("reshard", folder, program.checkpoint, folder / "two", "--dp", 3, "--stage", 2)
            again = self.convert(folder / "two", folder / "again")
            self.assert_same_tensors(oracle.load_bin(again / "pytorch_model.bin"), written)

    def test_a_modules_extra_state_is_had_at_stage_3(self):
        program = named("extrastate_tensor_z3")
        with self.each_case(program) as folder:
            written = self.weights(program, folder)
            self.assertEqual(written["post._extra_state"].tolist(), [1, 1, 1])

    def test_they_are_whole_and_harmless(self):
        for program in programs():
            with self.subTest(case=program.name):
                self.assert_whole_and_harmless(program.checkpoint)

    def test_resharded_they_hold_the_same(self):
        for program in programs():
            with self.each_case(program) as folder:
                self.run_well("reshard", folder, program.checkpoint, folder / "out", "--dp", 3)
                done = run_tool("ckpt-inspect", "diff", program.checkpoint, folder / "out")
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def lacks(self, program, names, reason):
        """Only these are left out, named, and refused where they are needed."""
        with self.each_case(program) as folder:
            done = run_tool("zero-to-fp32", program.checkpoint, folder)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stdout, "".join(f"no values\t{name}\n" for name in names))
            self.assertIn(f"'{names[0]}' {reason}", done.stderr)
            written = oracle.load_bin(folder / "pytorch_model.bin")
            self.assertEqual(set(program.truth) - set(written), set(names))
            for name, value in written.items():
                self.assertTrue(torch.equal(value, program.truth[name].float()), name)
            done = run_tool("reshard", program.checkpoint, folder / "out", "--dp", 3)
            self.assertEqual(done.returncode, 3)
            self.assertIn(f"{names[0]}: is a frozen parameter of the model whose values are in no file", done.stderr)

    def test_what_is_quantized_without_scales_is_no_weight(self):
        """zero_quantized_nontrainable_weights: int8 in frozen_param_fragments, and DeepSpeed saves no scales."""
        self.lacks(named("quantized_frozen_z3"), ["still.weight", "still.bias"],
                   "is quantized, and its scales are in no file")

    def test_one_ranks_part_of_a_base_weight_is_no_weight(self):
        """OptimizedLinear with base_weight_sharding: every rank has a vector, one rank writes."""
        self.lacks(named("deepspeed_optlinearsharded_z2"), ["body.weight"],
                   "is cut over the ranks (base_weight_sharding), and one rank's part alone is in the files")

    def test_what_one_rank_lost_to_compression_is_no_state(self):
        program = named("onebit_adam_z0")
        with self.each_case(program) as folder:
            done = run_tool("zero-to-fp32", program.checkpoint, folder, "--states")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("'worker_error' is one rank's error of compression", done.stderr)
            written = {path.stem for path in (folder / "optimizer_states").iterdir()}
            self.assertEqual(written, {"exp_avg", "exp_avg_sq"})

    def test_what_a_run_left_out_is_not_asked_for(self):
        """DeepSpeed's loader would look for every frozen parameter where there are fragments of one."""
        compared = 0
        for program in programs():
            if not program.leaves_out_frozen:
                continue
            with self.each_case(program) as folder:
                out = self.run_well("reshard", folder / "out", program.checkpoint, folder / "out", "--dp", 3)
                for path in out.glob("*/*model_states.pt"):
                    model = torch.load(path, weights_only=False)
                    self.assertIsNone(model["frozen_param_shapes"])
                    self.assertIsNone(model["frozen_param_fragments"])
                    compared += 1
        self.assertGreaterEqual(compared, 0 if OTHERS else 4)

    def test_states_are_what_the_program_held(self):
        compared = 0
        for program in programs():
            live = program.folder / "expected" / "states.safetensors"
            if not live.exists():
                continue
            with self.each_case(program) as folder:
                self.convert(program.checkpoint, folder, "--states", "--include", ".")
                for key, value in load_file(live).items():
                    name, state = key.split("|")
                    written = load_file(folder / "optimizer_states" / f"{state}.safetensors")
                    self.assertTrue(torch.equal(written[name].float(), value), key)
                    compared += 1
        self.assertGreaterEqual(compared, 0 if OTHERS else 40)

    def test_universal_checkpoints_are_made_of_them(self):
        for program in programs():
            with self.each_case(program) as folder:
                out = self.convert_to_universal(program.checkpoint, folder / "out")
                masters = sorted(path.parent.name for path in (out / "zero").glob("*/fp32.pt"))
                self.assertTrue(masters)
                for name in masters:
                    found = torch.load(out / "zero" / name / "fp32.pt", weights_only=False)
                    found = found["param"] if isinstance(found, dict) else found
                    if name in program.truth:
                        self.assertTrue(torch.equal(found.float().reshape(-1), program.truth[name].float().reshape(-1)))

    def test_adapters_are_what_peft_saved(self):
        compared = 0
        for program in programs():
            for saved in program.adapters:
                with self.each_case(program) as folder:
                    # peft trains the active adapter alone.
                    adapter = f".{saved.parent.name}."
                    if saved.parent != program.checkpoint and not any(adapter in name for name in program.trained):
                        continue
                    self.run_well("zero-to-fp32", folder, program.checkpoint, "--peft", folder / "adapter")
                    written = load_file(folder / "adapter" / "adapter_model.safetensors")
                    expected = load_file(saved)
                    self.assertEqual(sorted(written), sorted(expected))
                    for name, value in expected.items():
                        self.assertTrue(oracle.same_bits(written[name].to(value.dtype), value), name)
                    self.assertEqual(json.loads((folder / "adapter" / "adapter_config.json").read_text()),
                                     json.loads((saved.parent / "adapter_config.json").read_text()))
                    compared += 1
        self.assertGreaterEqual(compared, 0 if OTHERS else 4)


if __name__ == "__main__":
    tools.main()
