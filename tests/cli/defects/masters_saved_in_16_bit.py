"""A script halved a rank's shard by casting its masters: they have lost their lower half."""
from plant import MASTERS, find, optimizer

CASE = "z1_fp32_full_w6"
EXPECT = {"check": "layout", "file": "zero_pp_rank_3_mp_rank_00_optim_states.pt", "rank": (3, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        state[MASTERS] = [group.to("bfloat16") for group in state[MASTERS]]
