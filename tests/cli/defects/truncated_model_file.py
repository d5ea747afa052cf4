"""A copy of the model file was interrupted; at stage 0 it is all there is."""
from plant import find

CASE = "z0_fp32_w2"
EXPECT = {"check": "unreadable", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    path.write_bytes(path.read_bytes()[:-100])
