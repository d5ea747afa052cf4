"""Common parts of the tests of `ckpt-inspect scan`: payloads, and a folder in which nothing may have run."""
import io
import os
import pathlib
import pickle
import struct
import zipfile

import numpy
from cli_common import CliTest

ZOO = pathlib.Path(os.environ["DSCKPT_TESTDATA"]).absolute() / "malicious"
MARKER = "dsckpt-malicious-pickle-ran"


class Payload:
    """An object that would leave a marker if it were loaded."""

    def __reduce__(self):
        return os.system, ("touch " + MARKER,)


def with_a_second_directory(outer, storage, records):
    """The zip `outer` with another one inside, whose directory and end record are in the comment.

    The inner records lie in the data of `storage`, which must have room. torch takes the last end record, whatever the
    length of its comment. Readers that check the length take the first one.
    """
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        for name, content in records.items():
            zipped.writestr(name, content)
    inner = stream.getvalue()
    end = inner.rindex(b"PK\5\6")
    size, begin = struct.unpack_from("<II", inner, end + 12)
    with zipfile.ZipFile(io.BytesIO(outer)) as zipped:
        kept = {name: zipped.read(name) for name in zipped.namelist()}
    ahead = b"\x11" * 64  # keeps the record from beginning like a zip
    kept[storage] = ahead + inner[:begin]
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as zipped:
        for name, content in kept.items():
            zipped.writestr(name, content)
        inside = zipped.getinfo(storage).header_offset + 30 + len(storage) + len(ahead)
    whole = stream.getvalue()
    directory = bytearray(inner[begin:begin + size])
    at = 0
    while at < size:
        lengths = struct.unpack_from("<HHH", directory, at + 28)
        local, = struct.unpack_from("<I", directory, at + 42)
        struct.pack_into("<I", directory, at + 42, local + inside)
        at += 46 + sum(lengths)
    comment = bytes(directory) + inner[end:end + 16] + struct.pack("<IH", len(whole), 0) + b"JUNK"
    return whole[:-2] + struct.pack("<H", len(comment)) + comment


class ScanCase(CliTest):

    def setUp(self):
        super().setUp()
        # Code that ran would leave its marker in this folder, where the tools run.
        self.previous = os.getcwd()
        os.chdir(self.root)
        self.addCleanup(os.chdir, self.previous)
        self.addCleanup(self.assert_nothing_ran)

    def assert_nothing_ran(self):
        for folder in [self.root, self.tmp, ZOO, pathlib.Path(self.previous), pathlib.Path.home()]:
            self.assertFalse((folder / MARKER).exists(), folder)

    def scanned(self, path, *arguments, code=None):
        done = self.tool("ckpt-inspect", "scan", path, "--json", *arguments)
        self.assertEqual(done.stderr, "")
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["type"], "scan")
        failing = {"dangerous"} if "--dangerous-only" in arguments else {"dangerous", "unknown"}
        self.assertEqual(done.returncode, 1 if line["data"]["class"] in failing else 0)
        if code is not None:
            self.assertEqual(done.returncode, code, line["data"])
        return line["data"]

    def assert_harmless(self, path):
        data = self.scanned(path)
        bad = [finding for finding in data["findings"] if finding["class"] != "harmless"]
        self.assertEqual((bad, data["unreadable"], data["class"]), ([], [], "harmless"))
        return data

    def assert_harmless_beside_plain_files(self, folder):
        """Everything in the folder is harmless, and so are files of Python and NumPy that are put beside it."""
        for protocol in range(6):
            (folder / f"plain{protocol}.pkl").write_bytes(
                pickle.dumps({"a": numpy.arange(3), "b": {1, 2}, "c": bytearray(b"x"), "d": 1j}, protocol))
        numpy.save(folder / "plain.npy", numpy.arange(4))
        numpy.savez_compressed(folder / "plain.npz", a=numpy.arange(4))
        numpy.save(folder / "objects.npy", numpy.array([{"a": 1}], dtype=object), allow_pickle=True)
        (folder / "notes.md").write_text("import os\nos.system\n")
        data = self.assert_harmless(folder)
        self.assertEqual(data["not_examined"], ["notes.md", "plain.npy", "plain.npz"])

    def written(self, content, file="model.pkl"):
        path = self.new_path() / file
        path.parent.mkdir()
        path.write_bytes(content)
        return path
