"""A padding of the first rank is a text where a number should be."""
from plant import find, optimizer

CASE = "z2_bf16_w2"
EXPECT = {"check": "layout", "file": "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "rank": (0, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        state["param_alignment_paddings"][0][4] = "x"
