"""Files of torch and safetensors, read and written with only NumPy, for tests without torch.

Names are torch's: load, save, Tensor, Parameter, Size, zeros, cat and so on do the same as torch's. Types have names,
"float32". NumPy has no bfloat16 and no 8-bit floats: Tensor.array has their bits, Tensor.values their numbers.

Names in pickles that are not Python's or NumPy's are not imported: named("torch", "float16") stands in for one, and is
saved under that name again. Pickles and archives equal torch's byte by byte; oracle/torch_files_test.py compares them
with torch's own.
"""
import collections
import contextlib
import copyreg
import functools
import io
import itertools
import json
import math
import os
import pathlib
import pickle
import struct
import sys
import threading
import types
import zipfile
import zlib

import numpy

# Name of the type: its storage class in torch, its name in safetensors, NumPy's type for its bits. The order is that
# in which safetensors sorts.
TYPES = {
    "uint64": (None, "U64", "u8"), "int64": ("LongStorage", "I64", "i8"), "float64": ("DoubleStorage", "F64", "f8"),
    "complex64": ("ComplexFloatStorage", "C64", "c8"), "float32": ("FloatStorage", "F32", "f4"),
    "uint32": (None, "U32", "u4"), "int32": ("IntStorage", "I32", "i4"), "bfloat16": ("BFloat16Storage", "BF16", "u2"),
    "float16": ("HalfStorage", "F16", "f2"), "uint16": (None, "U16", "u2"), "int16": ("ShortStorage", "I16", "i2"),
    "float8_e5m2fnuz": (None, "F8_E5M2FNUZ", "u1"), "float8_e4m3fnuz": (None, "F8_E4M3FNUZ", "u1"),
    "float8_e8m0fnu": (None, "F8_E8M0", "u1"), "float8_e4m3fn": (None, "F8_E4M3", "u1"),
    "float8_e5m2": (None, "F8_E5M2", "u1"), "int8": ("CharStorage", "I8", "i1"), "uint8": ("ByteStorage", "U8", "u1"),
    "bool": ("BoolStorage", "BOOL", "?"), "complex128": ("ComplexDoubleStorage", None, "c16")}
_OF_STORAGE = {storage: name for name, (storage, _, _) in TYPES.items() if storage}
_OF_SAFETENSORS = {short: name for name, (_, short, _) in TYPES.items()}


def _fp8_numbers(dtype):
    """The number of each of the 256 bytes."""
    code = numpy.arange(256)
    if dtype == "float8_e5m2":
        return (code << 8).astype("u2").view("f2").astype("f4")
    assert dtype == "float8_e4m3fn", dtype
    exponent, fraction = code >> 3 & 15, code & 7
    size = numpy.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0**(exponent - 7.0))
    return numpy.where(code & 127 == 127, numpy.nan, numpy.where(code < 128, size, -size)).astype("f4")


def decoded(bits, dtype):
    """The numbers of an array of bits: float32 for types that NumPy lacks, else the array itself."""
    if dtype == "bfloat16":
        return numpy.left_shift(bits, 16, dtype="u4").view("f4")
    return _fp8_numbers(dtype)[bits] if dtype.startswith("float8") else bits


def encoded(numbers, dtype):
    """The bits of numbers, rounded like torch: to nearest, ties to even. The largest 8-bit float is the limit."""
    with numpy.errstate(all="ignore"):
        numbers = numpy.asarray(numbers)
        if dtype == "bfloat16":
            bits = numbers.astype("f4").view("u4")
            rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
            return numpy.where(numpy.isnan(numbers), 0x7FC0, rounded).astype("u2")
        if dtype.startswith("float8"):
            sizes = _fp8_numbers(dtype)[:128].astype("f8")
            sizes = sizes[numpy.isfinite(sizes)]
            between = (sizes[1:] + sizes[:-1]) / 2
            low, high = (numpy.searchsorted(between, numpy.abs(numbers), side) for side in ("left", "right"))
            code = numpy.where(numpy.isnan(numbers), 0x7F, numpy.where(low % 2, high, low))
            return (code | numpy.signbit(numbers) << 7).astype("u1")
        return numbers.astype(TYPES[dtype][2], copy=False)


class Storage:
    """The memory of tensors: `bits`, an array of one dimension."""

    def __init__(self, bits, dtype):
        self.bits, self.dtype = bits, dtype


class Tensor:
    """`array` has the tensor's bits. Tensors with the same storage share them. Other attributes are saved with the
    tensor."""
    __slots__ = ("array", "dtype", "storage", "requires_grad", "__dict__")

    def __init__(self, array, dtype, storage=None, requires_grad=False):
        if storage is None:
            storage = Storage(numpy.ascontiguousarray(array).reshape(-1), dtype)
            array = _view(storage, 0, array.shape, _contiguous(array.shape))
        self.array, self.dtype, self.storage, self.requires_grad = array, dtype, storage, requires_grad

    shape = property(lambda self: Size(self.array.shape))
    nbytes = property(lambda self: self.array.nbytes)
    values = property(lambda self: decoded(self.array, self.dtype))

    def dim(self):
        return self.array.ndim

    def numel(self):
        return self.array.size

    def element_size(self):
        return self.array.itemsize

    def is_floating_point(self):
        return "float" in self.dtype

    def data_ptr(self):
        return self.array.__array_interface__["data"][0]

    def storage_offset(self):
        return (self.data_ptr() - self.storage.bits.__array_interface__["data"][0]) // self.array.itemsize

    def stride(self):
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def item(self):
        return self.values.item()

    def tolist(self):
        return self.values.tolist()

    def tobytes(self):
        """The bytes of the elements, one after the other."""
        return self.array.tobytes()

    def clone(self):
        return Tensor(self.array.copy(), self.dtype)

    def contiguous(self):
        return self if self.stride() == _contiguous(self.shape) else self.clone()

    def to(self, dtype):
        return self if dtype == self.dtype else Tensor(encoded(self.values, dtype), dtype)

    def reshape(self, *shape):
        return self._of(self.array.reshape(*shape))

    def t(self):
        return self._of(self.array.T)

    def detach(self):
        return self._of(self.array)

    def _of(self, array):
        """A view of the storage, or NumPy's copy."""
        return Tensor(array, self.dtype, self.storage if numpy.may_share_memory(array, self.storage.bits) else None)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, at):
        at = at if isinstance(at, tuple) else (at, )
        return self._of(self.array[at if at[-1] is Ellipsis else (*at, ...)])

    def __setitem__(self, at, value):
        self.array[at] = encoded(value.values if isinstance(value, Tensor) else value, self.dtype)

    def __float__(self):
        return float(self.item())

    def __add__(self, other):
        return self.clone().__iadd__(other)

    def __iadd__(self, other):
        self[...] = self.values + other
        return self

    def __isub__(self, other):
        return self.__iadd__(-other)

    def __imul__(self, other):
        self[...] = self.values * other
        return self

    def __repr__(self):
        return f"{type(self).__name__}({self.tolist()}, {self.dtype})"

    def __reduce_ex__(self, protocol):
        place = self.storage, self.storage_offset(), tuple(self.shape), self.stride(), self.requires_grad
        rebuild, arguments = named("torch._utils", "_rebuild_tensor_v2"), (*place, collections.OrderedDict())
        if TYPES[self.dtype][0] is None:
            rebuild = named("torch._utils", "_rebuild_tensor_v3")
            arguments += (named("torch", self.dtype), )
        if not self.__dict__:
            return rebuild, arguments
        return named("torch._tensor", "_rebuild_from_type_v2"), (rebuild, named("torch", "Tensor"), arguments,
                                                                 self.__dict__)


class Parameter(Tensor):
    __slots__ = ()

    def __init__(self, data, requires_grad=True):
        super().__init__(data.array, data.dtype, data.storage, requires_grad)

    def __reduce_ex__(self, protocol):
        arguments = self.detach(), self.requires_grad, collections.OrderedDict()
        if self.__dict__:
            return named("torch._utils", "_rebuild_parameter_with_state"), (*arguments, self.__dict__)
        return named("torch._utils", "_rebuild_parameter"), arguments


class Size(tuple):

    def numel(self):
        return math.prod(self)

    def __reduce_ex__(self, protocol):
        return named("torch", "Size"), (tuple(self), )


def _contiguous(shape):
    return tuple(math.prod(max(size, 1) for size in shape[i + 1:]) for i in range(len(shape)))


def _view(storage, offset, shape, stride):
    bits = storage.bits
    return numpy.lib.stride_tricks.as_strided(bits[offset:], shape, [step * bits.itemsize for step in stride])


def _shape(shape):
    """Sizes as separate arguments, or in one tuple or list."""
    return shape[0] if shape and not isinstance(shape[0], int) else shape


def tensor(values, dtype=None):
    """Python's floats become float32, as in torch; arrays keep their type. As in torch, it is a copy."""
    array = numpy.array(values)
    if dtype is None:
        dtype = "float32" if array.dtype == "f8" and not isinstance(values, numpy.ndarray) else array.dtype.name
    return Tensor(encoded(array, dtype), dtype)


def zeros(*shape, dtype="float32"):
    return full(*shape, value=0, dtype=dtype)


def ones(*shape, dtype="float32"):
    return full(*shape, value=1, dtype=dtype)


def full(*shape, value, dtype="float32"):
    return Tensor(numpy.full(_shape(shape), encoded(value, dtype)), dtype)


def arange(count, dtype="int64"):
    return tensor(numpy.arange(count), dtype)


def randn(*shape, random=numpy.random.default_rng(0), dtype="float32"):
    return tensor(random.standard_normal(_shape(shape)), dtype)


def cat(tensors, dim=0):
    dtype, = {each.dtype for each in tensors}
    return Tensor(numpy.concatenate([each.array for each in tensors], dim), dtype)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def equal(a, b):
    """Compares numbers: -0 equals 0, and NaN does not equal NaN."""
    return a.dtype == b.dtype and numpy.array_equal(a.values, b.values)


class Reduced:
    """Pickled as a call of `function` with `arguments`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class StandIn:
    """An object whose class is not importable, kept as it was pickled: the call that made it, and its attributes."""
    __slots__ = ("made", "state", "__dict__")

    def __new__(cls, *arguments):
        self = object.__new__(cls)
        self.made, self.state = (copyreg.__newobj__, (cls, *arguments)), None
        return self

    def __init__(self, *arguments):
        self.made = type(self), arguments

    def __eq__(self, other):
        return type(self) is type(other) and (*self.made, self.state, self.__dict__) == (*other.made, other.state,
                                                                                          other.__dict__)

    def __hash__(self):
        return hash((type(self), repr(self.__dict__)))

    def __reduce_ex__(self, protocol):
        made = self.made
        if protocol < 2 and made == (copyreg.__newobj__, (type(self), )):
            made = copyreg._reconstructor, (type(self), object, None)
        return *made, self.__dict__ or self.state

    def __setstate__(self, state):
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.state = state


MODULES = {}


def named(module, name):
    """A stand-in for the class or function of that name, or for a value such as torch.float32."""
    for part in itertools.accumulate(module.split("."), "{}.{}".format):
        home = MODULES.setdefault(part, types.ModuleType(part))
    if not hasattr(home, name):
        setattr(home, name, type(name, (StandIn, ), {"__module__": module, "__slots__": ()}))
    return getattr(home, name)


def new(kind, **attributes):
    """An object whose class is not importable, as copyreg.__newobj__ makes it."""
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made


for _module, _names in {"torch": ["Size", "Tensor", *TYPES, *_OF_STORAGE], "torch.storage": ["UntypedStorage"],
                        "torch._tensor": ["_rebuild_from_type_v2"],
                        "torch._utils": ["_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
                                         "_rebuild_parameter_with_state"]}.items():
    for _name in _names:
        named(_module, _name)
_importing = threading.Lock()


def importable():
    """Makes the modules of all `named` objects importable: pickle looks for a class before it writes its name."""
    return importing(dict(MODULES))


@contextlib.contextmanager
def importing(modules):
    """Makes these modules, by name, importable for one thread at a time."""
    with _importing:
        before = {name: sys.modules[name] for name in modules if name in sys.modules}
        sys.modules.update(modules)
        try:
            yield
        finally:
            for name in modules:
                del sys.modules[name]
            sys.modules.update(before)


def _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks, metadata=None):
    assert not metadata, metadata  # of a conjugate tensor
    return Tensor(_view(storage, offset, size, stride), storage.dtype, storage, requires_grad)


def _rebuild_tensor_v3(storage, offset, size, stride, requires_grad, hooks, dtype):
    storage.bits, storage.dtype = storage.bits.view(TYPES[dtype.__name__][2]), dtype.__name__
    return _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)


def _with_attributes(tensor, attributes):
    tensor.__dict__.update(attributes)
    return tensor


_BUILDERS = {
    "torch._utils._rebuild_tensor_v2": _rebuild_tensor_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_tensor_v3,
    "torch._utils._rebuild_parameter": lambda data, requires_grad, hooks: Parameter(data, requires_grad),
    "torch._utils._rebuild_parameter_with_state":
        lambda data, requires_grad, hooks, state: _with_attributes(Parameter(data, requires_grad), state),
    "torch._tensor._rebuild_from_type_v2":
        lambda rebuild, kind, arguments, state: _with_attributes(rebuild(*arguments), state),
    "torch.Size": Size,
    **dict.fromkeys(["__builtin__.getattr", "builtins.getattr"], functools.partial(Reduced, getattr))}


class _Unpickler(pickle.Unpickler):
    """`storage_of`: (key, elements, type, or None if bytes are counted) -> Storage."""

    def __init__(self, file, storage_of):
        super().__init__(file, encoding="utf-8")
        self.persistent_load = lambda id: storage_of(id[2], id[4], _OF_STORAGE.get(id[1].__name__))

    def find_class(self, module, name):
        if f"{module}.{name}" in _BUILDERS:
            return _BUILDERS[f"{module}.{name}"]
        if not hasattr(numpy, "_core"):
            module = module.replace("numpy._core", "numpy.core")  # NumPy 1's name
        if module.split(".")[0] in {*sys.stdlib_module_names, "__builtin__", "numpy"}:
            return super().find_class(module, name)
        return named(module, name)


class _Pickler(pickle.Pickler):
    """`storages`: key -> Storage, in the order of their first use."""

    def __init__(self, file, legacy=False):
        super().__init__(file, 2)
        self.storages, self.keys, self.legacy = {}, {}, legacy

    def persistent_id(self, value):
        if not isinstance(value, Storage):
            return None
        key = self.keys.setdefault(id(value), str(len(self.keys)))
        if self.legacy:
            key = str((1 << 46) + 64 * int(key))  # like the address that torch writes as a text each time
        self.storages[key] = value
        name, count = TYPES[value.dtype][0], value.bits.size if TYPES[value.dtype][0] else value.bits.nbytes
        kind = named("torch", name) if name else named("torch.storage", "UntypedStorage")
        return "storage", kind, key, "cpu", count, *((None, ) if self.legacy else ())


def _of_bytes(data, dtype):
    dtype = dtype or "uint8"  # until a tensor has a type
    return Storage(numpy.frombuffer(bytearray(data), TYPES[dtype][2]), dtype)


def load(path):
    """Reads a file of torch.save, a zip or its old form."""
    data = pathlib.Path(path).read_bytes()
    if not data.startswith(b"PK"):
        return _load_legacy(io.BytesIO(data))
    storages = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            entry.CRC = None  # torch does not compare it either
        top = archive.namelist()[0].split("/")[0]

        def storage_of(key, count, dtype):
            if key not in storages or not count:  # as in torch, empty tensors share nothing
                storages[key] = _of_bytes(archive.read(f"{top}/data/{key}"), dtype)
            return storages[key]

        return _Unpickler(io.BytesIO(archive.read(f"{top}/data.pkl")), storage_of).load()


def _load_legacy(file):
    storages = {}

    def storage_of(key, count, dtype):
        if key not in storages or not count:
            storages[key] = _of_bytes(bytes(count * numpy.dtype(TYPES[dtype or "uint8"][2]).itemsize), dtype)
        return storages[key]

    *_, value, keys = (_Unpickler(file, storage_of).load() for _ in range(5))
    for key in keys:
        count, = struct.unpack("<q", file.read(8))
        bits = storages[key].bits
        assert count in (bits.size, bits.nbytes), (key, count)
        bits.view("u1")[:] = numpy.frombuffer(file.read(bits.nbytes), "u1")
    return value


def loads(data):
    """The value of a pickle without storages."""
    return _Unpickler(io.BytesIO(data), None).load()


def dumps(value, protocol=None):
    with importable():
        return pickle.dumps(value, protocol)


def pickled(value):
    """The pickle that torch.save makes of a value, and its storages by key."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    with importable():
        pickler.dump(value)
    return stream.getvalue(), pickler.storages


def save(value, path, **options):
    parts = saved_parts(value, os.path.splitext(os.path.basename(path))[0], **options)
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)


def saved(value, name="archive", **options):
    return b"".join(saved_parts(value, name, **options))


def saved_parts(value, name="archive", legacy=False, checksums=True):
    """The bytes that torch.save writes, in parts: a zip, or its old form with `legacy`. Without `checksums`, the same
    as after set_crc32_options(False)."""
    if legacy:
        return [_legacy(value)]
    pickle_, storages = pickled(value)
    records = [("data.pkl", pickle_), (".format_version", b"1"), (".storage_alignment", b"64"),
               ("byteorder", b"little"), *((f"data/{key}", _bytes_of(storage)) for key, storage in storages.items()),
               ("version", b"3\n"), (".data/serialization_id", b"%020d%020d" % (zlib.crc32(pickle_), len(storages)))]
    return archive_parts([(f"{name}/{record}", data) for record, data in records], checksums)


def _bytes_of(storage):
    """Its bytes, without a copy: checkpoints of tests can be large."""
    return storage.bits.view("u1").data if storage.bits.size else b""


@contextlib.contextmanager
def edited(path, **options):
    """Yields the value in a file. The value that the block leaves is saved under the same name."""
    value = load(path)
    yield value
    save(value, path, **options)


def archive(records, checksums=True):
    return b"".join(archive_parts(records, checksums))


def archive_parts(records, checksums=True):
    """A zip like torch's, in parts: lib/format/FORMATS.md."""
    parts, directory, at = [], bytearray(), 0
    for name, data in records:
        name = name.encode()
        flags, crc, size = 0x0808 if data else 0x0800, zlib.crc32(data) if checksums else 0, len(data)
        directory += struct.pack("<IHHHHIIIIHHHHHII", 0x02014B50, 0, 0, flags, 0, 0, crc, size, size, len(name), 0, 0, 0, 0,
                                 0, at) + name
        padding = -(at + 30 + len(name) + 4) % 64
        head = struct.pack("<IHHHIIIIHH", 0x04034B50, 0, flags, 0, 0, 0, 0, 0, len(name), padding + 4) + name
        head += struct.pack("<2sH", b"FB", padding) + b"Z" * padding
        behind = struct.pack("<IIII", 0x08074B50, crc, size, size) if data else b""
        parts += head, data, behind
        at += len(head) + size + len(behind)
    count, size = len(records), len(directory)
    parts += (directory, struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 0x031E, 45, 0, 0, count, count, size, at),
              struct.pack("<IIQI", 0x07064B50, 0, at + size, 1),
              struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, min(count, 0xFFFF), min(count, 0xFFFF), size, at, 0))
    return parts


def _legacy(value):
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    stream = io.BytesIO()
    for each in 0x1950A86A20F9469CFC6C, 1001, system:
        pickle.dump(each, stream, protocol=2)
    pickler = _Pickler(stream, legacy=True)
    with importable():
        pickler.dump(value)
    pickle.dump(sorted(pickler.storages), stream, protocol=2)
    for _, storage in sorted(pickler.storages.items()):
        stream.write(struct.pack("<q", storage.bits.size) + storage.bits.tobytes())
    return stream.getvalue()


def load_file(path):
    """name -> tensor of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    entries, data = json.loads(data[8:8 + size]), data[8 + size:]
    entries.pop("__metadata__", None)
    return {name: Tensor(_of_bytes(data[slice(*entry["data_offsets"])], _OF_SAFETENSORS[entry["dtype"]]).bits
                         .reshape(entry["shape"]), _OF_SAFETENSORS[entry["dtype"]]) for name, entry in entries.items()}


def save_file(tensors, path, metadata=None):
    """Writes the same as safetensors.torch.save_file."""
    order = list(TYPES)
    entries, data = {"__metadata__": metadata} if metadata else {}, bytearray()
    for name, value in sorted(tensors.items(), key=lambda item: (order.index(item[1].dtype), item[0].encode())):
        entries[name] = {"dtype": TYPES[value.dtype][1], "shape": list(value.shape),
                         "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(header)) + header + data)
