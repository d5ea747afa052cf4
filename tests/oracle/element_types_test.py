"""Buffers of every element type that torch saves, through every tool, against torch.load."""
import pathlib
import shutil
import tempfile
import warnings

import oracle
import tools
import torch
from oracle import OracleTest
from safetensors.torch import save
from tools import run_tool

warnings.filterwarnings("ignore")  # torch's, on quantised tensors

RAW = ("float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64 complex32 "
       "complex64 complex128 float4_e2m1fn_x2 bits8 bits16 bits1x8 bits2x4 bits4x2 bool").split()
PASSED_ON = [name for name in RAW if "bits" in name or "float4" in name]


def raw(name):
    bits = torch.tensor([0, 1, 0, 1] * 8 if name == "bool" else list(range(32)), dtype=torch.uint8)
    return bits.view(getattr(torch, name)).view(2, -1)


def unread():
    values = torch.arange(6.0).view(2, 3)
    return {
        "qint8": torch.quantize_per_tensor(values, 0.1, 3, torch.qint8),
        "quint8": torch.quantize_per_channel(values, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8),
        "qint32": torch.quantize_per_tensor(values, 0.1, 3, torch.qint32),
        "quint4x2": torch.quantize_per_channel(values, torch.tensor([0.1, 0.2]), torch.tensor([0.0, 1.0]), 0,
                                               torch.quint4x2),
        "sparse": torch.eye(3).to_sparse(),
    }


def as_bytes(tensor):
    if tensor.is_sparse:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        return str(tensor.dtype), bytes(tensor.untyped_storage()), str(tensor)
    return str(tensor.dtype), tuple(tensor.shape), bytes(tensor.contiguous().untyped_storage())


class ElementTypesTest(OracleTest):

    def new_folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def checkpoint(self, buffers):
        """z2_bf16_w2 with these buffers too."""
        folder = self.new_folder() / "ckpt"
        shutil.copytree(oracle.case_named("z2_bf16_w2").load_dir, folder)
        path, = folder.glob("*/mp_rank_00_model_states.pt")
        state = torch.load(path, weights_only=False)
        state["module"].update(buffers)
        state["buffer_names"] += list(buffers)
        torch.save(state, path)
        return folder

    def module_of(self, folder):
        return torch.load(min(pathlib.Path(folder).glob("*/mp_rank_00_model_states.pt")), weights_only=False)["module"]

    def test_opaque_types_are_passed_on_and_the_others_cast_as_torch_casts(self):
        buffers = {name: raw(name) for name in RAW}
        source = self.checkpoint(buffers)
        out = self.new_folder()
        self.convert(source, out / "fp32")
        written = oracle.load_bin(out / "fp32" / "pytorch_model.bin")
        for name, value in buffers.items():
            expected = value.float() if value.is_floating_point() and name not in PASSED_ON else value
            self.assertEqual(as_bytes(written[name]), as_bytes(expected), name)
        self.run_well("zero-to-fp32", out / "asis", source, out / "asis", "--dtype", "keep")
        for name, value in buffers.items():
            self.assertEqual(as_bytes(oracle.load_bin(out / "asis" / "pytorch_model.bin")[name]), as_bytes(value), name)

    def test_a_conversion_of_what_has_none_is_refused_by_name(self):
        source = self.checkpoint({"odd": raw("float4_e2m1fn_x2")})
        done = run_tool("zero-to-fp32", source, self.new_folder() / "o", "--dtype", "bf16")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("odd: cannot convert float4_e2m1fn_x2 to bfloat16", done.stderr)
        self.run_well("zero-to-fp32", None, source, self.new_folder() / "o", "--dtype", "bf16", "--exclude", "odd")

    def test_every_tool_passes_them_on(self):
        buffers = {name: raw(name) for name in RAW} | unread()
        source = self.checkpoint(buffers)
        out = self.new_folder()
        self.run_well("reshard", out / "three", source, out / "three", "--dp", "3")
        self.run_well("ckpt-pack", out / "packed", "pack", source, out / "packed")
        self.run_well("ckpt-pack", out / "unpacked", "unpack", out / "packed", out / "unpacked")
        self.run_well("ckpt-pack", out / "stripped", "strip", source, out / "stripped", "--keep", "resume")
        for folder in ("three", "unpacked", "stripped"):
            found = self.module_of(out / folder)
            for name, value in buffers.items():
                self.assertEqual(as_bytes(found[name]), as_bytes(value), f"{folder}: {name}")
        self.convert_to_universal(source, out / "universal")
        self.assert_whole_and_harmless(source)
        for command in ("stats", "list", "tree"):
            self.run_well("ckpt-inspect", None, command, source)
        self.run_well("ckpt-inspect", None, "diff", source, out / "three")

    def test_a_tensor_that_is_not_read_is_named_and_makes_status_1(self):
        for name, value in unread().items():
            with self.subTest(type=name):
                source = self.checkpoint({"odd": value})
                out = self.new_folder() / "o"
                done = run_tool("zero-to-fp32", "-q", source, out)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("odd", done.stdout + done.stderr)
                self.assertNotIn("odd", oracle.load_bin(out / "pytorch_model.bin"))
                self.run_well("zero-to-fp32", None, source, self.new_folder() / "o", "--exclude", "odd")

    def test_float4_is_as_safetensors_has_it(self):
        value = raw("float4_e2m1fn_x2")
        source = self.checkpoint({"odd": value})
        out = self.new_folder() / "o"
        self.run_well("zero-to-fp32", out, source, out, "--include", "odd", "--safe_serialization")
        file = out / "model.safetensors"
        self.assertEqual(file.read_bytes(), save({"odd": value}, {"format": "pt"}))
        listed = run_tool("ckpt-inspect", "list", file)
        self.assertIn("float4_e2m1fn_x2\t[2, 16]", listed.stdout)


if __name__ == "__main__":
    tools.main()
