"""A master of stage 3 overflowed."""
from plant import byte_of, find, load_shard, optimizer

CASE = "z3_bf16_full_subgroups_w4"
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0),
          "tensor": "narrow.weight"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with optimizer(path) as state:
        state["fp32_flat_groups"][1][7] = float("-inf")
    return {"offset": byte_of(path, load_shard(path)["optimizer_state_dict"]["fp32_flat_groups"][1], element=7)}
