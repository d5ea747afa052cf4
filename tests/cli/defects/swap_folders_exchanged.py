"""Two ranks' folders of equally long swap files have changed places, which only a manifest tells."""
from plant import find

CASE = "z3_bf16_nvmeparam_w2"
MANIFEST = True
EXPECT = [{"check": "manifest"}]


def plant(folder):
    first, second = find(folder, "rank00"), find(folder, "rank01")
    names = tuple(f"offloaded_tensors/{rank.name}/{file.name}" for rank in (first, second) for file in rank.iterdir())
    first.rename(first.with_name("aside"))
    second.rename(first)
    first.with_name("aside").rename(second)
    return {"file": names}
