"""Two ranks' model files of stage 3 were renamed to each other's names: frozen parameters would be put together in the
wrong order."""
from plant import find, swap

CASE = "z3_bf16_full_subgroups_w4"
EXPECT = [{"check": "wrong-rank", "file": f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt", "rank": (rank, 0)}
          for rank in (0, 3)]


def plant(folder):
    swap(*(find(folder, finding["file"]) for finding in EXPECT))
