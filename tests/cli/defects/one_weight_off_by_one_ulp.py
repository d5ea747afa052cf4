"""A single fp16 weight is the next number beside the rounding of its master."""
from plant import byte_of, find, load_shard, module

CASE = "z1_fp16_full_b120_w2"
EXPECT = {"check": "rounding", "file": "mp_rank_00_model_states.pt", "tensor": "narrow.weight"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with module(path) as weights:
        weights["narrow.weight"].array.view("u2")[3, 5] += 1
    return {"offset": byte_of(path, load_shard(path)["module"]["narrow.weight"], element=3 * 67 + 5)}
