"""A record has fewer bytes than the pickle says, with a checksum that is right for them."""
from plant import find, record_extent, replace_record

CASE = "z2_bf16_paramalign_w2"
EXPECT = {"check": "unreadable", "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0),
          "member": "data/1"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    offset, size = record_extent(path, EXPECT["member"])
    replace_record(path, EXPECT["member"], path.read_bytes()[offset:offset + size - 4])
