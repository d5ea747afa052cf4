"""A file in torch's old format, which is not a zip, ends in its last storage: nothing at its end says so."""
from plant import find

CASE = "z3_fp32_legacyserial_w2"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    path.write_bytes(path.read_bytes()[:-64])
