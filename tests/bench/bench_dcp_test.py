"""bench_dcp.py, once, with a model of next to nothing."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class BenchDcp(unittest.TestCase):
    def test_compares_with_cp_and_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "results")
            done = subprocess.run([sys.executable, HERE / "bench_dcp.py", "--params", "400k", "--ranks", "2", "--runs",
                                   "1", "--bin", os.environ["DSCKPT_BIN"], "--work", folder, "--out", results],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("`dcp_to_torch_save` to `zero-to-fp32`", (results / "README.md").read_text())
            report = json.loads((results / "results.json").read_text())
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [results])
        self.assertEqual({name: len(runs) for name, runs in report["runs"].items()},
                         dict.fromkeys(["cp of the result", "zero-to-fp32", "dcp_to_torch_save", "cp of the folder",
                                        "to-dcp"], 1))


if __name__ == "__main__":
    unittest.main()
