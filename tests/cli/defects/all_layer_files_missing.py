"""All files of a pipeline's layers are missing: only the model files, which name the layers, tell."""
from plant import find

LAYERS = [f"layer_{layer:02}-model_{rank:02}-model_states.pt" for layer in range(4) for rank in range(2)]
CASE = "pp2_tp2_dp2_z1_fp32"
EXPECT = [{"check": "missing", "file": name} for name in LAYERS]
MOST = len(LAYERS)


def plant(folder):
    for name in LAYERS:
        find(folder, name).unlink()
