"""The moments of an embedding that every tensor-parallel rank has whole differ in one element on one rank."""
from plant import find, optimizer

CASE = "autotp2_dp2_z1_fp32"
FILES = [f"zero_pp_rank_0_mp_rank_{mp:02}_optim_states.pt" for mp in (0, 1)]
EXPECT = {"check": "replica", "file": tuple(FILES), "tensor": "model.embed_tokens.weight"}


def plant(folder):
    with optimizer(find(folder, FILES[1])) as state:
        address = state["param_slice_mappings"][0][EXPECT["tensor"]]
        state["base_optimizer_state"]["state"][0]["exp_avg"][address.start + 100] += 1e-3
