"""The disk was full: the file was created and nothing could be written to it."""
from plant import find

CASE = "z1_fp32_full_w6"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_4_mp_rank_00_optim_states.pt", "rank": (4, 0)}


def plant(folder):
    find(folder, EXPECT["file"]).write_bytes(b"")
