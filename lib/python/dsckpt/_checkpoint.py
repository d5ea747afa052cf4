"""A checkpoint as a mapping of names to lazy tensors."""
import math
import os
import threading
import weakref
from collections.abc import Mapping
from numbers import Integral

from ._errors import UnsupportedError, UsageError
from ._reader import open_reader

_NUMPY = {
    "float64": "f8", "float32": "f4", "float16": "f2", "int64": "i8", "int32": "i4", "int16": "i2", "int8": "i1",
    "uint64": "u8", "uint32": "u4", "uint16": "u2", "uint8": "u1", "bool": "?", "complex64": "c8",
    "complex128": "c16",
}  # fmt: skip


class Checkpoint(Mapping):
    """What `dsckpt.open()` returns: names to `Tensor`s, in the order of DeepSpeed's zero_to_fp32.

    Nothing but metadata is read before a tensor is used. Tensors stay valid when this object is gone. Any thread
    may use both.

    path: as it was given. notes: what a user should know, a list of texts.
    """

    def __init__(self, path, *, check, mmap, framework, **options):
        self.path = path
        self._checks = _LaterChecks() if check == "later" else None
        self._check, self._mmap, self._framework, self._options = check is True, mmap, framework, options
        self._lock = threading.Lock()
        self._with_states = None
        self._reader = open_reader(path, **options)
        self._tensors = {entry[0]: Tensor(self, self._reader, index, entry)
                         for index, entry in enumerate(self._reader.tensors()) if not entry[1]}

    @property
    def notes(self):
        return self._reader.notes()

    def __getitem__(self, name):
        return self._tensors[name]

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)

    def __repr__(self):
        return f"<dsckpt.Checkpoint {os.fspath(self.path)!r}, {len(self)} tensor{'s' * (len(self) != 1)}>"

    def state_dict(self, names=None, *, progress=None):
        """The tensors called `names` (default: all) as a dictionary, read together, on all cores.

        Values are torch tensors, with framework="np" arrays. Tied ones are the same object's memory. progress: as
        convert()'s.
        """
        chosen = {name: self[name] for name in (self if names is None else names)}
        own = {}
        for tensor in chosen.values():
            own.setdefault(tensor._owner()._index, tensor._owner())
        elements = dict(zip(own, self._read(list(own.values()), progress)))
        read = {index: self._as_array(own[index], *elements[index]) for index in own}
        return {name: read[tensor._owner()._index] for name, tensor in chosen.items()}

    def finish_checks(self):
        """Waits for the checks that ``check="later"`` has begun, and raises what the first wrong record gave."""
        if self._checks:
            self._checks.finish()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.finish_checks()

    def _read(self, tensors, progress=False):
        """(bytes, strides in elements or None) of each"""
        found = {}
        if self._checks:
            self._checks.begin(tensors)
        if self._mmap:
            for tensor in tensors:
                view = tensor._reader.view(tensor._index)
                if view is not None:
                    if self._check:
                        tensor._reader.check(tensor._index, None)
                    found[tensor._index] = view
        rest = [tensor for tensor in tensors if tensor._index not in found]
        if rest:
            from ._tool import shown
            with shown("reading", progress) as report:
                ranges = [(tensor._index, 0, tensor.numel) for tensor in rest]
                gathered = rest[0]._reader.gather(ranges, self._check, report)
            found.update((tensor._index, (data, None)) for tensor, data in zip(rest, gathered))
        return [found[tensor._index] for tensor in tensors]

    def _as_array(self, tensor, data, strides, shape=None):
        make = _numpy if self._framework == "np" else _torch
        return make(data, tensor.dtype, tensor.shape if shape is None else shape, strides)

    def _states_of(self, name):
        with self._lock:
            if self._with_states is None:
                reader = open_reader(self.path, states=True, **self._options)
                self._with_states = {}
                for index, entry in enumerate(reader.tensors()):
                    if entry[1]:
                        states = self._with_states.setdefault(entry[0], {})
                        states[entry[1]] = Tensor(self, reader, index, entry)
        return dict(self._with_states.get(name, {}))


class _LaterChecks:
    """Checks in a thread of its own. Each wrong record is raised once: by the next call, or at the latest at exit."""

    def __init__(self):
        from concurrent.futures import ThreadPoolExecutor
        self._thread = ThreadPoolExecutor(1, "dsckpt-check")
        self._lock = threading.Lock()
        self._begun, self._seen, self._raised = [], set(), set()
        weakref.finalize(self, self._report, self._thread, self._begun, self._raised)

    def begin(self, tensors):
        with self._lock:
            self._raise_first(self._begun, self._raised, lambda check: check.done())
            for tensor in tensors:
                key = (id(tensor._reader), tensor._index)
                if key not in self._seen:
                    self._seen.add(key)
                    self._begun.append(self._thread.submit(tensor._reader.check, tensor._index, None))

    def finish(self):
        with self._lock:
            self._raise_first(self._begun, self._raised)

    @staticmethod
    def _raise_first(begun, raised, wanted=lambda check: True):
        for check in [check for check in begun if wanted(check)]:
            error = check.exception()
            begun.remove(check)
            if error is not None and str(error) not in raised:
                raised.add(str(error))
                raise error

    @classmethod
    def _report(cls, thread, begun, raised):
        """When nobody can ask any more: as Python reports what a finalizer raises."""
        thread.shutdown()
        cls._raise_first(begun, raised)


class Tensor:
    """A tensor of a checkpoint. It is read when its elements are asked for, each time anew.

    name, state: of which parameter, and which of the optimizer's states of it ("": the parameter itself).
    kind: "trainable", "frozen" or "buffer"; of weights "".
    dtype: torch's name, "bfloat16"; float32 of what was trained. shape: a tuple. numel, nbytes: their product.
    alias_of: of a tied one the name of the tensor that it is, else "".

    ``t[...]`` and ``t[2:4, 0]`` give a torch tensor (or an array, by open()'s `framework`); of a first index that
    is a number or a range only those rows are read. ``t.torch()``, ``t.numpy()``, ``torch.from_dlpack(t)`` and
    ``numpy.asarray(t)`` give all of it. The memory is the caller's: writing to it changes no file.

    Reading raises CorruptError for a record that is not what its checksum says, IoError, also for a file that was
    changed or cut meanwhile, and KeyboardInterrupt.
    """

    __slots__ = ("_checkpoint", "_reader", "_index", "name", "state", "kind", "dtype", "shape", "alias_of")

    def __init__(self, checkpoint, reader, index, entry):
        self._checkpoint, self._reader, self._index = checkpoint, reader, index
        self.name, self.state, self.kind, self.dtype, self.shape, self.alias_of = entry

    @property
    def numel(self):
        return math.prod(self.shape)

    @property
    def nbytes(self):
        return self.numel * _SIZES[self.dtype]

    @property
    def files(self):
        """The files that its elements lie in, by their names below the checkpoint's folder."""
        return list(self._reader.files(self._index))

    @property
    def states(self):
        """The optimizer's states of it: {"exp_avg": Tensor, ...}. The first use reads their metadata."""
        if self.state:
            return {}
        return self._checkpoint._states_of(self.name)

    def __repr__(self):
        state = f" {self.state}" if self.state else ""
        return f"<dsckpt.Tensor {self.name!r}{state} {self.dtype} {list(self.shape)}>"

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a 0-dim tensor")
        return self.shape[0]

    def __getitem__(self, key):
        first = key[0] if isinstance(key, tuple) and key else key
        if not self.shape or isinstance(first, bool) or not isinstance(first, (Integral, slice)):
            return self._whole()[key]
        rest = key[1:] if isinstance(key, tuple) else ()
        if isinstance(first, slice):
            begin, end, step = first.indices(self.shape[0])
            if step <= 0:
                return self._whole()[key]
            return self._rows(begin, max(begin, end))[(slice(None, None, step), *rest)]
        row = int(first)
        if not -self.shape[0] <= row < self.shape[0]:
            raise IndexError(f"index {row} is out of range for {self!r}")
        row %= self.shape[0]
        return self._rows(row, row + 1)[(0, *rest)]

    def torch(self):
        """All of it as a torch.Tensor."""
        return _torch(*self._elements())

    def numpy(self):
        """All of it as a numpy.ndarray. bfloat16 and float8 need the package ml_dtypes."""
        return _numpy(*self._elements())

    def contiguous(self):
        """torch(): what DeepSpeed's lazy tensors answer."""
        return self.torch()

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options):
        array = self.numpy() if self.dtype in _NUMPY else self.torch()
        return array.__dlpack__(**options)

    def __dlpack_device__(self):
        return 1, 0  # kDLCPU

    def _owner(self):
        return self._checkpoint[self.alias_of] if self.alias_of and not self.state else self

    def _elements(self):
        (data, strides), = self._checkpoint._read([self])
        return data, self.dtype, self.shape, strides

    def _whole(self):
        data, _, _, strides = self._elements()
        return self._checkpoint._as_array(self, data, strides)

    def _rows(self, begin, end):
        if self._checkpoint._mmap:
            return self._whole()[begin:end]
        if self._checkpoint._checks:
            self._checkpoint._checks.begin([self])
        row = math.prod(self.shape[1:])
        data, = self._reader.gather([(self._index, begin * row, (end - begin) * row)], self._checkpoint._check, None)
        return self._checkpoint._as_array(self, data, None, (end - begin, *self.shape[1:]))


def open(path, *, tag=None, model=None, roots=(), tp_rules=(), check=True, mmap=False, framework="pt"):
    """The checkpoint or weights at `path`, as a mapping of names to lazy tensors.

        >>> ckpt = dsckpt.open("checkpoint-500")                    # doctest: +SKIP
        >>> ckpt["lm_head.weight"][:2]                              # doctest: +SKIP
        tensor([[-0.0101, ...], [0.0123, ...]])
        >>> ckpt["lm_head.weight"].states["exp_avg"].shape          # doctest: +SKIP
        (32000, 4096)

    tag, model, roots, tp_rules: --tag, --model, --root and --tp-rule of the tools.
    check: True: a record's checksum is compared before the first tensor of it is given out, which reads all of the
        record. "later": that is done meanwhile, in another thread; what it finds is raised by the next use of a
        tensor, by finish_checks(), at the end of a `with` block, and printed at exit if it was not raised before.
        False: not at all.
    mmap: tensors that lie in one file as torch can view them are a private mapping, without a copy. If such a file
        is cut or its disk fails, touching the tensor kills the process (SIGBUS). Needs dsckpt-native; without,
        nothing is mapped.
    framework: "pt", indexing gives torch tensors; "np", arrays of NumPy.

    Raises what the tools report, as `Error`s.
    """
    if check not in (True, False, "later"):
        raise UsageError(f"check is True, False or 'later', not {check!r}")
    if framework not in ("pt", "np"):
        raise UsageError(f"framework is 'pt' or 'np', not {framework!r}")
    if isinstance(roots, (str, bytes, os.PathLike)) or isinstance(tp_rules, str):
        raise UsageError("roots and tp_rules are lists")
    return Checkpoint(path, check=check, mmap=mmap, framework=framework, tag=tag, model=model,
                      roots=tuple(roots), tp_rules=tuple(tp_rules))


_SIZES = {**{name: int(code[1:] or 1) for name, code in _NUMPY.items() if code != "?"}, "bool": 1, "bfloat16": 2,
          "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
          "complex32": 4, "float4_e2m1fn_x2": 1, "bits8": 1, "bits16": 2, "bits1x8": 1, "bits2x4": 1,
          "bits4x2": 1}  # fmt: skip


def _torch(data, dtype, shape, strides):
    import torch
    kind = getattr(torch, dtype, None)
    if kind is None:
        raise UnsupportedError(f"this torch has no {dtype}")
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    flat = torch.frombuffer(data, dtype=kind)
    return flat.view(shape) if strides is None else flat.as_strided(shape, strides)


def _numpy(data, dtype, shape, strides):
    import numpy
    if dtype in _NUMPY:
        kind = numpy.dtype(_NUMPY[dtype])
    else:
        try:
            import ml_dtypes
            kind = numpy.dtype(getattr(ml_dtypes, dtype))
        except (ImportError, AttributeError):
            raise UnsupportedError(f"NumPy has no {dtype}", hint="torch() has; or install ml_dtypes") from None
    if 0 in shape:
        return numpy.empty(shape, kind)
    flat = numpy.frombuffer(data, kind)
    if strides is None:
        return flat.reshape(shape)
    steps = [stride * kind.itemsize for stride in strides]
    return numpy.lib.stride_tricks.as_strided(flat, shape, steps)
