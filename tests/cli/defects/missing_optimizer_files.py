"""Somebody kept the weights only and left the folder as it was."""
from plant import find

CASE = "z3_fp32_full_w2"
EXPECT = [{"check": "missing", "file": f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", "rank": (rank, 0)}
          for rank in (0, 1)]


def plant(folder):
    for finding in EXPECT:
        find(folder, finding["file"]).unlink()
