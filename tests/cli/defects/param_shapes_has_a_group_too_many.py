"""The model file names a parameter group that no rank's optimizer file has, as after loading another program's model
states. A message, not a crash."""
import torch_files

from plant import edited, find

CASE = "z2_bf16_w2"
EXPECT = {"check": ("shape", "layout"), "file": "mp_rank_00_model_states.pt"}
MAY_NAME = ["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"]


def plant(folder):
    with edited(find(folder, "mp_rank_00_model_states.pt")) as state:
        state["param_shapes"].append({"ghost": torch_files.Size([3])})
