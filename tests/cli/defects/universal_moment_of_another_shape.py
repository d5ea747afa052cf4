"""A parameter's moment has a different shape than its master."""
from plant import UNIVERSAL, edited, find

CASE = "z2_fp32_full_w3"
MADE = UNIVERSAL
EXPECT = {"check": "shape", "file": "conv.weight/exp_avg_sq.pt", "tensor": "conv.weight"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as state:
        state["param"] = state["param"][:-1].clone()
