"""Two ranks' files were renamed to each other's names. The zip's folder says under which name each was saved."""
from plant import find, swap

CASE = "z1_fp32_full_w4"
EXPECT = [{"check": "wrong-rank", "file": f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", "rank": (rank, 0)}
          for rank in (1, 2)]


def plant(folder):
    swap(*(find(folder, finding["file"]) for finding in EXPECT))
