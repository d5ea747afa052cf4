"""Somebody compressed a shard to save space and gave it its old name back."""
import gzip

from plant import find

CASE = "z1_fp32_fusedadam_w2"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    path.write_bytes(gzip.compress(path.read_bytes()))
