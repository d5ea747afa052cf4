"""At stage 0 masters and weights lie in one file, and one weight is not the rounding of its master. The masters have
no names there, only an order."""
from plant import find, module

CASE = "z0_bf16_full_w2"
EXPECT = {"check": "rounding", "file": "mp_rank_00_model_states.pt", "member": "optimizer.fp32_groups[1][9]"}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        weights["wide.bias"][9] += 0.5
