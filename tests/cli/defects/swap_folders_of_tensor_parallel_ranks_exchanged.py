"""The swap folders of two tensor-parallel ranks, which are cut into other sub-groups, have changed places."""
from plant import find

CASE = "autotp2_dp2_z3_nvme"
EXPECT = [{"check": "missing"}, {"check": "extra"}]
MOST = 60


def plant(folder):
    first, second = find(folder, "rank00"), find(folder, "rank01")
    names = tuple(f"offloaded_tensors/{rank.name}/{file.name}" for rank in (first, second)
                  for files in (first, second) for file in files.iterdir())
    first.rename(first.with_name("aside"))
    second.rename(first)
    first.with_name("aside").rename(second)
    return {"file": names}
