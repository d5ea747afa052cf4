"""A rank's optimizer counted one step more than the others', in the wrapper for bf16 that notes nothing else."""
from plant import find, optimizer

CASE = "z1_bf16opt_full_w3"
EXPECT = {"check": "step", "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        for group in state["base_optimizer_state"]["state"].values():
            group["step"] += 1
