"""In fp32 a weight is its master, bit by bit; here one is not."""
from plant import byte_of, find, load_shard, module

CASE = "z2_fp32_amsgrad_full_b120_w4"
EXPECT = {"check": "rounding", "file": "mp_rank_00_model_states.pt", "tensor": "conv.weight"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with module(path) as weights:
        weights["conv.weight"].reshape(-1)[20] += 1e-3
    return {"offset": byte_of(path, load_shard(path)["module"]["conv.weight"], element=20)}
