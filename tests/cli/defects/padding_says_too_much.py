"""The last rank notes one element of padding too much: the last parameter would lose an element."""
from plant import find, optimizer

CASE = "z2_bf16_full_w8"
EXPECT = {"check": "layout", "file": "bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt", "rank": (7, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        state["group_paddings"][0] += 1
