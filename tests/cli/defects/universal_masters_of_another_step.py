"""A parameter's master was copied from another universal checkpoint: the model file's bf16 weight is not its rounding."""
from plant import UNIVERSAL, edited, find

CASE = "z2_bf16_w4"
MADE = UNIVERSAL
EXPECT = {"check": "rounding", "file": ("wide.weight/fp32.pt", "mp_rank_00_model_states.pt"), "tensor": "wide.weight"}


def plant(folder):
    with edited(find(folder, "wide.weight/fp32.pt")) as state:
        state["param"] += 0.25
