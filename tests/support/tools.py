"""Common parts of all tests of the tools: how to start a tool, and the checkpoints in testdata/. Needs only Python.

Environment: DSCKPT_BIN is the folder of the built tools, DSCKPT_TESTDATA the folder testdata/. DSCKPT_CASES, a regular
expression, restricts a run to some cases.
"""
import functools
import json
import math
import os
import pathlib
import re
import subprocess
import unittest

from lost_race import without_lost_race


def run_tool(name, *arguments, **options):
    """Runs a tool. Returns the finished process, whatever its exit code. `options` go to subprocess.run."""
    binary = pathlib.Path(os.environ["DSCKPT_BIN"]) / name
    options = {"capture_output": True, "text": True, "errors": "replace", "timeout": 120, **options}
    done = subprocess.run([str(binary), *map(str, arguments)], **options)
    done.returncode, done.stderr = without_lost_race(done.returncode, done.stderr)
    return done


def filled(command, source, output):
    """A command's words, with IN and OUT replaced."""
    return [{"IN": str(source), "OUT": str(output)}.get(word, word) for word in command]


def reads_object_stores():
    return " s3" in run_tool("dsckpt", "--version").stdout


def skip_without_object_stores():
    """For use as a module's setUpModule()."""
    if not reads_object_stores():
        raise unittest.SkipTest("this build reads no object stores")


class Case:
    """A checkpoint folder and its expected results, as tensors of torch_files.py; oracle.py has torch's."""

    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name
        self.facts = json.loads((folder / "case.json").read_text())
        self.load_dir = folder / self.facts["load_dir"]
        self.tag_folder = self.load_dir / self.facts["tag"]
        self.stage = self.facts["stage"]
        self.tied = self.facts.get("tied", {})  # alias -> owner; model-parallel cases have them by rank

    @staticmethod
    def load_file(path):
        """name -> tensor of a safetensors file."""
        import torch_files  # and NumPy, if values are needed
        return torch_files.load_file(path)

    @staticmethod
    def cast(tensor, dtype):
        return tensor.to(dtype)

    @staticmethod
    def array(tensor):
        return tensor.values

    @staticmethod
    def tensor(array):
        import torch_files
        return torch_files.tensor(array)

    def expected(self, name):
        """The tensors of expected/NAME.safetensors, or None if DeepSpeed could not make them."""
        path = self.folder / "expected" / f"{name}.safetensors"
        return self.load_file(path) if path.exists() else None

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
        """Names that --exclude_frozen_parameters leaves out. From stage 2 on, DeepSpeed counts a trainable parameter
        without elements as frozen, since no optimizer owns it."""
        empty = [name for name, shape in self.facts["param_shapes"].items() if not math.prod(shape)]
        return {*self.facts["frozen"], *(empty if self.stage >= 2 else [])}

    def truth(self, exclude_frozen=False, dtype="float32", keep_fp32=None):
        """name -> tensor of the whole output, including aliases, from the live engine alone.

        `dtype` is float32, float16, bfloat16, or keep, which does not change tensors without masters.
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
                value = self.cast(value, "float32" if wide else dtype)
            result[name] = value.contiguous()
        return result

    def without_aliases(self, tensors):
        return {name: value for name, value in tensors.items() if name not in self.tied}


@functools.lru_cache(maxsize=None)
def every_case(folder, kind=Case):
    root = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / folder
    return [kind(path.parent) for path in sorted(root.glob("*/case.json"))]


def cases_in(folder, kind=Case):
    """The cases that match DSCKPT_CASES, a regular expression; all cases without it."""
    wanted = re.compile(os.environ.get("DSCKPT_CASES", ""))
    return [case for case in every_case(folder, kind) if wanted.search(case.name)]


def all_cases(kind=Case):
    """The data-parallel cases, which every tool must read."""
    return cases_in("checkpoints", kind)


def model_parallel_cases(kind=Case):
    return cases_in("model_parallel", kind)


def case_named(name, kind=Case):
    """The case of that name, even if DSCKPT_CASES leaves it out."""
    case, = (c for folder in ("checkpoints", "model_parallel") for c in every_case(folder, kind) if c.name == name)
    return case


def case_of_release(name, kind=Case):
    case, = (each for each in every_case("releases", kind) if each.name == name)
    return case


def main():
    if not all_cases() and not model_parallel_cases():
        raise SystemExit("no cases found: is DSCKPT_TESTDATA right?")
    unittest.main()
