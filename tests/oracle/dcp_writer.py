"""Folders of torch.distributed.checkpoint, written by torch itself on gloo. They have FSDP2 on one and two
meshes, tensor parallelism under it, and the forms that frameworks save in.

    write(folder, world)    all folders that a run on so many ranks has, by name
"""
import os
import socket

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS = 2
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Block(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 8)
        self.down = torch.nn.Linear(8, 6)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(torch.nn.Module):
    """Rows that no number of ranks divides, fewer rows than ranks, frozen parameters and buffers; without `frozen`
    everything but whole numbers is trained."""

    def __init__(self, scale_shape=(), frozen=True):
        super().__init__()
        self.embed = torch.nn.Embedding(13, 6)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.narrow = torch.nn.Linear(6, 1)
        self.frozen = torch.nn.Linear(6, 5) if frozen else None
        if frozen:
            self.frozen.requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.full(scale_shape, 1.5))
        self.register_buffer("counts", torch.arange(7))
        if frozen:
            self.register_buffer("table", torch.linspace(0, 1, 5))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        loss = (self.narrow(x) * self.scale).sum()
        return loss if self.frozen is None else loss + self.frozen(x).sum()


def build(mesh, tp=None, dtype=torch.float32, scale_shape=(), frozen=True):
    torch.manual_seed(5)
    net = Net(scale_shape, frozen).to(dtype)
    if tp is not None:
        for block in net.blocks:
            parallelize_module(block, tp, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    ignored = {net.scale}
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh, ignored_params=ignored)
    return net, torch.optim.AdamW(groups_of(net), betas=(0.8, 0.95), eps=1e-7)


def batch(step):
    torch.manual_seed(100 * step + dist.get_rank())
    return torch.randint(0, 13, (4, 3))


def train(net, optimizer, first=0):
    """The losses of each step on this rank."""
    losses = []
    for step in range(first, first + STEPS):
        loss = net(batch(step))
        losses.append(loss.item())
        loss.backward()
        if net.scale.grad is not None:  # FSDP has not averaged it
            dist.all_reduce(net.scale.grad)
            net.scale.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    return losses


def groups_of(net):
    named = [(name, param) for name, param in net.named_parameters() if param.requires_grad]
    return [{"params": [param for _, param in named if param.dim() > 1], "lr": 0.01},
            {"params": [param for _, param in named if param.dim() < 2], "lr": 0.02, "weight_decay": 0.0}]


def save_forms(folder, net, optimizer):
    """The forms in which frameworks save one and the same run."""
    model = get_model_state_dict(net)
    nested = get_optimizer_state_dict(net, optimizer)
    flat = get_optimizer_state_dict(net, optimizer, options=FLAT)
    more = {"lr_scheduler": {"last_epoch": 2, "_last_lr": [0.01, 0.02]}, "train_state": {"step": 2}}
    dcp.save({"model": model, "optim": nested}, checkpoint_id=folder / "nested")
    dcp.save({"model": model, "optim": flat}, checkpoint_id=folder / "flat")
    dcp.save({**model, "optimizer": flat, **more}, checkpoint_id=folder / "torchtitan" / "step-2")
    dcp.save(model, checkpoint_id=folder / "weights")
    dcp.save({"model": model}, checkpoint_id=folder / "accelerate" / "checkpoint-2" / "pytorch_model_fsdp_0")
    dcp.save({"optimizer": nested}, checkpoint_id=folder / "accelerate" / "checkpoint-2" / "optimizer_0")
    dcp.save({"net": model, "optimizer_0": nested, "epoch": 3}, checkpoint_id=folder / "lightning.ckpt")
    dcp.save({"app": {"model": model, "optim": nested}}, checkpoint_id=folder / "app")


def save_safetensors(folder, model):
    """A part of each tensor a rank, all in one file of it, or in two. Tensors that torch does not consolidate
    are missing: whole numbers and (it writes zeros) tensors of no dimension."""
    names = sorted(name for name, value in model.items() if value.is_floating_point() and value.dim() > 0)
    halves = {name: 1 + (i >= len(names) // 2) for i, name in enumerate(names)}
    for name, some, mapping in (("hf", model, None), ("hf_two", {name: model[name] for name in names}, halves)):
        writer = HuggingFaceStorageWriter(str(folder / name), mapping, save_distributed=True)
        dcp.save(some, storage_writer=writer)


def worker(rank, world, port, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    if world in (1, 2, 3):
        net, optimizer = build(init_device_mesh("cpu", (world,)))
        train(net, optimizer)
        save_forms(folder, net, optimizer)
        save_safetensors(folder, get_model_state_dict(net))
        net, optimizer = build(init_device_mesh("cpu", (world,)), dtype=torch.bfloat16)
        train(net, optimizer)
        dcp.save({"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer)},
                 checkpoint_id=folder / "bf16")
    else:
        hybrid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        for name, mesh, tp in (("hsdp", hybrid, None), ("tp", both["dp"], both["tp"])):
            net, optimizer = build(mesh, tp)
            train(net, optimizer)
            dcp.save({"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer)},
                     checkpoint_id=folder / name)
            save_safetensors(folder / f"{name}_safetensors", get_model_state_dict(net))
    dist.barrier()


def write(folder, world):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder.mkdir(parents=True, exist_ok=True)
    mp.spawn(worker, (world, port, folder), nprocs=world)
