"""A shard comes from a run with twice the ranks, which saved the same tag: it says itself that its group is cut
in eight."""
from plant import find, optimizer

CASE = "z2_bf16_w4"
EXPECT = {"check": ("layout", "step", "wrong-rank"), "file": "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
          "rank": (2, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        state["partition_count"] = [8 for _ in state["partition_count"]]
