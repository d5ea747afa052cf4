"""A rank's shard has one parameter group fewer than the others."""
from plant import MASTERS, find, optimizer

CASE = "z2_fp32_full_w3"
EXPECT = {"check": "layout", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        state[MASTERS].pop()
