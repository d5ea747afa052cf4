"""A rank's model file at stage 3, which has the names of all parameters without their values, has no names."""
from plant import find, module

CASE = "z3_fp32_full_w2"
EXPECT = {"check": "layout", "file": "zero_pp_rank_1_mp_rank_00_model_states.pt", "rank": (1, 0)}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        for name in [name for name, value in weights.items() if value.numel() == 0]:
            del weights[name]
