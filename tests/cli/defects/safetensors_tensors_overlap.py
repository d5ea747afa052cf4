"""A header that a script wrote wrongly: two tensors share bytes, and others belong to none."""
import json
import struct

from plant import SINGLE, find

CASE = "z2_bf16_w2"
MADE = SINGLE
EXPECT = {"check": "unreadable", "file": "model.safetensors"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    content = path.read_bytes()
    size, = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + size])
    header["blocks.0.ln_1.bias"]["data_offsets"] = header["blocks.0.ln_1.weight"]["data_offsets"]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size:])
