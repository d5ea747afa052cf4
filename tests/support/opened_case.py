"""Common parts of the tests of dsckpt.open, for NumPy's arrays and torch's tensors.

DSCKPT_NATIVE is the folder of dsckpt_native, which is in PYTHONPATH too. Without it, the program reads everything.
"""
import os
import pathlib
import sys

if not os.environ.get("DSCKPT_NATIVE"):
    sys.modules["dsckpt_native"] = None  # makes its import fail

import cli_common
import dsckpt
from cli_common import CliTest
from dsckpt import _tool
from dsckpt._reader import is_native

os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"
NATIVE = bool(os.environ.get("DSCKPT_NATIVE"))
# Without the module the program starts for every tensor.
CASES = None if NATIVE else ("z0_bf16_full_w2", "z2_fp32_full_w3", "z3_bf16_hpz")
# If all cases together had fewer tensors, too little was compared.
FEWEST_TENSORS = 400 if NATIVE and not os.environ.get("DSCKPT_CASES") else 10


class OpenedCase(CliTest):

    def assert_reader(self):
        self.assertEqual(is_native(), NATIVE)

    def compare_each(self, cases, compare, **options):
        """A sub-test for each case. `compare` gets the opened case and the truth, and returns the number of compared
        tensors. Cases that cannot be opened are refused by zero-to-fp32 too."""
        compared = 0
        for case in cases:
            if CASES and case.name not in CASES:
                continue
            with self.subTest(case=case.name):
                try:
                    ckpt = dsckpt.open(case.load_dir, **options)
                except dsckpt.UnsupportedError:
                    done = self.zero_to_fp32(case.load_dir, self.new_path())
                    self.assertNotEqual(done.returncode, 0, case.name)
                    continue
                truth = case.truth(dtype="keep")
                self.assertEqual(set(ckpt), set(truth))
                compared += compare(case, ckpt, truth)
        self.assertGreater(compared, FEWEST_TENSORS)

    def each_state(self, case_named, **options):
        """Each tensor of the optimizer, by parameter and state, with the live optimizer's value."""
        for name in ("z2_fp32_full_w3", "z3_bf16_w2"):
            case = case_named(name)
            ckpt = dsckpt.open(case.load_dir, **options)
            for key, expected in list(case.expected("master").items())[:None if NATIVE else 8]:
                parameter, state = key.rsplit("|", 1)
                if state in ("exp_avg", "exp_avg_sq"):
                    yield parameter, state, ckpt[parameter].states[state], expected

    def each_type(self, load_file, **options):
        """Each tensor of a file with weights of every type, read and mapped, with its expected value."""
        path = pathlib.Path(os.environ["DSCKPT_TESTDATA"], "formats", "types.safetensors")
        folder = self.new_path()
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(path.read_bytes())
        expected = load_file(path)
        for mmap in (False, True):
            ckpt = dsckpt.open(folder, mmap=mmap, **options)
            self.assertEqual(set(ckpt), set(expected))
            for name, value in expected.items():
                yield ckpt[name], value

    def check_index(self, ckpt, name, expected, positions):
        """`expected` is the whole tensor, of an indexed kind; `positions` is [1, 0], of the same kind."""
        tensor = ckpt[name]
        self.assertEqual(len(tensor), len(expected))
        for key in (..., 0, -1, slice(None), slice(2, 5), slice(1, None, 2), slice(5, 2), slice(-3, None),
                    slice(0, 10**9), (0, 1), (slice(1, 3), slice(None, 2)), (..., 0), (slice(0, 4), ..., 1), None,
                    (slice(0, 2), None), [0, 2], positions, ()):
            self.assert_same(tensor[key], expected[key])
        for wrong in (len(expected), -len(expected) - 1, (0, 0, 0, 0)):
            with self.assertRaises(IndexError):
                tensor[wrong]
        scalar = next((t for t in ckpt.values() if not t.shape), None)
        if scalar is not None:
            self.assertEqual(scalar[...].shape, ())
            with self.assertRaises(TypeError):
                len(scalar)

    def damaged(self, case="z2_fp32_full_w3"):
        """A checkpoint with a wrong byte in the masters of rank 1, and the name of the record."""
        scratch = self.scratch(case)
        for name in dsckpt.open(scratch.folder):
            extents = _tool.run(["ckpt-inspect", "where"], [scratch.folder, name], {})["extents"]
            for extent in extents:
                if scratch.optim(1).name in extent["file"]:
                    cli_common.flip(scratch.optim(1), extent["offset"])
                    return scratch.folder, extent["record"]
        raise AssertionError("nothing lies there")
