"""Checkpoints of optimizers on NVMe: what is wrong with their swap files is named, and nothing is guessed."""
import json
import re
import shutil
import unittest

import numpy
import torch_files
from cli_common import CliTest
from edits import edited, load_shard

MIXED = "z3_bf16_nvme_w2"  # two ranks, some sub-groups in swap files
FULL = "z3_fp32_nvme_full_w3"  # three ranks, padded to 2048 bytes
WHOLE = "z3_bf16_nvmeparam_w2"  # all in swap files


def is_in_use(path):
    return re.fullmatch(r"((exp_avg|exp_avg_sq)-)?\d+_\d+\.tensor\.swp", path.name)


class NvmeTest(CliTest):

    def swap_folder(self, scratch, rank):
        return scratch.tag / "offloaded_tensors" / f"rank{rank:02d}"

    def masters(self, scratch, rank):
        return sorted(self.swap_folder(scratch, rank).glob("[0-9]*.tensor.swp"))

    def swapped(self, scratch, rank):
        """Numbers of the sub-groups in swap files."""
        groups = load_shard(scratch.optim(rank))["optimizer_state_dict"]["fp32_flat_groups"]
        return [i for i, group in enumerate(groups) if not group.numel()]

    def elements(self, scratch, path, rank=0):
        """How many elements the swap file must have."""
        shapes = load_shard(scratch.model(rank))["param_shapes"]
        groups = load_shard(scratch.optim(rank))["optimizer_state_dict"]["fp32_flat_groups"]
        at, = (i for i, group in enumerate(groups) if f"{group.ds_id}.tensor.swp" == path.name.split("-")[-1])
        return sum(-(-shape.numel() // scratch.case.facts["world_size"]) for shape in shapes[at].values())

    def assert_truth(self, scratch):
        tensors = self.assert_converts(scratch.folder)
        expected = scratch.case.without_aliases(scratch.case.truth())
        self.assertEqual(sorted(tensors), sorted(expected))
        for name, value in expected.items():
            self.assertTrue(torch_files.same_bits(tensors[name], value), name)

    def assert_both_refuse(self, scratch, pattern, where):
        """zero-to-fp32 and to-universal."""
        self.assert_refused(scratch.folder, 3, pattern, where=where)
        done = self.tool("to-universal", "--input_folder", scratch.tag, "--output_folder", self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, pattern)

    def test_the_cases_are_what_they_are_meant_to_be(self):
        for name, ranks in ((MIXED, 2), (FULL, 3), (WHOLE, 2)):
            scratch = self.scratch(name)
            for rank in range(ranks):
                optim = load_shard(scratch.optim(rank))["optimizer_state_dict"]
                swapped = self.swapped(scratch, rank)
                self.assertTrue(swapped)
                self.assertEqual(len(swapped) == len(optim["fp32_flat_groups"]), name == WHOLE)
                self.assertEqual(len(list(self.swap_folder(scratch, rank).iterdir())), 3 * len(swapped))

    def test_it_is_said_how_much_has_no_checksums(self):
        for name in (MIXED, FULL, WHOLE):
            scratch = self.scratch(name)
            swapped = self.swapped(scratch, 0)
            self.assertEqual(swapped, self.swapped(scratch, 1))
            shapes = load_shard(scratch.model(0))["param_shapes"]
            expected = 4 * sum(shape.numel() for i in swapped for shape in shapes[i].values())
            done = self.zero_to_fp32(scratch.folder, self.new_path(), "--json")
            line, = self.json_lines(done.stdout)
            self.assertEqual(line["data"]["bytes_without_checksum"], expected)
            said = self.zero_to_fp32(scratch.folder, self.new_path()).stderr
            if line["data"]["bytes_read"] == expected:
                self.assertIn("the input has no checksums", said)
            else:
                self.assertIn(f" checksums verified, {expected / 1000:.2f} KB without any\n", said)

    def test_all_missing_swap_files_are_listed_at_once(self):
        scratch = self.scratch(MIXED)
        gone = [self.masters(scratch, 0)[0], self.masters(scratch, 1)[1]]
        for path in gone:
            path.unlink()
        error = self.assert_refused(scratch.folder, 3, "2 swap files are missing", where={"file": scratch.tag.name})
        for path in gone:
            self.assertIn(f"{path.parent.name}/{path.name}", error["message"])
        self.assertIn("fp32_flat_groups[", error["message"])

    def test_weights_need_no_states(self):
        scratch = self.scratch(MIXED)
        path = next(self.swap_folder(scratch, 1).glob("exp_avg-*"))
        path.unlink()
        self.assert_truth(scratch)
        done = self.tool("to-universal", "--input_folder", scratch.tag, "--output_folder", self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(path.name, done.stderr)

    def test_a_folder_of_swap_files_that_is_missing(self):
        scratch = self.scratch(FULL)
        count = sum(len(self.masters(scratch, rank)) for rank in range(3))
        shutil.rmtree(scratch.tag / "offloaded_tensors")
        self.assert_refused(scratch.folder, 3, f"{count} swap files are missing")

    def test_node_local_storage_is_hinted_at(self):
        scratch = self.scratch(WHOLE)
        for rank in range(2):
            with edited(scratch.optim(rank)) as state:
                state["ds_config"]["checkpoint"] = {"use_node_local_storage": True}
        self.assert_truth(scratch)
        self.swap_folder(scratch, 1).rename(scratch.folder / "elsewhere")
        done = self.zero_to_fp32(scratch.folder, self.new_path())
        self.assertEqual(done.returncode, 3)
        self.assertIn("use_node_local_storage", done.stderr)

    def test_files_cut_off_anywhere_are_named(self):
        scratch = self.scratch(FULL)
        path = self.masters(scratch, 2)[0]
        whole, needed = path.read_bytes(), 4 * self.elements(scratch, path, 2)
        self.assertLess(needed, len(whole), "the test needs padding")
        for size in (0, 1, 4, needed // 2, needed - 4, needed - 1):
            with self.subTest(size=size):
                path.write_bytes(whole[:size])
                self.assert_refused(scratch.folder, 3, rf"has {size} bytes?, needs {needed} for the {needed // 4} elements"
                                    r" of fp32_flat_groups\[\d+\]", where={"file": path.name}, inspect=size < 2)
        # Only padding is left out.
        for size in (needed, needed + 1, len(whole)):
            path.write_bytes(whole[:size])
            self.assert_truth(scratch)
        path.write_bytes(whole + b"\0")
        self.assert_refused(scratch.folder, 3, "at most .* with its padding", where={"file": path.name})

    def test_padding_does_not_count(self):
        scratch = self.scratch(FULL)
        for rank in range(3):
            for path in self.masters(scratch, rank):
                size = 4 * self.elements(scratch, path, rank)
                path.write_bytes(path.read_bytes()[:size] + b"\xff" * (path.stat().st_size - size))
        self.assert_truth(scratch)

    def change_ids(self, scratch, ranks, change):
        """Lets `change(old, group)` name the ds_ids of masters and states anew."""
        for rank in ranks:
            with edited(scratch.optim(rank)) as state:
                optim = state["optimizer_state_dict"]
                for at, group in enumerate(optim["fp32_flat_groups"]):
                    new = change(group.ds_id, at)
                    states = optim["optimizer_state_dict"]["state"][at]
                    for key in ("exp_avg", "exp_avg_sq"):
                        if not group.numel():
                            states[key].ds_id = f"{key}-{new}"
                    group.ds_id = new

    def test_ids_that_only_one_rank_has(self):
        scratch = self.scratch(MIXED)
        first = self.swapped(scratch, 1)[0]
        self.change_ids(scratch, [1], lambda old, at: "800_801" if at == first and "_".join(
            {*old.split("_")}) != old.split("_")[0] else "800_800" if at == first else old)
        self.assert_both_refuse(scratch, r"has the ds_id '800_80[01]', but '\d+_\d+' in", {
            "file": scratch.optim(1).name, "member": f"fp32_flat_groups[{first}]"})

    def test_two_sub_groups_of_one_file(self):
        scratch = self.scratch(MIXED)
        groups = load_shard(scratch.optim(0))["optimizer_state_dict"]["fp32_flat_groups"]
        shapes = load_shard(scratch.model(0))["param_shapes"]
        pair = next((a, b) for a in self.swapped(scratch, 0) for b in self.swapped(scratch, 0)
                    if a < b and (len(shapes[a]) == 1) == (len(shapes[b]) == 1))
        taken = groups[pair[0]].ds_id
        self.change_ids(scratch, range(2), lambda old, at: taken if at == pair[1] else old)
        self.assert_both_refuse(scratch, "no parameter is in two sub-groups", {"file": scratch.optim(0).name,
                                                                               "member": "fp32_flat_groups"})

    def test_ids_that_do_not_count_the_parameters(self):
        scratch = self.scratch(WHOLE)
        self.change_ids(scratch, range(2), lambda old, at: "3_3")
        self.assert_both_refuse(scratch, r"has the ds_id '3_3', but holds \d+ parameters",
                                {"file": scratch.optim(0).name})

    def test_ids_of_files_that_are_not_there(self):
        scratch = self.scratch(WHOLE)
        self.change_ids(scratch, range(2), lambda old, at: "3_77")
        self.assert_both_refuse(scratch, r"swap files are missing[\s\S]*rank00/3_77\.tensor\.swp", {})

    def test_ids_that_are_no_ids(self):
        for bad in ("", "12", "1_", "_2", "1_2_3", "a_b", "01_2", "-1_2", "../1_2", "1_99999999999999999999999", 7):
            with self.subTest(bad=bad):
                scratch = self.scratch(WHOLE)
                self.change_ids(scratch, range(2), lambda old, at: bad)
                self.assert_refused(scratch.folder, 3, "ds_id", where={"file": scratch.optim(0).name,
                                                                      "member": "fp32_flat_groups[0]"})

    def test_an_id_of_a_state_that_is_not_its_masters(self):
        for bad in ("exp_avg_sq-{}", "{}", "exp_avg-0_0", "exp_avg-../{}"):
            with self.subTest(bad=bad):
                scratch = self.scratch(WHOLE)
                with scratch.optimizer(1) as optim:
                    state = optim["optimizer_state_dict"]["state"][0]["exp_avg"]
                    state.ds_id = bad.format(optim["fp32_flat_groups"][0].ds_id)
                self.assert_both_refuse(scratch, "has the ds_id", {"file": scratch.optim(1).name,
                                                                  "member": "optimizer_state_dict.state[0].exp_avg"})

    def test_tensors_without_ids(self):
        scratch = self.scratch(WHOLE)
        for rank in range(2):
            with scratch.optimizer(rank) as optim:
                optim["fp32_flat_groups"] = [torch_files.zeros(0) for _ in optim["fp32_flat_groups"]]
        self.assert_refused(scratch.folder, 3, "no ds_id", where={"file": scratch.optim(0).name})

    def test_files_that_no_tensor_refers_to_are_noted(self):
        scratch = self.scratch(MIXED)
        first = self.masters(scratch, 0)[0]
        shutil.copy(first, first.with_name("500_501.tensor.swp"))
        done = self.zero_to_fp32(scratch.folder, self.new_path(), "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"note: .*rank00/500_501\.tensor\.swp is a file that no tensor refers to")
        self.assert_truth(scratch)

    def test_a_folder_in_the_place_of_a_swap_file(self):
        scratch = self.scratch(WHOLE)
        path = self.masters(scratch, 0)[0]
        path.unlink()
        path.mkdir()
        self.assert_refused(scratch.folder, 4, path.name)

    def test_inspection_says_where_the_elements_lie(self):
        scratch = self.scratch(WHOLE)
        name = "wide.weight"
        done = self.tool("ckpt-inspect", "where", scratch.folder, name, "--state", "exp_avg", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        extents = json.loads(done.stdout)["data"]["extents"]
        self.assertEqual([(extent["dp_rank"], extent["mp_rank"]) for extent in extents], [(0, 0), (1, 0)])
        read = b""
        for extent in extents:
            data = (scratch.folder / extent["file"]).read_bytes()
            read += data[extent["offset"]:extent["offset"] + extent["row_bytes"]]
        expected = scratch.case.expected("master")[f"{name}|exp_avg"]
        self.assertTrue(torch_files.equal(torch_files.tensor(numpy.frombuffer(read, "f4").reshape(expected.shape)), expected))

    def test_the_summary_counts_every_byte_of_the_swap_files(self):
        scratch = self.scratch(FULL)
        done = self.tool("ckpt-inspect", scratch.folder, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads(done.stdout)["data"]
        text = json.dumps(summary)
        self.assertEqual(summary["other_files"], [])
        files = [path for path in scratch.tag.rglob("*") if path.is_file()]
        self.assertEqual(summary["bytes"], sum(path.stat().st_size for path in files), text)
        self.assertEqual(summary["files"], len(files))
        self.assertEqual(len(summary["ranks"]), 3)

    def test_reshard_says_that_nvme_is_left(self):
        scratch = self.scratch(MIXED)
        output = self.new_path()
        done = self.tool("reshard", scratch.folder, output, "--dp", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "note: offload_optimizer.device is cpu in the new files")
        self.assertFalse((output / scratch.tag.name / "offloaded_tensors").exists())
        for path in (output / scratch.tag.name).glob("*.pt"):
            offload = load_shard(path)["ds_config"]["zero_optimization"]["offload_optimizer"]
            self.assertEqual((offload["device"], "nvme_path" in offload), ("cpu", False), path.name)


if __name__ == "__main__":
    unittest.main()
