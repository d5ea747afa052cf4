"""ckpt-inspect scan of files that torch, transformers and picklers of their objects write. They are harmless.
The scan of a file with two directories takes the one that torch reads."""
import argparse
import collections
import pathlib
import pickle
import random

import numpy
import tools
import torch
from scan_case import Payload, ScanCase, with_a_second_directory
from transformers import TrainingArguments


class ScanTest(ScanCase):

    def test_what_trainers_save_passes(self):
        folder = self.new_path("saved")
        folder.mkdir()
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(optimizer.state_dict(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
        torch.save(scheduler.state_dict(), folder / "scheduler.pt")
        torch.save({"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.get_rng_state(),
                    "generator": numpy.random.default_rng(3)}, folder / "rng_state.pth")
        torch.save({"w": model.weight, "sparse": torch.eye(3).to_sparse(), "size": torch.Size([3]),
                    "types": [torch.bfloat16, torch.float8_e4m3fn], "where": torch.device("cpu"),
                    "quantised": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
                    "path": pathlib.PurePosixPath("a/b"), "counts": collections.Counter("ab"),
                    "scalar": numpy.float32(3), "array": numpy.arange(3)}, folder / "mixed.ckpt")
        self.assert_harmless_beside_plain_files(folder)

    def test_training_arguments_pass(self):
        path = self.new_path("training_args.bin")
        torch.save(TrainingArguments(output_dir=str(self.root / "x"), use_cpu=True), path)
        data = self.assert_harmless(path)
        self.assertIn("transformers.training_args.TrainingArguments", [f["global"] for f in data["findings"]])

    def test_harmless_names_are_harmless_as_torch_uses_them(self):
        for value in [argparse.Namespace(a=1, b=torch.float32), torch.Size([2]), torch.bfloat16, torch.device("cpu", 0)]:
            for protocol in range(6):
                with self.subTest(value=value, protocol=protocol):
                    self.assert_harmless(self.written(pickle.dumps(value, protocol)))
        tagged, parameter = torch.ones(2), torch.nn.Parameter(torch.ones(2))
        tagged.tag = parameter.tag = "x"
        per_channel = torch.quantize_per_channel(torch.ones(3, 2), torch.ones(3), torch.zeros(3), 0, torch.qint8)
        tensors = [torch.ones(2), tagged, parameter, torch.nn.Parameter(torch.ones(2)), torch.eye(3).to_sparse(),
                   torch.eye(3).to_sparse_csr(), torch.ones(2, device="meta"), per_channel, torch.Generator(),
                   torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.float8_e4m3fn)]
        path = self.new_path("tensors.pt")
        for form in ({}, {"_use_new_zipfile_serialization": False}):
            for number, value in enumerate(tensors):
                with self.subTest(number=number, form=form):
                    torch.save(value, path, **form)
                    self.assert_harmless(path)

    def test_torch_reads_the_second_directory_too(self):
        plain, file = self.root / "plain.pt", self.root / "model.pt"
        torch.save({"w": torch.zeros(4)}, plain)
        file.write_bytes(with_a_second_directory(plain.read_bytes(), "plain/data/0", {
            "archive/data.pkl": pickle.dumps(Payload(), 2), "archive/byteorder": b"little", "archive/version": b"3\n"
        }))
        with self.assertRaisesRegex(pickle.UnpicklingError, "posix.system"):
            torch.load(file, weights_only=True)
        self.assertIn("posix.system", {finding["global"] for finding in self.scanned(file, code=1)["findings"]})


if __name__ == "__main__":
    tools.main()
