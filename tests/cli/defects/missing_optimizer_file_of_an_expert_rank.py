"""Experts without ZeRO have an optimizer file for each expert-parallel rank; the last one is missing."""
from plant import find

CASE = "moe_ep2_dp2_z0_fp32"
EXPECT = {"check": "missing", "file": "expp_rank_1_mp_rank_00_optim_states.pt"}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
