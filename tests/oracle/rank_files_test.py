"""A file of each rank with its parts of the state_dict: DTensors of FSDP2 on meshes of every shape, ShardedTensors of
FSDP1. Put together they are what torch's own layout of the parts says, bit for bit.

SEED and ROUNDS make other meshes, and more of them.
"""
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

import tools
import torch
import torch.distributed as dist
from oracle import OracleTest, load_bin
from safetensors.torch import load_file
from tools import run_tool
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

WORKER = pathlib.Path(__file__).with_name("rank_files_worker.py")
SHAPES = [(37, 12), (8, 8), (5,), (1, 3), (3, 0), (16, 4, 6), ()]


def placements_of(chance, shape, mesh):
    """Placements that torch's programs have: each dimension of the mesh cuts one of the tensor, or none."""
    if len(mesh) == 2 and shape and len(shape) > 1 and all(size % (mesh[0] * mesh[1]) == 0 for size in shape[:1]):
        if chance.random() < 0.4:  # FSDP2 after tensor parallelism
            return (_StridedShard(0, split_factor=mesh[1]), Shard(0))
    placements = []
    for _ in mesh:
        dims = [None, *range(len(shape))]
        dim = chance.choice(dims)
        placements.append(Replicate() if dim is None else Shard(dim))
    return tuple(placements)


class RankFilesTest(OracleTest):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-ranks-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.ranks = self.folder / "ranks"
        self.ranks.mkdir()

    def write(self, folder, name, mesh_shape, values, placements, states):
        """The files that each rank of such a mesh would save. One process stands in for all, since no rank
        needs another's."""
        ranks = torch.Size(mesh_shape).numel()
        for rank in range(ranks):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
            try:
                mesh = init_device_mesh("cpu", mesh_shape)

                def part(value, how):
                    shape, offset = compute_local_shape_and_global_offset(value.shape, mesh, how)
                    local = value[tuple(slice(o, o + s) for o, s in zip(offset, shape))].clone()
                    return DTensor.from_local(local, mesh, how, run_check=False, shape=value.shape, stride=value.stride())

                model = {key: part(value, placements[key]) for key, value in values.items()}
                model["steps_seen"] = torch.tensor(7)
                torch.save(model, folder / name.format(kind="model", ranks=ranks, rank=rank))
                if states:
                    names = list(values)
                    state = {i: {"step": torch.tensor(5.0),
                                 "exp_avg": part(values[key] * 2, placements[key]),
                                 "exp_avg_sq": part(values[key] * 3, placements[key])} for i, key in enumerate(names)}
                    group = {"lr": 0.1, "params": list(range(len(names)))}
                    torch.save({"state": state, "param_groups": [group]},
                               folder / name.format(kind="optim", ranks=ranks, rank=rank))
            finally:
                dist.destroy_process_group()
        return ranks

    def assert_same(self, found, values):
        self.assertEqual(set(found), {*values, "steps_seen"})
        for key, value in values.items():
            self.assertEqual(found[key].shape, value.shape, key)
            self.assertTrue(torch.equal(found[key], value), key)

    def test_dtensors_on_meshes_of_every_shape(self):
        chance = random.Random(int(os.environ.get("SEED", "1")))
        meshes = [(1,), (2,), (3,), (8,), (2, 2), (2, 4), (3, 2), (1, 4)]
        for number in range(int(os.environ.get("ROUNDS", "10"))):
            mesh = meshes[number % len(meshes)]
            values = {f"layer{i}.weight": torch.randn(shape) for i, shape in enumerate(SHAPES)}
            placements = {key: placements_of(chance, value.shape, mesh) for key, value in values.items()}
            with self.subTest(number=number, mesh=mesh, placements=placements):
                folder = self.folder / str(number)
                folder.mkdir()
                states = number % 2 == 0
                self.write(folder, "{kind}_world_size_{ranks}_rank_{rank}.pt", mesh, values, placements, states)
                out = self.folder / f"out{number}"
                some = next(folder.glob("model_*_rank_0.pt"))
                for given in (folder, some):
                    shutil.rmtree(out, ignore_errors=True)
                    ran = run_tool("zero-to-fp32", given, out, *(["--states"] if states else []))
                    self.assertEqual(ran.returncode, 0, ran.stderr)
                    self.assert_same(load_bin(out / "pytorch_model.bin"), values)
                if states:
                    for key, factor in (("exp_avg", 2), ("exp_avg_sq", 3)):
                        found = load_file(out / "optimizer_states" / f"{key}.safetensors")
                        for name, value in values.items():
                            self.assertTrue(torch.equal(found[name], value * factor), (key, name))
                verified = run_tool("ckpt-inspect", "verify", folder)
                self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    def test_a_rank_that_is_missing_is_named(self):
        values = {"w": torch.randn(7, 3), "whole": torch.randn(4)}
        placements = {"w": (Shard(0),), "whole": (Replicate(),)}
        self.write(self.ranks, "{kind}_world_size_{ranks}_rank_{rank}.pt", (3,), values, placements, True)
        (self.ranks / "model_world_size_3_rank_1.pt").unlink()
        for tool in (["zero-to-fp32", self.ranks, self.folder / "out"],
                     ["to-dcp", self.ranks, self.folder / "dcp", "--dp", "2"],
                     ["to-universal", "--input-folder", self.ranks, "--output-folder", self.folder / "u" / "u"]):
            ran = run_tool(*tool)
            self.assertEqual(ran.returncode, 3, (tool, ran.stderr))
            self.assertIn("model_world_size_3_rank_1.pt", ran.stderr)
        verified = run_tool("ckpt-inspect", "verify", self.ranks)
        self.assertEqual(verified.returncode, 1)
        self.assertIn("model_world_size_3_rank_1.pt", verified.stdout)
        ran = run_tool("zero-to-fp32", self.ranks, self.folder / "left", "--allow-missing")
        self.assertEqual(ran.returncode, 1, ran.stderr)
        left = load_bin(self.folder / "left" / "pytorch_model.bin")
        self.assertEqual(set(left), {"whole", "steps_seen"})
        self.assertTrue(torch.equal(left["whole"], values["whole"]))

    def test_replicas_that_differ_are_refused(self):
        values = {"w": torch.randn(6, 2)}
        self.write(self.ranks, "{kind}_world_size_{ranks}_rank_{rank}.pt", (2,), values, {"w": (Replicate(),)}, False)
        path = self.ranks / "model_world_size_2_rank_1.pt"
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
        try:
            mesh = init_device_mesh("cpu", (2,))
            state = {"w": DTensor.from_local(values["w"] + 1, mesh, (Replicate(),), run_check=False),
                     "steps_seen": torch.tensor(7)}
            torch.save(state, path)
        finally:
            dist.destroy_process_group()
        ran = run_tool("zero-to-fp32", self.ranks, self.folder / "out")
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertIn("replicas of 'w'", ran.stderr)

    def run_engines(self, kind):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subprocess.run([sys.executable, WORKER, kind, self.folder], check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=300)
        return torch.load(self.folder / "truth" / "model.pt"), torch.load(self.folder / "truth" / "states.pt")

    def assert_engine(self, kind):
        values, states = self.run_engines(kind)
        ranks = self.ranks
        ran = run_tool("ckpt-inspect", "scan", ranks)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        out = self.folder / "out"
        ran = run_tool("zero-to-fp32", ranks, out, "--states")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        found = load_bin(out / "pytorch_model.bin")
        self.assertEqual(set(found), set(values))
        for name, value in values.items():
            self.assertTrue(torch.equal(found[name], value), name)
        for key in ("exp_avg", "exp_avg_sq"):
            found = load_file(out / "optimizer_states" / f"{key}.safetensors")
            for name, value in states[key].items():
                self.assertTrue(torch.equal(found[name], value), (key, name))
        # And in the other formats: the same values.
        ran = run_tool("to-dcp", ranks, self.folder / "dcp", "--dp", "3")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        again = self.folder / "again"
        ran = run_tool("zero-to-fp32", self.folder / "dcp", again)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for name, value in load_bin(again / "pytorch_model.bin").items():
            self.assertTrue(torch.equal(value, values[name]), name)
        ran = run_tool("to-universal", "--input-folder", ranks, "--output-folder", self.folder / "u" / "universal")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn(str(self.folder / "u"), ran.stderr + ran.stdout)
        for name, value in values.items():
            file = self.folder / "u" / "universal" / "zero" / name / "fp32.pt"
            if file.exists():
                self.assertTrue(torch.equal(torch.load(file, weights_only=False)["param"], value), name)

    def test_an_fsdp2_run(self):
        self.assert_engine("fsdp2")

    def test_an_fsdp1_run(self):
        self.assert_engine("fsdp1")

    def test_flat_parameters_are_refused(self):
        self.run_engines("fsdp1")
        ran = run_tool("zero-to-fp32", self.folder / "local", self.folder / "out")
        self.assertEqual(ran.returncode, 3, ran.stderr)
        self.assertIn("LOCAL_STATE_DICT", ran.stderr)


if __name__ == "__main__":
    tools.main()
