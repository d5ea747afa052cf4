"""A parameter's folder is missing; the model file still has its name and shape."""
import shutil

from plant import UNIVERSAL, find

CASE = "z2_bf16_w4"
MADE = UNIVERSAL
EXPECT = {"check": "missing", "tensor": "blocks.1.mlp.up_proj.bias"}
MAY_NAME = [f"{EXPECT['tensor']}", f"{EXPECT['tensor']}/fp32.pt", f"{EXPECT['tensor']}/exp_avg.pt",
            f"{EXPECT['tensor']}/exp_avg_sq.pt", f"{EXPECT['tensor']}/step.pt", "mp_rank_00_model_states.pt"]


def plant(folder):
    shutil.rmtree(find(folder, EXPECT["tensor"]))
