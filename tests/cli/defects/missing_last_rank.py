"""The node of the last rank was preempted before it had saved. Nothing in the folder but the others' partition counts
tells that there was another rank."""
from plant import find

CASE = "z2_bf16_full_w8"
EXPECT = {"check": "missing", "file": "bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt", "rank": (7, 0)}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
