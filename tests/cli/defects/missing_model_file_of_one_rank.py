"""One rank's model file is missing at stage 3, where it has the rank's fragments of frozen parameters."""
from plant import find

CASE = "z3_fp32_full_w8"
EXPECT = {"check": "missing", "file": "zero_pp_rank_5_mp_rank_00_model_states.pt", "rank": (5, 0)}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
