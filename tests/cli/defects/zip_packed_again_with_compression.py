"""A shard was unzipped, looked at and zipped again with an ordinary zip program: its records are compressed, and can
no longer be mapped."""
import zipfile

from plant import find, rewrite_zip

CASE = "z2_fp32_radam_w2"
EXPECT = {"check": "unreadable", "file": "zero_pp_rank_0_mp_rank_00_optim_states.pt", "rank": (0, 0)}


def plant(folder):
    rewrite_zip(find(folder, EXPECT["file"]), lambda records: records, zipfile.ZIP_DEFLATED)
