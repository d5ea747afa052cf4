"""The benchmarks' checkpoints are laid out as DeepSpeed's, the tools read the values they were made of, and
a wrong tensor is noticed."""
import collections
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

import torch

ROOT = pathlib.Path(os.environ["DSCKPT_SOURCE"])
TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "checkpoints"
BIN = pathlib.Path(os.environ["DSCKPT_BIN"])

# bench_checkpoint puts modules of that name into this process.
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
import bench_check  # noqa: E402
import bench_checkpoint  # noqa: E402

torch.set_num_threads(1)


# How large the batches were is of no importance.
BATCH_SIZES = {"train_batch_size", "train_micro_batch_size_per_gpu", "global_samples"}


def skeleton(value):
    """All of a pickle but the elements of its tensors: of these, how they lie in their storages."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape), value.stride(), value.storage_offset(),
                value.untyped_storage().nbytes(), value.requires_grad, sorted(value.__dict__.items()))
    if isinstance(value, dict):
        items = [(key, type(item) if key in BATCH_SIZES else skeleton(item)) for key, item in value.items()]
        return (type(value), items, skeleton(getattr(value, "_metadata", None)))
    if isinstance(value, (list, tuple)):
        return (type(value), [skeleton(item) for item in value])
    if isinstance(value, (bench_checkpoint.LossScaler, bench_checkpoint.FragmentAddress)):
        return (type(value), list(value.__dict__.items()))
    return (type(value), value)


def records(path):
    """The entries of a zip, in order; data.pkl is longer when numbers in it are larger."""
    with zipfile.ZipFile(path) as archive:
        return [(info.filename, info.filename.endswith("data.pkl") or info.file_size)
                for info in archive.infolist()]


class Layout(unittest.TestCase):
    def assert_like_deepspeed(self, case):
        facts = json.loads((TESTDATA / case / "case.json").read_text())
        theirs = TESTDATA / case / facts["load_dir"]
        model = next((theirs / facts["tag"]).glob("*mp_rank_00_model_states.pt"))
        shapes = collections.OrderedDict()
        for group in torch.load(model, weights_only=False)["param_shapes"]:
            shapes.update(group)
        with tempfile.TemporaryDirectory() as ours:
            ours = pathlib.Path(ours) / "checkpoint"
            bench_checkpoint.Writer(ours, shapes, facts["stage"], facts["world_size"]).write()
            self.assertEqual((ours / "latest").read_text(), (theirs / "latest").read_text())
            names = sorted(path.name for path in (theirs / facts["tag"]).iterdir())
            self.assertEqual(sorted(path.name for path in (ours / facts["tag"]).iterdir()), names)
            for name in names:
                with self.subTest(file=name):
                    mine, real = ours / facts["tag"] / name, theirs / facts["tag"] / name
                    self.assertEqual(records(mine), records(real))
                    self.assertEqual(skeleton(torch.load(mine, weights_only=False)),
                                     skeleton(torch.load(real, weights_only=False)))

    def test_stage_2_is_laid_out_as_deepspeed_does(self):
        self.assert_like_deepspeed("z2_bf16_w4")

    def test_stage_3_is_laid_out_as_deepspeed_does(self):
        self.assert_like_deepspeed("z3_bf16_w2")


class Sparse(unittest.TestCase):
    def assert_like_the_other(self, stage):
        """But for the values, and the room on the disk."""
        shapes = bench_checkpoint.decoder_shapes(200_000)
        with tempfile.TemporaryDirectory() as folder:
            folders = [pathlib.Path(folder) / name for name in ("full", "sparse")]
            for path, sparse in zip(folders, (False, True)):
                bench_checkpoint.Writer(path, shapes, stage, 3, None, sparse).write()
            for full in sorted((folders[0] / bench_checkpoint.TAG).iterdir()):
                sparse = folders[1] / bench_checkpoint.TAG / full.name
                with self.subTest(file=full.name):
                    self.assertEqual(records(sparse), records(full))
                    self.assertEqual(skeleton(torch.load(sparse, weights_only=False)),
                                     skeleton(torch.load(full, weights_only=False)))
                    self.assertIsNone(zipfile.ZipFile(sparse).testzip())
                    self.assertLess(sparse.stat().st_blocks * 512, 50_000)
            done = subprocess.run([BIN / "ckpt-inspect", "verify", folders[1]], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_stage_2_is_like_one_with_values(self):
        self.assert_like_the_other(2)

    def test_stage_3_is_like_one_with_values(self):
        self.assert_like_the_other(3)


class Values(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)

    def convert(self, shapes, stage, ranks, *arguments, sub_group_size=None):
        checkpoint = self.folder / "checkpoint"
        bench_checkpoint.Writer(checkpoint, shapes, stage, ranks, sub_group_size).write()
        subprocess.run([BIN / "zero-to-fp32", checkpoint, self.folder / "out", "-q", "--verify", *arguments],
                       check=True)
        return self.folder / "out"

    def assert_right(self, path, shapes):
        offsets = bench_checkpoint.starts(shapes)
        tensors = torch.load(path, weights_only=True)
        self.assertEqual(list(tensors), list(shapes))
        for name, tensor in tensors.items():
            self.assertTrue(torch.equal(tensor, bench_checkpoint.parameter_values(offsets[name], shapes[name])),
                            name)

    def test_shapes_leave_remainders_in_partitions_and_parameters(self):
        for params in (200_000, 20_000_000, 400_000_000, 7_000_000_000):
            sizes = [math.prod(shape) for shape in bench_checkpoint.decoder_shapes(params).values()]
            self.assertAlmostEqual(sum(sizes) / params, 1, delta=0.05)
            self.assertEqual(sum(sizes) % 2, 1)
            self.assertTrue(any(size % 4 for size in sizes))

    def test_values_do_not_depend_on_where_a_range_begins(self):
        size = 3 * bench_checkpoint.BLOCK
        whole = bench_checkpoint.parameter_values(0, (size,))
        for begin in (1, bench_checkpoint.BLOCK - 1, bench_checkpoint.BLOCK, bench_checkpoint.BLOCK + 7):
            self.assertTrue(torch.equal(whole[begin:], bench_checkpoint.parameter_values(begin, (size - begin,))))
        self.assertGreater(whole.unique().numel(), size // 2)

    def test_stage_2_converts_to_the_values_it_was_made_of(self):
        shapes = bench_checkpoint.decoder_shapes(200_000)
        self.assert_right(self.convert(shapes, 2, 3) / "pytorch_model.bin", shapes)

    def test_stage_3_with_sub_groups_converts_to_the_values_it_was_made_of(self):
        shapes = bench_checkpoint.decoder_shapes(200_000)
        self.assert_right(self.convert(shapes, 3, 3, sub_group_size=10_000) / "pytorch_model.bin", shapes)
        saved = torch.load(self.folder / "checkpoint" / bench_checkpoint.TAG /
                           "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", weights_only=False)
        self.assertGreater(len(saved["optimizer_state_dict"]["fp32_flat_groups"]), 2)

    def test_check_notices_one_wrong_bit(self):
        shapes = bench_checkpoint.decoder_shapes(200_000)
        folder = self.convert(shapes, 2, 2)
        bench_check.check_weights(folder, shapes)
        tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
        last = tensors["lm_head.bias"].view(torch.int32)
        last[-1] ^= 1
        torch.save(tensors, folder / "pytorch_model.bin")
        with self.assertRaisesRegex(SystemExit, "lm_head.bias"):
            bench_check.check_weights(folder, shapes)


class Universal(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.shapes = bench_checkpoint.decoder_shapes(200_000)

    def convert(self, stage, *program, sub_group_size=None):
        checkpoint = self.folder / "checkpoint"
        if not checkpoint.exists():
            bench_checkpoint.Writer(checkpoint, self.shapes, stage, 3, sub_group_size).write()
        output = self.folder / f"output{len(list(self.folder.glob('output*')))}"
        subprocess.run([*program, "--input_folder", checkpoint / bench_checkpoint.TAG, "--output_folder", output,
                        "--inject_missing_state"], check=True, capture_output=True)
        return output

    def assert_right(self, stage, **settings):
        ours = self.convert(stage, BIN / "to-universal", **settings)
        bench_check.check_universal(ours, self.shapes, stage)
        if not HAS_DEEPSPEED:
            self.skipTest("deepspeed is not installed")
        theirs = self.convert(stage, sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal")
        bench_check.check_universal(ours, self.shapes, stage, theirs)

    def test_stage_2_converts_to_the_states_it_was_made_of(self):
        self.assert_right(2)

    def test_stage_3_with_sub_groups_converts_to_the_states_it_was_made_of(self):
        self.assert_right(3, sub_group_size=10_000)

    def assert_noticed(self, path, change, stage=2):
        good, bad = (self.convert(stage, BIN / "to-universal") for _ in range(2))
        value = torch.load(bad / path, weights_only=False)
        change(value)
        torch.save(value, bad / path)
        with self.assertRaisesRegex(SystemExit, path):
            bench_check.check_universal(good, self.shapes, stage, bad)

    def test_check_notices_one_wrong_bit_of_a_moment(self):
        def change(value):
            value["param"].view(torch.int32)[-1] ^= 1
        self.assert_noticed("zero/lm_head.bias/exp_avg_sq.pt", change)

    def test_check_notices_another_step(self):
        self.assert_noticed("zero/lm_head.bias/step.pt", lambda value: value.add_(1))

    def test_check_notices_another_hyper_parameter(self):
        def change(value):
            value["param_groups"][0]["lr"] *= 2
        self.assert_noticed("zero/optimizer_state.pt", change)

    def test_check_notices_a_missing_file(self):
        folder = self.convert(3, BIN / "to-universal")
        (folder / "zero/lm_head.bias/exp_avg.pt").unlink()
        with self.assertRaisesRegex(SystemExit, "lm_head.bias/exp_avg.pt"):
            bench_check.check_universal(folder, self.shapes, 3)


if __name__ == "__main__":
    unittest.main()
