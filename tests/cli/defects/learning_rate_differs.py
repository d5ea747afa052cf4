"""SGD counts no steps. The learning rate, which a schedule set, shows that two ranks are of different saves.
Either of two ranks may be the older."""
from plant import find, optimizer

CASE = "z1_fp32_sgd_w2"
FILES = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)]
EXPECT = {"check": "step", "file": tuple(FILES)}


def plant(folder):
    with optimizer(find(folder, FILES[1])) as state:
        state["base_optimizer_state"]["param_groups"][0]["lr"] *= 0.5
