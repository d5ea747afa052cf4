"""ckpt-inspect scan of checkpoints of torch.distributed.checkpoint: the pickle `.metadata`, and what it leads to.

torch.load is given the ranges of files that `.metadata` names: tensors with weights_only, values without.
oracle/scan_dcp_test.py shows that torch runs the code found here, and that nothing is found in its own files of
today.
"""
import argparse
import json
import os
import pathlib
import shutil

import cli_common
import numpy
import torch_files
from cli_common import CliTest
from torch_files import saved

MARKER = "dsckpt-dcp-payload-ran"
VALUE = "optim.param_groups.0.betas"  # one that is not a tensor


class Payload:
    """Pickles that would leave a marker if they were loaded."""

    def __reduce__(self):
        return os.system, ("touch " + MARKER,)


class ScanDcpTest(CliTest):

    def setUp(self):
        super().setUp()
        self.previous = os.getcwd()
        os.chdir(self.root)  # where what is loaded by torch here would run
        self.addCleanup(os.chdir, self.previous)
        self.folder = self.root / "dcp"
        shutil.copytree(pathlib.Path(os.environ["DSCKPT_TESTDATA"]).absolute() / "dcp" / "nested", self.folder)
        for path in self.folder.iterdir():
            path.chmod(0o644)
        self.data = self.folder / "__1_0.distcp"
        self.written = {path: path.read_bytes() for path in self.folder.iterdir()}

    def metadata(self):
        """As torch wrote it. The files are then again what they were."""
        for path, content in self.written.items():
            path.write_bytes(content)
        return torch_files.loads(self.written[self.folder / ".metadata"])

    def set_metadata(self, value, protocol=4):
        (self.folder / ".metadata").write_bytes(torch_files.dumps(value, protocol))

    def place(self, value, key):
        """The value in the files, by its name."""
        return next(info for index, info in value.storage_data.items() if index.fqn == key)

    def scanned(self, path, code):
        done = self.tool("ckpt-inspect", "scan", path, "--json")
        self.assertEqual(done.stderr, "")
        data = json.loads(done.stdout)["data"]
        self.assertEqual(done.returncode, code, data)
        self.assertFalse((self.root / MARKER).exists())
        return data

    def dangerous(self, path=None):
        data = self.scanned(path or self.folder, 1)
        return {(finding["file"], finding.get("record"), finding["global"])
                for finding in data["findings"] if finding["class"] == "dangerous"}

    def unreadable(self, path=None):
        data = self.scanned(path or self.folder, 1)
        self.assertEqual([f for f in data["findings"] if f["class"] != "harmless"], [])
        return [(part["file"], part.get("record"), part["reason"]) for part in data["unreadable"]]

    def test_what_torch_writes_is_harmless(self):
        data = self.scanned(self.folder, 0)
        values = len(self.metadata().storage_data)
        self.assertGreater(values, 10)
        self.assertEqual((data["class"], data["unreadable"], data["not_examined"]), ("harmless", [], []))
        self.assertEqual((data["files"], data["pickles"]), (3, values + 1))
        self.assertIn("torch._utils._rebuild_tensor_v2", {finding["global"] for finding in data["findings"]})
        # By the .metadata alone what it leads to counts as well; a data file says itself what it is.
        self.assertEqual(self.scanned(self.folder / ".metadata", 0)["pickles"], values + 1)
        there = sum(info.relative_path == self.data.name for info in self.metadata().storage_data.values())
        self.assertEqual(self.scanned(self.data, 0)["pickles"], there)

    def test_an_older_loader_and_more_ranks_find_nothing_else(self):
        value = self.metadata()
        for info in value.storage_data.values():
            if info.relative_path == self.data.name:
                info.relative_path = "sub/data.bin"
        (self.folder / "sub").mkdir()
        self.data.rename(self.folder / "sub" / "data.bin")
        for protocol in (2, 3, 5):
            self.set_metadata(value, protocol)
            self.assertEqual(self.scanned(self.folder, 0)["class"], "harmless")
        shutil.copy(self.folder / ".metadata", self.folder / "__3.metadata")
        self.assertEqual(self.scanned(self.folder, 0)["class"], "harmless")

    def test_metadata_that_runs_code(self):
        for protocol in range(6):
            value = self.metadata()
            value.planner_data = Payload()
            self.set_metadata(value, protocol)
            self.assertEqual(self.dangerous(), {(".metadata", None, "posix.system")})

    def append(self, content):
        """To the data file. Its range there."""
        begin = self.data.stat().st_size
        with open(self.data, "ab") as file:
            file.write(content)
        return begin, len(content)

    def test_a_value_that_runs_code_wherever_it_lies(self):
        for name, content in {"zip": saved(Payload()), "pickle": saved(Payload(), legacy=True)}.items():
            with self.subTest(name):
                value = self.metadata()
                info = self.place(value, VALUE)
                info.offset, info.length = self.append(content)
                self.set_metadata(value)
                found = self.dangerous()
                self.assertEqual({(file, called) for file, _, called in found}, {("__1_0.distcp", "posix.system")})
                self.assertTrue(any(record and record.startswith(VALUE) for _, record, _ in found))

        # In a tensor's bytes, and in a file that nobody takes for a pickle.
        text = self.folder / "README.md"
        text.write_bytes(b"# Model\n\n" + saved(Payload()))
        value = self.metadata()
        info = self.place(value, VALUE)
        info.relative_path, info.offset, info.length = "README.md", 9, text.stat().st_size - 9
        self.set_metadata(value)
        self.assertEqual({(file, called) for file, _, called in self.dangerous()}, {("README.md", "posix.system")})

    def test_a_payload_in_the_bytes_of_a_tensor(self):
        hidden = saved(Payload())
        tensor = saved(torch_files.tensor(numpy.frombuffer(b"\x11" * 64 + hidden, "u1")))
        at = tensor.index(b"\x11" * 64) + 64
        value = self.metadata()
        self.data.write_bytes(tensor)
        value.storage_data = {self.index(value, name): self.info(value, *place) for name, place in
                              {VALUE: (at, len(hidden)), "w": (0, len(tensor))}.items()}
        self.set_metadata(value)
        self.assertIn((self.data.name, "posix.system"), {(file, called) for file, _, called in self.dangerous()})

    def index(self, value, name):
        """A MetadataIndex as torch's of a value is."""
        like = next(index for index in value.storage_data if index.fqn == VALUE)
        return torch_files.new(type(like), **{**like.__dict__, "fqn": name})

    def info(self, value, offset, length):
        return torch_files.new(type(self.place(value, VALUE)), relative_path=self.data.name, offset=offset, length=length)

    def test_what_cannot_be_followed_is_unreadable(self):
        def changed(change):
            value = self.metadata()
            change(value, self.place(value, VALUE))
            self.set_metadata(value)
            return self.unreadable()

        outside = self.root / "outside.pt"
        outside.write_bytes(saved(Payload()))
        cases = [
            ("leads out of its folder", lambda value, info: setattr(info, "relative_path", "../outside.pt")),
            ("leads out of its folder", lambda value, info: setattr(info, "relative_path", str(outside))),
            ("is not there, but '.metadata' names it", lambda value, info: setattr(info, "relative_path", "gone.distcp")),
            ("lies beyond the end", lambda value, info: setattr(info, "length", 1 << 40)),
            ("lies beyond the end", lambda value, info: setattr(info, "offset", (1 << 63) - 1)),
            ("is not a size", lambda value, info: setattr(info, "offset", -1)),
            ("compressed or encrypted", lambda value, info: setattr(info, "transform_descriptors", ["zstd"])),
            ("'storage_data' is not a dict", lambda value, info: setattr(value, "storage_data", [])),
            ("'storage_data'", lambda value, info: delattr(value, "storage_data")),
        ]
        for reason, change in cases:
            with self.subTest(reason):
                self.assertTrue(any(reason in part for _, _, part in changed(change)))

    def test_metadata_that_is_put_together_otherwise_is_not_trusted(self):
        """torch asks any object for its storage_data; which one that is is only known of what it writes itself."""
        value = self.metadata()
        self.set_metadata(argparse.Namespace(**vars(value)))
        (file, _, reason), = self.unreadable()
        self.assertEqual(file, ".metadata")
        self.assertIn("where torch.distributed.checkpoint has its Metadata", reason)

    def test_texts_of_that_name_are_no_pickles(self):
        """The cache of huggingface_hub has them."""
        folder = self.new_path("cache")
        folder.mkdir()
        (folder / "config.json.metadata").write_text("0123456789abcdef\n0123\n1700000000.5\n")
        (folder / ".metadata").write_text("{\"name\": \"x\"}\n")
        self.assertEqual(len(self.scanned(folder, 0)["not_examined"]), 2)

    def test_a_data_file_is_nothing_but_whole_zips(self):
        (self.folder / ".metadata").unlink()
        content = self.data.read_bytes()
        for name, changed in {"behind": content + b"more", "before": b"more" + content, "cut": content[:-1],
                              "lost": content[:1000] + content[1001:]}.items():
            with self.subTest(name):
                self.data.write_bytes(changed)
                self.assertTrue(self.scanned(self.folder, 1)["unreadable"])
        self.data.write_bytes(content + saved(Payload()))
        self.assertEqual({called for _, _, called in self.dangerous()}, {"posix.system"})

    def test_raw_shows_a_value_by_its_offset(self):
        info = self.place(self.metadata(), VALUE)
        done = self.tool("ckpt-inspect", "raw", self.data, "--offset", info.offset, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["data"]["value"], {"$tuple": [0.9, 0.999]})
        self.assertEqual(self.tool("ckpt-inspect", "raw", self.data).returncode, 0)
        self.assertEqual(self.tool("ckpt-inspect", "raw", self.data, "--offset", info.offset + 1).returncode, 2)
        self.assertEqual(self.tool("ckpt-inspect", "raw", self.folder / ".metadata", "--key",
                                   "planner_data").returncode, 0)

    def test_a_directory_that_only_readers_of_the_whole_file_find(self):
        """They count its place from the start of the file: there, in a tensor, lies another one."""
        first = saved(torch_files.zeros(1 << 12, dtype="uint8"))
        second = saved([1])
        end = second.rindex(b"PK\5\6")
        place = int.from_bytes(second[end + 16:end + 20], "little")
        at = first.index(b"\0" * 2048)
        self.assertLess(at, place)
        hidden = bytearray(first)
        hidden[place:place + 4] = b"PK\1\2"
        tensor = torch_files.tensor(numpy.frombuffer(hidden[at:at + (1 << 12)], "u1"))
        first = saved(tensor)
        self.assertEqual(first[place:place + 4], b"PK\1\2")
        (self.folder / ".metadata").unlink()
        self.data.write_bytes(first + second)
        self.assertTrue(self.unreadable())


if __name__ == "__main__":
    cli_common.main()
