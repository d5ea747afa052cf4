"""The metadata that to-dcp writes of a model that no disk here holds: small enough, soon read, and whole.

Every rank that loads a checkpoint of torch.distributed.checkpoint reads all of it.
"""
import math
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import unittest

import torch.distributed.checkpoint  # noqa: F401  what the pickle names is there before the clock starts

ROOT = pathlib.Path(os.environ["DSCKPT_SOURCE"])
PROGRAM = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "tests/write_dcp_metadata"
MODEL, SAVED_BY, RANKS = "llama-405b", 8, 512
MIB = 1 << 20


class DcpMetadata(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            subprocess.run([sys.executable, ROOT / "tests/simulate/simulate.py", folder / "ckpt", "--model", MODEL,
                            "--stage", "3", "--dp", str(SAVED_BY)], check=True, stdout=subprocess.DEVNULL)
            subprocess.run([PROGRAM, folder / "ckpt", str(RANKS), folder / "metadata"], check=True)
            cls.bytes = (folder / "metadata").read_bytes()
        before = time.process_time()  # others may be at work here
        cls.metadata = pickle.loads(cls.bytes)
        cls.seconds = time.process_time() - before

    def test_it_is_small_and_soon_read(self):
        chunks = len(self.metadata.storage_data)
        print(f"{chunks} chunks, {len(self.bytes) / MIB:.1f} MiB, {self.seconds:.1f} s; a rank reads "
              f"{self.over_reading():.2f} times its share")
        self.assertLessEqual(len(self.bytes), 64 * MIB)
        self.assertLessEqual(self.seconds, 5)
        self.assertLess(self.over_reading(), 2.5)

    def over_reading(self):
        """All that a rank of FSDP2 in the middle reads, chunks being read whole, by what it needs."""
        rank, needed, read = RANKS // 2, 0, 0
        for value in self.metadata.state_dict_metadata.values():
            if not getattr(value, "size", None):
                continue
            rows = -(-value.size[0] // RANKS)
            begin, end = rank * rows, min((rank + 1) * rows, value.size[0])
            row = math.prod(value.size[1:])
            needed += max(0, end - begin) * row
            read += sum(chunk.sizes[0] * row for chunk in value.chunks
                        if chunk.offsets[0] < end and begin < chunk.offsets[0] + chunk.sizes[0])
        return read / needed

    def test_chunks_tile_every_tensor_and_each_has_a_place_of_its_own(self):
        places = {(index.fqn, index.offset): (place.relative_path, place.offset, place.length)
                  for index, place in self.metadata.storage_data.items()}
        ranges = {}
        for name, value in self.metadata.state_dict_metadata.items():
            row = 0
            for chunk in getattr(value, "chunks", ()):
                place = places[name, chunk.offsets]
                self.assertGreater(place[2], 4 * math.prod(chunk.sizes))
                ranges.setdefault(place[0], set()).add(place[1:])
                if value.size:
                    self.assertEqual((chunk.offsets[0], chunk.sizes[1:]), (row, value.size[1:]))
                    row += chunk.sizes[0]
            if getattr(value, "size", None):
                self.assertEqual(row, value.size[0], name)
            elif not hasattr(value, "chunks"):
                place = places[name, None]
                ranges.setdefault(place[0], set()).add(place[1:])
        for file, parts in ranges.items():
            at = 0
            for offset, length in sorted(parts):
                self.assertEqual(offset, at, file)
                at += length

    def test_the_model_is_there(self):
        numel = sum(math.prod(value.size) for name, value in self.metadata.state_dict_metadata.items()
                    if name.startswith("model."))
        self.assertEqual(numel, 405_853_388_800)


if __name__ == "__main__":
    unittest.main()
