"""Accelerate, the Hugging Face Trainer, torchtitan and Lightning under FSDP2. Their saves become shards of
DeepSpeed at stage 3, and these become folders of theirs again. The programs go on from them as if nothing had
happened.

    scripts/python tests/oracle/dcp_programs.py [PROGRAM...]

Accelerate, and the Trainer by it, want an accelerator for FSDP, though all their calls run under gloo. The test
claims in their place that they are under FSDP. torchtitan's trainer and Lightning's strategy want one, too.
Their parts that run are CheckpointManager with OptimizersContainer, and the functions with which the strategy
saves and loads. Prints a line for each program and rank; the exit status is 1 if one is wrong.
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

import dcp_writer
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
STEPS = 2  # before the checkpoint, and after


def tool(name, *arguments):
    folder = pathlib.Path(os.environ.get("DSCKPT_BIN", pathlib.Path(__file__).parents[2] / "build/release/bin"))
    subprocess.run([folder / name, "--quiet", *map(str, arguments)], check=True)


def there_and_back(folder, scratch, stage, preset="accelerate"):
    """The folder's model and optimizer by way of ZeRO, for other numbers of ranks."""
    config = scratch / "ds_config.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    tool("reshard", folder, scratch / "zero", "--dp", 3, "--ds-config", config)
    tool("to-dcp", scratch / "zero", scratch / "back", "--dp", 4, "--preset", preset)
    return scratch / "back"


def is_fsdp_on_cpu():
    """Accelerate says so itself of a GPU: state.py AcceleratorState.__init__."""
    from accelerate import Accelerator, PartialState
    from accelerate.utils import DistributedType
    made = Accelerator.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        made(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.state.distributed_type = DistributedType.FSDP
        self.state.fsdp_plugin = fsdp_plugin
    Accelerator.__init__ = init


def whole(model, optimizer):
    """Weights and states, by name."""
    def of(value):
        return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
    held = {}
    for name, param in model.named_parameters():
        held[name] = of(param)
        for key, value in optimizer.state.get(param, {}).items():
            held[f"{name} {key}"] = of(value)
    return held


def wrong_in(held, expected):
    names = sorted(held.keys() | expected.keys())
    return [name for name in names
            if name not in held or name not in expected or not torch.equal(held[name], expected[name])]


def accelerate(rank, scratch):
    from accelerate import Accelerator
    from accelerate.utils import FullyShardedDataParallelPlugin
    is_fsdp_on_cpu()

    def made(seed, lr):
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, state_dict_type="SHARDED_STATE_DICT", auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"])
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        torch.manual_seed(seed)
        net = dcp_writer.Net((1,), frozen=False)
        optimizer = torch.optim.AdamW([{**group, "lr": lr * group["lr"]} for group in dcp_writer.groups_of(net)])
        return accelerator, *accelerator.prepare(net, optimizer)

    def train(accelerator, net, optimizer, first):
        losses = []
        for step in range(first, first + STEPS):
            loss = net(dcp_writer.batch(step))
            losses.append(loss.item())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        return losses

    run = made(1, 1)
    train(*run, 0)
    run[0].save_state(str(scratch / "saved"))
    expected = whole(run[1], run[2].optimizer)
    losses = train(*run, STEPS)
    dist.barrier()
    if rank == 0:
        there_and_back(scratch / "saved", scratch, 3)
    dist.barrier()
    run = made(2, 100)
    run[0].load_state(str(scratch / "back"))
    wrong = wrong_in(whole(run[1], run[2].optimizer), expected)
    return {"compared": len(expected), "wrong": wrong, "expected": losses, "losses": train(*run, STEPS)}


def trainer(rank, scratch):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
    is_fsdp_on_cpu()
    data = [{"input_ids": torch.tensor(row), "labels": torch.tensor(row)}
            for row in torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(3)).tolist()]

    class Held(TrainerCallback):
        """The state when training begins, and the losses of each step."""

        def __init__(self):
            self.begin, self.losses = None, []

        def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            if self.begin is None or state.global_step == STEPS:
                self.begin = whole(model, getattr(optimizer, "optimizer", optimizer))

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "loss" in logs and state.global_step > STEPS:
                self.losses.append(logs["loss"])

    def train(seed, out, resume=None):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=2, n_head=2,
                                           tie_word_embeddings=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
        held = Held()
        arguments = TrainingArguments(
            output_dir=str(out), use_cpu=True, max_steps=2 * STEPS, save_steps=STEPS, logging_steps=1, report_to=[],
            per_device_train_batch_size=2, learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0, seed=7,
            disable_tqdm=True, fsdp="full_shard auto_wrap", dataloader_pin_memory=False,
            fsdp_config={"version": 2, "fsdp_version": 2, "state_dict_type": "SHARDED_STATE_DICT",
                         "transformer_layer_cls_to_wrap": ["GPT2Block"]})
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[held]).train(resume_from_checkpoint=resume)
        return held

    first = train(1, scratch / "first")
    checkpoint = scratch / "first" / f"checkpoint-{STEPS}"
    dist.barrier()
    if rank == 0:
        there_and_back(checkpoint, scratch, 3, "trainer")
    dist.barrier()
    again = train(2, scratch / "again", str(scratch / "back"))
    return {"compared": len(first.begin), "wrong": wrong_in(again.begin, first.begin), "expected": first.losses,
            "losses": again.losses}


class Nothing:
    """A dataloader or a schedule, neither of which is saved."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def torchtitan(rank, scratch):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (WORLD,))

    def made(seed, lr, folder):
        torch.manual_seed(seed)
        net = dcp_writer.Net((1,), frozen=False)
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        groups = [ParamGroupConfig(pattern=pattern, optimizer_name="AdamW",
                                   optimizer_kwargs={"lr": lr * rate, "weight_decay": lr * decay})
                  for pattern, rate, decay in ((r"bias$|^scale$", 0.02, 0.0), (".*", 0.01, 0.1))]
        optimizers = OptimizersContainer(
            OptimizersContainer.Config(implementation="for-loop", param_groups=groups), model_parts=[net])
        manager = CheckpointManager(
            CheckpointManager.Config(enable=True, folder=folder, interval=STEPS, last_save_model_only=False,
                                     exclude_from_loading=["dataloader", "lr_scheduler"]),
            dataloader=Nothing(), model_parts=[net], optimizers=optimizers, lr_schedulers=Nothing(), states={},
            sd_adapter=None, base_folder=str(scratch))
        return net, optimizers, manager

    def train(net, optimizers, first):
        losses = []
        for step in range(first, first + STEPS):
            loss = net(dcp_writer.batch(step))
            losses.append(loss.item())
            loss.backward()
            optimizers.step()
            optimizers.zero_grad()
        return losses

    def held(net, optimizers):
        optimizer, = optimizers.optimizers
        return whole(net, optimizer)

    net, optimizers, manager = made(1, 1, "saved")
    train(net, optimizers, 0)
    assert manager.save(STEPS)
    expected = held(net, optimizers)
    losses = train(net, optimizers, STEPS)
    dist.barrier()
    if rank == 0:
        back = there_and_back(scratch / "saved" / f"step-{STEPS}", scratch, 3, "torchtitan")
        (scratch / "titan").mkdir()
        shutil.move(back, scratch / "titan" / f"step-{STEPS}")
    dist.barrier()
    net, optimizers, manager = made(2, 100, "titan")
    assert manager.load()
    wrong = wrong_in(held(net, optimizers), expected)
    return {"compared": len(expected), "wrong": wrong, "expected": losses, "losses": train(net, optimizers, STEPS)}


def lightning(rank, scratch):
    from lightning.fabric.strategies import model_parallel
    from torch.distributed.device_mesh import init_device_mesh
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (WORLD,))
    net, optimizer = dcp_writer.build(mesh, scale_shape=(1,), frozen=False)
    dcp_writer.train(net, optimizer)
    state = {"model": net, "optimizer": optimizer, "global_steps": STEPS}
    model_parallel._save_checkpoint(scratch / "saved", state, full_state_dict=False, rank=rank)
    expected = whole(net, optimizer)
    losses = dcp_writer.train(net, optimizer, STEPS)
    dist.barrier()
    if rank == 0:
        there_and_back(scratch / "saved", scratch, 3, "lightning")
    dist.barrier()
    net, optimizer = dcp_writer.build(mesh, scale_shape=(1,), frozen=False)
    dcp_writer.train(net, optimizer, 50)
    state = {"model": net, "optimizer": optimizer, "global_steps": None}
    model_parallel._load_checkpoint(scratch / "back", state, strict=True)
    assert state["global_steps"] == STEPS, state
    wrong = wrong_in(whole(net, optimizer), expected)
    return {"compared": len(expected), "wrong": wrong, "expected": losses,
            "losses": dcp_writer.train(net, optimizer, STEPS)}


PROGRAMS = {"accelerate": accelerate, "trainer": trainer, "torchtitan": torchtitan, "lightning": lightning}


def worker(rank, port, name, scratch):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(WORLD), ACCELERATE_USE_CPU="true")
    torch.set_num_threads(1)
    found = PROGRAMS[name](rank, scratch)
    (scratch / f"found{rank}.json").write_text(json.dumps(found))
    dist.barrier()


def is_right(found):
    pairs = list(zip(found["losses"], found["expected"]))
    return (found["compared"] > 0 and not found["wrong"] and len(pairs) == STEPS == len(found["losses"]) and
            all(abs(loss - expected) <= 1e-5 * max(1, abs(expected)) for loss, expected in pairs))


def main():
    right = True
    for name in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
            scratch = pathlib.Path(folder)
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
            free.close()
            mp.spawn(worker, (port, name, scratch), nprocs=WORLD)
            for rank in range(WORLD):
                found = json.loads((scratch / f"found{rank}.json").read_text())
                right = right and is_right(found)
                print(f"{name}, rank {rank}: {'right' if is_right(found) else 'WRONG'}: {json.dumps(found)}")
    sys.exit(not right)


if __name__ == "__main__":
    main()
