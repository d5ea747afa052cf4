"""The file with the groups' hyper-parameters was not copied: nothing can be resumed without."""
from plant import UNIVERSAL, find

CASE = "z2_bf16_fusedadam_w2"
MADE = UNIVERSAL
EXPECT = {"check": "missing", "file": "zero/optimizer_state.pt"}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
