"""Universal checkpoints as input that are damaged, incomplete, mixed up, or not as the converters write them."""
import pathlib
import shutil

import cli_common
import tools
import torch_files
from cli_common import CliTest, record_extent
from edits import edited

Z0_LOW = "z0_bf16_full_w2"
Z1 = "z1_fp32_full_w4"
Z2 = "z2_bf16_w2"
Z3 = "z3_fp32_full_w2"
MUON = "z2_bf16_muon_w2"


class UniversalInputTest(CliTest):

    def universal(self, name):
        """(a universal checkpoint that may be edited, its case)"""
        case = tools.case_named(name)
        folder = self.new_path("ckpt") / "universal"
        done = self.tool("to-universal", "--input_folder", case.tag_folder, "--output_folder", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder, case

    @staticmethod
    def of_rank(folder, rank=0):
        found, = folder.glob(f"*mp_rank_{rank:02d}_model_states.pt")
        return found

    def assert_holds_the_truth(self, folder, case):
        tensors = self.assert_converts(folder)
        expected = case.without_aliases(case.truth())
        self.assertEqual(sorted(tensors), sorted(expected))
        for name, value in expected.items():
            self.assertTrue(torch_files.same_bits(tensors[name], value), name)


class MissingFilesTest(UniversalInputTest):

    def test_all_missing_parameters_are_listed_at_once(self):
        for name in [Z1, Z3]:
            with self.subTest(case=name):
                folder, case = self.universal(name)
                gone, without_master, *_ = case.masters
                shutil.rmtree(folder / "zero" / gone)
                (folder / "zero" / without_master / "fp32.pt").unlink()
                error = self.assert_refused(folder, 3, "2 files are missing")
                self.assertEqual(error["kind"], "inconsistent")
                for parameter in [gone, without_master]:
                    self.assertIn(f"\n  zero/{parameter}/fp32.pt", error["message"])

    def test_the_only_missing_parameter_is_named(self):
        folder, case = self.universal(Z1)
        name = list(case.masters)[3]
        (folder / "zero" / name / "fp32.pt").unlink()
        self.assert_refused(folder, 3, "1 file is missing", where={"tensor": name, "file": folder})

    def test_a_parameter_of_stage_0_is_missed_even_if_it_was_not_trained(self):
        folder, case = self.universal("z0_fp32_sgd_w2")
        name = list(case.masters)[0]
        shutil.rmtree(folder / "zero" / name)
        self.assert_refused(folder, 3, "is missing", where={"tensor": name})

    def test_what_is_not_of_one_parameter_is_missed(self):
        for name, file in [(Z1, "zero/optimizer_state.pt"), (Z3, "zero/optimizer_state.pt"),
                           (Z3, "zero_pp_rank_1_mp_rank_00_model_states.pt")]:
            with self.subTest(case=name, file=file):
                folder, _ = self.universal(name)
                (folder / file).unlink()
                error = self.assert_refused(folder, 3, pathlib.Path(file).name.replace(".", r"\."))
                self.assertIn("missing", error["message"])

    def test_model_states_are_missed(self):
        folder, _ = self.universal(Z1)
        self.of_rank(folder).unlink()
        self.assert_refused(folder, 3, "holds no DeepSpeed shards", inspect=True)

    def test_states_that_one_parameter_of_a_group_lacks_are_missed(self):
        for name in [Z1, Z3]:
            with self.subTest(case=name):
                folder, case = self.universal(name)
                parameter = "blocks.0.norm.bias" if "blocks.0.norm.bias" in case.masters else list(case.masters)[-1]
                (folder / "zero" / parameter / "exp_avg_sq.pt").unlink()
                error = self.assert_refused(folder, 3, r"has no exp_avg_sq\.pt", inspect=True)
                self.assertIn(f"/zero/{parameter}", error["file"])
                self.assertEqual(error["tensor"], parameter)

    def test_folders_that_were_not_trained_may_be_missing(self):
        folder, case = self.universal(Z1)
        for name in case.module:
            if name not in case.masters:
                shutil.rmtree(folder / "zero" / name, ignore_errors=True)
        self.assert_holds_the_truth(folder, case)


class DamagedFilesTest(UniversalInputTest):

    def edit_state(self, name, key, change):
        """A universal checkpoint in which `change` has been made of a state of one parameter of two dimensions, and
        that parameter."""
        folder, case = self.universal(name)
        parameter = next(p for p, shape in case.facts["param_shapes"].items()
                         if p in case.masters and len(shape) == 2 and shape[0] != shape[1])
        path = folder / "zero" / parameter / f"{key}.pt"
        state = torch_files.load(path)
        torch_files.save(change(state), path)
        return folder, {"tensor": parameter, "file": f"universal/zero/{parameter}/{key}.pt"}

    def test_a_truncated_file_is_named(self):
        for key in ["fp32", "exp_avg", "step"]:
            folder, case = self.universal(Z1)
            path = folder / "zero" / list(case.masters)[0] / f"{key}.pt"
            path.write_bytes(path.read_bytes()[:-100])
            error = self.assert_refused(folder, 3, "", where={"file": f"{key}.pt"})
            self.assertEqual(error["kind"], "corrupt")

    def test_a_damaged_tensor_is_noticed(self):
        folder, case = self.universal(Z2)
        path = folder / "zero" / list(case.masters)[0] / "fp32.pt"
        offset, size = record_extent(path, "data/0")
        cli_common.flip(path, offset + size // 2)
        error = self.assert_refused(folder, 3, "CRC32|checksum", inspect=False)
        self.assertEqual(error["kind"], "corrupt")

    def test_damaged_states_are_noticed_when_asked(self):
        folder, case = self.universal(Z2)
        path = folder / "zero" / list(case.masters)[0] / "exp_avg.pt"
        offset, size = record_extent(path, "data/0")
        cli_common.flip(path, offset + size // 2)
        self.assert_holds_the_truth(folder, case)
        self.assert_refused(folder, 3, "CRC32|checksum", "--verify", inspect=False)

    def test_another_shape_is_refused(self):
        for change in [lambda t: t.t().contiguous(), lambda t: t[:-1].clone(), lambda t: t.reshape(-1).clone(),
                       lambda t: torch_files.cat([t, t])]:
            folder, where = self.edit_state(Z1, "fp32", lambda s: {**s, "param": change(s["param"])})
            self.assert_refused(folder, 3, "has shape", where=where)
        for change in [lambda t: t[:-1].clone(), lambda t: torch_files.cat([t, t]), lambda t: t.reshape(1, -1)]:
            folder, where = self.edit_state(Z3, "fp32", change)
            self.assert_refused(folder, 3, "has shape", where=where)

    def test_what_is_no_tensor_is_refused(self):
        for value, pattern in [(3, "tensor was expected"), ({"param": [1]}, "tensor was expected"),
                               ({"cat_dim": 0}, "param"), (None, "tensor was expected")]:
            folder, where = self.edit_state(Z1, "fp32", lambda _: value)
            self.assertEqual(self.assert_refused(folder, 3, pattern, where=where)["kind"], "corrupt")

    def test_masters_of_another_type_are_refused(self):
        folder, where = self.edit_state(Z1, "fp32", lambda s: {**s, "param": s["param"].to("int64")})
        self.assertEqual(self.assert_refused(folder, 3, "masters", where=where)["kind"], "corrupt")

    def test_model_files_of_several_saves_are_refused(self):
        for key in ["global_steps", "dp_world_size", "param_shapes"]:
            folder, _ = self.universal(Z3)
            with edited(folder / "zero_pp_rank_1_mp_rank_00_model_states.pt") as state:
                state[key] = state[key][:-1] if key == "param_shapes" else state[key] + 1
            self.assert_refused(folder, 3, "same step", where={"member": key})

    def test_a_stage_that_the_files_do_not_bear_out_is_refused(self):
        for name, stage, pattern in [(Z1, 3, "without model files of single ranks"),
                                     (Z3, 2, "there are model files of single ranks"), (Z1, 7, "is 7")]:
            folder, _ = self.universal(name)
            with edited(folder / "zero" / "optimizer_state.pt") as state:
                state["zero_stage"] = stage
            self.assert_refused(folder, 3, pattern, where={"member": "zero_stage"})


class ForeignFilesTest(UniversalInputTest):

    def test_a_parameter_that_the_model_does_not_have_is_refused(self):
        for name in [Z0_LOW, Z1, Z3]:
            with self.subTest(case=name):
                folder, case = self.universal(name)
                shutil.copytree(folder / "zero" / list(case.masters)[0], folder / "zero" / "no.such.weight")
                self.assert_refused(folder, 3, r"no such parameter:\n  zero/no\.such\.weight",
                                    where={"tensor": "no.such.weight"})

    def test_other_files_are_left_alone(self):
        folder, case = self.universal(Z1)
        (folder / "zero" / "README.md").write_text("what this is")
        (folder / "zero" / list(case.masters)[0] / "notes.txt").write_text("none")
        (folder / "zero" / "empty").mkdir()
        self.assert_holds_the_truth(folder, case)

    def test_experts_without_their_description_are_refused(self):
        folder, case = self.universal(Z1)
        path = folder / "zero" / list(case.masters)[0] / "fp32.pt"
        torch_files.save({**torch_files.load(path), "is_expert_param": True, "ep_num_experts": 4}, path)
        self.assert_refused(folder, 3, "experts", where={"tensor": list(case.masters)[0]})

    def test_rules_that_cannot_be_used_matter_only_to_who_cuts_anew(self):
        look_behind, twice = r".*(?<!foo)layernorm\.weight$", r".*attention\.dense.*"
        for key, pattern, why, code in [
                ("tp_replicated_parameter_patterns", look_behind, "invalid perl operator", 0),
                ("parameter_with_row_parallelism_patterns", twice, "several patterns of", 1)]:
            with self.subTest(pattern=pattern):
                folder, _ = self.universal("mpu_tp2_dp1_z1_bf16")
                before = self.assert_converts(folder)
                for rank in range(2):
                    with torch_files.edited(self.of_rank(folder, rank)) as state:
                        state["universal_checkpoint_info"][key] = [*state["universal_checkpoint_info"][key], pattern]
                output = self.convert(folder, "--safe-serialization", "--states")
                found = tools.Case.load_file(output / "model.safetensors")
                self.assertEqual(sorted(found), sorted(before))
                self.assertTrue((output / "optimizer_states" / "exp_avg.safetensors").exists())
                verified = self.tool("ckpt-inspect", "verify", folder)
                self.assertEqual(verified.returncode, code, verified.stdout + verified.stderr)
                self.assertEqual(why in verified.stdout, code == 1)
                self.assertNotIn("not checked", verified.stdout)
                done = self.tool("reshard", folder, self.new_path(), "--dp", 1)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertIn(why, done.stderr)

    def test_a_universal_checkpoint_is_not_made_of_one(self):
        folder, _ = self.universal(Z1)
        output = self.new_path() / "again"
        done = self.tool("to-universal", "--input_folder", folder, "--output_folder", output)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "is a universal checkpoint already")
        self.assertFalse(output.exists())


class OtherFormsTest(UniversalInputTest):

    def test_values_may_be_bare_or_in_a_dict(self):
        for name in [Z1, Z3]:
            with self.subTest(case=name):
                folder, case = self.universal(name)
                for parameter in case.masters:
                    for path in (folder / "zero" / parameter).glob("*.pt"):
                        value = torch_files.load(path)
                        if path.stem != "step":
                            torch_files.save(value["param"] if isinstance(value, dict) else {"param": value}, path)
                self.assert_holds_the_truth(folder, case)

    def test_a_vector_of_stage_3_may_have_its_shape(self):
        folder, case = self.universal(Z3)
        for parameter, value in case.masters.items():
            torch_files.save(value, folder / "zero" / parameter / "fp32.pt")
        self.assert_holds_the_truth(folder, case)

    def test_padding_of_the_vocabulary_comes_back_as_zeros(self):
        folder, case = self.universal(Z1)
        name, whole = next((n, v) for n, v in case.masters.items() if v.dim() == 2)
        for path in (folder / "zero" / name).glob("*.pt"):
            if path.stem != "step":
                state = torch_files.load(path)
                torch_files.save({**state, "vocab_tensor": True, "param": state["param"][:-3].clone()}, path)
        tensors = self.assert_converts(folder)
        self.assertTrue(torch_files.same_bits(tensors[name][:-3], whole[:-3]))
        self.assertTrue(torch_files.same_bits(tensors[name][-3:], torch_files.zeros(whole[-3:].shape)))
        done = self.zero_to_fp32(folder, self.new_path())
        self.assertIn(f"the last 3 rows of '{name}' are padding", done.stderr)

    def test_names_with_slashes_are_folders_in_folders(self):
        scratch = self.scratch(Z2)
        old = next(iter(scratch.case.masters))
        new = "part/" + old.replace(".", "/x.")

        def renamed(mapping):
            return type(mapping)((new if key == old else key, value) for key, value in mapping.items())

        with edited(scratch.model()) as state:
            state["module"] = renamed(state["module"])
            state["param_shapes"] = [renamed(group) for group in state["param_shapes"]]
        for rank in range(2):
            with scratch.optimizer(rank) as state:
                state["param_slice_mappings"] = [renamed(group) for group in state["param_slice_mappings"]]
        folder = self.new_path("ckpt") / "universal"
        done = self.tool("to-universal", "--input_folder", scratch.folder, "--output_folder", folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((folder / "zero" / new / "fp32.pt").exists())
        self.assertTrue(torch_files.same_bits(self.assert_converts(folder)[new], scratch.case.masters[old]))


if __name__ == "__main__":
    cli_common.main()
