"""A plan's memory grows with tensors times ranks, by few bytes for each of them. So a test machine can plan
models that it cannot hold."""
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ["DSCKPT_SOURCE"])
BIN = pathlib.Path(os.environ["DSCKPT_BIN"])

MODEL, TENSORS = "llama-8b", 291
# Its outputs find room on any disk, which a plan of steps looks for.
SMALL_MODEL, SMALL_TENSORS = "llama-400m", 183
FEW, MANY = 64, 192


def peak_bytes(command):
    """The largest resident set of a program, which must succeed."""
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=subprocess.PIPE)
        errors = process.stderr.read()
        process.stderr.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise AssertionError(f"{command} exited with {process.returncode}: {errors.decode()}")
    return usage.ru_maxrss * 1024


class PlanMemory(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        for model in (MODEL, SMALL_MODEL):
            for ranks in (FEW, MANY):
                subprocess.run([sys.executable, ROOT / "tests/simulate/simulate.py", cls.folder / f"{model}-{ranks}",
                                "--model", model, "--stage", "3", "--dp", str(ranks)],
                               check=True, stdout=subprocess.DEVNULL)

    def check(self, most, tool, *arguments, source=(), model=MODEL, tensors=TENSORS):
        """`most`: bytes for each tensor and rank. On one core, since how many threads come to work makes the
        peak vary by some MiB. In arguments, OUT is a new path."""
        core = str(min(os.sched_getaffinity(0)))

        def peak(ranks):
            with tempfile.TemporaryDirectory(dir=self.folder) as place:
                words = [str(word).replace("OUT", f"{place}/out") for word in arguments]
                return peak_bytes(["taskset", "-c", core, BIN / tool, *source, self.folder / f"{model}-{ranks}", *words])

        few, many = (statistics.median_high(peak(ranks) for _ in range(3)) for ranks in (FEW, MANY))
        growth = (many - few) / (tensors * (MANY - FEW))
        self.assertLess(growth, most, f"{tool} {arguments}: {few >> 20} MiB for {FEW} ranks, {many >> 20} for {MANY}")

    def test_weights(self):
        self.check(400, "zero-to-fp32", "OUT", "--dry-run")

    def test_universal(self):
        self.check(900, "to-universal", "--output_folder", "OUT", "--dry-run", source=["--input_folder"])

    def test_reshard(self):
        self.check(800, "reshard", "OUT", "--dp", "48", "--dry-run")

    def test_plans_of_steps(self):
        # With fewer tensors, the fixed cost of a rank weighs more.
        small = {"model": SMALL_MODEL, "tensors": SMALL_TENSORS}
        self.check(600, "zero-to-fp32", "OUT", "--emit-plan", **small)
        self.check(800, "to-universal", "--output_folder", "OUT", "--emit-plan", source=["--input_folder"], **small)
        self.check(720, "reshard", "OUT", "--dp", "48", "--emit-plan", **small)

    def test_summary(self):
        self.check(1300, "ckpt-inspect")

    def test_list(self):
        self.check(300, "ckpt-inspect", source=["list"])


if __name__ == "__main__":
    unittest.main()
