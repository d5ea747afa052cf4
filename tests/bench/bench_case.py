"""A benchmark runs once, with a model of next to nothing."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BIN = ("--bin", os.environ["DSCKPT_BIN"])


class BenchCase(unittest.TestCase):

    def report(self, script, line, *arguments):
        """Returns results.json. README.md has `line`, and the benchmark leaves nothing else."""
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "results")
            done = subprocess.run([sys.executable, HERE / script, "--params", "400k", "--ranks", "2", *arguments, "--work",
                                   folder, "--out", results], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(line, (results / "README.md").read_text())
            self.assertEqual(list(pathlib.Path(folder).iterdir()), [results])
            return json.loads((results / "results.json").read_text())
