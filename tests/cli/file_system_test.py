"""File systems of a network: longer requests, the same bytes, and --stripe.

support/report_file_system.cpp has statfs say that all lies on another one; a script stands for Lustre's `lfs`.
"""
import json
import os
import pathlib
import subprocess
import unittest

import large_checkpoint
import tools
from cli_common import STAGING, CliTest, tree

MIB = 1 << 20
KINDS = {"lustre": "0bd00bd0", "gpfs": "47504653", "nfs": "6969", "fuse": "65735546"}
LFS = """#!/bin/sh
for word; do folder=$word; done
{ printf '%s\\n' "$@"; pwd; echo "in it: $(find "$folder" -type f ! -name owner | wc -l)"; } >>"$SAID"
[ -z "$LFS_FAILS" ] || { echo "$LFS_FAILS" >&2; exit 22; }
"""


class FileSystemTest(CliTest):

    def setUp(self):
        super().setUp()
        self.source = self.new_path("ckpt")
        large_checkpoint.write_one(self.source, 6 << 20)

    def on(self, kind, **more):
        shim = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "lib" / "libreport_file_system.so"
        return {**self.environment, "LD_PRELOAD": str(shim), "REPORT_FILE_SYSTEM": KINDS[kind] if kind else "ef53",
                **{key: str(value) for key, value in more.items()}}

    def with_lfs(self, **more):
        """The environment on Lustre with a `lfs` that notes in `said` how it is called."""
        folder = self.root / "lfs"
        if not folder.exists():
            folder.mkdir()
            (folder / "lfs").write_text(LFS)
            (folder / "lfs").chmod(0o755)
        self.said = self.root / "said"
        return {**self.on("lustre", SAID=self.said, **more), "PATH": f"{folder}:{os.environ['PATH']}"}

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

    def test_the_folder_is_striped_before_anything_is_in_it(self):
        cases = (("auto", "-1", 4 * MIB), ("8", "8", 4 * MIB), ("8,16MiB", "8", 16 * MIB), ("all,64KiB", "-1", 1 << 16))
        for value, count, size in cases:
            with self.subTest(value):
                env = self.with_lfs()
                self.said.unlink(missing_ok=True)
                out = self.new_path()
                done = self.zero_to_fp32(self.source, out, "--stripe", value, env=env)
                self.assertEqual(done.returncode, 0, done.stderr)
                lines = self.said.read_text().splitlines()
                self.assertEqual(lines[:6], ["setstripe", "-c", count, "-S", str(size), "."])
                self.assertIn(STAGING, lines[6])
                self.assertEqual(lines[7:], ["in it: 0"])

    def test_every_tool_that_writes_has_it(self):
        source = tools.case_named("z3_bf16_w2").load_dir
        packed = self.new_path("packed")
        for command in (["to-universal", source, self.new_path()], ["reshard", source, self.new_path(), "--dp", "3"],
                        ["ckpt-pack", "pack", source, packed], ["ckpt-pack", "unpack", packed, self.new_path()],
                        ["ckpt-pack", "strip", source, self.new_path(), "--keep", "weights"]):
            env = self.with_lfs()
            self.said.unlink(missing_ok=True)
            done = self.tool(*command, "--stripe", "auto", env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(self.said.read_text().splitlines()), 8)

    def assert_refused(self, status, message, *arguments, **options):
        out = self.new_path("place") / "out"
        done = self.zero_to_fp32(self.source, out, *arguments, **options)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertIn(message, done.stderr)
        self.assertFalse(out.parent.exists())

    def test_what_cannot_be_striped_is_refused_before_anything_is_written(self):
        for more in ([], ["--dry-run"]):
            self.assert_refused(2, "is not on Lustre", "--stripe", "auto", *more, env=self.on(None))
            self.assert_refused(2, "there is no `lfs` in PATH", "--stripe", "auto", *more,
                                env={**self.on("lustre"), "PATH": str(self.tmp)})
        env = self.with_lfs(LFS_FAILS="error: no such OST")
        self.assert_refused(4, "`lfs setstripe` has failed with status 22: error: no such OST", "--stripe", "4", env=env)
        for value in ("", "0", "x", "8,", "8,4MB", "8,1KiB", "8,3MiB", "2001", "-1"):
            self.assert_refused(2, "stripe", f"--stripe={value}", env=env)


if __name__ == "__main__":
    unittest.main()
