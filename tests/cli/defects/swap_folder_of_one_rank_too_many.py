"""An older checkpoint of the same tag was of more ranks: the last one's swap files are still there."""
from plant import find

CASE = "z3_bf16_nvme_w2"
EXPECT = {"check": "extra", "file": "offloaded_tensors/rank02/7_9.tensor.swp"}


def plant(folder):
    path = find(folder, "offloaded_tensors") / "rank02" / "7_9.tensor.swp"
    path.parent.mkdir()
    path.write_bytes(bytes(2048))
