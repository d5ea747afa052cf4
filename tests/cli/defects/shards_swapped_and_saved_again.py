"""A script loaded two ranks' shards and saved each under the other's name. Only the contents tell: the slices
of parameters that a rank says it has."""
from plant import find, load_shard, save_under

CASE = "z2_fp32_full_w3"
FILES = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 2)]
EXPECT = {"check": ("wrong-rank", "layout"), "file": tuple(FILES)}
MAY_NAME = FILES


def plant(folder):
    first, last = (find(folder, name) for name in FILES)
    shards = load_shard(first), load_shard(last)
    save_under(last, shards[0])
    save_under(first, shards[1])
