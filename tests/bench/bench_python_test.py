"""bench_python.py, once, with a model of next to nothing."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class BenchPython(unittest.TestCase):
    def test_shows_times_and_memory_of_both(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "results")
            done = subprocess.run([sys.executable, HERE / "bench_python.py", "--native", os.environ["DSCKPT_NATIVE"],
                                   "--params", "400k", "--ranks", "2", "--runs", "1", "--model", "tiny-llama", "--dp",
                                   "2", "--work", folder, "--out", results], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("| dsckpt, first tensor | 3 |", (results / "README.md").read_text())
            report = json.loads((results / "results.json").read_text())
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [results])
        for stage in ("2", "3"):
            runs = report["stages"][stage]
            self.assertEqual(set(map(len, runs.values())), {1})
            self.assertGreater(runs["dsckpt"][0]["tensor_bytes"], 4 * 390_000)
            self.assertEqual(runs["dsckpt"][0]["tensor_bytes"], runs["deepspeed"][0]["tensor_bytes"])


if __name__ == "__main__":
    unittest.main()
