"""dsckpt.open: tensors without elements, and slices without any of others, give what NumPy gives.

By the compiled module, whose folder DSCKPT_NATIVE names, or by the program alone. The files are written here.
"""
import json
import os
import pathlib
import struct
import sys
import tempfile
import unittest

if not os.environ.get("DSCKPT_NATIVE"):
    sys.modules["dsckpt_native"] = None  # import of it fails

import numpy

import dsckpt
from dsckpt._reader import is_native

os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"
DTYPES = {"F32": "<f4", "F16": "<f2", "I64": "<i8", "BOOL": "?"}
SHAPES = [(0,), (0, 3), (3, 0), (2, 0, 4), (4, 3, 0), (0, 0), (1, 0, 0, 2), (3, 4), (5,), ()]
KEYS = [..., slice(None), slice(1, 2), slice(0, 0), slice(5, 2), slice(None, None, 2), slice(None, None, -1),
        slice(-2, None), 0, -1, 1, 7, (slice(1, None), slice(0, 0)), (0, slice(None, None, 2)), (..., 0), (1, 0),
        (slice(None), slice(None), 1)]


def write_safetensors(path, arrays):
    header, data = {}, b""
    for name, (dtype, array) in arrays.items():
        begin = len(data)
        data += array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class EmptyTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.arrays = {}
        for code, kind in DTYPES.items():
            for shape in SHAPES:
                array = numpy.arange(int(numpy.prod(shape))).reshape(shape).astype(kind)
                self.arrays[f"{code}.{'x'.join(map(str, shape))}"] = code, array
        write_safetensors(self.folder / "model.safetensors", self.arrays)

    def assert_same(self, got, expected):
        got, expected = numpy.asarray(got), numpy.asarray(expected)
        self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
        self.assertTrue((got == expected).all())

    def test_the_reader_is_the_one_that_is_tested(self):
        self.assertEqual(is_native(), bool(os.environ.get("DSCKPT_NATIVE")))

    def test_whole_tensors(self):
        for mmap in (False, True):
            opened = dsckpt.open(self.folder, framework="np", mmap=mmap)
            together = opened.state_dict()
            self.assertEqual(set(together), set(self.arrays))
            for name, (_, array) in self.arrays.items():
                with self.subTest(name, mmap=mmap):
                    self.assert_same(together[name], array)
                    if not array.size or "F32" in name:
                        self.assert_same(opened[name].numpy(), array)
                        self.assertEqual((opened[name].numel, opened[name].nbytes), (array.size, array.nbytes))

    def test_nothing_but_empty_ones(self):
        opened = dsckpt.open(self.folder, framework="np")
        names = [name for name, (_, array) in self.arrays.items() if not array.size]
        told = []
        together = opened.state_dict(names, progress=lambda done, total: told.append((done, total)))
        self.assertEqual(list(together), names)
        self.assertTrue(all(done == total for done, total in told))

    def test_slices(self):
        for check in (True, False, "later"):
            opened = dsckpt.open(self.folder, framework="np", check=check)
            for name, (code, array) in self.arrays.items():
                if code != "F32" or array.size and check is not True:
                    continue
                for key in KEYS:
                    with self.subTest(name, key=key, check=check):
                        try:
                            expected = array[key]
                        except IndexError:
                            with self.assertRaises(IndexError):
                                opened[name][key]
                            continue
                        self.assert_same(opened[name][key], expected)
            opened.finish_checks()

    def test_iteration(self):
        opened = dsckpt.open(self.folder, framework="np")
        for name in ("F32.0x3", "F32.3x0", "F32.4x3x0"):
            rows = list(opened[name])
            self.assertEqual(len(rows), len(self.arrays[name][1]))
            for got, expected in zip(rows, self.arrays[name][1]):
                self.assert_same(got, expected)


if __name__ == "__main__":
    unittest.main()
