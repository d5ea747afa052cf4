"""A tensor is in a file, but not in the index: it is never loaded."""
import json

from plant import SHARDED, find

CASE = "z2_bf16_w4"
MADE = SHARDED
EXPECT = {"check": "index", "tensor": "conv.weight"}


def plant(folder):
    path = find(folder, "model.safetensors.index.json")
    index = json.loads(path.read_text())
    holder = index["weight_map"].pop("conv.weight")
    path.write_text(json.dumps(index))
    return {"file": (path.name, holder)}
