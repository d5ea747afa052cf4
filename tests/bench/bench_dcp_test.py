"""bench_dcp.py, once, with a model of next to nothing."""
import unittest

from bench_case import BIN, BenchCase


class BenchDcp(BenchCase):
    def test_compares_with_cp_and_torch(self):
        report = self.report("bench_dcp.py", "`dcp_to_torch_save` to `zero-to-fp32`", "--runs", "1", *BIN)
        self.assertEqual({name: len(runs) for name, runs in report["runs"].items()},
                         dict.fromkeys(["cp of the result", "zero-to-fp32", "dcp_to_torch_save", "cp of the folder",
                                        "to-dcp"], 1))


if __name__ == "__main__":
    unittest.main()
