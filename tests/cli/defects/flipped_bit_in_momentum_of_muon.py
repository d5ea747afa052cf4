"""One bit of Muon's momentum, which is bf16 and longer than the rank's partition, is wrong."""
from plant import find, flip_bit

CASE = "z2_bf16_muon_w2"
EXPECT = {"check": "crc", "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    def pick(shard):
        return shard["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["momentum_buffer"]

    return flip_bit(find(folder, EXPECT["file"]), pick, element=1924)
