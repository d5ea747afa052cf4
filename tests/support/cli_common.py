"""Common parts of the command-line tests: scratch copies of test checkpoints, and the checks after every refusal.

The tests in tests/cli need only Python, and NumPy if they look at values (torch_files.py). Tests that need torch are
in tests/oracle.
"""
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import stat
import struct
import sys
import tempfile
import unittest
import zipfile

import lost_race
import tools
from tools import run_tool


def record_extent(path, name):
    """The position of a zip record's bytes in the file: offset, size. `name` is without the top folder."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        entry = next(e for e in archive.infolist() if e.filename.split("/", 1)[1] == name)
        file.seek(entry.header_offset + 26)
        name_size, extra_size = struct.unpack("<HH", file.read(4))
        return entry.header_offset + 30 + name_size + extra_size, entry.file_size


def replace_record(path, name, data):
    """Writes the zip again with other bytes in one record, and their correct checksum."""
    with zipfile.ZipFile(path) as archive:
        records = [(e.filename, archive.read(e)) for e in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for full, old in records:
            archive.writestr(full, data if full.split("/", 1)[1] == name else old)


def flip(path, offset, mask=0x10):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))


def set_step(folder, step):
    """Sets the number of steps in the files below `folder`. With None, model files have no number."""
    import torch_files  # and NumPy
    for path in pathlib.Path(folder).rglob("*model_states.pt"):
        with torch_files.edited(path) as state:
            if step is None:
                del state["global_steps"]
            else:
                state["global_steps"] = step
    for path in pathlib.Path(folder).rglob("*optim_states.pt") if step is not None else ():
        with torch_files.edited(path) as state:
            optimizer = state["optimizer_state_dict"]
            states = optimizer.get("base_optimizer_state", optimizer.get("optimizer_state_dict"))
            for entry in states["state"].values() if isinstance(states, dict) else states:
                if "step" in entry:
                    entry["step"] = step


def memory_limit(size):
    """The option that limits a tool's memory. Sanitized tools reserve terabytes, so they get no limit."""
    return [] if "DSCKPT_SANITIZED" in os.environ else [f"--max-memory={size}"]


def snapshot(folder):
    """Everything visible about a folder: paths, modes, times, links and contents."""
    seen = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        info = path.lstat()
        if stat.S_ISREG(info.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest() if os.access(path, os.R_OK) else None
        else:
            content = os.readlink(path) if path.is_symlink() else None
        seen[str(path.relative_to(folder))] = (info.st_mode, info.st_size, info.st_mtime_ns, content)
    return seen


# The beginning of the names of folders that runs write into.
STAGING = ".dsckpt-staging-"


def tree(folder):
    """path -> bytes, or None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in folder.rglob("*")}


def fill_place(folder, source, before):
    """Makes `folder` with a link `in` to `source`, and a folder `place` with the texts `before`, by path."""
    folder.mkdir()
    (folder / "in").symlink_to(source)
    (folder / "place").mkdir()
    for path, text in before.items():
        (folder / "place" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "place" / path).write_text(text)
    return folder


class Scratch:
    """A copy of a test checkpoint that may be edited."""

    def __init__(self, case, folder):
        self.case = case
        self.folder = folder
        shutil.copytree(case.load_dir, folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        self.tag = folder / case.facts["tag"]

    def _one(self, pattern):
        found = sorted(self.tag.glob(pattern))
        assert len(found) == 1, (pattern, found)
        return found[0]

    def optim(self, rank):
        return self._one(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")

    def model(self, rank=0):
        return self._one(f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" if self.case.stage == 3 else
                         "mp_rank_00_model_states.pt")

    def shards(self):
        return sorted(self.tag.glob("*.pt"))

    @contextlib.contextmanager
    def optimizer(self, rank):
        import torch_files  # and NumPy, if shards are edited
        with torch_files.edited(self.optim(rank)) as state:
            yield state["optimizer_state_dict"]


# This is on a disk: TMPDIR may be in memory, which has no direct I/O.
DISK = pathlib.Path(os.environ["DSCKPT_BIN"]).resolve().parent / "tmp"


class CliTest(unittest.TestCase):
    maxDiff = None
    on_disk = False

    def run(self, result=None):
        """Runs a failed test again if a status was lost: `without_lost_race` cannot tell to which error it
        belonged."""
        failures, errors = len(result.failures), len(result.errors)
        before = lost_race.seen
        super().run(result)
        if lost_race.seen > before and (len(result.failures), len(result.errors)) != (failures, errors):
            print(f"{self}: LeakSanitizer has crashed, once more", file=sys.stderr)
            del result.failures[failures:], result.errors[errors:]
            super().run(result)
        return result

    def setUp(self):
        # The test's leftovers and the tool's possible ones get separate folders.
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-cli-", dir=DISK if self.on_disk and DISK.is_dir() else None)
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name).resolve()
        self.tmp = self.root / "tmp"
        self.tmp.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.tmp)}
        self.numbers = itertools.count(1)

    def scratch(self, name):
        return Scratch(tools.case_named(name), self.new_path("ckpt"))

    def with_fault(self, **fault):
        """The environment of a tool in which a call fails. `call` sets FAIL_CALL of support/fail_call.cpp, and so
        on."""
        shim = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "lib" / "libfail_call.so"
        if not shim.exists():  # sanitizers must be loaded first
            self.skipTest("this build has no support/fail_call.cpp")
        fault = {f"FAIL_{key.upper()}": str(value) for key, value in fault.items()}
        return {**self.environment, "LD_PRELOAD": str(shim), **fault}

    def calls_made(self, path):
        """The number of calls of each kind, from the file that `counts` named."""
        return {kind: int(count) for kind, count in map(str.split, path.read_text().splitlines())}

    def new_path(self, name="out"):
        return self.root / f"{name}{next(self.numbers)}"

    def tool(self, name, *arguments, **options):
        done = run_tool(name, *arguments, **{"env": self.environment, **options})
        self.assertNotIn("internal error", done.stderr or "", arguments)
        self.assertGreaterEqual(done.returncode, 0, f"{name} {arguments} died: {done.stderr}")
        self.assertEqual(list(self.tmp.iterdir()), [])
        return done

    def zero_to_fp32(self, *arguments, **options):
        return self.tool("zero-to-fp32", *arguments, **options)

    def convert(self, source, *arguments, **options):
        """Runs a conversion that must succeed. Returns the output folder."""
        output = self.new_path()
        done = self.zero_to_fp32(source, output, *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def assert_converts(self, source, *arguments):
        """Runs a conversion to safetensors that must succeed. Returns name -> tensor."""
        output = self.convert(source, "--safe-serialization", *arguments)
        return tools.Case.load_file(output / "model.safetensors")

    def json_lines(self, text):
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            self.assertEqual(set(line), {"schema", "type", "data"})
            self.assertEqual(line["schema"], 1)
        return lines

    def error_of(self, done, code):
        """The error object of a run with --json that must have failed, compared with its text."""
        self.assertEqual(done.returncode, code, done.stderr or "no message")
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["type"], "error")
        error = line["data"]
        self.assertRegex(done.stderr, r"(?s)\A(zero-to-fp32|to-universal|ckpt-inspect): error: .+\n\Z")
        kinds = {2: {"usage"}, 3: {"corrupt", "inconsistent", "unsupported"}, 4: {"io"}, 130: {"interrupted"}}
        self.assertIn(error["kind"], kinds[code])
        return error

    def assert_refused(self, source, code, pattern, *arguments, where=None, inspect=None, **options):
        """zero-to-fp32 exits with `code` and a message that `pattern` finds. The message names the places in `where`,
        nothing is left behind, and the input is unchanged. An empty `pattern` accepts any message. `inspect`: whether
        ckpt-inspect must refuse too; by default for a bad checkpoint. Returns the error."""
        source = pathlib.Path(source)
        before = snapshot(source)
        output = self.new_path() / "made" / "too"
        done = self.zero_to_fp32(source, output, "--json", *arguments, **options)
        error = self.error_of(done, code)
        if pattern:
            self.assertRegex(done.stderr, pattern)
        for key, value in (where or {}).items():
            self.assertIn(key, error, done.stderr)
            self.assertIn(str(value), str(error[key]), done.stderr)
            self.assertIn(str(value), done.stderr)
        self.assertFalse(output.parent.parent.exists(), "an output folder is left")
        self.assertEqual(snapshot(source), before)
        if inspect or (inspect is None and code == 3):
            listed = self.tool("ckpt-inspect", "list", source, "--json")
            if listed.returncode == 1:  # the rest can be inspected, and the defect is reported
                line, = self.json_lines(listed.stdout)
                self.assertEqual({**line["data"]["damage"]["error"], "status": code}, error)
            else:
                self.assertEqual(self.error_of(listed, code), error)
            self.assertEqual(snapshot(source), before)
        return error


def all_cases():
    return tools.all_cases()


def main():
    tools.main()
