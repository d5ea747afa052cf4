"""A buffer in float64 has a NaN."""
from plant import byte_of, find, load_shard, module

CASE = "z2_fp32_full_w3"
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "mp_rank_00_model_states.pt", "tensor": "stats.running_mean"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with module(path) as weights:
        weights["stats.running_mean"] = weights["stats.running_mean"].to("float64")
        weights["stats.running_mean"][3] = float("nan")
    return {"offset": byte_of(path, load_shard(path)["module"]["stats.running_mean"], element=3)}
