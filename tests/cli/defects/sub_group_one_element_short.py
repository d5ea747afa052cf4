"""A rank's part of a sub-group of stage 3 is one element short."""
from plant import find, optimizer

CASE = "z3_bf16_full_subgroups_w4"
EXPECT = {"check": "layout", "file": "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt", "rank": (3, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        state["fp32_flat_groups"][1] = state["fp32_flat_groups"][1][:-1].clone()
