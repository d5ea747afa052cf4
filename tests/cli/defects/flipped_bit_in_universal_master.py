"""One bit of a parameter's master is wrong."""
from plant import UNIVERSAL, find, flip_bit

CASE = "z2_bf16_full_b120_w3"
MADE = UNIVERSAL
EXPECT = {"check": "crc", "file": "narrow.weight/fp32.pt"}


def plant(folder):
    return flip_bit(find(folder, EXPECT["file"]), lambda state: state["param"], element=2)
