"""All optimizer shards of the last pipeline stage are of the save before. They agree with one another."""
from plant import find, optimizer

CASE = "pp3_dp1_z1_fp32"
EXPECT = {"check": "step", "file": "zero_pp_rank_0_mp_rank_02_optim_states.pt", "rank": (0, 2)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        for group in state["base_optimizer_state"]["state"].values():
            group["step"] -= 1
