"""Simulated checkpoints are real ones: torch loads their files, DeepSpeed's converter and ours make of
them the same universal checkpoint, all zeros; and they take no room on the disk."""
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile
import zlib
from unittest import mock

import torch

ROOT = pathlib.Path(os.environ["DSCKPT_SOURCE"])
BIN = pathlib.Path(os.environ["DSCKPT_BIN"])

sys.path.insert(0, str(ROOT / "scripts"))
import simulate  # noqa: E402

torch.set_num_threads(1)
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def simulate(self, *arguments, name="checkpoint"):
        subprocess.run([sys.executable, ROOT / "scripts/simulate.py", self.folder / name, *arguments], check=True)
        return self.folder / name / (self.folder / name / "latest").read_text()

    def convert(self, tag, *arguments):
        return subprocess.run([BIN / "to-universal", "--input_folder", tag, "--output_folder", self.folder / "ours",
                               *arguments], capture_output=True, text=True)


def load(path):
    return torch.load(path, weights_only=False)


def plain(value):
    """Of what torch.load gave, all but identities; and every tensor with its elements."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return (type(value), [(key, plain(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [plain(item) for item in value])
    if type(value).__module__.startswith("deepspeed") and not isinstance(value, int):
        return (type(value), plain(vars(value)))
    return (type(value), value)


def extents(file):
    """Where a sparse file has data."""
    end = 0
    while True:
        try:
            begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
        except OSError:  # nothing more
            return
        end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
        yield begin, end


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


class Archives(Case):
    def test_crc_of_zeros_is_zlibs(self):
        for count in (0, 1, 2, 3, 63, 64, 1000, 65535, 1 << 20, (1 << 20) + 7):
            self.assertEqual(simulate.crc_of_zeros(count), zlib.crc32(bytes(count)), count)

    def save_both(self, tensors, storages):
        """Saves tensors with torch, and Storages of the same sizes here."""
        for folder in ("real", "ours"):
            (self.folder / folder).mkdir()
        torch.save(tensors, self.folder / "real/x.pt")
        with zipfile.ZipFile(self.folder / "real/x.pt") as real:
            identity = real.read("x/.data/serialization_id")
        with mock.patch.object(simulate, "SERIALIZATION_ID", identity):
            simulate.save(self.folder / "ours/x.pt", simulate.Pickled(
                [simulate.Tensor(storage, tuple(tensor.shape)) for tensor, storage in zip(tensors, storages)]))
        return self.folder / "real/x.pt", self.folder / "ours/x.pt"

    def test_an_archive_has_the_bytes_that_torch_writes(self):
        real, ours = self.save_both([torch.zeros(3, 5), torch.zeros(0), torch.full((1,), 2.0)],
                                    [simulate.Storage(15), simulate.Storage(0),
                                     simulate.Storage(1, data=b"\0\0\0\x40")])
        self.assertEqual(ours.read_bytes(), real.read_bytes())

    def test_an_archive_beyond_4_gib_has_the_bytes_that_torch_writes(self):
        sizes = (2**30 + 1, 5, 2**28, 7)
        # torch leaves the elements out then, and writes 0 for their checksums.
        with torch.serialization.skip_data(), mock.patch.object(simulate, "crc_of_zeros", return_value=0):
            real, ours = self.save_both([torch.empty(size) for size in sizes], map(simulate.Storage, sizes))
        self.assertGreater(ours.stat().st_size, 5 << 30)
        self.assertEqual(ours.stat().st_size, real.stat().st_size)
        for path in (real, ours):
            self.assertLess(path.stat().st_blocks * 512, 1 << 20)
        with open(real, "rb") as real, open(ours, "rb") as ours:
            for begin, end in sorted([*extents(real), *extents(ours)]):
                self.assertEqual(*(os.pread(file.fileno(), end - begin, begin) for file in (ours, real)))

    def test_torch_reads_an_archive_beyond_4_gib(self):
        path = self.folder / "large.pt"
        sizes = (2**30 + 1, 5, 2**28, 7)
        simulate.save(path, simulate.Pickled([simulate.Tensor(simulate.Storage(size)) for size in sizes]))
        tensors = torch.load(path, mmap=True, weights_only=True)
        self.assertEqual([tensor.numel() for tensor in tensors], list(sizes))
        for tensor in tensors:
            self.assertEqual(tensor[[0, -1]].tolist(), [0, 0])


class Layouts(Case):
    def assert_converts(self, *arguments):
        tag = self.simulate(*arguments)
        for path in tag.iterdir():
            load(path)
            with zipfile.ZipFile(path) as archive:
                self.assertIsNone(archive.testzip())
                self.assertEqual({info.compress_type for info in archive.infolist()}, {zipfile.ZIP_STORED})
        done = self.convert(tag, "--verify")
        self.assertEqual(done.returncode, 0, done.stderr)
        ours = files_of(self.folder / "ours")
        names = set()
        for name, path in ours.items():
            if not name.endswith(("/fp32.pt", "/exp_avg.pt", "/exp_avg_sq.pt")):
                continue
            value = load(path)
            tensor = value["param"] if isinstance(value, dict) else value
            self.assertEqual(tensor.count_nonzero(), 0, name)
            names.add(name.split("/")[1])
        self.assertTrue(names)
        if HAS_DEEPSPEED:
            theirs = self.folder / "theirs"
            subprocess.run([sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", tag,
                            "--output_folder", theirs, "--num_extract_workers", "1", "--num_merge_workers", "1"],
                           check=True, capture_output=True)
            theirs = files_of(theirs)
            self.assertEqual(ours.keys(), theirs.keys())
            stage3 = "3" in arguments
            for name, path in ours.items():
                # At stage 3 DeepSpeed keeps rank 0's flat tensors there, which nothing reads.
                if not (stage3 and name == "zero/optimizer_state.pt"):
                    self.assertEqual(plain(load(path)), plain(load(theirs[name])), name)
        return tag, names

    def test_a_pipeline_of_tensor_parallel_stages_converts_to_zeros(self):
        tag, names = self.assert_converts("--model", "tiny-bloom", "--stage", "1", "--tp", "2", "--pp", "3",
                                          "--dp", "3")
        self.assertEqual(len(list(tag.glob("*"))), 2 * 3 * (1 + 3))
        self.assertIn("7.self_attention.query_key_value.weight", names)
        embedding = load(self.folder / "ours/zero/tied_modules.embed.word_embeddings.weight/fp32.pt")
        self.assertEqual(embedding["param"].shape, (301, 24))
        last = load(tag / "mp_rank_05_model_states.pt")
        self.assertIn("tied_modules.embed.word_embeddings.weight", last["param_shapes"][0])
        self.assertEqual(last["param_shapes"][0]["tied_modules.embed.word_embeddings.weight"], (256, 24))

    def test_an_untied_pipeline_converts_to_zeros(self):
        self.assert_converts("--model", "tiny-llama", "--stage", "1", "--tp", "2", "--pp", "2", "--dp", "2")

    def test_stage_3_converts_to_zeros(self):
        self.assert_converts("--model", "tiny-llama", "--stage", "3", "--dp", "3")

    def test_stage_3_with_a_tied_name_converts_to_zeros(self):
        self.assert_converts("--model", "tiny-bloom", "--stage", "3", "--dp", "2")


class Arguments(Case):
    def test_a_grid_that_the_model_cannot_have_is_refused_before_anything_is_written(self):
        for grid, what in ((["--tp", "5"], "cannot be cut into 5 slices"),
                           (["--pp", "8"], "cannot be 8 pipeline stages")):
            done = subprocess.run([sys.executable, ROOT / "scripts/simulate.py", self.folder / "checkpoint", "--model",
                                   "tiny-bloom", "--stage", "1", *grid], capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn(what, done.stderr)
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_checkpoint_is_not_overwritten(self):
        tag = self.simulate("--model", "tiny-llama", "--stage", "3")
        before = {path: path.read_bytes() for path in tag.iterdir()}
        done = subprocess.run([sys.executable, ROOT / "scripts/simulate.py", self.folder / "checkpoint", "--model",
                               "tiny-bloom", "--stage", "3"], capture_output=True, text=True)
        self.assertIn("exists already", done.stderr)
        self.assertEqual({path: path.read_bytes() for path in tag.iterdir()}, before)


class Sizes(Case):
    def test_bloom_176b_on_384_ranks_is_sparse_and_has_all_its_parameters(self):
        tag = self.simulate("--model", "bloom-176b", "--stage", "1", "--tp", "4", "--pp", "12", "--dp", "8")
        files = list(tag.iterdir())
        self.assertEqual(len(files), 384 + 48)
        self.assertGreater(sum(path.stat().st_size for path in files), 2e12)
        self.assertLess(sum(path.stat().st_blocks for path in files) * 512, 64 << 20)
        done = self.convert(tag, "--dry-run", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((self.folder / "ours").exists())
        parameters = json.loads(done.stdout)["data"]["parameters"]
        embedding = parameters.pop(0)
        self.assertEqual(embedding["name"], "tied_modules.embed.word_embeddings.weight")
        # The published size, which counts the rows by which the vocabulary is padded.
        self.assertEqual(sum(math.prod(each["shape"]) for each in parameters) + 250880 * 14336, 176_247_271_424)

    def test_llama_70b_has_the_published_number_of_parameters(self):
        tag = self.simulate("--model", "llama-70b", "--stage", "3", "--dp", "16")
        shapes = load(tag / "zero_pp_rank_15_mp_rank_00_model_states.pt")["param_shapes"]
        self.assertEqual(sum(shape.numel() for group in shapes for shape in group.values()), 70_553_706_496)
        # 70.55e9 / 16 is more than four times the size of a sub-group.
        self.assertEqual(len(shapes), 6)
        self.assertLess(sum(path.stat().st_blocks for path in tag.iterdir()) * 512, 64 << 20)


if __name__ == "__main__":
    unittest.main()
