"""The model file has no weight for a parameter that the optimizer's shards have."""
from plant import find, module

CASE = "z2_bf16_full_w8"
EXPECT = {"check": ("shape", "layout", "missing"), "file": "mp_rank_00_model_states.pt", "tensor": "conv.bias"}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        del weights["conv.bias"]
