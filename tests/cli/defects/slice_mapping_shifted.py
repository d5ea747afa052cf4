"""A rank says that a parameter's slice begins one element later than it does."""
from plant import find, optimizer

CASE = "z2_fp32_full_w3"
EXPECT = {"check": "layout", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0),
          "tensor": "wide.weight"}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as state:
        vars(state["param_slice_mappings"][0]["wide.weight"])["start"] += 1
