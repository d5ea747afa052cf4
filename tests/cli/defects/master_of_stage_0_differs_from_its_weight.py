"""At stage 0 masters and weights lie in one file, and one weight is not the rounding of its master."""
from plant import find, module

CASE = "z0_bf16_full_w2"
EXPECT = {"check": "rounding", "file": "mp_rank_00_model_states.pt", "tensor": "wide.bias"}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        weights["wide.bias"][9] += 0.5
