"""zero-to-fp32 of pipeline-, tensor- and expert-parallel checkpoints: options, and what must not be guessed."""
import re
import shutil
import stat

import cli_common
import model_parallel_truth as mp
import tools
import torch_files
from cli_common import CliTest
from edits import edited, load_shard


def case(name):
    found, = (each for each in tools.model_parallel_cases() if each.name == name)
    return found


class ModelParallelTest(CliTest):

    def copy(self, name):
        """A writable copy of a case's checkpoint."""
        folder = self.new_path(name)
        shutil.copytree(case(name).load_dir, folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        return folder

    def model_files(self, folder):
        return sorted(folder.rglob("mp_rank_*_model_states.pt"))

    def without_rules(self, name):
        folder = self.copy(name)
        for path in self.model_files(folder):
            with edited(path) as state:
                del state["universal_checkpoint_info"]
        return folder


class LayerFiles(ModelParallelTest):

    def test_a_missing_layer_is_named(self):
        for name in ["pp2_dp2_z1_bf16", "pp2_dp1_z1_fp16"]:
            folder = self.copy(name)
            next(folder.rglob("layer_04-model_states.pt")).unlink()
            self.assert_refused(folder, 3, r"layer_04-model_states\.pt is missing", where={"tensor": "4."})

    def test_a_missing_slice_of_a_layer_is_named(self):
        folder = self.copy("pp2_tp2_dp1_z1_bf16")
        next(folder.rglob("layer_02-model_01-model_states.pt")).unlink()
        self.assert_refused(folder, 3, r"layer_02-model_01-model_states\.pt is missing")

    def test_a_tied_layer_that_is_missing_is_named_by_its_parameter(self):
        folder = self.copy("pp2_dp2_z1_bf16")
        next(folder.rglob("layer_00-model_states.pt")).unlink()
        self.assert_refused(folder, 3, "no layer's file", where={"tensor": "tied_modules.embed.weight"})

    def test_layers_of_another_shape_are_of_another_model(self):
        folder = self.copy("pp2_dp2_z1_bf16")
        with edited(next(folder.rglob("layer_02-model_states.pt"))) as layer:
            layer["fc1.weight"] = layer["fc1.weight"].t().contiguous()
        self.assert_refused(folder, 3, "shape", where={"tensor": "2.fc1.weight"})

    def test_swapped_layers_are_noticed(self):
        folder = self.copy("pp2_dp2_z1_bf16")
        first, second = (next(folder.rglob(f"layer_0{i}-model_states.pt")) for i in (1, 5))
        spare = first.with_name("spare")
        first.rename(spare), second.rename(first), spare.rename(second)
        self.assert_refused(folder, 3, r"layer_0[15]")

    def test_without_zero_the_shapes_of_the_states_tell_the_stages(self):
        folder = self.copy("pp2_dp1_z0_fp32")
        for path in self.model_files(folder):
            with edited(path) as state:
                del state["universal_checkpoint_info"]
        done = self.zero_to_fp32(folder, self.new_path(), "--safe-serialization", "--json")
        self.assertIn("layer 0 is tied", done.stderr)
        written = self.assert_converts(folder)
        truth = {name.replace("tied_modules.embed.", "0."): value
                 for name, value in mp.weights(case("pp2_dp1_z0_fp32")).items()}
        self.assertEqual(sorted(written), sorted(truth))
        for name, value in truth.items():
            self.assertTrue(torch_files.same_bits(written[name], value), name)


class ExpertFiles(ModelParallelTest):

    def test_a_missing_expert_is_named(self):
        for name in ["moe_ep2_dp2_z1_bf16", "moe_ep2_dp2_z0_fp32", "autoep2_dp2_z1_bf16", "autoep2_dp2_z0_fp32"]:
            with self.subTest(case=name):
                folder = self.copy(name)
                next(folder.rglob("layer_1_expert_3_mp_rank_00_model_states.pt")).unlink()
                self.assert_refused(folder, 3, r"layer_1_expert_3_mp_rank_00_model_states\.pt")

    def test_a_missing_expert_is_named_where_they_are_folded_with_tensor_parallelism(self):
        folder = self.copy("autoep2_autotp2_z1_fp32")
        next(folder.rglob("layer_1_expert_3_mp_rank_01_model_states.pt")).unlink()
        self.assert_refused(folder, 3, "layer_1_expert_3")

    def test_a_missing_optimizer_of_an_expert_parallel_rank_is_named(self):
        folder = self.copy("moe_ep2_dp2_z0_fp32")
        next(folder.rglob("expp_rank_0_mp_rank_00_optim_states.pt")).unlink()
        self.assert_refused(folder, 3, "expp_rank_0_mp_rank_00_optim_states.pt is missing")

    def test_ranks_with_other_settings_have_no_groups_in_common(self):
        folder = self.copy("moe_ep2_dp2_z0_fp32")
        with edited(next(folder.rglob("expp_rank_1_mp_rank_00_optim_states.pt"))) as state:
            state["optimizer"]["param_groups"][0]["lr"] = 0.5
        done = tools.run_tool("to-dcp", folder, self.new_path(), "--dp", "2")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("does not show the optimizer's groups: the model is split over ranks", done.stderr)
        self.assertIn("--weights-only leaves the optimizer out", done.stderr)

    def test_experts_of_a_wrong_number_are_refused(self):
        folder = self.copy("moe_ep2_dp2_z0_fp32")
        with edited(next(folder.rglob("layer_0_expert_1_mp_rank_00_model_states.pt"))) as expert:
            for name in list(expert):
                expert[name.replace("experts.1.", "experts.2.")] = expert.pop(name)
        self.assert_refused(folder, 3, "expert 1")

    def test_a_parameter_that_an_expert_lacks_is_named(self):
        """Once "internal error: map::at"."""
        for lost in ([2], range(4)):
            with self.subTest(lost=lost):
                folder = self.copy("autoep2_dp2_z0_fp32")
                for number in lost:
                    with edited(next(folder.rglob(f"layer_0_expert_{number}_mp_rank_00_model_states.pt"))) as expert:
                        del expert[f"model.layers.0.mlp.experts.w1.{number}"]
                self.assert_refused(folder, 3, r"w1: the file of expert \d has no such parameter")

    def test_an_expert_that_comes_twice_on_a_rank_is_refused(self):
        for name, why in [("autoep2_dp2_z0_fp32", "places an expert twice on rank 1"),
                          ("autoep2_dp2_z1_bf16", "has expert 3 twice")]:
            with self.subTest(name):
                folder = self.copy(name)
                with edited(next(folder.rglob("mp_rank_00_model_states.pt"))) as state:
                    for layer in state["ds_autoep_layers"]:
                        layer["expert_placement"]["ranks"][1]["experts"] = [3, 3]
                self.assert_refused(folder, 3, why)

    def test_a_damaged_copy_of_a_router_is_no_weight_of_its_own(self):
        folder = self.copy("autoep2_dp2_z1_bf16")
        path = next(folder.rglob("mp_rank_00_model_states.pt"))
        gate = load_shard(path)["module"]["model.layers.1.mlp.gate.gate.weight"]
        data = bytearray(path.read_bytes())
        values = gate.tobytes()
        self.assertEqual(data.count(values), 2)  # the router's and its copy's
        for at in (data.index(values), data.rindex(values)):
            damaged = bytearray(data)
            damaged[at + 5] ^= 1
            path.write_bytes(damaged)
            self.assert_refused(folder, 3, r"mp_rank_00_model_states\.pt: .*/data/\d+: .*CRC32")


class TensorParallelRules(ModelParallelTest):

    NAME = "mpu_tp2_dp1_z1_bf16"

    def rules(self, name):
        """--tp-rule for every parameter, from the facts of the case."""
        hows = {"replicated": "replicated", "average": "average", "cat_dim_0": "cat:0", "cat_dim_1": "cat:1"}
        facts = case(name).facts["rules"]
        self.assertFalse({*facts} - {*hows, "vocabulary", "two_sub_params", "sub_params", "on_several_stages"})
        return [f"--tp-rule=^{re.escape(parameter)}$={hows[rule]}"
                for rule, names in facts.items() if rule in hows for parameter in names]

    def test_without_rules_slices_that_differ_are_named(self):
        folder = self.without_rules(self.NAME)
        error = self.assert_refused(folder, 3, "--tp-rule", inspect=False)
        self.assertEqual(error["kind"], "unsupported")
        self.assertIn("tensor", error)

    def test_rules_on_the_command_line_replace_those_of_the_program(self):
        folder = self.without_rules(self.NAME)
        facts = case(self.NAME).facts["rules"]
        parts = {*facts.get("two_sub_params", ()), *facts.get("sub_params", ())}
        others = [f"--tp-rule=^{re.escape(name)}$=cat:0" for name in parts]
        written = self.assert_converts(folder, *self.rules(self.NAME), *others)
        truth = mp.weights(case(self.NAME))
        padded = {*facts.get("vocabulary", ())}
        self.assertEqual(sorted(written), sorted(truth))
        for name, value in truth.items():
            if name in padded:
                self.assertTrue(torch_files.equal(written[name][:len(value)], value), name)
            elif name not in parts:
                self.assertTrue(torch_files.same_bits(written[name], value), name)

    def test_equal_slices_without_a_rule_are_copies(self):
        folder = self.without_rules(self.NAME)
        facts = case(self.NAME).facts["rules"]
        said = [rule for rule in self.rules(self.NAME) if not rule.endswith("=replicated")]
        parts = [*facts.get("two_sub_params", ()), *facts.get("sub_params", ())]
        said += [f"--tp-rule=^{re.escape(name)}$=cat:0" for name in parts]
        written = self.assert_converts(folder, *said)
        truth = mp.weights(case(self.NAME))
        for name in facts["replicated"]:
            self.assertTrue(torch_files.same_bits(written[name], truth[name]), name)

    def test_a_rule_that_calls_a_cut_replicated_is_found_out(self):
        name = case(self.NAME).facts["rules"]["cat_dim_1"][0]
        folder = self.copy(self.NAME)
        self.assert_refused(folder, 3, re.escape(name), f"--tp-rule={re.escape(name)}=replicated", inspect=False)
        for path in self.model_files(folder):
            with edited(path) as state:
                info = state["universal_checkpoint_info"]
                info["parameter_with_row_parallelism_patterns"] = []
                info["tp_replicated_parameter_patterns"].append(re.escape(name))
        self.assert_refused(folder, 3, re.escape(name), inspect=False)

    def test_a_rule_that_calls_copies_a_cut_is_found_out(self):
        name = next(name for name in case(self.NAME).facts["rules"]["replicated"] if "layernorm.weight" in name)
        folder = self.copy(self.NAME)
        self.assert_refused(folder, 3, "same", f"--tp-rule={re.escape(name)}=cat:0", where={"tensor": name},
                            inspect=False)
        for path in self.model_files(folder):
            with edited(path) as state:
                info = state["universal_checkpoint_info"]
                info["tp_replicated_parameter_patterns"] = [
                    pattern for pattern in info["tp_replicated_parameter_patterns"] if not re.match(pattern, name)]
        self.assert_refused(folder, 3, "same", where={"tensor": "layernorm.weight"})

    def test_a_rule_against_an_affine_map_is_refused(self):
        name = case("autotp2_dp2_z1_fp32").facts["rules"]["affine_map"][0]
        self.assert_refused(case("autotp2_dp2_z1_fp32").load_dir, 2, "affine map",
                            f"--tp-rule={re.escape(name)}=cat:1")

    def test_rules_that_are_none(self):
        folder = case(self.NAME).load_dir
        for rule in ["x", "x=cat", "x=cat:2", "=cat:0", "(=cat:0", "no_such_parameter=cat:0"]:
            self.assert_refused(folder, 2, "", f"--tp-rule={rule}")
        plain, = (each for each in tools.all_cases() if each.name == "z2_fp32_full_w3")
        self.assert_refused(plain.load_dir, 2, "one tensor-parallel rank", "--tp-rule=.*=cat:0")

    def test_buffers_that_differ_are_the_first_ranks_with_a_note(self):
        folder = self.copy(self.NAME)
        name = next(name for name in mp.untrained(case(self.NAME)))
        with edited(next(folder.rglob("mp_rank_01_model_states.pt"))) as state:
            state["module"][name] = state["module"][name] + 1
        output = self.new_path()
        done = self.zero_to_fp32(folder, output, "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, f"note: buffer '{re.escape(name)}' differs")
        written = torch_files.load_file(output / "model.safetensors")
        self.assertTrue(torch_files.same_bits(written[name], mp.weights(case(self.NAME))[name]))


class KeyMaps(ModelParallelTest):

    # The rules of README.md: a pipeline of an embedding, blocks, a norm and a tied head, to its plain module.
    RULES = """# a pipeline's names to the plain module's
^tied_modules\\.embed\\. => embed.
^5\\. => final_norm.
^(\\d+)\\. => blocks.{\\1-1}.
"""

    def write(self, text):
        path = self.new_path("names")
        path.write_text(text)
        return path

    def test_a_pipelines_names_become_a_modules(self):
        source = case("pp2_dp2_z1_bf16")
        written = self.assert_converts(source.load_dir, "--key-map", self.write(self.RULES))
        for name, value in mp.weights(source).items():
            layer, rest = name.split(".", 1)
            renamed = {"tied_modules": name.replace("tied_modules.", ""), "5": f"final_norm.{rest}"}.get(layer)
            renamed = renamed or f"blocks.{int(layer) - 1}.{rest}"
            self.assertTrue(torch_files.same_bits(written.pop(renamed), value), name)
        self.assertEqual(written, {})

    def test_rules_that_rename_nothing_are_noted(self):
        rules = self.write("^x => y\n^1\\. => one.\n")
        done = self.zero_to_fp32(case("pp2_dp2_z1_bf16").load_dir, self.new_path(), "--key-map", rules)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"note: {rules}:1: fits no name", done.stderr)

    def test_names_that_collide_are_refused(self):
        rules = self.write("^[12]\\. => one.\n")
        self.assert_refused(case("pp2_dp2_z1_bf16").load_dir, 2, "'one\\..*another tensor", "--key-map", rules)

    def test_bad_rules_are_named_by_line(self):
        folder = case("pp2_dp2_z1_bf16").load_dir
        self.assert_refused(folder, 2, ":2: ", "--key-map", self.write("# fine\nno arrow\n"))
        self.assert_refused(folder, 2, ":1: ", "--key-map", self.write("( => x\n"))
        self.assert_refused(folder, 2, "without a name", "--key-map", self.write(".* =>\n"))
        self.assert_refused(folder, 4, "no_such_file", "--key-map", self.root / "no_such_file")


if __name__ == "__main__":
    cli_common.main()
