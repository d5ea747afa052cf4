"""Checkpoints that are right, but not as today's DeepSpeed writes them by default."""
import collections

import numpy

import cli_common
import torch_files
from cli_common import CliTest
from edits import Reduced, edited, load_shard

STAGE_2 = "z2_fp32_full_w3"
STAGE_3 = "z3_fp32_full_w2"
STAGE_2_BF16, STAGE_3_BF16 = "z2_bf16_w2", "z3_bf16_w2"


class UnusualCheckpointTest(CliTest):

    def expected(self, scratch):
        return self.assert_converts(scratch.case.load_dir)

    def assert_same_tensors(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, value in expected.items():
            self.assertTrue(torch_files.equal(found[name], value), name)

    def test_a_parameter_may_lie_across_sub_groups(self):
        """DeepSpeed's converter reads such files (GatheredTensor.contiguous walks over sub-groups)."""
        scratch = self.scratch(STAGE_3)
        for rank in range(2):
            with scratch.optimizer(rank) as state:
                whole = torch_files.cat(state["fp32_flat_groups"])
                cuts = [0, 1, 7, whole.numel() // 3, whole.numel() - 1, whole.numel()]
                state["fp32_flat_groups"] = [whole[a:b].clone() for a, b in zip(cuts, cuts[1:])]
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))

    def test_sub_groups_that_ranks_cut_differently_are_refused(self):
        scratch = self.scratch(STAGE_3)
        with scratch.optimizer(1) as state:
            whole = torch_files.cat(state["fp32_flat_groups"])
            state["fp32_flat_groups"] = [whole[:5].clone(), whole[5:].clone()]
        self.assert_refused(scratch.folder, 3, "cut otherwise", where={"file": "zero_pp_rank_1"})

    def test_the_stage_may_be_an_enum_pickled_by_name(self):
        """Python 3.11.2 pickles an enum as getattr(class, name), 3.11.7 and other versions as class(number)."""
        for name, member in [("z1_fp32_full_w4", "optimizer_states"), (STAGE_2, "gradients"), (STAGE_3, "weights")]:
            scratch = self.scratch(name)
            for rank in range(scratch.case.facts["world_size"]):
                with scratch.optimizer(rank) as state:
                    state["zero_stage"] = Reduced(getattr, type(state["zero_stage"]), member)
            self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))
        scratch = self.scratch(STAGE_3)
        with scratch.optimizer(0) as state:
            state["zero_stage"] = Reduced(getattr, collections.OrderedDict, "weights")
        self.assert_refused(scratch.folder, 3, "object of __builtin__.getattr", where={"member": "zero_stage"})

    def test_param_shapes_of_old_releases_are_one_dict(self):
        scratch = self.scratch("z2_bf16_w2")
        with edited(scratch.model()) as state:
            shapes, = state["param_shapes"]
            state["param_shapes"] = shapes
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))

    def test_files_without_paddings_and_mappings_are_read(self):
        scratch = self.scratch(STAGE_2)
        for rank in range(3):
            with scratch.optimizer(rank) as state:
                for key in ["param_slice_mappings", "param_alignment_paddings"]:
                    del state[key]
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))

    def test_masters_may_be_of_16_bits(self):
        """bf16_master_weights_and_grads"""
        for name, key in [("z2_bf16_w2", "single_partition_of_fp32_groups"), ("z3_bf16_w2", "fp32_flat_groups")]:
            scratch = self.scratch(name)
            expected = {key: value.to("bfloat16").to("float32") for key, value in self.expected(scratch).items()}
            for rank in range(2):
                with scratch.optimizer(rank) as state:
                    state[key] = [group.to("bfloat16") for group in state[key]]
            self.assert_same_tensors(self.assert_converts(scratch.folder), expected)

    def test_releases_before_0_16_4_book_all_padding_on_the_last_rank(self):
        scratch = self.scratch("z1_fp32_tinygroup_w4")
        ranks = scratch.case.facts["world_size"]
        key = "single_partition_of_fp32_groups"
        states = [load_shard(scratch.optim(rank))["optimizer_state_dict"] for rank in range(ranks)]
        for group in range(len(states[0][key])):
            paddings = [state["group_paddings"][group] for state in states]
            length = states[0][key][group].numel() + paddings[0]
            for rank in range(ranks):
                with scratch.optimizer(rank) as state:
                    last = rank == ranks - 1
                    whole = torch_files.zeros(length)
                    saved = state[key][group]
                    whole[:saved.numel()] = saved
                    state["group_paddings"][group] = sum(paddings) if last else 0
                    state[key][group] = whole[:length - sum(paddings)] if last else whole
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))

    def test_releases_before_0_9_2_do_not_say_what_is_tied(self):
        scratch = self.scratch("z2_bf16_full_w8")
        with edited(scratch.model()) as state:
            tied = state.pop("shared_params")
        self.assertTrue(tied)
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))
        done = self.tool("ckpt-inspect", "list", scratch.folder, "--json")
        listed, = self.json_lines(done.stdout)
        aliases = {t["name"]: t["alias_of"] for t in listed["data"]["tensors"] if "alias_of" in t}
        self.assertEqual(aliases, tied)

    def test_parameters_that_no_file_of_stage_3_holds_are_noted(self):
        scratch = self.scratch(STAGE_3)
        lost = set()
        for rank in range(2):
            with edited(scratch.model(rank)) as state:
                lost |= set(state["frozen_param_shapes"]) | set(state["shared_params"])
                state["frozen_param_shapes"] = state["frozen_param_fragments"] = None
                state["shared_params"] = {}
        done = self.zero_to_fp32(scratch.folder, self.new_path())
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("' is a parameter of the model, but no file holds its values; left out; likewise '", done.stderr)
        for name in lost:
            self.assertIn(f"'{name}'", done.stderr)
        quiet = self.zero_to_fp32(scratch.folder, self.new_path(), "--quiet")
        self.assertEqual((quiet.returncode, quiet.stderr), (1, ""))
        self.assertEqual(set(quiet.stdout.splitlines()), {f"no values\t{name}" for name in lost})
        done = self.zero_to_fp32(scratch.folder, self.new_path(), "--exclude", "frozen|head")
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_parameter_frozen_later_keeps_its_master(self):
        for name in ["z2_bf16_full_w8", "z3_bf16_w2"]:
            scratch = self.scratch(name)
            expected = self.expected(scratch)
            models = range(2 if name.startswith("z3") else 1)
            for rank in models:
                with edited(scratch.model(rank)) as state:
                    first, shape = next(iter(state["param_shapes"][0].items()))
                    state["frozen_param_shapes"] = {**(state["frozen_param_shapes"] or {}), first: shape}
                    state["frozen_param_fragments"] = {**(state["frozen_param_fragments"] or {}),
                                                       first: torch_files.zeros(shape).to("bfloat16")}
            self.assert_same_tensors(self.assert_converts(scratch.folder), expected)

    def test_the_configuration_may_be_a_path(self):
        scratch = self.scratch("z2_bf16_roundrobin_w2")
        with edited(scratch.model()) as state:
            state["ds_config"] = "ds_config.json"
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))

    def test_learning_rates_may_differ_between_ranks_of_one_step(self):
        scratch = self.scratch(STAGE_2)
        with scratch.optimizer(1) as state:
            state["base_optimizer_state"]["param_groups"][0]["lr"] *= 0.5
        done = self.zero_to_fp32(scratch.folder, self.new_path())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("param_groups differs", done.stderr)

    def test_facts_that_client_state_has_replaced_do_not_matter(self):
        scratch = self.scratch("z2_bf16_w2")
        with edited(scratch.model()) as state:
            state["global_steps"] = numpy.int64(3)
            state["ds_version"] = None
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))

    def test_an_engine_without_optimizer_saves_a_model(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            state["optimizer"] = None
        self.assert_same_tensors(self.assert_converts(scratch.folder), self.expected(scratch))

    def test_files_may_be_written_without_checksums(self):
        scratch = self.scratch("z2_bf16_w2")
        for path in scratch.shards():
            torch_files.save(load_shard(path), path, checksums=False)
        self.assert_same_tensors(self.assert_converts(scratch.folder, "--verify"), self.expected(scratch))

    def test_an_alias_may_come_before_the_alias_that_owns_it(self):
        scratch = self.scratch(STAGE_2)
        with edited(scratch.model()) as state:
            alias, owner = next(iter(state["shared_params"].items()))
            state["module"]["first.weight"] = state["module"][owner]
            state["shared_params"] = {"first.weight": alias, alias: owner}
        done = self.zero_to_fp32(scratch.folder, self.new_path(), "--dry-run", "--json")
        plan, = self.json_lines(done.stdout)
        tensors = {t["name"]: t for t in plan["data"]["files"][0]["tensors"]}
        self.assertEqual(tensors["first.weight"]["alias_of"], owner)
        self.assertEqual(tensors[alias]["alias_of"], owner)

    def test_an_alias_without_owner_is_left_out_with_a_note(self):
        scratch = self.scratch(STAGE_2)
        with edited(scratch.model()) as state:
            state["shared_params"]["lost.weight"] = "nowhere.weight"
        output = self.new_path()
        done = self.zero_to_fp32(scratch.folder, output, "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("'lost.weight' is tied to 'nowhere.weight', which is not in the checkpoint", done.stderr)

    def test_empty_parameters_are_not_tied_though_deepspeed_says_so(self):
        """_get_shared_params compares data_ptr(), which is 0 for all tensors without elements."""
        scratch = self.scratch("z1_fp32_full_w4")
        with edited(scratch.model()) as state:
            state["module"]["empty.a"] = torch_files.zeros(0, 3)
            state["module"]["empty.b"] = torch_files.zeros(2, 0)
            state["shared_params"]["empty.b"] = "empty.a"
        found = self.assert_converts(scratch.folder)
        self.assertEqual(found["empty.a"].shape, (0, 3))
        self.assertEqual(found["empty.b"].shape, (2, 0))

    def test_entries_that_are_no_tensors_are_left_out_with_a_note(self):
        scratch = self.scratch(STAGE_2)
        with edited(scratch.model()) as state:
            state["module"]["block._extra_state"] = collections.OrderedDict(scale=1.0)
        done = self.zero_to_fp32(scratch.folder, self.new_path())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("'block._extra_state' of the model's state is not a tensor", done.stderr)

    def test_a_model_file_of_another_step_is_noted(self):
        for name in [STAGE_2_BF16, STAGE_3_BF16]:
            scratch = self.scratch(name)
            for rank in range(2 if name == STAGE_3_BF16 else 1):
                with edited(scratch.model(rank)) as state:
                    state["global_steps"] += 2
            done = self.zero_to_fp32(scratch.folder, self.new_path())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"note: \S+model_states.pt is of step 5, but \S+optim_states.pt has .* = 3")

    def test_any_number_may_be_a_step(self):
        for edits, step in ({"skipped_steps": -2**63}, 2**63), ({"global_steps": 2**62}, 2**62):
            scratch = self.scratch(STAGE_2_BF16)
            with edited(scratch.model()) as state:
                state.update(edits)
            done = self.zero_to_fp32(scratch.folder, self.new_path())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, rf"note: \S+model_states.pt is of step {step}\b")

    def test_no_checkpoint_as_saved_is_noted_to_be_of_two_steps(self):
        for case in cli_common.all_cases():
            with self.subTest(case.name):
                done = self.tool("ckpt-inspect", "list", case.load_dir, "--json")
                listed, = self.json_lines(done.stdout)
                self.assertEqual([n for n in listed["data"]["notes"] if "one save" in n], [])


if __name__ == "__main__":
    cli_common.main()
