"""trained_checkpoint.py and bench_pack.py, once, with a model of next to nothing."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ["DSCKPT_BIN"])


class BenchPack(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def script(self, name, *arguments):
        done = subprocess.run([sys.executable, HERE / name, *arguments], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_shows_sizes_and_times_of_a_trained_model(self):
        checkpoint, results = self.folder / "trained", self.folder / "results"
        self.assertIn("loss", self.script("trained_checkpoint.py", checkpoint, "--steps", "3", "--width", "64",
                                          "--layers", "2"))
        self.script("bench_pack.py", checkpoint, "--runs", "2", "--copies", "2", "--bin", BIN, "--work", self.folder, "--out",
                    results)
        self.assertIn("| `ckpt-pack pack` |", (results / "README.md").read_text())
        report = json.loads((results / "results.json").read_text())
        params = 2 * 12 * 64 * 64
        for kind in report["kinds"]:
            # Trained for three steps: nothing repeats, and no entropy coder can be below the bound but where planes
            # of different parameters differ.
            self.assertGreater(kind["bytes"], params * (2 if "bfloat16" in kind["kind"] else 4))
            self.assertLess(kind["stored"], kind["bytes"])
            self.assertGreater(kind["stored"], 0.9 * kind["entropy_bytes"], kind)
            self.assertLess(kind["stored"], 1.1 * kind["entropy_bytes"], kind)
        self.assertEqual({len(runs) for runs in report["runs"].values()}, {2})
        self.assertEqual(report["runs"]["ckpt-pack unpack"][0]["output_bytes"], report["bytes"])
        self.assertEqual(report["runs"]["zstd -d"][0]["output_bytes"], report["bytes"])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["results", "trained"])


if __name__ == "__main__":
    unittest.main()
