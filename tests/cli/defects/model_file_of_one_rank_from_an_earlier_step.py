"""One rank's model file of stage 3 is of the save before."""
from plant import edited, find

CASE = "z3_bf16_full_b120_w4"
EXPECT = {"check": "step", "file": "zero_pp_rank_2_mp_rank_00_model_states.pt", "rank": (2, 0)}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as shard:
        shard["global_steps"] -= 1
        shard["global_samples"] -= 24
