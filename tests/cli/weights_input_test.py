"""Weights as input: to-universal, reshard --like and zero-to-fp32 of a Hugging Face folder or a file."""
import json

import numpy

import cli_common
import tools
import torch_files
from cli_common import CliTest
from edits import load_shard

# Stages 0 to 3, precisions, optimizers, tied and frozen parameters, buffers of all kinds.
LIKE = ["z0_bf16_w2", "z0_fp16_fusedadam_full_w1", "z1_fp32_full_w4", "z1_bf16opt_full_w3", "z2_bf16_full_b120_w3",
        "z2_bf16_roundrobin_full_w3", "z1_fp32_sgd_w2", "z3_bf16_full_w6", "z3_fp32_full_w2", "z3_bf16_muon_w2"]


def case_named(name):
    case = tools.case_named(name)
    return case


def random_weights(case, seed=7):
    """Other values for everything that the model of a case has, tied names once and frozen ones too."""
    random = numpy.random.default_rng(seed)
    weights = {}
    for name, value in case.module.items():
        if name in case.tied:
            continue
        shape = case.masters[name].shape if name in case.masters else value.shape
        weights[name] = torch_files.randn(shape, random=random).to(value.dtype) if value.is_floating_point() else value.clone()
    return weights


def all_names(case, weights):
    return {**weights, **{alias: weights[owner] for alias, owner in case.tied.items() if owner in weights}}


class WeightsInputTest(CliTest):

    def folder_of(self, weights, name="model.safetensors"):
        folder = self.new_path("hf")
        folder.mkdir()
        torch_files.save_file({key: value.contiguous() for key, value in weights.items()}, folder / name)
        return folder

    def ok(self, tool, *arguments):
        done = self.tool(tool, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, code, pattern, tool, *arguments):
        done = self.tool(tool, *arguments)
        self.assertEqual(done.returncode, code, done.stderr or "no message")
        self.assertRegex(done.stderr, pattern)

    def universal(self, source, *options):
        output = self.new_path("parent") / "start"
        output.parent.mkdir()
        done = self.ok("to-universal", "--input_folder", source, "--output_folder", output, *options)
        return output, done

    # --- universal

    def test_universal_has_float_masters_zero_moments_and_step_0(self):
        weights = {"a.weight": torch_files.randn(3, 4).to("bfloat16"), "a.bias": torch_files.randn(4).to("float16"), "n": torch_files.tensor(2.5),
                   "ids": torch_files.arange(5), "mask": torch_files.tensor([True, False])}
        output, done = self.universal(self.folder_of(weights))
        self.assertEqual((output.parent / "latest_universal").read_text(), "start")
        for name in ("a.weight", "a.bias", "n"):
            expected = weights[name].to("float32").reshape(weights[name].shape or (1,))
            files = {path.stem: torch_files.load(path) for path in (output / "zero" / name).iterdir()}
            self.assertEqual(sorted(files), ["exp_avg", "exp_avg_sq", "fp32", "step"])
            self.assertTrue(torch_files.same_bits(files["fp32"]["param"], expected))
            for key in ("exp_avg", "exp_avg_sq"):
                self.assertTrue(torch_files.same_bits(files[key]["param"], torch_files.zeros(expected.shape)))
            self.assertTrue(torch_files.same_bits(files["step"], torch_files.tensor(0.0)))
        self.assertEqual([path.name for path in (output / "zero" / "ids").iterdir()], ["fp32.pt"])
        model = torch_files.load(output / "mp_rank_00_model_states.pt")
        self.assertEqual(sorted(model["module"]), sorted(weights))
        for name, value in weights.items():
            self.assertTrue(torch_files.same_bits(model["module"][name], value), name)
        self.assertEqual(sorted(model["buffer_names"]), ["ids", "mask"])
        self.assertEqual((model["global_steps"], model["skipped_steps"], model["global_samples"]), (0, 0, 0))
        self.assertIn("ids", done.stderr)

    def test_tied_tensors_of_a_bin_are_one_parameter(self):
        shared = torch_files.randn(4, 3)
        folder = self.new_path("hf")
        folder.mkdir()
        torch_files.save({"embed.weight": shared, "fc.weight": torch_files.randn(3), "head.weight": shared},
                   folder / "pytorch_model.bin")
        output, _ = self.universal(folder)
        model = torch_files.load(output / "mp_rank_00_model_states.pt")
        self.assertEqual(model["shared_params"], {"head.weight": "embed.weight"})
        self.assertEqual(model["module"]["head.weight"].data_ptr(), model["module"]["embed.weight"].data_ptr())
        self.assertEqual(list(model["param_shapes"][0]), ["embed.weight", "fc.weight"])
        self.assertEqual([path.name for path in (output / "zero" / "head.weight").iterdir()], ["fp32.pt"])

    def test_step_and_states_are_those_of_the_optimizer_of_like(self):
        for name, step, keys in (("z1_fp32_w2", torch_files.tensor(0.0), {"exp_avg", "exp_avg_sq"}),
                                 ("z2_bf16_fusedadam_w2", 0, {"exp_avg", "exp_avg_sq"}),
                                 ("z2_fp32_amsgrad_w2", torch_files.tensor(0.0), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
                                 ("z1_fp32_sgd_w2", None, set())):
            with self.subTest(case=name):
                case = case_named(name)
                weights = random_weights(case)
                output, _ = self.universal(self.folder_of(weights), "--like", case.load_dir)
                for key in case.masters:
                    files = {p.stem: torch_files.load(p) for p in (output / "zero" / key).iterdir()}
                    self.assertEqual(set(files), {"fp32"} | keys | ({"step"} if step is not None else set()))
                    self.assertTrue(torch_files.same_bits(files["fp32"]["param"].reshape(weights[key].shape),
                                                     weights[key].to("float32")))
                    if step is not None:
                        self.assertEqual(type(files["step"]), type(step))
                        self.assertEqual(float(files["step"]), 0)

    # --- native shards

    def test_reshard_starts_no_run_of_stage_0(self):
        for name in [name for name in LIKE if name.startswith("z0")]:
            case = case_named(name)
            done = self.tool("reshard", self.folder_of(random_weights(case)), self.new_path(), "--dp", "3", "--like",
                             case.load_dir)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("before deepspeed.initialize", done.stderr)

    def test_reshard_has_other_values_no_states_and_step_0(self):
        for name in [name for name in LIKE if not name.startswith("z0")]:
            with self.subTest(case=name):
                case = case_named(name)
                weights = random_weights(case)
                output = self.new_path()
                done = self.ok("reshard", self.folder_of(weights), output, "--dp", "3", "--like", case.load_dir)
                self.assertIn("starts at step 0", done.stderr)
                self.assertEqual((output / "latest").read_text(), "global_step0")
                self.assert_same(self.convert(output, "--safe-serialization", "--dtype", "keep"),
                                 self.expected(case, weights))
                for path in sorted((output / "global_step0").glob("*.pt")):
                    self.check_fresh(load_shard(path))

    def assert_same(self, folder, expected):
        found = torch_files.load_file(folder / "model.safetensors")
        self.assertEqual(sorted(found), sorted(expected))
        for name, value in expected.items():
            self.assertTrue(torch_files.same_bits(found[name], value), name)

    def expected(self, case, weights):
        return {name: value.to(case.masters[name].dtype) if name in case.masters else value
                for name, value in weights.items()}

    def check_fresh(self, file):
        states = file.get("optimizer_state_dict") or file.get("optimizer") or {}
        inner = states.get("base_optimizer_state") or states.get("optimizer_state_dict") or states
        self.assertEqual(inner.get("state", {}), {})
        if "module" in file:
            self.assertEqual((file["global_steps"], file["skipped_steps"], file["global_samples"]), (0, 0, 0))
            self.assertIn(file["lr_scheduler"], (None, {"last_batch_iteration": -1}))
            self.assertNotIn("client_note", file)
        scaler = states.get("loss_scaler")
        if scaler is not None:
            self.assertEqual(vars(scaler).get("cur_iter", 0), 0)

    # --- weights to weights

    def test_weights_become_other_weights(self):
        weights = {"a.weight": torch_files.randn(30, 40), "b.weight": torch_files.randn(40).to("bfloat16"), "ids": torch_files.arange(5)}
        out = self.convert(self.folder_of(weights), "--dtype", "bf16", "--max-shard-size", "2KB")
        index = json.loads((out / "pytorch_model.bin.index.json").read_text())["weight_map"]
        found = {}
        for name in set(index.values()):
            found.update(torch_files.load(out / name))
        self.assertEqual(sorted(found), sorted(weights))
        for name, value in weights.items():
            self.assertTrue(torch_files.same_bits(found[name],
                                             value.to("bfloat16") if value.is_floating_point() else value), name)
        back = self.convert(out, "--safe-serialization", "--dtype", "keep")
        self.assert_same(back, found)

    # --- errors

    def like(self):
        case = case_named("z2_bf16_w2")
        return case, random_weights(case)

    def refuse_like(self, weights, pattern, *options, code=3):
        case, _ = self.like()
        output = self.new_path()
        self.refused(code, pattern, "reshard", self.folder_of(weights), output, "--dp", "2", "--like", case.load_dir,
                     *options)
        self.assertFalse(output.exists())

    def test_other_shapes_are_named(self):
        case, weights = self.like()
        name = next(iter(case.masters))
        weights[name] = torch_files.randn(*weights[name].shape, 2)
        self.refuse_like(weights, f"{name}: has shape")

    def test_missing_and_extra_names_are_listed(self):
        case, weights = self.like()
        first, second = list(case.masters)[:2]
        del weights[first], weights[second]
        weights["stranger"] = torch_files.ones(2)
        for name in (first, second):
            self.refuse_like(weights, rf"(?s)lacks 2 parameters.*\n  {name}\n.*has 1 tensor.*\n  stranger\n")

    def test_prefixes_are_suggested_and_taken(self):
        case, weights = self.like()
        prefixed = {f"model.{name}": value for name, value in weights.items()}
        self.refuse_like(prefixed, "--strip-prefix model. would make them fit")
        output = self.new_path()
        self.ok("reshard", self.folder_of(prefixed), output, "--dp", "2", "--like", case.load_dir, "--strip-prefix",
                "model.")
        self.assert_same(self.convert(output, "--safe-serialization", "--dtype", "keep"), self.expected(case, weights))

    def test_added_prefixes_are_in_the_universal_names(self):
        output, _ = self.universal(self.folder_of({"w": torch_files.ones(2)}), "--add-prefix", "module.")
        self.assertTrue((output / "zero" / "module.w" / "fp32.pt").exists())

    def test_integers_are_no_parameters(self):
        case, weights = self.like()
        name = next(iter(case.masters))
        weights[name] = torch_files.zeros(weights[name].shape, dtype="int32")
        self.refuse_like(weights, f"{name}: is of type int32")

    def test_names_that_become_one_are_refused(self):
        folder = self.folder_of({"a.w": torch_files.ones(1), "w": torch_files.ones(1)})
        self.refused(3, "would be the name of two tensors", "to-universal", "--input_folder", folder, "--output_folder",
                     self.new_path() / "x", "--strip-prefix", "a.")

    def test_names_in_two_files_are_refused(self):
        folder = self.folder_of({"w": torch_files.ones(1)}, "one.safetensors")
        torch_files.save_file({"w": torch_files.ones(1)}, folder / "two.safetensors")
        self.refused(3, "is in .*one.safetensors too", "to-universal", "--input_folder", folder, "--output_folder",
                     self.new_path() / "x")

    def test_missing_shards_of_an_index_are_named(self):
        folder = self.folder_of({"w": torch_files.ones(1)}, "model-00001-of-00002.safetensors")
        index = {"weight_map": {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        self.refused(3, "missing: model-00002-of-00002.safetensors", "to-universal", "--input_folder", folder,
                     "--output_folder", self.new_path() / "x")

    def test_json_that_is_nested_deeply_is_refused(self):
        deep = "[" * 1_000_000 + "]" * 1_000_000
        folder = self.folder_of({"a": torch_files.zeros(1)}, "x.safetensors")
        index = folder / "model.safetensors.index.json"
        index.write_text('{"weight_map":{"a":"x.safetensors"},"metadata":%s}' % deep)
        chunks = self.new_path("chunks")
        chunks.mkdir()
        torch_files.save_file({"a": torch_files.zeros(1)}, chunks / "model.safetensors",
                  {"DCP_SHARDING_INFO": '{"a":{"saved_offsets":[%s]}}' % deep})
        for source, error in ((folder, f"{index}: is not an index"),
                              (chunks, "model.safetensors: DCP_SHARDING_INFO: is not a JSON object")):
            self.refused(3, error, "zero-to-fp32", source, self.new_path("out"))
            self.refused(3, error, "ckpt-inspect", "list", source)

    def test_reshard_needs_like(self):
        self.refused(2, "--like", "reshard", self.folder_of({"w": torch_files.ones(1)}), self.new_path(), "--dp", "1")

    def test_options_of_weights_are_refused_for_checkpoints(self):
        case, _ = self.like()
        for options in (["--like", case.load_dir], ["--add-prefix", "x."]):
            self.refused(2, "is for weights", "to-universal", "--input_folder", case.load_dir, "--output_folder",
                         self.new_path() / "x", *options)

    def test_tied_copies_that_differ_are_refused(self):
        case = next(c for c in tools.all_cases() if c.tied and c.stage == 2 and c.name.startswith("hf_"))
        weights = all_names(case, random_weights(case))
        alias = next(iter(case.tied))
        weights[alias] = weights[alias] + 1
        output = self.new_path()
        self.refused(3, "tied", "reshard", self.folder_of(weights), output, "--dp", "2", "--like", case.load_dir)
        self.assertFalse(output.exists())


if __name__ == "__main__":
    cli_common.main()
