"""Two exports were merged by hand: a tensor lies in two files, with different values. The index knows one."""
import json

from torch_files import load_file, save_file

from plant import SHARDED

CASE = "z3_bf16_w2"
MADE = SHARDED
EXPECT = {"check": "index", "tensor": "conv.bias"}


def plant(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    right = index["conv.bias"]
    other = max(set(index.values()) - {right})
    tensors = load_file(folder / other)
    tensors["conv.bias"] = load_file(folder / right)["conv.bias"]
    tensors["conv.bias"] += 1
    save_file(tensors, folder / other)
    return {"file": (other, right, "model.safetensors.index.json")}
