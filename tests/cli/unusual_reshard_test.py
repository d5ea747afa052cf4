"""reshard of checkpoints that are right, but not as today's DeepSpeed writes them by default, and of some that it
has to refuse.

Values that an edit must not change are compared with the result of the checkpoint as it was saved. Everything
else is compared with the edited file itself.
"""
import collections
import json
import pathlib
import shutil

import numpy

import cli_common
import torch_files
from cli_common import CliTest, snapshot
from edits import edited, load_shard
from torch_files import named

Z0 = "z0_fp32_w2"
Z0_LOW = "z0_bf16_w2"
Z0_FUSED = "z0_bf16_fusedadam_w2"
Z1 = "z1_fp32_w2"
Z1_GROUPS = "z1_fp32_full_w4"
Z1_BF16_OPTIMIZER = "z1_bf16opt_w2"
Z2 = "z2_bf16_w2"
Z2_FROZEN = "z2_fp32_full_w3"
Z2_ROUND_ROBIN = "z2_bf16_roundrobin_w2"
Z3 = "z3_fp32_w3"
Z3_GROUPS = "z3_fp32_full_w2"  # three sub-groups of two groups


def same(a, b):
    if isinstance(a, torch_files.Tensor):
        return isinstance(b, torch_files.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch_files.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch_files.StandIn):
        return type(a) is type(b) and same(a.__dict__, b.__dict__)
    return type(a) is type(b) and bool(numpy.all(a == b))


def round_robin(names, ranks):
    return [name for first in range(ranks) for name in names[first::ranks]]


class UnusualReshardTest(CliTest):

    def copy(self, name):
        return self.scratch(name).folder

    @staticmethod
    def tag(folder):
        return folder / (folder / "latest").read_text()

    def models(self, folder):
        return sorted(self.tag(folder).glob("*_model_states.pt"))

    def optims(self, folder):
        found = self.tag(folder).glob("*optim_states.pt")
        return sorted(found, key=lambda path: int(path.name.split("pp_rank_")[1].split("_")[0]))

    def edit(self, paths, change):
        self.assertTrue(paths)
        for rank, path in enumerate(paths):
            with edited(path) as state:
                change(state, rank)

    def edit_optims(self, folder, change):
        self.edit(self.optims(folder), lambda state, rank: change(state["optimizer_state_dict"], rank))

    @staticmethod
    def base(state):
        """The torch optimizer's state dict in what a wrapper saved."""
        return state.get("base_optimizer_state") or state.get("optimizer_state_dict") or state

    def states(self, folder):
        return [load_shard(path)["optimizer_state_dict"] for path in self.optims(folder)]

    def stage(self, folder):
        return load_shard(self.models(folder)[0])["ds_config"]["zero_optimization"]["stage"]

    def reshard(self, source, *arguments):
        """A run that must succeed: the output folder."""
        output = self.new_path() / "out"
        done = self.tool("reshard", source, output, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stderr
        return output

    def refused(self, source, pattern, *arguments, code=3):
        before = snapshot(source)
        output = self.new_path() / "made" / "out"
        done = self.tool("reshard", source, output, *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, pattern)
        self.assertFalse(output.parent.parent.exists(), "an output folder is left")
        self.assertEqual(snapshot(source), before)

    def assert_same_files(self, found, expected, but=()):
        """`but`: keys at the top of the files that may differ."""
        names = [sorted(path.name for path in self.tag(folder).iterdir()) for folder in (found, expected)]
        self.assertEqual(*names)
        for name in names[0]:
            a, b = (load_shard(self.tag(folder) / name) for folder in (found, expected))
            self.assertEqual(list(a), list(b), name)
            for key in a:
                if key not in but:
                    self.assertTrue(same(a[key], b[key]), f"{name}: {key}")

    def trained(self, folder):
        """Masters by name, read from stages 1, 2 or 3 by the layouts of DeepSpeed's own readers."""
        models = [load_shard(path) for path in self.models(folder)]
        ranks = self.states(folder)
        result = {}
        for at, shapes in enumerate(models[0]["param_shapes"]):
            if "fp32_flat_groups" in ranks[0]:
                offset = 0
                for name, shape in shapes.items():
                    piece = -(-shape.numel() // len(ranks))
                    parts = [state["fp32_flat_groups"][at][offset:offset + piece] for state in ranks]
                    result[name] = torch_files.cat(parts)[:shape.numel()].reshape(shape)
                    offset += piece
                continue
            flat = torch_files.cat([state["single_partition_of_fp32_groups"][at] for state in ranks])
            offset = 0
            for name, shape in shapes.items():
                result[name] = flat[offset:offset + shape.numel()].reshape(shape)
                offset += shape.numel()
        return result


class StatesTest(UnusualReshardTest):

    def test_what_the_optimizer_keeps_once_comes_to_every_rank_in_storage_of_its_own(self):
        # NAdam's mu_product, and a state that is None.
        for name in [Z1_GROUPS, Z3_GROUPS]:
            folder = self.copy(name)

            def change(state, rank):
                for at, values in self.base(state)["state"].items():
                    values.update(mu_product=torch_files.tensor(0.5 + int(at > 1)), nothing=None, count=int(at > 1))

            self.edit_optims(folder, change)
            for stage in [0, 1, 2, 3]:
                output = self.reshard(folder, "--dp", "5", "--stage", stage)
                found = self.states(output) if stage else [load_shard(self.models(output)[0])["optimizer"]]
                self.assertEqual(len(found), 5 if stage else 1)
                for state in found:
                    values = list(self.base(state)["state"].values())
                    for value in values:
                        self.assertIsNone(value["nothing"])
                        self.assertTrue(same(value["mu_product"], torch_files.tensor(0.5 + value["count"])))
                    for key in ["step", "mu_product"]:
                        # torch counts a step in place: one that two tensors share would count double.
                        self.assertEqual(len({value[key].data_ptr() for value in values}), len(values))

    def test_values_kept_once_that_differ_between_ranks_are_refused(self):
        for name, value in [(Z1, lambda rank: torch_files.tensor(float(rank))), (Z1, lambda rank: rank),
                            (Z3, lambda rank: torch_files.full((2, 3), value=float(rank))), (Z2, lambda rank: [1, rank])]:
            folder = self.copy(name)
            self.edit_optims(folder, lambda state, rank: self.base(state)["state"][0].update(scale=value(rank)))
            self.refused(folder, "scale", "--dp", "4")

    def test_states_of_two_dimensions_are_refused_where_they_could_be_one_value_an_element(self):
        folder = self.copy(Z1)

        def change(state, rank):
            values = self.base(state)["state"][0]
            values["factored"] = torch_files.full((values["exp_avg"].numel(), 1), value=float(rank))

        self.edit_optims(folder, change)
        self.refused(folder, "factored", "--dp", "3")

    def test_sub_groups_of_another_step_are_only_put_together_if_the_steps_agree(self):
        folder = self.copy(Z3_GROUPS)
        groups = self.base(self.states(folder)[0])["param_groups"]
        self.assertEqual([group["params"] for group in groups], [[0, 1], [2]])
        self.edit_optims(folder, lambda state, rank: self.base(state)["state"][2].update(step=torch_files.tensor(1.0)))
        steps = [values["step"].item() for values in
                 self.base(self.states(self.reshard(folder, "--dp", "3", "--stage", "1"))[2])["state"].values()]
        self.assertEqual(steps, [3, 1])
        self.edit_optims(folder, lambda state, rank: self.base(state)["state"][1].update(step=torch_files.tensor(2.0)))
        self.refused(folder, "stepped a different number of times", "--dp", "3", "--stage", "1")

    def test_hyper_parameters_may_be_tensors_and_objects(self):
        folder = self.copy(Z3_GROUPS)
        odd = {"lr": torch_files.tensor(0.125), "betas": (torch_files.tensor(0.5), 0.75),
               "mine": {"a": [1, (2, torch_files.tensor([1.0, 2.0]))], 3: collections.OrderedDict(x=None)}}
        shared = torch_files.tensor(5.0)

        def change(state, rank):
            for group in self.base(state)["param_groups"]:
                group.update(odd, shared=shared)

        self.edit_optims(folder, change)
        for stage in [0, 1, 3]:
            output = self.reshard(folder, "--dp", "3", "--stage", stage)
            found = self.states(output) if stage else [load_shard(self.models(output)[0])["optimizer"]]
            for state in found:
                groups = self.base(state)["param_groups"]
                self.assertEqual(len(groups), 2)
                for group in groups:
                    self.assertTrue(same({key: group[key] for key in odd}, odd))
                self.assertEqual(groups[0]["shared"].data_ptr(), groups[1]["shared"].data_ptr())

    def test_a_universal_checkpoint_of_stage_0_keeps_the_optimizer_or_is_refused(self):
        for name in [Z0, Z0_LOW]:
            folder = self.copy(name)
            universal = self.new_path() / (self.tag(folder).name + "_universal")
            made = self.tool("to-universal", "--input_folder", self.tag(folder), "--output_folder", universal)
            self.assertEqual(made.returncode, 0, made.stderr)
            output = self.new_path()
            done = self.tool("reshard", universal.parent, output, "--dp", "3")
            if done.returncode == 0:
                found, expected = (self.base(load_shard(self.models(which)[0])["optimizer"])
                                   for which in (output, folder))
                self.assertTrue(same(found["param_groups"], expected["param_groups"]))
                self.assertTrue(same(found["state"], expected["state"]))
            else:
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stderr, "groups")

    def test_states_of_stage_0_have_the_shape_of_their_tensors_with_dimensions(self):
        # NAdam and ASGD have 0-dim tensors before them.
        folder = self.copy(Z0)
        expected = self.trained(self.reshard(folder, "--dp", "3", "--stage", "1"))

        def change(state, rank):
            states = state["optimizer"]["state"]
            for at, values in states.items():
                states[at] = {"step": values.pop("step"), "mu_product": torch_files.tensor(0.5), **values}

        self.edit(self.models(folder), change)
        output = self.reshard(folder, "--dp", "3", "--stage", "1")
        self.assertTrue(same(self.trained(output), expected))
        for values in self.base(self.states(output)[2])["state"].values():
            self.assertEqual(sorted(values), ["exp_avg", "exp_avg_sq", "mu_product", "step"])
            self.assertTrue(same(values["mu_product"], torch_files.tensor(0.5)))

    def test_states_that_depend_on_the_shape_are_refused_where_the_shape_changes(self):
        # torch's Adafactor: 'variance' of ZeRO's flat tensors, 'row_var' and 'col_var' of matrices.
        folder = self.copy(Z1)

        def change(state, rank):
            for values in self.base(state)["state"].values():
                values["variance"] = values.pop("exp_avg_sq")
                del values["exp_avg"]
            for group in self.base(state)["param_groups"]:
                for key in ["betas", "amsgrad"]:
                    group.pop(key)
                group.update(beta2_decay=-0.8, d=1.0)

        self.edit_optims(folder, change)
        self.refused(folder, "variance", "--dp", "3", "--stage", "0")
        self.reshard(folder, "--dp", "3", "--stage", "3")

    def test_an_optimizer_that_has_not_stepped_yet_goes_to_stage_0_and_back(self):
        for name in [Z1, "z1_bf16_w2", Z3]:
            folder = self.copy(name)
            self.edit_optims(folder, lambda state, rank: self.base(state)["state"].clear())
            whole = self.reshard(folder, "--dp", "2", "--stage", "0")
            back = self.reshard(whole, "--dp", len(self.optims(folder)), "--stage", "3" if name == Z3 else "1")
            self.assertTrue(same(self.trained(back), self.trained(folder)))
            self.assertEqual([self.base(state)["state"] for state in self.states(back)], [{}] * len(self.optims(back)))


class GroupsTest(UnusualReshardTest):

    def test_a_group_whose_parameters_are_all_frozen_stays_at_stage_3(self):
        folder = self.copy(Z3)

        def change(state, rank):
            groups = self.base(state)["param_groups"]
            groups.insert(0, {**groups[0], "params": [], "lr": 0.5})
            groups.append({**groups[0], "params": [], "lr": 0.25})

        self.edit_optims(folder, change)
        for state in self.states(self.reshard(folder, "--dp", "2")):
            groups = self.base(state)["param_groups"]
            self.assertEqual([(group["params"], group["lr"]) for group in groups],
                             [([], 0.5), ([0], 0.003), ([], 0.25)])

    def test_a_group_without_parameters_does_not_crash_at_stage_0(self):
        for name in [Z0, Z0_LOW, Z0_FUSED]:
            folder = self.copy(name)

            def change(state, rank):
                groups = self.base(state["optimizer"])["param_groups"]
                groups.append({**groups[0], "params": []})

            self.edit(self.models(folder), change)
            for stage in [0, 1, 3]:
                done = self.tool("reshard", folder, self.new_path(), "--dp", "3", "--stage", stage)
                self.assertIn(done.returncode, (0, 3), done.stderr)

    def test_round_robin_is_undone_and_done_anew_where_the_configuration_is_a_path(self):
        plain = self.copy(Z2_ROUND_ROBIN)
        folder = self.copy(Z2_ROUND_ROBIN)
        config = self.new_path("config.json")
        config.write_text(json.dumps(load_shard(self.models(folder)[0])["ds_config"]))
        self.edit(self.models(folder) + self.optims(folder), lambda state, rank: state.update(ds_config="ds.json"))
        # Written without a configuration, the files could not tell their order.
        self.refused(folder, "round_robin_gradients(.|\n)*--ds-config", "--dp", "3")
        for ranks in [3, 5]:
            there = self.reshard(folder, "--dp", ranks, "--ds-config", config)
            self.assert_same_files(there, self.reshard(plain, "--dp", ranks))
            self.assert_same_files(self.reshard(there, "--dp", "2"), self.reshard(plain, "--dp", "2"))

    def test_round_robin_that_nothing_tells_is_not_guessed_silently(self):
        # One rank has every parameter in the optimizer's order.
        folder = self.reshard(self.copy(Z2_ROUND_ROBIN), "--dp", "1")
        self.edit(self.models(folder) + self.optims(folder), lambda state, rank: state.update(ds_config="ds.json"))
        done = self.tool("reshard", folder, self.new_path(), "--dp", "2")
        self.assertRegex(done.stderr, "round_robin_gradients")

    def test_a_stage_that_knows_round_robin_has_it_if_the_stage_before_did_not(self):
        # BF16_Optimizer leaves round_robin_gradients alone.
        folder = self.copy(Z1_BF16_OPTIMIZER)

        def change(state, rank):
            state["ds_config"]["zero_optimization"]["round_robin_gradients"] = True

        self.edit(self.models(folder) + self.optims(folder), change)
        names = list(load_shard(self.models(folder)[0])["param_shapes"][0])
        output = self.reshard(folder, "--dp", "3", "--stage", "2")
        self.assertEqual(list(load_shard(self.models(output)[0])["param_shapes"][0]), round_robin(names, 3))
        output = self.reshard(folder, "--dp", "3")
        self.assertEqual(list(load_shard(self.models(output)[0])["param_shapes"][0]), names)


class FrozenTest(UnusualReshardTest):

    def test_a_parameter_frozen_after_the_optimizer_was_made_keeps_its_frozen_entry(self):
        # DeepSpeed's loader wants a fragment of every parameter that is frozen when it loads.
        for name in [Z2_FROZEN, Z3_GROUPS]:
            folder = self.copy(name)
            late = "ln_f.weight"

            def change(state, rank):
                shape, = (shapes[late] for shapes in state["param_shapes"] if late in shapes)
                state["frozen_param_shapes"][late] = shape
                state["frozen_param_fragments"][late] = state["module"][late]
                if name == Z3_GROUPS:
                    flat = torch_files.zeros(-(-shape.numel() // 2) * 2)
                    flat[:shape.numel()] = self.trained(folder)[late]
                    state["frozen_param_fragments"][late] = flat.reshape(2, -1)[rank].clone()

            value = self.trained(folder)[late]
            self.edit(self.models(folder), change)
            for stage in [2, 3]:
                ranks = 5
                output = self.reshard(folder, "--dp", ranks, "--stage", stage)
                models = [load_shard(path) for path in self.models(output)]
                for model in models:
                    self.assertEqual(model["frozen_param_shapes"][late], value.shape)
                    self.assertEqual(list(model["frozen_param_shapes"]), list(model["frozen_param_fragments"]))
                fragments = [model["frozen_param_fragments"][late] for model in models]
                self.assertTrue(same(torch_files.cat(fragments)[:value.numel()], value))
                self.assertTrue(same(self.trained(output)[late], value))

    def test_frozen_parameters_of_files_that_do_not_list_them_are_not_lost(self):
        # Releases that knew nothing of frozen parameters, at stages where `module` has them whole.
        for name in [Z1_GROUPS, Z2_FROZEN]:
            folder = self.copy(name)
            module = load_shard(self.models(folder)[0])["module"]
            frozen = {key: value for key, value in module.items() if key.startswith("frozen")}
            self.assertTrue(frozen)

            def change(state, rank):
                del state["frozen_param_shapes"], state["frozen_param_fragments"]

            self.edit(self.models(folder), change)
            models = [load_shard(path) for path in self.models(self.reshard(folder, "--dp", "2", "--stage", "3"))]
            for key, value in frozen.items():
                pieces = torch_files.cat([model["frozen_param_fragments"][key] for model in models])
                self.assertTrue(same(pieces[:value.numel()].reshape(value.shape), value), key)

    def test_a_frozen_parameter_of_stage_0_is_not_lost_if_a_trained_one_has_its_shape(self):
        folder = self.new_path("ckpt")
        (folder / "tag").mkdir(parents=True)
        (folder / "latest").write_text("tag")
        module = collections.OrderedDict(frozen=torch_files.randn(3), b=torch_files.randn(4), c=torch_files.randn(3))
        states = {at: {"step": torch_files.tensor(3.0), "exp_avg": torch_files.randn(size), "exp_avg_sq": torch_files.ones(size)}
                  for at, size in enumerate([4, 3])}
        torch_files.save({"module": module, "buffer_names": [], "param_shapes": None, "frozen_param_shapes": None,
                    "shared_params": None, "frozen_param_fragments": None, "lr_scheduler": None,
                    "optimizer": {"state": states, "param_groups": [{"lr": 0.5, "amsgrad": False, "params": [0, 1]}]},
                    "skipped_steps": 0, "global_steps": 3, "dp_world_size": 2, "mp_world_size": 1,
                    "ds_config": {"zero_optimization": {"stage": 0}}, "ds_version": "0.19.8"},
                   folder / "tag" / "mp_rank_00_model_states.pt")
        for stage in [2, 3]:
            output = self.new_path()
            done = self.tool("reshard", folder, output, "--dp", "2", "--stage", stage)
            if done.returncode == 3:
                self.assertRegex(done.stderr, "frozen")
                continue
            self.assertEqual(done.returncode, 0, done.stderr)
            fragments = [load_shard(path)["frozen_param_fragments"]["frozen"] for path in self.models(output)]
            self.assertTrue(same(torch_files.cat(fragments)[:3], module["frozen"]))

    def test_a_run_that_saved_no_frozen_parameters_goes_through_other_stages(self):
        # None tells DeepSpeed's loader not to look for them.
        name = "z2_fp32_exclfrozen_w2"
        folder = self.copy(name)
        for stage in [0, 1]:
            back = self.reshard(self.reshard(folder, "--dp", "3", "--stage", stage), "--dp", "2", "--stage", "2")
            self.assertIsNone(load_shard(self.models(back)[0])["frozen_param_fragments"], stage)
            self.assertTrue(same(self.trained(back), self.trained(folder)))


class OlderFilesTest(UnusualReshardTest):

    def test_what_older_releases_did_not_write_is_not_needed(self):
        for name in [Z1_GROUPS, Z3_GROUPS]:
            expected = self.copy(name)
            folder = self.copy(name)

            def change(state, rank):
                for key in ["param_alignment_paddings", "param_slice_mappings", "group_paddings"]:
                    state.pop(key, None)

            self.edit_optims(folder, change)
            for stage in [0, 2, 3]:
                self.assert_same_files(self.reshard(folder, "--dp", "3", "--stage", stage),
                                       self.reshard(expected, "--dp", "3", "--stage", stage))

    def test_ties_that_no_file_lists_are_found(self):
        folder = self.copy(Z1_GROUPS)
        self.edit(self.models(folder), lambda state, rank: state.pop("shared_params"))
        for stage in [1, 2, 3]:
            model = load_shard(self.models(self.reshard(folder, "--dp", "3", "--stage", stage))[0])
            self.assertEqual(model["shared_params"], {"head.weight": "tok_emb.weight"})

    def test_param_shapes_may_be_one_dictionary(self):
        for name in [Z1, Z3]:
            expected = self.copy(name)
            folder = self.copy(name)
            self.edit(self.models(folder), lambda state, rank: state.update(param_shapes=state["param_shapes"][0]))
            for stage in [0, 1, 3]:
                self.assert_same_files(self.reshard(folder, "--dp", "2", "--stage", stage),
                                       self.reshard(expected, "--dp", "2", "--stage", stage))

    def test_files_of_bf16_runs_get_the_names_that_the_engine_looks_for(self):
        folder = self.copy(Z2)
        for path in self.optims(folder):
            path.rename(path.with_name(path.name.removeprefix("bf16_").replace("_optim_states", "optim_states")))
        names = [path.name for path in self.optims(self.reshard(folder, "--dp", "3"))]
        self.assertEqual(names, [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(3)])

    def test_a_model_in_bf16_under_a_configuration_in_fp32_gets_names_without_bf16(self):
        folder = self.copy(Z0)

        def change(state, rank):
            low = {}
            for name, value in state["module"].items():
                if value.is_floating_point():
                    state["module"][name] = low.setdefault((id(value.storage), value.storage_offset()), value.to("bfloat16"))

        self.edit(self.models(folder), change)
        names = [path.name for path in self.optims(self.reshard(folder, "--dp", "2", "--stage", "1"))]
        self.assertEqual(names, [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)])

    def test_stage_3_does_not_need_a_version(self):
        folder = self.copy(Z3)
        self.edit(self.models(folder) + self.optims(folder), lambda state, rank: state.pop("ds_version"))
        output = self.reshard(folder, "--dp", "2")
        self.assertTrue(same(self.trained(output), self.trained(folder)))

    def test_a_loss_scaler_stays_whatever_stands_beside_it(self):
        folder = self.copy("z2_fp16_w2")
        scaler = self.states(folder)[0]["loss_scaler"]

        def change(state, rank):
            for key in ["zero_stage", "dynamic_loss_scale", "overflow"]:
                state.pop(key)

        self.edit_optims(folder, change)
        for stage in [1, 3]:
            for state in self.states(self.reshard(folder, "--dp", "3", "--stage", stage)):
                self.assertTrue(same(state["loss_scaler"], scaler))
                self.assertEqual((state["dynamic_loss_scale"], state["overflow"]), (True, False))


class ConfigurationTest(UnusualReshardTest):

    def test_a_saved_configuration_of_which_nothing_is_needed_may_hold_anything(self):
        expected = self.reshard(self.copy(Z2), "--dp", "3")
        for odd in [{"x": named("torch", "float16")}, {"x": pathlib.PurePosixPath("/a")}, {"x": 2**70}, {"x": {1, 2}}, {"x": b"y"},
                    {"train_batch_size": "24"}, {"gradient_clipping": "1.0"}, {"bf16": {"enabled": "true"}},
                    {"zero_optimization": {"stage": "2"}}, {1: 2, "1": 3},
                    {"zero_optimization": {"stage": 2, "sub_group_size": "1000000000"}},
                    {"optimizer": {"type": "AdamW", "params": {"lr": torch_files.tensor(1.0)}}}]:
            with self.subTest(odd=odd):
                folder = self.copy(Z2)
                self.edit(self.models(folder) + self.optims(folder), lambda state, rank: state["ds_config"].update(odd))
                output = self.reshard(folder, "--dp", "3")
                self.assert_same_files(output, expected, but=["ds_config"])
                kept = load_shard(self.models(output)[0])["ds_config"]
                for key, value in odd.items():
                    self.assertTrue(same(kept[key], value))

    def test_a_configuration_that_is_no_dictionary_passes_through(self):
        for odd in ["ds.json", None, ["a", torch_files.tensor(1.0)]]:
            for name in [Z0, Z1, Z1_BF16_OPTIMIZER, Z3]:
                folder = self.copy(name)
                self.edit(self.models(folder) + self.optims(folder), lambda state, rank: state.update(ds_config=odd))
                for stage in [0, 1, 3]:
                    with self.subTest(odd=odd, case=name, stage=stage):
                        output = self.reshard(folder, "--dp", "3", "--stage", stage)
                        for path in self.models(output):
                            self.assertTrue(same(load_shard(path)["ds_config"], odd))

    def test_the_wrapper_of_stage_0_is_that_of_the_new_optimizer(self):
        # engine.py _configure_fp16_optimizer: FP16_Optimizer around FusedAdam, FP16_UnfusedOptimizer around others.
        for name, fused in [("z2_bf16_fusedadam_w2", False), (Z2, False), ("z2_bf16_fusedadam_w2", True)]:
            config = self.new_path("config.json")
            config.write_text(json.dumps({
                "zero_optimization": {"stage": 0}, "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.003, **({} if fused else {"torch_adam": True})}}}))
            output = self.reshard(self.copy(name), "--dp", "3", "--ds-config", config)
            optimizer = load_shard(self.models(output)[0])["optimizer"]
            self.assertEqual("fp32_groups_flat" in optimizer, fused)
            self.assertEqual("fp32_groups" in optimizer, not fused)

    def test_hyper_parameters_that_deepspeeds_own_adam_misses_are_not_left_to_the_first_step(self):
        # FusedAdam and DeepSpeedCPUAdam read group["bias_correction"], which torch's optimizers do not write.
        for zero in [{"stage": 2}, {"stage": 3}, {"stage": 2, "offload_optimizer": {"device": "cpu"}}]:
            config = self.new_path("config.json")
            config.write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True},
                                          "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}))
            output = self.new_path()
            done = self.tool("reshard", self.copy(Z2), output, "--dp", "3", "--ds-config", config)
            if done.returncode == 0:
                for state in self.states(output):
                    self.assertTrue(all(group["bias_correction"] for group in self.base(state)["param_groups"]))
            else:
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, "bias_correction|adam")

    def test_an_auto_that_nothing_fills_in_is_not_deepspeeds_default(self):
        # Hugging Face's programs fill it in: this run's is as it was, or has to be said.
        for config in [{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}},
                       {"bf16": {"enabled": True}, "zero_optimization": {"stage": "auto"}}]:
            folder = self.copy(Z2)
            self.edit(self.models(folder) + self.optims(folder), lambda state, rank: state.update(ds_config="ds.json"))
            path = self.new_path("config.json")
            path.write_text(json.dumps(config))
            output = self.new_path()
            done = self.tool("reshard", folder, output, "--dp", "3", "--ds-config", path)
            if done.returncode == 0:
                self.assertEqual([path.name[:13] for path in self.optims(output)], ["bf16_zero_pp_"] * 3)
                self.assertEqual({int(load_shard(path)["module"]["ln_f.weight"].element_size())
                                  for path in self.models(output)}, {2})
            else:
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn("auto", done.stderr)

    def test_a_run_whose_model_has_other_entries_is_not_like_this_one(self):
        # DeepSpeed loads `module` strictly.
        folder = self.copy("z2_fp32_emptyparam_w2")
        output = self.new_path()
        done = self.tool("reshard", self.copy(Z1), output, "--dp", "3", "--like", folder)
        self.assertRegex(done.stderr, "empty")


class ModelFilesTest(UnusualReshardTest):

    def test_tensors_of_the_module_come_back_whatever_their_storage(self):
        folder = self.copy(Z1)

        def change(state, rank):
            module = state["module"]
            first, second = [name for name, value in module.items() if value.dim() == 2][:2]
            storage = torch_files.zeros(module[first].numel() + 7)
            storage[3:-4] = module[first].reshape(-1)
            module[first] = storage[3:-4].reshape(module[first].shape)
            module[second] = module[second].t().contiguous().t()
            module["ln_f.bias"] = torch_files.Parameter(module["ln_f.bias"])
            module["row"] = module[first][0]  # buffers that are views of a parameter
            module["turned"] = module[first].t()
            state["buffer_names"] += ["row", "turned"]

        self.edit(self.models(folder), change)
        module = load_shard(self.models(folder)[0])["module"]
        for stage in [0, 1, 2, 3]:
            output = self.reshard(folder, "--dp", "3", "--stage", stage)
            back = self.reshard(output, "--dp", "2", "--stage", "1")
            found = load_shard(self.models(back)[0])["module"]
            self.assertEqual(list(found), list(module))
            for name, value in module.items():
                self.assertTrue(same(found[name], value), f"{name} by way of stage {stage}")
            self.assertTrue(same(self.trained(back), self.trained(folder)))

    def test_a_trained_parameter_that_the_module_does_not_have_is_refused(self):
        for name in [Z1, Z3]:
            for damage in [lambda module: module.pop("ln_f.weight"),
                           lambda module: module.update({"ln_f.weight": 1.5})]:
                folder = self.copy(name)
                self.edit(self.models(folder), lambda state, rank: damage(state["module"]))
                self.refused(folder, "ln_f.weight", "--dp", "2")

    def test_what_ranks_saved_each_for_itself_is_theirs_and_the_loss_is_said(self):
        for value in [lambda rank: rank, lambda rank: torch_files.full((5,), value=rank)]:
            folder = self.copy(Z3_GROUPS)
            self.edit(self.models(folder), lambda state, rank: state.update(mine=value(rank)))
            for ranks, kept in [(1, [0]), (2, [0, 1]), (4, [0, 1, 0, 0])]:
                output = self.reshard(folder, "--dp", ranks)
                found = [load_shard(path)["mine"] for path in self.models(output)]
                self.assertTrue(same(found, [value(rank) for rank in kept]))
                self.assertEqual("'mine'" in self.said, ranks != 2)

    def test_many_ranks_share_few_elements(self):
        for name in ["z1_fp32_zerodim_w2", "z1_bf16opt_tinygroup_w4", Z2_ROUND_ROBIN, Z3_GROUPS]:
            folder = self.copy(name)
            ranks = len(self.optims(folder))
            for stage in [2, 3]:
                many = self.reshard(folder, "--dp", "41", "--stage", stage)
                self.assertEqual(len(self.optims(many)), 41)
                for state in self.states(many):
                    flat = state.get("fp32_flat_groups") or state["single_partition_of_fp32_groups"]
                    for at, values in self.base(state)["state"].items():
                        self.assertGreaterEqual(values["exp_avg"].numel(), flat[at].numel())
                back = self.reshard(many, "--dp", ranks, "--stage", self.stage(folder))
                if name != Z2_ROUND_ROBIN:
                    self.assertTrue(same(self.trained(back), self.trained(folder)), name)
                self.assert_same_files(back, self.reshard(folder, "--dp", ranks))


class PlacesTest(UnusualReshardTest):

    def test_the_checkpoint_itself_is_never_replaced(self):
        folder = self.copy(Z1)
        tag = self.tag(folder)
        link = self.root / "link"
        link.symlink_to(folder)
        before = snapshot(folder)
        for source, output in [(folder, folder), (tag, folder), (folder, tag), (folder, tag / "in"), (folder, link),
                               (link, folder), (tag, f"{folder}/"), (folder, f"{tag}/../")]:
            with self.subTest(source=source, output=output):
                done = self.tool("reshard", source, output, "--dp", "3", "--force")
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(snapshot(folder), before)

    def test_force_replaces_nothing_that_reshard_does_not_write(self):
        folder = self.copy(Z1)
        output = self.reshard(folder, "--dp", "3")
        tag = output / self.tag(folder).name
        for mine in [output / "mine", tag / "notes.txt", output / "rng_state_folder" / "a", output / "other" / "b",
                     tag / "sub" / "c"]:
            mine.parent.mkdir(exist_ok=True)
            mine.write_text("mine")
            before = snapshot(output)
            done = self.tool("reshard", folder, output, "--dp", "2", "--force")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(mine.name, done.stderr)
            self.assertEqual(snapshot(output), before)
            mine.unlink()
            if mine.parent not in (output, tag):
                mine.parent.rmdir()
        self.assertEqual(self.tool("reshard", folder, output, "--dp", "2", "--force").returncode, 0)
        self.assertEqual(len(self.optims(output)), 2)

    def test_a_folder_with_the_name_of_the_planned_configuration_is_no_obstacle(self):
        folder = self.copy(Z1)
        (folder / "ds_config_dp3.json").mkdir()
        (folder / "ds_config_dp3.json" / "a").write_text("a")
        output = self.reshard(folder, "--dp", "3", "--plan-batch")
        self.assertEqual(json.loads((output / "ds_config_dp3.json").read_text())["train_batch_size"], 24)
        self.assertIn("ds_config_dp3.json", self.said)

    def test_tags_are_told_however_they_are_written(self):
        folder = self.copy(Z1)
        name = self.tag(folder).name
        expected = self.reshard(folder, "--dp", "3")
        for tag in [f"{name}/", f"./{name}", f"x/../{name}"]:
            output = self.new_path()
            done = self.tool("reshard", folder, output, "--dp", "3", "--tag", tag)
            if done.returncode == 0:
                self.assert_same_files(output, expected)
            else:
                self.assertIn(done.returncode, (2, 3))
                self.assertIn("tag", done.stderr)
                self.assertFalse(output.exists())
        deep = folder / "a b"
        deep.mkdir()
        shutil.move(self.tag(folder), deep / "ä%s")
        (folder / "latest").write_text("a b/ä%s")
        output = self.reshard(folder, "--dp", "3")
        self.assertEqual((output / "latest").read_text(), "a b/ä%s")
        self.assertTrue(same(self.trained(output), self.trained(expected)))


if __name__ == "__main__":
    cli_common.main()
