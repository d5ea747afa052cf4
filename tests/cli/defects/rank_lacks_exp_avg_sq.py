"""A script that made shards smaller dropped the second moments of one rank."""
from plant import find, optimizer

CASE = "z1_bf16opt_full_b120_w4"
EXPECT = {"check": "layout", "file": "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        for group in state["base_optimizer_state"]["state"].values():
            del group["exp_avg_sq"]
