"""A swap file has more bytes than its sub-group and the padding need: it is another one's."""
from plant import find

CASE = "autotp2_dp2_z3_nvme"
EXPECT = {"check": "layout", "rank": (1, 0)}  # rank 2 of all: data-parallel rank 1, tensor-parallel rank 0


def plant(folder):
    path = sorted(find(folder, "rank02").glob("exp_avg-*.tensor.swp"))[0]
    with open(path, "ab") as file:
        file.write(bytes(1024))
    return {"file": f"offloaded_tensors/rank02/{path.name}", "size": path.stat().st_size}
