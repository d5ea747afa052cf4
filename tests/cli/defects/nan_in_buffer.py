"""A running mean is NaN: evaluation is lost, training goes on."""
from plant import byte_of, find, load_shard, module

CASE = "z2_bf16_roundrobin_full_w3"
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "mp_rank_00_model_states.pt", "tensor": "stats.running_mean"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with module(path) as weights:
        weights["stats.running_mean"][2] = float("nan")
    return {"offset": byte_of(path, load_shard(path)["module"]["stats.running_mean"], element=2)}
