"""A universal parameter that the manifest does not know was copied in."""
import shutil

from plant import UNIVERSAL, find

CASE = "z1_fp32_w2"
MADE = UNIVERSAL
MANIFEST = True
EXPECT = {"check": "manifest", "file": "wide.weight/max_exp_avg_sq.pt"}
MAY_NAME = ["wide.weight/max_exp_avg_sq.pt"]


def plant(folder):
    path = find(folder, "wide.weight/exp_avg.pt")
    shutil.copy(path, path.with_name("max_exp_avg_sq.pt"))
