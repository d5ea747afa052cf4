"""How often a plan reads and lists: what a checkpoint is made of is looked at once, whatever is made of it."""
import os
import pathlib
import unittest

from cli_common import CliTest

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
SPLIT = TESTDATA / "model_parallel"

# Their inputs are IN; no folder is at OUT yet.
TOOLS = [
    ("zero-to-fp32", "IN", "OUT", "--dry-run"),
    ("to-universal", "IN", "OUT", "--dry-run"),
    ("to-dcp", "IN", "OUT", "--dp", "2", "--dry-run"),
    ("reshard", "IN", "OUT", "--dp", "2", "--dry-run"),
    ("reshard", "IN", "OUT", "--dp", "2", "--tp", "1", "--pp", "1", "--dry-run"),
    ("ckpt-inspect", "IN"),
    *(("ckpt-inspect", command, "IN") for command in ("list", "tree", "stats", "verify", "scan")),
    ("ckpt-inspect", "diff", "IN", "IN"),
    ("ckpt-pack", "pack", "IN", "OUT", "--dry-run"),
    ("ckpt-pack", "strip", "IN", "OUT", "--keep", "weights", "--dry-run"),
    ("ckpt-pack", "estimate", "IN"),
]


class ReadsTest(CliTest):

    def calls_of(self, *command):
        """The reads and listings of a tool; None if it refuses the input."""
        counts = self.new_path("counts")
        done = self.tool(*command, env=self.with_fault(counts=counts))
        if done.returncode in (2, 3):
            return None
        self.assertEqual(done.returncode, 0, done.stderr)
        made = self.calls_made(counts)
        return made["read"], made["opendir"]

    def calls(self, tool, source, *options):
        """Those of a dry run."""
        return self.calls_of(tool, source, self.new_path(), *options, "--dry-run")

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

    def sources(self):
        """Each kind of checkpoint, and a tag's own folder."""
        split, plain = SPLIT / "pp2_tp2_dp2_z1_fp32" / "ckpt", TESTDATA / "checkpoints" / "z2_bf16_w4" / "ckpt"
        made = [self.new_path(name) for name in ("universal", "weights", "dcp")]
        for path, tool, *options in zip(made, ("to-universal", "zero-to-fp32", "to-dcp"), ("--force", ) * 3):
            options += ["--dp", "2"] if tool == "to-dcp" else ["--safe-serialization"] if tool == "zero-to-fp32" else []
            self.assertEqual(self.tool(tool, plain, path, *options).returncode, 0)
        return [split, plain, split / (split / "latest").read_text(), plain / (plain / "latest").read_text(), *made]

    def test_a_conversion_lists_each_folder_once_and_a_report_at_most_twice(self):
        compared = 0
        for source in self.sources():
            folders = 1 + sum(path.is_dir() for path in source.rglob("*"))
            for tool, *words in TOOLS:
                with self.subTest(tool=tool, words=words, source=str(source)):
                    command = [{"IN": source, "OUT": self.root / "none"}.get(word, word) for word in words]
                    calls = self.calls_of(tool, *command)
                    if calls is None:
                        continue
                    # A model's configuration may be in the folder above.
                    there = words.count("IN") * folders + (tool == "zero-to-fp32")
                    self.assertLessEqual(calls[1], there * (2 if tool in ("ckpt-inspect", "ckpt-pack") else 1))
                    compared += 1
        self.assertGreater(compared, 60)


if __name__ == "__main__":
    unittest.main()
