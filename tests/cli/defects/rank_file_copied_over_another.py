"""A shell loop copied rank 0's shard to all names that it found missing."""
import shutil

from plant import find

CASE = "z3_fp32_w3"
EXPECT = {"check": "wrong-rank", "file": "zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    shutil.copy(path.with_name(path.name.replace("rank_2", "rank_0")), path)
