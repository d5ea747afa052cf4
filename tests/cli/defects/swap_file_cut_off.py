"""The disk was full when a swap file was copied."""
from plant import find

CASE = "z3_fp32_nvme_full_w3"
EXPECT = {"check": "layout", "rank": (2, 0), "size": 1000}


def plant(folder):
    path = sorted(find(folder, "rank02").glob("[0-9]*.tensor.swp"))[0]
    with open(path, "r+b") as file:
        file.truncate(1000)
    return {"file": f"offloaded_tensors/rank02/{path.name}"}
