"""One bit of a buffer is wrong: it lies in no optimizer, so nothing else could tell."""
from plant import find, flip_bit

CASE = "z2_fp32_full_w3"
EXPECT = {"check": "crc", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    return flip_bit(find(folder, EXPECT["file"]), lambda shard: shard["module"]["stats.running_mean"], element=10)
