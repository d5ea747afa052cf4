"""One file of one parameter was not copied: a universal checkpoint has thousands of small ones."""
from plant import UNIVERSAL, find

CASE = "z1_fp32_w2"
MADE = UNIVERSAL
EXPECT = {"check": "missing", "file": "wide.weight/exp_avg.pt", "tensor": "wide.weight"}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
