"""The model file is of a different save than the optimizer's shards: no 16-bit weight is the rounding of its master."""
from plant import find, module

CASE = "z2_bf16_full_b120_w3"
EXPECT = {"check": "rounding", "file": "mp_rank_00_model_states.pt", "tensor": "wide.weight"}
MOST = 40


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        for name in ("wide.weight", "narrow.weight", "conv.weight"):
            weights[name] *= 1.03
