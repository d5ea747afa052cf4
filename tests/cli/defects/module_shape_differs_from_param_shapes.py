"""A weight in the model file has not the shape that the same file notes for its master."""
from plant import find, module

CASE = "z2_fp32_adagrad_w2"
EXPECT = {"check": "shape", "file": "mp_rank_00_model_states.pt", "tensor": "narrow.weight"}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        weights["narrow.weight"] = weights["narrow.weight"].t().contiguous()
