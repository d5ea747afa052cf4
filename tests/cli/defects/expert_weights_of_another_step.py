"""One expert's file is of another save: the masters in the shards, under the expert's local name, round to other
weights."""
from plant import edited, find

CASE = "moe_ep2_dp2_z1_bf16"
EXPECT = {"check": "rounding", "file": "layer_0_expert_3_mp_rank_00_model_states.pt",
          "tensor": "moe_a.deepspeed_moe.experts.deepspeed_experts.3.up.weight"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as weights:
        weights[EXPECT["tensor"]] *= 1.03
