"""Only the folder zero/ was copied."""
from plant import UNIVERSAL, find

CASE = "z1_fp32_full_w4"
MADE = UNIVERSAL
EXPECT = {"check": "missing", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
