"""The repository was cloned without git lfs."""
from plant import LFS_POINTER, UNIVERSAL, find

CASE = "z1_fp16_full_b120_w2"
MADE = UNIVERSAL
EXPECT = {"check": "unreadable", "file": "wide.bias/exp_avg.pt"}


def plant(folder):
    find(folder, EXPECT["file"]).write_bytes(LFS_POINTER)
