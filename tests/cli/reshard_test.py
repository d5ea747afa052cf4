"""reshard as a command: arguments, places, what is beside the shards, the new run's configuration, refusals."""
import filecmp
import json
import pathlib
import shutil
import zipfile

import cli_common
import torch_files
from cli_common import CliTest, snapshot
from edits import edited, load_shard as load

Z1 = "z1_fp32_w2"
Z2 = "z2_fp32_full_w3"  # tied and frozen parameters, buffers, two groups
Z3 = "z3_fp32_full_w2"
BF16 = "z2_bf16_w4"
TRAINER = "hf_trainer_gpt2_z2_bf16_w2"


def relative_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class ReshardTest(CliTest):

    def run_tool(self, source, output, *arguments, **options):
        return self.tool("reshard", source, output, *arguments, **options)

    def reshard(self, source, *arguments):
        """A run that must succeed: the output folder, and what was said."""
        output = self.new_path() / "out"
        done = self.run_tool(source, output, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output, done.stderr

    def assert_refused(self, source, code, pattern, *arguments):
        source = pathlib.Path(source)
        before = snapshot(source)
        output = self.new_path() / "made" / "out"
        done = self.run_tool(source, output, "--json", *arguments)
        self.assertEqual(done.returncode, code, done.stderr or "no message")
        self.assertRegex(done.stderr, pattern)
        self.assertFalse(output.parent.parent.exists(), "an output folder is left")
        self.assertEqual(snapshot(source), before)
        return self.json_lines(done.stdout)[-1]["data"]

    def optim(self, output, rank):
        [path] = output.glob(f"*/*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        return load(path)["optimizer_state_dict"]

    def write_config(self, config):
        path = self.new_path("config.json")
        path.write_text(json.dumps(config))
        return path

    def config_of(self, scratch, **changes):
        config = load(scratch.model())["ds_config"]
        for key, value in changes.items():
            config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
        return self.write_config(config)


class ArgumentsTest(ReshardTest):

    def test_input_output_and_ranks_are_needed_and_checked(self):
        scratch = self.scratch(Z1)
        output = self.new_path()
        missing = self.root / "no"
        shared = [scratch.folder, output]
        for arguments, code, beginning in [
            ([], 2, "input is required"),
            ([scratch.folder], 2, "output is required"),
            (shared, 2, "--dp is required"),
            ([*shared, "--dp", "0"], 2, "--dp: Value 0 not in range 1 to 65536"),
            ([*shared, "--dp", "-2"], 2, "--dp: Value -2 not in range 1 to 65536"),
            ([*shared, "--dp", "two"], 2, "--dp: Value two not in range 1 to 65536"),
            ([*shared, "--dp", "2", "--stage", "4"], 2, "--stage: Value 4 not in range 0 to 3"),
            ([*shared, "--dp", "2", "--sub-group-size", "0"], 2, "--sub-group-size: '0' is not a whole number above 0"),
            ([*shared, "--dp", "2", "--ds-config", missing], 4, f"{missing}: cannot open: No such file or directory"),
            ([*shared, "--dp", "2", "--like", missing], 2, f"{missing}: there is no such folder"),
        ]:
            with self.subTest(arguments=arguments[2:]):
                done = self.tool("reshard", *arguments)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertTrue(done.stderr.startswith(f"reshard: error: {beginning}"), done.stderr)
                self.assertFalse(output.exists())

    def test_a_dry_run_says_what_a_run_does_and_writes_nothing(self):
        for name, stage in [(Z2, 2), (Z3, 3), (Z3, 0)]:
            scratch = self.scratch(name)
            output = self.new_path() / "out"
            arguments = ["--dp", "5", "--stage", stage]
            planned = self.run_tool(scratch.folder, output, "--dry-run", "--json", *arguments)
            self.assertEqual(planned.returncode, 0, planned.stderr)
            self.assertFalse(output.parent.exists())
            done = self.run_tool(scratch.folder, output, "--json", *arguments)
            sizes = {str(p.relative_to(output)): p.stat().st_size for p in output.rglob("*") if p.is_file()}
            for kind, text in [("plan", planned.stdout), ("done", done.stdout)]:
                line = self.json_lines(text)[-1]
                data = line["data"]
                self.assertEqual(line["type"], kind)
                self.assertEqual({file["path"]: file["bytes"] for file in data["files"]}, sizes)
                self.assertEqual((data["dp"], data["zero_stage"]), (5, stage))
                self.assertEqual(data["bytes_written"], sum(sizes.values()))
            text = self.run_tool(scratch.folder, self.new_path(), "--dry-run", *arguments).stdout
            self.assertIn(f"{len(sizes)} files", text)
            numels = [group["numel"] for group in data["groups"]]
            shapes = [shape for group in load(self.scratch(Z2).model())["param_shapes"] for shape in group.values()]
            self.assertEqual(sum(numels), sum(shape.numel() for shape in shapes))

    def test_a_tag_a_folder_and_a_slash_name_the_same_checkpoint(self):
        scratch = self.scratch(Z1)
        outputs = [self.reshard(given, "--dp", "3", *more)[0]
                   for given, more in [(scratch.folder, []), (scratch.folder, ["-t", scratch.tag.name]),
                                       (scratch.tag, []), (f"{scratch.tag}/", []), (f"{scratch.folder}/", [])]]
        first = outputs[0]
        for output in outputs:
            self.assertEqual((output / "latest").read_text(), scratch.tag.name)
            self.assertEqual(relative_files(output), relative_files(first))
            for name in relative_files(first):
                self.assertEqual((output / name).read_bytes(), (first / name).read_bytes(), name)

    def test_threads_do_not_change_a_byte(self):
        for name, arguments in [(Z2, ["--dp", "4", "--stage", "3"]), (Z3, ["--dp", "3"]), (BF16, ["--dp", "2"])]:
            scratch = self.scratch(name)
            one, _ = self.reshard(scratch.folder, "--threads", "1", *arguments)
            for threads in (2, 5):
                other, _ = self.reshard(scratch.folder, "--threads", threads, *arguments)
                names = relative_files(one)
                self.assertEqual(relative_files(other), names)
                self.assertEqual(filecmp.cmpfiles(one, other, names, shallow=False)[1:], ([], []))


class PlaceTest(ReshardTest):

    def test_an_output_is_replaced_only_if_forced_and_then_as_a_whole(self):
        scratch = self.scratch(Z3)
        output, _ = self.reshard(scratch.folder, "--dp", "4")
        before = snapshot(output)
        done = self.run_tool(scratch.folder, output, "--dp", "1")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--force", done.stderr)
        self.assertEqual(snapshot(output), before)
        done = self.run_tool(scratch.folder, output, "--dp", "1", "--force")
        self.assertEqual(done.returncode, 0, done.stderr)
        fresh, _ = self.reshard(scratch.folder, "--dp", "1")
        self.assertEqual(relative_files(output), relative_files(fresh))

    def test_what_is_not_ours_is_never_replaced(self):
        scratch = self.scratch(Z1)
        for place, name in [("", "notes.txt"), ("", "global_step99/zero_pp_rank_0_mp_rank_00_optim_states.pt"),
                            (scratch.tag.name, "notes.txt")]:
            output, _ = self.reshard(scratch.folder, "--dp", "1")
            theirs = output / place / name
            theirs.parent.mkdir(exist_ok=True)
            theirs.write_text("mine")
            before = snapshot(output)
            done = self.run_tool(scratch.folder, output, "--dp", "3", "--force")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("not replaced", done.stderr)
            self.assertEqual(snapshot(output), before)

    def test_the_input_and_places_inside_it_are_no_output(self):
        scratch = self.scratch(Z1)
        before = snapshot(scratch.folder)
        for output in [scratch.folder, scratch.tag, scratch.tag / "new"]:
            for force in [[], ["--force"]]:
                done = self.run_tool(scratch.folder, output, "--dp", "3", *force)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(snapshot(scratch.folder), before)


class NeighboursTest(ReshardTest):

    def test_what_the_trainer_keeps_beside_the_shards_comes_along(self):
        scratch = self.scratch(TRAINER)
        output, said = self.reshard(scratch.folder, "--dp", "4")
        for name in ["config.json", "generation_config.json", "trainer_state.json", "model.safetensors",
                     "rng_state_0.pth", "rng_state_1.pth"]:
            self.assertEqual((output / name).read_bytes(), (scratch.folder / name).read_bytes(), name)
        self.assertFalse((output / "rng_state_2.pth").exists())
        self.assertRegex(said, "ranks 2 .*3 .*fresh")

    def test_the_trainer_names_the_random_state_of_a_lone_rank_otherwise(self):
        scratch = self.scratch(TRAINER)
        one, said = self.reshard(scratch.folder, "--dp", "1")
        self.assertEqual((one / "rng_state.pth").read_bytes(), (scratch.folder / "rng_state_0.pth").read_bytes())
        self.assertFalse(list(one.glob("rng_state_*")))
        self.assertRegex(said, "RNG state of rank 1 is left out")
        two, said = self.reshard(one, "--dp", "2")
        self.assertEqual((two / "rng_state_0.pth").read_bytes(), (scratch.folder / "rng_state_0.pth").read_bytes())
        self.assertFalse((two / "rng_state.pth").exists())

    def test_a_damaged_zip_beside_the_shards_is_not_passed_on(self):
        scratch = self.scratch(TRAINER)
        path = scratch.folder / "rng_state_0.pth"
        whole = path.read_bytes()
        directory = whole.index(b"PK\x01\x02")
        places = {"signature": directory, "flags": directory + 8, "method": directory + 10, "CRC32": directory + 16,
                  "size": directory + 20, "length of the name": directory + 28, "offset": directory + 42,
                  "name": directory + 46, "number of records": len(whole) - 12, "length of the comment": len(whole) - 2}
        copying = [("reshard", scratch.folder, self.new_path(), "--dp", "2"),
                   ("ckpt-pack", "strip", scratch.folder, self.new_path(), "--keep", "resume")]
        for what, at in places.items():
            damaged = bytearray(whole)
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with self.subTest(what):
                for command in copying:
                    done = self.tool(*command)
                    self.assertEqual(done.returncode, 3, command)
                    self.assertIn("rng_state_0.pth", done.stderr)
                done = self.tool("ckpt-pack", "pack", scratch.folder, self.new_path())
                self.assertEqual(done.returncode, 0)
                self.assertIn("note: rng_state_0.pth is packed as plain bytes", done.stderr)
                other = path.rename(scratch.folder / "random_states_0.pkl")
                done = self.tool("ckpt-pack", "pack", scratch.folder, self.new_path())
                other.unlink()
                self.assertIn("note: random_states_0.pkl is packed as plain bytes", done.stderr)
        path.write_bytes(whole[:-7])
        done = self.run_tool(scratch.folder, self.new_path(), "--dp", "2")
        self.assertRegex(done.stderr, r"rng_state_0\.pth.*\n.*move the file out of the folder")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as other:
            other.writestr("notes.txt", "not torch's " * 99)
        output, _ = self.reshard(scratch.folder, "--dp", "2")
        self.assertEqual((output / path.name).read_bytes(), path.read_bytes())

    def test_other_tags_stay_where_they_are(self):
        scratch = self.scratch(Z1)
        shutil.copytree(scratch.tag, scratch.folder / "global_step99")
        (scratch.folder / "adapter").mkdir()
        (scratch.folder / "adapter" / "adapter_config.json").write_text("{}")
        output, _ = self.reshard(scratch.folder, "--dp", "1")
        self.assertFalse((output / "global_step99").exists())
        self.assertEqual((output / "adapter" / "adapter_config.json").read_text(), "{}")


class BatchTest(ReshardTest):

    def test_the_global_batch_is_kept_where_the_ranks_divide_it(self):
        scratch = self.scratch(BF16)  # 24 on 4 ranks: micro-batches of 6
        output, _ = self.reshard(scratch.folder, "--dp", "3", "--plan-batch")
        config = json.loads((output / "ds_config_dp3.json").read_text())
        self.assertEqual((config["train_batch_size"], config["train_micro_batch_size_per_gpu"],
                          config["gradient_accumulation_steps"]), (24, 4, 2))
        saved = load(scratch.model())["ds_config"]
        for key in saved.keys() - {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}:
            self.assertEqual(config[key], saved[key], key)
        done = self.run_tool(scratch.folder, self.new_path(), "--dp", "3", "--plan-batch", "--json", "--dry-run")
        batch = self.json_lines(done.stdout)[-1]["data"]["batch"]
        self.assertIn("24", json.dumps(batch))

    def test_where_no_setting_keeps_it_the_nearest_are_said(self):
        scratch = self.scratch(BF16)
        output = self.new_path() / "out"
        done = self.run_tool(scratch.folder, output, "--dp", "5", "--plan-batch")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\b25\b")
        self.assertRegex(done.stdout, r"\b20\b")
        self.assertEqual(json.loads((output / "ds_config_dp5.json").read_text())["train_batch_size"], 25)


class TargetTest(ReshardTest):

    def test_a_configuration_of_the_new_run_decides_the_layout(self):
        scratch = self.scratch(BF16)
        config = self.config_of(scratch, zero_optimization={"stage": 3, "sub_group_size": 300})
        output, _ = self.reshard(scratch.folder, "--dp", "2", "--ds-config", config)
        state = self.optim(output, 1)
        self.assertGreater(len(state["fp32_flat_groups"]), 1)
        self.assertEqual(state["partition_count"], 2)
        model = load(next(output.glob("*/zero_pp_rank_1_*model_states.pt")))
        self.assertEqual(model["ds_config"], json.loads(config.read_text()))
        by_options, _ = self.reshard(scratch.folder, "--dp", "2", "--stage", "3", "--sub-group-size", "300")
        self.assertEqual([t.shape for t in self.optim(by_options, 1)["fp32_flat_groups"]],
                         [t.shape for t in state["fp32_flat_groups"]])

    def test_parameter_alignment_and_round_robin_of_the_new_run_are_laid_out(self):
        scratch = self.scratch(Z1)
        plain = load(scratch.model())["param_shapes"][0]
        config = self.config_of(scratch, zero_optimization={"stage": 2, "parameter_alignment": True})
        output, _ = self.reshard(scratch.folder, "--dp", "2", "--ds-config", config)
        at, paddings = 0, []
        for shape in plain.values():
            at += shape.numel()
            paddings.append(-at % 4)  # 16 bytes of fp32
            at += paddings[-1]
        paddings[-1] = 0
        self.assertEqual(self.optim(output, 0)["param_alignment_paddings"], [paddings])
        config = self.config_of(scratch, zero_optimization={"stage": 2, "round_robin_gradients": True})
        output, _ = self.reshard(scratch.folder, "--dp", "3", "--ds-config", config)
        names = list(load(output / scratch.tag.name / "mp_rank_00_model_states.pt")["param_shapes"][0])
        order = [name for first in range(3) for name in list(plain)[first::3]]
        self.assertEqual(names, order)
        back, _ = self.reshard(output, "--dp", "2", "--ds-config", self.config_of(scratch))
        self.assertEqual(list(load(back / scratch.tag.name / "mp_rank_00_model_states.pt")["param_shapes"][0]),
                         list(plain))

    def test_another_precision_changes_names_weights_and_loss_scale(self):
        scratch = self.scratch(BF16)
        master = torch_files.cat([self.optim(scratch.folder, rank)["single_partition_of_fp32_groups"][0]
                            for rank in range(4)])
        name, shape = next(iter(load(scratch.model())["param_shapes"][0].items()))
        expected = master[:shape.numel()].reshape(shape)
        fp16 = self.config_of(scratch, bf16={"enabled": False}, fp16={"enabled": True, "initial_scale_power": 10})
        output, said = self.reshard(scratch.folder, "--dp", "2", "--ds-config", fp16)
        self.assertIn("bf16 to fp16", said)
        self.assertFalse(list(output.glob("*/bf16_*")))
        model = load(output / scratch.tag.name / "mp_rank_00_model_states.pt")
        self.assertTrue(torch_files.equal(model["module"][name], expected.to("float16")))
        scaler = self.optim(output, 0)["loss_scaler"]
        self.assertEqual((scaler.cur_scale, scaler.dynamic, type(scaler).__name__), (1024.0, True, "DynamicLossScaler"))
        fp32 = self.config_of(scratch, bf16={"enabled": False})
        output, _ = self.reshard(scratch.folder, "--dp", "2", "--ds-config", fp32)
        model = load(output / scratch.tag.name / "mp_rank_00_model_states.pt")
        self.assertTrue(torch_files.equal(model["module"][name], expected))
        self.assertEqual(self.optim(output, 0)["loss_scaler"].cur_scale, 1.0)

    def test_what_deepspeed_would_load_wrongly_is_refused_before_anything_is_written(self):
        scratch = self.scratch(Z1)
        for pattern, arguments, changes in [
            ("stage asked for is 3", ["--stage", "3"], {}),
            ("load_universal", [], {"checkpoint": {"load_universal": True}}),
            ("autotp_size", [], {"tensor_parallel": {"autotp_size": 2}}),
            ("optimizer is sgd", [], {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}),
            ("optimizer is muon", [], {"optimizer": {"type": "Muon", "params": {"lr": 0.1}}}),
            ("fp16", [], {"fp16": {"enabled": True}, "bf16": {"enabled": True}}),
            ("stage: is a string", [], {"zero_optimization": {"stage": "two"}}),
        ]:
            with self.subTest(pattern=pattern):
                config = self.config_of(scratch, **changes)
                self.assert_refused(scratch.folder, 2, pattern, "--dp", "3", "--ds-config", config, *arguments)

    def test_a_checkpoint_of_the_new_run_gives_the_groups_and_the_layout(self):
        scratch, like = self.scratch(Z2), self.scratch(Z3)
        output, _ = self.reshard(scratch.folder, "--dp", "2", "--like", like.folder)
        model = load(next(output.glob("*/zero_pp_rank_1_*model_states.pt")))
        saved = load(like.model(0))
        self.assertEqual(model["param_shapes"], saved["param_shapes"])
        self.assertEqual(model["ds_config"], saved["ds_config"])
        self.assertIn("fp32_flat_groups", self.optim(output, 0))

    def test_a_checkpoint_of_another_model_is_no_like(self):
        scratch = self.scratch(Z1)
        self.assert_refused(scratch.folder, 3, "is not trained|is not there|has shape", "--dp", "3", "--like",
                            self.scratch("hf_trainer_llama_z3_bf16_w2").folder)

    def test_an_elastic_checkpoint_gets_hyper_parameters_from_the_new_run(self):
        elastic, rigid = self.scratch("z1_fp32_elastic_torchadam_w2"), self.scratch(Z1)
        self.assert_refused(elastic.folder, 3, "base_optimizer_state_step", "--dp", "3")
        output, said = self.reshard(elastic.folder, "--dp", "3", "--like", rigid.folder)
        self.assertIn("hyper-parameters are those of", said)
        expected = self.optim(rigid.folder, 0)["base_optimizer_state"]["param_groups"]
        state = self.optim(output, 2)["base_optimizer_state"]
        self.assertEqual(state["param_groups"], expected)
        self.assertEqual(sorted(state["state"][0]), ["exp_avg", "exp_avg_sq", "step"])


class UniversalSourceTest(ReshardTest):

    def universal(self, scratch):
        output = self.new_path() / "global_step3_universal"
        done = self.tool("to-universal", "--input_folder", scratch.folder, "--output_folder", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def test_a_universal_checkpoint_becomes_what_its_source_does(self):
        for case, arguments in [(Z1, ["--dp", "3"]), (Z2, ["--dp", "2"]), (Z3, ["--dp", "3"]),
                                (Z2, ["--dp", "4", "--stage", "3"]), (Z3, ["--dp", "1", "--stage", "1"]),
                                ("z1_bf16opt_full_w3", ["--dp", "4"]), ("z2_bf16_muon_w2", ["--dp", "3"])]:
            with self.subTest(case=case, arguments=arguments):
                scratch = self.scratch(case)
                native, _ = self.reshard(scratch.folder, *arguments)
                output, _ = self.reshard(self.universal(scratch), *arguments)
                self.assertEqual((output / "latest").read_text(), "global_step3")
                self.assertEqual(relative_files(output), relative_files(native))
                for name in relative_files(native):
                    if not name.endswith(".pt"):
                        continue
                    ours, theirs = load(output / name), load(native / name)
                    self.assertEqual(self.plain(ours), self.plain(theirs), name)

    def plain(self, value):
        """A value that == compares: tensors as their bytes, DeepSpeed's objects as what they were made of."""
        if isinstance(value, torch_files.Tensor):
            return value.dtype, tuple(value.shape), value.tobytes()
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and not isinstance(value, torch_files.Size):
            return [self.plain(item) for item in value]
        if isinstance(value, torch_files.StandIn):
            return type(value).__name__, value.made[1:], self.plain(value.__dict__)
        return type(value).__name__, repr(value)

    def test_groups_that_a_universal_checkpoint_lacks_come_from_the_new_run(self):
        scratch, like = self.scratch("z0_fp32_w2"), self.scratch("z1_fp32_full_w4")
        universal = self.universal(scratch)
        self.assert_refused(universal, 3, "does not tell the optimizer's parameter groups", "--dp", "3")
        output, said = self.reshard(universal, "--dp", "4", "--like", like.folder)
        self.assertIn("hyper-parameters are those of", said)
        model = load(next(output.glob("*/mp_rank_00_model_states.pt")))
        self.assertEqual(model["param_shapes"], load(like.model())["param_shapes"])
        stage0 = load(scratch.model())
        flat = torch_files.cat([self.optim(output, rank)["single_partition_of_fp32_groups"][0] for rank in range(4)])
        name, shape = next(iter(model["param_shapes"][0].items()))
        self.assertTrue(torch_files.equal(flat[:shape.numel()].reshape(shape), stage0["module"][name]))


class RefusalTest(ReshardTest):

    def test_states_that_cannot_be_cut_anew_are_refused(self):
        scratch = self.scratch(Z3)
        self.assert_refused(self.scratch("z3_fp32_adagrad_w2").folder, 3, "Adagrad", "--dp", "3")
        self.assert_refused(self.scratch("z2_fp32_adagrad_w2").folder, 3, "Adagrad", "--dp", "3", "--stage", "3")
        # Sub-groups of one parameter group that were stepped apart cannot be one flat vector.
        small = self.scratch("z3_fp32_small_subgroups_w2")
        for rank in range(2):
            with edited(small.optim(rank)) as state:
                state["optimizer_state_dict"]["optimizer_state_dict"]["state"][1]["step"] -= 1
        error = self.assert_refused(small.folder, 3, "stepped a different number of times", "--dp", "3", "--stage", "2")
        self.assertTrue(error["tensor"])
        # A checkpoint that is not cut as its configuration says.
        for rank in range(2):
            with edited(scratch.model(rank)) as state:
                state["ds_config"]["zero_optimization"]["sub_group_size"] = 100
        self.assert_refused(scratch.folder, 3, "sub_group_size of 100", "--dp", "3")
        self.reshard(scratch.folder, "--dp", "3", "--sub-group-size", "100")

    def test_an_engine_without_optimizer_has_nothing_to_go_on_with(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            state["optimizer"] = None
        self.assert_refused(scratch.folder, 3, "no optimizer state", "--dp", "3")

    def test_damage_in_anything_that_is_used_is_found(self):
        scratch = self.scratch(Z1)
        record = max((f"data/{key}" for key in range(4)),
                     key=lambda name: cli_common.record_extent(scratch.optim(1), name)[1])
        offset, size = cli_common.record_extent(scratch.optim(1), record)
        cli_common.flip(scratch.optim(1), offset + size // 2)
        self.assert_refused(scratch.folder, 3, "CRC32", "--dp", "3")


if __name__ == "__main__":
    cli_common.main()
