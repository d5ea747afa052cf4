"""A folder has the model file's name. The ranks' files, which are whole, are not to be called anything."""
from plant import find

CASE = "z2_bf16_w2"
EXPECT = {"check": "unreadable", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    path = find(folder, "mp_rank_00_model_states.pt")
    path.unlink()
    path.mkdir()
