"""16-bit weights without masters: written as exact float32 casts, said to be none, refused where masters are needed."""
import json
import pathlib
import tempfile

import tools
import torch
from oracle import OracleTest
from safetensors import safe_open
from tools import run_tool

STATE = {"body.weight": torch.randn(5, 3).bfloat16(), "body.bias": torch.randn(5).half(), "steps": torch.tensor([7])}


def save_16bit_model(folder):
    """engine.py save_16bit_model, zero_to_fp32's own name for the file."""
    folder.mkdir()
    torch.save(STATE, folder / "pytorch_model.bin")


def plain_module(folder):
    """Checkpoints of an engine without an optimizer, such as one for inference."""
    (folder / "global_step3").mkdir(parents=True)
    (folder / "latest").write_text("global_step3")
    torch.save({"module": STATE, "buffer_names": ["steps"], "optimizer": None, "param_shapes": None},
               folder / "global_step3" / "mp_rank_00_model_states.pt")


def module_alone(folder):
    """A file of an inference export, which has no key but `module`."""
    folder.mkdir()
    torch.save({"module": STATE}, folder / "mp_rank_00_model_states.pt")


class WithoutMastersTest(OracleTest):

    def folders(self):
        for make in (save_16bit_model, plain_module, module_alone):
            with self.subTest(make.__name__), tempfile.TemporaryDirectory() as scratch:
                source = pathlib.Path(scratch) / "source"
                make(source)
                yield make, source, pathlib.Path(scratch)

    def test_they_are_cast_and_said_to_be_none(self):
        for _, source, scratch in self.folders():
            done = run_tool("zero-to-fp32", source, scratch / "out", "--safe-serialization", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIs(json.loads(done.stdout)["data"]["masters"], False)
            with safe_open(scratch / "out" / "model.safetensors", "pt") as file:
                self.assertEqual(file.metadata()["masters"], "none")
                written = {name: file.get_tensor(name) for name in file.keys()}
            self.assert_same_tensors(written, {name: value.float() if value.is_floating_point() else value
                                               for name, value in STATE.items()})
            done = run_tool("zero-to-fp32", source, scratch / "again")
            self.assertIn("(weights without fp32 masters)", done.stderr)

    def test_what_needs_masters_refuses_them(self):
        for make, source, scratch in self.folders():
            done = run_tool("reshard", source, scratch / "out", "--dp", 2)
            if make is save_16bit_model:  # which are not a checkpoint, but can begin one
                self.assertEqual(done.returncode, 2)
                self.assertIn("weights do not tell the optimizer and its parameter groups", done.stderr)
                continue
            self.assertEqual(done.returncode, 3)
            self.assertIn("neither fp32 masters nor optimizer states", done.stderr)
            done = run_tool("to-universal", "--input_folder", source, "--output_folder", scratch / "out")
            self.assertEqual(done.returncode, 3)
            self.assertIn("neither fp32 masters nor optimizer states", done.stderr)


if __name__ == "__main__":
    tools.main()
