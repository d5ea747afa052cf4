"""One bit of Adam's first moment is wrong. Nothing else in a checkpoint depends on moments, so only the CRC32 can
tell."""
from plant import find, flip_bit

CASE = "z1_fp32_full_w4"
EXPECT = {"check": "crc", "file": "zero_pp_rank_3_mp_rank_00_optim_states.pt", "rank": (3, 0)}


def plant(folder):
    def pick(shard):
        return shard["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"]

    return flip_bit(find(folder, EXPECT["file"]), pick, element=17, mask=0x80)
