"""The files of all experts are missing: only the model file, which counts the experts, tells."""
from plant import find

EXPERTS = [f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt" for layer in range(2) for expert in range(4)]
CASE = "moe_ep2_dp4_z1_fp32"
EXPECT = [{"check": "missing", "file": name} for name in EXPERTS]
MOST = len(EXPERTS)


def plant(folder):
    for name in EXPERTS:
        find(folder, name).unlink()
