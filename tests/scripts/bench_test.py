"""The benchmark measures what it claims to: its checkpoints are laid out as DeepSpeed's, the tool reads
the values they were made of, and a wrong tensor is noticed."""
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
sys.path.insert(0, str(ROOT / "scripts"))
import bench  # noqa: E402
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
    """What a zip holds, in order; data.pkl is longer when numbers in it are larger."""
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
        bench_checkpoint.check(folder, shapes)
        tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
        last = tensors["lm_head.bias"].view(torch.int32)
        last[-1] ^= 1
        torch.save(tensors, folder / "pytorch_model.bin")
        with self.assertRaisesRegex(SystemExit, "lm_head.bias"):
            bench_checkpoint.check(folder, shapes)


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
        bench_checkpoint.check_universal(ours, self.shapes, stage)
        if not HAS_DEEPSPEED:
            self.skipTest("deepspeed is not installed")
        theirs = self.convert(stage, sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal")
        bench_checkpoint.check_universal(ours, self.shapes, stage, theirs)

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
            bench_checkpoint.check_universal(good, self.shapes, stage, bad)

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
            bench_checkpoint.check_universal(folder, self.shapes, 3)


class Memory(unittest.TestCase):
    def test_memory_of_processes_that_a_program_starts_counts(self):
        child = "import time; block = bytearray(b'1') * (100 << 20); time.sleep(0.5)"
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
        peak = bench.measure([sys.executable, "-c", parent], memory=True)["peak_anonymous_rss"]
        self.assertGreater(peak, 100 << 20)
        self.assertLess(peak, 150 << 20)


class Benchmark(unittest.TestCase):
    def test_a_universal_checkpoint_is_compared_with_a_copy_of_it(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            done = subprocess.run(
                [sys.executable, ROOT / "scripts/bench.py", "--tool", "to-universal", "--params", "200k", "--ranks",
                 "3", "--runs", "2", "--check", "--bin", BIN, "--work", folder / "work", "--json",
                 folder / "results.json"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            results = json.loads((folder / "results.json").read_text())
            shapes = bench_checkpoint.decoder_shapes(200_000)
            # fp32, exp_avg, exp_avg_sq and step; model states and optimizer_state.pt.
            self.assertEqual(results["output_files"], 4 * len(shapes) + 2)
            self.assertGreater(results["output_bytes"], 14 * sum(map(math.prod, shapes.values())))
            self.assertEqual({name: len(program["runs"]) for name, program in results["programs"].items()},
                             {"cp": 2, "to-universal": 2})
            self.assertEqual(list((folder / "work").iterdir()), [])

    def test_a_resharded_checkpoint_is_compared_with_a_copy_of_it(self):
        for stage, to in [(2, 2), (3, 5)]:
            with self.subTest(stage=stage), tempfile.TemporaryDirectory() as folder:
                folder = pathlib.Path(folder)
                done = subprocess.run(
                    [sys.executable, ROOT / "scripts/bench.py", "--tool", "reshard", "--params", "200k", "--ranks", "3",
                     "--to", str(to), "--stage", str(stage), "--runs", "2", "--check", "--bin", BIN, "--work",
                     folder / "work", "--json", folder / "results.json"], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stderr)
                results = json.loads((folder / "results.json").read_text())
                # Shards and `latest`; stage 3 has a model file a rank.
                self.assertEqual(results["output_files"], 2 * to + 1 if stage == 3 else to + 2)
                self.assertEqual(results["to_ranks"], to)
                self.assertEqual({name: len(program["runs"]) for name, program in results["programs"].items()},
                                 {"cp": 2, "reshard": 2})

    def test_statistics_are_compared_with_cat_of_the_shards(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            done = subprocess.run(
                [sys.executable, ROOT / "scripts/bench.py", "--tool", "stats", "--params", "200k", "--ranks", "3",
                 "--runs", "2", "--bin", BIN, "--work", folder / "work", "--json", folder / "results.json"],
                capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            results = json.loads((folder / "results.json").read_text())
            # fp32, exp_avg and exp_avg_sq.
            size = 12 * sum(map(math.prod, bench_checkpoint.decoder_shapes(200_000).values()))
            self.assertGreater(results["read_bytes"], size)
            self.assertLess(results["read_bytes"], 1.1 * size)
            self.assertEqual({name: len(program["runs"]) for name, program in results["programs"].items()},
                             {"cat": 2, "stats": 2})
            self.assertIn("ratio_to_cat", results["programs"]["stats"])
            self.assertEqual(list((folder / "work").iterdir()), [])

    def test_results_are_kept_and_name_no_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            done = subprocess.run(
                [sys.executable, ROOT / "scripts/bench.py", "--params", "200k", "--ranks", "3", "--stage", "3",
                 "--runs", "2", "--format", "safetensors", "--dtype", "bfloat16", "--check", "--bin", BIN,
                 "--work", folder / "work", "--out", folder / "kept"], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            text = (folder / "kept/results.json").read_text()
            self.assertNotIn(str(folder), text)
            self.assertNotIn(str(ROOT), text)
            results = json.loads(text)
            size = 2 * sum(map(math.prod, bench_checkpoint.decoder_shapes(200_000).values()))
            self.assertLess(results["output_bytes"] - size, 10_000)
            self.assertGreaterEqual(results["output_bytes"], size)
            self.assertEqual({name: len(program["runs"]) for name, program in results["programs"].items()},
                             {"cp": 2, "zero-to-fp32": 2})
            self.assertIn(done.stdout, (folder / "kept/README.md").read_text())
            self.assertEqual(list((folder / "work").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
