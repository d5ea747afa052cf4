"""A node had not saved yet when the job was killed; its rank's shard is of the save before, under the same tag."""
from plant import edited, find

CASE = "z3_fp32_w3"
EXPECT = {"check": "step", "file": "zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0)}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as shard:
        state = shard["optimizer_state_dict"]
        for group in state["optimizer_state_dict"]["state"].values():
            group["step"] -= 1
            group["exp_avg"] *= 0.9
        for group in state["fp32_flat_groups"]:
            group += 0.003
