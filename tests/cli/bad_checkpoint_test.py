"""Damaged, incomplete, mixed-up and hostile checkpoints: each is refused with a message that says where, and
nothing is left behind."""
import collections
import json
import os
import pickle
import re
import shutil
import zipfile

import cli_common
import torch_files
from cli_common import CliTest, flip, record_extent, replace_record
from edits import edited, fake_size, fake_tensor, load_shard

Z1_BF16OPT = "z1_bf16opt_full_w3"
Z2 = "z2_fp32_full_w3"
Z2_ALIGNED = "z2_bf16_paramalign_w2"
Z2_LEGACY = "z2_bf16_legacyserial_w2"
Z2_PLAIN = "z2_bf16_w4"
Z3 = "z3_fp32_full_w2"
Z3_W3 = "z3_fp32_w3"
Z3_LEGACY = "z3_fp32_legacyserial_w2"

FP32_GROUPS = "single_partition_of_fp32_groups"


def record_of(path, wanted):
    """The record "data/N" that holds the tensor that `wanted` picks from a zip shard, found by its bytes."""
    content = wanted(load_shard(path)).tobytes()
    with zipfile.ZipFile(path) as archive:
        name, = (e.filename for e in archive.infolist() if e.file_size == len(content) and archive.read(e) == content)
    return name.split("/", 1)[1]


class ControlTest(CliTest):
    """The starting point of the edits below: shards that are loaded and saved again convert to the same."""

    def test_shards_saved_again_are_as_good_as_the_originals(self):
        for name in [Z1_BF16OPT, Z2, Z2_ALIGNED, Z2_LEGACY, Z2_PLAIN, Z3, Z3_W3, Z3_LEGACY, "z0_bf16_w2"]:
            with self.subTest(case=name):
                scratch = self.scratch(name)
                for path in scratch.shards():
                    with edited(path):
                        pass
                tensors = self.assert_converts(scratch.folder, "--verify")
                expected = scratch.case.without_aliases(scratch.case.truth())
                self.assertEqual(sorted(tensors), sorted(expected))
                for tensor, value in expected.items():
                    self.assertTrue(torch_files.same_bits(tensors[tensor], value), tensor)


class MissingFilesTest(CliTest):

    def test_all_missing_ranks_are_listed_at_once(self):
        for name, ranks in [("z2_bf16_full_w8", [1, 2, 5, 7]), ("z3_fp32_full_w8", [0, 3, 7]), (Z2, [0])]:
            with self.subTest(case=name):
                scratch = self.scratch(name)
                gone = [scratch.optim(rank).name for rank in ranks]
                for file in gone:
                    (scratch.tag / file).unlink()
                error = self.assert_refused(scratch.folder, 3, "missing")
                for file in gone:
                    self.assertIn(file, error["message"])
                self.assertEqual(error["message"].count("_optim_states.pt"), len(gone))

    def test_missing_model_files_are_named(self):
        scratch = self.scratch(Z2)
        scratch.model().unlink()
        self.assert_refused(scratch.folder, 3, "missing.*\n.*mp_rank_00_model_states.pt")
        scratch = self.scratch("z3_fp32_full_w8")
        gone = [scratch.model(rank) for rank in [0, 2, 6]]
        for path in gone:
            path.unlink()
        error = self.assert_refused(scratch.folder, 3, "missing")
        for path in gone:
            self.assertIn(path.name, error["message"])
        for path in scratch.tag.glob("*_model_states.pt"):
            path.unlink()
        self.assert_refused(scratch.folder, 3, "model_states")

    def test_a_checkpoint_without_any_optimizer_file_is_refused(self):
        for name in [Z2, Z3]:
            scratch = self.scratch(name)
            for path in scratch.tag.glob("*_optim_states.pt"):
                path.unlink()
            self.assert_refused(scratch.folder, 3, "zero_pp_rank_.*optim_states.pt.* missing")

    def test_a_file_too_many_is_refused(self):
        for name in [Z2, Z3]:
            scratch = self.scratch(name)
            count = scratch.case.facts["world_size"]
            shutil.copy(scratch.optim(0), scratch.tag / f"zero_pp_rank_{count}_mp_rank_00_optim_states.pt")
            self.assert_refused(scratch.folder, 3, f"zero_pp_rank_{count}_mp.* one too many")

    def test_two_files_of_one_rank_are_refused(self):
        for copy in ["bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", "zero_pp_rank_1_mp_rank_00optim_states.pt"]:
            scratch = self.scratch(Z2)
            shutil.copy(scratch.optim(1), scratch.tag / copy)
            self.assert_refused(scratch.folder, 3, f"two files of the same rank.*{copy}")

    def test_files_of_ranks_that_the_checkpoint_does_not_have_are_refused(self):
        for extra in ["mp_rank_01_model_states.pt", "zero_pp_rank_0_mp_rank_01_optim_states.pt",
                      "bf16_zero_pp_rank_0_mp_rank_03_optim_states.pt"]:
            with self.subTest(file=extra):
                scratch = self.scratch(Z2)
                shutil.copy(scratch.optim(0) if "optim" in extra else scratch.model(), scratch.tag / extra)
                self.assert_refused(scratch.folder, 3, f"{extra} is one too many")

    def test_files_of_split_models_beside_a_whole_one_are_refused(self):
        for extra, said in [("layer_01-model_states.pt", "is of a pipeline"),
                            ("layer_01-model_00-model_states.pt", "is of a pipeline"),
                            ("layer_0_expert_3_mp_rank_00_model_states.pt", "no model_states file names experts"),
                            ("expp_rank_0_mp_rank_00_optim_states.pt", "without ZeRO")]:
            with self.subTest(file=extra):
                scratch = self.scratch(Z2)
                shutil.copy(scratch.model(), scratch.tag / extra)
                self.assert_refused(scratch.folder, 3, said)


class DamagedFileTest(CliTest):

    def test_a_shard_cut_anywhere_is_refused(self):
        for name in [Z2, Z3, Z2_LEGACY]:
            scratch = self.scratch(name)
            for path in [scratch.optim(1), scratch.model()]:
                whole = path.read_bytes()
                size = len(whole)
                cuts = {0, 1, 2, 3, 4, 29, 30, 63, 64, size // 2, *(size - n for n in (1, 2, 3, 4, 21, 22, 23, 42, 100))}
                cuts |= {size * i // 13 for i in range(1, 13)}
                for cut in sorted(cuts):
                    with self.subTest(case=name, file=path.name, size=cut):
                        path.write_bytes(whole[:cut])
                        # Where a file is cut decides how much of it can be told.
                        self.assert_refused(scratch.folder, 3, re.escape(path.name), where={"file": path.name},
                                            inspect=cut == size // 2)
                path.write_bytes(whole)
            self.assert_converts(scratch.folder)

    def test_other_things_in_place_of_a_shard_are_called_what_they_are(self):
        things = {
            b"": "empty",
            b"hello, this is not a checkpoint\n": "a text file.*hello",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n": "Git LFS pointer",
            b"<!DOCTYPE html>\n<html><body>404</body></html>": "HTML",
            b"\0" * 4096: "zeros",
            b"\x1f\x8b" + b"x" * 100: "gzip",
            b"\x01\xff\xfe" * 100: "no known format",
        }
        for content, pattern in things.items():
            for name in [Z2, Z3]:
                scratch = self.scratch(name)
                for path in [scratch.optim(0), scratch.model()]:
                    with self.subTest(thing=pattern, file=path.name):
                        kept = path.read_bytes()
                        path.write_bytes(content)
                        self.assert_refused(scratch.folder, 3, pattern, where={"file": path.name})
                        path.write_bytes(kept)

    def test_the_hint_for_a_git_lfs_pointer_is_to_fetch_it(self):
        scratch = self.scratch(Z2)
        scratch.model().write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
        self.assertIn("git lfs pull", self.assert_refused(scratch.folder, 3, "LFS")["hint"])

    def test_what_is_no_regular_file_is_refused(self):
        scratch = self.scratch(Z2)
        path = scratch.optim(2)
        path.unlink()
        path.mkdir()
        self.assert_refused(scratch.folder, 4, "not a regular file", where={"file": path.name})
        path.rmdir()
        os.mkfifo(path)
        self.assert_refused(scratch.folder, 4, "not a regular file", where={"file": path.name})
        path.unlink()
        path.symlink_to("nowhere")
        self.assert_refused(scratch.folder, 4, "No such file", where={"file": path.name})

    def test_a_flipped_bit_in_the_pickle_is_found(self):
        scratch = self.scratch(Z2)
        path = scratch.optim(1)
        begin, size = record_extent(path, "data.pkl")
        for at in range(begin, begin + size, size // 10):
            flip(path, at)
            self.assert_refused(scratch.folder, 3, "", where={"file": path.name, "member": "data.pkl"},
                                inspect=False)
            flip(path, at)
        self.assert_converts(scratch.folder)

    def test_a_flipped_bit_in_the_zip_directory_is_found_or_changes_nothing(self):
        scratch = self.scratch(Z2)
        path = scratch.optim(1)
        expected = self.convert(scratch.folder) / "pytorch_model.bin"
        with zipfile.ZipFile(path) as archive:
            directory = archive.start_dir
        refused = 0
        size = path.stat().st_size
        for at in [*range(directory, size, 37), *range(size - 22, size)]:
            flip(path, at)
            output = self.new_path()
            done = self.zero_to_fp32(scratch.folder, output, "--json", "--verify")
            if done.returncode:
                self.assertIn(path.name, self.error_of(done, 3)["file"])
                self.assertFalse(output.exists())
                refused += 1
            else:  # a field that no reader needs: time stamp, attributes, versions
                self.assertEqual((output / "pytorch_model.bin").read_bytes(), expected.read_bytes())
            flip(path, at)
        self.assertGreater(refused, 20)

    def test_a_flipped_bit_in_data_that_is_read_is_found_by_its_checksum(self):
        for name, pick in [
            (Z2, lambda state: state["optimizer_state_dict"][FP32_GROUPS][0]),
            (Z3, lambda state: state["optimizer_state_dict"]["fp32_flat_groups"][0]),
        ]:
            scratch = self.scratch(name)
            path = scratch.optim(1)
            record = record_of(path, pick)
            begin, size = record_extent(path, record)
            for at in [begin, begin + size // 2, begin + size - 1]:
                for options in [[], ["--safe", "--dtype=bf16"], ["--verify"]]:
                    with self.subTest(case=name, at=at, options=options):
                        flip(path, at)
                        self.assert_refused(scratch.folder, 3, "(?i)crc|checksum", *options,
                                            where={"file": path.name, "member": record}, inspect=False)
                        flip(path, at)

    def test_a_flipped_bit_in_data_that_is_not_read_is_found_by_verify(self):
        scratch = self.scratch(Z2)
        path = scratch.optim(2)
        record = record_of(
            path, lambda s: s["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg_sq"])
        begin, size = record_extent(path, record)
        expected = self.assert_converts(scratch.folder, "--verify")
        flip(path, begin + size // 3)
        found = self.assert_converts(scratch.folder)
        self.assertTrue(all(torch_files.same_bits(found[n], v) for n, v in expected.items()))
        self.assert_refused(scratch.folder, 3, "(?i)crc|checksum", "--verify",
                            where={"file": path.name, "member": record}, inspect=False)


class Marker:
    """Pickled as os.system("touch FILE")."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class HostilePickleTest(CliTest):

    def setUp(self):
        super().setUp()
        self.marker = self.root / "ran"

    def tearDown(self):
        self.assertFalse(self.marker.exists(), "code of the pickle ran")

    def test_the_marker_would_be_made_by_pickle(self):
        marker = self.root / "would-run"
        pickle.loads(pickle.dumps(Marker(marker), protocol=2))
        self.assertTrue(marker.exists())

    def test_a_call_in_place_of_what_is_needed_is_named_and_never_run(self):
        evil = Marker(self.marker)

        def put(*keys):
            def change(state):
                for key in keys[:-1]:
                    state = state[key]
                state[keys[-1]] = evil
            return change

        optim = "optimizer_state_dict"
        places = [
            (Z2, "model", put("module")),
            (Z2, "model", put("module", "stats.running_mean")),
            (Z2, "model", put("param_shapes")),
            (Z2, "model", put("param_shapes", 0)),
            (Z2, "model", put("param_shapes", 0, "conv.weight")),
            (Z2, "model", put("buffer_names")),
            (Z2, "model", put("shared_params")),
            (Z2, "model", put("frozen_param_shapes")),
            (Z2, "model", put("frozen_param_fragments", "frozen_scalar")),
            (Z2, "optim", put(optim)),
            (Z2, "optim", put(optim, FP32_GROUPS)),
            (Z2, "optim", put(optim, FP32_GROUPS, 1)),
            (Z2, "optim", put(optim, "partition_count")),
            (Z2, "optim", put(optim, "group_paddings")),
            (Z2, "optim", put(optim, "param_slice_mappings")),
            (Z3, "model", put("module")),
            (Z3, "model", put("frozen_param_fragments")),
            (Z3, "optim", put(optim, "fp32_flat_groups")),
            (Z3, "optim", put(optim, "fp32_flat_groups", 0)),
        ]
        for number, (name, kind, change) in enumerate(places):
            with self.subTest(place=number):
                scratch = self.scratch(name)
                path = scratch.model() if kind == "model" else scratch.optim(0)
                with edited(path) as state:
                    change(state)
                if number == 1:  # a buffer that is not a tensor is left out, and that is said
                    done = self.zero_to_fp32(scratch.folder, self.new_path())
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertRegex(done.stderr, "note: 'stats.running_mean'.* not a tensor")
                    continue
                self.assert_refused(scratch.folder, 3, r"(posix|os)\.system", where={"file": path.name})

    def test_a_call_in_place_of_the_whole_shard_is_named_and_never_run(self):
        for name in [Z2, Z3, "z0_bf16_w2"]:
            scratch = self.scratch(name)
            for path in scratch.shards()[:2]:
                kept = path.read_bytes()
                torch_files.save(Marker(self.marker), path)
                self.assert_refused(scratch.folder, 3, r"(posix|os)\.system", where={"file": path.name})
                torch_files.save(Marker(self.marker), path, legacy=True)
                self.assert_refused(scratch.folder, 3, r"(posix|os)\.system", where={"file": path.name})
                path.write_bytes(kept)

    def test_a_call_where_nothing_is_read_is_never_run_either(self):
        scratch = self.scratch(Z2)
        for path in [scratch.model(), scratch.optim(0)]:
            with edited(path) as state:
                state["extra"] = Marker(self.marker)
        self.assert_converts(scratch.folder)

    def test_pickle_bombs_are_refused_quickly(self):
        proto = b"\x80\x02"
        n = 200_000
        bombs = {
            "nested lists": proto + b"]" * n + b"a" * (n - 1) + b".",
            "nested tuples": proto + b")" + b"\x85" * n + b".",
            "dicts on the stack": proto + b"}" * n + b".",
            "marks": proto + b"(" * n + b".",
            "a huge memo index": proto + b"]r\xff\xff\xff\x7f.",
            "a memo index of minus one": proto + b"]r\xff\xff\xff\xff.",
            "a huge string": proto + b"\x8d" + (1 << 62).to_bytes(8, "little") + b"x.",
            "a huge count of bytes": b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
            "a huge integer": proto + b"\x8b\xff\xff\xff\x7f1.",
            "a huge frame": b"\x80\x04\x95" + b"\xff" * 8 + b"].",
            "a list that doubles": proto + b"]q\0" + b"(h\0h\0lq\0" * 100 + b".",
            "an empty pickle": b"",
            "only a stop": b".",
            "no stop": proto + b"]" * 10,
        }
        for name, code in bombs.items():
            with self.subTest(bomb=name):
                scratch = self.scratch(Z2)
                path = scratch.model()
                replace_record(path, "data.pkl", code)
                self.assert_refused(scratch.folder, 3, "", where={"file": path.name}, timeout=20)

    def test_shared_lists_that_multiply_do_not_keep_the_comparison_of_ranks_busy(self):
        scratch = self.scratch(Z2)
        bomb = [1.0]
        for _ in range(40):
            bomb = [bomb] * 4
        for rank in range(3):
            with scratch.optimizer(rank) as state:
                state["base_optimizer_state"]["param_groups"][0]["bomb"] = bomb
        done = self.zero_to_fp32(scratch.folder, self.new_path(), timeout=20)
        self.assertIn(done.returncode, (0, 3))

    def test_a_list_that_contains_itself_does_not_keep_the_comparison_of_ranks_busy(self):
        scratch = self.scratch(Z2)
        loop = []
        loop += [loop, loop, loop]
        for rank in range(3):
            with scratch.optimizer(rank) as state:
                state["loss_scaler"] = loop
        done = self.zero_to_fp32(scratch.folder, self.new_path(), timeout=20)
        self.assertIn(done.returncode, (0, 3))


class TensorGeometryTest(CliTest):

    def test_tensors_that_cannot_be_are_refused(self):
        storage = torch_files.zeros(64).storage
        geometries = {
            "outside its storage": (1, (64,), (1,)),
            "far outside": (10**9, (1,), (1,)),
            "negative offset": (-1, (4,), (1,)),
            "negative size": (0, (-4,), (1,)),
            "two negative sizes": (0, (-4, -4), (4, 1)),
            "negative stride": (4, (4,), (-1,)),
            "strides that leave the storage": (0, (8, 8), (9, 1)),
            "too large for 64 bits": (0, (2**40, 2**40), (2**40, 1)),
            "a stride too large for 64 bits": (0, (2, 2), (2**62, 1)),
            "an offset beyond 64 bits": (2**70, (4,), (1,)),
            "a size beyond 64 bits": (0, (2**70,), (1,)),
            "more sizes than strides": (0, (4, 4), (1,)),
            "no integer": (0, ("four",), (1,)),
        }
        for what, (offset, size, stride) in geometries.items():
            with self.subTest(what):
                scratch = self.scratch(Z2)
                with scratch.optimizer(1) as state:
                    state[FP32_GROUPS][0] = fake_tensor(storage, offset, size, stride)
                self.assert_refused(scratch.folder, 3, "", where={"file": scratch.optim(1).name, "member": ""})
                scratch = self.scratch(Z2)
                with edited(scratch.model()) as state:
                    state["module"]["stats.freq_table"] = fake_tensor(storage, offset, size, stride)
                self.assert_refused(scratch.folder, 3, "", where={"file": scratch.model().name,
                                                                  "tensor": "stats.freq_table"})

    def test_shapes_that_cannot_be_are_refused(self):
        for name in [Z2, Z3]:
            for size in [(-3, 11), (-1, -407), (2**40, 2**40), (2**63 - 1,), (2**70,), (37.5, 11), ("37", 11)]:
                with self.subTest(case=name, size=size):
                    scratch = self.scratch(name)
                    for rank in range(2 if name == Z3 else 1):
                        with edited(scratch.model(rank)) as state:
                            state["param_shapes"][0]["tok_emb.weight"] = fake_size(*size)
                    self.assert_refused(scratch.folder, 3, "", where={"tensor": "tok_emb.weight"})


class AccountingTest(CliTest):
    """Every element of every flat group is a parameter's or padding, or the checkpoint is refused."""

    def resized(self, tensor, by):
        if by < 0:
            return tensor[:by].clone()
        return torch_files.cat([tensor, torch_files.zeros(by)])

    def test_a_flat_group_of_another_length_is_refused_with_the_place(self):
        for name in [Z1_BF16OPT, Z2, Z2_ALIGNED, Z2_PLAIN, "z2_bf16_roundrobin_w2"]:
            world = self.scratch(name).case.facts["world_size"]
            for rank in sorted({0, world - 1}):
                for by in [-1, 1, -40, 40]:
                    for group in [0, -1]:
                        with self.subTest(case=name, rank=rank, by=by, group=group):
                            scratch = self.scratch(name)
                            with scratch.optimizer(rank) as state:
                                groups = state[FP32_GROUPS]
                                index = range(len(groups))[group]
                                groups[index] = self.resized(groups[index], by)
                            # Another rank may be the one that no longer fits, if rank 0's length misleads.
                            error = self.assert_refused(scratch.folder, 3, "elements|elsewhere",
                                                        where={"member": f"[{index}]"})
                            self.assertIn("_optim_states.pt", error["file"])
                            if rank:
                                self.assertIn(scratch.optim(rank).name, error["file"])
                            if FP32_GROUPS in error["member"]:
                                self.assertIn("tensor", error)
                                self.assertIn("offset", error)

    def test_a_sub_group_of_another_length_is_refused_with_the_place(self):
        for name in [Z3, Z3_W3, "z3_bf16_full_subgroups_w4"]:
            for rank in [0, 1]:
                for by in [-1, 1, 40]:
                    for group in [0, -1]:
                        with self.subTest(case=name, rank=rank, by=by, group=group):
                            scratch = self.scratch(name)
                            with scratch.optimizer(rank) as state:
                                groups = state["fp32_flat_groups"]
                                index = range(len(groups))[group]
                                groups[index] = self.resized(groups[index], by)
                            error = self.assert_refused(scratch.folder, 3, "elements",
                                                        where={"file": scratch.optim(rank).name,
                                                               "member": f"fp32_flat_groups[{index}]"})
                            self.assertIn("tensor", error)
                            self.assertIn("offset", error)

    def test_groups_that_are_missing_are_refused(self):
        for name, key in [(Z2, FP32_GROUPS), (Z3, "fp32_flat_groups"), (Z1_BF16OPT, FP32_GROUPS)]:
            for change in ["one", "all", "key", "empty"]:
                with self.subTest(case=name, change=change):
                    scratch = self.scratch(name)
                    with scratch.optimizer(0) as state:
                        if change == "one":
                            state[key].pop()
                        elif change == "all":
                            state[key].clear()
                        elif change == "key":
                            del state[key]
                        else:  # what offloading to NVMe leaves behind
                            state[key] = [torch_files.zeros(0) for _ in state[key]]
                    self.assert_refused(scratch.folder, 3, "", where={"file": scratch.optim(0).name})

    def edit_shapes(self, name, change, ranks=None):
        scratch = self.scratch(name)
        world = scratch.case.facts["world_size"] if scratch.case.stage == 3 else 1
        for rank in range(world) if ranks is None else ranks:
            with edited(scratch.model(rank)) as state:
                state["param_shapes"][0] = change(state["param_shapes"][0])
        return scratch

    def test_edited_parameter_shapes_are_refused(self):
        def change_one(shapes):
            shapes["conv.weight"] = torch_files.Size((11, 11, 2))
            return shapes

        def transpose(shapes):
            shapes["tok_emb.weight"] = torch_files.Size((11, 37))
            return shapes

        def add(shapes):
            shapes["intruder"] = torch_files.Size((9,))
            return shapes

        def drop(shapes):
            del shapes["conv.weight"]
            return shapes

        def permute(shapes):
            return collections.OrderedDict(reversed(shapes.items()))

        def rename(shapes):
            return collections.OrderedDict((n.replace("conv", "fold"), s) for n, s in shapes.items())

        for change in [change_one, transpose, add, drop, permute, rename]:
            with self.subTest(change=change.__name__, stage=2):
                self.assert_refused(self.edit_shapes(Z2, change).folder, 3, "")
        for change in [change_one, add, drop]:
            with self.subTest(change=change.__name__, stage=3):
                self.assert_refused(self.edit_shapes(Z3, change).folder, 3, "fp32_flat_groups.*elements")
        for change in [change_one, transpose, add, drop, permute, rename]:
            with self.subTest(change=change.__name__, stage=3, ranks=1):
                scratch = self.edit_shapes(Z3, change, ranks=[1])
                self.assert_refused(scratch.folder, 3, "param_shapes.*not saved at the same step",
                                    where={"file": scratch.model(1).name})

    def test_edited_paddings_are_refused(self):
        for name in [Z2, Z2_ALIGNED, Z1_BF16OPT, Z2_PLAIN]:
            world = self.scratch(name).case.facts["world_size"]
            for rank in [0, world - 1]:
                for by in [1, -1, 10**6, 2**70]:
                    with self.subTest(case=name, rank=rank, by=by):
                        scratch = self.scratch(name)
                        with scratch.optimizer(rank) as state:
                            state["group_paddings"][0] += by
                        self.assert_refused(scratch.folder, 3, "", where={"file": "optim_states.pt"})

    def test_edited_alignment_paddings_are_refused(self):
        for name in [Z2_ALIGNED, Z2]:
            for change in ["more", "less", "short", "negative", "huge"]:
                with self.subTest(case=name, change=change):
                    scratch = self.scratch(name)
                    for rank in range(scratch.case.facts["world_size"]):
                        with scratch.optimizer(rank) as state:
                            paddings = state["param_alignment_paddings"][0]
                            if change == "more":
                                paddings[0] += 8
                            elif change == "less":
                                largest = max(range(len(paddings)), key=paddings.__getitem__)
                                paddings[largest] = paddings[largest] - 1
                            elif change == "short":
                                paddings.pop()
                            elif change == "negative":
                                paddings[0] = -8
                            else:
                                paddings[0] = 2**63 - 1
                    self.assert_refused(scratch.folder, 3, "")

    def test_edited_slice_mappings_are_refused_with_the_parameter(self):
        for field, by in [("start", 1), ("numel", -1), ("start", -10**7), ("numel", 2**40)]:
            scratch = self.scratch(Z2)
            with scratch.optimizer(1) as state:
                name, address = list(state["param_slice_mappings"][0].items())[1]
                address.__dict__[field] += by
            self.assert_refused(scratch.folder, 3, "", where={"file": scratch.optim(1).name,
                                                              "member": "param_slice_mappings[0]"})
        scratch = self.scratch(Z2)
        with scratch.optimizer(1) as state:
            del state["param_slice_mappings"][0][name]
        self.assert_refused(scratch.folder, 3, name, where={"file": scratch.optim(1).name, "tensor": name})

    def test_masters_of_another_type_are_refused(self):
        for name, key in [(Z2, FP32_GROUPS), (Z3, "fp32_flat_groups")]:
            scratch = self.scratch(name)
            with scratch.optimizer(1) as state:
                state[key] = [group.to("bfloat16") for group in state[key]]
            self.assert_refused(scratch.folder, 3, "not of the type", where={"file": scratch.optim(1).name})
            with scratch.optimizer(0) as state:
                state[key][0] = state[key][0].to("int32")
            self.assert_refused(scratch.folder, 3, "not int32", where={"file": scratch.optim(0).name})

    def test_a_missing_frozen_fragment_is_refused(self):
        for name, rank in [(Z2, 0), (Z3, 0), (Z3, 1)]:
            for change in ["missing", "short"]:
                with self.subTest(case=name, rank=rank, change=change):
                    scratch = self.scratch(name)
                    with edited(scratch.model(rank)) as state:
                        fragments = state["frozen_param_fragments"]
                        if change == "missing":
                            del fragments["frozen_adapter.0.bias"]
                        else:
                            fragments["frozen_adapter.0.bias"] = fragments["frozen_adapter.0.bias"][:-1].clone()
                    self.assert_refused(scratch.folder, 3, "", where={"file": scratch.model(rank).name,
                                                                      "tensor": "frozen_adapter.0.bias"})


class MixedUpTest(CliTest):
    """Files of other ranks and of other steps."""

    def swap(self, first, second):
        spare = first.with_name("spare")
        first.rename(spare)
        second.rename(first)
        spare.rename(second)

    def swap_contents(self, first, second):
        """The same, but saved under the new names: the record prefix tells nothing."""
        a, b = load_shard(first), load_shard(second)
        torch_files.save(a, second)
        torch_files.save(b, first)

    def test_renamed_files_are_told_by_the_name_they_were_saved_under(self):
        for name in [Z2, Z2_PLAIN, Z1_BF16OPT, Z3]:
            scratch = self.scratch(name)
            self.swap(scratch.optim(0), scratch.optim(1))
            self.assert_refused(scratch.folder, 3, "was saved as .*rank_1_.* another rank",
                                where={"file": scratch.optim(0).name})
        scratch = self.scratch(Z3)
        self.swap(scratch.model(0), scratch.model(1))
        self.assert_refused(scratch.folder, 3, "was saved as .*rank_1_.* another rank",
                            where={"file": scratch.model(0).name})

    def test_a_rank_that_was_copied_over_another_is_told(self):
        scratch = self.scratch(Z2)
        shutil.copy(scratch.optim(0), scratch.optim(2))
        self.assert_refused(scratch.folder, 3, "another rank", where={"file": scratch.optim(2).name})

    def test_swapped_files_that_were_saved_anew_are_told_by_paddings_and_mappings(self):
        for name in [Z2, Z2_PLAIN, Z1_BF16OPT, Z2_ALIGNED, Z2_LEGACY, "z2_bf16_roundrobin_full_w3"]:
            with self.subTest(case=name):
                scratch = self.scratch(name)
                last = scratch.case.facts["world_size"] - 1
                self.swap_contents(scratch.optim(0), scratch.optim(last))
                self.assert_refused(scratch.folder, 3, "")

    def test_ranks_of_different_steps_are_told(self):
        def step(state):
            state["base_optimizer_state"]["state"][0]["step"] += 1

        def rate(state):
            state["base_optimizer_state"]["param_groups"][0]["lr"] *= 0.5

        def scale(state):
            scaler = state["loss_scaler"]
            scaler.__dict__["cur_scale"] = scaler.__dict__["cur_scale"] * 2

        def step3(state):
            state["optimizer_state_dict"]["state"][0]["step"] += 1

        def rate3(state):
            state["optimizer_state_dict"]["param_groups"][0]["lr"] *= 0.5

        # A rate that differs is evidence where there are no steps; elsewhere ranks may have scheduled apart.
        for name, change, key in [(Z2, step, "step"), ("z2_fp16_w2", scale, "loss_scaler"),
                                  (Z2, scale, "loss_scaler"), (Z1_BF16OPT, step, "step"),
                                  ("z1_fp32_sgd_w2", rate, "param_groups"), ("z3_fp32_sgd_w2", rate3, "param_groups"),
                                  (Z3, step3, "step"), ("z3_fp16_w2", scale, "loss_scaler")]:
            with self.subTest(case=name, change=change.__name__):
                scratch = self.scratch(name)
                with scratch.optimizer(1) as state:
                    change(state)
                self.assert_refused(scratch.folder, 3, "same step", where={"file": scratch.optim(1).name,
                                                                           "member": key})

    def test_files_are_told_by_their_steps_and_those_of_another_can_be_left_out(self):
        def steps_of(state):
            return state.get("base_optimizer_state", state.get("optimizer_state_dict"))["state"][0]

        for name in [Z2_PLAIN, Z1_BF16OPT, "z3_bf16_full_subgroups_w4", "z3_fp32_w3"]:
            with self.subTest(case=name):
                scratch = self.scratch(name)
                was = load_shard(scratch.model())["global_steps"]
                with scratch.optimizer(1) as state:
                    steps_of(state)["step"] += 2
                error = self.assert_refused(scratch.folder, 3, "same step")
                self.assertIn(f"step {was + 2}: {scratch.optim(1).name}\n", error["message"])
                self.assertRegex(error["message"], rf"step {was}: .*{scratch.optim(0).name}")
                self.assertRegex(error["message"], rf"step {was}: .*model_states.pt")
                # Follows the hint.
                self.assertIn("--allow-missing", error["hint"])
                out = self.new_path()
                done = self.zero_to_fp32(scratch.folder, out, "--allow-missing", "--safe-serialization", "--json")
                self.assertEqual(done.returncode, 1, done.stderr)
                lost, = json.loads(done.stdout)["data"]["lost_files"]
                self.assertTrue(lost["file"].endswith(scratch.optim(1).name), lost)
                self.assertEqual(lost["why"], f"is of step {was + 2}, the checkpoint of step {was}")
                left = torch_files.load_file(out / "model.safetensors")
                truth = scratch.case.truth()
                self.assertLess(len(left), len(truth))
                for tensor, value in left.items():
                    self.assertTrue(torch_files.same_bits(value, truth[tensor]), tensor)

    def test_optimizers_of_another_step_than_the_model_are_refused_in_fp32(self):
        for name in ["z1_fp32_full_w4", Z2, Z3, "z1_fp32_elastic_w2"]:
            with self.subTest(case=name):
                scratch = self.scratch(name)
                for path in scratch.tag.glob("*model_states.pt"):
                    with edited(path) as state:
                        was = state["global_steps"]
                        state["global_steps"] = was + 2
                for tool, *options in [("zero-to-fp32",), ("reshard", "--dp=1"), ("to-universal",), ("to-dcp", "--dp=1")]:
                    paths = [scratch.folder, self.new_path()]
                    if tool == "to-universal":
                        paths = ["--input_folder", paths[0], "--output_folder", paths[1]]
                    done = self.tool(tool, *paths, *options)
                    self.assertEqual(done.returncode, 3, done.stderr)
                    self.assertRegex(done.stderr, f"is {was}, but .*model_states.pt is of step {was + 2}: "
                                                  "they are not of one save")
                done = self.tool("ckpt-inspect", "verify", scratch.folder)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"is of step {was + 2}", done.stdout)
                # The masters are of one step; buffers and frozen parameters are of a different one.
                out = self.new_path()
                done = self.zero_to_fp32(scratch.folder, out, "--allow-missing", "--safe-serialization", "--json")
                # This case has only masters.
                self.assertEqual(done.returncode, 0 if "elastic" in name else 1, done.stderr)
                data = json.loads(done.stdout)["data"]
                self.assertEqual(data["lost_files"][0]["why"],
                                 f"is of step {was + 2}, the optimizer's files of step {was}")
                left = torch_files.load_file(out / "model.safetensors")
                self.assertEqual(bool(data["incomplete"]), done.returncode == 1)
                for tensor, value in left.items():
                    self.assertTrue(torch_files.same_bits(value, scratch.case.truth()[tensor]), tensor)

    def test_an_optimizer_that_was_started_afresh_is_told_by_its_learning_rate(self):
        for rate, refused in [(0.25, False), (0.5, True)]:
            scratch = self.scratch(Z2)
            for rank in range(3):
                with scratch.optimizer(rank) as state:
                    groups = len(state["base_optimizer_state"]["param_groups"])
                    for group in state["base_optimizer_state"]["param_groups"]:
                        group["lr"], group["initial_lr"] = 0.25, 1.0
            with edited(scratch.model()) as state:
                state["global_steps"] += 2
                state["lr_scheduler"] = {"_last_lr": [rate] * groups, "last_epoch": 3}
            done = self.zero_to_fp32(scratch.folder, self.new_path())
            self.assertEqual(done.returncode, 3 if refused else 0, done.stderr)
            self.assertIn("they are not of one save", done.stderr)

    def test_an_optimizer_ahead_of_the_model_is_told_at_every_stage_and_by_verify(self):
        for name, status in [("z3_fp32_w3", 3), (Z3, 3), ("z3_bf16_w2", 0), ("z3_fp16_w2", 0)]:
            for change in (-2, 2):
                with self.subTest(case=name, change=change):
                    scratch = self.scratch(name)
                    for path in scratch.tag.glob("*model_states.pt"):
                        with edited(path) as state:
                            state["global_steps"] += change
                    done = self.zero_to_fp32(scratch.folder, self.new_path())
                    self.assertEqual(done.returncode, status, done.stderr)
                    self.assertIn("not of one save", done.stderr)
                    done = self.tool("ckpt-inspect", "verify", scratch.folder)
                    self.assertEqual(done.returncode, 1, done.stdout)
                    self.assertIn("not of one save", done.stdout)

    def test_model_files_of_different_mp_ranks_and_steps_are_told(self):
        scratch = self.scratch("autotp2_dp2_z1_fp32")
        with edited(scratch.tag / "mp_rank_01_model_states.pt") as state:
            state["global_steps"] = 9
        for tool, *options in [("zero-to-fp32",), ("reshard", "--dp=1"), ("to-universal",), ("to-dcp", "--dp=1")]:
            done = self.tool(tool, scratch.folder, self.new_path() / "o", *options)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("step 9: mp_rank_01_model_states.pt", done.stderr)

    def test_a_model_file_of_another_step_at_stage_3_can_be_left_out(self):
        scratch = self.scratch(Z3_W3)
        with edited(scratch.model(1)) as state:
            was = state["global_steps"]
            state["global_steps"] = was + 6
        error = self.assert_refused(scratch.folder, 3, "same step")
        self.assertIn(f"step {was + 6}: {scratch.model(1).name}\n", error["message"])
        self.assertIn("--allow-missing", error["hint"])
        done = self.zero_to_fp32(scratch.folder, self.new_path(), "--allow-missing", "--json")
        lost, = json.loads(done.stdout)["data"]["lost_files"]
        self.assertEqual(lost["why"], f"is of step {was + 6}, the checkpoint of step {was}")

    def test_optimizers_of_experts_of_another_step_are_told(self):
        scratch = self.scratch("moe_ep2_dp2_z0_fp32")
        for path in scratch.tag.glob("expp_*_optim_states.pt"):
            with edited(path) as state:
                for each in state["optimizer"]["state"].values():
                    each["step"] += 6
        for tool, *options in [("zero-to-fp32", "--states"), ("to-universal",)]:
            done = self.tool(tool, scratch.folder, self.new_path() / "o", *options)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("not of one save", done.stderr)
        self.assertEqual(self.tool("ckpt-inspect", "verify", scratch.folder).returncode, 1)

    def test_model_files_of_different_steps_are_told(self):
        for key, value in [("global_steps", 4), ("skipped_steps", 1), ("global_samples", 1), ("ds_version", "0.1"),
                           ("dp_world_size", 3)]:
            scratch = self.scratch(Z3)
            with edited(scratch.model(1)) as state:
                state[key] = value
            self.assert_refused(scratch.folder, 3, "", where={"file": scratch.model(1).name, "member": key})

    def test_ranks_of_runs_of_other_sizes_are_told(self):
        scratch = self.scratch(Z2_PLAIN)
        with scratch.optimizer(2) as state:
            state["partition_count"] = [8 for _ in state["partition_count"]]
        self.assert_refused(scratch.folder, 3, "is 8, but 4", where={"file": scratch.optim(2).name})
        for count, pattern in [(0, "is 0"), (-1, "is -1"), (2**40, ""), (10**6, "missing"), ("two", "")]:
            with self.subTest(count=count):
                scratch = self.scratch(Z2_PLAIN)
                with scratch.optimizer(0) as state:
                    state["partition_count"] = [count]
                error = self.assert_refused(scratch.folder, 3, pattern)
                # One message, not a screenful for a number that was made up.
                self.assertLess(len(error["message"]), 100_000)


class StrangeNamesTest(CliTest):
    """Parameter names are not file names here: any text is written, or refused with a message."""

    NAMES = ["../../etc/passwd", "/absolute", "a\0b", "a/b", "a\nb", "a\x1b[31mb", 'quote"\\', "", " ", "ä€😀", "x" * 100_000]

    def rename(self, new, old="conv.bias"):
        scratch = self.scratch(Z2)
        with edited(scratch.model()) as state:
            state["module"] = collections.OrderedDict(
                (new if n == old else n, v) for n, v in state["module"].items())
            state["param_shapes"] = [collections.OrderedDict((new if n == old else n, s) for n, s in shapes.items())
                                     for shapes in state["param_shapes"]]
        for rank in range(3):
            with scratch.optimizer(rank) as state:
                state["param_slice_mappings"] = [
                    {(new if n == old else n): a for n, a in mapping.items()}
                    for mapping in state["param_slice_mappings"]]
        return scratch

    def test_any_text_is_a_name(self):
        for name in self.NAMES:
            with self.subTest(name=name[:20]):
                scratch = self.rename(name)
                value = scratch.case.truth()["conv.bias"]
                self.assertTrue(torch_files.same_bits(self.assert_converts(scratch.folder)[name], value))
                output = self.convert(scratch.folder)
                self.assertTrue(torch_files.same_bits(torch_files.load(output / "pytorch_model.bin")[name], value))
                self.assertEqual(len(list(output.iterdir())), 1)
                output = self.convert(scratch.folder, "--max-shard-size=5KB")
                self.assertGreater(len(list(output.iterdir())), 2)
                listed = self.tool("ckpt-inspect", "list", scratch.folder, "--json")
                line, = self.json_lines(listed.stdout)
                self.assertIn(name, [tensor["name"] for tensor in line["data"]["tensors"]])

    def test_control_characters_do_not_reach_the_terminal(self):
        for name in ["a\nb", "a\x1b[31mb", "a\rb", "a\tb"]:
            scratch = self.rename(name)
            for done in [self.tool("ckpt-inspect", "list", scratch.folder),
                         self.zero_to_fp32(scratch.folder, self.new_path(), "--dry-run")]:
                self.assertEqual(done.returncode, 0)
                self.assertNotIn(name, done.stdout)
                self.assertNotIn("\x1b", done.stdout)
            text = self.tool("ckpt-inspect", "list", scratch.folder).stdout
            self.assertEqual({line.count("\t") for line in text.splitlines()}, {5})
            self.assertEqual(len(text.splitlines()), 30)

    def test_a_name_that_is_no_unicode_is_written_or_refused(self):
        scratch = self.rename("bad \ud800 name")
        for options in [["--safe"], [], ["--max-shard-size=5KB"], ["--max-shard-size=5KB", "--safe"]]:
            with self.subTest(options=options):
                output = self.new_path()
                done = self.zero_to_fp32(scratch.folder, output, "--json", *options)
                if done.returncode:
                    self.assertIn("bad ", self.error_of(done, 3)["message"] + self.error_of(done, 3)["tensor"])
                    self.assertFalse(output.exists())
                else:
                    tensors = torch_files.load(output / "pytorch_model.bin")
                    self.assertIn("bad \ud800 name", tensors)
        self.assertIn(self.tool("ckpt-inspect", "list", scratch.folder).returncode, (0, 3))
        self.assertIn(self.tool("ckpt-inspect", "list", scratch.folder, "--json").returncode, (0, 3))


if __name__ == "__main__":
    cli_common.main()
