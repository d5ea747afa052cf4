"""Checkpoints made now by real DeepSpeed, with a different seed than testdata's, through the oracle tests."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
MAKE = HERE.parents[1] / "testdata" / "makers" / "make_checkpoints.py"
SEED = "7"
CASES = ["z0_bf16_full_w2", "z1_bf16opt_full_w3", "z1_fp32_full_w6", "z2_bf16_roundrobin_full_w3", "z2_bf16_full_w8",
         "z3_bf16_full_w6", "z3_fp32_full_w8", "z3_bf16_oddbuffers_w2"]


class FreshCheckpointsTest(unittest.TestCase):

    def test_checkpoints_of_another_seed_convert_to_what_the_engine_held(self):
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(
                [sys.executable, MAKE, "--out", f"{folder}/checkpoints", "--case", ",".join(CASES), "--seed", SEED],
                capture_output=True, text=True)
            self.assertEqual(made.returncode, 0, made.stdout[-4000:] + made.stderr[-4000:])
            environment = {**os.environ, "DSCKPT_TESTDATA": folder}
            for test in ("truth_test.py", "identity_test.py"):
                with self.subTest(test):
                    run = subprocess.run([sys.executable, HERE / test], env=environment, capture_output=True, text=True)
                    self.assertEqual(run.returncode, 0, run.stderr[-4000:])


if __name__ == "__main__":
    unittest.main()
