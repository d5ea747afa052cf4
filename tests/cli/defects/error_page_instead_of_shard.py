"""The download answered with a login page, which was saved under the shard's name."""
from plant import find

CASE = "hf_trainer_llama_z3_bf16_w2"
EXPECT = {"check": "unreadable", "file": "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "rank": (0, 0)}


def plant(folder):
    page = b"<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head></html>\n"
    find(folder, EXPECT["file"]).write_bytes(page)
