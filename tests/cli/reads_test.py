"""How often a plan reads and lists: what a checkpoint is made of is looked at once, whatever is made of it."""
import os
import pathlib
import unittest

from cli_common import CliTest

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
SPLIT = TESTDATA / "model_parallel"


class ReadsTest(CliTest):

    def calls(self, tool, source, *options):
        """The reads and listings of a dry run."""
        counts = self.new_path("counts")
        done = self.tool(tool, source, self.new_path(), *options, "--dry-run", env=self.with_fault(counts=counts))
        self.assertEqual(done.returncode, 0, done.stderr)
        made = self.calls_made(counts)
        return made["read"], made["opendir"]

    def assert_as_few(self, source):
        reads, listings = self.calls("to-universal", source)
        again, listed = self.calls("reshard", source, "--dp", "2")
        self.assertLessEqual(again, reads * 1.1, f"reads of reshard, and of to-universal {reads}")
        self.assertLessEqual(listed, listings * 1.1, f"listings of reshard, and of to-universal {listings}")

    def test_reshard_reads_what_to_universal_reads(self):
        for name in ["autoep2_dp4_z2_fp32", "autoep2_dp4_z3_fp32", "autotp2_dp2_z1_fp32", "autotp2_dp2_z3_bf16",
                     "autotp2_dp2_z3_nvme", "moe_ep2_dp4_z2_fp32", "mpu_tp2_dp2_z2_bf16", "pp2_dp2_z1_bf16",
                     "pp2_tp2_dp2_z1_fp32"]:
            with self.subTest(checkpoint=name):
                self.assert_as_few(SPLIT / name / "ckpt")

    def test_no_folder_is_listed_twice(self):
        for tool, options in [("to-universal", []), ("reshard", ["--dp", "2"])]:
            for name in ["pp2_tp2_dp2_z1_fp32", "moe_ep2_dp4_z2_fp32"]:
                with self.subTest(tool=tool, checkpoint=name):
                    source = SPLIT / name / "ckpt"
                    folders = 1 + sum(path.is_dir() for path in source.rglob("*"))
                    self.assertLessEqual(self.calls(tool, source, *options)[1], folders)


if __name__ == "__main__":
    unittest.main()
