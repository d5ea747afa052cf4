"""A tensor-parallel rank's weight is cut along a different dimension than its master."""
from plant import find, module

CASE = "autotp2_dp2_z2_bf16"
EXPECT = {"check": "shape", "file": "mp_rank_01_model_states.pt", "tensor": "model.layers.0.self_attn.q_proj.weight"}


def plant(folder):
    with module(find(folder, EXPECT["file"])) as weights:
        weight = weights[EXPECT["tensor"]]
        weights[EXPECT["tensor"]] = weight.reshape(weight.shape[1], weight.shape[0]).clone()
