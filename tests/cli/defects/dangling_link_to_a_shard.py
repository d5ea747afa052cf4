"""A cache of downloads links its files to blobs; the blobs were cleaned away."""
from plant import find

CASE = "hf_accelerate_llama_z3_fp32_w2"
EXPECT = {"check": ("unreadable", "missing"), "file": "zero_pp_rank_1_mp_rank_00_model_states.pt", "rank": (1, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    path.unlink()
    path.symlink_to("../../blobs/0a1b2c3d")
