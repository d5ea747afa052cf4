"""bench_average.py, once, with a model of next to nothing."""
import unittest

from bench_case import BIN, BenchCase


class BenchAverage(BenchCase):
    def test_compares_with_cat_and_cp(self):
        report = self.report("bench_average.py", "`--average` to `cat` and `cp` together", "--checkpoints", "3",
                             "--runs", "2", *BIN)
        self.assertEqual({name: len(runs) for name, runs in report["runs"].items()},
                         {"cat": 2, "cp": 2, "zero-to-fp32 --average": 2})


if __name__ == "__main__":
    unittest.main()
