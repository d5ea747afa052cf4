"""A rank's shard comes from another run with the same model and the same number of steps: its masters are not what the
weights were rounded from. Which of the two files is right, nobody can know."""
from plant import MASTERS, find, optimizer

CASE = "z1_bf16_w2"
OPTIM = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
EXPECT = {"check": "rounding", "file": (OPTIM, "mp_rank_00_model_states.pt"), "tensor": "ln_f.bias"}
MOST = 40


def plant(folder):
    with optimizer(find(folder, OPTIM)) as state:
        state[MASTERS][0] += 0.25
