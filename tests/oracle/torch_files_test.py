"""support/torch_files.py, on which the tests without torch stand, against torch and safetensors themselves: what it
loads, what it saves, how it rounds."""
import argparse
import collections
import os
import pathlib
import pickle
import pickletools
import shutil
import struct
import sys
import tempfile
import types
import unittest
import zipfile

import numpy
import safetensors.torch
import tools
import torch
import torch_files as files

DATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
# Files of a scripted module, of a conjugate, which is refused, and of types that torch itself does not load in
# its old form.
OTHERS = ["formats/torchscript.pt", "formats/conjugate.pt", "formats/rich_legacy.pt"]
FLOATS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


class Unpickler(pickle.Unpickler):
    """Torch's, but for classes that the tests stand in for."""

    def find_class(self, module, name):
        if module == "__builtin__" and name == "getattr":
            return lambda *arguments: files.Reduced(getattr, *arguments)
        there = module.split(".")[0] in {*sys.stdlib_module_names, "__builtin__", "numpy", "torch"}
        return super().find_class(module, name) if there else files.named(module, name)


def load(path):
    module = types.SimpleNamespace(Unpickler=Unpickler, load=pickle.load, __name__="pickle")
    return torch.load(path, weights_only=False, pickle_module=module)


def shards():
    return [path for path in sorted(DATA.rglob("*")) if path.suffix in (".pt", ".pth", ".bin")
            and "malicious" not in path.parts and str(path.relative_to(DATA)) not in OTHERS]


def element_bytes(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def records(path):
    """name -> bytes of the records with content; checksums do not matter."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            entry.CRC = None
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("serialization_id")}


def opcodes(data):
    """The strings of a pickle, and texts where it fetches them from the memo. The equal ones that are one
    object depend on what else a process has interned. The members of sets are sorted, for each process has an
    order of its own."""
    found, memo = [], {}
    for opcode, argument, _ in pickletools.genops(data):
        if "PUT" in opcode.name:
            memo[len(memo)] = found[-1]
            assert argument == len(memo) - 1
        elif "GET" in opcode.name:
            found.append(memo[argument] if memo[argument][0] == "BINUNICODE" else (opcode.name, memo[argument]))
        else:
            found.append((opcode.name, argument))
    for at, (name, argument) in enumerate(found):
        kind = (name, argument) if name == "GLOBAL" else argument
        if kind in [("GLOBAL", "__builtin__ set"), ("GLOBAL", "__builtin__ frozenset")] and found[at + 2][0] == "MARK":
            end = found.index(("APPENDS", None), at)
            found[at + 3:end] = sorted(found[at + 3:end], key=repr)
    return found


class TorchFilesTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)

    def compare(self, ours, theirs):
        """The same values, of the same types and with the same sharing."""
        self.storages = {}
        self.met = set()
        self.compare_values(ours, theirs, "")

    def compare_values(self, ours, theirs, where):
        if (id(ours), id(theirs)) in self.met:
            return
        self.met.add((id(ours), id(theirs)))
        if isinstance(theirs, torch.Tensor):
            self.compare_tensors(ours, theirs, where)
        elif isinstance(theirs, torch.dtype):
            self.assertIs(ours, files.named("torch", str(theirs).removeprefix("torch.")), where)
        elif isinstance(theirs, torch.device):
            self.assertEqual(ours, files.named("torch", "device")(theirs.type), where)
        elif isinstance(theirs, torch.Size):
            self.assertIs(type(ours), files.Size, where)
            self.assertEqual(tuple(ours), tuple(theirs), where)
        else:
            self.assertIs(type(ours), type(theirs), where)
            if isinstance(theirs, dict):
                for one, other in zip(ours, theirs, strict=True):
                    self.compare_values(one, other, where)
                    self.compare_values(ours[one], theirs[other], f"{where}.{other}")
                if getattr(theirs, "__dict__", None):  # _metadata of a module's state
                    self.compare_values(ours.__dict__, theirs.__dict__, where)
            elif isinstance(theirs, (list, tuple, collections.deque)):
                for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                    self.compare_values(one, other, f"{where}[{at}]")
            elif isinstance(theirs, (set, frozenset)):  # of text: equal ones need not have one order
                self.assertEqual(ours, theirs, where)
            elif isinstance(theirs, files.Reduced):
                self.assertEqual(ours.call, theirs.call, where)
            elif isinstance(theirs, (files.StandIn, argparse.Namespace)):
                self.assertEqual(getattr(ours, "made", None), getattr(theirs, "made", None), where)
                self.compare_values(ours.__dict__, theirs.__dict__, where)
            elif isinstance(theirs, numpy.ndarray):
                self.assertTrue(ours.dtype == theirs.dtype and numpy.array_equal(ours, theirs), where)
            else:
                self.assertEqual(repr(ours), repr(theirs), where)  # NaN, too

    def compare_tensors(self, ours, theirs, where):
        self.assertEqual(isinstance(ours, files.Parameter), isinstance(theirs, torch.nn.Parameter), where)
        self.assertEqual(
            (f"torch.{ours.dtype}", ours.shape, ours.stride(), ours.storage_offset(), ours.requires_grad),
            (str(theirs.dtype), tuple(theirs.shape), theirs.stride(), theirs.storage_offset(), theirs.requires_grad), where)
        self.assertEqual(ours.tobytes(), element_bytes(theirs), where)
        storage = theirs.untyped_storage()
        self.assertEqual(ours.storage.bits.nbytes, storage.nbytes(), where)
        self.assertEqual(self.storages.setdefault(id(ours.storage), storage._cdata), storage._cdata, where)
        self.assertEqual(self.storages.setdefault(storage._cdata, id(ours.storage)), id(ours.storage), where)
        self.compare_values(ours.__dict__, theirs.__dict__, where)

    def assert_same_files(self, ours, theirs):
        """Byte by byte, but for what torch makes of the contents as an id, and for texts that are one object or two."""
        mine, torchs = records(ours), records(theirs)
        self.assertEqual(list(mine), list(torchs))
        for name, data in torchs.items():
            if name.endswith("data.pkl"):
                self.assertEqual(opcodes(mine[name]), opcodes(data))
            else:
                self.assertEqual(mine[name], data, name)
        if all(mine[name] == data for name, data in torchs.items()):
            self.assertEqual(self.without_id(ours), self.without_id(theirs))

    def without_id(self, path):
        data = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            entry = archive.infolist()[-1]
        crc = struct.pack("<I", entry.CRC)
        start = data.index(crc, entry.header_offset) - 44
        data[start:start + 40] = bytes(40)
        return bytes(data).replace(crc, bytes(4))

    def test_what_is_loaded_is_what_torch_loads(self):
        for path in shards():
            with self.subTest(path.relative_to(DATA)):
                self.compare(files.load(path), load(path))

    def test_what_is_saved_again_is_what_torch_saves_again(self):
        ours, theirs = self.root / "ours" / "x.pt", self.root / "theirs" / "x.pt"
        for path in [ours, theirs]:
            path.parent.mkdir()
        for path in shards():
            with self.subTest(path.relative_to(DATA)):
                files.save(files.load(path), ours)
                value = load(path)
                sys.modules.update((name, module) for name, module in files.MODULES.items() if name[:5] != "torch")
                torch.save(value, theirs)
                self.assert_same_files(ours, theirs)
                self.compare(files.load(ours), load(path))

    def values(self, t):
        """The values of `t`, torch or this module: one of every kind that tests save."""
        is_torch = t is torch
        tensor = (lambda values, dtype: torch.tensor(values, dtype=getattr(torch, dtype))) if is_torch else t.tensor
        parameter = torch.nn.Parameter if is_torch else t.Parameter
        whole = tensor([[1.5, 2.5, -3.0], [4.0, 5.0, 6.0]], "float32")
        tagged, kept = tensor([1, 2], "int64"), parameter(tensor([7.0], "float32"))
        tagged.ds_id, kept.ds_id = 3, 4
        result = collections.OrderedDict(
            whole=whole, row=whole[1], part=whole[:, 1:], again=whole, one=whole[0, 2],
            turned=whole.t(), parameter=parameter(whole[0]), tagged=tagged, kept=kept,
            frozen=parameter(tensor([1.0], "float32"), requires_grad=False), size=whole.shape, empty=tensor([], "float32"),
            scalar=tensor(2.5, "float32"), numbers=[1, 2**40, -7, 2**70, True, None, 0.5], text="é", data=b"ab",
            dtype=torch.float16 if is_torch else files.named("torch", "float16"),
            device=torch.device("cpu") if is_torch else files.named("torch", "device")("cpu"))
        for dtype in [*FLOATS, "float64", "int64", "int32", "int16", "int8", "uint8"]:
            result[dtype] = tensor([1.0, 2.0, -4.0] if "float" in dtype else [1, 2, 3], dtype)
        if is_torch:
            result.update({dtype: torch.tensor([1, 2], dtype=getattr(torch, dtype))
                           for dtype in ("uint16", "uint32", "uint64")})
            result.update(bool=torch.tensor([True, False]), complex=torch.tensor([1 + 2j]))
        else:
            result.update({dtype: tensor([1, 2], dtype) for dtype in ("uint16", "uint32", "uint64")})
            result.update(bool=tensor([True, False], "bool"), complex=tensor([1 + 2j], "complex64"))
        return result

    def test_what_tests_make_is_saved_as_torch_saves_it(self):
        ours, theirs = self.root / "ours" / "some.name.pt", self.root / "theirs" / "some.name.pt"
        for path in [ours, theirs]:
            path.parent.mkdir()
        for checksums in [True, False]:
            torch.serialization.set_crc32_options(checksums)
            self.addCleanup(torch.serialization.set_crc32_options, True)
            files.save(self.values(files), ours, checksums=checksums)
            torch.save(self.values(torch), theirs)
            self.assert_same_files(ours, theirs)
            self.compare(files.load(theirs), torch.load(ours, weights_only=False))

    def test_what_is_saved_in_the_old_form_is_what_torch_loads(self):
        ours, theirs = self.root / "ours.pt", self.root / "theirs.pt"
        known = [{name: value for name, value in self.values(t).items()
                  if name not in files.TYPES or files.TYPES[name][0]} for t in (files, torch)]
        files.save(known[0], ours, legacy=True)
        torch.save(known[1], theirs, _use_new_zipfile_serialization=False)
        self.compare(files.load(theirs), torch.load(ours, weights_only=False))
        self.compare(files.load(ours), torch.load(theirs, weights_only=False))
        with open(ours, "rb") as one, open(theirs, "rb") as other:
            for _ in range(3):  # the object's pickle has torch's addresses, as have the storages' keys
                self.assertEqual(list(map(str, pickletools.genops(one))), list(map(str, pickletools.genops(other))))
            self.assertEqual(*([name for name, _ in opcodes(file)] for file in (one, other)))

    def test_numbers_are_rounded_as_torch_rounds_them(self):
        bits = numpy.random.default_rng(5).integers(0, 1 << 32, 200_000, numpy.uint32)
        near = numpy.arange(1 << 16, dtype="u4") << 16
        for numbers in [bits.view("f4"), near.view("f4"), (near + 0x8000).view("f4"), (near + 0x7FFF).view("f4")]:
            for dtype in FLOATS:
                limit = {"float8_e4m3fn": 448, "float8_e5m2": 57344}.get(dtype, numpy.inf)
                some = numbers[~(numpy.abs(numbers) > limit)]
                theirs = torch.from_numpy(some.copy()).to(getattr(torch, dtype))
                ours = files.tensor(some).to(dtype)
                nan = numpy.isnan(some)
                self.assertTrue(theirs.isnan().numpy()[nan].all() and numpy.isnan(ours.values)[nan].all(), dtype)
                self.assertEqual(ours.array[~nan].tobytes(), element_bytes(theirs[torch.from_numpy(~nan)]), dtype)

    def test_every_number_of_a_type_is_decoded(self):
        for dtype in FLOATS[1:]:
            size = numpy.dtype(files.TYPES[dtype][2]).itemsize
            bits = numpy.arange(1 << 8 * size, dtype=f"u{size}")
            theirs = torch.from_numpy(bits.copy()).view(getattr(torch, dtype)).float().numpy()
            ours = files.Tensor(bits.view(files.TYPES[dtype][2]), dtype).values.astype("f4")
            numpy.testing.assert_array_equal(ours, theirs, dtype)

    def test_safetensors_files(self):
        ours, theirs = self.root / "ours.safetensors", self.root / "theirs.safetensors"
        values = [{name: value.contiguous().clone() for name, value in self.values(t).items()
                   if isinstance(value, t.Tensor) and not value.__dict__ and not isinstance(value, t.nn.Parameter if
                                                                                           t is torch else t.Parameter)}
                  for t in (files, torch)]
        for metadata in [None, {"format": "pt"}]:
            files.save_file(values[0], ours, metadata)
            safetensors.torch.save_file(values[1], theirs, metadata)
            self.assertEqual(ours.read_bytes(), theirs.read_bytes())
        for path in [theirs, *DATA.rglob("expected/module.safetensors")]:
            self.compare_loaded(path)

    def compare_loaded(self, path):
        found, expected = files.load_file(path), safetensors.torch.load_file(path)
        self.assertEqual(sorted(found), sorted(expected))
        for name, value in expected.items():
            self.assertEqual((f"torch.{found[name].dtype}", found[name].shape, found[name].tobytes()),
                             (str(value.dtype), tuple(value.shape), element_bytes(value)), (path, name))

    def test_the_tools_take_what_is_saved_again(self):
        for case in tools.all_cases() + tools.model_parallel_cases():
            folder = self.root / case.name
            shutil.copytree(case.load_dir, folder)
            for path in folder.rglob("*.pt"):
                path.chmod(0o644)
                files.save(files.load(path), path)
            done = tools.run_tool("ckpt-inspect", "verify", folder)
            self.assertEqual(done.returncode, 0, f"{case.name}: {done.stdout}{done.stderr}")
            shutil.rmtree(folder)


if __name__ == "__main__":
    tools.main()
