"""unpack.py, which knows the packed format from its description alone, agrees with ckpt-pack."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

import oracle
import stored_forms
import tools
import unpack

SCRIPT = pathlib.Path(__file__).with_name("unpack.py")

CASES = {"z2_fp32_full_w3", "z3_bf16_full_w6", "z2_bf16_legacyserial_w2", "z1_bf16_writer_pyzip_w2", "z3_bf16_nvme_w2",
         "hf_trainer_gpt2_z2_bf16_w2", "hf_trainer_llama_z1_bf16_w3"}
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64,
          torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


def random_tensor(dtype, count, generator):
    """Tensors of random bytes, but for the types that have uneven ones in practice."""
    if dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        return torch.randn(count, generator=generator, dtype=torch.float64).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    data = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return data.view(dtype)


class UnpackTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-unpack-")
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)

    def assert_both_unpack(self, source):
        """Packs a folder; the packed files by name."""
        packed = stored_forms.pack(source, self.root / "packed")
        done = tools.run_tool("ckpt-pack", "unpack", packed, self.root / "unpacked")
        self.assertEqual(done.returncode, 0, done.stderr)
        files = sorted(packed.rglob("*.dspack"))
        self.assertTrue(files)
        for path in files:
            name = path.relative_to(packed).with_suffix("")
            content = b"".join(unpack.contents(path.read_bytes()))
            self.assertTrue(content == (source / name).read_bytes(), name)
            self.assertTrue(content == (self.root / "unpacked" / name).read_bytes(), name)
        return files

    def test_files_of_real_checkpoints_come_back(self):
        cases = [case for case in oracle.all_cases() if case.name in CASES]
        self.assertEqual(len(cases), len(CASES))
        for case in cases:
            with self.subTest(case.name), tempfile.TemporaryDirectory() as self.root:
                self.root = pathlib.Path(self.root)
                self.assert_both_unpack(case.load_dir)

    def test_all_types_and_shapes_come_back(self):
        generator = torch.Generator().manual_seed(5)
        source = self.root / "source"
        source.mkdir()
        widths = set()
        for dtype in DTYPES:
            tensors = {"large": random_tensor(dtype, 30001, generator), "scalar": random_tensor(dtype, 1, generator)[0],
                       "empty": torch.empty(0, 7, dtype=dtype), "one": random_tensor(dtype, 1, generator)}
            tensors["view"] = tensors["large"][5:5000:3]
            torch.save(tensors, source / f"{dtype}.pt".removeprefix("torch."))
        torch.save(torch.randn(1 << 20, generator=generator), source / "frames.pt")
        torch.save({str(i): torch.randn(2000, generator=generator).to(DTYPES[i % 4]) for i in range(300)}, source / "small.bin",
                   _use_new_zipfile_serialization=False)
        for path in self.assert_both_unpack(source):
            data = path.read_bytes()
            begin = int.from_bytes(data[-32:-24], "little")
            for at in range(begin + 40, len(data) - 32, 32):
                widths.add(data[int.from_bytes(data[at:at + 8], "little")])
        # Every layout of planes was met: of 1, 2, 4 and 8 bytes, and rotated ones of 2 and 4.
        self.assertEqual(widths, {1, 2, 4, 8, 0x82, 0x84})

    def test_a_flipped_bit_anywhere_is_refused(self):
        source = self.root / "source"
        source.mkdir()
        generator = torch.Generator().manual_seed(6)
        torch.save({"a": torch.randn(1200, generator=generator), "b": torch.zeros(3000, dtype=torch.bfloat16)},
                   source / "x.pt")
        path, = self.assert_both_unpack(source)
        data = path.read_bytes()
        for offset in range(0, len(data), 3):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << offset % 8
            with self.assertRaises(AssertionError, msg=f"at {offset}"):
                b"".join(unpack.contents(bytes(damaged)))
        for size in (len(data) - 1, len(data) // 2, 20, 0):
            with self.assertRaises((AssertionError, ValueError, unpack.struct.error), msg=f"of {size} bytes"):
                b"".join(unpack.contents(data[:size]))

    def test_as_a_program_it_writes_the_file(self):
        source = self.root / "source"
        source.mkdir()
        torch.save({"a": torch.arange(5000.)}, source / "x.pt")
        path, = self.assert_both_unpack(source)
        done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(done.stdout, (source / "x.pt").read_bytes())
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        self.assertNotEqual(subprocess.run([sys.executable, SCRIPT, path], capture_output=True).returncode, 0)

    def test_it_has_fewer_than_fifty_lines(self):
        self.assertLess(len(SCRIPT.read_text().splitlines()), 50)


if __name__ == "__main__":
    tools.main()
