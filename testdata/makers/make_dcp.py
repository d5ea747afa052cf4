"""Writes testdata/dcp: folders of torch.distributed.checkpoint, by torch on two ranks of gloo.

    scripts/python testdata/makers/make_dcp.py

`nested` is from an FSDP2 run that made two steps. `metadata/` has only its file `.metadata`, in other protocols of
pickle.
"""
import os
import pathlib
import pickle
import shutil
import socket

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

OUT = pathlib.Path(__file__).resolve().parent.parent / "dcp"
RANKS = 2


def run(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(7)
    net = torch.nn.Linear(3, 5)
    fully_shard(net, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(2):
        net(torch.full((2, 3), rank + step + 0.5)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer)}
    dcp.save(state, checkpoint_id=OUT / "nested")
    dist.destroy_process_group()


def write_metadata():
    folder = OUT / "metadata"
    folder.mkdir()
    content = pickle.loads((OUT / "nested" / ".metadata").read_bytes())
    for protocol in (2, 3, 5):
        (folder / f"protocol{protocol}").write_bytes(pickle.dumps(content, protocol))


if __name__ == "__main__":
    shutil.rmtree(OUT, ignore_errors=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()[1]
    mp.spawn(run, (address,), nprocs=RANKS)
    write_metadata()
