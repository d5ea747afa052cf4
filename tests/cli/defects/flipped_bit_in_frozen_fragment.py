"""One bit of a rank's fragment of a frozen parameter is wrong."""
from plant import find, flip_bit

CASE = "z3_fp32_full_w2"
EXPECT = {"check": "crc", "file": "zero_pp_rank_1_mp_rank_00_model_states.pt", "rank": (1, 0)}


def plant(folder):
    def pick(shard):
        return shard["frozen_param_fragments"]["frozen_adapter.0.weight"]

    return flip_bit(find(folder, EXPECT["file"]), pick, element=3)
