"""The quota ran out while a rank was saving: its file ends in the middle of a record."""
from plant import find

CASE = "z2_bf16_full_w8"
EXPECT = {"check": "unreadable", "file": "bf16_zero_pp_rank_5_mp_rank_00_optim_states.pt", "rank": (5, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    whole = path.read_bytes()
    path.write_bytes(whole[:len(whole) * 2 // 3])
