"""One bit of the last 22 bytes is wrong: the number of records, which the zip64 end record has as well."""
from plant import find, flip

CASE = "z1_bf16opt_w2"
EXPECT = {"check": "unreadable", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    flip(path, path.stat().st_size - 22 + 10, 0x04)
