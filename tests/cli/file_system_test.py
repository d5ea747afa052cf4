"""File systems of a network: longer requests, and the same bytes.

support/report_file_system.cpp has statfs say that all lies on another one.
"""
import json
import os
import pathlib
import subprocess
import unittest

import fault_test
from cli_common import STAGING, CliTest, tree

MIB = 1 << 20
KINDS = {"lustre": "0bd00bd0", "gpfs": "47504653", "nfs": "6969", "fuse": "65735546"}


class FileSystemTest(CliTest):

    def setUp(self):
        super().setUp()
        self.source = self.new_path("ckpt")
        fault_test.write_checkpoint(self.source, 6 << 20)

    def on(self, kind, **more):
        shim = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "lib" / "libreport_file_system.so"
        return {**self.environment, "LD_PRELOAD": str(shim), "REPORT_FILE_SYSTEM": KINDS[kind] if kind else "ef53",
                **{key: str(value) for key, value in more.items()}}

    def sizes(self, kind, *arguments, **more):
        """The longest read and write of a run, and what it has written."""
        out = self.new_path()
        noted = self.new_path("sizes")
        done = self.zero_to_fp32(self.source, out, "--threads", "2", *arguments,
                                 env=self.on(kind, REPORT_SIZES=noted, **more))
        self.assertEqual(done.returncode, 0, done.stderr)
        sizes = {word: int(number) for word, number in map(str.split, noted.read_text().splitlines())}
        return sizes["read"], sizes["write"], tree(out)

    def test_requests_are_longer_and_the_bytes_are_the_same(self):
        read, write, expected = self.sizes(None, "--io", "buffered")
        self.assertEqual((read, write), (256 << 10, 64 << 10))
        for kind in KINDS:
            for mode in ("buffered", "direct"):
                with self.subTest(kind=kind, mode=mode):
                    read, write, written = self.sizes(kind, "--io", mode)
                    self.assertEqual(written, expected)
                    self.assertGreaterEqual(read, 4 * MIB)
                    self.assertGreaterEqual(write, 7 * MIB)

    def test_input_and_output_are_told_apart(self):
        read, write, _ = self.sizes("nfs", "--io", "buffered", REPORT_ONLY=self.source)
        self.assertEqual((read >= 4 * MIB, write), (True, 64 << 10))

    def test_a_run_goes_on_with_the_units_it_began_with(self):
        _, _, expected = self.sizes(None)
        for first, second in (("lustre", None), (None, "lustre")):
            out = self.new_path()
            command = [os.environ["DSCKPT_BIN"] + "/zero-to-fp32", self.source, out, "--resume", "--save-every", "0"]
            run = subprocess.Popen([*command, "--limit-rate", "20MB"], env=self.on(first), stderr=subprocess.PIPE)
            journal = self.root / f"{STAGING}resume-{out.name}" / "journal"
            while not journal.exists() and run.poll() is None:
                pass
            run.terminate()
            run.communicate()
            self.assertTrue(journal.exists())
            done = subprocess.run([*command, "--json"], env=self.on(second), capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreater(json.loads(done.stdout)["data"]["bytes_kept"], 0)
            self.assertEqual(tree(out), expected)

    def test_shares_are_cut_where_stripes_are(self):
        done = self.zero_to_fp32(self.source, self.new_path(), "--dry-run", "--ranks", "2", "--json",
                                 env=self.on("lustre"))
        shares = json.loads(done.stdout)["data"]["forecast"]["ranks"]
        self.assertEqual(len(shares), 2)
        self.assertLess(min(rank["portions"] for rank in shares), 3)  # of 8 MiB at least


if __name__ == "__main__":
    unittest.main()
