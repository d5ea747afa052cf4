"""One bit of a local header is wrong: the length of what stands before the record's data. One defect, said once."""
import zipfile

from plant import find, flip

CASE = "z2_bf16_w2"
EXPECT = {"check": "unreadable", "file": "mp_rank_00_model_states.pt"}
MOST = 1
EXTRA_LENGTH = 28  # APPNOTE 4.3.7


def plant(folder):
    path = find(folder, "mp_rank_00_model_states.pt")
    entry = zipfile.ZipFile(path).getinfo("mp_rank_00_model_states/byteorder")
    flip(path, entry.header_offset + EXTRA_LENGTH, 0x80)
