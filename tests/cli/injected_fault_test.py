"""Every call of the system fails once: what is there then is right, whole, and said.

support/fail_call.cpp has the calls fail. FAULTS=all has every index of every command fail, which takes
some minutes; else some of them do.
"""
import errno
import os
import pathlib
import shutil
import subprocess
import sys

import cli_common
import tools
from cli_common import STAGING, CliTest, fill_place, tree

# The errors of each kind of call, but for EINTR.
REASONS = {
    "open": [errno.EIO, errno.EMFILE], "read": [errno.EIO], "write": [errno.ENOSPC, errno.EIO],
    "fallocate": [errno.ENOSPC, errno.EOPNOTSUPP], "fsync": [errno.EIO], "rename": [errno.EIO, errno.EINVAL],
    "link": [errno.EPERM], "close": [errno.EIO], "unlink": [errno.EBUSY], "mkdir": [errno.EACCES],
    "opendir": [errno.EIO],
}
INTERRUPTED = ["read", "write", "fallocate"]
SHORT = ["read", "write"]


class InjectedFaultTest(CliTest):

    def setUp(self):
        super().setUp()
        self.bin = pathlib.Path(os.environ["DSCKPT_BIN"])
        self.counts = self.root / "counts"
        self.all = os.environ.get("FAULTS") == "all"
        self.runs = 0

    def tearDown(self):
        if self.all:
            print(f"{self.id()}: {self.runs} runs", file=sys.stderr)

    def call(self, command, folder, **fault):
        self.runs += 1
        tool, *arguments = command
        return subprocess.run([self.bin / tool, *arguments, "--threads=1"], cwd=folder, capture_output=True, text=True,
                              timeout=60, env=self.with_fault(**fault))

    def indices(self, count):
        if self.all or count <= 8:
            return range(1, count + 1)
        return sorted({1, 2, *range(3, count, max(1, count // 5)), count - 1, count})

    def check(self, source, before, command):
        """`before`: what is at the output's place, by path."""
        def fresh(name):
            folder = self.root / name
            shutil.rmtree(folder, ignore_errors=True)
            return fill_place(folder, source, before)

        clean = fresh("clean")
        old = tree(clean / "place")
        self.assertEqual(self.call(command, clean, counts=self.counts).returncode, 0, command)
        expected = tree(clean / "place")
        for kind, count in self.calls_made(self.counts).items():
            reasons = [*REASONS[kind], *([errno.EINTR] if kind in INTERRUPTED else []), *([0] if kind in SHORT else [])]
            for at in self.indices(count):
                for reason in reasons:
                    with self.subTest(command=command[0], kind=kind, at=at, reason=errno.errorcode.get(reason, "short")):
                        folder = fresh("faulty")
                        done = self.call(command, folder, call=kind, at=at, errno=reason)
                        self.judge(done, tree(folder / "place"), old, expected, reason)

    def judge(self, done, now, old, expected, reason):
        staged = {path for path in now if STAGING in path}
        now = {path: content for path, content in now.items() if path not in staged}
        said = done.stderr
        self.assertIn(done.returncode, (0, 4), said)
        if reason in (errno.EINTR, 0):
            self.assertEqual(done.returncode, 0, said)
        if done.returncode == 0:
            self.assertEqual(now, expected, said)
        elif "not everything could be put back" not in said:
            self.assertEqual(now, old, said)
            self.assertNotIn("internal error", said)
        # Files that could not be removed are named.
        if staged:
            self.assertIn(STAGING, said)

    def source(self, name):
        return tools.case_named(name).load_dir.resolve()

    def test_weights(self):
        source = self.source("z2_bf16_w2")
        options = ["--max-shard-size=5KB", "--safe-serialization"]
        self.check(source, {}, ["zero-to-fp32", "in", "place/out", *options])
        self.check(source, {}, ["zero-to-fp32", "in", "place", "--fsync", "--verify-output"])
        self.check(source, {}, ["zero-to-fp32", "in", "place/out", "--resume", "--save-every=0"])
        rules = self.root / "rules"
        rules.write_text("^conv => first\n")
        self.check(source, {}, ["zero-to-fp32", "in", "place/out", "--key-map", rules])
        names = ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "mine.txt"]
        self.check(source, {f"out/{name}": "old" for name in names},
                   ["zero-to-fp32", "in", "place/out", "--force", *options])
        self.assertGreater(self.runs, 100)

    def test_a_run_that_goes_on(self):
        command = ["zero-to-fp32", "in", "place/out", "--resume", "--save-every=0", "--max-shard-size=5KB"]
        def fresh():
            shutil.rmtree(self.root / "again", ignore_errors=True)
            return fill_place(self.root / "again", self.source("z2_bf16_w2"), {})

        self.assertEqual(self.call(command, folder := fresh(), counts=self.counts).returncode, 0)
        expected = tree(folder / "place")
        last_write = self.calls_made(self.counts)["write"]

        def again():
            folder = fresh()
            self.assertEqual(self.call(command, folder, call="write", at=last_write, errno=errno.ENOSPC).returncode, 4)
            self.assertTrue(any(path.endswith("/journal") for path in tree(folder / "place")))
            return folder

        self.assertEqual(self.call(command, again(), counts=self.counts).returncode, 0)
        counts = self.calls_made(self.counts)
        for kind in "open", "read":
            for at in self.indices(counts[kind]):
                with self.subTest(kind=kind, at=at):
                    folder = again()
                    done = self.call(command, folder, call=kind, at=at, errno=errno.EIO)
                    if done.returncode == 0:
                        self.judge(done, tree(folder / "place"), {}, expected, errno.EIO)
                    else:
                        self.assertEqual(done.returncode, 4, done.stderr)
                        self.assertNotIn("internal error", done.stderr)
                        self.assertEqual(self.call(command, folder).returncode, 0, done.stderr)
                        self.assertEqual(tree(folder / "place"), expected)

    def test_universal(self):
        source = self.source("z2_bf16_w2")
        command = ["to-universal", "--input-folder", "in", "--output-folder", "place/universal"]
        self.check(source, {}, [*command, "--fsync"])
        old = self.root / "old"
        self.assertEqual(self.call([*command[:2], source, "--output-folder", old], self.root).returncode, 0)
        before = {f"universal/{path.relative_to(old)}": "old" for path in old.rglob("*") if path.is_file()}
        self.check(source, {**before, "latest_universal": "another"}, [*command, "--force"])

    def test_shards(self):
        self.check(self.source("z2_bf16_w2"), {}, ["reshard", "in", "place/out", "--dp", "1"])

    def test_dcp(self):
        source = self.source("z2_bf16_w2")
        command = ["to-dcp", "in", "place/out", "--dp=2", "--preset=accelerate"]
        self.check(source, {}, [*command, "--fsync"])
        old = self.root / "old"
        self.assertEqual(self.call([command[0], source, old, *command[3:]], self.root).returncode, 0)
        before = {f"out/{path.relative_to(old)}": "old" for path in old.rglob("*") if path.is_file()}
        self.check(source, before, [*command, "--force"])

    def test_what_the_system_lacks_is_no_finding_of_verify(self):
        folder = self.root / "verified"
        folder.mkdir()
        command = ["ckpt-inspect", "verify", self.source("z2_bf16_w2"), "--write-manifest", "manifest.json"]
        self.assertEqual(self.call(command, folder, counts=self.counts).returncode, 0)
        opened = self.calls_made(self.counts)["open"]
        seen = set()
        for at in range(1, opened + 1):
            (folder / "manifest.json").unlink(missing_ok=True)
            done = self.call(command, folder, call="open", at=at, errno=errno.EMFILE)
            seen.add(done.returncode)
            self.assertIn(done.returncode, (0, 4), done.stdout + done.stderr)
            self.assertEqual([path.name for path in folder.iterdir()], ["manifest.json"] if done.returncode == 0 else [])
        self.assertIn(4, seen)

    def test_packed_files(self):
        self.check(self.source("z2_bf16_w2"), {}, ["ckpt-pack", "pack", "in", "place/out", "--verify-output"])


if __name__ == "__main__":
    cli_common.main()
