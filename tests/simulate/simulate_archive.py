"""Files as torch.save writes them, of tensors that are zeros, which are holes in the file."""
import collections
import functools
import io
import math
import pathlib
import pickle
import struct
import types
import zlib

import torch_files

SERIALIZATION_ID = b"0" * 40  # torch makes a hash of it, and only logs it


def stand_in(module, name, base=object):
    """A class that pickles under the name of somebody else's class or function."""
    return type(name, (base,), {"__module__": module, "__qualname__": name})


rebuild_tensor = stand_in("torch._utils", "_rebuild_tensor_v2")
rebuild_from_type = stand_in("torch._tensor", "_rebuild_from_type_v2")
TorchTensor = stand_in("torch", "Tensor")
FloatStorage = stand_in("torch", "FloatStorage")
BFloat16Storage = stand_in("torch", "BFloat16Storage")
Size = stand_in("torch", "Size", tuple)
Size.__reduce_ex__ = lambda self, protocol: (Size, (tuple(self),))
FragmentAddress = stand_in("deepspeed.utils.tensor_fragment", "fragment_address")
LossScaler = stand_in("deepspeed.runtime.fp16.loss_scaler", "LossScaler")
ZeroStageEnum = stand_in("deepspeed.runtime.zero.config", "ZeroStageEnum", int)
ZeroStageEnum.__reduce_ex__ = lambda self, protocol: (ZeroStageEnum, (int(self),))
STAND_INS = (rebuild_tensor, rebuild_from_type, TorchTensor, FloatStorage, BFloat16Storage, Size,
             FragmentAddress, LossScaler, ZeroStageEnum)
ELEMENT_SIZE = {FloatStorage: 4, BFloat16Storage: 2}


def stand_ins_importable():
    """pickle looks every class up where its module says it is."""
    modules = {}
    for cls in STAND_INS:
        parts = cls.__module__.split(".")
        for i in range(len(parts)):
            name = ".".join(parts[:i + 1])
            modules.setdefault(name, types.ModuleType(name))
        setattr(modules[cls.__module__], cls.__name__, cls)
    return torch_files.importing(modules)


def with_attributes(result, **attributes):
    result.__dict__.update(attributes)
    return result


class Storage:
    """Zeros but for `values`: {index: number}. bfloat16 has room for 8 bits of it."""

    def __init__(self, numel, kind=FloatStorage, values=None):
        self.numel, self.kind, self.values = numel, kind, values or {}
        self.size = numel * ELEMENT_SIZE[kind]

    def pieces(self):
        """(offset in bytes, bytes) of what is not zero, in order."""
        width = ELEMENT_SIZE[self.kind]
        return [(width * index, struct.pack("<f", value)[-width:]) for index, value in sorted(self.values.items())]


class Tensor:
    """Contiguous elements of its storage, from `offset` on."""

    def __init__(self, storage, shape=None, *, offset=0, requires_grad=False, ds_id=None):
        self.storage, self.offset, self.requires_grad, self.ds_id = storage, offset, requires_grad, ds_id
        self.shape = (storage.numel,) if shape is None else shape

    def __reduce_ex__(self, protocol):
        stride = tuple(math.prod(self.shape[i + 1:]) for i in range(len(self.shape)))
        arguments = (self.storage, self.offset, self.shape, stride, self.requires_grad, collections.OrderedDict())
        if self.ds_id is None:
            return rebuild_tensor, arguments
        return rebuild_from_type, (rebuild_tensor, TorchTensor, arguments, {"ds_id": self.ds_id})


class Pickled:
    """An object's pickle, and the storages that its tensors lie in."""

    def __init__(self, value):
        self.storages, keys = [], {}

        class Pickler(pickle.Pickler):
            def persistent_id(_, item):
                if type(item) is not Storage:
                    return None
                if id(item) not in keys:
                    keys[id(item)] = str(len(self.storages))
                    self.storages.append(item)
                return ("storage", item.kind, keys[id(item)], "cpu", item.numel)

        buffer = io.BytesIO()
        with stand_ins_importable():
            Pickler(buffer, protocol=2).dump(value)
        self.data = buffer.getvalue()


CRC_POLYNOMIAL = 0xEDB88320  # of zip, bits reversed: bit 31 is x to the power of 0


def crc_product(a, b):
    result = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            result ^= b
        b = (b >> 1) ^ CRC_POLYNOMIAL if b & 1 else b >> 1
    return result


@functools.lru_cache(maxsize=None)
def crc_factor(count):
    """The factor of `count` zero bytes for the register: each of them is x to the power of 8."""
    power, square = 1 << 31, 1 << 23
    while count:
        if count & 1:
            power = crc_product(square, power)
        square = crc_product(square, square)
        count >>= 1
    return power


def crc_of_sparse(size, pieces=()):
    """The CRC32 of `size` bytes that are zero but for `pieces`, (offset, bytes). It is linear but for its start."""
    result = crc_product(crc_factor(size), 0xFFFFFFFF) ^ 0xFFFFFFFF
    for offset, data in pieces:
        alone = zlib.crc32(data) ^ zlib.crc32(bytes(len(data)))
        result ^= crc_product(crc_factor(size - offset - len(data)), alone)
    return result


class Archive:
    """A zip file, record by record as torch writes it: lib/format/FORMATS.md."""
    LIMIT = 0xFFFFFFFF

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.file = open(self.path, "wb")
        self.position = 0
        self.directory = []

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if failure[0] is None:
            self.finish()
        self.file.close()

    def write(self, data):
        self.file.write(data)
        self.position += len(data)

    def write_sparse(self, size, pieces):
        for offset, data in pieces:
            self.file.seek(self.position + offset)
            self.file.write(data)
        self.position += size
        self.file.seek(self.position)

    def add(self, name, data):
        self.add_record(name, len(data), [(0, data)], zlib.crc32(data))

    def add_sparse(self, name, size, pieces):
        """A hole of `size` bytes, but for `pieces`: (offset, bytes)."""
        self.add_record(name, size, pieces, crc_of_sparse(size, pieces))

    def add_record(self, name, size, pieces, crc):
        name = f"{self.path.name.rpartition('.')[0]}/{name}".encode()
        header, flags = self.position, 0x0808 if size else 0x0800
        large, far = size >= self.LIMIT, header >= self.LIMIT
        extra = b""
        if large or far:
            sizes = (struct.pack("<QQ", size, 0) if large else b"") + (struct.pack("<Q", header) if far else b"")
            extra = struct.pack("<HH", 1, len(sizes)) + sizes
        # The data begins at a multiple of 64.
        padding = -(header + 30 + len(name) + len(extra) + 4) % 64
        extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
        self.write(struct.pack("<4sHHHIIIIHH", b"PK\3\4", 0, flags, 0, 0, 0, 0, 0, len(name), len(extra)) + name +
                   extra)
        if size:
            self.write_sparse(size, pieces)
            self.write(struct.pack("<4sIQQ" if large or far else "<4sIII", b"PK\7\x08", crc, size, size))
        sizes = (struct.pack("<QQ", size, size) if large else b"") + (struct.pack("<Q", header) if far else b"")
        extra = struct.pack("<HH", 1, len(sizes)) + sizes if sizes else b""
        self.directory.append(struct.pack(
            "<4sHHHHIIIIHHHHHII", b"PK\1\2", 0, 0, flags, 0, 0, crc, min(size, self.LIMIT), min(size, self.LIMIT),
            len(name), len(extra), 0, 0, 0, 0, min(header, self.LIMIT)) + name + extra)

    def finish(self):
        start, count = self.position, len(self.directory)
        self.write(b"".join(self.directory))
        end, size = self.position, self.position - start
        self.write(struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x031E, 45, 0, 0, count, count, size, start))
        self.write(struct.pack("<4sIQI", b"PK\6\7", 0, end, 1))
        self.write(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, min(count, 0xFFFF), min(count, 0xFFFF),
                               min(size, self.LIMIT), min(start, self.LIMIT), 0))


def save(path, pickled):
    with Archive(path) as archive:
        archive.add("data.pkl", pickled.data)
        archive.add(".format_version", b"1")
        archive.add(".storage_alignment", b"64")
        archive.add("byteorder", b"little")
        for i, storage in enumerate(pickled.storages):
            archive.add_sparse(f"data/{i}", storage.size, storage.pieces())
        archive.add("version", b"3\n")
        archive.add(".data/serialization_id", SERIALIZATION_ID)
