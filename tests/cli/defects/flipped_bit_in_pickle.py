"""One bit of the pickle is wrong, in the text of a name: it still loads, and something has another name."""
from plant import find, flip, record_extent

CASE = "z3_fp32_w3"
EXPECT = {"check": "crc", "file": "zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0), "member": "data.pkl"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    offset, size = record_extent(path, "data.pkl")
    at = path.read_bytes().index(b"weight_decay", offset)
    flip(path, at, 0x02)
    return {"offset": offset, "size": size}
