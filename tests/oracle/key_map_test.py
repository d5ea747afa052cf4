"""--key-map against torch and DeepSpeed: a model is written otherwise, and its training goes on."""
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import tools
from tools import run_tool

RULES = r"""
^(.*)\.gate_up\.weight$ => \1.gate.weight, \1.up.weight | chunk 0
^(.*)\.experts\.\d+\.weight$ => \1.experts.w | stack 0
^norm => final_norm
"""

WORKER = r"""
import os, sys
import torch, deepspeed

torch.manual_seed(0)
kind, stage, folder, result = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(3, 8, 6))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        if kind == "old":
            self.gate_up = torch.nn.Linear(8, 12, bias=False)
            self.experts = torch.nn.ModuleList(torch.nn.Linear(6, 8, bias=False) for _ in range(3))
        else:
            if kind == "other":  # the same, in another order
                self.experts = Experts()
            self.gate = torch.nn.Linear(8, 6, bias=False)
            self.up = torch.nn.Linear(8, 6, bias=False)
            if kind == "new":
                self.experts = Experts()

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1) if kind == "old" else (self.gate(x), self.up(x))
        h = torch.tanh(gate) * up
        weights = [e.weight for e in self.experts] if kind == "old" else self.experts.w
        return x + sum((i + 1) * h @ w.T for i, w in enumerate(weights))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        name = "norm" if kind == "old" else "final_norm"
        setattr(self, name, torch.nn.LayerNorm(8))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return (self.norm if kind == "old" else self.final_norm)(x).square().mean()


engine, _, _, _ = deepspeed.initialize(model=Net(), config={
    "train_batch_size": 4, "zero_optimization": {"stage": stage},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}})


def step(i):
    loss = engine(torch.randn(4, 8, generator=torch.Generator().manual_seed(i)))
    engine.backward(loss)
    engine.step()
    return loss.item(), engine.get_lr()[0]


if kind == "old" or not os.path.exists(folder):
    for i in range(3):
        step(i)
    engine.save_checkpoint(folder)
else:
    path, _ = engine.load_checkpoint(folder)
    assert path
torch.save([engine.global_steps, *(step(i) for i in range(3, 6))], result)
"""


class ProgramsTest(unittest.TestCase):

    def worker(self, folder, kind, stage, checkpoint):
        script, result = folder / "worker.py", folder / f"{kind}.pt"
        script.write_text(WORKER)
        environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": "0", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            environment["MASTER_PORT"] = str(free.getsockname()[1])
        done = subprocess.run([sys.executable, script, kind, str(stage), checkpoint, result], env=environment,
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return torch.load(result)

    def test_training_goes_on_in_a_model_that_is_written_otherwise(self):
        for stage, kind in ((0, "new"), (3, "new"), (2, "other")):
            with self.subTest(stage), tempfile.TemporaryDirectory(prefix="dsckpt-key-map-") as holder:
                folder = pathlib.Path(holder)
                (folder / "rules").write_text(RULES)
                old = self.worker(folder, "old", stage, folder / "ckpt")
                like = []
                if kind == "other":
                    self.worker(folder, kind, stage, folder / "first")
                    like = ["--like", folder / "first"]
                done = run_tool("reshard", folder / "ckpt", folder / "new", "--dp", "1", "--key-map", folder / "rules",
                                *like)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual("--like CHECKPOINT takes the order" in done.stderr, not like, done.stderr)
                new = self.worker(folder, kind, stage, folder / "new")
                self.assertEqual(new[0], old[0])
                for (loss, rate), (wanted, wanted_rate) in zip(new[1:], old[1:]):
                    self.assertEqual(rate, wanted_rate)
                    self.assertAlmostEqual(loss, wanted, delta=1e-6)

    def test_a_universal_checkpoint_is_what_torch_makes_of_the_states(self):
        with tempfile.TemporaryDirectory(prefix="dsckpt-key-map-") as holder:
            folder = pathlib.Path(holder)
            (folder / "rules").write_text(RULES)
            self.worker(folder, "old", 2, folder / "ckpt")
            for name, rules in (("plain", []), ("changed", ["--key-map", folder / "rules"])):
                done = run_tool("to-universal", folder / "ckpt", folder / name, *rules)
                self.assertEqual(done.returncode, 0, done.stderr)

            def read(which, name, key):
                value = torch.load(folder / which / "zero" / name / f"{key}.pt", weights_only=False)
                return value["param"] if isinstance(value, dict) else value
            for layer in ("layers.0", "layers.1"):
                for key in ("fp32", "exp_avg", "exp_avg_sq"):
                    gate, up = read("plain", f"{layer}.gate_up.weight", key).chunk(2)
                    self.assertTrue(torch.equal(read("changed", f"{layer}.gate.weight", key), gate))
                    self.assertTrue(torch.equal(read("changed", f"{layer}.up.weight", key), up))
                    stacked = torch.stack([read("plain", f"{layer}.experts.{i}.weight", key) for i in range(3)])
                    self.assertTrue(torch.equal(read("changed", f"{layer}.experts.w", key), stacked))
                for part in ("gate.weight", "up.weight", "experts.w"):
                    self.assertEqual(read("changed", f"{layer}.{part}", "step"),
                                     read("plain", f"{layer}.gate_up.weight", "step"))
            state = torch.load(folder / "changed/mp_rank_00_model_states.pt", weights_only=False)
            before = torch.load(folder / "plain/mp_rank_00_model_states.pt", weights_only=False)
            self.assertEqual(list(state["module"]), [
                "layers.0.gate.weight", "layers.0.up.weight", "layers.0.experts.w", "layers.1.gate.weight",
                "layers.1.up.weight", "layers.1.experts.w", "final_norm.weight", "final_norm.bias"])
            self.assertTrue(torch.equal(state["module"]["layers.0.up.weight"],
                                        before["module"]["layers.0.gate_up.weight"].chunk(2)[1]))
            self.assertEqual(list(state["param_shapes"][0]), list(state["module"]))
            self.assertEqual(set(state), set(before))

    def test_a_checkpoint_of_torch_is_what_torch_makes_of_the_states(self):
        with tempfile.TemporaryDirectory(prefix="dsckpt-key-map-") as holder:
            folder = pathlib.Path(holder)
            (folder / "rules").write_text(RULES)
            self.worker(folder, "old", 3, folder / "ckpt")
            for name, rules in (("plain", []), ("changed", ["--key-map", folder / "rules"])):
                done = run_tool("to-dcp", folder / "ckpt", folder / name, "--dp", "2", *rules)
                self.assertEqual(done.returncode, 0, done.stderr)
                dcp_to_torch_save(folder / name, folder / f"{name}.pt")
            plain, changed = (torch.load(folder / f"{name}.pt", weights_only=False) for name in ("plain", "changed"))
            experts = [plain["optim"]["state"][f"layers.1.experts.{i}.weight"]["exp_avg"] for i in range(3)]
            self.assertTrue(torch.equal(changed["optim"]["state"]["layers.1.experts.w"]["exp_avg"], torch.stack(experts)))
            self.assertTrue(torch.equal(changed["model"]["layers.1.gate.weight"],
                                        plain["model"]["layers.1.gate_up.weight"].chunk(2)[0]))
            self.assertEqual(changed["optim"]["param_groups"][0]["params"], list(changed["model"]))


if __name__ == "__main__":
    tools.main()
