"""rsync was killed: the shard lies under the temporary name only."""
from plant import find

CASE = "z2_fp32_full_w3"
EXPECT = {"check": "missing", "file": "zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0)}


def plant(folder):
    path = find(folder, EXPECT["file"])
    path.rename(path.with_name(f".{path.name}.Zk3bQ1"))
