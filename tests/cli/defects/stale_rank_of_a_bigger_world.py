"""The run was restarted with fewer ranks and saved over the same tag: a shard of the former fifth rank is left."""
from plant import find, load_shard, save_under

CASE = "z2_bf16_w4"
EXPECT = {"check": "extra", "file": "bf16_zero_pp_rank_4_mp_rank_00_optim_states.pt", "rank": (4, 0)}


def plant(folder):
    last = find(folder, "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt")
    save_under(last.with_name(EXPECT["file"]), load_shard(last))
