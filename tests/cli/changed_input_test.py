"""An input that changes while a run reads it: refused, or what was written is what the input was; never a mixture.

A run is stopped at one of its calls of the system (support/fail_call.cpp). A file of the input is then cut,
lengthened, replaced or overwritten, with its old time or without, and the run goes on. CHANGES is how many
moments are tried.
"""
import collections
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import zipfile

import cli_common
import tools
from cli_common import CliTest, tree

COUNT = int(os.environ.get("CHANGES", 200))
COMMANDS = [
    ["zero-to-fp32", "in", "place/out"],
    ["zero-to-fp32", "in", "place/out", "--safe-serialization", "--states", "--io=direct"],
    ["to-universal", "--input_folder", "in", "--output_folder", "place/out"],
    ["reshard", "in", "place/out", "--dp=3"],
    ["ckpt-pack", "pack", "in", "place/out"],
    ["ckpt-pack", "strip", "in", "place/out", "--keep=resume"],
]
CASES = ["z2_bf16_w2", "z3_bf16_full_subgroups_w4"]
MOMENTS = ["open", "read", "read", "read", "write", "close", "rename"]


def cut(path, chosen):
    os.truncate(path, chosen.randrange(path.stat().st_size))


def lengthen(path, chosen):
    with open(path, "ab") as file:
        file.write(chosen.randbytes(chosen.choice([1, 4096])))


def replace(path, chosen):
    """By another file of the same size and time."""
    before = path.stat()
    other = bytearray(path.read_bytes())
    other[chosen.randrange(len(other))] ^= 0xFF
    new = path.with_suffix(".new")
    new.write_bytes(other)
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.rename(path)


def remove(path, chosen):
    path.unlink()


def flip_at(path, at, size):
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(size)
        file.seek(at)
        file.write(bytes(byte ^ 0xFF for byte in old))


def overwrite(path, chosen):
    size = path.stat().st_size
    at = chosen.randrange(size)
    flip_at(path, at, min(chosen.choice([1, 512, 8192]), size - at))


def overwrite_unseen(path, chosen):
    """Data of a record, in a way that only its checksum can tell."""
    before = path.stat()
    with zipfile.ZipFile(path) as zipped:
        names = [info.filename.split("/", 1)[1] for info in zipped.infolist() if info.file_size]
    at, size = cli_common.record_extent(path, chosen.choice(names))
    flip_at(path, at + chosen.randrange(size), 1)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class ChangedInputTest(CliTest):

    def start(self, command, folder, **fault):
        binary = pathlib.Path(os.environ["DSCKPT_BIN"]) / command[0]
        return subprocess.Popen([binary, *command[1:], "--threads=1"], cwd=folder, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=self.with_fault(**fault))

    def fresh(self, case, name):
        folder = self.root / name
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "place").mkdir(parents=True)
        cli_common.Scratch(case, folder / "in")
        return folder

    def clean_run(self, case, command):
        """The output of the command, and the number of each call."""
        folder = self.fresh(case, "clean")
        process = self.start(command, folder, counts=self.root / "counts")
        self.assertEqual((process.communicate(), process.returncode)[1], 0)
        return tree(folder / "place"), self.calls_made(self.root / "counts")

    def test_never_a_mixture(self):
        chosen, outcomes, clean = random.Random(17), collections.Counter(), {}
        for number in range(COUNT):
            case = tools.case_named(chosen.choice(CASES))
            command, moment = chosen.choice(COMMANDS), chosen.choice(MOMENTS)
            change = chosen.choice([cut, lengthen, replace, remove, overwrite, overwrite_unseen])
            key = case.name, *command
            if key not in clean:
                clean[key] = self.clean_run(case, command)
            expected, counts = clean[key]
            if not counts[moment]:
                continue
            at = chosen.randrange(1, counts[moment] + 1)
            with self.subTest(number=number, case=case.name, command=command, moment=f"{moment} {at}", change=change.__name__):
                outcomes[change.__name__, self.check(case, command, moment, at, change, expected, chosen)] += 1
        print({f"{name}: {outcome}": count for (name, outcome), count in sorted(outcomes.items())}, file=sys.stderr)
        for change in (cut, lengthen, replace, overwrite, overwrite_unseen):
            self.assertGreater(outcomes[change.__name__, "refused"], 0, change.__name__)

    def check(self, case, command, moment, at, change, expected, chosen):
        folder = self.fresh(case, "changed")
        process = self.start(command, folder, call=moment, at=at, errno=-2)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status), "it did not come to this call")
        path = chosen.choice([path for path in sorted((folder / "in").rglob("*.pt"))])
        change(path, chosen)
        os.kill(process.pid, signal.SIGCONT)
        _, said = process.communicate(timeout=60)
        self.assertIn(process.returncode, (0, 3, 4), said)
        written = tree(folder / "place")
        if process.returncode == 0:
            # It was changed before it was opened, and is no longer an archive: pack keeps it as it is.
            if f"{path.name} is packed as plain bytes" in said:
                return "said"
            self.assertTrue(written == expected, f"other bytes were written: {said}")
            return "as it was"
        self.assertEqual(written.keys(), set(), said)
        self.assertIn(path.name, said)
        return "refused"


if __name__ == "__main__":
    cli_common.main()
