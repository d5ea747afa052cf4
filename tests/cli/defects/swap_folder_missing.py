"""The swap files of one rank were on a disk that is gone."""
import shutil

from plant import find

CASE = "z3_bf16_nvmeparam_w2"  # its only sub-group has three of them
EXPECT = {"check": "missing", "rank": (0, 0)}


def plant(folder):
    path = find(folder, "rank00")
    names = tuple(f"offloaded_tensors/rank00/{file.name}" for file in path.iterdir())
    shutil.rmtree(path)
    return {"file": names}
