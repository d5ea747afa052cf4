"""Simulated checkpoints are real ones. They have the form of the test data, torch loads their files, and
DeepSpeed's converters and ours give the same results. They take no room on the disk."""
import argparse
import contextlib
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import typing
import unittest
import zipfile
import zlib
from unittest import mock

import simulate
import simulate_archive
import simulate_checkpoint
import simulate_models
import simulate_pipeline
import simulate_table
import torch

ROOT = pathlib.Path(os.environ["DSCKPT_SOURCE"])
BIN = pathlib.Path(os.environ["DSCKPT_BIN"])

torch.set_num_threads(1)
HAS_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None

# DeepSpeed's conversions of checkpoints, in one process, since its import takes most of the time. Arguments: a
# universal checkpoint's folder or none, the checkpoint, and where to write what zero_to_fp32 has of it, or none.
DEEPSPEED = """
import argparse, sys, torch
from deepspeed.checkpoint import ds_to_universal
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
for universal, checkpoint, tag, weights in zip(*[iter(sys.argv[1:])] * 4):
    ds_to_universal.main(argparse.Namespace(
        input_folder=checkpoint + "/" + tag, output_folder=universal, num_extract_workers=1, num_merge_workers=1,
        keep_temp_folder=False, strict=True, inject_missing_state=True))
    if weights != "none":
        torch.save(get_fp32_state_dict_from_zero_checkpoint(checkpoint), weights)
"""


def temporary_folder():
    """In memory where there is room: these are thousands of small files, which a disk is slow to delete."""
    memory = pathlib.Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free >= 1 << 28
    return tempfile.TemporaryDirectory(dir=memory if roomy else None)


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def written(folder, model, **options):
    simulate.writer(folder, simulate_models.MODELS[model], **options).write()


def tool(name, *arguments):
    return run(BIN / name, *arguments)


class Case(unittest.TestCase):
    def setUp(self):
        temporary = temporary_folder()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def simulate(self, *arguments):
        return run(sys.executable, ROOT / "tests/simulate/simulate.py", *arguments)


def load(path):
    return torch.load(path, weights_only=False)


def plain(value):
    """A value from torch.load without identities, and with the elements of every tensor."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return (type(value), {key: plain(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return (type(value), [plain(item) for item in value])
    if type(value).__module__.startswith("deepspeed") and not isinstance(value, int):
        return (type(value), plain(vars(value)))
    return (type(value), value)


def files_of(folder):
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


class Archives(Case):
    def test_the_crc_of_zeros_is_zlibs(self):
        for count in (0, 1, 2, 3, 63, 64, 1000, 65535, 1 << 20, (1 << 20) + 7):
            self.assertEqual(simulate_archive.crc_of_sparse(count), zlib.crc32(bytes(count)), count)

    def test_the_crc_of_zeros_with_some_other_bytes_is_zlibs(self):
        pieces = [(0, b"ab"), (700, b"\0\1"), (4094, b"xyz")]
        for count in (4097, 5000, 1 << 20):
            data = bytearray(count)
            for offset, some in pieces:
                data[offset:offset + len(some)] = some
            self.assertEqual(simulate_archive.crc_of_sparse(count, pieces), zlib.crc32(data), count)

    def save_both(self, tensors, storages):
        """Saves tensors with torch, and Storages of the same sizes here."""
        for folder in ("real", "ours"):
            (self.folder / folder).mkdir()
        torch.save(tensors, self.folder / "real/x.pt")
        with zipfile.ZipFile(self.folder / "real/x.pt") as real:
            identity = real.read("x/.data/serialization_id")
        with mock.patch.object(simulate_archive, "SERIALIZATION_ID", identity):
            simulate_archive.save(self.folder / "ours/x.pt", simulate_archive.Pickled(
                [simulate_archive.Tensor(storage, tuple(tensor.shape)) for tensor, storage in zip(tensors, storages)]))
        return self.folder / "real/x.pt", self.folder / "ours/x.pt"

    def test_an_archive_has_the_bytes_that_torch_writes(self):
        sparse = torch.zeros(3000)
        sparse[[0, 1500, 2999]] = torch.tensor([1.0, 3.0, -7.0])
        real, ours = self.save_both(
            [torch.zeros(3, 5), torch.zeros(0), torch.full((1,), 1000.0), sparse, sparse.bfloat16()],
            [simulate_archive.Storage(15), simulate_archive.Storage(0), simulate_archive.Storage(1, values={0: 1000}),
             *(simulate_archive.Storage(3000, kind, {1500: 3, 0: 1, 2999: -7})
               for kind in (simulate_archive.FloatStorage, simulate_archive.BFloat16Storage))])
        self.assertEqual(ours.read_bytes(), real.read_bytes())

    def test_an_archive_beyond_4_gib_has_the_bytes_that_torch_writes(self):
        sizes = (2**30 + 1, 5, 2**28, 7)
        # torch leaves the elements out then, and writes 0 for their checksums.
        with torch.serialization.skip_data(), mock.patch.object(simulate_archive, "crc_of_sparse", return_value=0):
            real, ours = self.save_both([torch.empty(size) for size in sizes], map(simulate_archive.Storage, sizes))
        self.assertGreater(ours.stat().st_size, 5 << 30)
        self.assertEqual(ours.stat().st_size, real.stat().st_size)
        for path in (real, ours):
            self.assertLess(path.stat().st_blocks * 512, 1 << 20)
        with zipfile.ZipFile(ours) as archive:
            borders = [info.header_offset for info in archive.infolist()]
            directory = archive.start_dir
        # Everything but the elements, which some file systems would make of holes one by one.
        places = [(0, 1 << 16), (directory, 1 << 16), *((max(0, border - 64), 320) for border in borders)]
        with open(real, "rb") as real, open(ours, "rb") as ours:
            for begin, size in places:
                self.assertEqual(*(os.pread(file.fileno(), size, begin) for file in (ours, real)))

    def test_torch_reads_an_archive_beyond_4_gib(self):
        path = self.folder / "large.pt"
        sizes = (2**30 + 1, 5, 2**28, 7)
        simulate_archive.save(path, simulate_archive.Pickled(
            [simulate_archive.Tensor(simulate_archive.Storage(size)) for size in sizes]))
        tensors = torch.load(path, mmap=True, weights_only=True)
        self.assertEqual([tensor.numel() for tensor in tensors], list(sizes))
        for tensor in tensors:
            self.assertEqual(tensor[[0, -1]].tolist(), [0, 0])


class Checkpoint(typing.NamedTuple):
    options: dict  # of written()
    real: str  # the case of the test data that has the same form
    universal: bool = True  # DeepSpeed's converter can read it
    weights: bool = True  # and zero_to_fp32.py


CHECKPOINTS = {
    "stage0": Checkpoint({"model": "tiny-llama", "stage": 0, "dp": 3}, "checkpoints/z0_fp32_w2", False, False),
    "stage0_tied": Checkpoint({"model": "tiny-bloom", "stage": 0, "dp": 3}, "checkpoints/z0_fp32_w2", False, False),
    "stage1_tied": Checkpoint({"model": "tiny-bloom", "stage": 1, "dp": 4}, "checkpoints/z1_bf16_w2"),
    "stage2": Checkpoint({"model": "tiny-llama", "stage": 2, "dp": 3}, "checkpoints/z2_bf16_w4"),
    "stage3": Checkpoint({"model": "tiny-llama", "stage": 3, "dp": 3}, "checkpoints/z3_bf16_w2"),
    "stage3_tied": Checkpoint({"model": "tiny-bloom", "stage": 3, "dp": 2}, "checkpoints/z3_bf16_w2"),
    "pipeline": Checkpoint({"model": "tiny-llama", "stage": 1, "tp": 2, "pp": 2, "dp": 2},
                           "model_parallel/pp2_dp2_z1_bf16opt", weights=False),
    "pipeline_tied": Checkpoint({"model": "tiny-bloom", "stage": 1, "tp": 2, "pp": 3, "dp": 3},
                                "model_parallel/pp2_dp2_z1_bf16opt", weights=False),
    "tensor": Checkpoint({"model": "tiny-llama", "stage": 2, "tp": 2, "dp": 2}, "model_parallel/autotp2_dp2_z2_bf16",
                         weights=False),
    # DeepSpeed's converter makes one of different experts with the same local number.
    "experts0": Checkpoint({"model": "tiny-moe", "stage": 0, "dp": 4, "ep": 2}, "model_parallel/moe_ep2_dp2_z0_fp32",
                           False, False),
    "experts1": Checkpoint({"model": "tiny-moe", "stage": 1, "dp": 2, "ep": 1}, "model_parallel/moe_ep1_dp2_z1_bf16",
                           weights=False),
    "experts1_ep2": Checkpoint({"model": "tiny-moe", "stage": 1, "dp": 6, "ep": 2},
                               "model_parallel/moe_ep2_dp2_z1_bf16", False, False),
    "experts2_ep2": Checkpoint({"model": "tiny-moe", "stage": 2, "dp": 4, "ep": 2},
                               "model_parallel/moe_ep2_dp4_z2_fp32", False, False),
    "experts3_ep2": Checkpoint({"model": "tiny-moe", "stage": 3, "dp": 4, "ep": 2},
                               "model_parallel/autoep2_dp4_z3_fp32", weights=False),
    # zero_to_fp32.py leaves the frozen ones out at stage 1.
    "lora1": Checkpoint({"model": "tiny-llama", "stage": 1, "dp": 2, "lora": 3}, "checkpoints/z1_bf16_full_w2",
                        weights=False),
    "lora2_tied": Checkpoint({"model": "tiny-bloom", "stage": 2, "dp": 3, "lora": 2},
                             "checkpoints/z2_bf16_full_w8"),
    "lora3_experts": Checkpoint({"model": "tiny-moe", "stage": 3, "dp": 4, "lora": 2},
                                "checkpoints/z3_bf16_full_w6")}

# Keys that depend on the program: some have a scheduler, or add their own.
CLIENT_KEYS = {"iteration", "client_note", "universal_checkpoint_info", "lr_scheduler"}


def form_of(path):
    """Keys and classes, but for names of parameters."""
    def form(value, depth):
        if isinstance(value, dict) and 0 in value:  # the first of many alike
            return type(value), form(value[0], depth)
        if isinstance(value, dict) and depth:
            return type(value), {key: form(item, depth - 1) for key, item in value.items()}
        if isinstance(value, list) and value:
            return list, type(value[0])
        return type(value)
    value = load(path)
    if any(isinstance(item, torch.Tensor) for item in value.values()):
        return type(value), {type(item) for item in value.values()}
    def shallow(key, item):
        if key in ("ds_config", "module", "buffer_names", "shared_params"):
            return type(item)
        if key in ("frozen_param_shapes", "frozen_param_fragments") and item:
            return type(item), set(map(type, item.values()))
        return item
    return form({key: shallow(key, item) for key, item in value.items() if key not in CLIENT_KEYS}, 3)


class Layouts(unittest.TestCase):
    """All checkpoints are written, and converted by DeepSpeed, once."""

    @classmethod
    def setUpClass(cls):
        temporary = temporary_folder()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        arguments = []
        for name, checkpoint in CHECKPOINTS.items():
            written(cls.folder / name, **checkpoint.options)
            if checkpoint.universal:
                arguments += [cls.folder / name / "theirs", cls.folder / name, simulate_checkpoint.TAG,
                              cls.folder / name / "theirs.pt" if checkpoint.weights else "none"]
        if HAS_DEEPSPEED:
            done = run(sys.executable, "-c", DEEPSPEED, *arguments)
            if done.returncode != 0:
                raise RuntimeError(done.stderr[-2000:])

    def tag(self, name):
        return self.folder / name / simulate_checkpoint.TAG

    def converted(self, program, name, *arguments):
        """By ours, once."""
        output = self.folder / name / program
        if not output.exists():
            done = tool(program, *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def universal(self, name):
        output = self.folder / name / "to-universal"
        return self.converted("to-universal", name, "--input_folder", self.tag(name),
                              "--output_folder", output)

    def weights(self, name):
        """Frozen ones of the stored type, as DeepSpeed's script has them."""
        output = self.converted("zero-to-fp32", name, self.folder / name, self.folder / name / "zero-to-fp32",
                                "--dtype", "keep", "--include", ".")
        return load(output / "pytorch_model.bin")

    def test_files_are_archives_without_damage(self):
        for name in CHECKPOINTS:
            with self.subTest(name):
                for path in self.tag(name).iterdir():
                    with zipfile.ZipFile(path) as archive:
                        self.assertIsNone(archive.testzip())
                        self.assertEqual({info.compress_type for info in archive.infolist()}, {zipfile.ZIP_STORED})

    def test_files_have_the_form_of_real_ones(self):
        for name, checkpoint in CHECKPOINTS.items():
            with self.subTest(name):
                real, = (ROOT / "testdata" / checkpoint.real / "ckpt").glob("global_step*")
                forms = {}
                for path in real.iterdir():
                    forms.setdefault(kind_of(path), form_of(path))
                self.assertEqual({kind_of(path) for path in self.tag(name).iterdir()}, forms.keys())
                for path in self.tag(name).iterdir():
                    self.assertEqual(form_of(path), forms[kind_of(path)], path.name)

    def test_verify_finds_nothing(self):
        for name in CHECKPOINTS:
            with self.subTest(name):
                done = tool("ckpt-inspect", "verify", self.folder / name)
                self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipUnless(HAS_DEEPSPEED, "needs DeepSpeed")
    def test_universal_checkpoints_are_those_of_deepspeed(self):
        for name, checkpoint in CHECKPOINTS.items():
            with self.subTest(name):
                if not checkpoint.universal:
                    continue
                ours, theirs = files_of(self.universal(name)), files_of(self.folder / name / "theirs")
                self.assertEqual(ours.keys(), theirs.keys())
                for file, path in ours.items():
                    # At stage 3 DeepSpeed keeps rank 0's flat tensors there, which nothing reads.
                    if not (checkpoint.options["stage"] == 3 and file == "zero/optimizer_state.pt"):
                        self.assertEqual(plain(load(path)), plain(load(theirs[file])), file)

    @unittest.skipUnless(HAS_DEEPSPEED, "needs DeepSpeed")
    def test_weights_are_those_of_deepspeed(self):
        for name, checkpoint in CHECKPOINTS.items():
            with self.subTest(name):
                if checkpoint.weights:
                    ours, theirs = self.weights(name), load(self.folder / name / "theirs.pt")
                    self.assertEqual(sorted((key, plain(value)) for key, value in ours.items()),
                                     sorted((key, plain(value)) for key, value in theirs.items()))

    def test_weights_are_all_parameters_of_the_model(self):
        for name, checkpoint in CHECKPOINTS.items():
            if "lora" in checkpoint.options:
                continue
            with self.subTest(name):
                weights = self.weights(name)
                storages = {value.data_ptr(): value.numel() for value in weights.values()}
                model = simulate_models.MODELS[checkpoint.options["model"]]
                if name == "tensor":
                    model = model._replace(vocab=302)  # the padding counts: nothing tells it
                self.assertEqual(sum(storages.values()), simulate_models.parameter_count(model))
                # These have other names, or numbers that tell slices from copies.
                if "pipeline" not in name and name not in ("experts3_ep2", "tensor"):
                    experts = model.experts.count if model.experts else 0
                    shapes = simulate_models.shapes_of(simulate_models.modules_of(model), experts)
                    if "tied" in name:
                        shapes["lm_head.weight"] = shapes["transformer.word_embeddings.weight"]
                    self.assertEqual({key: tuple(value.shape) for key, value in weights.items()}, shapes)
                    self.assertFalse(any(value.any() for value in weights.values()))

    def test_adapters_are_trained_and_the_model_is_frozen(self):
        for name, attention in (("lora1", 4 * 2), ("lora2_tied", 2 * 3), ("lora3_experts", 5 * 3)):
            with self.subTest(name):
                options = CHECKPOINTS[name].options
                model = simulate_models.MODELS[options["model"]]
                listed = json.loads(tool("ckpt-inspect", "list", "--json", self.folder / name).stdout)["data"]
                shapes = {kind: {each["name"]: tuple(each["shape"]) for each in listed["tensors"]
                                 if each["kind"] == kind and "alias_of" not in each}
                          for kind in ("trainable", "frozen", "buffer")}
                self.assertEqual(shapes["buffer"], {})
                self.assertEqual(sum(map(math.prod, shapes["frozen"].values())),
                                 simulate_models.parameter_count(model))
                self.assertEqual(len(shapes["trainable"]), 2 * attention)
                for adapter, (rows, columns) in shapes["trainable"].items():
                    base, kind = re.fullmatch(r"(.*)\.lora_([AB])\.default\.weight", adapter).groups()
                    out, into = shapes["frozen"][f"{base}.base_layer.weight"]
                    self.assertEqual((rows, columns), (options["lora"], into) if kind == "A" else
                                     (out, options["lora"]))

    def test_a_pipeline_has_its_vocabulary_padded_and_slices_of_their_own(self):
        weights = self.weights("pipeline_tied")
        embedding = weights["tied_modules.embed.word_embeddings.weight"]
        self.assertEqual(embedding.shape, (301, 24))
        self.assertEqual(embedding.nonzero().tolist(), [[0, 0], [256, 0]])
        self.assertEqual(embedding[[0, 256], 0].tolist(), [1, 2])
        self.assertEqual(weights["5.mlp.dense_4h_to_h.weight"][0, [0, 46]].tolist(), [1, 2])
        self.assertEqual(weights["5.input_layernorm.weight"].count_nonzero(), 0)
        last = load(self.tag("pipeline_tied") / "mp_rank_05_model_states.pt")
        self.assertEqual(last["param_shapes"][0]["tied_modules.embed.word_embeddings.weight"], (256, 24))

    def test_the_optimizer_of_stage_0_has_states_of_the_parameters_in_the_order_of_its_groups(self):
        for name in ("stage0", "stage0_tied"):
            states = load(self.tag(name) / "mp_rank_00_model_states.pt")
            params = {value.data_ptr(): value for value in states["module"].values()}.values()
            optimizer = states["optimizer"]
            for group, matrices, weight_decay in zip(optimizer["param_groups"], (True, False), (0.1, 0.0)):
                self.assertEqual(group["weight_decay"], weight_decay)
                shapes = [value.shape for value in params if (value.dim() > 1) == matrices]
                for key in ("exp_avg", "exp_avg_sq"):
                    self.assertEqual([optimizer["state"][i][key].shape for i in group["params"]], shapes)
            self.assertEqual({state["step"].item() for state in optimizer["state"].values()},
                             {simulate_checkpoint.STEPS})

    def test_reshard_plans_other_ranks(self):
        for name in CHECKPOINTS:
            with self.subTest(name):
                done = tool("reshard", self.folder / name, self.folder / "unwritten", "--dp", 2, "--dry-run", "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(json.loads(done.stdout)["data"]["dp"], 2)


def kind_of(path):
    """Its name without numbers, the precision, and what pipelines only say if they have tensor parallelism."""
    return re.sub(r"\d+", "N", path.name.removeprefix("bf16_")).replace("-model_N", "")


class Partitions(unittest.TestCase):
    """The slices of parameters in real checkpoints, against those in simulated ones."""

    def real_ranks(self, case):
        """For each rank: its number, the count of ranks, its param_shapes, and its optimizer."""
        tag, = (ROOT / "testdata" / case / "ckpt").glob("global_step*")
        ranks = sorted((int(re.search(r"rank_(\d+)", path.name)[1]), path) for path in tag.glob("*optim_states.pt"))
        for rank, path in ranks:
            model = tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
            model = model if model.exists() else tag / "mp_rank_00_model_states.pt"
            yield rank, len(ranks), load(model), load(path)["optimizer_state_dict"]

    def assert_same(self, ours, real, flat):
        self.assertEqual([tensor.shape for tensor in ours[flat]], [tuple(tensor.shape) for tensor in real[flat]])
        for key in ("group_paddings", "partition_count", "param_alignment_paddings"):
            self.assertEqual(ours.get(key), real.get(key))
        for our_mapping, mapping in zip(ours.get("param_slice_mappings", []), real.get("param_slice_mappings", [])):
            self.assertEqual([(name, vars(place)) for name, place in our_mapping.items()],
                             [(name, vars(place)) for name, place in mapping.items()])

    def states_of(self, ours, inner):
        return [state["exp_avg"].shape for state in ours[inner]["state"].values()]

    def test_flat_groups_are_cut_as_in_real_checkpoints(self):
        for case in ("checkpoints/z1_fp32_tinygroup_w4", "checkpoints/z1_fp32_full_w6", "checkpoints/z1_bf16_full_w2",
                     "checkpoints/z2_bf16_w4", "checkpoints/z2_bf16_full_w8", "model_parallel/moe_ep2_dp4_z2_fp32"):
            for rank, ranks, model, real in self.real_ranks(case):
                with self.subTest(case, rank=rank):
                    groups = [simulate_checkpoint.Group(shapes, count)
                              for shapes, count in zip(model["param_shapes"], real["partition_count"])]
                    writer = simulate_checkpoint.Writer("", None, dp=ranks, stage=2)
                    ours = writer.flat_optimizer([(group, rank // (ranks // group.ranks)) for group in groups])
                    self.assert_same(ours, real, "single_partition_of_fp32_groups")
                    self.assertEqual(*(self.states_of(item, "base_optimizer_state") for item in (ours, real)))

    def test_groups_of_bf16_optimizer_are_cut_as_in_real_checkpoints(self):
        for case in ("checkpoints/z1_bf16opt_full_w3", "checkpoints/z1_bf16opt_tinygroup_w4"):
            for rank, ranks, model, real in self.real_ranks(case):
                with self.subTest(case, rank=rank):
                    writer = simulate_pipeline.PipelineWriter("", None, pp=1, tp=1, dp=ranks)
                    writer.cut = set()
                    ours = writer.optimizer_states([simulate_checkpoint.Group(shapes, ranks)
                                                    for shapes in model["param_shapes"]], 0, rank)
                    self.assert_same(ours, real, "single_partition_of_fp32_groups")
                    self.assertEqual(*(self.states_of(item, "base_optimizer_state") for item in (ours, real)))

    def test_sub_groups_are_cut_as_in_real_checkpoints(self):
        for case in ("checkpoints/z3_bf16_full_subgroups_w4", "checkpoints/z3_fp32_small_subgroups_w2",
                     "model_parallel/autoep2_dp4_z3_fp32"):
            for rank, ranks, model, real in self.real_ranks(case):
                with self.subTest(case, rank=rank):
                    writer = simulate_checkpoint.Writer("", None, dp=ranks, stage=3)
                    cut = real.get("ds_zero_partition_groups")
                    writer.groups, writer.shapes, per_sub_group = [], {}, model["param_shapes"]
                    for group in real["optimizer_state_dict"]["param_groups"]:
                        shapes = {name: shape for i in group["params"] for name, shape in per_sub_group[i].items()}
                        count = cut[group["params"][0]]["partition_count"] if cut else ranks
                        writer.groups.append(simulate_checkpoint.Group(shapes, count))
                        writer.shapes.update(shapes)
                    size = model["ds_config"]["zero_optimization"]["sub_group_size"]
                    with mock.patch.object(simulate_checkpoint, "SUB_GROUP_SIZE", size):
                        sub_groups, indices = writer.sub_groups()
                    self.assertEqual([list(group.shapes) for group in sub_groups], list(map(list, per_sub_group)))
                    ours = writer.sub_group_optimizer(sub_groups, indices)
                    self.assert_same(ours, real, "fp32_flat_groups")
                    self.assertEqual(*(self.states_of(item, "optimizer_state_dict") for item in (ours, real)))


class Arguments(Case):
    def test_a_grid_that_the_model_cannot_have_is_refused_before_anything_is_written(self):
        for options, what in (({"stage": 1, "tp": 5}, "cannot be cut into 5 slices"),
                              ({"stage": 1, "pp": 8}, "cannot be 8 pipeline stages"),
                              ({"stage": 2, "pp": 2}, "are for stage 1"),
                              ({"stage": 2, "ep": 2}, "--ep is for models with experts"),
                              ({"stage": 0, "lora": 2}, "at stages 1 to 3"),
                              ({"stage": 1, "tp": 2, "lora": 2}, "data parallelism alone"),
                              ({"stage": 1, "model": "tiny-moe", "dp": 3, "ep": 2}, "3 ranks cannot be groups of 2"),
                              ({"stage": 1, "model": "tiny-moe", "dp": 3, "ep": 3}, "4 experts cannot be on 3")):
            with self.assertRaisesRegex((SystemExit, ValueError), what):
                written(self.folder / "checkpoint", **{"model": "tiny-bloom", **options})
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_checkpoint_is_not_overwritten(self):
        for words in ([], ["write"]):
            arguments = [*words, self.folder / "checkpoint", "--model", "tiny-llama", "--stage", "3"]
            self.simulate(*arguments)
            before = {path: path.read_bytes() for path in files_of(self.folder / "checkpoint").values()}
            self.assertEqual(len(before), 3)
            self.assertIn("exists already", self.simulate(*arguments).stderr)
            self.assertEqual({path: path.read_bytes() for path in before}, before)


class Tables(Case):
    GRIDS = (("tiny-llama", {"dp": 4}, (2, 3)), ("tiny-moe", {"dp": 2, "ep": 2}, (0,)))

    def measured(self, **changes):
        options = argparse.Namespace(
            models=("tiny-llama", "tiny-moe"), stages=(0, 2, 3), tools=simulate_table.TOOLS, growth=False, runs=2,
            limit=60, work=self.folder, bin=BIN, out=self.folder / "out")
        vars(options).update(changes)
        with mock.patch.multiple(simulate_table, GRIDS=self.GRIDS, SWEEP_MODEL="tiny-llama", SWEEP_RANKS=(2, 4),
                                 SWEEP_LAYERS=(4, 8)), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                simulate_table.run(options, simulate.writer)
        self.assertEqual({path.name for path in self.folder.iterdir()}, {"out"})
        self.assertIn(printed.getvalue(), (self.folder / "out/README.md").read_text())
        results = json.loads((self.folder / "out/results.json").read_text())
        return {(row["name"], row["sweep"]): row for row in results["rows"]}

    def test_every_tool_is_measured_and_refusals_are_told(self):
        rows = self.measured()
        row = rows["tiny-llama dp 4 stage 2", ""]
        self.assertEqual(row["input_files"], 1 + 4 + 1)
        self.assertEqual({name: tool.get("output_files") for name, tool in row["tools"].items()}, {
            "zero-to-fp32": 1, "to-universal": 21 * 4 + 2, "reshard": 1 + 2 + 1, "ckpt-inspect": None,
            "ckpt-inspect list": None})
        for tool in row["tools"].values():
            self.assertEqual(len(tool["runs"]), 2)
            self.assertGreater(tool["median_seconds"], 0)
            self.assertGreater(tool["peak_rss"], tool["peak_anonymous_rss"])
        self.assertRegex(rows["tiny-moe dp 2 ep 2 stage 0", ""]["tools"]["reshard"]["error"],
                         "^1 data-parallel rank cannot be shared by 2 expert-parallel ranks")

    def test_what_was_measured_before_is_kept(self):
        self.measured(models=("tiny-llama",), runs=1)
        rows = self.measured(models=("tiny-moe",), stages=(0,), tools=["ckpt-inspect"], growth=True)
        self.assertEqual(len(rows), 3)
        self.assertEqual(len(rows["tiny-llama dp 4 stage 3", ""]["tools"]["reshard"]["runs"]), 1)
        rows = self.measured(models=(), stages=(2,), tools=["ckpt-inspect list"], growth=True)
        self.assertEqual(len(rows), 7)
        self.assertEqual(sum(row["sweep"] == "layers, stage 2" for row in rows.values()), 2)

    def test_the_exponent_of_powers_is_their_exponent(self):
        for power in (0, 0.5, 1, 2):
            points = [(size, 3 * size**power) for size in (64, 128, 256)]
            self.assertAlmostEqual(simulate_table.exponent(points), power)


class Sizes(Case):
    def test_models_have_the_published_numbers_of_parameters(self):
        for name, count in (("bloom-560m", 559_214_592), ("llama-8b", 8_030_261_248), ("llama-70b", 70_553_706_496),
                            ("llama-405b", 405_853_388_800), ("mistral-7b", 7_241_732_096),
                            ("deepseek-v3", 671_026_419_200), ("kimi-k2", 1_026_408_232_448)):
            model = simulate_models.MODELS[name]
            if model.family == "bloom":  # the published number counts the rows by which the vocabulary is padded
                model = model._replace(vocab=250880)
            self.assertEqual(simulate_models.parameter_count(model), count, name)

    def test_bloom_176b_on_384_ranks_is_sparse_and_planned_without_reading_it(self):
        written(self.folder / "bloom", "bloom-176b", stage=1, tp=4, pp=12, dp=8)
        tag = self.folder / "bloom" / simulate_checkpoint.TAG
        files = list(tag.iterdir())
        self.assertEqual(len(files), 384 + 48 + 4 * 72)
        self.assertGreater(sum(path.stat().st_size for path in files), 2e12)
        self.assertLess(sum(path.stat().st_blocks for path in files) * 512, 64 << 20)
        done = tool("to-universal", "--input_folder", tag, "--output_folder", self.folder / "ours", "--dry-run",
                    "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse((self.folder / "ours").exists())
        parameters = json.loads(done.stdout)["data"]["parameters"]
        self.assertEqual(sum(math.prod(each["shape"]) for each in parameters), 176_247_271_424 - 200 * 14336)

    def test_a_rank_of_llama_70b_has_several_sub_groups(self):
        written(self.folder / "llama", "llama-70b", stage=3, dp=16)
        tag = self.folder / "llama" / simulate_checkpoint.TAG
        shapes = load(tag / "zero_pp_rank_15_mp_rank_00_model_states.pt")["param_shapes"]
        self.assertEqual(sum(shape.numel() for group in shapes for shape in group.values()), 70_553_706_496)
        # 70.55e9 / 16 is more than four times the size of a sub-group.
        self.assertEqual(len(shapes), 6)
        self.assertLess(sum(path.stat().st_blocks for path in tag.iterdir()) * 512, 64 << 20)

    def test_adapters_of_deepseek_v3_leave_46000_parameters_frozen_and_all_are_planned(self):
        """Planning was quadratic in these; frozen_params_test.cpp says why it is not."""
        written(self.folder / "lora", "deepseek-v3", stage=1, dp=2, lora=8)
        model = simulate_models.MODELS["deepseek-v3"]
        frozen = simulate_models.shapes_of(simulate_models.modules_of(model), model.experts.count)
        self.assertGreater(len(frozen), 45_000)
        attention = sum(len(shape) == 2 and ".self_attn." in name for name, shape in frozen.items())
        done = tool("zero-to-fp32", self.folder / "lora", self.folder / "weights", "--include", ".", "--dry-run",
                    "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        planned = [each for file in json.loads(done.stdout)["data"]["files"] for each in file.get("tensors", [])]
        self.assertEqual(len(planned), len(frozen) + 2 * attention)
        self.assertEqual(sum(math.prod(each["shape"]) for each in planned if ".lora_" not in each["name"]),
                         671_026_419_200)


if __name__ == "__main__":
    unittest.main()
