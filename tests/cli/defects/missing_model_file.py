"""Only the optimizer's shards were copied: names, shapes and buffers are in the model file."""
from plant import find

CASE = "z1_bf16opt_full_b120_w4"
EXPECT = {"check": "missing", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
