"""The head is tied to the embedding, but has other values in the model file: a script edited one and saved both."""
from plant import find, module

CASE = "z1_bf16_full_w2"
EXPECT = {"check": "replica", "file": "mp_rank_00_model_states.pt", "tensor": "head.weight"}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        head = weights["head.weight"].clone()
        head[0, 0] += 1
        weights["head.weight"] = head
