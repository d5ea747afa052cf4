"""ckpt-pack strip against torch and DeepSpeed: what is stripped holds the same weights, or loads as the same
objects.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import torch

import oracle
import tools
from oracle import OracleTest
from tools import run_tool
from torch_copy_test import Comparison

ANSWERS = """
import json, pathlib, sys
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors.torch import save_file
for line in sys.stdin:
    job = json.loads(line)
    tensors = get_fp32_state_dict_from_zero_checkpoint(job["folder"], tag=job["tag"])
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, job["out"])
"""


class Stripped(Comparison):
    """Tensors have to have the same values and share storages as before, which may have become smaller.
    `dropped` are the paths of tensors of which only type and shape are left."""

    def __init__(self, test):
        super().__init__(test)
        self.dropped = []

    def check_tensor(self, left, right, path):
        if right.device.type == "meta" and left.device.type != "meta":
            self.test.assertEqual((left.dtype, left.shape), (right.dtype, right.shape), path)
            self.dropped.append(path)
            return
        self.tensors += 1
        for name in ("dtype", "shape", "requires_grad", "layout", "device"):
            self.test.assertEqual(getattr(left, name), getattr(right, name), f"{path}.{name}")
        if left.device.type == "meta":
            return
        self.test.assertTrue(oracle.same_bits(left.detach(), right.detach()), path)
        self.test.assertLessEqual(right.untyped_storage().nbytes(), left.untyped_storage().nbytes(), path)
        if left.numel() > 0:
            self.same_pair(self.storages, left.untyped_storage().data_ptr(), right.untyped_storage().data_ptr(),
                           f"{path} storage")
            if right.untyped_storage().nbytes() == left.untyped_storage().nbytes():
                self.test.assertEqual((left.stride(), left.storage_offset()),
                                      (right.stride(), right.storage_offset()), path)

    def parts(self, left, right, path):
        if isinstance(left, torch.Tensor) and right.device.type == "meta":
            self.check_tensor(left, right, path)
            return []
        return super().parts(left, right, path)


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def archives(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.pt"))


def storage_bytes(path):
    with zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist() if re.fullmatch(r"[^/]+/data/\d+", info.filename))


class StripTest(OracleTest):

    def strip(self, source, output, keep, *options):
        return self.run_well("ckpt-pack", output, "strip", source, output, "--keep", keep, *options)

    def strip_case(self, case, output, keep):
        return self.strip(case.load_dir, output, keep, "--tag", case.facts["tag"])

    def tag_folder(self, case, output):
        return output / case.facts["tag"]

    def assert_same_files_beside(self, case, output):
        """Files that are not an archive of the tag are copied byte for byte."""
        for path in sorted(case.load_dir.rglob("*")):
            name = path.relative_to(case.load_dir)
            in_tag = name.parts[0] == case.facts["tag"]
            if path.is_dir() or (in_tag and path.suffix in (".pt", ".swp")) or name.name == "latest":
                continue
            self.assertEqual((output / name).read_bytes(), path.read_bytes(), name)
        self.assertEqual((output / "latest").read_text(), case.facts["tag"])


class WeightsTest(StripTest):

    def weights(self, source, output, tag):
        done = run_tool("zero-to-fp32", source, output, "--safe-serialization", "--tag", tag)
        return done, {path.name: path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()}

    def test_weights_come_out_bit_for_bit_as_they_did_before(self):
        compared = 0
        for case in oracle.all_cases() + oracle.model_parallel_cases():
            with self.each_case(case) as folder:
                before, expected = self.weights(case.load_dir, folder / "before", case.facts["tag"])
                done = run_tool("ckpt-pack", "strip", case.load_dir, folder / "stripped", "--keep", "weights", "--tag",
                                case.facts["tag"])
                if before.returncode != 0:
                    # A user who cannot get at the weights now must not throw away files that may help.
                    self.assertEqual(done.returncode, before.returncode, done.stderr)
                    self.assertFalse((folder / "stripped").exists())
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                after, found = self.weights(folder / "stripped", folder / "after", case.facts["tag"])
                self.assertEqual(after.returncode, 0, after.stderr)
                self.assertEqual(sorted(found), sorted(expected))
                for name, content in expected.items():
                    self.assertEqual(found[name], content, name)
                compared += 1
        self.require(compared, "cases")

    def test_exactly_the_states_and_what_masters_replace_is_dropped(self):
        checked = 0
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                self.strip_case(case, folder / "out", "weights")
                self.assert_same_files_beside(case, folder / "out")
                old, new = case.tag_folder, self.tag_folder(case, folder / "out")
                self.assertEqual(archives(new), archives(old))
                for name in archives(old):
                    self.check_file(case, old / name, new / name)
                    checked += 1
        self.require(checked, "files")

    def check_file(self, case, old, new):
        left, right = load(old), load(new)
        self.assertEqual(right.pop("dsckpt_stripped"), "weights")
        told = right.get("shared_params")
        if told is not None and left.get("shared_params") != told:
            self.assertLessEqual((left["shared_params"] or {}).items(), told.items())
            left["shared_params"] = told
        comparison = Stripped(self)
        # Sums of other objects, since it was replaced in one of them.
        comparison.check({**left, "shared_params": None}, {**right, "shared_params": None})
        expected = []
        for path, tensor in self.tensors_of(left):
            if re.match(r"root\['(optimizer_state_dict|optimizer)'\].*\['state'\]\[\d+\]\['(?!step'\])", path) or \
                    re.match(r"root\['optimizer_state_dict'\]\['base_optimizer_state'\]\[\d+\]\['(?!step'\])", path):
                expected.append(path)
            name = re.fullmatch(r"root\['module'\]\['(.*)'\]", path)
            if name and case.stage > 0 and tensor.numel() > 0:
                owner = case.tied.get(name.group(1), name.group(1))
                if owner in case.masters:
                    expected.append(path)
        self.assertEqual(sorted(comparison.dropped), sorted(expected))
        kept = sum(value.untyped_storage().nbytes() for value in {
            value.untyped_storage().data_ptr(): value for _, value in self.tensors_of(right)
            if value.device.type != "meta" and value.numel() > 0}.values())
        self.assertEqual(storage_bytes(new), kept)

    @staticmethod
    def tensors_of(root):
        found, todo = [], [("root", root)]
        while todo:
            path, value = todo.pop()
            if isinstance(value, torch.Tensor):
                found.append((path, value))
            elif isinstance(value, dict):
                todo += [(f"{path}[{key!r}]", item) for key, item in value.items()]
            elif isinstance(value, (list, tuple)):
                todo += [(f"{path}[{i}]", item) for i, item in enumerate(value)]
        return found

    def test_deepspeed_reads_the_same_weights(self):
        jobs = []
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            for case in oracle.all_cases():
                if case.expected("fp32") is None:
                    continue
                folder = scratch / case.name
                self.strip_case(case, folder / "stripped", "weights")
                for name, source in [("before", case.load_dir), ("after", folder / "stripped")]:
                    jobs.append(json.dumps({"folder": str(source), "tag": case.facts["tag"],
                                            "out": str(folder / f"{name}.safetensors")}))
            self.require(jobs, "cases that DeepSpeed reads")
            done = subprocess.run([sys.executable, "-c", ANSWERS], input="\n".join(jobs), text=True,
                                  capture_output=True, timeout=1200)
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            for folder in sorted(scratch.iterdir()):
                with self.subTest(case=folder.name):
                    self.assertEqual((folder / "after.safetensors").read_bytes(),
                                     (folder / "before.safetensors").read_bytes())

    def test_four_bytes_a_parameter_are_left(self):
        for name, bytes_each in [("z2_bf16_w4", 4), ("z3_bf16_w2", 4), ("z1_fp32_w2", 4), ("z0_bf16_w2", 6)]:
            for case in [each for each in oracle.all_cases() if each.name == name]:
                with self.each_case(case) as folder:
                    self.strip_case(case, folder / "out", "weights")
                    stored = sum(storage_bytes(path) for path in (folder / "out").rglob("*.pt"))
                    elements = sum(value.numel() for value in case.masters.values())
                    # Padding, buffers, step counts, random numbers of a client's.
                    self.assertLess(stored, 1.02 * bytes_each * elements + 2000)
                    self.assertGreaterEqual(stored, bytes_each * elements)

    def test_whoever_needs_the_states_is_told_where_they_are(self):
        tried = 0
        for case in oracle.all_cases() + oracle.model_parallel_cases():
            with self.each_case(case) as folder:
                done = run_tool("ckpt-pack", "strip", case.load_dir, folder / "out", "--keep", "weights", "--tag",
                                case.facts["tag"])
                if done.returncode != 0:
                    continue
                tried += 1
                tag = ["--tag", case.facts["tag"]]
                for tool, *arguments in [("reshard", folder / "out", folder / "no", "--dp", 1, *tag),
                                         ("zero-to-fp32", folder / "out", folder / "no", "--states", *tag),
                                         ("to-universal", "--input_folder", folder / "out",
                                          "--output_folder", folder / "no", *tag)]:
                    done = run_tool(tool, *arguments)
                    self.assertEqual(done.returncode, 3, (tool, done.stderr))
                    self.assertIn("was stripped to its weights by ckpt-pack strip", done.stderr.split("error:")[1])
                    self.assertFalse((folder / "no").exists())
        self.require(tried, "cases")

    def test_inspect_lists_and_verifies_what_is_left(self):
        verified = 0
        for case in oracle.all_cases() + oracle.model_parallel_cases():
            with self.each_case(case) as folder:
                tag = ["--tag", case.facts["tag"]]
                done = run_tool("ckpt-pack", "strip", case.load_dir, folder / "out", "--keep", "weights", *tag)
                if done.returncode != 0:
                    continue
                listed = [run_tool("ckpt-inspect", "list", source, "--json", *tag)
                          for source in (case.load_dir, folder / "out")]
                tensors = [{tensor["name"]: (tensor.get("kind"), tensor["dtype"], tensor["shape"],
                                             tensor.get("alias_of"))
                            for tensor in json.loads(each.stdout)["data"]["tensors"]} for each in listed]
                self.assertEqual(tensors[0], tensors[1])
                states = run_tool("ckpt-inspect", "list", folder / "out", "--states", "--json", *tag)
                self.assertEqual(states.returncode, 0, states.stderr)
                self.assertEqual([each for each in json.loads(states.stdout)["data"]["tensors"] if each.get("state")],
                                 [])
                summary = run_tool("ckpt-inspect", folder / "out", "--json", *tag)
                self.assertEqual(summary.returncode, 0, summary.stderr)
                kinds = {each["kind"] for each in json.loads(summary.stdout)["data"]["kinds"]}
                self.assertFalse(kinds & {"exp_avg", "exp_avg_sq", "unreachable"}, kinds)
                before, after = [run_tool("ckpt-inspect", "verify", source, "--finite", *tag)
                                 for source in (case.load_dir, folder / "out")]
                if before.returncode == 0:
                    self.assertEqual(after.returncode, 0, after.stdout)
                    verified += 1
        self.require(verified, "healthy cases")

    def test_a_universal_checkpoint_keeps_its_masters(self):
        compared = verified = 0
        for case in oracle.all_cases() + oracle.model_parallel_cases():
            if not re.search("full|autotp2_dp2|moe_ep2|autoep|zerodim|muon", case.name):
                continue
            with self.each_case(case) as folder:
                done = run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder",
                                folder / "u" / "step_universal", "--no_strict", "--inject_missing_state", "--tag",
                                case.facts["tag"])
                if done.returncode != 0:
                    continue
                self.strip(folder / "u", folder / "out", "weights")
                self.assertEqual((folder / "out" / "latest_universal").read_text(), "step_universal")
                for name in ("u", "out"):
                    self.convert(folder / name, folder / f"weights_{name}", "--safe-serialization")
                self.assertEqual((folder / "weights_u" / "model.safetensors").read_bytes(),
                                 (folder / "weights_out" / "model.safetensors").read_bytes())
                for path in (folder / "out").rglob("exp_avg*.pt"):
                    self.assertEqual(storage_bytes(path), 0, path)
                if run_tool("ckpt-inspect", "verify", folder / "u").returncode == 0:
                    done = run_tool("ckpt-inspect", "verify", folder / "out")
                    self.assertEqual(done.returncode, 0, done.stdout)
                    verified += 1
                done = run_tool("reshard", folder / "out", folder / "no", "--dp", 1)
                self.assertEqual(done.returncode, 3)
                self.assertIn("was stripped to its weights", done.stderr)
                compared += 1
        self.require(compared, "universal checkpoints")
        self.require(verified, "healthy universal checkpoints")

    def test_what_is_stripped_again_stays_as_it_is(self):
        for case in oracle.all_cases():
            if not re.fullmatch("z2_bf16_full_w3|z2_fp32_full_w3|z3_fp32_full_w2|z0_bf16_w2", case.name):
                continue
            with self.each_case(case) as folder:
                self.strip_case(case, folder / "once", "weights")
                for keep in ("weights", "resume"):
                    self.strip_case_again(folder, keep, case.facts["tag"])

    def strip_case_again(self, folder, keep, tag):
        output = self.strip(folder / "once", folder / keep, keep, "--tag", tag)
        for path in (folder / "once").rglob("*"):
            if path.is_file():
                self.assertEqual((output / path.relative_to(folder / "once")).read_bytes(), path.read_bytes(), path)


class ResumeTest(StripTest):

    def test_every_file_loads_as_the_same_objects(self):
        files = 0
        for case in oracle.all_cases() + oracle.model_parallel_cases():
            with self.each_case(case) as folder:
                done = run_tool("ckpt-pack", "strip", case.load_dir, folder / "out", "--keep", "resume", "--tag",
                                case.facts["tag"])
                if done.returncode != 0:
                    # Such as parameters whose slices nothing tells how to join.
                    self.assertNotEqual(run_tool("zero-to-fp32", case.load_dir, folder / "w", "--tag",
                                                 case.facts["tag"]).returncode, 0, done.stderr)
                    continue
                self.assert_same_files_beside(case, folder / "out")
                new = self.tag_folder(case, folder / "out")
                self.assertEqual(archives(new), archives(case.tag_folder))
                for name in archives(new):
                    self.compare(case.tag_folder / name, new / name)
                    files += 1
        self.require(files, "files")

    def compare(self, old, new):
        comparison = Stripped(self)
        comparison.check(load(old), load(new))
        self.assertEqual(comparison.dropped, [])
        return comparison

    def test_bloat_goes_and_values_stay(self):
        for name in ("z2_bf16_w4", "z3_fp32_w3", "z0_bf16_w2"):
            for case in [each for each in oracle.all_cases() if each.name == name]:
                with self.each_case(case) as folder:
                    self.check_bloated(case, folder)

    def check_bloated(self, case, folder):
        shutil.copytree(case.load_dir, folder / "in")
        tag = folder / "in" / case.facts["tag"]
        model = sorted(tag.glob("*model_states.pt"))[0]
        model.chmod(0o644)
        state = load(model)
        big = torch.randn(1000, 100)
        slots = torch.arange(50_000)
        state.update({
            "row": big[3],                   # one part of a large tensor
            "rows": [big[3:5], big[4]],      # that overlaps with another
            "column": torch.randn(1000, 100)[:, 7],  # alone, with gaps
            "block": torch.randn(1000, 100)[10:20, 5:9].t(),
            "twice": [slots[100:110], slots[40_000:40_010:3], slots[100:110]],
            "expanded": torch.randn(5000)[17:18].expand(3, 4),
            "scalar": torch.randn(5000)[4321],
            "nothing": torch.randn(5000)[20:20],
            "parameter": torch.nn.Parameter(torch.randn(70, 80)[3:4]),
            "whole": torch.randn(10),
            "kept": [torch.randn(3000)[5:7], ],
            "bytes": torch.randn(3000).to(torch.float8_e4m3fn)[10:20],
        })
        keeper = torch.randn(2000)
        state["storage"] = [keeper[1:3], keeper._typed_storage()]
        if "head.weight" in state["module"]:
            sixteen = state["module"]["head.weight"]
            state["module"]["head.weight"] = torch.cat([torch.zeros_like(sixteen)] * 9 + [sixteen])[-len(sixteen):]
        torch.save(state, model)
        before = model.stat().st_size
        self.strip(folder / "in", folder / "out", "resume", "--tag", case.facts["tag"])
        stripped = folder / "out" / case.facts["tag"] / model.name
        self.compare(model, stripped)
        self.assertLess(stripped.stat().st_size, before - 1_500_000)
        found = load(stripped)
        sizes = {key: value.untyped_storage().nbytes() for key, value in found.items()
                 if isinstance(value, torch.Tensor)}
        self.assertEqual(sizes, {**sizes, "row": 4 * 200, "column": 4000, "block": 160, "expanded": 4, "scalar": 4,
                                 "nothing": 0, "parameter": 320, "whole": 40, "bytes": 10})
        self.assertEqual(found["block"].stride(), (1, 4))
        self.assertEqual(found["twice"][0].untyped_storage().nbytes(), 8 * 10 + 8 * 4)
        self.assertEqual(found["storage"][0].untyped_storage().nbytes(), 8000)
        summary = run_tool("ckpt-inspect", folder / "out", "--json", "--tag", case.facts["tag"])
        kinds = {each["kind"]: each["bytes"] for each in json.loads(summary.stdout)["data"]["kinds"]}
        # The storage that is saved itself has it, too.
        self.assertEqual(kinds["unreachable"], 8000 - 8)

    def test_records_that_nothing_refers_to_go(self):
        case = [each for each in oracle.all_cases() if each.name == "z2_bf16_w4"]
        if not case:
            self.skipTest("not selected")
        case = case[0]
        with self.each_case(case) as folder:
            shutil.copytree(case.load_dir, folder / "in")
            model = folder / "in" / case.facts["tag"] / "mp_rank_00_model_states.pt"
            model.chmod(0o644)
            with zipfile.ZipFile(model, "a") as archive:
                archive.writestr("mp_rank_00_model_states/data/999", bytes(100_000))
            self.strip(folder / "in", folder / "out", "resume", "--tag", case.facts["tag"])
            stripped = folder / "out" / case.facts["tag"] / model.name
            self.assertLess(stripped.stat().st_size, model.stat().st_size - 100_000)
            self.compare(model, stripped)

    def test_dry_run_says_what_the_run_writes(self):
        for case in oracle.all_cases():
            if case.name not in ("z2_bf16_w4", "z3_bf16_nvme_w2"):
                continue
            for keep in ("weights", "resume"):
                with self.each_case(case) as folder:
                    arguments = ["strip", case.load_dir, folder / "out", "--keep", keep, "--tag", case.facts["tag"],
                                 "--json"]
                    done = run_tool("ckpt-pack", *arguments, "--dry-run")
                    self.assertFalse((folder / "out").exists())
                    plan = json.loads(done.stdout)["data"]
                    run_tool("ckpt-pack", *arguments)
                    self.assertEqual({file["path"]: file["after"] for file in plan["files"] if file["after"]},
                                     {str(path.relative_to(folder / "out")): path.stat().st_size
                                      for path in (folder / "out").rglob("*") if path.is_file()})
                    sizes = {str(path.relative_to(case.load_dir)): path.stat().st_size
                             for path in case.load_dir.rglob("*") if path.is_file()}
                    self.assertEqual({file["path"]: file["before"] for file in plan["files"]}, sizes)
                    self.assertEqual(plan["bytes_after"], sum(file["after"] for file in plan["files"]))


if __name__ == "__main__":
    tools.main()
