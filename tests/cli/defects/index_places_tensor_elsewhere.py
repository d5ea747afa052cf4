"""The index says that a tensor lies in a file that does not have it."""
import json

from plant import SHARDED, find

CASE = "z3_bf16_w2"
MADE = SHARDED
EXPECT = {"check": "index", "tensor": "wide.bias"}


def plant(folder):
    path = find(folder, "model.safetensors.index.json")
    index = json.loads(path.read_text())
    right = index["weight_map"]["wide.bias"]
    wrong = min(file for file in index["weight_map"].values() if file != right)
    index["weight_map"]["wide.bias"] = wrong
    path.write_text(json.dumps(index))
    return {"file": (path.name, wrong, right)}
