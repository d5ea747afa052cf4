"""The disk was full when `latest` was written."""
from plant import find

CASE = "hf_accelerate_gpt2_z2_fp32_w2"
EXPECT = {"check": "latest", "file": "latest"}


def plant(folder):
    find(folder, "latest").write_bytes(b"")
