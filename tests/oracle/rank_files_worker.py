"""Trains a model with FSDP2 or FSDP1 on two ranks, and has each save its own state_dicts.

    rank_files_worker.py fsdp1|fsdp2 FOLDER

FOLDER/ranks has the files, FOLDER/truth the tensors of all ranks together, by torch's own gathering. For fsdp1
FOLDER/local has state_dicts of LOCAL_STATE_DICT.
"""
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


class Net(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.up = torch.nn.Linear(6, 9)
        self.norm = torch.nn.LayerNorm(9)
        self.down = torch.nn.Linear(9, 5)

    def forward(self, x):
        return self.down(self.norm(self.up(self.embed(x))))


def train(net, optimizer, rank):
    for step in range(3):
        net(torch.arange(4) + rank + step).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def gather_states(names, per_param):
    return {key: {name: per_param[name][key] for name in names} for key in ("exp_avg", "exp_avg_sq")}


def run_fsdp2(rank, folder):
    from torch.distributed.fsdp import fully_shard
    net = Net()
    fully_shard(net.up)
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    train(net, optimizer, rank)
    for kind, state in (("model", net.state_dict()), ("optim", optimizer.state_dict()),
                        ("extra_state", {"lr_scheduler": {"last_epoch": 3}, "rng": {"cpu": torch.get_rng_state()}})):
        torch.save(state, folder / "ranks" / f"{kind}_world_size_{RANKS}_rank_{rank}.pt")
    model = {name: value.full_tensor() for name, value in net.state_dict().items()}
    names = [name for name, _ in net.named_parameters()]
    states = {name: {key: value.full_tensor() for key, value in optimizer.state[param].items() if key != "step"}
              for name, param in net.named_parameters()}
    if rank == 0:
        torch.save(model, folder / "truth" / "model.pt")
        torch.save(gather_states(names, states), folder / "truth" / "states.pt")


def run_fsdp1(rank, folder):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import StateDictType
    net = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    train(net, optimizer, rank)
    with FSDP.state_dict_type(net, StateDictType.SHARDED_STATE_DICT):
        torch.save(net.state_dict(), folder / "ranks" / f"model_0000003.rank_{rank}.pth")
        torch.save(FSDP.optim_state_dict(net, optimizer), folder / "ranks" / f"optim_0000003.rank_{rank}.pth")
    with FSDP.state_dict_type(net, StateDictType.LOCAL_STATE_DICT):
        torch.save(net.state_dict(), folder / "local" / f"model_world_size_{RANKS}_rank_{rank}.pt")
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        model = {name: value.clone() for name, value in net.state_dict().items()}
    # Each rank has a run of the flattened elements.
    own = {name.removeprefix("_fsdp_wrapped_module."): {key: value for key, value in optimizer.state[param].items()
                                                        if key != "step"}
           for name, param in net.named_parameters()}
    everybody = [None] * RANKS
    dist.all_gather_object(everybody, own)
    states = {name: {key: torch.cat([of[name][key].flatten() for of in everybody if key in of[name]]).view(value.shape)
                     for key in ("exp_avg", "exp_avg_sq")} for name, value in model.items()}
    if rank == 0:
        torch.save(model, folder / "truth" / "model.pt")
        torch.save(gather_states(list(states), states), folder / "truth" / "states.pt")


def run(rank, kind, folder):
    torch.set_num_threads(1)
    # A port that is free now may be taken when it is wanted; a file is nobody else's.
    dist.init_process_group("gloo", init_method=f"file://{folder.resolve()}/rendezvous", rank=rank, world_size=RANKS)
    torch.manual_seed(7)
    {"fsdp1": run_fsdp1, "fsdp2": run_fsdp2}[kind](rank, folder)
    dist.barrier()


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[2])
    for name in ("ranks", "truth", "local"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    mp.spawn(run, (sys.argv[1], folder), nprocs=RANKS)
