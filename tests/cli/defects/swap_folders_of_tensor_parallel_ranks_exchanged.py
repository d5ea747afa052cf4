"""The swap folders of two tensor-parallel ranks, whose slices are not of one size, have changed places."""
from plant import find

CASE = "autotp2_dp2_z3_nvme"
EXPECT = [{"check": "layout"}]
MOST = 60


def plant(folder):
    first, second = find(folder, "rank00"), find(folder, "rank01")
    names = tuple(f"offloaded_tensors/{rank.name}/{file.name}" for rank in (first, second) for file in rank.iterdir())
    first.rename(first.with_name("aside"))
    second.rename(first)
    first.with_name("aside").rename(second)
    return {"file": names}
