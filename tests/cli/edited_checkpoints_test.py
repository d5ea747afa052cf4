"""Edited checkpoints of every layout through every tool: a result or a clear error, whatever the bytes are.

Each is a copy of a test checkpoint with one file changed. Flipped bits, fields of zips and opcodes of pickles
that decide something are such changes. Others are lost and repeated parts, files of other checkpoints, and
texts that are none. EDITS is how many are made; each is given to one command. With sanitized tools what they
report ends a tool with another status.
"""
import collections
import concurrent.futures
import io
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import zipfile

import tools
from cli_common import STAGING, CliTest

COUNT = int(os.environ.get("EDITS", 60))
SECONDS = 60
COMMANDS = {
    "bin": ["zero-to-fp32", "in", "place/out"],
    "safetensors": ["zero-to-fp32", "in", "place/out", "--safe-serialization", "--states", "--dtype=keep"],
    "salvage": ["zero-to-fp32", "in", "place/out", "--allow-missing"],
    "universal": ["to-universal", "--input_folder", "in", "--output_folder", "place/out"],
    "reshard": ["reshard", "in", "place/out", "--dp=4"],
    "reshard to stage 3": ["reshard", "in", "place/out", "--dp=2", "--stage=3"],
    "dcp": ["to-dcp", "in", "place/out", "--dp=3"],
    "dcp of Accelerate": ["to-dcp", "in", "place/out", "--dp=2", "--preset=accelerate", "--dtype=keep"],
    "average": ["zero-to-fp32", "--average", "in", "clean", "place/out"],
    "pack": ["ckpt-pack", "pack", "in", "place/out"],
    "estimate": ["ckpt-pack", "estimate", "in"],
    "strip to weights": ["ckpt-pack", "strip", "in", "place/out", "--keep=weights"],
    "strip": ["ckpt-pack", "strip", "in", "place/out", "--keep=resume"],
    "summary": ["ckpt-inspect", "in", "--json"],
    "page": ["ckpt-inspect", "in", "--html", "place/page.html", "--values"],
    "verify": ["ckpt-inspect", "verify", "in"],
    "scan": ["ckpt-inspect", "scan", "in"],
    "stats": ["ckpt-inspect", "stats", "in"],
    "list": ["ckpt-inspect", "list", "in", "--states"],
    "tree": ["ckpt-inspect", "tree", "in"],
    "diff": ["ckpt-inspect", "diff", "in", "clean"],
}
NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF]
SIGNATURES = [b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\7\10"]
OPCODES = b".(tR}]usbhjqrXKMJG0122N\x88\x89\x85\x86\x87\x8a\x8bcQ\x93\x94\x81\x8c\x95\x82iop"
TEXTS = [b"", b"\0" * 10, b"x" * 100000, b"{" * 100000, b"[" * 100000 + b"]" * 100000, b"[1e999]", b"global_step1\0",
         b'{"weight_map": {"a": "../../x"}}', b'{"weight_map": 3}', b"\xff\xfe", b"../..", b"/", b".", b"-1"]
NAMES = ["zero_pp_rank_9_mp_rank_00_optim_states.pt", "bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt",
         "mp_rank_05_model_states.pt", "layer_99-model_00-model_states.pt", "zero_pp_rank_0_mp_rank_03_model_states.pt",
         "expert_9_mp_rank_00_model_states.pt", "zero_pp_rank_00000000000000000000009_mp_rank_00_optim_states.pt"]


def checkpoints():
    """All of testdata, and that of torch.distributed.checkpoint as often as it must not drown among them."""
    data = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
    return sorted(data.glob("*/*/ckpt")) + [data / "dcp" / "nested"] * 15


def is_shard(path):
    return path.suffix in (".pt", ".distcp") or path.name == ".metadata"


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Editor:
    """Changes one file of a folder; all choices come from the seed."""

    def __init__(self, seed, folders):
        self.random = random.Random(seed)
        self.folders = folders

    def edit(self, folder):
        """The change, and its file."""
        files = files_of(folder)
        shards = [path for path in files if is_shard(path)]
        kinds = [name for name in dir(self) if name.startswith("change_")]
        kind = self.random.choice(kinds + ["change_pickle"] * 4 + ["text"])
        if kind == "text" or not shards:
            path = self.random.choice([path for path in files if not is_shard(path)] or files)
            path.write_bytes(self.random.choice(TEXTS))
            return "text", path
        path = self.random.choice(shards)
        if kind == "change_name":
            shutil.copyfile(path, path.with_name(self.random.choice(NAMES)))
        elif kind == "change_lost":
            path.unlink()
        else:
            path.write_bytes(getattr(self, kind)(path.read_bytes()))
        return kind, path

    change_name = change_lost = None

    def place(self, content):
        places = [match.start() for match in re.finditer(b"|".join(map(re.escape, SIGNATURES)), content)]
        if places and self.random.random() < 0.7:
            return min(self.random.choice(places) + self.random.randrange(50), len(content) - 1)
        return self.random.randrange(len(content))

    def change_bits(self, content):
        content = bytearray(content)
        for _ in range(self.random.choice([1, 1, 2, 8])):
            content[self.place(content)] ^= 1 << self.random.randrange(8)
        return bytes(content)

    def change_field(self, content):
        content = bytearray(content)
        size = self.random.choice([1, 2, 4, 8])
        at = self.place(content)
        content[at:at + size] = struct.pack("<Q", self.random.choice(NUMBERS))[:size]
        return bytes(content)

    def change_end(self, content):
        return content[:self.place(content)]

    def change_run(self, content):
        at, size = self.place(content), self.random.choice([1, 16, 512, 4096])
        return content[:at] + self.random.choice([b"", bytes(size), content[:size]]) + content[at + size:]

    def change_inserted(self, content):
        at = self.place(content)
        return content[:at] + self.random.randbytes(self.random.choice([1, 64])) + content[at:]

    def change_whole(self, content):
        """A file of another checkpoint."""
        other = [path for path in files_of(self.random.choice(self.folders)) if is_shard(path)]
        return self.random.choice(other).read_bytes() if other else b""

    def change_pickle(self, content):
        """The pickle of a zip, whose checksum is right again; or the first bytes of what is none."""
        if not content.startswith(b"PK"):
            at = self.random.randrange(min(len(content), 4096))
            return content[:at] + self.spoilt(content[at:at + 64]) + content[at + 64:]
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
            for info in old.infolist():
                data = old.read(info)
                new.writestr(info.filename, self.spoilt(data) if info.filename.endswith("/data.pkl") else data)
        return out.getvalue()

    def spoilt(self, code):
        code = bytearray(code)
        for _ in range(self.random.choice([1, 1, 2, 4])):
            at = self.random.randrange(len(code))
            how = self.random.randrange(4)
            if how == 0:
                code[at] = self.random.choice(OPCODES)
            elif how == 1:
                code[at:at + 5] = b"X" + struct.pack("<I", self.random.choice(NUMBERS + [3, 8]))
            elif how == 2:
                begin = self.random.randrange(len(code))
                code[at:at + 8] = code[begin:begin + 8]
            else:
                code[at] = self.random.choice([0, 1, 2, 0x7F, 0x80, 0xFF, code[at] ^ 1])
        return bytes(code)


class EditedCheckpointsTest(CliTest):

    def test_each_gives_a_result_or_a_clear_error(self):
        memory = pathlib.Path("/dev/shm")
        parent = memory if memory.is_dir() else self.root
        folders = checkpoints()
        counts, lock = collections.Counter(), threading.Lock()
        with tempfile.TemporaryDirectory(prefix="dsckpt-edits-", dir=parent) as scratch:
            def check(seed):
                problem, status = self.run_one(seed, folders, pathlib.Path(scratch) / str(seed))
                with lock:
                    counts[status] += 1
                return seed, problem
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                problems = [(seed, problem) for seed, problem in pool.map(check, range(COUNT)) if problem]
        print(f"{COUNT} edits, by exit status: {dict(sorted(counts.items()))}", file=sys.stderr)
        self.assertEqual(problems, [])
        self.assertGreater(counts[3], COUNT // 10)

    def run_one(self, seed, folders, folder):
        """The fault, or nothing, and the exit status."""
        chosen = random.Random(seed)
        original = chosen.choice(folders)
        shutil.copytree(original, folder / "in")
        for path in folder.rglob("*"):
            path.chmod(path.stat().st_mode | 0o600)
        (folder / "place").mkdir()
        (folder / "clean").symlink_to(original)
        what, changed = Editor(seed, folders).edit(folder / "in")
        before = self.seen(folder / "in")
        name, command = chosen.choice(list(COMMANDS.items()))
        binary = pathlib.Path(os.environ["DSCKPT_BIN"]) / command[0]
        try:
            done = subprocess.run([binary, *command[1:]], cwd=folder, capture_output=True, timeout=SECONDS,
                                  env={**os.environ, "ASAN_OPTIONS": "exitcode=99:allocator_may_return_null=1",
                                       "UBSAN_OPTIONS": "halt_on_error=1:exitcode=99"})
            status, said = done.returncode, done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            status, said = "timeout", ""
        left = [path.name for path in (folder / "place").iterdir()]
        wrong = []
        if status not in (0, 1, 2, 3):
            wrong.append(f"exit status {status}: {said[-2000:]}")
        if status not in (0, 1) and left or any(path.startswith(STAGING) for path in left):
            wrong.append(f"left: {left}")
        if self.seen(folder / "in") != before:
            wrong.append("the input was changed")
        if status in (2, 3) and "error:" not in said:
            wrong.append(f"no error is named: {said}")
        shutil.rmtree(folder)
        where = f"{original.parent.name}/{changed.name}, {what}, {name}"
        return f"{where}: {'; '.join(wrong)}" if wrong else None, status

    @staticmethod
    def seen(folder):
        return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in files_of(folder)}


if __name__ == "__main__":
    tools.main()
