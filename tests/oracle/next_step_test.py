"""The line of Python that a run of a tool ends with loads what it wrote."""
import pathlib
import shutil
import tempfile
import unittest

import accelerate
import oracle
import safetensors.torch
import tools
import torch
import torch.distributed.checkpoint
import transformers
from tools import run_tool

TRAINER = "hf_trainer_gpt2_z2_bf16_w2"


class NextStepTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-next-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.case = oracle.case_named(TRAINER)
        self.truth = self.case.truth()

    def next_of(self, tool, *arguments):
        ran = run_tool(tool, *arguments)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stderr.splitlines()[-1].split(": next: ")[1]

    def model(self):
        """Random values."""
        torch.manual_seed(1)
        config = transformers.AutoConfig.from_pretrained(next(self.case.load_dir.rglob("config.json")).parent)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    def assert_loaded(self, model):
        state = model.state_dict()
        for name, value in self.truth.items():
            self.assertTrue(torch.equal(state[name].float(), value.float()), name)

    def test_transformers_loads_the_folder(self):
        line = self.next_of("zero-to-fp32", self.case.load_dir, self.folder / "out", "--safe-serialization")
        self.assert_loaded(eval(line, {"GPT2LMHeadModel": transformers.GPT2LMHeadModel}))

    def test_a_model_takes_the_files(self):
        # A folder without the configuration: of the tag alone.
        source = shutil.copytree(self.case.tag_folder, self.folder / "tag")
        for i, options in enumerate([[], ["--safe-serialization"], ["--safe-serialization", "--max-shard-size=20KB"],
                                     ["--max-shard-size=20KB"]]):
            with self.subTest(options=options):
                model = self.model()
                line = self.next_of("zero-to-fp32", source, self.folder / f"out{i}", *options)
                eval(line, {"model": model, "torch": torch, "safetensors": safetensors, "accelerate": accelerate})
                self.assert_loaded(model)

    def test_dcp_loads_the_folder(self):
        line = self.next_of("to-dcp", self.case.load_dir, self.folder / "out", "--dp=2")
        state_dict = {"model": {name: torch.empty(value.shape) for name, value in self.truth.items()}}
        eval(line, {"torch": torch, "state_dict": state_dict})
        for name, value in self.truth.items():
            self.assertTrue(torch.equal(state_dict["model"][name], value.float()), name)


if __name__ == "__main__":
    tools.main()
