"""reshard --weights-from: the checkpoint continues with the given weights, by torch and by DeepSpeed's own loader.

native_checkpoint.py takes the output apart by its own rules. Masters are the given numbers bit for bit, 16-bit
copies these rounded once by torch, and all else is the source's.
"""
import json
import os
import pathlib
import shutil
import tempfile
import unittest

import torch
from safetensors.torch import load_file, save_file

import oracle
import resume_check
import tools
from native_checkpoint import NativeCheckpoint, differences, equal_bits

NOT_CUT = ("z3_fp32_adagrad_w2", "z1_fp32_elastic_torchadam_w2")  # reshard refuses them
# Two saves of one model: the one whose training goes on, and the other.
MEANS = [("z2_bf16_full_w8", "z3_bf16_full_w6"), ("z3_bf16_full_w6", "z2_bf16_full_w8"), ("z1_bf16_w2", "z2_bf16_w4")]


def native(case, folder):
    return NativeCheckpoint(folder / case.facts["tag"], case.facts.get("param_groups", ()))


def other(value, seed):
    """Other numbers, -0 and tiny ones too, that no 16-bit type has."""
    if not value.is_floating_point():
        return value.flip(0) if value.dim() else value
    noise = torch.rand(value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return (value.float() * 1.25 + (noise - 0.5) * 1e-2).to(value.dtype)


class WeightsFromTest(oracle.OracleTest):

    def cases(self):
        cases = [case for case in oracle.all_cases() if case.name not in NOT_CUT]
        self.require(cases, "data-parallel case")
        return cases

    def weights_of(self, case, folder):
        """The result of zero-to-fp32, with other numbers in it; also as they lie in the file."""
        self.run_well("zero-to-fp32", folder / "plain", case.load_dir, folder / "plain", "--tag", case.facts["tag"],
                      "--dtype", "keep", "--safe-serialization", "--max-shard-size", "none")
        found = load_file(folder / "plain" / "model.safetensors")
        given = {name: other(value, at) for at, (name, value) in enumerate(found.items())}
        (folder / "given").mkdir()
        save_file(given, folder / "given" / "model.safetensors")
        return folder / "given", given

    def give(self, case, weights, output, world, *options):
        self.run_well("reshard", output, case.load_dir, output, "--tag", case.facts["tag"], "--dp", world,
                      "--weights-from", weights, *options)
        return native(case, output)

    def value_of(self, case, given, name):
        owner = case.tied.get(name, name)
        names = [name, owner, *(alias for alias, of in case.tied.items() if of == owner)]
        return next((given[each] for each in names if each in given), None)

    def check(self, case, source, result, given):
        held, before = result.tensors(), source.tensors()
        self.assertEqual(set(held), set(before))
        masters = 0
        for key, value in held.items():
            name, state = key.split("|")
            if state == "fp32":
                wanted = self.value_of(case, given, name)
                masters += 1
                self.assertTrue(equal_bits(value.float(), wanted.float()), key)
            else:
                self.assertTrue(equal_bits(value, before[key]), key)
        self.assertGreater(masters, 0)
        self.assertEqual(result.scalars(), {name: source.scalars()[name] for name in result.scalars()})
        if result.hyper() is not None:
            self.assertEqual(differences(dict(sorted(result.hyper().items())), dict(sorted(source.hyper().items()))), [])
        self.assertEqual(differences(result.scaler(), source.scaler()), [])
        for key in ("global_steps", "skipped_steps", "global_samples", "lr_scheduler"):
            self.assertEqual(result.model[key], source.model[key], key)
        for name, value in (result.frozen() or {}).items():
            self.assertTrue(equal_bits(value, self.value_of(case, given, name).to(value.dtype)), name)
        for model in result.models:
            for name, value in model["module"].items():
                if not isinstance(value, torch.Tensor):
                    continue
                wanted = self.value_of(case, given, name)
                if wanted is None or (result.stage == 3 and name not in model["buffer_names"]):
                    continue
                self.assertTrue(equal_bits(value, wanted.to(value.dtype).reshape(value.shape)), name)

    def test_masters_are_the_given_weights_and_all_else_is_kept(self):
        for case in self.cases():
            with self.each_case(case) as folder:
                weights, given = self.weights_of(case, folder)
                source = native(case, case.load_dir)
                for world in (source.world, source.world + 1):
                    self.check(case, source, self.give(case, weights, folder / f"to{world}", world), given)

    def test_at_every_other_stage(self):
        for name in ("z0_bf16_full_w2", "z1_fp16_w2", "z2_fp32_full_w3", "z3_bf16_full_subgroups_w4",
                     "z0_fp16_fusedadam_full_w1", "z0_fp32_w2"):
            case = oracle.case_named(name)
            for stage in range(4):
                with self.subTest(case=name, stage=stage), tempfile.TemporaryDirectory() as folder:
                    folder = pathlib.Path(folder)
                    weights, given = self.weights_of(case, folder)
                    result = self.give(case, weights, folder / "out", 3, "--stage", stage)
                    self.assert_whole_and_harmless(folder / "out")
                    held = result.tensors()
                    for key, value in held.items():
                        if key.endswith("|fp32"):
                            wanted = self.value_of(case, given, key.split("|")[0])
                            self.assertTrue(equal_bits(value, wanted.float()), key)
                    before = native(case, case.load_dir).tensors()
                    for key, value in before.items():
                        if not key.endswith("|fp32"):
                            self.assertTrue(equal_bits(held[key], value), key)

    def test_its_own_weights_change_nothing(self):
        for name in ("z2_bf16_full_w8", "z3_fp32_full_w2", "z1_bf16opt_full_w3", "z0_bf16_full_w2"):
            case = oracle.case_named(name)
            with self.subTest(case=name), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                self.run_well("zero-to-fp32", folder / "w", case.load_dir, folder / "w", "--dtype", "keep",
                              "--safe-serialization")
                result = self.give(case, folder / "w", folder / "out", 2)
                self.run_well("reshard", folder / "plain", case.load_dir, folder / "plain", "--dp", 2)
                plain = native(case, folder / "plain")
                for a, b in zip([*result.models, *result.files], [*plain.models, *plain.files], strict=True):
                    self.assertEqual(differences(a, b)[:3], [])

    def test_16_bit_weights_are_upcast_and_it_is_said(self):
        case = oracle.case_named("z2_bf16_full_w8")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            _, given = self.weights_of(case, folder)
            for dtype in (torch.bfloat16, torch.float16):
                narrow = {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}
                torch.save(narrow, folder / "narrow.bin")
                output = folder / str(dtype)
                done = tools.run_tool("reshard", case.load_dir, output, "--dp", 3, "--weights-from",
                                       folder / "narrow.bin")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"the weights are {str(dtype).removeprefix('torch.')}", done.stderr)
                self.check(case, native(case, case.load_dir), native(case, output), narrow)

    def test_through_a_universal_checkpoint(self):
        case = oracle.case_named("z2_bf16_full_w8")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            weights, given = self.weights_of(case, folder)
            self.convert_to_universal(case.load_dir, folder / "universal" / "x_universal")
            self.run_well("reshard", folder / "out", folder / "universal" / "x_universal", folder / "out", "--dp", 2,
                          "--weights-from", weights)
            [tag] = [path for path in (folder / "out").iterdir() if path.is_dir()]
            held, before = NativeCheckpoint(tag).tensors(), native(case, case.load_dir).tensors()
            for key, value in held.items():
                name, state = key.split("|")
                wanted = self.value_of(case, given, name).float() if state == "fp32" else before[key]
                self.assertTrue(equal_bits(value, wanted), key)


class RefusalTest(oracle.OracleTest):

    def refused(self, status, *arguments):
        done = tools.run_tool("reshard", *arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr

    def test_what_does_not_fit_is_named(self):
        case = oracle.case_named("z2_fp32_full_w3")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            self.run_well("zero-to-fp32", folder / "w", case.load_dir, folder / "w", "--safe-serialization")
            whole = load_file(folder / "w" / "model.safetensors")
            first, second = sorted(name for name in whole if whole[name].dim() == 2)[:2]

            def said(values, *options, status=3):
                save_file(values, folder / "other.safetensors")
                return self.refused(status, case.load_dir, folder / "out", "--dp", 2, "--weights-from",
                                    folder / "other.safetensors", *options)

            missing = {name: value for name, value in whole.items() if name not in (first, second)}
            text = said(missing)
            self.assertIn("lacks 2 parameters", text)
            self.assertIn(first, text)
            self.assertIn(second, text)
            self.assertIn("extra.weight", said({**whole, "extra.weight": torch.ones(2)}))
            self.assertIn("has shape", said({**whole, first: whole[first][:-1].contiguous()}))
            self.assertIn("rounded more than once", said({**whole, first: whole[first].double()}))
            self.assertIn("is of type int64", said({**whole, first: whole[first].long()}))
            prefixed = {f"module.{name}": value for name, value in whole.items()}
            self.assertIn("--strip-prefix module.", said(prefixed))
            save_file(prefixed, folder / "prefixed.safetensors")
            self.run_well("reshard", folder / "out", case.load_dir, folder / "out", "--dp", 2, "--weights-from",
                          folder / "prefixed.safetensors", "--strip-prefix", "module.")
            self.assertFalse((folder / "refused").exists())

    def test_what_it_cannot_be_given_to_or_taken_from(self):
        case = oracle.case_named("z2_fp32_full_w3")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            self.run_well("zero-to-fp32", folder / "w", case.load_dir, folder / "w", "--safe-serialization")
            out = folder / "out"
            self.assertIn("zero-to-fp32 makes weights", self.refused(
                2, case.load_dir, out, "--dp", 2, "--weights-from", case.load_dir))
            self.assertIn("is not there", self.refused(2, case.load_dir, out, "--dp", 2, "--weights-from", "nowhere"))
            self.assertIn("is weights itself", self.refused(2, folder / "w", out, "--dp", 2, "--weights-from", folder / "w"))
            self.assertIn("--tag all", self.refused(
                2, case.load_dir, out, "--dp", 2, "--tag", "all", "--weights-from", folder / "w"))
            self.assertFalse(out.exists())

    def test_frozen_parameters_are_not_rounded_twice(self):
        case = oracle.case_named("z2_bf16_full_w8")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            self.run_well("zero-to-fp32", folder / "w", case.load_dir, folder / "w", "--safe-serialization")
            (folder / "fp16.json").write_text(json.dumps({
                "train_batch_size": 12, "fp16": {"enabled": True}, "zero_optimization": {"stage": 2}}))
            change = ["--dp", 2, "--ds-config", folder / "fp16.json"]
            self.assertIn("would be rounded twice", self.refused(
                2, case.load_dir, folder / "out", *change, "--weights-from", folder / "w"))
            self.run_well("reshard", folder / "fp16", case.load_dir, folder / "fp16", *change)
            self.run_well("reshard", folder / "out", folder / "fp16", folder / "out", "--dp", 2, "--weights-from",
                          folder / "w")

    def test_weights_beside_the_shards_are_not_carried_along(self):
        case = oracle.case_named("hf_trainer_llama_z3_bf16_w2")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            shutil.copytree(case.load_dir, folder / "ck")
            self.run_well("zero-to-fp32", folder / "w", case.load_dir, folder / "w", "--safe-serialization")
            shutil.copy(folder / "w" / "model.safetensors", folder / "ck" / "model.safetensors")
            self.run_well("reshard", folder / "plain", folder / "ck", folder / "plain", "--dp", 2)
            self.assertTrue((folder / "plain" / "model.safetensors").exists())
            done = tools.run_tool("reshard", folder / "ck", folder / "out", "--dp", 2, "--weights-from", folder / "w")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("weights beside the shards are left out", done.stderr)
            names = {path.name for path in (folder / "plain").iterdir()}
            self.assertEqual({path.name for path in (folder / "out").iterdir()}, names - {"model.safetensors"})


class ResumeTest(oracle.OracleTest):

    def test_deepspeed_goes_on_from_the_mean(self):
        """zero-to-fp32 --average, reshard --weights-from, load_checkpoint at another number of ranks, steps."""
        for newest, older in MEANS:
            with self.subTest(newest=newest), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                case, second = oracle.case_named(newest), oracle.case_named(older)
                self.run_well("zero-to-fp32", folder / "mean", second.load_dir, case.load_dir, folder / "mean",
                              "--average", "--safe-serialization")
                self.run_well("reshard", folder / "out", case.load_dir, folder / "out", "--dp", 3, "--weights-from",
                              folder / "mean")
                # The recorded run with the mean, by torch, as its masters.
                shutil.copytree(case.folder, folder / "case")
                truth = load_file(folder / "case" / "expected" / "master.safetensors")
                means = {}
                for name, value in case.masters.items():
                    mean = (value.double() + second.masters[name].double()) / 2
                    means[f"{name}|fp32"] = truth[f"{name}|fp32"] = mean.float()
                save_file(truth, folder / "case" / "expected" / "master.safetensors")
                self.assertFalse(all(torch.equal(means[f"{n}|fp32"], v) for n, v in case.masters.items()))
                resume = resume_check.Resume(folder / "case", {"world": 3})
                result = resume_check.run_resume(resume, folder / "out", case.facts["tag"], False, folder / "logs")
                self.assertNotIn("error", result)
                self.assertEqual((result["states"]["missing"], result["states"]["different"]), ([], []))
                self.assertGreater(result["states"]["compared"], len(means))
                losses = result["losses"]
                self.assertEqual(len(losses), resume_check.STEPS_AFTER)
                self.assertTrue(all(0 < loss < 100 for loss in losses), losses)
                self.assertNotEqual(losses, result["losses_of_the_recorded_run"])


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    unittest.main()
