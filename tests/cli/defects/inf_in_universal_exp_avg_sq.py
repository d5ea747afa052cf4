"""A parameter's second moment overflowed."""
from plant import UNIVERSAL, byte_of, edited, find, load_shard

CASE = "z2_fp32_amsgrad_w2"
MADE = UNIVERSAL
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "head.bias/exp_avg_sq.pt", "tensor": "head.bias"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with edited(path) as state:
        state["param"][36] = float("inf")
    return {"offset": byte_of(path, load_shard(path)["param"], element=36)}
