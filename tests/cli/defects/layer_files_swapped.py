"""Two layers of a pipeline have the same shapes, and were renamed to each other's names."""
from plant import find, swap

CASE = "pp2_dp1_z1_bf16"
EXPECT = [{"check": "wrong-rank", "file": f"layer_{layer:02}-model_states.pt"} for layer in (1, 2)]


def plant(folder):
    swap(*(find(folder, finding["file"]) for finding in EXPECT))
