"""A norm is not cut by tensor parallelism, and every rank trains the same; here one drifted away, master and weight."""
from plant import MASTERS, find, module, optimizer

CASE = "autotp2_dp1_z1_bf16"
FILES = [f"bf16_zero_pp_rank_0_mp_rank_{mp:02}_optim_states.pt" for mp in (0, 1)]
MODELS = [f"mp_rank_{mp:02}_model_states.pt" for mp in (0, 1)]
EXPECT = {"check": "replica", "file": (*FILES, *MODELS), "tensor": "model.norm.weight"}


def plant(folder):
    with optimizer(find(folder, FILES[1])) as state:
        address = state["param_slice_mappings"][0][EXPECT["tensor"]]
        norm = state[MASTERS][0][address.start:address.start + address.numel]
        norm += 0.25
        values = norm.clone()
    with module(find(folder, MODELS[1])) as weights:
        weights[EXPECT["tensor"]][...] = values
