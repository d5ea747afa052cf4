"""The newest save was deleted to make room, and `latest` still names it."""
from plant import find

CASE = "z1_fp32_w1"
EXPECT = {"check": "latest", "file": "latest"}


def plant(folder):
    find(folder, "latest").write_text("global_step4")
