"""The second tensor-parallel rank's model file is of the save before. Either of two files may be the older."""
from plant import edited, find

CASE = "autotp2_dp2_z1_fp32"
FILES = [f"mp_rank_{mp:02}_model_states.pt" for mp in (0, 1)]
EXPECT = {"check": "step", "file": tuple(FILES)}


def plant(folder):
    with edited(find(folder, FILES[1])) as shard:
        shard["global_steps"] -= 1
