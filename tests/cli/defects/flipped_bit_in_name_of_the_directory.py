"""One bit of a record's name in the zip's directory is wrong: torch does not find the record."""
from plant import directory_entry, find, flip

CASE = "z1_fp16_w2"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_0_mp_rank_00_optim_states.pt", "rank": (0, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    flip(path, directory_entry(path, "data/2") + 46 + len(f"{path.stem}/data/2") - 1, 0x40)
