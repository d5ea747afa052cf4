"""Common parts of the oracle tests: the truth about each case as torch tensors, and the comparison of outputs with
it."""
import contextlib
import functools
import os
import pathlib
import tempfile
import unittest

import tools
import torch
from safetensors.torch import load_file
from tools import run_tool

torch.set_num_threads(1)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Case(tools.Case):
    load_file = staticmethod(load_file)

    @staticmethod
    def cast(tensor, dtype):
        return tensor.float().to(DTYPES[dtype])

    @staticmethod
    def array(tensor):
        return tensor.numpy()

    @staticmethod
    def tensor(array):
        return torch.from_numpy(array.copy())


every_case = functools.partial(tools.every_case, kind=Case)
cases_in = functools.partial(tools.cases_in, kind=Case)
all_cases = functools.partial(tools.all_cases, kind=Case)
model_parallel_cases = functools.partial(tools.model_parallel_cases, kind=Case)
case_named = functools.partial(tools.case_named, kind=Case)
case_of_release = functools.partial(tools.case_of_release, kind=Case)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def load_bin(path, **options):
    return torch.load(path, weights_only=True, **options)


class OracleTest(unittest.TestCase):
    maxDiff = None

    @contextlib.contextmanager
    def each_case(self, case):
        """A sub-test with its own scratch folder."""
        with self.subTest(case=case.name), tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)

    def require(self, compared, what):
        """Fails a test that found no case to compare."""
        if not compared and os.environ.get("DSCKPT_CASES"):
            self.skipTest(f"no {what} selected")
        self.assertTrue(compared, f"no {what}")

    def convert(self, source, output, *options):
        """Runs zero-to-fp32. Returns `output`."""
        return self.run_well("zero-to-fp32", output, source, output, *options)

    def convert_to_universal(self, source, output, *options):
        """Runs to-universal. Returns `output`."""
        return self.run_well("to-universal", output, "--input_folder", source, "--output_folder", output, *options)

    def assert_whole_and_harmless(self, checkpoint):
        for command in ("verify", "scan"):
            done = run_tool("ckpt-inspect", command, checkpoint)
            self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")

    def run_well(self, tool, output, *arguments):
        done = run_tool(tool, *arguments)
        self.assertEqual(done.returncode, 0, f"{tool} {arguments}: {done.stderr}")
        return output

    def assert_same_tensors(self, actual, expected):
        self.assertEqual(sorted(actual), sorted(expected))
        for name, value in expected.items():
            got = actual[name]
            self.assertTrue(same_bits(got, value), f"{name}: {got.dtype} {tuple(got.shape)} "
                            f"is not the expected {value.dtype} {tuple(value.shape)}, bit for bit")
