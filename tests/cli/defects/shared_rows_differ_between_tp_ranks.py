"""Query rows are cut by tensor parallelism, the key's and value's rows of the same matrix are not: every rank has them.
One rank's differ, in master and weight."""
from plant import MASTERS, find, module, optimizer

CASE = "autotp2_dp1_z1_bigcode"
FILES = [f"zero_pp_rank_0_mp_rank_{mp:02}_optim_states.pt" for mp in (0, 1)]
MODELS = [f"mp_rank_{mp:02}_model_states.pt" for mp in (0, 1)]
EXPECT = {"check": "replica", "file": (*FILES, *MODELS), "tensor": "transformer.h.0.attn.c_attn.weight"}


def plant(folder):
    with module(find(folder, MODELS[1])) as weights:
        weights[EXPECT["tensor"]][15, 15] += 0.5  # the last row: 8 rows of queries, 8 of keys and values
        value = weights[EXPECT["tensor"]][15, 15].item()
    with optimizer(find(folder, FILES[1])) as state:
        address = state["param_slice_mappings"][0][EXPECT["tensor"]]
        state[MASTERS][0][address.start + address.numel - 1] = value
