"""The pickle ends too early, though its checksum is right: the process that made it ran out of memory."""
from plant import find, record_extent, replace_record

CASE = "z2_fp32_elastic_w2"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0),
          "member": "data.pkl"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    offset, size = record_extent(path, "data.pkl")
    replace_record(path, "data.pkl", path.read_bytes()[offset:offset + size - 40])
