"""A rank's part of a flat group is one element short: every parameter after it would be shifted."""
from plant import MASTERS, find, optimizer

CASE = "z1_fp32_full_w4"
EXPECT = {"check": "layout", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        state[MASTERS][0] = state[MASTERS][0][:-1].clone()
