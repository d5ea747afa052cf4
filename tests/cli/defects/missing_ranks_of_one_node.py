"""A node's local disk was not collected: both of its ranks are missing. Each is named."""
from plant import find

CASE = "z3_bf16_full_w6"
EXPECT = [{"check": "missing", "file": f"{file}_mp_rank_00_{kind}_states.pt", "rank": (rank, 0)}
          for rank in (2, 3)
          for file, kind in [(f"zero_pp_rank_{rank}", "model"), (f"bf16_zero_pp_rank_{rank}", "optim")]]


def plant(folder):
    for finding in EXPECT:
        find(folder, finding["file"]).unlink()
