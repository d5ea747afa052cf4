"""One bit of the fp16 weights in the model file is wrong. All weights of a group lie in one record."""
from plant import find, flip_bit

CASE = "z2_fp16_w2"
EXPECT = {"check": "crc", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    return flip_bit(find(folder, EXPECT["file"]), lambda shard: shard["module"]["wide.weight"], element=50)
