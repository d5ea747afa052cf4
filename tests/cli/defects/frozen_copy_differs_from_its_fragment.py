"""At stage 2 a frozen parameter is stored twice, as a weight and as a fragment, and the two differ."""
from plant import edited, find

CASE = "z2_fp32_full_w3"
EXPECT = {"check": "replica", "file": "mp_rank_00_model_states.pt", "tensor": "frozen_adapter.0.weight"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as shard:
        fragment = shard["frozen_param_fragments"][EXPECT["tensor"]].clone()
        fragment[4, 10] += 1
        shard["frozen_param_fragments"][EXPECT["tensor"]] = fragment
