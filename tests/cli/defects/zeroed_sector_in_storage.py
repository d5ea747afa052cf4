"""A sector of a file was never written out before the machine went down: 512 zeros in the middle of the masters."""
import zipfile

from plant import find, record_extent

CASE = "z2_bf16_full_b120_w3"
EXPECT = {"check": "crc", "file": "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}
SECTOR = 512


def plant(folder):
    path = find(folder, EXPECT["file"])
    with zipfile.ZipFile(path) as archive:
        storages = [entry for entry in archive.infolist() if "/data/" in entry.filename]
    largest = max(storages, key=lambda entry: entry.file_size).filename.split("/", 1)[1]
    offset, size = record_extent(path, largest)
    sector = -(-offset // SECTOR) * SECTOR
    assert sector + SECTOR <= offset + size
    content = bytearray(path.read_bytes())
    content[sector:sector + SECTOR] = bytes(SECTOR)
    path.write_bytes(content)
    return {"member": largest, "offset": offset, "size": size}
