"""TorchArchiveWriter::import() makes the same copy as torch.save(torch.load(file)). It has equal objects of the
same types with the same sharing, of every shard in testdata and of objects made to be difficult.

Environment: DSCKPT_BIN is the folder of copy_torch_archive, DSCKPT_TESTDATA that of the shards.
"""
import argparse
import collections
import datetime
import fractions
import functools
import os
import pathlib
import pickle
import subprocess
import tempfile
import types
import unittest
import zipfile

import numpy
import torch

PLAIN = (type(None), bool, int, float, complex, str, bytes, type, types.FunctionType, types.BuiltinFunctionType,
         torch.dtype, torch.device, torch.memory_format, torch.layout)


class Comparison:
    """Walks two objects side by side; whatever is one object on the left must be one on the right."""

    def __init__(self, test):
        self.test = test
        self.pairs = {}  # id -> id, and back
        self.storages = {}
        self.kept = []  # so that no id comes twice
        self.tensors = 0

    def same_pair(self, pairs, left, right, path):
        self.test.assertEqual(pairs.setdefault(("left", left), right), right, f"{path}: sharing differs")
        self.test.assertEqual(pairs.setdefault(("right", right), left), left, f"{path}: sharing differs")

    def check(self, left, right, path="root"):
        todo = [(left, right, path)]
        while todo:
            left, right, path = todo.pop()
            self.test.assertIs(type(left), type(right), path)
            if isinstance(left, PLAIN):
                self.test.assertEqual(repr(left), repr(right), path)
                continue
            known = ("left", id(left)) in self.pairs
            # There is one empty tuple, and torch makes a torch.Size anew each time.
            if not (type(left) is tuple and not left) and not isinstance(left, torch.Size):
                self.same_pair(self.pairs, id(left), id(right), path)
            if known:
                continue
            self.kept += [left, right]
            todo += self.parts(left, right, path)

    def parts(self, left, right, path):
        if isinstance(left, torch.Tensor):
            self.check_tensor(left, right, path)
            return [(left.__dict__, right.__dict__, f"{path}.__dict__")]
        if isinstance(left, torch.UntypedStorage):
            self.check_storage(left, right, path)
            return []
        if isinstance(left, torch.storage.TypedStorage):
            self.test.assertEqual(left.dtype, right.dtype, path)
            self.check_storage(left.untyped(), right.untyped(), path)
            return []
        if isinstance(left, numpy.ndarray) and left.dtype != object:
            self.test.assertEqual((left.dtype, left.shape), (right.dtype, right.shape), path)
            self.test.assertEqual(left.tobytes(), right.tobytes(), path)
            return []
        if isinstance(left, (set, frozenset)):
            self.test.assertEqual(left, right, path)
            return []
        out = []
        if isinstance(left, (list, tuple)):
            self.test.assertEqual(len(left), len(right), path)
            out += [(a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(left, right))]
        if isinstance(left, dict):
            self.test.assertEqual(len(left), len(right), path)
            for (a_key, a), (b_key, b) in zip(left.items(), right.items()):
                out += [(a_key, b_key, f"{path} key"), (a, b, f"{path}[{a_key!r}]")]
        if type(left) in (list, tuple, dict, collections.OrderedDict, torch.Size):
            return out
        a, b = left.__reduce_ex__(2), right.__reduce_ex__(2)
        if isinstance(a, str):
            self.test.assertEqual(a, b, path)
            return out
        self.kept += [a, b]
        return out + [(x, y, f"{path} reduced {i}") for i, (x, y) in enumerate(zip(a[:3], b[:3]))]

    def check_tensor(self, left, right, path):
        self.tensors += 1
        for name in ("dtype", "shape", "requires_grad", "layout", "device"):
            self.test.assertEqual(getattr(left, name), getattr(right, name), f"{path}.{name}")
        self.test.assertEqual(left.stride(), right.stride(), path)
        self.test.assertEqual(left.storage_offset(), right.storage_offset(), path)
        self.check_storage(left.untyped_storage(), right.untyped_storage(), path)

    def check_storage(self, left, right, path):
        self.test.assertEqual(left.nbytes(), right.nbytes(), path)
        if left.nbytes() == 0:
            return
        known = ("left", left.data_ptr()) in self.storages
        self.same_pair(self.storages, left.data_ptr(), right.data_ptr(), f"{path} storage")
        if not known:
            whole = [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in (left, right)]
            self.test.assertTrue(torch.equal(*whole), f"{path}: bytes differ")


class Scaler:
    """A class with attributes, some of which point back."""

    def __init__(self):
        self.scale = 2.0**16
        self.me = self
        self.history = [self, 1]


class Slots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a, self.b = torch.ones(2), "b"


class Keywords:
    def __new__(cls, *, size):
        made = super().__new__(cls)
        made.size = size
        return made

    def __getnewargs_ex__(self):
        return (), {"size": self.size}


def difficult():
    flat = torch.arange(24, dtype=torch.float32)
    shared = [1, "two", flat[3:7]]
    cyclic = [shared]
    cyclic.append(cyclic)
    ring = {"list": cyclic}
    ring["ring"] = ring
    deep = []
    for _ in range(400):
        deep = [deep]
    parameter = torch.nn.Parameter(flat[8:16].view(2, 4).t())
    parameter.ds_id = (0, "x")
    return {
        "numbers": [0, -1, 2**40, 2**100, -2**200, 0.1, float("nan"), float("-inf"), True, None],
        "texts": ["", "é😀", "\ud800", b"", b"\x00\xff", bytearray(b"abc"), "x" * 70000],
        "sets": [set(), {1, 2}, frozenset({"a"}), ()],
        "shared": [shared, (shared, shared), {"again": shared}],
        "cyclic": cyclic,
        "ring": ring,
        "deep": deep,
        "ordered": collections.OrderedDict(b=1, a=flat),
        "default": collections.defaultdict(list, {1: [2]}),
        "counter": collections.Counter("abca"),
        "objects": [Scaler(), Slots(), Keywords(size=3), argparse.Namespace(a=1, b=[2]), fractions.Fraction(2, 3),
                    datetime.timedelta(3), functools.partial(int, base=2), range(3), complex(1, 2)],
        "classes": [Scaler, int, range, map, collections.OrderedDict, torch.optim.SGD, torch.float16,
                    torch.Size([2, 3])],
        "numpy": [numpy.arange(6).reshape(2, 3), numpy.float64(0.5)],
        "views": [flat, flat[6:18].view(3, 4), flat[6:18].view(3, 4).t(), flat[1::5], flat[:0]],
        "empty": [torch.empty(0), torch.empty(0, 3, dtype=torch.int8), torch.tensor(3.0)],
        "parameter": [parameter, parameter, torch.nn.Parameter(torch.ones(2), requires_grad=False)],
        "types": [torch.arange(6).to(dtype) for dtype in (
            torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.complex64)],
        "storages": [flat._typed_storage(), torch.ones(3, dtype=torch.int32)._typed_storage()],
        # The legacy form has no untyped storages.
        "untyped": [torch.arange(9, dtype=torch.uint8).untyped_storage(), torch.arange(5).to(torch.uint16)[1:],
                    torch.arange(7.0).to(torch.float8_e5m2)],
    }


class TorchCopy(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def copied(self, path, *arguments):
        binary = pathlib.Path(os.environ["DSCKPT_BIN"]) / "copy_torch_archive"
        subprocess.run([str(binary), str(path), str(self.folder), "copy.pt", *arguments], check=True, timeout=120,
                       stderr=subprocess.PIPE, text=True)
        return self.folder / "copy.pt"

    def compare(self, path, *arguments):
        copy = self.copied(path, *arguments)
        with zipfile.ZipFile(copy) as archive:
            self.assertIsNone(archive.testzip())
            self.assertEqual(len([name for name in archive.namelist() if "/data/" in name]),
                             self.number_of_storages(path))
        comparison = Comparison(self)
        comparison.check(torch.load(path, weights_only=False), torch.load(copy, weights_only=False))
        return comparison

    def number_of_storages(self, path):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return len([name for name in archive.namelist() if "/data/" in name])
        keys = set()
        with open(path, "rb") as file:
            for _ in range(3):  # magic number, protocol version, system info
                pickle.load(file)
            reader = pickle.Unpickler(file)

            def persistent_load(saved_id):
                keys.add(saved_id[2])
                return torch.storage.TypedStorage(wrap_storage=torch.UntypedStorage(saved_id[4] * 16),
                                                  dtype=getattr(saved_id[1], "dtype", torch.uint8), _internal=True)

            reader.persistent_load = persistent_load
            reader.load()
        return len(keys)

    def test_difficult_objects_in_both_forms(self):
        for zipped in (True, False):
            for arguments in ((), ("ITEMS",)):
                with self.subTest(zipped=zipped, arguments=arguments):
                    saved = difficult()
                    if not zipped:
                        del saved["untyped"]
                    torch.save(saved, self.folder / "in.pt", _use_new_zipfile_serialization=zipped)
                    comparison = self.compare(self.folder / "in.pt", *arguments)
                    self.assertGreaterEqual(comparison.tensors, 15)

    def test_a_view_of_a_storage_in_the_legacy_form_is_refused(self):
        for view in (None, ("2", 1, 3)):
            with self.subTest(view=view):
                with open(self.folder / "in.pt", "wb") as file:
                    pickle.dump(torch.serialization.MAGIC_NUMBER, file, 2)
                    pickle.dump(torch.serialization.PROTOCOL_VERSION, file, 2)
                    pickle.dump({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, file, 2)
                    pickler = pickle.Pickler(file, 2)
                    pickler.persistent_id = lambda part: (
                        ("storage", torch.FloatStorage, "1", "cpu", 6, view)
                        if isinstance(part, torch.storage.TypedStorage) else None)
                    pickler.dump([torch.arange(3.0)])
                    pickle.dump(["1"], file, 2)
                    file.write((6).to_bytes(8, "little") + torch.arange(6.0).numpy().tobytes())
                if view is None:
                    self.compare(self.folder / "in.pt")
                    continue
                with self.assertRaises(subprocess.CalledProcessError) as caught:
                    self.copied(self.folder / "in.pt")
                self.assertIn("a view of a storage", caught.exception.stderr)

    def test_every_shard_in_testdata(self):
        shards = 0
        for path in sorted(pathlib.Path(os.environ["DSCKPT_TESTDATA"], "checkpoints").rglob("*")):
            if path.suffix not in (".pt", ".bin", ".pth") or not path.is_file():
                continue
            shards += 1
            with self.subTest(path.name, folder=path.parent.name):
                self.compare(path)
        self.assertGreater(shards, 100)


if __name__ == "__main__":
    unittest.main()
