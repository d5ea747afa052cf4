"""The common part of the planted defects in defects/: finding a shard, a record or an element in it, and
damaging it.

Each defect is a module with

CASE       the checkpoint of testdata/ that it is planted in
MADE       if there: what is made of that checkpoint first (UNIVERSAL, SHARDED ...)
EXPECT     the finding, or a list of findings, that `ckpt-inspect verify` must report. A tuple means one of several.
           `rank` is (dp, mp); `offset` is that of the damaged record or of the first wrong element
plant      damages the copy in a folder; may return facts that only it knows, which are added to EXPECT
ARGUMENTS  if there: further arguments of verify
MANIFEST   if true, a manifest is written before the defect is planted and checked afterwards
MAY_NAME   if there: other files that findings may name; by default they may name those of EXPECT only
MOST       if there: how many findings are not too many
"""
import pathlib
import zipfile

import torch_files

from cli_common import flip, record_extent, replace_record  # noqa: F401: for defects
from edits import edited, fake_tensor, load_shard, module, optimizer  # noqa: F401: for defects

# A conversion of a checkpoint: a tool and its options.
UNIVERSAL = ("to-universal",)
SHARDED = ("zero-to-fp32", "--safe-serialization", "--max-shard-size=5KB")
SHARDED_BIN = ("zero-to-fp32", "--max-shard-size=5KB")
SINGLE = ("zero-to-fp32", "--safe-serialization")

MASTERS = "single_partition_of_fp32_groups"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 1073741824\n"


def find(folder, name):
    """The file of that name, wherever it is in the checkpoint. `name` may have folders in front."""
    path, = pathlib.Path(folder).rglob(name)
    return path


def record_of(path, tensor):
    """Where the storage of a tensor lies in its file: the record's name, and offset and size of its bytes."""
    content = tensor.storage.bits.tobytes()
    with zipfile.ZipFile(path) as archive:
        name, = (e.filename for e in archive.infolist() if e.file_size == len(content) and archive.read(e) == content)
    member = name.split("/", 1)[1]
    return member, *record_extent(path, member)


def byte_of(path, tensor, element=0):
    """Where an element of a contiguous tensor lies in the zip it was loaded from."""
    return record_of(path, tensor)[1] + (tensor.storage_offset() + element) * tensor.element_size()


def flip_bit(path, pick, element=0, mask=0x01):
    """Flips a bit of an element of the tensor that `pick` chooses, and leaves the checksum alone. Returns the place
    that a wrong checksum has: the whole record."""
    tensor = pick(load_shard(path))
    member, offset, size = record_of(path, tensor)
    flip(path, byte_of(path, tensor, element), mask)
    return {"member": member, "offset": offset, "size": size}


def directory_entry(path, member):
    """Where the central directory's entry of a record begins (APPNOTE 4.3.12)."""
    with zipfile.ZipFile(path) as archive:
        offset = archive.start_dir
        for entry in archive.infolist():
            if entry.filename.split("/", 1)[1] == member:
                return offset
            offset += 46 + len(entry.filename.encode()) + len(entry.extra) + len(entry.comment)
    raise AssertionError(f"no {member} in {path}")


def rewrite_zip(path, change, compression=zipfile.ZIP_STORED):
    """Writes the records that `change` makes of a list of (name, bytes) as a new zip, checksums right."""
    with zipfile.ZipFile(path) as archive:
        records = [(e.filename, archive.read(e)) for e in archive.infolist()]
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in change(records):
            archive.writestr(name, data)


def save_under(path, shard):
    """Saves under another rank's name: not even the zip's folder tells where it comes from."""
    torch_files.save(shard, path)


def swap(first, second):
    spare = first.with_name("spare")
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
