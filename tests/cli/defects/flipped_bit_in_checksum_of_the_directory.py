"""One bit of the zip's directory is wrong: the CRC32 of a record, whose data are whole."""
from plant import directory_entry, find, flip, record_extent

CASE = "z3_fp16_w2"
EXPECT = {"check": "crc", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0), "member": "data/1"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    offset, size = record_extent(path, EXPECT["member"])
    flip(path, directory_entry(path, EXPECT["member"]) + 16)
    return {"offset": offset, "size": size}
