"""The file was given its size first, and the copy stopped half way: the second half is zeros, the size is right."""
from plant import find

CASE = "z3_bf16_w2"
EXPECT = {"check": "unreadable", "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + bytes(len(whole) - half))
