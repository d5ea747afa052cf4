"""bench_bucket.py, once, with a model of next to nothing."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tools

HERE = pathlib.Path(__file__).resolve().parent


class BenchBucket(unittest.TestCase):
    def test_compares_with_a_download(self):
        tools.skip_without_object_stores()
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "results")
            done = subprocess.run([sys.executable, HERE / "bench_bucket.py", "--params", "400k", "--ranks", "2",
                                   "--runs", "1", "--bin", os.environ["DSCKPT_BIN"], "--work", folder, "--out", results],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("of connections x limit", (results / "README.md").read_text())
            report = json.loads((results / "results.json").read_text())
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [results])
        bucket, = report["runs"]["zero-to-fp32 s3://"]
        download, = report["runs"]["download, zero-to-fp32"]
        self.assertLess(bucket["moved"], download["moved"])
        between, = report["runs"]["zero-to-fp32 s3:// s3://"]
        self.assertEqual(between["moved"], bucket["moved"])
        self.assertGreater(between["written"], 4 * 400_000)
        self.assertEqual(bucket["written"], 0)
        self.assertEqual(report["runs"]["zero-to-fp32 of the disk"][0]["requests"], 0)


if __name__ == "__main__":
    unittest.main()
