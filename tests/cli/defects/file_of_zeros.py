"""A journaling file system after a crash: the file has its size, and nothing was written to it."""
from plant import find

CASE = "z1_bf16opt_full_w3"
EXPECT = {"check": "unreadable", "file": "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    path.write_bytes(bytes(path.stat().st_size))
