"""One bit of the header before a record's data is wrong: the name there is not the one in the directory."""
import zipfile

from plant import find, flip

CASE = "z2_bf16_fusedadam_w2"
EXPECT = {"check": "unreadable", "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0),
          "member": "data/2"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with zipfile.ZipFile(path) as archive:
        header = archive.getinfo(f"{path.stem}/data/2").header_offset
    flip(path, header + 30)
