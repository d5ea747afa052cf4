"""bench_bucket.py, once, with a model of next to nothing."""
import unittest

import tools
from bench_case import BIN, BenchCase


class BenchBucket(BenchCase):
    def test_compares_with_a_download(self):
        tools.skip_without_object_stores()
        report = self.report("bench_bucket.py", "of connections x limit", "--runs", "1", *BIN)
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
