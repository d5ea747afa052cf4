"""A swap file that no tensor refers to is left in a rank's folder."""
import shutil

from plant import find

CASE = "z3_bf16_nvme_w2"
EXPECT = {"check": "extra", "file": "offloaded_tensors/rank00/90_91.tensor.swp"}


def plant(folder):
    path = sorted(find(folder, "rank00").glob("[0-9]*.tensor.swp"))[0]
    shutil.copy(path, path.with_name("90_91.tensor.swp"))
