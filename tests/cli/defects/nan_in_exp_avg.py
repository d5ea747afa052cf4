"""A rank's first moment has a NaN, which the next step would spread."""
from plant import byte_of, find, load_shard, optimizer

CASE = "z1_fp32_w2"
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0),
          "tensor": "narrow.weight"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with optimizer(path) as state:
        element = state["param_slice_mappings"][0][EXPECT["tensor"]].start + 30
        state["base_optimizer_state"]["state"][0]["exp_avg"][element] = float("nan")
    moment = load_shard(path)["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"]
    return {"offset": byte_of(path, moment, element)}
