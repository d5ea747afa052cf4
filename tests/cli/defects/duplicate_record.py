"""A zip program added a changed record instead of replacing the old one: which of the two is read depends on
the reader."""
import warnings
import zipfile

from plant import find

CASE = "z1_bf16_w2"
EXPECT = {"check": "unreadable", "file": "mp_rank_00_model_states.pt"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr(f"{path.stem}/data/0", b"\0" * archive.getinfo(f"{path.stem}/data/0").file_size)
