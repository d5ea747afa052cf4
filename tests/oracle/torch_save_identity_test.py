"""TorchArchiveWriter's files are torch.save's, byte for byte but for the serialization id; the
safetensors layout is save_file's, byte for byte.

Environment: DSCKPT_BIN is the folder of write_torch_archive and repack_safetensors.
"""
import io
import json
import os
import pathlib
import random
import subprocess
import tempfile
import unittest
import zipfile

import torch
from safetensors.torch import save_file

TYPES = ("float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float4_e2m1fn_x2 "
         "float8_e8m0fnu int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64").split()


def tensor_of(name, *shape):
    dtype = getattr(torch, name)
    count = torch.Size(shape).numel()
    if name == "bool":
        return (torch.arange(count) % 2 == 0).view(shape)
    raw = torch.arange(count * dtype.itemsize, dtype=torch.int64).to(torch.uint8)
    return raw.view(dtype).view(shape)


def tool(name, *arguments):
    binary = pathlib.Path(os.environ["DSCKPT_BIN"]) / name
    subprocess.run([str(binary), *map(str, arguments)], check=True, timeout=120)


def without_serialization_id(data):
    """The file with the id's 40 digits and its CRC (descriptor and directory) zeroed."""
    data = bytearray(data)
    with zipfile.ZipFile(io.BytesIO(bytes(data))) as archive:
        assert archive.testzip() is None
        entry = archive.infolist()[-1]
        assert entry.filename.endswith("/.data/serialization_id") and entry.file_size == 40
        digits = archive.read(entry)
        assert digits.isdigit()
        directory = archive.start_dir
    at = data.index(digits)
    data[at:at + 40] = bytes(40)
    crc = entry.CRC.to_bytes(4, "little")
    for where in (at + 44, data.index(b"PK\1\2", data.rindex(b"PK\1\2", directory)) + 16):
        assert data[where:where + 4] == crc
        data[where:where + 4] = bytes(4)
    return bytes(data)


class TorchSaveIdentity(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(lambda: subprocess.run(["rm", "-rf", str(self.folder)]))

    def check(self, obj, plan, storages, name="pytorch_model.bin"):
        (self.folder / "plan.json").write_text(json.dumps(plan))
        save_file(storages, self.folder / "in.safetensors")
        (self.folder / "ours").mkdir()
        tool("write_torch_archive", self.folder / "plan.json", self.folder / "in.safetensors", self.folder / "ours",
             name)
        ours = self.folder / "ours" / name
        torch.save(obj, self.folder / name)
        self.assertEqual(without_serialization_id(ours.read_bytes()),
                         without_serialization_id((self.folder / name).read_bytes()))
        first = ours.read_bytes()
        tool("write_torch_archive", self.folder / "plan.json", self.folder / "in.safetensors", self.folder / "ours",
             name)
        self.assertEqual(first, ours.read_bytes())
        for mmap in (False, True):
            loaded = torch.load(ours, weights_only=True, mmap=mmap)
            self.assertEqual(list(loaded), list(obj))

    def test_every_dtype(self):
        tensors = {name: tensor_of(name, 2, 3) for name in TYPES}
        self.check(tensors, {"dict": [[name, {"storage": name}] for name in tensors]}, tensors)

    def test_views_of_one_storage_empty_and_scalar_tensors_and_tied_names(self):
        flat = torch.arange(24, dtype=torch.float32)
        tensors = {"flat": flat, "empty": torch.empty(0, 3), "scalar": torch.tensor(3.0),
                   "other": torch.ones(5, dtype=torch.uint16)}
        obj = {
            "view": flat[6:18].view(3, 4),
            "transposed": flat[6:18].view(3, 4).t(),
            "empty": tensors["empty"],
            "all": flat,
            "scalar": tensors["scalar"].requires_grad_(),
            "strided": flat[1::5],
            "tail": tensors["other"][3:],
        }
        obj["tied"] = obj["view"]
        obj["more"] = [obj["all"], 7, -300, 70000, 2**40, {"é": 1}]
        self.check(
            obj,
            {"dict": [
                ["view", {"storage": "flat", "shape": [3, 4], "offset": 6}],
                ["transposed", {"storage": "flat", "shape": [4, 3], "offset": 6, "stride": [1, 4]}],
                ["empty", {"storage": "empty"}],
                ["all", {"storage": "flat"}],
                ["scalar", {"storage": "scalar", "grad": True}],
                ["strided", {"storage": "flat", "shape": [5], "offset": 1, "stride": [5]}],
                ["tail", {"storage": "other", "shape": [2], "offset": 3}],
                ["tied", {"tied": "view"}],
                ["more", {"list": [{"tied": "all"}, 7, -300, 70000, 2**40, {"dict": [["é", 1]]}]}],
            ]},
            {name: tensor.detach() for name, tensor in tensors.items()})

    def test_many_small_tensors(self):
        # more than 256 memo entries, more than 1000 dict items, sizes around the alignment
        tensors = {f"layer.{i}.weight": torch.arange(i % 70, dtype=torch.uint8) for i in range(1500)}
        self.check(tensors, {"dict": [[name, {"storage": name}] for name in tensors]}, tensors)

    def test_record_prefix_of_odd_file_names(self):
        for name in ("a.b.c.bin", "noextension", "größe.bin", "x" * 100 + ".pt"):
            with self.subTest(name):
                for path in ("ours", "in.safetensors", "plan.json", name):
                    subprocess.run(["rm", "-rf", str(self.folder / path)])
                tensors = {"w": torch.ones(3)}
                self.check(tensors, {"dict": [["w", {"storage": "w"}]]}, tensors, name)


class SafetensorsIdentity(unittest.TestCase):
    def check(self, tensors, metadata=None):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            save_file(tensors, folder / "python.safetensors", metadata)
            tool("repack_safetensors", folder / "python.safetensors", folder, "ours.safetensors")
            self.assertEqual((folder / "ours.safetensors").read_bytes(),
                             (folder / "python.safetensors").read_bytes())

    def test_every_dtype_and_order(self):
        tensors = {f"{name}.{i}": tensor_of(name, i, 2) for name in TYPES for i in (3, 1, 0)}
        self.check(tensors, {"format": "pt"})

    def test_names_that_need_escapes(self):
        names = ["", "~", "é", "😀", "\u2028", '"quoted"', "back\\slash", "\n\t\b\f\r", "\x00\x01\x1f\x7f", "/"]
        self.check({name: torch.ones(2) for name in names}, {"é\n\"\x02": "\\ value \x7f"})

    def test_no_tensors(self):
        self.check({})
        self.check({}, {"format": "pt"})

    def test_shapes(self):
        self.check({"scalar": torch.tensor(1.0), "empty": torch.empty(0), "wide": torch.empty(0, 5, 3),
                    "one": torch.ones(1, 1, 1), "bytes": torch.ones(3, dtype=torch.uint8)})

    def test_header_lengths_around_the_padding(self):
        for length in range(1, 18):
            self.check({"x" * length: torch.ones(1)})

    def test_random_mixtures(self):
        draw = random.Random(7)
        for _ in range(20):
            self.check({f"t{draw.randrange(1000)}": tensor_of(draw.choice(TYPES), draw.randrange(4), draw.randrange(4))
                        for _ in range(draw.randrange(1, 30))}, {"format": "pt"})


if __name__ == "__main__":
    unittest.main()
