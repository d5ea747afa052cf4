"""Rank 0's shard is of the save before. It is the one to be named, not the seven others that disagree with it."""
from plant import find, optimizer

CASE = "z2_bf16_full_w8"
EXPECT = {"check": "step", "file": "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "rank": (0, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        for group in state["base_optimizer_state"]["state"].values():
            group["step"] -= 1
