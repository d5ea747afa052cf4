"""An expert's file was copied over another's, whose weights are lost."""
import shutil

from plant import find

CASE = "moe_ep2_dp4_z2_fp32"
EXPECT = {"check": "wrong-rank", "file": "layer_0_expert_2_mp_rank_00_model_states.pt"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    shutil.copy(path.with_name(path.name.replace("expert_2", "expert_1")), path)
