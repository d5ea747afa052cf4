"""ckpt-inspect scan of what torch.distributed.checkpoint writes today: it is harmless, and a payload that the scan finds
is one that torch runs."""
import io
import json
import os
import pickle

import tools
import torch
import torch.distributed.checkpoint as dcp
from cli_common import CliTest
from torch.distributed.checkpoint import filesystem, metadata

MARKER = "dsckpt-dcp-payload-ran"


class Payload:
    """An object that leaves a marker if it is loaded."""

    def __reduce__(self):
        return os.system, ("touch " + MARKER,)


def saved(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class ScanDcpTest(CliTest):

    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.root)  # where what is loaded by torch here would run
        self.folder = self.root / "dcp"
        model = torch.nn.Linear(3, 5)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7, "names": ["a", "b"]}
        dcp.save(state, checkpoint_id=self.folder, no_dist=True)
        self.data = self.folder / "__0_0.distcp"
        self.metadata = pickle.loads((self.folder / ".metadata").read_bytes())

    def scanned(self, path, code):
        done = self.tool("ckpt-inspect", "scan", path, "--json")
        self.assertEqual((done.stderr, done.returncode), ("", code), done.stdout)
        self.assertFalse((self.root / MARKER).exists())
        return json.loads(done.stdout)["data"]

    def test_what_torch_writes_is_harmless(self):
        data = self.scanned(self.folder, 0)
        values = len(self.metadata.storage_data)
        self.assertGreater(values, 10)
        self.assertEqual((data["class"], data["unreadable"], data["not_examined"]), ("harmless", [], []))
        self.assertEqual((data["files"], data["pickles"]), (2, values + 1))
        self.assertIn("torch._utils._rebuild_tensor_v2", {finding["global"] for finding in data["findings"]})
        # By the .metadata alone what it leads to counts as well; a data file says itself what it is.
        self.assertEqual(self.scanned(self.folder / ".metadata", 0)["pickles"], values + 1)
        self.assertEqual(self.scanned(self.data, 0)["pickles"], values)

    def test_a_value_is_shown_by_its_offset(self):
        info = next(info for index, info in self.metadata.storage_data.items() if index.fqn == "names")
        done = self.tool("ckpt-inspect", "raw", self.data, "--offset", info.offset, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["data"]["value"], ["a", "b"])

    def test_a_payload_that_torch_runs_is_found(self):
        hidden = saved(Payload())
        tensor = saved(torch.frombuffer(bytearray(b"\x11" * 64 + hidden), dtype=torch.uint8))
        at = tensor.index(b"\x11" * 64) + 64
        self.data.write_bytes(tensor)
        self.metadata.storage_data = {
            metadata.MetadataIndex("names"): filesystem._StorageInfo("__0_0.distcp", at, len(hidden)),
            metadata.MetadataIndex("w"): filesystem._StorageInfo("__0_0.distcp", 0, len(tensor))}
        (self.folder / ".metadata").write_bytes(pickle.dumps(self.metadata, 4))
        found = self.scanned(self.folder, 1)["findings"]
        self.assertIn(("__0_0.distcp", "posix.system", "dangerous"),
                      {(finding["file"], finding["global"], finding["class"]) for finding in found})
        elsewhere = self.new_path()
        elsewhere.mkdir()
        os.chdir(elsewhere)
        value = {"names": [None]}
        dcp.load(value, checkpoint_id=self.folder, no_dist=True)
        os.chdir(self.root)
        self.assertTrue((elsewhere / MARKER).exists())


if __name__ == "__main__":
    tools.main()
