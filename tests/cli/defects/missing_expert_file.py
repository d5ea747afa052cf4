"""The files of one expert were not copied."""
from plant import find

CASE = "moe_ep2_dp2_z1_bf16"
EXPECT = {"check": "missing", "file": "layer_1_expert_3_mp_rank_00_model_states.pt"}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
