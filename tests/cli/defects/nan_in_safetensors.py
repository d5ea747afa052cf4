"""A weight of an exported model is NaN. safetensors has no checksums."""
import json
import struct

from plant import SINGLE, find

CASE = "z1_fp16_w2"
MADE = SINGLE
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "model.safetensors", "tensor": "blocks.1.mlp.1x1.weight"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    content = bytearray(path.read_bytes())
    size, = struct.unpack_from("<Q", content)
    entry = json.loads(content[8:8 + size])[EXPECT["tensor"]]
    assert entry["dtype"] == "F32"
    at = 8 + size + entry["data_offsets"][0] + 4 * 12
    struct.pack_into("<f", content, at, float("nan"))
    path.write_bytes(content)
    return {"offset": at}
