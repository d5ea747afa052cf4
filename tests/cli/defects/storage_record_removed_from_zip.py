"""A script that made a checkpoint smaller dropped a record that the pickle still needs."""
from plant import find, rewrite_zip

CASE = "z3_fp32_persist_w2"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0),
          "member": "data/2"}


def plant(folder):
    rewrite_zip(find(folder, EXPECT["file"]),
                lambda records: [(name, data) for name, data in records if not name.endswith("/data/2")])
