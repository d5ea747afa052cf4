"""A cosmic ray, or a disk without checksums: one bit of a rank's saved fp32 masters has changed. torch.load
does not look at the CRC32. The record must be named."""
from plant import MASTERS, find, flip_bit

CASE = "z2_bf16_w4"
EXPECT = {"check": "crc", "file": "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt", "rank": (2, 0)}


def plant(folder):
    return flip_bit(find(folder, EXPECT["file"]), lambda shard: shard["optimizer_state_dict"][MASTERS][0], element=100)
