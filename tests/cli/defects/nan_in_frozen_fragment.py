"""A rank's fragment of a frozen parameter has a NaN."""
from plant import byte_of, edited, find, load_shard

CASE = "z3_bf16_full_w6"
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "zero_pp_rank_1_mp_rank_00_model_states.pt", "rank": (1, 0),
          "tensor": "frozen_adapter.0.weight"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with edited(path) as shard:
        shard["frozen_param_fragments"][EXPECT["tensor"]][4] = float("nan")
    return {"offset": byte_of(path, load_shard(path)["frozen_param_fragments"][EXPECT["tensor"]], element=4)}
