"""One parameter's step is of another save: DeepSpeed refuses a group whose steps differ."""
from plant import UNIVERSAL, edited, find

CASE = "z1_fp32_full_w4"
MADE = UNIVERSAL
EXPECT = {"check": "step", "file": "ln_f.weight/step.pt", "tensor": "ln_f.weight"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as step:
        step += 5
