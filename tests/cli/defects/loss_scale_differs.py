"""A rank's loss scaler has a different scale than the others': ranks scale together, so the shard is of another save."""
from plant import find, optimizer

CASE = "z3_fp16_full_b120_w3"
EXPECT = {"check": "step", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        vars(state["loss_scaler"])["cur_scale"] *= 2
