"""Copies of a folder whose tensor files are stored in another form: packed, or compressed by the zstd command."""
import pathlib
import shutil
import struct

import xxhash
import zstandard

from tools import run_tool

TENSOR_ENDINGS = (".pt", ".pth", ".bin", ".safetensors", ".swp")


def is_of_tensors(path):
    return path.name.endswith(TENSOR_ENDINGS)


def pack(source, target, *options):
    done = run_tool("ckpt-pack", "pack", source, target, "-q", *options)
    assert done.returncode == 0, done.stderr
    return target


def one_frame(data):
    """The same as `zstd FILE`."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)


def one_frame_of_unknown_size(data):
    """The same as `zstd < FILE`: the header does not have the content's size."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
    return compressor.compress(data) + compressor.flush()


def _pieces(data, size):
    return [data[i:i + size] for i in range(0, len(data), size)]


def many_frames(data, size=3001):
    """The same as `pzstd`: a skippable frame before each frame has its length."""
    frames = [zstandard.ZstdCompressor(level=1).compress(piece) for piece in _pieces(data, size)]
    return b"".join(struct.pack("<III", 0x184D2A50, 4, len(frame)) + frame for frame in frames) or one_frame(data)


def with_seek_table(data, size=4093, checksums=True):
    """The same as zstd's contrib/seekable_format."""
    pieces = _pieces(data, size)
    frames = [zstandard.ZstdCompressor(level=1).compress(piece) for piece in pieces]
    table = b""
    for piece, frame in zip(pieces, frames):
        table += struct.pack("<II", len(frame), len(piece))
        if checksums:
            table += struct.pack("<I", xxhash.xxh64_intdigest(piece) & 0xFFFFFFFF)
    table += struct.pack("<IBI", len(frames), 0x80 if checksums else 0, 0x8F92EAB1)
    return b"".join(frames) + struct.pack("<II", 0x184D2A5E, len(table)) + table


ZSTD_FORMS = (one_frame, one_frame_of_unknown_size, many_frames, with_seek_table,
              lambda data: with_seek_table(data, 70001, checksums=False))


def zstd_copy(source, target, form=None):
    """A copy of the folder with NAME.zst in place of NAME, in one form or in all forms in turn."""
    source, target = pathlib.Path(source), pathlib.Path(target)
    shutil.copytree(source, target)
    paths = [path for path in sorted(target.rglob("*")) if path.is_file() and is_of_tensors(path)]
    for number, path in enumerate(paths):
        compressed = (form or ZSTD_FORMS[number % len(ZSTD_FORMS)])(path.read_bytes())
        path.with_name(path.name + ".zst").write_bytes(compressed)
        path.unlink()
    return target


def contents(folder):
    """Relative path -> bytes of every file."""
    return {str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file()}
