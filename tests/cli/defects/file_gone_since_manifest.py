"""A file that no check needs is gone: a manifest knows it."""
from plant import find

CASE = "hf_trainer_gpt2_z2_bf16_w2"
MANIFEST = True
EXPECT = {"check": ("manifest", "missing"), "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"}


def plant(folder):
    find(folder, EXPECT["file"]).unlink()
