"""A buffer is stored by every rank at stage 3. One rank's constant table differs from all the others'."""
from plant import find, module

CASE = "z3_bf16_full_subgroups_w4"
EXPECT = {"check": "replica", "file": "zero_pp_rank_2_mp_rank_00_model_states.pt", "rank": (2, 0),
          "tensor": "stats.freq_table"}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        weights["stats.freq_table"][1] += 0.5
