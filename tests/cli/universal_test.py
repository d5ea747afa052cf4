"""to-universal as a command: arguments, places, refusals, what is left when it fails."""
import os
import pathlib
import shutil
import zipfile

import cli_common
import torch_files
from cli_common import CliTest, snapshot
from edits import edited, load_shard as load

Z1 = "z1_fp32_w2"
Z2 = "z2_fp32_full_w3"
Z3 = "z3_fp32_full_w2"


class UniversalTest(CliTest):

    def run_tool(self, source, output, *arguments, **options):
        return self.tool("to-universal", "--input_folder", source, "--output_folder", output, *arguments, **options)

    def universal(self, source, *arguments):
        """A run that must succeed: the output folder, and what was said."""
        output = self.new_path() / "universal"
        done = self.run_tool(source, output, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output, done.stderr

    def assert_no_universal(self, source, code, pattern, *arguments, where=None):
        source = pathlib.Path(source)
        before = snapshot(source)
        output = self.new_path() / "made" / "universal"
        done = self.run_tool(source, output, "--json", *arguments)
        self.assertEqual(done.returncode, code, done.stderr or "no message")
        self.assertRegex(done.stderr, pattern)
        for key, value in (where or {}).items():
            self.assertIn(value, str(self.json_lines(done.stdout)[-1]["data"].get(key)), done.stderr)
        self.assertFalse(output.parent.parent.exists(), "an output folder is left")
        self.assertEqual(snapshot(source), before)


class ArgumentsTest(UniversalTest):

    def test_the_python_command_line_works_unchanged(self):
        scratch = self.scratch(Z1)
        output = self.new_path() / "universal"
        done = self.tool("to-universal", "--input_folder", scratch.tag, "--output_folder", output,
                         "--num_extract_workers", "3", "--num_merge_workers", "2", "--keep_temp_folder", "--no_strict",
                         "--inject_missing_state")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no temporary folder", done.stderr)
        self.assertEqual(sorted(p.name for p in output.iterdir()), ["mp_rank_00_model_states.pt", "zero"])
        self.assertEqual((output.parent / "latest_universal").read_text(), "universal")

    def test_the_folder_with_latest_does_as_well(self):
        scratch = self.scratch(Z1)
        by_tag, _ = self.universal(scratch.tag)
        by_latest, _ = self.universal(scratch.folder)
        by_name, _ = self.universal(scratch.folder, "-t", scratch.tag.name)
        contents = [{k: v[3] for k, v in snapshot(folder).items()} for folder in (by_tag, by_latest, by_name)]
        self.assertEqual(contents[0], contents[1])
        self.assertEqual(contents[0], contents[2])

    def test_input_and_output_are_needed(self):
        scratch = self.scratch(Z1)
        for arguments in [[], ["--input_folder", scratch.tag], ["--output_folder", self.new_path()]]:
            done = self.tool("to-universal", *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_relative_folder_and_slashes_name_the_same_place(self):
        scratch = self.scratch(Z1)
        place = self.new_path()
        place.mkdir()
        for given in ["out", "./out2/", "out3//"]:
            done = self.run_tool(scratch.tag, given, cwd=place)
            self.assertEqual(done.returncode, 0, done.stderr)
            name = pathlib.Path(given).name
            self.assertEqual((place / "latest_universal").read_text(), name)
            self.assertTrue((place / name / "zero/optimizer_state.pt").is_file())

    def test_a_dry_run_says_what_a_run_does_and_writes_nothing(self):
        scratch = self.scratch(Z2)
        output = self.new_path() / "universal"
        planned = self.run_tool(scratch.tag, output, "--dry-run", "--json")
        self.assertEqual(planned.returncode, 0, planned.stderr)
        self.assertFalse(output.parent.exists())
        plan = self.json_lines(planned.stdout)[-1]["data"]
        done = self.run_tool(scratch.tag, output, "--json")
        result = self.json_lines(done.stdout)[-1]["data"]
        sizes = {str(p.relative_to(output)): p.stat().st_size for p in output.rglob("*") if p.is_file()}
        for data in [plan, result]:
            self.assertEqual({file["path"]: file["bytes"] for file in data["files"]}, sizes)
            self.assertEqual(data["bytes_written"], sum(sizes.values()))
            folders = {p["name"]: sorted(p["files"]) for p in data["parameters"]}
            self.assertEqual(folders, {p.name: sorted(f.stem for f in p.iterdir())
                                       for p in (output / "zero").iterdir() if p.is_dir()})
        text = self.run_tool(scratch.tag, output, "--dry-run", "--force")
        self.assertIn(f"{len(sizes)} files", text.stdout)


class PlaceTest(UniversalTest):

    def test_a_universal_checkpoint_is_replaced_only_if_forced_and_then_as_a_whole(self):
        one, two = self.scratch(Z1), self.scratch(Z2)
        output, _ = self.universal(one.tag)
        before = snapshot(output.parent)
        done = self.run_tool(two.tag, output)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, "exists already.*\n.*--force")
        self.assertEqual(snapshot(output.parent), before)
        stale = output / "zero/wte.weight/momentum_buffer.pt"
        stale.parent.mkdir(exist_ok=True)
        stale.write_bytes(b"stale")
        self.assertEqual(self.run_tool(two.tag, output, "--force").returncode, 0)
        fresh, _ = self.universal(two.tag)
        self.assertEqual({k: v[3] for k, v in snapshot(output).items()}, {k: v[3] for k, v in snapshot(fresh).items()})
        self.assertEqual(sorted(p.name for p in output.parent.iterdir()), ["latest_universal", "universal"])

    def test_a_folder_with_other_things_is_never_replaced(self):
        scratch = self.scratch(Z1)
        output, _ = self.universal(scratch.tag)
        (output / "notes.txt").write_text("mine")
        before = snapshot(output.parent)
        done = self.run_tool(scratch.tag, output, "--force")
        self.assertEqual(done.returncode, 2)
        self.assertIn("notes.txt", done.stderr)
        self.assertEqual(snapshot(output.parent), before)

    def test_an_empty_folder_is_filled(self):
        scratch = self.scratch(Z1)
        output = self.new_path()
        output.mkdir()
        self.assertEqual(self.run_tool(scratch.tag, output).returncode, 0)
        self.assertTrue((output / "zero/optimizer_state.pt").is_file())

    def test_the_folder_of_the_shards_is_no_place(self):
        scratch = self.scratch(Z1)
        before = snapshot(scratch.folder)
        for output in [scratch.tag, scratch.tag / "universal", scratch.model()]:
            done = self.run_tool(scratch.tag, output, "--force")
            self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(snapshot(scratch.folder), before)

    def test_beside_the_shards_is_the_usual_place(self):
        scratch = self.scratch(Z1)
        before = snapshot(scratch.folder)
        output = scratch.folder / "global_step_universal"
        self.assertEqual(self.run_tool(scratch.tag, output).returncode, 0)
        self.assertEqual((scratch.folder / "latest_universal").read_text(), "global_step_universal")
        after = snapshot(scratch.folder)
        self.assertEqual({key: after[key] for key in before}, before)

    def test_a_place_without_a_name_of_its_own_is_refused(self):
        scratch = self.scratch(Z1)
        place = self.new_path()
        place.mkdir()
        os.symlink(place / "nowhere", place / "dangling")
        for output in ["", ".", "..", "latest_universal", "dangling"]:
            done = self.run_tool(scratch.tag, output, "--force", cwd=place)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertEqual([p.name for p in place.iterdir()], ["dangling"])

    def test_a_link_to_a_folder_stays_and_the_data_goes_where_it_points(self):
        one, two = self.scratch(Z1), self.scratch(Z2)
        place, elsewhere = self.new_path(), self.new_path() / "real"
        place.mkdir()
        elsewhere.mkdir(parents=True)
        os.symlink(elsewhere, place / "universal")
        for source, force, output in [(one, [], "universal"), (two, ["--force"], "universal/")]:
            done = self.run_tool(source.tag, f"{place}/{output}", *force)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((place / "universal").is_symlink())
            fresh, _ = self.universal(source.tag)
            self.assertEqual({k: v[3] for k, v in snapshot(elsewhere).items()},
                             {k: v[3] for k, v in snapshot(fresh).items()})
            self.assertEqual([p.name for p in elsewhere.parent.iterdir()], ["real"])
            self.assertEqual((place / "latest_universal").read_text(), "universal")

    def test_a_damaged_model_states_file_is_not_copied(self):
        scratch = self.scratch(Z1)
        offset, size = cli_common.record_extent(scratch.model(), "data/0")
        cli_common.flip(scratch.model(), offset + size // 2)
        self.assert_no_universal(scratch.folder, 3, "data/0", where={"file": "mp_rank_00_model_states.pt"})

    def test_a_latest_universal_that_cannot_be_replaced_stops_the_run_before_it_starts(self):
        scratch = self.scratch(Z1)
        place = self.new_path()
        (place / "latest_universal").mkdir(parents=True)
        done = self.run_tool(scratch.tag, place / "out")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual([p.name for p in place.iterdir()], ["latest_universal"])

    def test_a_damaged_record_leaves_the_old_one_and_its_name(self):
        scratch = self.scratch(Z1)
        output, _ = self.universal(scratch.tag)
        before = snapshot(output.parent)
        broken = self.scratch(Z1)
        with zipfile.ZipFile(broken.optim(1)) as archive:
            largest = max(archive.infolist(), key=lambda entry: entry.file_size).filename.split("/", 1)[1]
        offset, size = cli_common.record_extent(broken.optim(1), largest)
        cli_common.flip(broken.optim(1), offset + size // 2)
        done = self.run_tool(broken.tag, output, "--force")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(largest, done.stderr)
        self.assertEqual(snapshot(output.parent), before)


class StatesTest(UniversalTest):

    def test_a_state_that_one_rank_lacks_is_refused(self):
        scratch = self.scratch(Z2)
        with scratch.optimizer(1) as state:
            del state["base_optimizer_state"]["state"][0]["exp_avg_sq"]
        self.assert_no_universal(scratch.folder, 3, "exp_avg_sq", where={"file": "zero_pp_rank_1", "member": "state[0]"})

    def test_a_state_that_only_a_later_rank_has_is_refused(self):
        scratch = self.scratch(Z2)
        with scratch.optimizer(2) as state:
            entry = state["base_optimizer_state"]["state"][1]
            entry["max_exp_avg_sq"] = entry["exp_avg_sq"].clone()
        self.assert_no_universal(scratch.folder, 3, "max_exp_avg_sq", where={"file": "zero_pp_rank_2"})

    def test_a_state_of_another_length_is_refused(self):
        for name, key in [(Z2, "base_optimizer_state"), (Z3, "optimizer_state_dict")]:
            scratch = self.scratch(name)
            with scratch.optimizer(1) as state:
                entry = state[key]["state"][0]
                entry["exp_avg"] = torch_files.cat([entry["exp_avg"], torch_files.zeros(1)])
            self.assert_no_universal(scratch.folder, 3, "elements", where={"file": "zero_pp_rank_1", "member": "exp_avg"})

    def test_a_state_of_another_type_on_one_rank_is_refused(self):
        scratch = self.scratch(Z3)
        with scratch.optimizer(1) as state:
            entry = state["optimizer_state_dict"]["state"][0]
            entry["exp_avg"] = entry["exp_avg"].to("bfloat16")
        self.assert_no_universal(scratch.folder, 3, "exp_avg", where={"file": "zero_pp_rank_1"})

    def test_moments_in_16_bit_stay_so(self):
        """DeepSpeedCPUAdam with fp32_optimizer_states=false."""
        scratch = self.scratch(Z1)
        for rank in range(2):
            with scratch.optimizer(rank) as state:
                for entry in state["base_optimizer_state"]["state"].values():
                    entry["exp_avg"] = entry["exp_avg"].to("bfloat16")
        plain, _ = self.universal(scratch.case.load_dir)
        output, _ = self.universal(scratch.folder)
        for path in (output / "zero").glob("*/exp_avg.pt"):
            value = load(path)["param"]
            expected = load(plain / path.relative_to(output))["param"].to("bfloat16")
            self.assertEqual(value.dtype, "bfloat16")
            self.assertTrue(torch_files.equal(value, expected), path)

    def test_one_value_for_many_parameters_is_left_out_with_a_note(self):
        """NAdam's mu_product."""
        scratch = self.scratch(Z1)
        for rank in range(2):
            with scratch.optimizer(rank) as state:
                for entry in state["base_optimizer_state"]["state"].values():
                    entry["mu_product"] = torch_files.tensor(0.5)
        output, said = self.universal(scratch.folder)
        self.assertEqual(said.count("mu_product"), 1)
        self.assertEqual(list(output.rglob("mu_product.pt")), [])

    def test_a_checkpoint_from_before_the_first_step_has_no_states(self):
        for name, key in [(Z2, "base_optimizer_state"), (Z3, "optimizer_state_dict")]:
            scratch = self.scratch(name)
            for rank in range(scratch.case.facts["world_size"]):
                with scratch.optimizer(rank) as state:
                    state[key]["state"] = {}
            output, _ = self.universal(scratch.folder)
            self.assertTrue(list(output.rglob("fp32.pt")))
            self.assertEqual(list(output.rglob("exp_avg.pt")) + list(output.rglob("step.pt")), [])

    def test_a_learning_rate_may_be_a_tensor(self):
        """Saved twice in one file it was an internal error."""
        for name, key in [(Z1, "base_optimizer_state"), ("z3_fp32_w3", "optimizer_state_dict")]:
            scratch = self.scratch(name)
            for rank in range(scratch.case.facts["world_size"]):
                with scratch.optimizer(rank) as state:
                    for group in state[key]["param_groups"]:
                        group["lr"] = torch_files.tensor(0.25)
                    state["param_groups"] = [{"lr": torch_files.tensor(0.5)}]
            output, _ = self.universal(scratch.folder)
            group, = load(output / "zero/optimizer_state.pt")["param_groups"]
            self.assertEqual(group["lr"].item(), 0.25)

    def test_a_step_that_is_no_number_is_refused(self):
        for value in [torch_files.zeros(3), "three", [1]]:
            scratch = self.scratch(Z1)
            for rank in range(2):
                with scratch.optimizer(rank) as state:
                    state["base_optimizer_state"]["state"][0]["step"] = value
            self.assert_no_universal(scratch.folder, 3, "not a number", where={"member": "step"})

    def test_states_are_found_under_the_numbers_that_the_groups_have(self):
        scratch = self.scratch(Z2)
        plain, _ = self.universal(scratch.folder)
        for rank in range(3):
            with scratch.optimizer(rank) as state:
                base = state["base_optimizer_state"]
                base["state"] = {1 - index: entry for index, entry in base["state"].items()}
                for index, group in enumerate(base["param_groups"]):
                    group["params"] = [1 - index]
        output, _ = self.universal(scratch.folder)
        for path in (plain / "zero").glob("*/*.pt"):
            self.assertEqual(path.read_bytes(), (output / path.relative_to(plain)).read_bytes(), path)

    def test_a_flat_state_at_stage_0_that_is_longer_than_its_masters_is_refused(self):
        scratch = self.scratch("z0_bf16_fusedadam_w2")
        with edited(scratch.model()) as state:
            entry = state["optimizer"]["optimizer_state_dict"]["state"][0]
            entry["exp_avg"] = torch_files.cat([entry["exp_avg"], torch_files.zeros(7)])
        self.assert_no_universal(scratch.folder, 3, "'exp_avg' has .* elements")

    def test_rules_that_differ_between_files_are_refused(self):
        for name, last in [("mpu_tp2_dp1_z1_bf16", "mp_rank_01"), ("pp2_tp2_dp1_z1_bf16", "mp_rank_03")]:
            case = self.mp_scratch(name)
            with edited(case / f"{last}_model_states.pt") as state:
                info = state["universal_checkpoint_info"]
                info["parameter_with_row_parallelism_patterns"] = []
            self.assert_no_universal(case, 3, "is not as in", where={"file": last})

    def test_the_order_of_experts_is_not_guessed(self):
        """deepspeed.initialize(config="ds.json") saves the path."""
        case = self.mp_scratch("moe_ep2_dp4_z1_fp32")
        for path in case.glob("*.pt"):
            if "_expert_" in path.name:
                continue
            with edited(path) as state:
                state["ds_config"] = "ds.json"
        self.assert_no_universal(case, 3, "use_data_before_expert_parallelism", where={"member": "ds_config"})

    def test_tied_parameters_that_are_replicated_too_are_compared_everywhere(self):
        plain, _ = self.universal(self.mp_scratch("pp2_tp2_dp1_z1_bf16"))
        case = self.mp_scratch("pp2_tp2_dp1_z1_bf16")
        for path in case.glob("mp_rank_*_model_states.pt"):
            with edited(path) as state:
                state["universal_checkpoint_info"]["pipeline_replicated_parameter_patterns"] = []
        # The last stage's copy of the position embeddings is stale.
        self.assert_no_universal(case, 3, "position_embeddings.*in pipeline stages 0 and 1.*not the same")
        self.assertTrue(list((plain / "zero").glob("tied_modules*position_embeddings*/fp32.pt")))

    def test_what_the_loader_does_not_restore_is_said(self):
        _, said = self.universal(self.scratch(Z2).folder)
        self.assertRegex(said, "does not restore buffers and frozen parameters.*'stats.*reshard")
        _, said = self.universal(self.scratch(Z3).folder)
        self.assertRegex(said, "hyper-parameters of the first one.*reshard")
        _, said = self.universal(self.scratch("z3_fp32_sgd_w2").folder)
        self.assertRegex(said, "Adam only.*no exp_avg")
        _, said = self.universal(self.scratch("z1_fp32_elastic_w2").folder)
        self.assertIn("elastic", said)
        _, said = self.universal(self.scratch("z3_fp32_w3").folder)
        self.assertNotIn("first one", said)
        self.assertNotIn("sub-groups", said)
        _, said = self.universal(self.scratch("z3_fp32_small_subgroups_w2").folder)
        self.assertIn("one step count for all sub-groups", said)
        _, said = self.universal(self.scratch("z1_bf16_muon_w2").folder)
        self.assertIn("Muon", said)
        _, said = self.universal(self.scratch("z2_bf16_roundrobin_w2").folder)
        self.assertIn("round_robin_gradients", said)
        _, said = self.universal(self.mp_scratch("moe_ep2_dp2_z1_bf16"))
        self.assertIn("expert-parallel degree of 1", said)

    def test_missing_files_of_a_pipeline_are_all_named(self):
        case = self.mp_scratch("pp2_tp2_dp2_z1_fp32")
        for name in ["zero_pp_rank_1_mp_rank_02_optim_states.pt", "zero_pp_rank_0_mp_rank_03_optim_states.pt"]:
            (case / name).unlink()
        self.assert_no_universal(case, 3, "(?s)2 of 8 files are missing.*rank_1_mp_rank_02.*rank_0_mp_rank_03")
        case = self.mp_scratch("pp2_tp2_dp2_z1_fp32")
        (case / "mp_rank_01_model_states.pt").unlink()
        self.assert_no_universal(case, 3, "(?s)1 of 4 files are missing.*mp_rank_01_model_states.pt")

    def test_a_step_of_another_pipeline_stage_is_refused(self):
        case = self.mp_scratch("pp2_dp1_z1_bf16")
        with edited(next(case.glob("*_mp_rank_01_optim_states.pt"))) as state:
            for entry in state["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
                entry["step"] += 1
        self.assert_no_universal(case, 3, "same step", where={"file": "mp_rank_01"})

    def test_slices_without_rules_are_refused(self):
        case = self.mp_scratch("mpu_tp2_dp1_z1_bf16")
        for path in case.glob("mp_rank_*_model_states.pt"):
            with edited(path) as state:
                del state["universal_checkpoint_info"]
        self.assert_no_universal(case, 3, "slices .* differ, and nothing says")

    def test_a_tied_parameter_that_differs_between_stages_needs_a_rule(self):
        case = self.mp_scratch("pp2_dp2_noinfo_z1_fp32")
        _, said = self.universal(case)
        self.assertIn("no universal_checkpoint_info", said)
        for path in sorted(case.glob("*_mp_rank_01_optim_states.pt")):
            with edited(path) as state:
                state = state["optimizer_state_dict"]
                for group in state["single_partition_of_fp32_groups"]:
                    group += 1
        self.assert_no_universal(case, 3, "tied_modules.*pipeline stages 0 and 1")

    def mp_scratch(self, name):
        """A copy of the tag folder of a model-parallel checkpoint."""
        source = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "model_parallel" / name / "ckpt"
        folder = self.new_path("mp")
        shutil.copytree(source, folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
        return folder / (folder / "latest").read_text()


if __name__ == "__main__":
    cli_common.main()
