"""A rank's fragment of a frozen parameter is shorter than its share."""
from plant import edited, find

CASE = "z3_fp32_full_b120_w2"
EXPECT = {"check": ("shape", "layout"), "file": "zero_pp_rank_1_mp_rank_00_model_states.pt", "rank": (1, 0),
          "tensor": "frozen_adapter.1.weight"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as shard:
        fragments = shard["frozen_param_fragments"]
        fragments[EXPECT["tensor"]] = fragments[EXPECT["tensor"]][:-1].clone()
