"""Real file systems that are too small: the output is whole, or nothing of it is there and the message says why.

They are mounted here, which takes root. Disks that cannot be mounted are left out, and named.
"""
import collections
import errno
import json
import os
import shutil
import subprocess
import sys

import cli_common
import tools
from cli_common import STAGING, CliTest, tree

COMMANDS = [
    ["zero-to-fp32", "in", "place/out", "--safe-serialization", "--max-shard-size=5KB"],
    ["zero-to-fp32", "in", "place/out", "--io=direct", "--fsync"],
    ["to-universal", "--input_folder", "in", "--output_folder", "place/out"],
    ["reshard", "in", "place/out", "--dp=3", "--verify-output"],
    ["ckpt-pack", "pack", "in", "place/out"],
]
KIB = 1024
STEPS = [0, 1, 4, 12, 24, 40, 64, 96, 128, 192, 256, 384, 512, 768]  # KiB that are left


def run(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


class SmallDiskTest(CliTest):

    def setUp(self):
        super().setUp()
        self.work = self.root / "work"
        self.work.mkdir()
        (self.work / "in").symlink_to(tools.case_named("z2_bf16_w2").load_dir.resolve())
        self.disk = self.root / "disk"
        self.disk.mkdir()
        self.outcomes = collections.Counter()

    def mount(self, *arguments, at=None):
        at = at or self.disk
        done = run("mount", *arguments, at)
        if done.returncode:
            self.skipTest(f"mount {' '.join(map(str, arguments))}: {done.stderr.strip() or done.stdout.strip()}")
        self.addCleanup(run, "umount", at)

    def mount_image(self, kind, megabytes, *options):
        maker = shutil.which(f"mkfs.{kind}", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if maker is None:
            self.skipTest(f"there is no mkfs.{kind}")
        image = self.root / "image"
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        done = run(maker, *options, image)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.mount("-t", kind, "-o", "loop", image)

    def leave(self, kilobytes):
        """Fills the disk, and gives that much back."""
        with open(self.disk / "filler", "wb", buffering=0) as file:
            for size in (1 << 20, 4 * KIB):
                try:
                    while file.write(bytes(size)) == size:
                        os.fsync(file.fileno())
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)
            file.truncate(max(file.tell() - kilobytes * KIB, 0))
        run("sync", "-f", self.disk)

    def empty_place(self):
        (self.disk / "filler").unlink(missing_ok=True)
        shutil.rmtree(self.disk / "place", ignore_errors=True)
        (self.disk / "place").mkdir()

    def expected(self, command):
        place = self.work / "place"
        place.unlink(missing_ok=True)
        place.symlink_to(self.root / "clean")
        shutil.rmtree(self.root / "clean", ignore_errors=True)
        (self.root / "clean").mkdir()
        done = self.tool(*command, cwd=self.work)
        self.assertEqual(done.returncode, 0, done.stderr)
        place.unlink()
        return tree(self.root / "clean")

    def check(self, command, expected, left):
        place = self.work / "place"
        place.unlink(missing_ok=True)
        place.symlink_to(self.disk / "place")
        with self.subTest(command=command, left=left):
            done = self.tool(*command, cwd=self.work)
            written = tree(self.disk / "place")
            self.assertIn(done.returncode, (0, 4), done.stderr)
            self.assertEqual([path for path in written if STAGING in path], [], done.stderr)
            if done.returncode == 0:
                self.assertTrue(written == expected, done.stderr)
            else:
                self.assertEqual(written.keys(), set(), done.stderr)
                self.assertRegex(done.stderr, "No space left on device|bytes free")
            self.outcomes[done.returncode] += 1

    def test_a_dry_run_says_that_the_disk_is_too_small(self):
        self.mount("-t", "tmpfs", "-o", "size=8k", "tmpfs")
        for command in COMMANDS:
            if command[0] == "ckpt-pack":
                continue  # how much it takes is seen when it is written
            place = [str(self.disk / "out") if part == "place/out" else part for part in command]
            done = self.tool(*place, "--dry-run", cwd=self.work)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"note: the run would be refused: .*needs .* left")
            notes = json.loads(self.tool(*place, "--dry-run", "--json", cwd=self.work).stdout)["data"]["notes"]
            self.assertTrue(any(note.startswith("the run would be refused: ") for note in notes), notes)
            self.assertEqual(self.tool(*place, cwd=self.work).returncode, 4)
            self.assertEqual(list(self.disk.iterdir()), [])

    def check_all(self):
        for command in COMMANDS:
            expected = self.expected(command)
            for left in STEPS:
                self.empty_place()
                self.leave(left)
                self.check(command, expected, left)
        print(f"{self.id().split('.')[-1]}: {dict(self.outcomes)}", file=sys.stderr)
        self.assertGreater(self.outcomes[0], 5)
        self.assertGreater(self.outcomes[4], 5)

    def test_tmpfs(self):
        self.mount("-t", "tmpfs", "-o", "size=2m", "tmpfs")
        self.check_all()

    def test_ext4(self):
        self.mount_image("ext4", 16, "-q", "-m", "0")
        self.check_all()

    def test_xfs(self):
        self.mount_image("xfs", 320, "-q")
        self.check_all()

    def test_vfat(self):
        self.mount_image("vfat", 16)
        self.check_all()

    def test_overlay(self):
        below = self.root / "below"
        below.mkdir()
        self.mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", at=below)
        for name in ("lower", "upper", "inner"):
            (below / name).mkdir()
        self.mount("-t", "overlay", "-o", f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/inner", "overlay")
        self.check_all()

    def test_no_inodes_left(self):
        """There is room for bytes, but not for names."""
        self.mount("-t", "tmpfs", "-o", "size=8m,nr_inodes=60", "tmpfs")
        for command in COMMANDS:
            expected = self.expected(command)
            self.empty_place()
            self.check(command, expected, "60 names")
        self.assertEqual(set(self.outcomes), {0, 4})


if __name__ == "__main__":
    cli_common.main()
