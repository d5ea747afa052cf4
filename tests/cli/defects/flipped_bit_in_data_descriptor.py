"""One bit after a record's data is wrong, in the copy of its CRC32 that no reader looks at. The data are whole, but the
medium is not, and the file is not the one that was saved."""
from plant import find, flip, record_extent

CASE = "z2_bf16_offload_w2"
EXPECT = {"check": "crc", "file": "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "rank": (0, 0), "member": "data/0"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    offset, size = record_extent(path, EXPECT["member"])
    assert path.read_bytes()[offset + size:][:4] == b"PK\7\10"
    flip(path, offset + size + 4)
