"""FSDP2 trains and saves with torch.distributed.checkpoint, and DeepSpeed goes on. It loads the shards of
reshard, made with an example or with the configuration alone, and the universal checkpoint of to-universal.
Masters and states are the same, and so are the losses, as FSDP2 has them when it goes on.
"""
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import unittest

import dcp_writer
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh

WORLD = 2
SCALE = (1,)  # DeepSpeed does not take parameters without dimensions


def other_net(seed, frozen):
    """With trained parameters of its own: all of them have to come from the checkpoint."""
    torch.manual_seed(5)
    net = dcp_writer.Net(SCALE, frozen)
    torch.manual_seed(seed)
    for param in net.parameters():
        if param.requires_grad:
            param.data.normal_()
    return net


def run_tool(name, *arguments):
    return subprocess.run([pathlib.Path(os.environ["DSCKPT_BIN"]) / name, *map(str, arguments)], capture_output=True,
                          text=True, check=False)


def tool(name, *arguments):
    done = run_tool(name, *arguments)
    assert done.returncode == 0, f"{name}: {done.stderr}"


def check_schedules(state):
    """The learning rate schedules of both frameworks take it, and are where they were after so many steps."""
    from deepspeed.runtime.lr_schedules import WarmupLR
    param = torch.nn.Parameter(torch.zeros(1))
    for made in (lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (step + 1)),
                 lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10), lambda o: WarmupLR(o, 0.0, 1.0, 10)):
        expected, loaded = made(torch.optim.SGD([param], lr=1.0)), made(torch.optim.SGD([param], lr=1.0))
        for _ in range(dcp_writer.STEPS):
            expected.step()
        loaded.load_state_dict(dict(state))
        if isinstance(expected, torch.optim.lr_scheduler.CosineAnnealingLR):  # goes on from the optimizer's own
            for group, other in zip(loaded.optimizer.param_groups, expected.optimizer.param_groups):
                group["lr"] = other["lr"]
        expected.step()
        loaded.step()
        rates = [[group["lr"] for group in each.optimizer.param_groups] for each in (loaded, expected)]
        assert rates[0] == rates[1], (type(expected), rates)


class Run:

    def __init__(self, folder, stage, frozen, precision):
        self.folder = folder
        self.stage = stage
        self.frozen = frozen
        self.precision = precision
        self.found = {}

    def engine(self, seed, universal=False):
        import deepspeed
        net = other_net(seed, self.frozen)
        groups = dcp_writer.groups_of(net)
        if universal:  # hyper-parameters are those of the new run
            optimizer = torch.optim.AdamW(groups, betas=(0.8, 0.95), eps=1e-7)
        else:
            optimizer = torch.optim.AdamW([{**group, "lr": 0.5, "weight_decay": 0.25} for group in groups])
        config = {**self.config(), "checkpoint": {"load_universal": universal}}
        return deepspeed.initialize(model=net, optimizer=optimizer, config=config)[0]

    def config(self):
        config = {"train_micro_batch_size_per_gpu": 4, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0,
                  "zero_optimization": {"stage": self.stage}}
        if self.precision != "fp32":
            config[self.precision] = {"enabled": True}
        return config

    def train(self, engine, first):
        losses = []
        for step in range(first, first + dcp_writer.STEPS):
            loss = engine(dcp_writer.batch(step))
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        return losses

    def fsdp(self):
        """Trains and saves. Its state then, and its losses when it goes on."""
        net, optimizer = dcp_writer.build(init_device_mesh("cpu", (WORLD,)), scale_shape=SCALE,
                                          frozen=self.frozen)
        dcp_writer.train(net, optimizer)
        state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer)}
        dcp.save(state, checkpoint_id=self.folder / "fsdp")
        flat = get_optimizer_state_dict(net, optimizer, options=dcp_writer.FLAT)
        dcp.save({**state["model"], "optimizer": flat}, checkpoint_id=self.folder / "flat")
        whole = {f"{name} fp32": value for name, value in state["model"].items()}
        for name, states in state["optim"]["state"].items():
            whole.update({f"{name} {key}": value for key, value in states.items() if key != "step"})
        whole = {key: value.full_tensor() if hasattr(value, "full_tensor") else value for key, value in whole.items()}
        return ({key: value.detach().clone() for key, value in whole.items()},
                dcp_writer.train(net, optimizer, dcp_writer.STEPS))

    def held(self, engine):
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
        held = {}
        for name, param in engine.module.named_parameters():
            if not param.requires_grad:
                continue
            held[f"{name} fp32"] = safe_get_full_fp32_param(param)
            for key in ("exp_avg", "exp_avg_sq"):
                held[f"{name} {key}"] = safe_get_full_optimizer_state(param, key)
        return held

    def run(self):
        expected, losses = self.fsdp()
        if self.precision != "fp32":  # whose losses are other ones
            if dist.get_rank() == 0:
                self.reshard_by_config()
            dist.barrier()
            for name in ("configured", "flattened"):
                self.load(name, expected)
            return
        like = self.engine(6)
        self.train(like, 0)
        like.save_checkpoint(str(self.folder / "like"), tag="like")
        dist.barrier()
        if dist.get_rank() == 0:
            tool("reshard", self.folder / "fsdp", self.folder / "native", "--like", self.folder / "like", "--dp", WORLD)
            (self.folder / "universal").mkdir()
            tool("to-universal", self.folder / "fsdp", self.folder / "universal" / "start")
            self.reshard_by_config()
        dist.barrier()
        # Stage 3 is refused for a model with frozen parameters.
        configured = () if self.stage == 3 and self.frozen else ("configured", "flattened")
        for name in ("native", "universal", *configured):
            engine = self.load(name, expected)
            self.found[name].update(expected=losses, losses=self.train(engine, dcp_writer.STEPS))

    def load(self, name, expected):
        """The engine that goes on, once what it holds has been compared."""
        engine = self.engine(7, name == "universal")
        path, _ = engine.load_checkpoint(str(self.folder / name))
        assert path, name
        if self.stage < 3:  # the states are linked to parameters in the first step
            engine.optimizer._lazy_init_hp_params_optimizer_state()
        held = self.held(engine)
        wrong = [key for key, value in held.items()
                 if not torch.equal(value.reshape(expected[key].shape), expected[key])]
        self.found[name] = {"compared": len(held), "wrong": wrong, "expected": [], "losses": []}
        return engine

    def reshard_by_config(self):
        path = self.folder / "ds_config.json"
        path.write_text(json.dumps(self.config()))
        for source, name in (("fsdp", "configured"), ("flat", "flattened")):
            out = self.folder / name
            options = self.folder / source, out, "--ds-config", path, "--dp", WORLD
            if self.stage == 3 and self.frozen:
                done = run_tool("reshard", *options)
                assert done.returncode != 0, done.stdout
                assert "fsdp: table: is not trained" in done.stderr or "flat: table" in done.stderr, done.stderr
                assert "--like CHECKPOINT" in done.stderr, done.stderr
                assert not out.exists()
                continue
            tool("reshard", *options)
            tag = (out / "latest").read_text()
            assert tag == f"global_step{dcp_writer.STEPS}", tag
            saved = torch.load(next((out / tag).glob("*model_states.pt")), weights_only=True)
            check_schedules(saved["lr_scheduler"])


def worker(rank, port, folder, stage, frozen, precision):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(WORLD))
    torch.set_num_threads(1)
    import deepspeed
    deepspeed.init_distributed(dist_backend="gloo")
    run = Run(folder, stage, frozen, precision)
    run.run()
    (folder / f"found{rank}.json").write_text(json.dumps(run.found))
    dist.barrier()


class DcpResumeTest(unittest.TestCase):

    def check(self, stage, frozen, precision):
        with tempfile.TemporaryDirectory() as name, socket.socket() as free:
            folder = pathlib.Path(name)
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            mp.spawn(worker, (port, folder, stage, frozen, precision), nprocs=WORLD)
            for rank in range(WORLD):
                for way, found in json.loads((folder / f"found{rank}.json").read_text()).items():
                    with self.subTest(way=way, rank=rank):
                        self.assertEqual((found["compared"], found["wrong"]), (36, []))
                        losses = list(zip(found["losses"], found["expected"]))
                        # DeepSpeed's loader gives all sub-groups of stage 3 one tensor of steps, which each of
                        # them then counts (load_hp_checkpoint_state_from_checkpoint_dir_stage3).
                        for loss, expected in losses[:1] if (way, stage) == ("universal", 3) else losses:
                            self.assertLess(abs(loss - expected), 1e-5 * max(1, abs(expected)))

    def test_deepspeed_goes_on_where_fsdp2_stopped(self):
        for stage, frozen in ((1, True), (2, True), (3, True), (3, False)):
            with self.subTest(stage=stage, frozen=frozen):
                self.check(stage, frozen, "fp32")

    def test_masters_and_states_of_bf16_are_those_of_fsdp2(self):  # fp16 it does not take on a CPU
        for stage in (1, 2, 3):
            with self.subTest(stage=stage):
                self.check(stage, False, "bf16")


if __name__ == "__main__":
    unittest.main()
