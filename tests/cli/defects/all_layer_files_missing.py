"""All files of a pipeline's layers are missing: only the model files tell, which name those that are not tied."""
LAYERS = [f"layer_{layer:02}-model_{rank:02}-model_states.pt" for layer in (1, 2, 3) for rank in range(2)]
CASE = "pp2_tp2_dp2_z1_fp32"
EXPECT = [{"check": "missing", "file": name} for name in LAYERS]
MOST = len(LAYERS)


def plant(folder):
    for path in [*folder.rglob("layer_*")]:
        path.unlink()
