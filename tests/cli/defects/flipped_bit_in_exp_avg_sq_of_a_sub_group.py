"""One bit of the second moment in stage 3's second sub-group is wrong."""
from plant import find, flip_bit

CASE = "z3_bf16_full_subgroups_w4"
EXPECT = {"check": "crc", "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    def pick(shard):
        return shard["optimizer_state_dict"]["optimizer_state_dict"]["state"][1]["exp_avg_sq"]

    return flip_bit(find(folder, EXPECT["file"]), pick, element=184)
