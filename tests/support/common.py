"""What the oracle tests share: the tools, the cases, and the truth about each case.

Environment: DSCKPT_BIN is the folder of the built tools, DSCKPT_TESTDATA the folder testdata/.
DSCKPT_CASES, a regular expression, restricts a run to some cases.
"""
import contextlib
import functools
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import torch
from safetensors.torch import load_file

from lost_race import without_lost_race

torch.set_num_threads(1)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def run_tool(name, *arguments, **options):
    """Runs a tool; returns the finished process, whatever its exit code. `options` go to subprocess.run."""
    binary = pathlib.Path(os.environ["DSCKPT_BIN"]) / name
    options = {"capture_output": True, "text": True, "errors": "replace", "timeout": 120, **options}
    done = subprocess.run([str(binary), *map(str, arguments)], **options)
    done.returncode, done.stderr = without_lost_race(done.returncode, done.stderr)
    return done


def filled(command, source, output):
    """A command's words, with these for IN and OUT."""
    return [{"IN": str(source), "OUT": str(output)}.get(word, word) for word in command]


def reads_object_stores():
    return " s3" in run_tool("dsckpt", "--version").stdout


def skip_without_object_stores():
    """A module's setUpModule()."""
    if not reads_object_stores():
        raise unittest.SkipTest("this build reads no object stores")


class Case:
    """One checkpoint folder and what must come out of it."""

    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name
        self.facts = json.loads((folder / "case.json").read_text())
        self.load_dir = folder / self.facts["load_dir"]
        self.tag_folder = self.load_dir / self.facts["tag"]
        self.stage = self.facts["stage"]
        self.tied = self.facts.get("tied", {})  # alias -> owner; model-parallel cases have them by rank

    def expected(self, name):
        """The tensors of expected/NAME.safetensors, or None where DeepSpeed could not make them."""
        path = self.folder / "expected" / f"{name}.safetensors"
        return load_file(path) if path.exists() else None

    @functools.cached_property
    def masters(self):
        suffix = "|fp32"
        return {key.removesuffix(suffix): value for key, value in self.expected("master").items()
                if key.endswith(suffix)}

    @functools.cached_property
    def module(self):
        return self.expected("module")

    @functools.cached_property
    def frozen(self):
        """Names that --exclude_frozen_parameters leaves out. From stage 2 on DeepSpeed counts a trainable
        parameter without elements among the frozen ones, since no optimizer owns it."""
        empty = [name for name, shape in self.facts["param_shapes"].items() if not math.prod(shape)]
        return {*self.facts["frozen"], *(empty if self.stage >= 2 else [])}

    def truth(self, exclude_frozen=False, dtype="float32", keep_fp32=None):
        """name -> tensor of the whole output, aliases included, from the live engine alone.

        `dtype` is float32, float16, bfloat16, or keep, which leaves alone what has no master.
        """
        skipped = self.frozen if exclude_frozen or self.facts["exclude_frozen_parameters"] else set()
        result = {}
        for name, stored in self.module.items():
            owner = self.tied.get(name, name)
            if owner in skipped:
                continue
            value = self.masters.get(owner, stored)
            if value.is_floating_point() and dtype != "keep":
                wide = keep_fp32 is not None and re.search(keep_fp32, name)
                value = value.float().to(torch.float32 if wide else DTYPES[dtype])
            result[name] = value.contiguous()
        return result

    def without_aliases(self, tensors):
        return {name: value for name, value in tensors.items() if name not in self.tied}


@functools.lru_cache(maxsize=None)
def every_case(folder):
    root = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / folder
    return [Case(path.parent) for path in sorted(root.glob("*/case.json"))]


def cases_in(folder):
    """Those that DSCKPT_CASES, a regular expression, leaves; everything without it."""
    wanted = re.compile(os.environ.get("DSCKPT_CASES", ""))
    return [case for case in every_case(folder) if wanted.search(case.name)]


def all_cases():
    """The data-parallel cases: every tool is to read them."""
    return cases_in("checkpoints")


def model_parallel_cases():
    return cases_in("model_parallel")


def case_named(name):
    """The case of that name, whatever DSCKPT_CASES leaves out."""
    case, = (c for folder in ("checkpoints", "model_parallel") for c in every_case(folder) if c.name == name)
    return case


def case_of_release(name):
    case, = (each for each in every_case("releases") if each.name == name)
    return case


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
        """A sub-test with a scratch folder of its own."""
        with self.subTest(case=case.name), tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)

    def require(self, compared, what):
        """A test that met no case to check has checked nothing."""
        if not compared and os.environ.get("DSCKPT_CASES"):
            self.skipTest(f"no {what} selected")
        self.assertTrue(compared, f"no {what}")

    def convert(self, source, output, *options):
        """Runs zero-to-fp32 and returns `output`."""
        return self.run_well("zero-to-fp32", output, source, output, *options)

    def convert_to_universal(self, source, output, *options):
        """Runs to-universal and returns `output`."""
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


def main():
    if not all_cases() and not model_parallel_cases():
        raise SystemExit("no cases found: is DSCKPT_TESTDATA right?")
    unittest.main()
