"""One state's swap file of an optimizer on NVMe was not copied."""
from plant import find

CASE = "z3_bf16_nvme_w2"
EXPECT = {"check": "missing", "rank": (1, 0)}


def plant(folder):
    path = sorted(find(folder, "rank01").glob("exp_avg_sq-*.tensor.swp"))[0]
    path.unlink()
    return {"file": f"offloaded_tensors/rank01/{path.name}"}
