"""The machine went down after `latest` had been given its length."""
from plant import find

CASE = "z3_fp32_full_w1"
EXPECT = {"check": "latest", "file": "latest"}


def plant(folder):
    path = find(folder, "latest")
    path.write_bytes(bytes(path.stat().st_size))
