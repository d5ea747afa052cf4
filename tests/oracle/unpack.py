#!/usr/bin/env python3
"""The contents of a packed file, by a program other than ckpt-pack: the format is small enough for that.

    tests/oracle/unpack.py FILE.dspack > FILE

lib/format/FORMATS.md, "Packed files", has the byte layout. Needs numpy, zstandard and xxhash.
"""
import struct
import sys

import numpy
import xxhash
import zstandard


def decode(frame, size):
    width, rotated = frame[0] & 0x7F, frame[0] & 0x80
    at = 1 + 5 * width
    tail, at = frame[at:at + size % width], at + size % width
    planes = []
    for method, stored in struct.iter_unpack("<BI", frame[1:1 + 5 * width]):
        plane, at = frame[at:at + stored], at + stored
        plane = zstandard.decompress(plane, size // width) if method else plane
        planes.append(numpy.frombuffer(plane, "u1"))
    elements = numpy.stack(planes, axis=1)  # their bytes, the lowest first
    if rotated:
        bits = elements.reshape(-1).view(f"<u{width}")
        elements = bits >> 1 | bits << (8 * width - 1)
    return elements.tobytes() + tail


def contents(data):
    """Frame by frame. Raises AssertionError for what is damaged."""
    assert data[:16] == b"\x89DSPACK\n" + struct.pack("<II", 1, 0), "not a packed file of version 1"
    begin, size, checksum = struct.unpack("<QQQ", data[-32:-8])
    index = data[begin:begin + size]
    assert data[-8:] == b"DSPEND\r\n", "cut short"
    assert xxhash.xxh3_64_intdigest(index + data[-32:-16]) == checksum, "the index is damaged"
    for offset, stored, size, content_hash, stored_hash in struct.iter_unpack("<QIIQQ", index[40:]):
        frame = data[offset:offset + stored]
        assert xxhash.xxh3_64_intdigest(frame) == stored_hash, f"damaged at {offset}"
        content = decode(frame, size)
        assert xxhash.xxh3_64_intdigest(content) == content_hash, f"wrong at {offset}"
        yield content


if __name__ == "__main__":
    for part in contents(open(sys.argv[1], "rb").read()):
        sys.stdout.buffer.write(part)
