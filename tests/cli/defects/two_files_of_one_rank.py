"""The run changed to bf16 and saved over the same tag: two files claim to be the same rank's."""
from plant import find, load_shard, save_under

CASE = "z2_bf16_w2"
NEW, OLD = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"
EXPECT = {"check": "extra", "file": (OLD, NEW), "rank": (1, 0)}


def plant(folder):
    new = find(folder, NEW)
    save_under(new.with_name(OLD), load_shard(new))
