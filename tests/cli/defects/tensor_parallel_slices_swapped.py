"""The shards of two tensor-parallel ranks were renamed to each other's names. Their shapes agree."""
from plant import find, swap

CASE = "mpu_tp2_dp2_z2_bf16"
EXPECT = [{"check": "wrong-rank", "file": f"bf16_zero_pp_rank_1_mp_rank_{mp:02}_optim_states.pt", "rank": (1, mp)}
          for mp in (0, 1)]


def plant(folder):
    swap(*(find(folder, finding["file"]) for finding in EXPECT))
