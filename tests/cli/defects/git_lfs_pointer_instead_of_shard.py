"""The repository was cloned without git lfs: a shard is a text file of three lines."""
from plant import LFS_POINTER, find

CASE = "z3_fp32_full_w8"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_6_mp_rank_00_model_states.pt", "rank": (6, 0)}


def plant(folder):
    find(folder, EXPECT["file"]).write_bytes(LFS_POINTER)
