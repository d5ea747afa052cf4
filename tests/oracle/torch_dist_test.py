"""Megatron-Core's torch_dist: weights, masters and states of all layers, joined from the ranks, as torch has them."""
import json
import os
import pathlib
import re
import shutil
import tempfile
import unittest

import torch
from safetensors.torch import load_file

from tools import run_tool

CASES = sorted((pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "torch_dist").glob("*/case.json"))
STATES = ("exp_avg", "exp_avg_sq")


def key_of(name):
    """The name in torch_dist of a parameter of a layer in Megatron's own specification of it."""
    name = re.sub(r"\.input_layernorm\.(\w+)$", r".self_attention.linear_qkv.layer_norm_\1", name)
    return re.sub(r"\.pre_mlp_layernorm\.(\w+)$", r".mlp.linear_fc1.layer_norm_\1", name)


def truth(folder):
    """name -> what -> tensor; "" is the weight. Experts are stacked."""
    found, experts = {}, {}
    for key, value in load_file(folder / "expected" / "truth.safetensors").items():
        name, _, what = key.partition("|")
        match = re.fullmatch(r"(.*)\.local_experts\.(\d+)\.(.*)", name)
        if match:
            experts.setdefault((f"{match[1]}.experts.{match[3]}", what), {})[int(match[2])] = value
        else:
            found.setdefault(key_of(name), {})[what] = value
    for (name, what), values in experts.items():
        found.setdefault(name, {})[what] = torch.stack([values[i] for i in range(len(values))])
    return found


class TorchDistTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-torch-dist-")
        self.addCleanup(holder.cleanup)
        self.scratch = pathlib.Path(holder.name)

    def run_ok(self, *arguments):
        done = run_tool(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def assert_same(self, found, wanted):
        self.assertEqual(sorted(found), sorted(wanted))
        for name, value in wanted.items():
            self.assertEqual(found[name].dtype, value.dtype, name)
            self.assertTrue(torch.equal(found[name], value), name)

    def each_case(self):
        self.assertEqual(len(CASES), 3)
        for path in CASES:
            case = json.loads(path.read_text())
            with self.subTest(case["name"]):
                yield case, path.parent / case["load_dir"], truth(path.parent)

    def test_weights_and_states(self):
        for case, source, wanted in self.each_case():
            out = self.scratch / case["name"]
            self.run_ok("zero-to-fp32", source, out, "--safe-serialization", "--states")
            value = "master" if case["masters"] else ""
            self.assert_same(load_file(out / "model.safetensors"), {name: each[value] for name, each in wanted.items()})
            for state in STATES:
                self.assert_same(load_file(out / "optimizer_states" / f"{state}.safetensors"),
                                 {name: each[state] for name, each in wanted.items()})

    def test_universal(self):
        for case, source, wanted in self.each_case():
            out = self.scratch / case["name"] / "universal"
            self.run_ok("to-universal", source, out)
            for name, each in wanted.items():
                for key, what in (("fp32", "master" if case["masters"] else ""), *zip(STATES, STATES)):
                    value = torch.load(out / "zero" / name / f"{key}.pt", weights_only=False)
                    value = value["param"] if isinstance(value, dict) else value
                    self.assertTrue(torch.equal(value.reshape(each[what].shape), each[what]), (name, key))
                self.assertEqual(float(torch.load(out / "zero" / name / "step.pt", weights_only=False)), case["step"])

    def test_inspect_and_verify(self):
        for case, source, wanted in self.each_case():
            listed = self.run_ok("ckpt-inspect", "list", source).stdout.splitlines()
            self.assertEqual(sorted(line.split("\t")[0] for line in listed), sorted(wanted))
            self.assertEqual({line.split("\t")[1] for line in listed}, {"trainable"})
            summary = self.run_ok("ckpt-inspect", source).stdout
            self.assertIn("torch-dist", summary)
            self.assertIn(str(case["steps"]), summary)
            self.run_ok("ckpt-inspect", "verify", source)

    def copy(self):
        folder = self.scratch / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(CASES[0].parent / "ckpt", folder)
        return folder

    def refused(self, folder, pattern):
        done = run_tool("to-universal", folder, self.scratch / "refused")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, pattern)
        self.assertFalse((self.scratch / "refused").exists())

    def test_damage(self):
        folder = self.copy()
        (folder / "__0_1.distcp").unlink()
        self.refused(folder, "__0_1.distcp")
        folder = self.copy()
        (folder / "common.pt").write_text("{}")
        self.refused(folder, "common.pt")

    def test_flat_buckets_and_groups_are_named(self):
        def edited(change):
            folder = self.copy()
            path = folder / ".metadata"
            path.write_bytes(change(path.read_bytes()))
            return folder
        # The same length, so that the pickle stays one.
        flat = edited(lambda data: data.replace(b"optimizer.state.exp_avg", b"optimizer.flats.exp_avg"))
        done = run_tool("zero-to-fp32", flat, self.scratch / "flat", "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("of the distributed optimizer's flat buckets are left out", done.stderr)
        self.refused(flat, "has optimizer states in flat buckets")
        some = edited(lambda data: data.replace(b"optimizer.state.exp_avg_sq", b"optimizer.flats.exp_avg_sq"))
        self.refused(some, "has optimizer states in flat buckets")
        folder = self.copy()
        common = torch.load(folder / "common.pt", weights_only=False)
        common["optimizer"]["param_groups"] *= 2
        torch.save(common, folder / "common.pt")
        done = run_tool("to-universal", folder, self.scratch / "groups")
        self.assertIn("no file tells which parameters each has", done.stderr)


if __name__ == "__main__":
    unittest.main()
