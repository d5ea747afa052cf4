"""A rank's shard comes from another run with the same model and the same number of steps. Its masters do not
round to the weights, while those of the other rank do. It is one finding, not one a parameter."""
from plant import MASTERS, find, optimizer

CASE = "z1_bf16_w2"
OPTIM = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
EXPECT = {"check": "rounding", "file": OPTIM, "rank": (1, 0)}
MOST = 1


def plant(folder):
    with optimizer(find(folder, OPTIM)) as state:
        state[MASTERS][0] += 0.25
