"""One bit of a pipeline layer's weights is wrong."""
from plant import find, flip_bit

CASE = "pp2_dp2_z1_bf16"
EXPECT = {"check": "crc", "file": "layer_02-model_states.pt"}


def plant(folder):
    return flip_bit(find(folder, EXPECT["file"]), lambda shard: shard["fc1.weight"], element=7)
