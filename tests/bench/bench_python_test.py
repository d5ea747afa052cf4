"""bench_python.py, once, with a model of next to nothing."""
import os
import unittest

from bench_case import BenchCase


class BenchPython(BenchCase):
    def test_shows_times_and_memory_of_both(self):
        report = self.report("bench_python.py", "| dsckpt, first tensor | 3 |", "--native", os.environ["DSCKPT_NATIVE"],
                             "--runs", "1", "--model", "tiny-llama", "--dp", "2")
        for stage in ("2", "3"):
            runs = report["stages"][stage]
            self.assertEqual(set(map(len, runs.values())), {1})
            self.assertGreater(runs["dsckpt"][0]["tensor_bytes"], 4 * 390_000)
            self.assertEqual(runs["dsckpt"][0]["tensor_bytes"], runs["deepspeed"][0]["tensor_bytes"])


if __name__ == "__main__":
    unittest.main()
