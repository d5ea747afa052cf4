"""A state that the manifest does not know was copied into a parameter's folder: no other parameter has it."""
from plant import UNIVERSAL, find, load_shard, save_under

CASE = "z1_fp32_w2"
MADE = UNIVERSAL
MANIFEST = True
EXPECT = {"check": "manifest", "file": "wide.weight/max_exp_avg_sq.pt"}
MAY_NAME = ["zero/wide.weight"]


def plant(folder):
    path = find(folder, "wide.weight/exp_avg_sq.pt")
    save_under(path.with_name("max_exp_avg_sq.pt"), load_shard(path))
