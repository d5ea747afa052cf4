"""One shard of the second tensor-parallel rank is missing; its number is both ranks'."""
from plant import find

CASE = "autotp2_dp2_z1_fp32"
EXPECT = {"check": "missing", "file": "zero_pp_rank_1_mp_rank_01_optim_states.pt", "rank": (1, 1)}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
