"""Folders of torch.distributed.checkpoint as input of the tools, against what torch itself reads of them."""
import json
import os
import pathlib
import pickle
import shutil
import tempfile
import unittest
import unittest.mock

import dcp_writer
import oracle
import torch
import torch.distributed.checkpoint as dcp
from native_checkpoint import NativeCheckpoint
from oracle import OracleTest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tools import run_tool
from torch.distributed.checkpoint import _version
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

# Where in a folder its model is, and its optimizer, with the keys that torch reads them under.
FORMS = {
    "nested": ("model", "optim"),
    "flat": ("model", "optim"),
    "torchtitan/step-2": ("", "optimizer"),
    "weights": ("", None),
    "accelerate/checkpoint-2": ("model", "optimizer"),
    "lightning.ckpt": ("net", "optimizer_0"),
    "app": ("app.model", "app.optim"),
    "bf16": ("model", "optim"),
    "hsdp": ("model", "optim"),
    "tp": ("model", "optim"),
}


def read_by_torch(folder, scratch):
    dcp_to_torch_save(folder, scratch / "whole.pt")
    return torch.load(scratch / "whole.pt", weights_only=False)


def with_steps(tree, step):
    """A state_dict whose optimizer has made so many steps."""
    if not isinstance(tree, dict):
        return tree
    return {key: torch.full_like(value, step) if key.split(".")[-1] == "step" and torch.is_tensor(value) else
            with_steps(value, step) for key, value in tree.items()}


def at(tree, path):
    for key in filter(None, path.split(".")):
        tree = tree[key]
    return tree


def states_of(optimizer):
    """{parameter: {state: tensor}} of both forms."""
    if "state" in optimizer:
        return optimizer["state"]
    states = {}
    for key, value in optimizer.items():
        if key.startswith("state."):
            name, state = key[len("state."):].rsplit(".", 1)
            states.setdefault(name, {})[state] = value
    return states


class DcpTest(OracleTest):

    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.root = pathlib.Path(scratch.name)
        for world in (2, 3, 4):
            dcp_writer.write(cls.root / str(world), world)

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def folders(self):
        """For each: its path, and torch's reading of it: the model's tensors and the optimizer."""
        for world in (2, 3, 4):
            for form, (model, optimizer) in FORMS.items():
                folder = self.root / str(world) / form
                if not folder.exists():
                    continue
                scratch = pathlib.Path(tempfile.mkdtemp(dir=self.scratch))
                if form.startswith("accelerate"):
                    whole = read_by_torch(folder / "pytorch_model_fsdp_0", scratch)
                    whole.update(read_by_torch(folder / "optimizer_0", scratch))
                else:
                    whole = read_by_torch(folder, scratch)
                tensors = {key: value for key, value in at(whole, model).items() if torch.is_tensor(value)}
                yield folder, scratch, tensors, at(whole, optimizer) if optimizer else None

    def copy(self, name="nested", world=3):
        folder = self.scratch / "damaged"
        shutil.copytree(self.root / str(world) / name, folder)
        return folder

    def refused(self, folder, *patterns, code=None):
        """By zero-to-fp32, which writes nothing."""
        done = run_tool("zero-to-fp32", folder, self.scratch / "out", "--states")
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for pattern in patterns:
            self.assertRegex(done.stderr, pattern)
        if code is not None:
            self.assertEqual(done.returncode, code, done.stderr)
        self.assertFalse((self.scratch / "out").exists())
        return done.stderr

    # --- the values

    def test_weights_are_what_torch_reads(self):
        compared = 0
        for folder, scratch, expected, _ in self.folders():
            with self.subTest(folder=folder.relative_to(self.root)):
                expected = {name: value.float() if value.is_floating_point() else value
                            for name, value in expected.items()}
                self.convert(folder, scratch / "bin")
                self.assert_same_tensors(torch.load(scratch / "bin" / "pytorch_model.bin"), expected)
                self.convert(folder, scratch / "safe", "--safe_serialization")
                self.assert_same_tensors(load_file(scratch / "safe" / "model.safetensors"), expected)
                compared += 1
        self.assertEqual(compared, 18)

    def test_states_and_steps_are_what_torch_reads(self):
        compared = 0
        for folder, scratch, _, optimizer in self.folders():
            with self.subTest(folder=folder.relative_to(self.root)):
                if optimizer is None:
                    self.refused(folder, "no optimizer states")
                    continue
                expected = states_of(optimizer)
                out = self.convert(folder, scratch / "out", "--states") / "optimizer_states"
                for key in ("exp_avg", "exp_avg_sq"):
                    self.assert_same_tensors(load_file(out / f"{key}.safetensors"),
                                             {name: state[key] for name, state in expected.items()})
                    with safe_open(out / f"{key}.safetensors", "pt") as file:
                        for name, state in expected.items():
                            self.assertEqual(file.metadata()[f"step.{name}"], str(int(state["step"])))
                compared += 1
        self.assertEqual(compared, 16)

    def test_an_index_of_accelerates_folders_is_enough(self):
        folder = self.root / "2" / "accelerate"
        both = self.convert(folder / "checkpoint-2", self.scratch / "both", "--states")
        for number, given in enumerate((folder, folder / "checkpoint-2" / "pytorch_model_fsdp_0",
                                        folder / "checkpoint-2" / "pytorch_model_fsdp_0" / ".metadata")):
            out = self.convert(given, self.scratch / str(number), "--states")
            for file in ("pytorch_model.bin", "optimizer_states/exp_avg.safetensors"):
                self.assertEqual((out / file).read_bytes(), (both / file).read_bytes())

    def test_forms_of_older_releases(self):
        net = dcp_writer.Net()
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.5)
        net(torch.arange(6)).backward()
        optimizer.step()
        state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer)}
        now = self.scratch / "now"
        dcp.save(state, checkpoint_id=now, no_dist=True)
        # Until 2.3 a list of dicts without tensors was one value.
        old = self.scratch / "old"
        with unittest.mock.patch.object(_version, "_derived_version", "2_3"):
            dcp.save(state, checkpoint_id=old, no_dist=True)
        self.assertIn("optim.param_groups", self.metadata(old).state_dict_metadata)
        self.assertNotIn("optim.param_groups", self.metadata(now).state_dict_metadata)
        # Until 2.2 the properties of tensors were of another module, and what is newer was not there.
        older = self.scratch / "older"
        shutil.copytree(old, older)
        metadata = self.metadata(older)
        for attribute in ("storage_meta", "version"):
            vars(metadata).pop(attribute)
        content = pickle.dumps(metadata, 2)
        for name in (b"TensorProperties", b"_MEM_FORMAT_ENCODING"):
            content = content.replace(b"ctorch.distributed.checkpoint.metadata\n" + name,
                                      b"ctorch.distributed._shard.sharded_tensor.metadata\n" + name)
        (older / ".metadata").write_bytes(content)
        written = [self.convert(folder, self.scratch / f"of-{folder.name}", "--states")
                   for folder in (now, old, older)]
        for file in ("pytorch_model.bin", "optimizer_states/exp_avg.safetensors"):
            self.assertEqual({(out / file).read_bytes() for out in written}, {(written[0] / file).read_bytes()})
        self.assert_same_tensors(torch.load(written[0] / "pytorch_model.bin"), state["model"])

    def test_a_parameter_in_two_groups_is_refused(self):
        net = dcp_writer.Net()
        params = [p for p in net.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW([{"params": params[:1]}, {"params": params[1:]}], lr=0.5)
        net(torch.arange(6)).backward()
        optimizer.step()
        state = {"model": get_model_state_dict(net), "optim": get_optimizer_state_dict(net, optimizer)}
        twice, = state["optim"]["param_groups"][0]["params"]
        state["optim"]["param_groups"][1]["params"].append(twice)
        for release in ("2_3", _version._derived_version):  # as one value, and as many
            with self.subTest(release):
                folder = self.scratch / f"of-{release}"
                with unittest.mock.patch.object(_version, "_derived_version", release):
                    dcp.save(state, checkpoint_id=folder, no_dist=True)
                done = run_tool("to-universal", folder, self.scratch / "universal")
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stderr, f"has '{twice}' in two places")

    def test_the_model_is_found_among_other_dicts(self):
        net = dcp_writer.Net()
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.5)
        net(torch.arange(6)).backward()
        optimizer.step()
        model = get_model_state_dict(net)
        optim = get_optimizer_state_dict(net, optimizer)
        other = {name: torch.zeros_like(value) for name, value in model.items()}
        # A set with the same parameters is another model.
        for number, (state, left_out, *asked) in enumerate((
                ({"state": {"model": model, "optim": optim}}, ""),
                ({"model": model, "optim": optim, "ema": other, "rng": torch.arange(3)}, "of different models", "model"),
                ({"a": {"net": model, "optim": optim}, "b": {"scale": torch.ones(2)}}, "beside the model"),
                ({"optimizer": optim, "state_dict": model, "averaged": other}, "of different models", "state_dict"),
                (model | {f"param_groups.{name}.lr": 0.5 for name, _ in net.named_parameters()}, ""))):
            with self.subTest(keys=sorted(state)[:3]):
                folder = self.scratch / f"dicts{number}"
                dcp.save(state, checkpoint_id=folder, no_dist=True)
                if asked:
                    refused = run_tool("zero-to-fp32", folder, self.scratch / "nothing")
                    self.assertEqual(refused.returncode, 3)
                    self.assertIn(f"'{asked[0]}'", refused.stderr)
                options = [f"--model={name}" for name in asked]
                done = run_tool("zero-to-fp32", folder, self.scratch / f"out{number}", *options)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assert_same_tensors(torch.load(self.scratch / f"out{number}" / "pytorch_model.bin"), model)
                self.assertIn(left_out, done.stderr)

    def test_the_newest_and_the_mean_of_several(self):
        for step, world in ((1, 2), (20, 3)):
            source = self.root / str(world) / "torchtitan" / "step-2"
            dcp_to_torch_save(source, self.scratch / "whole.pt")
            state = with_steps(torch.load(self.scratch / "whole.pt", weights_only=False), step)
            dcp.save(state, checkpoint_id=self.scratch / "run" / f"step-{step}", no_dist=True)
        newest = self.convert(self.scratch / "run", self.scratch / "newest")
        alone = self.convert(self.root / "3" / "nested", self.scratch / "alone")
        first = self.convert(self.scratch / "run", self.scratch / "first", "--tag", "step-1")
        mean = self.convert(self.scratch / "run", self.scratch / "mean", "--average", "--last", "2")
        newest, alone, first, mean = (torch.load(out / "pytorch_model.bin") for out in (newest, alone, first, mean))
        self.assert_same_tensors(newest, alone)
        for name, value in mean.items():
            if value.is_floating_point():
                expected = ((first[name].double() + newest[name].double()) / 2).float()
                self.assertTrue(torch.equal(value, expected), name)

    # --- what else the tools make of it

    def test_inspect_verify_stats_diff_and_pack(self):
        for folder, scratch, expected, optimizer in self.folders():
            with self.subTest(folder=folder.relative_to(self.root)):
                listed = json.loads(self.inspected("list", folder, "--json"))["data"]
                names = {entry["name"] for entry in listed["tensors"]}
                self.assertEqual(names, set(expected))
                self.inspected(folder)
                self.inspected("stats", folder)
                report = json.loads(self.inspected("verify", folder, "--json"))["data"]
                self.assertEqual((report["form"], report["findings"]), ("dcp", []))
                self.assertGreater(report["records"], len(expected))
                run = self.convert(folder, scratch / "weights", "--safe_serialization")
                if "bf16" not in folder.name:
                    self.inspected("diff", folder, run / "model.safetensors")
                done = run_tool("ckpt-pack", "pack", folder, scratch / "packed")
                self.assertEqual(done.returncode, 0, done.stderr)
                again = self.convert(scratch / "packed", scratch / "of-packed", "--safe_serialization")
                self.assertEqual((again / "model.safetensors").read_bytes(), (run / "model.safetensors").read_bytes())

    def inspected(self, *arguments):
        done = run_tool("ckpt-inspect", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_a_universal_checkpoint_has_all_of_it(self):
        for folder, scratch, expected, optimizer in self.folders():
            with self.subTest(folder=folder.relative_to(self.root)):
                done = run_tool("to-universal", "--input_folder", folder, "--output_folder", scratch / "universal")
                if optimizer is None:
                    self.assertNotEqual(done.returncode, 0)
                    self.assertRegex(done.stderr, "has no optimizer states")
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                for name, states in states_of(optimizer).items():
                    zero = scratch / "universal" / "zero" / name
                    values = {"fp32": expected[name], **states}
                    for key, value in values.items():
                        got = torch.load(zero / f"{key}.pt", weights_only=False)
                        got = got["param"] if isinstance(got, dict) else got
                        self.assertTrue(torch.equal(got.reshape(value.shape), value.float()), f"{name} {key}")
                self.inspected("verify", scratch / "universal")

    # --- safetensors that each rank has written a part of

    def shards(self):
        for world, front in ((2, ""), (3, ""), (4, "hsdp_safetensors"), (4, "tp_safetensors")):
            for name in ("hf", "hf_two"):
                yield self.root / str(world) / front / name

    def test_safetensors_of_ranks_are_what_torch_makes_of_them(self):
        for number, folder in enumerate(self.shards()):
            with self.subTest(folder=folder.relative_to(self.root)):
                scratch = self.scratch / str(number)
                reader = HuggingFaceStorageReader(str(folder))
                expected = {name: torch.empty(info.size, dtype=info.properties.dtype)
                            for name, info in reader.read_metadata().state_dict_metadata.items()}
                dcp.load(expected, storage_reader=reader, no_dist=True)
                if folder.name == "hf_two":
                    (scratch / "torch").mkdir(parents=True)
                    consolidate_safetensors_files(folder, scratch / "torch", dict.fromkeys(expected, 1))
                    self.assert_same_tensors(load_file(*(scratch / "torch").glob("*.safetensors")), expected)
                done = run_tool("zero-to-fp32", folder, scratch / "ours", "--safe_serialization")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, f"in {len(list(folder.iterdir()))} shards; nothing in the files tells")
                self.assert_same_tensors(load_file(scratch / "ours" / "model.safetensors"), expected)
                listed = json.loads(self.inspected("list", folder, "--json"))["data"]["tensors"]
                self.assertEqual({each["name"]: each["shape"] for each in listed},
                                 {name: list(value.shape) for name, value in expected.items()})

    def damaged_shards(self, change):
        """The messages of zero-to-fp32 about three ranks' shards, where `change` gets tensors and offsets of
        the second."""
        folder = self.scratch / "shards"
        shutil.copytree(self.root / "3" / "hf", folder, dirs_exist_ok=True)
        path, = folder.glob("shard-00002*")
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors, info = load_file(path), json.loads(metadata["DCP_SHARDING_INFO"])
        change(tensors, info)
        save_file(tensors, path, {**metadata, "DCP_SHARDING_INFO": json.dumps(info)})
        return self.refused(folder)

    def test_shards_that_do_not_tile_are_named(self):
        name = "blocks.0.up.weight"

        def move(to):
            def change(_, info):
                info[name]["saved_offsets"][0] = to
            return change

        def drop(tensors, info):
            del tensors[name], info[name]

        def retype(tensors, _):
            tensors[name] = tensors[name].half()

        def forget(_, info):
            del info[name]

        for change, pattern in ((move(4), "no chunk"), (move(2), "overlap"), (drop, "no chunk"),
                                (move(-1), "begins at -1"), (move(2**63 - 1), "begins at 9223372036854775807"),
                                (move(2**62), "overflows"), (move(1.5), "begins at 1.5"),
                                (retype, "float16"), (forget, "does not say where it begins")):
            with self.subTest(pattern=pattern):
                said = self.damaged_shards(change)
                self.assertIn(name, said)
                self.assertRegex(said, pattern)
        with self.subTest("a file that is missing"):
            folder = self.scratch / "two"
            shutil.copytree(self.root / "3" / "hf", folder)
            next(folder.glob("shard-00002*")).unlink()
            self.refused(folder, "no chunk")

    # --- damage

    def test_what_is_whole_without_a_lost_file_is_written(self):
        whole = load_file(self.convert(self.root / "3" / "nested", self.scratch / "whole", "--safe_serialization") /
                          "model.safetensors")
        for damage, why in ((lambda path: path.unlink(), "is missing"),
                            (lambda path: os.truncate(path, 4000), "is truncated")):
            for rank in range(3):
                with self.subTest(why=why, rank=rank):
                    shutil.rmtree(self.scratch / "damaged", ignore_errors=True)
                    folder = self.copy()
                    metadata = self.metadata(folder)
                    damage(folder / f"__{rank}_0.distcp")
                    lost = {key.fqn.removeprefix("model.") for key, info in metadata.storage_data.items()
                            if key.fqn.startswith("model.") and info.relative_path == f"__{rank}_0.distcp" and
                            0 not in metadata.state_dict_metadata[key.fqn].chunks[key.index or 0].sizes}
                    out = self.scratch / f"out{rank}{why}"
                    done = run_tool("zero-to-fp32", folder, out, "--allow-missing", "--safe_serialization")
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn(f"__{rank}_0.distcp: {why}", done.stderr)
                    named = {line.split("\t")[1] for line in done.stdout.splitlines() if line.startswith("incomplete")}
                    self.assertEqual(named, lost)
                    left = {name: value for name, value in whole.items() if name not in lost}
                    self.assertTrue(left)
                    self.assert_same_tensors(load_file(out / "model.safetensors"), left)
                    done = run_tool("ckpt-inspect", "list", folder)
                    self.assertIn(f"lost in part: __{rank}_0.distcp", done.stdout)
        shutil.rmtree(folder)
        folder = self.copy()
        for path in folder.glob("*.distcp"):
            path.unlink()
        done = run_tool("zero-to-fp32", folder, self.scratch / "none", "--allow-missing")
        self.assertRegex(done.stderr, "3 data files are missing")
        self.assertFalse((self.scratch / "none").exists())

    def test_files_that_are_missing_or_cut_off(self):
        folder = self.copy()
        (folder / "__1_0.distcp").unlink()
        self.refused(folder, "1 data file is missing", "__1_0.distcp")
        report = self.verified(folder)
        self.assertEqual([(f["check"], f["file"]) for f in report["findings"]],
                         [("missing", "damaged/__1_0.distcp")])
        shutil.copy(self.root / "3" / "nested" / "__1_0.distcp", folder)
        os.truncate(folder / "__1_0.distcp", 4000)
        self.refused(folder, r"__1_0.distcp: .*: at \d+: .* truncated")
        self.assertEqual({f["file"] for f in self.verified(folder)["findings"]}, {"damaged/__1_0.distcp"})

    def verified(self, folder):
        done = run_tool("ckpt-inspect", "verify", folder, "--json")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        return json.loads(done.stdout)["data"]

    def metadata(self, folder):
        return pickle.loads((folder / ".metadata").read_bytes())

    def set_metadata(self, folder, metadata):
        (folder / ".metadata").write_bytes(pickle.dumps(metadata, 4))

    def place(self, metadata, name, index=0):
        return next(info for key, info in metadata.storage_data.items()
                    if key.fqn == name and (key.index or 0) == index)

    def test_a_flipped_bit_is_named(self):
        folder = self.copy()
        info = self.place(self.metadata(folder), "model.embed.weight", 1)
        path = folder / info.relative_path
        content = bytearray(path.read_bytes())
        stored = content.index(b"archive/data/0", info.offset)
        begin = (stored + 63) // 64 * 64  # of the data, as torch aligns it in the archive
        whole = torch.load(_view(content, info), weights_only=True)
        data = whole.numpy().tobytes()
        begin = content.index(data, info.offset)
        content[begin + 5] ^= 4
        path.write_bytes(content)
        self.refused(folder, f"{info.relative_path}: model.embed.weight .*CRC32")
        finding, = self.verified(folder)["findings"]
        self.assertEqual((finding["check"], finding["tensor"]), ("crc", "model.embed.weight"))

    def test_holes_and_overlaps_are_named(self):
        name = "model.embed.weight"  # [13, 6] in 5, 5 and 3 rows
        for edit, pattern in ((self.drop_chunk, r"no chunk has the elements \[5, 6\] at \[5, 0\]"),
                              (self.shift_chunk, r"chunks of \[5, 6\] at \[0, 0\] and \[5, 6\] at \[4, 0\] overlap"),
                              (self.push_out, r"chunk of \[3, 6\] at \[11, 0\] reaches out of the tensor")):
            with self.subTest(edit=edit.__name__):
                folder = self.copy()
                metadata = self.metadata(folder)
                edit(metadata, name)
                self.set_metadata(folder, metadata)
                self.refused(folder, r"\.metadata: " + name + ": .*" + pattern)
                self.assertEqual({f["check"] for f in self.verified(folder)["findings"]}, {"layout"})
                shutil.rmtree(folder)

    def move(self, metadata, name, index, offsets):
        chunks = metadata.state_dict_metadata[name].chunks
        old = next(key for key in metadata.storage_data if key.fqn == name and key.offset == chunks[index].offsets)
        info = metadata.storage_data.pop(old)
        chunks[index] = ChunkStorageMetadata(torch.Size(offsets), chunks[index].sizes)
        metadata.storage_data[type(old)(name, torch.Size(offsets), index)] = info

    def drop_chunk(self, metadata, name):
        chunk = metadata.state_dict_metadata[name].chunks.pop(1)
        for key in [key for key in metadata.storage_data if key.fqn == name and key.offset == chunk.offsets]:
            del metadata.storage_data[key]

    def shift_chunk(self, metadata, name):
        self.move(metadata, name, 1, (4, 0))

    def push_out(self, metadata, name):
        self.move(metadata, name, 2, (11, 0))

    def test_a_chunk_that_holds_another_tensor(self):
        folder = self.copy()
        metadata = self.metadata(folder)
        here = self.place(metadata, "model.embed.weight", 2)
        there = self.place(metadata, "model.embed.weight", 0)
        vars(here).update(relative_path=there.relative_path, offset=there.offset, length=there.length)
        self.set_metadata(folder, metadata)
        self.refused(folder, r"model.embed.weight: at \d+: holds float32 \[5, 6\], but .* \[3, 6\]")

    def test_places_outside_the_folder_and_over_each_other(self):
        for change, pattern in ((dict(relative_path="../x.distcp"), "lies outside the folder"),
                                (dict(relative_path="/etc/passwd"), "lies outside the folder"),
                                (dict(offset=1), r"lies within what|no archive of torch.save|end of central directory"),
                                (dict(offset=1 << 62), "truncated"), (dict(length=1 << 62), "truncated"),
                                (dict(length=0), r"no archive of torch.save begins there"),
                                (dict(transform_descriptors=["zstd"]), "compressed or encrypted")):
            with self.subTest(change=change):
                folder = self.copy()
                metadata = self.metadata(folder)
                vars(self.place(metadata, "model.embed.weight")).update(change)
                self.set_metadata(folder, metadata)
                self.refused(folder, pattern)
                shutil.rmtree(folder)

    def test_a_payload_is_refused_and_does_not_run(self):
        marker = self.scratch / "ran"

        class Payload:

            def __reduce__(self):
                return os.system, (f"touch {marker}",)

        for field in ("state_dict_metadata", "storage_data"):
            folder = self.copy()
            metadata = self.metadata(folder)
            setattr(metadata, field, Payload())
            self.set_metadata(folder, metadata)
            self.refused(folder, r"\.metadata: ")
            shutil.rmtree(folder)
        folder = self.copy()
        metadata = self.metadata(folder)
        metadata.state_dict_metadata["model.embed.weight"] = Payload()
        self.set_metadata(folder, metadata)
        self.refused(folder, r"model.embed.weight: .*posix.system")
        self.assertFalse(marker.exists())

    def test_other_folders_are_named_for_what_they_are(self):
        with self.subTest("numbers instead of names"):
            model = torch.nn.Linear(3, 2)
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.ones(3)).sum().backward()
            optimizer.step()
            raw = self.scratch / "raw"
            dcp.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, checkpoint_id=raw, no_dist=True)
            out = self.convert(raw, self.scratch / "weights-of-raw", "--safe_serialization")
            self.assert_same_tensors(load_file(out / "model.safetensors"), model.state_dict())
            self.refused(raw, "numbers the parameters")
        with self.subTest("strip"):
            done = run_tool("ckpt-pack", "strip", "--keep", "weights", self.root / "2" / "nested", self.scratch / "out")
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, "are not stripped")
        with self.subTest("reshard without a run of DeepSpeed"):
            done = run_tool("reshard", self.root / "2" / "nested", self.scratch / "resharded", "--dp", "2")
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, "torch.distributed.checkpoint.*\n.*--like")


# Runs that continue with other values: their checkpoint, on how many ranks, and the form of the optimizer.
RUNS = (("z1_fp32_full_b120_w3", 2, False), ("z1_fp16_full_b120_w2", 3, False), ("z1_bf16opt_full_b120_w4", 1, True),
        ("z2_bf16_full_b120_w3", 4, False), ("z2_fp32_full_w3", 3, True), ("z3_fp32_full_b120_w2", 2, True),
        ("z3_bf16_full_b120_w4", 1, False), ("z0_bf16_full_w2", 2, False), ("z0_fp32_w2", 2, False))


class DcpIntoDeepSpeedTest(OracleTest):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = pathlib.Path(scratch.name)

    def other_values(self, case, flat, step=9.0):
        """A folder of torch with the names of a DeepSpeed run, other values and other hyper-parameters."""
        torch.manual_seed(11)
        model = {name: torch.randn_like(value) if value.is_floating_point() else value.clone()
                 for name, value in case.module.items()}
        model.update({name: torch.randn_like(value) for name, value in case.masters.items()})
        for alias, owner in case.tied.items():
            model[alias] = model[owner]
        states = {name: {"step": torch.tensor(step), "exp_avg": torch.randn_like(value),
                         "exp_avg_sq": torch.rand_like(value)} for name, value in case.masters.items()}
        groups = [{"lr": 0.25 + number, "betas": (0.5, 0.75), "eps": 1e-5, "weight_decay": 0.125 * number,
                   "amsgrad": False, "params": list(group["names"])}
                  for number, group in enumerate(case.facts["param_groups"])]
        optim = {"state": states, "param_groups": groups}
        if flat:
            optim = {f"state.{name}.{key}": value for name, state in states.items() for key, value in state.items()}
            optim.update({f"param_groups.{name}.{key}": value for group in groups for name in group["params"]
                          for key, value in group.items() if key != "params"})
        folder = self.scratch / f"{case.name}-{flat}"
        dcp.save({"model": model, "optim": optim}, checkpoint_id=folder, no_dist=True)
        return folder, model, states, groups

    def test_a_run_of_deepspeed_goes_on_with_it(self):
        for name, ranks, flat in RUNS:
            case = oracle.case_named(name)
            with self.subTest(case=name):
                folder, model, states, groups = self.other_values(case, flat)
                out = self.scratch / f"{name}-out"
                self.run_well("reshard", out, folder, out, "--like", case.load_dir, "--dp", str(ranks))
                self.assertEqual((out / "latest").read_text(), "global_step9")
                native = NativeCheckpoint(out / "global_step9", groups=case.facts["param_groups"])
                expected = {f"{name}|fp32": model[name] for name in case.masters}
                for name, state in states.items():
                    expected.update({f"{name}|{key}": value for key, value in state.items() if key != "step"})
                self.assert_same_tensors(native.tensors(), expected)
                self.assertEqual({int(scalars["step"]) for scalars in native.scalars().values()}, {9})
                for path in (out / "global_step9").glob("*model_states.pt"):
                    self.assertEqual(torch.load(path, weights_only=False)["global_steps"], 9)
                for group in groups:
                    for name in group["params"]:
                        hyper = native.hyper()[name]
                        self.assertEqual([hyper[key] for key in ("lr", "eps", "weight_decay")],
                                         [group[key] for key in ("lr", "eps", "weight_decay")])
                        self.assertEqual(tuple(hyper["betas"]), group["betas"])
                weights = self.convert(out, self.scratch / f"{case.name}-weights", "--safe_serialization",
                                       "--dtype", "keep")
                tensors = load_file(weights / "model.safetensors")
                self.assert_same_tensors(tensors, {name: model[name] for name in tensors})
                self.assert_whole_and_harmless(out)

    def test_a_step_that_is_no_count_is_refused(self):
        case = oracle.case_named("z2_fp32_full_w3")
        for step in -1.0, float("nan"), float("inf"), 1e30:
            with self.subTest(step=step):
                folder = self.other_values(case, False, step)[0]
                out = self.scratch / "out"
                done = run_tool("reshard", folder, out, "--like", case.load_dir, "--dp", "2")
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stderr, rf"{folder}: (tok_emb|blocks)\S+: has a step that is not a count")
                self.assertFalse(out.exists())
                shutil.rmtree(folder)


def _view(content, info):
    import io
    return io.BytesIO(bytes(content[info.offset:info.offset + info.length]))


if __name__ == "__main__":
    unittest.main()
