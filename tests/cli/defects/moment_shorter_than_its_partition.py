"""A moment has fewer elements than the rank's partition."""
from plant import find, optimizer

CASE = "z3_fp32_w3"
EXPECT = {"check": ("layout", "shape"), "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        group = state["optimizer_state_dict"]["state"][0]
        group["exp_avg"] = group["exp_avg"][:-2].clone()
