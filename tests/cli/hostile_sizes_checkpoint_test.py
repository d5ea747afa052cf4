"""Checkpoints of a few kilobytes, or of very many parameters. A reader that walked all that they claim, or
compared everything with everything, would take time or memory far beyond their size."""
import json
import os
import pathlib
import shutil
import stat
import struct

import numpy

import cli_common
import tools
import torch_files
from cli_common import CliTest
from edits import edited, load_shard


def views(count, dtype="float32"):
    """So many tensors of two elements, all different, in one storage: quickly saved."""
    numbers = numpy.arange(count)
    return list(torch_files.tensor(numpy.stack([numbers % 128, numbers // 128], axis=1), dtype))


def alike(count, **group):
    return [{"lr": 0.1, "params": [index], **group} for index in range(count)]


class HostileSizesTest(CliTest):

    def copy(self, name):
        """A writable copy of the folder of a case's shards, and the folder that the tools are given."""
        folder = self.new_path("ckpt")
        shutil.copytree(tools.case_named(name).load_dir, folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        tag, = (path for path in folder.iterdir() if path.is_dir())
        return folder, tag

    def dry_run(self, tool, source, *arguments):
        return self.tool(tool, source, self.new_path(), "--dry-run", "--quiet", *arguments)

    def refused(self, pattern, tool, source, *arguments):
        """A run that refuses the checkpoint before it takes much memory."""
        done = self.dry_run(tool, source, *cli_common.memory_limit("1GB"), *arguments)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, pattern)

    def flat(self, groups, edit=None):
        """Stage 2 on one rank, whose optimizer has these groups of names; each parameter has two elements."""
        scratch = self.scratch("z2_bf16_w2")
        scratch.optim(1).unlink()
        weight, master, moment = torch_files.ones(2).to("bfloat16"), torch_files.ones(2), torch_files.zeros(2)
        with edited(scratch.model()) as state:
            state["module"] = {name: weight for names in groups for name in names}
            state["param_shapes"] = [dict.fromkeys(names, master.shape) for names in groups]
            state["shared_params"] = {}
            if edit is not None:
                edit(state)
        with scratch.optimizer(0) as state:
            for key in ["param_alignment_paddings", "param_slice_mappings"]:
                del state[key]
            whole = all(len(names) == 1 for names in groups)
            entry = {"exp_avg": moment, "exp_avg_sq": moment} if whole else {}
            state["base_optimizer_state"] = {"state": dict.fromkeys(range(len(groups)), entry),
                                             "param_groups": alike(len(groups))}
            state["single_partition_of_fp32_groups"] = [master if whole else torch_files.ones(2 * len(names))
                                                        for names in groups]
            state["group_paddings"] = [0] * len(groups)
            state["partition_count"] = [1] * len(groups)
        return scratch


class RanksTest(HostileSizesTest):

    def test_ranks_that_a_file_claims_are_counted(self):
        scratch = self.scratch("z2_bf16_w2")
        with edited(scratch.model()) as state:
            state["mp_world_size"] = 1 << 16
        with scratch.optimizer(0) as state:
            state["partition_count"] = [1 << 20]
        error = self.assert_refused(scratch.folder, 3, "68719476734 of 68719476736 files are missing")
        self.assertEqual(error["message"].count("_optim_states.pt"), 1024)
        self.assertIn("\n  bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt\n", error["message"])
        self.assertTrue(error["message"].endswith("\n  ..."))

    def test_experts_that_a_file_claims_are_counted(self):
        folder, tag = self.copy("moe_ep2_dp2_z1_bf16")
        with edited(tag / "mp_rank_00_model_states.pt") as state:
            state["num_experts"] = [1 << 24] * 2000
        count = 2000 * (1 << 24) - 8
        error = self.assert_refused(folder, 3, f"{count} files of experts are missing", inspect=False)
        self.assertEqual(error["message"].count("_model_states.pt"), 1024)
        self.assertIn("\n  layer_0_expert_4_mp_rank_00_model_states.pt\n", error["message"])

    def test_a_layer_file_of_a_rank_far_away_is_named(self):
        folder, tag = self.copy("pp2_tp2_dp1_z1_bf16")
        far = tag / "layer_01-model_999999999-model_states.pt"
        torch_files.save(load_shard(tag / "layer_01-model_01-model_states.pt"), far)
        self.assert_refused(folder, 3, f"{far.name} is one too many: there are 2 tensor-parallel ranks")


class NoNamesTest(HostileSizesTest):
    """Stage 0, whose optimizers have no names."""

    def test_stages_are_dealt_layers_in_bounded_time(self):
        folder, tag = self.copy("pp2_dp1_z0_fp32")
        state = load_shard(tag / "mp_rank_00_model_states.pt")
        for path in tag.glob("*.pt"):
            path.unlink()
        stages = 7
        patterns = [rf"^tied_modules\.key{i}\..*" for i in range(20)]
        state["universal_checkpoint_info"] = {"universal_checkpoint_version": 0.2,
                                              "pipeline_replicated_parameter_patterns": patterns}
        state["buffer_names"] = []
        state["mp_world_size"] = stages
        state["checkpoint_parallel_dimensions"] = {"pp_degree": stages, "tp_degree": 1, "dp_degree": 1}
        tensor = torch_files.ones(2)
        for rank in range(stages):
            moment = torch_files.ones(3 if rank + 1 == stages else 2)
            state["optimizer"] = {"state": {i: {"exp_avg": moment} for i in range(3)},
                                  "param_groups": [{"lr": 0.1, "params": [0, 1, 2]}]}
            torch_files.save(state, tag / f"mp_rank_{rank:02}_model_states.pt")
        for layer in range(20):
            torch_files.save({"weight": tensor}, tag / f"layer_{layer:02}-model_states.pt")
        done = self.dry_run("zero-to-fp32", folder, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.dry_run("to-universal", folder)
        self.assertEqual(done.returncode, 3)
        self.assertIn("optimizer", done.stderr)

    def plain(self, tensors, optimizer, name="z0_fp32_w2"):
        """Stage 0 with these parameters and this optimizer."""
        scratch = self.scratch(name)
        with edited(scratch.model()) as state:
            state["module"] = tensors
            state["optimizer"] = optimizer
        return scratch.folder

    def test_numbers_of_parameters_that_groups_share_are_not_read_again(self):
        count = 8000
        tensors = {f"p.{i}": value for i, value in enumerate(views(count))}
        group = {"lr": 0.1, "params": list(range(count))}
        folder = self.plain(tensors, {"state": {0: {"exp_avg": torch_files.ones(2)}}, "param_groups": [group] * count})
        self.refused("optimizer", "to-universal", folder)

    def test_states_that_parameters_share_are_few(self):
        count = 8000
        tensors = {f"p.{i}": value for i, value in enumerate(views(count, "bfloat16"))}
        states = dict.fromkeys([f"s{i}" for i in range(count)], 0)
        optimizer = {"fp32_groups": [views(count)],
                     "optimizer_state_dict": {"state": dict.fromkeys(range(count), states),
                                              "param_groups": [{"params": list(range(count))}]}}
        folder = self.plain(tensors, optimizer, "z0_bf16_w2")
        self.refused("8000 states of one tensor", "to-universal", folder)

    def test_tied_modules_are_looked_up(self):
        count = 250000
        folder, tag = self.copy("pp2_dp1_z0_fp32")
        for path in tag.glob("mp_rank_*_model_states.pt"):
            with edited(path) as state:
                state["buffer_names"] = [f"tied_modules.k{i}.w" for i in range(count)]
        self.refused("is in no layer's file", "zero-to-fp32", folder)

    def test_the_ways_to_deal_states_to_parameters_are_bounded(self):
        count = 3000
        tensors = {f"p.{i}": value for i, value in enumerate(views(2 * count))}
        moment = torch_files.ones(2)
        folder = self.plain(tensors, {"state": {i: {"exp_avg": moment} for i in range(count)},
                                      "param_groups": alike(count)})
        done = self.dry_run("to-universal", folder)
        self.assertEqual(done.returncode, 3)
        self.assertIn("optimizer", done.stderr)

    def test_a_master_is_compared_with_few_parameters(self):
        count = 16000
        tensors = {f"p.{i}": value for i, value in enumerate(views(count, "bfloat16"))}
        masters = views(count)[::-1]
        optimizer = {"fp32_groups": [masters],
                     "optimizer_state_dict": {"state": {}, "param_groups": [{"params": list(range(count))}]}}
        folder = self.plain(tensors, optimizer, "z0_bf16_w2")
        done = self.dry_run("zero-to-fp32", folder, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")

    def test_the_place_of_an_expert_is_found_among_many_parameters(self):
        count = 30000
        folder, tag = self.copy("moe_ep2_dp2_z0_fp32")
        for path in tag.glob("layer_*"):
            path.unlink()
        with edited(tag / "mp_rank_00_model_states.pt") as state:
            state["module"] = {f"a.{i}": value for i, value in enumerate(views(count))}
            state["optimizer"] = None
            state["num_experts"] = [1]
        names = [f"m.deepspeed_moe.experts.deepspeed_experts.0.{i}" for i in range(count)]
        torch_files.save(dict.fromkeys(names, torch_files.ones(2)), tag / "layer_0_expert_0_mp_rank_00_model_states.pt")
        for path in tag.glob("expp_rank_1_*"):
            path.unlink()
        done = self.dry_run("zero-to-fp32", folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_parameters_times_ranks_of_experts_are_few(self):
        count, ranks = 20000, 400
        folder, tag = self.copy("moe_ep2_dp2_z0_fp32")
        with edited(tag / "mp_rank_00_model_states.pt") as state:
            state["module"].update((f"a.{i}", value) for i, value in enumerate(views(count)))
        optimizer = next(tag.glob("expp_rank_1_*"))
        state = load_shard(optimizer)
        for rank in range(2, ranks):
            torch_files.save(state, optimizer.with_name(optimizer.name.replace("rank_1", f"rank_{rank}", 1)))
        self.refused(rf"has \d+ parameters, of each of {ranks} expert-parallel ranks", "zero-to-fp32", folder)


class ManyParametersTest(HostileSizesTest):

    def test_a_prefix_is_found_or_not_among_many_names(self):
        for front, count, hint in [("other.blocks.{}.w", 32000, "--include and --exclude"),
                                   ("layers.{}.w", 3, "--add-prefix model. would make them fit"),
                                   ("whole.model.layers.{}.w", 3, "--strip-prefix whole. would make them fit")]:
            scratch = self.scratch("z0_fp32_w2")
            with edited(scratch.model()) as state:
                state["module"] = {f"model.layers.{i}.w": value for i, value in enumerate(views(count))}
                state["optimizer"] = None
            weights = self.new_path("weights")
            weights.mkdir()
            self.write_weights(weights / "model.safetensors", [front.format(i) for i in range(count)])
            done = self.tool("to-universal", weights, self.new_path(), "--like", scratch.folder)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(f"lacks {count} parameters of", done.stderr)
            self.assertIn(hint, done.stderr)

    def write_weights(self, path, names):
        entries = {name: {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]}
                   for i, name in enumerate(names)}
        header = json.dumps(entries).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8 * len(names)))

    def test_many_parameter_groups_are_each_found_at_once(self):
        count = 24000
        scratch = self.scratch("z2_bf16_w2")
        scratch.optim(1).unlink()
        names = [f"p.{i}" for i in range(count)]
        weight, master, moment = torch_files.ones(2).to("bfloat16"), torch_files.ones(2), torch_files.zeros(2)
        with edited(scratch.model()) as state:
            state["module"] = dict.fromkeys(names, weight)
            state["param_shapes"] = [{name: master.shape} for name in names]
            state["shared_params"] = {}
        with scratch.optimizer(0) as state:
            for key in ["param_alignment_paddings", "param_slice_mappings"]:
                del state[key]
            entry = {"exp_avg": moment, "exp_avg_sq": moment}
            state["base_optimizer_state"] = {"state": dict.fromkeys(range(count), entry),
                                             "param_groups": alike(count)}
            state["single_partition_of_fp32_groups"] = [master] * count
            state["group_paddings"] = [0] * count
            state["partition_count"] = [1] * count
        done = self.dry_run("to-universal", scratch.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_states_of_a_flat_tensor_are_few(self):
        count = 20000
        scratch = self.flat([[f"p.{i}" for i in range(count)]])
        with scratch.optimizer(0) as state:
            state["base_optimizer_state"]["state"] = {0: dict.fromkeys([f"s{i}" for i in range(count)], 0)}
        self.refused("20000 states of one tensor", "to-universal", scratch.folder)

    def options(self, groups, options):
        """Groups that share their options: each the same long list, not plain data because of its last entry."""
        scratch = self.flat([[f"p.{i}"] for i in range(groups)])
        settings = {"lr": 0.1, "params": [0],
                    **dict.fromkeys([f"o{i}" for i in range(options)], [0] * 200000 + [torch_files.ones(2)])}
        with scratch.optimizer(0) as state:
            state["base_optimizer_state"]["param_groups"] = [settings] * groups
            for entry in state["base_optimizer_state"]["state"].values():
                entry["step"] = 1
        return scratch.folder

    def test_a_value_that_options_share_is_looked_at_once(self):
        done = self.dry_run("to-dcp", self.options(100, 2000), "--dp=1")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_options_that_groups_share_are_few(self):
        self.refused("the optimizer's groups have too many options together", "to-dcp", self.options(300, 20000),
                     "--dp=1")

    def test_groups_do_not_share_their_parameters(self):
        count = 6000

        def edit(state):
            state["param_shapes"] = state["param_shapes"] * count

        scratch = self.flat([[f"p.{i}" for i in range(count)]], edit)
        self.refused("is named twice", "zero-to-fp32", scratch.folder)

    def test_a_mapping_that_groups_share_is_read_once(self):
        count = 24000
        scratch = self.flat([[f"p.{i}"] for i in range(count)],
                            lambda state: state["ds_config"]["zero_optimization"].update(round_robin_gradients=True))
        saved = load_shard(self.scratch("z2_bf16_w2").optim(0))["optimizer_state_dict"]
        kind = type(next(iter(saved["param_slice_mappings"][0].values())))

        with scratch.optimizer(0) as state:
            nothing = torch_files.new(kind, numel=0, start=0)
            mapping = {"p.0": torch_files.new(kind, numel=2, start=0), **{f"q.{i}": nothing for i in range(count)}}
            state["param_slice_mappings"] = [mapping] * count
        done = self.dry_run("zero-to-fp32", scratch.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_paddings_that_groups_share_are_looked_at_once(self):
        scratch = self.scratch("z2_bf16_w2")
        for rank in range(2):
            with scratch.optimizer(rank) as state:
                state["param_alignment_paddings"] += [[0] * 1000000] * 1000000
        done = self.dry_run("zero-to-fp32", scratch.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_state_of_the_step_that_is_no_number_is_compared_once(self):
        count = 60000
        scratch = self.scratch("z2_bf16_w2")
        many = 0
        for _ in range(20):
            many = [many, many]
        for rank in range(2):
            with scratch.optimizer(rank) as state:
                states = state["base_optimizer_state"]["state"]
                states.update({i: {"step": many} for i in range(1000, 1000 + count)})
        done = self.dry_run("zero-to-fp32", scratch.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_owners_with_long_names_have_few_aliases(self):
        owner, count = "o" * 100000, 40000
        names = [f"a.{i}" for i in range(count)]
        scratch = self.flat([[owner]], lambda state: state.update(shared_params=dict.fromkeys(names, owner)))
        self.refused("names of its tensors are too long", "zero-to-fp32", scratch.folder)
        chain = dict(zip(names, [owner, *names]))
        scratch = self.flat([[owner]], lambda state: state.update(shared_params=chain))
        self.refused("names of its tensors are too long", "zero-to-fp32", scratch.folder)
        tensor = torch_files.ones(2)
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            state["module"] = dict.fromkeys([owner, *names], tensor)
            state["optimizer"] = None
        self.refused("names of its tensors are too long", "zero-to-fp32", scratch.folder)
        weights = self.new_path("weights")
        weights.mkdir()
        torch_files.save(dict.fromkeys([owner, *names], tensor), weights / "pytorch_model.bin")
        self.refused("names of its tensors are too long", "to-universal", weights)

    def test_a_name_of_a_buffer_that_comes_often_is_read_once(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            state["buffer_names"] = [*state["buffer_names"], *["b" * (1 << 20)] * (1 << 21)]
        done = self.dry_run("zero-to-fp32", scratch.folder)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_notes_of_an_average_are_looked_up(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            state["module"].update(dict.fromkeys([f"q.{i}" for i in range(250000)], "none"))
            state["optimizer"] = None
        again = self.new_path("ckpt")
        shutil.copytree(scratch.folder, again)
        done = self.tool("zero-to-fp32", scratch.folder, again, self.new_path(), "--average", "--dry-run", "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_experts_of_a_universal_checkpoint_are_counted(self):
        folder, tag = self.copy("moe_ep2_dp2_z1_bf16")
        universal = self.new_path()
        done = self.tool("to-universal", folder, universal)
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in universal.rglob("mp_rank_00_model_states.pt"):
            with edited(path) as state:
                state["num_experts"] = [1 << 24] * len(state["num_experts"])
        self.refused(r"\d{5} files are missing", "zero-to-fp32", universal)

    def test_aliases_of_aliases_are_added_in_any_order(self):
        count = 80000
        scratch = self.scratch("z2_bf16_w2")
        with edited(scratch.model()) as state:
            owner = next(iter(state["param_shapes"][0]))
            state["shared_params"] = {f"a.{i}": f"a.{i + 1}" if i + 1 < count else owner for i in range(count)}
        done = self.tool("zero-to-fp32", scratch.folder, self.new_path(), "--dry-run", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan, = self.json_lines(done.stdout)
        tied = [t["name"] for t in plan["data"]["files"][0]["tensors"] if t.get("alias_of") == owner]
        self.assertEqual(len(tied), count)

    def test_the_fronts_of_many_optimizers_are_looked_up(self):
        folder = self.new_path("dcp")
        shutil.copytree(pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "dcp" / "nested", folder)
        path = folder / ".metadata"
        metadata = torch_files.loads(path.read_bytes())
        key = "optim.param_groups.0.lr"
        kind = metadata.state_dict_metadata[key]
        (index, stored), = (item for item in metadata.storage_data.items() if item[0].fqn == key)
        for i in range(60000):
            key = f"optimizer_{i}.param_groups"
            metadata.state_dict_metadata[key] = kind
            metadata.storage_data[torch_files.new(type(index), **{**index.__dict__, "fqn": key})] = stored
        path.chmod(0o644)
        path.write_bytes(torch_files.dumps(metadata))
        done = self.dry_run("to-universal", folder)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("has several optimizers, and nothing says which is the model's: 'optim', 'optimizer_0'", done.stderr)

    def test_a_layer_of_experts_that_is_listed_often_is_looked_at_once(self):
        folder, tag = self.copy("autoep2_dp2_z1_bf16")
        tensor = torch_files.zeros(1)
        with edited(tag / "mp_rank_00_model_states.pt") as state:
            state["module"].update(dict.fromkeys([f"other.{i}.x" for i in range(30000)], tensor))
            state["ds_autoep_layers"] = [state["ds_autoep_layers"][0]] * 100000
        self.assert_refused(folder, 3, "a second time", inspect=False)

    def test_layers_that_share_a_placement_have_few_experts_together(self):
        experts, layers = 4000, 1000
        folder, tag = self.copy("autoep2_dp2_z1_bf16")
        with edited(tag / "mp_rank_00_model_states.pt") as state:
            ranks = [{"rank": rank, "experts": list(range(rank, experts, 2))} for rank in range(2)]
            entry = {**state["ds_autoep_layers"][0], "num_experts": experts,
                     "expert_placement": {"version": 1, "num_experts": experts, "ep_size": 2, "ranks": ranks}}
            state["ds_autoep_layers"] += [{**entry, "expert_key_prefix": f"l.{i}.experts"} for i in range(layers)]
            shape = torch_files.Size([experts // 2, 0])
            state["param_shapes"][1].update({f"l.{i}.experts.w{w}": shape for i in range(layers) for w in (1, 2, 3)})
        for path in tag.glob("*_optim_states.pt"):
            with edited(path) as state:
                for key in ["param_alignment_paddings", "param_slice_mappings"]:
                    del state["optimizer_state_dict"][key]
        self.refused("the layers have too many experts together", "zero-to-fp32", folder)


class RulesTest(HostileSizesTest):
    """The entries of universal_checkpoint_info."""

    def with_rules(self, name, edit):
        folder, tag = self.copy(name)
        for path in tag.glob("mp_rank_*_model_states.pt"):
            with edited(path) as state:
                edit(state["universal_checkpoint_info"])
        return folder

    def test_a_pattern_that_comes_often_is_compiled_once(self):
        pattern = "never" + "(a{50}){15}x{500}"

        def edit(info):
            info["tp_replicated_parameter_patterns"] += [pattern] * 50000

        folder = self.with_rules("mpu_tp2_dp1_z1_bf16", edit)
        done = self.dry_run("zero-to-fp32", folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_patterns_that_are_too_large_together_are_refused(self):
        def edit(info):
            info["tp_replicated_parameter_patterns"] += [f"never{i}(a{{50}}){{15}}x{{500}}" for i in range(20000)]

        folder = self.with_rules("mpu_tp2_dp1_z1_bf16", edit)
        self.assert_refused(folder, 3, "too large, together with those before it", inspect=False)

    def test_many_patterns_are_tried_on_many_names_together(self):
        folder = self.with_names(10000, lambda info, count: info.update(
            tp_replicated_parameter_patterns=[rf"p\.{i}\.w" for i in range(count)]))
        done = self.dry_run("zero-to-fp32", folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_patterns_that_fit_all_names_are_refused(self):
        patterns = [f"p.*(z{i})?" for i in range(32000)]
        entry = {"patterns": patterns, "shape": (2, ), "partition_dim": 0}
        folder = self.with_names(100000, lambda info, count: info.update(parameter_with_sub_params=[entry]))
        done = self.dry_run("zero-to-fp32", folder)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("fit too often", done.stderr)

    def with_names(self, count, edit):
        """So many parameters of two tensor-parallel ranks, and other rules."""
        names = [f"p.{i}.w" for i in range(count)]
        folder, tag = self.copy("mpu_tp2_dp1_z1_bf16")
        weight = torch_files.ones(2).to("bfloat16")
        for rank in range(2):
            with edited(tag / f"mp_rank_{rank:02}_model_states.pt") as state:
                state["module"] = dict.fromkeys(names, weight)
                state["param_shapes"] = [dict.fromkeys(names, weight.shape)]
                state["shared_params"] = {}
                edit(state["universal_checkpoint_info"], count)
            with edited(tag / f"bf16_zero_pp_rank_0_mp_rank_{rank:02}_optim_states.pt") as state:
                state = state["optimizer_state_dict"]
                for key in ["param_alignment_paddings", "param_slice_mappings"]:
                    state.pop(key, None)
                state["single_partition_of_fp32_groups"] = [torch_files.ones(2 * count)]
                state["base_optimizer_state"] = {"state": {}, "param_groups": alike(1)}
                state["group_paddings"] = [0]
                state["partition_count"] = [1]
        return folder

    def test_a_long_pattern_that_comes_often_is_refused(self):
        def edit(info):
            info["tp_replicated_parameter_patterns"] += ["^" + "never" * 200000 + "$"] * 5000

        self.refused("too long together", "zero-to-fp32", self.with_rules("mpu_tp2_dp1_z1_bf16", edit))

    def test_sub_parameters_that_are_listed_often_are_refused(self):
        count = 10000
        entry = {"patterns": [f"never{i}" for i in range(count)], "shape": (2, 2), "partition_dim": 0}

        def edit(info):
            info["parameter_with_sub_params"] = [entry] * count

        self.refused("too long together", "zero-to-fp32", self.with_rules("mpu_tp2_dp1_z1_bf16", edit))

    def test_reasons_that_patterns_share_are_shown_in_part(self):
        def edit(info):
            info["autotp_unsupported_parameter_patterns"] = dict.fromkeys([f"p{i}" for i in range(20000)], "w" * 100000)

        self.refused(r"cannot be put together: 'p0': w+, 'p1': .*, \.\.\.", "zero-to-fp32",
                     self.with_rules("mpu_tp2_dp1_z1_bf16", edit))

    def test_ranks_may_share_their_pieces(self):
        count = 4000
        piece = {"shape": [2], "source": [0, [1]], "dest": [0, [1]], "locations": [0]}
        pieces = [piece] * count
        ranks = {i: {"shard_shape": [2], "pieces": pieces} for i in range(count)}
        entries = {f"^no{i}where$": {"logical_shape": [2], "ranks": ranks} for i in range(count)}

        def edit(info):
            info["affine_map"]["params"].update(entries)

        folder = self.with_rules("autotp2_dp2_z1_fp32", edit)
        done = self.dry_run("zero-to-fp32", folder, *cli_common.memory_limit("1GB"))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_ranks_may_share_the_list_of_who_holds_a_block(self):
        count = 40000
        locations = list(range(count))
        piece = {"shape": [2], "source": [0, [1]], "dest": [0, [1]], "locations": locations}
        rank = {"shard_shape": [2], "pieces": [piece]}
        entry = {"logical_shape": [2], "ranks": dict.fromkeys(range(count), rank)}

        def edit(info):
            info["affine_map"]["params"]["^nowhere$"] = entry

        folder = self.with_rules("autotp2_dp2_z1_fp32", edit)
        done = self.dry_run("zero-to-fp32", folder)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    cli_common.main()
