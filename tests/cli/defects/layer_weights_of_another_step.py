"""One layer's file of a pipeline is of another save. The masters know the layer's weights by its number."""
from plant import edited, find

CASE = "pp2_dp2_z1_bf16"
EXPECT = {"check": "rounding", "file": "layer_01-model_states.pt", "tensor": "1.fc2.weight"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as weights:
        weights["fc2.weight"] *= 1.03
