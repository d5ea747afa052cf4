"""bench_average.py, once, with a model of next to nothing."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class BenchAverage(unittest.TestCase):
    def test_compares_with_cat_and_cp(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "results")
            done = subprocess.run([sys.executable, HERE / "bench_average.py", "--params", "400k", "--ranks", "2",
                                   "--checkpoints", "3", "--runs", "2", "--bin", os.environ["DSCKPT_BIN"], "--work",
                                   folder,
                                   "--out", results], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("`--average` to `cat` and `cp` together", (results / "README.md").read_text())
            report = json.loads((results / "results.json").read_text())
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [results])
        self.assertEqual({name: len(runs) for name, runs in report["runs"].items()},
                         {"cat": 2, "cp": 2, "zero-to-fp32 --average": 2})


if __name__ == "__main__":
    unittest.main()
