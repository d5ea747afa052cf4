"""One of the files of a sharded model was not uploaded."""
from plant import SHARDED

CASE = "z2_fp32_full_w3"
MADE = SHARDED
EXPECT = {"check": ("index", "missing"), "file": ("model-00002-of-00004.safetensors", "model.safetensors.index.json")}


def plant(folder):
    second = sorted(folder.glob("model-00002-of-*.safetensors"))[0]
    second.unlink()
    return {"file": (second.name, "model.safetensors.index.json")}
