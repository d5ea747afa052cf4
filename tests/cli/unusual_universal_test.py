"""Universal checkpoints of checkpoints that are right, but not as today's DeepSpeed writes them by default.
From some of them no universal checkpoint can be made.

Values that an edit must not change are compared with the result of the original checkpoint.
"""
import os
import pathlib
import re
import shutil
import subprocess

import numpy

import cli_common
import torch_files
from cli_common import CliTest
from edits import edited, load_shard as load

Z0 = "z0_fp32_w2"
Z0_LOW = "z0_bf16_w2"
Z1 = "z1_fp32_w2"
Z1_GROUPS = "z1_fp32_full_w4"
Z3 = "z3_fp32_full_w2"
TP = "mpu_tp2_dp1_z1_bf16"
PP_TP = "pp2_tp2_dp1_z1_bf16"


def same(a, b):
    if isinstance(a, torch_files.Tensor):
        return isinstance(b, torch_files.Tensor) and a.dtype == b.dtype and torch_files.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch_files.StandIn):
        return type(a) is type(b) and same(a.__dict__, b.__dict__)
    return type(a) is type(b) and bool(numpy.all(a == b))


class UnusualUniversalTest(CliTest):

    def copy(self, name):
        """The tag folder of a copy of a test checkpoint, to be edited."""
        data = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
        source = data / "model_parallel" / name / "ckpt"
        if not source.is_dir():
            return self.scratch(name).tag
        folder = self.new_path("ckpt")
        shutil.copytree(source, folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
        return folder / (folder / "latest").read_text()

    @staticmethod
    def models(tag):
        return sorted(path for path in tag.glob("*_model_states.pt") if not path.name.startswith("layer"))

    @staticmethod
    def optims(tag):
        return sorted(tag.glob("*_optim_states.pt"))

    def edit(self, paths, change):
        self.assertTrue(paths)
        for path in paths:
            with edited(path) as state:
                change(state)

    def run_tool(self, tag, output, *arguments, **options):
        return self.tool("to-universal", "--input_folder", tag, "--output_folder", output, *arguments, **options)

    def universal(self, tag, *arguments):
        output = self.new_path() / "universal"
        done = self.run_tool(tag, output, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stderr
        return output

    def refused(self, tag, pattern, code=3):
        output = self.new_path() / "made" / "universal"
        done = self.run_tool(tag, output)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, pattern)
        self.assertFalse(output.parent.parent.exists(), "an output folder is left")

    def assert_same_zero(self, found, expected, but=()):
        """The folders' zero/ holds the same files with the same contents; `but` names those whose contents may differ."""
        paths = [{path.relative_to(folder) for path in (folder / "zero").rglob("*.pt")} for folder in (found, expected)]
        self.assertEqual(*paths)
        for path in paths[0]:
            if path.name not in but:
                self.assertTrue(same(load(found / path), load(expected / path)), path)


class OlderFilesTest(UnusualUniversalTest):

    def test_files_without_paddings_mappings_and_with_one_partition_count_are_read(self):
        for name in [Z1_GROUPS, "z2_bf16_w2", "mpu_tp2_dp2_z1_fp32", "z1_bf16_muon_w2"]:
            expected = self.universal(self.copy(name))
            tag = self.copy(name)

            def change(state):
                state = state["optimizer_state_dict"]
                count, = set(state["partition_count"])
                state["partition_count"] = count
                del state["param_slice_mappings"], state["param_alignment_paddings"]

            self.edit(self.optims(tag), change)
            self.assert_same_zero(self.universal(tag), expected, but=["optimizer_state.pt"])

    def test_degrees_are_told_by_the_layer_files_however_many_digits_they_have(self):
        for name in [PP_TP, "pp2_dp2_z1_fp32", TP]:
            expected = self.universal(self.copy(name))
            for digits in [1, 2, 3]:
                tag = self.copy(name)
                for path in tag.glob("layer_*"):
                    path.rename(path.with_name(re.sub(r"^layer_(\d+)", lambda m: f"layer_{int(m[1]):0{digits}}", path.name)))
                self.edit(self.models(tag), lambda state: state.pop("checkpoint_parallel_dimensions"))
                self.assert_same_zero(self.universal(tag), expected)

    def test_dimensions_that_only_some_files_have_are_refused(self):
        for which in [slice(0, 1), slice(-1, None)]:
            tag = self.copy(PP_TP)
            self.edit(self.models(tag)[which], lambda state: state.pop("checkpoint_parallel_dimensions"))
            self.refused(tag, "checkpoint_parallel_dimensions: is (missing|not in)")

    def test_legacy_serialisation_changes_nothing(self):
        for name in [Z0, Z0_LOW, Z1_GROUPS, Z3, "autoep2_dp2_z1_bf16", TP]:
            expected = self.universal(self.copy(name))
            tag = self.copy(name)
            for path in self.models(tag) + self.optims(tag):
                with edited(path, legacy=True):
                    pass
            found = self.universal(tag)
            self.assert_same_zero(found, expected)
            for path in self.models(expected):
                self.assertTrue(same(load(found / path.name), load(path)), path)


class ReplacedKeysTest(UnusualUniversalTest):
    """client_state is written over the engine's own entries."""

    def test_no_rules_are_rules_where_no_parameter_is_cut(self):
        for name in [Z0, Z1, Z3, "pp2_dp2_noinfo_z1_fp32"]:
            expected = self.universal(self.copy(name))
            for info in [None, {}]:
                tag = self.copy(name)
                self.edit(self.models(tag), lambda state: state.update(universal_checkpoint_info=info))
                self.assert_same_zero(self.universal(tag), expected)

    def test_rules_that_are_no_dict_are_refused(self):
        for name in [Z1, TP]:
            for info, kind in [("text", "str"), ([], "list"), (5, "int")]:
                tag = self.copy(name)
                self.edit(self.models(tag), lambda state: state.update(universal_checkpoint_info=info))
                self.refused(tag, f"mp_rank_00_model_states.pt: universal_checkpoint_info: {kind} where dict")

    def test_no_rules_where_parameters_are_cut_are_refused(self):
        tag = self.copy(TP)
        self.edit(self.models(tag), lambda state: state.update(universal_checkpoint_info=None))
        self.refused(tag, "slices of the tensor-parallel ranks differ, and nothing says")

    def test_facts_that_are_not_needed_do_not_matter(self):
        for name in [Z1_GROUPS, TP]:
            expected = self.universal(self.copy(name))
            for key, value in [("ds_version", 5), ("ds_config", None), ("ds_config", "ds.json"), ("global_steps", "three"),
                               ("optimizer", 5), ("mp_world_size", "two"), ("dp_world_size", numpy.int64(99))]:
                tag = self.copy(name)
                self.edit(self.models(tag), lambda state: state.update({key: value}))
                self.assert_same_zero(self.universal(tag), expected)

    def test_whatever_else_the_program_saves_at_stage_0_is_kept(self):
        tag = self.copy(Z0)
        mine = {"parameter": torch_files.Parameter(torch_files.ones(3)), "turned": torch_files.arange(6).reshape(2, 3).t(),
                "part": torch_files.arange(10)[3:5], "array": numpy.arange(3), "bytes": torch_files.arange(200, "uint8"),
                torch_files.zeros(2): "a tensor for a key"}
        mine["again"] = mine["part"]
        mine["self"] = mine

        self.edit(self.models(tag), lambda state: state.update(mine=mine))
        output = self.universal(tag)
        found = load(self.models(output)[0])["mine"]
        self.assertIs(found["self"], found)
        self.assertIs(found["again"], found["part"])
        self.assertIsInstance(found["parameter"], torch_files.Parameter)
        self.assertTrue(numpy.array_equal(found["array"], mine["array"]))
        self.assertEqual(found["turned"].stride(), (1, 3))
        for key in ["parameter", "turned", "part", "bytes"]:
            self.assertTrue(torch_files.equal(found[key], mine[key]), key)
        tensor_key, = (key for key in found if isinstance(key, torch_files.Tensor))
        self.assertTrue(torch_files.equal(tensor_key, torch_files.zeros(2)))

    def test_learning_rates_may_be_tensors(self):
        for name, keys in [(Z0, ["optimizer"]), (Z1_GROUPS, ["optimizer_state_dict", "base_optimizer_state"]),
                           (Z3, ["optimizer_state_dict", "optimizer_state_dict"])]:
            tag = self.copy(name)

            def change(state):
                for key in keys:
                    state = state[key]
                for index, group in enumerate(state["param_groups"]):
                    group["lr"] = torch_files.tensor(0.5 + index)

            self.edit(self.optims(tag) or self.models(tag), change)
            groups = load(self.universal(tag) / "zero/optimizer_state.pt")["param_groups"]
            self.assertTrue(same([group["lr"] for group in groups], [torch_files.tensor(0.5 + i) for i in range(len(groups))]))


class StatesTest(UnusualUniversalTest):

    def test_masters_of_16_bits_stay_so(self):
        for name, key in [("z2_bf16_w2", "single_partition_of_fp32_groups"), ("z3_bf16_w2", "fp32_flat_groups"),
                          ("z1_bf16_muon_w2", "single_partition_of_fp32_groups")]:
            expected = self.universal(self.copy(name))
            tag = self.copy(name)

            def change(state):
                state = state["optimizer_state_dict"]
                state[key] = [group.to("bfloat16") for group in state[key]]

            self.edit(self.optims(tag), change)
            output = self.universal(tag)
            for path in (output / "zero").glob("*/fp32.pt"):
                found, exact = load(path), load(expected / path.relative_to(output))
                if isinstance(found, dict):
                    found, exact = found["param"], exact["param"]
                self.assertEqual(found.dtype, "bfloat16")
                self.assertTrue(torch_files.equal(found, exact.to("bfloat16")), path)

    def test_a_parameter_frozen_later_keeps_its_master_and_states(self):
        for name in ["z2_bf16_full_w8", "z3_bf16_w2"]:
            expected = self.universal(self.copy(name))
            tag = self.copy(name)

            def change(state):
                first, shape = next(iter(state["param_shapes"][0].items()))
                state["frozen_param_shapes"] = {**(state["frozen_param_shapes"] or {}), first: shape}
                state["frozen_param_fragments"] = {**(state["frozen_param_fragments"] or {}),
                                                   first: torch_files.zeros(shape).to("bfloat16")}

            self.edit(self.models(tag), change)
            self.assert_same_zero(self.universal(tag), expected)

    def test_the_numbers_of_stage_0_may_be_any(self):
        expected = self.universal(self.copy(Z0))
        tag = self.copy(Z0)

        def change(state):
            state = state["optimizer"]
            state["state"] = {1000 - index: value for index, value in reversed(state["state"].items())}
            for group in state["param_groups"]:
                group["params"] = [1000 - index for index in group["params"]]

        self.edit(self.models(tag), change)
        self.assert_same_zero(self.universal(tag), expected, but=["optimizer_state.pt"])

    def test_a_group_without_states_has_masters_only(self):
        tag = self.copy(Z1_GROUPS)
        names = list(load(self.models(tag)[0])["param_shapes"][1])
        expected = self.universal(self.copy(Z1_GROUPS))
        self.edit(self.optims(tag), lambda state: state["optimizer_state_dict"]["base_optimizer_state"]["state"].pop(1))
        output = self.universal(tag)
        for name in names:
            self.assertEqual([path.name for path in (output / "zero" / name).iterdir()], ["fp32.pt"])
        for path in (output / "zero").rglob("*.pt"):
            if path.parent.name not in names:
                self.assertTrue(same(load(path), load(expected / path.relative_to(output))), path)

    def test_a_state_that_is_called_as_the_master_is_refused(self):
        tag = self.copy(Z1)

        def change(state):
            for entry in state["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
                entry["fp32"] = entry["exp_avg"].clone()

        self.edit(self.optims(tag), change)
        self.refused(tag, "fp32.pt: is written twice")

    def test_frozen_slices_go_together_by_the_rules(self):
        tag = self.copy(TP)
        for rank, path in enumerate(self.models(tag)):
            with edited(path) as state:
                state["module"]["frozen.column"] = torch_files.full((2, 3), value=float(rank))
                state["module"]["frozen.attention.dense.weight"] = torch_files.full((2, 3), value=float(rank))
        output = self.universal(tag)
        for name, dim in [("frozen.column", 0), ("frozen.attention.dense.weight", 1)]:
            expected = torch_files.cat([torch_files.zeros(2, 3), torch_files.ones(2, 3)], dim)
            self.assertTrue(torch_files.equal(load(output / "zero" / name / "fp32.pt")["param"], expected), name)
            self.assertIn(f"'{name}'", self.said)

    def test_the_order_of_ranks_with_the_same_experts_is_not_guessed_from_a_wrong_setting(self):
        for name, setting in [("moe_ep2_dp4_z1_fp32", False), ("moe_ep2_dp4_z2_fp32", True), ("autoep2_dp4_z2_fp32", True)]:
            tag = self.copy(name)
            self.edit(self.models(tag),
                      lambda state: state["ds_config"].update(use_data_before_expert_parallelism=setting))
            self.refused(tag, "maps this parameter elsewhere")


class NamesTest(UnusualUniversalTest):

    def renamed(self, name):
        """A checkpoint whose first parameter is called `name`."""
        tag = self.copy(Z1)
        old = next(iter(load(self.models(tag)[0])["param_shapes"][0]))

        def rename(value):
            if isinstance(value, dict):
                for entry in value.values():
                    rename(entry)
                entries = [(name if key == old else key, entry) for key, entry in value.items()]
                value.clear()
                value.update(entries)
            elif isinstance(value, list):
                for entry in value:
                    rename(entry)

        self.edit(self.models(tag) + self.optims(tag), rename)
        return tag, old

    def test_names_that_lead_out_of_their_folder_are_refused(self):
        for name in ["..", "../../../evil", "/abs", "", ".", "a/../b", "a\0b", "optimizer_state.pt"]:
            with self.subTest(name):
                self.refused(self.renamed(name)[0], "zero/")

    def test_names_may_hold_slashes_and_ends_of_line(self):
        expected = self.universal(self.copy(Z1))
        for name in ["a/b", "a\nb", " ", "-x", "é"]:
            tag, old = self.renamed(name)
            output = self.universal(tag)
            for path in (expected / "zero" / old).iterdir():
                self.assertTrue(same(load(output / "zero" / name / path.name), load(path)), path)

    def test_a_name_that_is_too_long_for_the_file_system_fails_without_leftovers(self):
        self.refused(self.renamed("x" * 300)[0], "x{300}.*File name too long", code=4)


class PlacesTest(UnusualUniversalTest):

    def test_of_runs_that_race_for_a_folder_one_wins(self):
        tag = self.copy(Z1_GROUPS)
        expected = self.universal(tag)
        for arguments, codes in [([], [0, 2, 2]), (["--force"], [0, 0, 0])]:
            output = self.new_path() / "universal"
            output.parent.mkdir()
            if arguments:
                self.assertEqual(self.run_tool(tag, output).returncode, 0)
            command = [os.path.join(os.environ["DSCKPT_BIN"], "to-universal"), "--input_folder", tag, "--output_folder",
                       output, "-q", *arguments]
            runs = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
            for run in runs:
                run.communicate()
            self.assertEqual(sorted(run.returncode for run in runs), codes)
            self.assert_same_zero(output, expected)
            self.assertEqual(sorted(path.name for path in output.parent.iterdir()), ["latest_universal", "universal"])

    def test_modes_are_those_of_the_umask(self):
        output = self.new_path() / "universal"
        output.parent.mkdir()
        done = self.run_tool(self.copy(Z1), output, preexec_fn=lambda: os.umask(0o027))
        self.assertEqual(done.returncode, 0, done.stderr)
        for path in [output.parent / "latest_universal", *output.rglob("*"), output]:
            self.assertEqual(path.stat().st_mode & 0o777, 0o750 if path.is_dir() else 0o640, path)

    def test_latest_universal_that_is_a_link_is_replaced_not_followed(self):
        place = self.new_path()
        place.mkdir()
        (place / "other").write_text("old")
        (place / "latest_universal").symlink_to("other")
        self.assertEqual(self.run_tool(self.copy(Z1), place / "u").returncode, 0)
        self.assertEqual((place / "other").read_text(), "old")
        self.assertEqual((place / "latest_universal").read_text(), "u")

    def test_folders_with_odd_names_are_named_as_they_are(self):
        tag = self.copy(Z1)
        for name in [b"a\xffb", b"new\nline", b" ", b"...", b"x" * 255]:
            place = self.new_path()
            place.mkdir()
            done = self.run_tool(tag, os.fsdecode(os.fsencode(place) + b"/" + name))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((place / "latest_universal").read_bytes(), name)
            self.assertEqual(sorted(os.listdir(os.fsencode(place))), sorted([b"latest_universal", name]))


if __name__ == "__main__":
    cli_common.main()
