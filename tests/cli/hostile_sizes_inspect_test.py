"""Time and memory of ckpt-inspect for files made to keep it busy: no more than for others of their size.

If a tool examined any part again and again, each of these inputs would take minutes, or all memory.
"""
import io
import json
import pickle
import struct
import subprocess
import zlib

import cli_common
import torch_files
from cli_common import CliTest
from edits import edited, fake_tensor, load_shard
from torch_files import importable, named


class Storage:
    """Pickled as torch pickles a storage of floats."""

    def __init__(self, key, numel):
        self.id = "storage", named("torch", "FloatStorage"), key, "cpu", numel


class Pickler(pickle.Pickler):

    def persistent_id(self, value):
        return value.id if isinstance(value, Storage) else None


def pickled(value):
    stream = io.BytesIO()
    with importable():
        Pickler(stream, 2).dump(value)
    return stream.getvalue()


def tensor(storage, shape=(1, ), stride=(1, ), offset=0):
    return fake_tensor(storage, offset, shape, stride)


def zip_of(records):
    """The zip of `records`: name, data, and what is wrong with its CRC32."""
    out, directory = bytearray(), bytearray()
    for name, data, wrong in records:
        crc, size = zlib.crc32(data) ^ wrong, len(data)
        head = struct.pack("<HHHHHIIIHH", 0, 0, 0, 0, 0x21, crc, size, size, len(name), 0)
        directory += b"PK\1\2\0\0" + head + struct.pack("<HHHII", 0, 0, 0, 0, len(out)) + name.encode()
        out += b"PK\3\4" + head + name.encode() + data
    count = min(len(records), 0xFFFF)
    return bytes(out + directory + b"PK\5\6" +
                 struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), len(out), 0))


def archive(value, storages=(), wrong=0):
    """torch.save's file of `value`, whose storages 0, 1, ... are the bytes `storages`."""
    records = [("a/data.pkl", pickled(value), 0), ("a/byteorder", b"little", 0), ("a/version", b"3\n", 0)]
    return zip_of(records + [(f"a/data/{i}", data, wrong) for i, data in enumerate(storages)])


def pairs_of_pairs(depth):
    """A tuple of a tuple twice, and so on: few values, and 2^depth ways through them."""
    value = ()
    for _ in range(depth):
        value = (value, value)
    return value


class HostileSizesTest(CliTest):

    def written(self, name, content):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def findings(self, *arguments, count=None):
        """Those of `verify`, which must find something."""
        done = self.tool("ckpt-inspect", "verify", *arguments, "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        line, = self.json_lines(done.stdout)
        found = line["data"]["findings"]
        if count is not None:
            self.assertEqual(len(found), count, found[:3])
        return found

    def test_the_storage_of_a_tensor_is_looked_for_once_in_each_tuple(self):
        path = self.written("pytorch_model.bin", archive({"w": tensor(pairs_of_pairs(100))}))
        found, = self.findings(path)
        self.assertEqual((found["check"], found["member"]), ("layout", "w"))

    def test_a_tensor_in_very_many_pieces_is_not_listed(self):
        rows = (1 << 17) + 1
        apart = tensor(Storage("0", rows * 12), (rows, 2, 2), (12, 4, 1))
        path = self.written("pytorch_model.bin", archive({"w": apart}, [bytes(4 * rows * 12)]))
        for arguments in ([], ["--json"]):
            done = self.tool("ckpt-inspect", "where", path, "w", *arguments)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("lies in more than 131072 pieces", done.stderr)

    def with_clip_grads(self, values):
        """A checkpoint with one rank for each of these values of clip_grad."""
        scratch = self.scratch("z2_bf16_w2")
        state = load_shard(scratch.optim(0))
        wrapper = state["optimizer_state_dict"]
        wrapper["base_optimizer_state"], wrapper["single_partition_of_fp32_groups"] = {}, []
        wrapper["partition_count"] = [len(values)] * len(wrapper["partition_count"])
        with edited(scratch.model()) as model:
            model["dp_world_size"] = len(values)
        for rank, wrapper["clip_grad"] in enumerate(values):
            torch_files.save(state, scratch.optim(0).with_name(scratch.optim(0).name.replace("rank_0_mp", f"rank_{rank}_mp")))
        return scratch.folder

    def test_files_that_differ_in_the_last_of_many_values_are_compared_in_part(self):
        """Each takes some kilobytes, which lists of lists turn into a million values."""
        ranks, numbers = 300, [0] * 900
        folder = self.with_clip_grads([[numbers] * 899 + [[0] * 899 + [rank]] for rank in range(ranks)])
        done = self.tool("ckpt-inspect", "verify", folder, "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        line, = self.json_lines(done.stdout)
        step, = (each for each in line["data"]["checks"] if each["check"] == "step")
        self.assertIn(f"'clip_grad' is too long to be compared in all {ranks} files", step["why"])

    def test_a_long_text_that_comes_often_is_compared_in_part(self):
        text = "x" * 1000000
        self.findings(self.with_clip_grads([[[text] * 900] * 900] * 3))

    MANY = 20000

    def test_many_damaged_records_are_named_with_their_tensors(self):
        tensors = {f"w{i}": tensor(Storage(str(i), 1)) for i in range(self.MANY)}
        data = [struct.pack("<f", i) for i in range(self.MANY)]
        healthy, path = self.root / "manifest", self.written("pytorch_model.bin", archive(tensors, data))
        done = self.tool("ckpt-inspect", "verify", path, "--write-manifest", healthy)
        self.assertEqual(done.returncode, 0, done.stderr)
        path.write_bytes(archive(tensors, [struct.pack("<f", i + 0.5) for i in range(self.MANY)], wrong=1))
        # A record with a wrong CRC32 is not reported by the manifest again.
        found = self.findings(path, "--manifest", healthy, count=self.MANY)
        self.assertEqual([(each["check"], each["tensors"]) for each in found],
                         [("crc", [f"w{i}"]) for i in range(self.MANY)])

    def test_names_of_many_parts_take_what_they_are_long(self):
        """13 MB of names that share few of their 120 parts: as a tree they have over two million modules."""
        entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        names = (".".join("abcdefgh"[j % 8] + str(i >> j & 1) for j in range(120)) for i in range(30000))
        header = ("{" + ",".join(f'"{name}":{entry}' for name in names) + "}").encode()
        path = self.new_path("model.safetensors")
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        page = self.new_path("page.html")
        for command in (["list"], ["list", "--json"], ["tree"], ["tree", "--json"], ["tree", "--no-fold", "--depth=3"],
                        ["--html", page]):
            done = self.tool("ckpt-inspect", *command, path, *cli_common.memory_limit("250MB"))
            self.assertEqual(done.returncode, 0, done.stderr)
            if command in (["list"], ["tree"]):
                self.assertGreaterEqual(len(done.stdout.splitlines()), 30000)

    def test_many_files_are_listed_in_a_manifest(self):
        folder = self.root / "checkpoint" / "global_step1"
        shard = self.written("shard", archive({}))
        folder.mkdir(parents=True)
        for i in range(self.MANY // 2):
            (folder / f"layer_0_expert_{i}_mp_rank_00_model_states.pt").hardlink_to(shard)
        empty = self.written("manifest", json.dumps({"schema": 1, "type": "manifest", "hash": "sha256",
                                                     "files": []}).encode())
        found = self.findings(folder.parent, "--tag=global_step1", "--manifest", empty)
        new = [each for each in found if each["check"] == "manifest"]
        self.assertEqual(len(new), self.MANY // 2)
        self.assertEqual({each["message"] for each in new}, {"is new"})

    def test_many_broken_headers_are_found(self):
        tensors = {f"w{i}": tensor(Storage(str(i), 1)) for i in range(self.MANY)}
        whole = archive(tensors, [b"\0\0\0\1"] * self.MANY)
        begin = whole.index(b"a/data/0")
        end = whole.index(b"PK\1\2")
        path = self.written("pytorch_model.bin",
                            whole[:begin] + whole[begin:end].replace(b"PK\3\4", b"PK\3\5") + whole[end:])
        found = self.findings(path, count=self.MANY - 1)
        self.assertEqual({each["check"] for each in found}, {"unreadable"})

    def scan(self, name, content):
        """`scan`'s result for a file, and the reasons why parts of it are unreadable."""
        done = self.tool("ckpt-inspect", "scan", self.written(name, content), "--json")
        line, = self.json_lines(done.stdout)
        reasons = {each["reason"] for each in line["data"]["unreadable"]}
        self.assertEqual(done.returncode, 1 if reasons else 0, line["data"])
        return line["data"], reasons

    def test_a_file_is_searched_for_records_only_some_times(self):
        places = range(0, 1 << 20, 16)
        header = "{" + ",".join(f'"datastates_metadata":[{at}]' for at in places) + "}"
        content = b"PK\3\4".ljust(16, b"\0") * len(places)
        data, reasons = self.scan("model.pt", struct.pack("<Q", len(header)) + header.encode() + content)
        self.assertTrue(reasons)

    def test_what_is_no_compressed_record_costs_little(self):
        record = b"PK\3\4" + struct.pack("<HHHHHIIIHH", 0, 0, 8, 0, 0, 0, 0, 0, 0, 0) + b"\xff" * 2
        data, reasons = self.scan("model.pt", record * (12 << 20 >> 5))
        self.assertTrue(reasons)

    def test_no_directory_is_read_for_every_end_of_one(self):
        size = 48 << 20
        ends = b"".join(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, size + 22 * i, 0, 0) for i in range(999))
        data, reasons = self.scan("__0_0.distcp", b"\1" * size + ends)
        self.assertEqual((data["class"], data["pickles"], len(reasons)), ("unknown", 0, 1))

    def test_a_bracket_is_looked_for_once(self):
        header = b"{" + b'"datastates_metadata"' * (1 << 20) + b"["
        folder = self.written("checkpoint/global_step1/mp_rank_00_model_states.pt",
                              struct.pack("<Q", len(header)) + header).parent.parent
        done = self.tool("ckpt-inspect", "list", folder, "--tag=global_step1")
        self.assertEqual(done.returncode, 3)
        self.assertIn("a safetensors file", done.stderr)

    def test_a_tuple_is_judged_once_for_all_calls(self):
        dtype, function = b"ctorch\nfloat32\nq\0", b"ctorch._utils\n_rebuild_nested_tensor\nq\2"
        tuples = b"(" + b"h\0" * 300000 + b"tq\1"
        calls = b"h\2(h\1h\1h\1h\1tR0" * 30000
        data, reasons = self.scan("data.pkl", b"\x80\2" + dtype + tuples + function + calls + b".")
        # The only reason: so many calls would allocate more than the file's size explains.
        self.assertEqual(data["class"], "dangerous")
        reason, = reasons
        self.assertIn("calls that make more than some times the file's size", reason)

    def checkpoint_of(self, files):
        """A folder with the pickled values `files`, by name without what all names end with."""
        for name, value in files.items():
            folder = self.written(f"checkpoint/global_step1/{name}_states.pt", archive(value)).parent.parent
        return folder

    def missing(self, files):
        """How many files `verify` says are missing from such a folder."""
        found = self.findings(self.checkpoint_of(files), "--tag=global_step1")
        return sum(each["check"] == "missing" for each in found)

    MOST_MISSING = 4096

    def test_ranks_that_are_made_up_are_not_counted_one_by_one(self):
        ranks = 1 << 20
        model = {"module": {}, "dp_world_size": ranks, "mp_world_size": ranks}
        found = self.findings(self.checkpoint_of({"zero_pp_rank_0_mp_rank_00_model": model}), "--tag=global_step1")
        missing = [each["message"] for each in found if each["check"] == "missing"]
        self.assertLessEqual(len(missing), 2 * self.MOST_MISSING)
        self.assertIn(f"is not there: the checkpoint has {ranks * ranks} ranks", missing)

    def test_slices_of_layers_that_are_made_up_are_not_listed(self):
        # And so are ranks; this is the last one.
        self.assertEqual(self.missing({"mp_rank_00_model": {"module": None}, "layer_00-model_00-model": {},
                                       "layer_00-model_999999999-model": {}}), 2 * self.MOST_MISSING)

    def test_experts_that_are_made_up_are_not_listed(self):
        self.assertEqual(self.missing({"mp_rank_00_model": {"module": {}, "num_experts": [4096] * 100000}}),
                         self.MOST_MISSING)

    def test_many_steps_are_compared(self):
        states = [{"step": 7} for _ in range(100000)]
        other = states[:-1] + [{"step": 8}]
        folder = self.checkpoint_of({
            f"zero_pp_rank_{rank}_mp_rank_00_optim": {
                "optimizer_state_dict": {"base_optimizer_state": some, "partition_count": [2]}}
            for rank, some in enumerate([states, other])})
        found = [each for each in self.findings(folder, "--tag=global_step1") if each["check"] == "step"]
        self.assertEqual([each["member"] for each in found], ["base_optimizer_state[99999].step"])

    def test_many_patterns_are_compiled_once(self):
        patterns = [f"layer{i}[.]weight[ab]+" for i in range(2000)]
        info = {"tp_replicated_parameter_patterns": patterns}
        module = {f"w{i}": tensor(Storage("0", 1)) for i in range(2000)}
        for rank in range(2):
            folder = self.written(f"checkpoint/global_step1/mp_rank_0{rank}_model_states.pt",
                                  archive({"module": module, "universal_checkpoint_info": info},
                                          [b"\0\0\0" + bytes([rank])])).parent.parent
        # No pattern is of a tensor that differs.
        self.assertEqual(self.tool("ckpt-inspect", "verify", folder, "--tag=global_step1").returncode, 0)

    def test_views_with_gaps_have_only_so_many_ranges(self):
        storage = Storage("0", 1 << 21)
        path = self.written("pytorch_model.bin",
                            archive({f"w{i}": tensor(storage, ((1 << 20) - i, ), (2, ), i % 2) for i in range(300)},
                                    [b"\0" * (4 << 21)]))
        done = self.tool("ckpt-inspect", path, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        line, = self.json_lines(done.stdout)
        kinds = {each["kind"]: each["bytes"] for each in line["data"]["kinds"]}
        self.assertEqual(kinds["tensors (float32)"], (4 << 21) - 4)  # the last one is in no view

    def weights(self, storages, **tensors):
        """A file of these tensors, whose storages have so many floats: 0, 1, 2, ... but for the first, a NaN."""
        data = [struct.pack(f"<f{numel - 1}f", float("nan"), *range(1, numel)) for numel in storages]
        return self.written("pytorch_model.bin", archive(tensors, data))

    # More than anybody can look at.
    ROWS = 10**12

    def repeated(self):
        one, eight = Storage("0", 1), Storage("1", 8)
        return self.weights([1, 8], one=tensor(one, (self.ROWS, ), (0, )),
                            rows=tensor(eight, (self.ROWS, 3), (0, 2), 2),
                            columns=tensor(eight, (4, self.ROWS), (2, 0)))

    def test_statistics_of_repeated_elements_are_those_of_one_of_each(self):
        done = self.tool("ckpt-inspect", "stats", self.repeated(), "--json")
        self.assertEqual(done.returncode, 1, done.stderr)  # there are NaNs
        line, = self.json_lines(done.stdout)
        one, rows, columns = (each["stats"] for each in line["data"]["tensors"])
        self.assertEqual((one["count"], one["nans"]), (self.ROWS, self.ROWS))
        self.assertEqual((rows["count"], rows["nans"], rows["min"], rows["max"], rows["mean"]),
                         (3 * self.ROWS, 0, 2, 6, 4))
        self.assertAlmostEqual(rows["std"], (8 / 3)**0.5)
        self.assertEqual((columns["count"], columns["nans"], columns["mean"]), (4 * self.ROWS, self.ROWS, 4))

    def test_repeated_elements_are_looked_at_once(self):
        found = {each["tensor"]: each for each in self.findings(self.repeated(), "--finite")}
        self.assertEqual(found["one"]["message"], f"{self.ROWS} NaN and 0 Inf among {self.ROWS} elements")
        self.assertEqual(found["columns"]["message"], f"{self.ROWS} NaN and 0 Inf among {4 * self.ROWS} elements")
        self.assertNotIn("rows", found)

    def test_views_that_overlap_are_not_read_again_and_again(self):
        many = 1 << 20
        path = self.weights([2 * many], w=tensor(Storage("0", 2 * many), (many, many), (1, 1)))
        done = self.tool("ckpt-inspect", "stats", path)
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("the tensors have 4.40 TB in all, their files 8.39 MB", done.stderr)
        # No check of what cannot be looked at, and no finding.
        done = self.tool("ckpt-inspect", "verify", path, "--finite")
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_short_pieces_are_read_at_once(self):
        rows = 1 << 25
        path = self.weights([8], w=tensor(Storage("0", 8), (rows, 2), (0, 3), 1))
        done = self.tool("ckpt-inspect", "diff", path, path, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_nobody_lists_the_pieces_of_a_tensor_that_repeats_them(self):
        path = self.weights([8], w=tensor(Storage("0", 8), (1 << 40, 2, 2), (0, 3, 1)))
        done = self.tool("ckpt-inspect", "where", path, "w", *cli_common.memory_limit("1GB"))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn(f"repeats its elements in {1 << 40} pieces", done.stderr)
        for command in ["list"], ["print", "w"], []:
            done = self.tool("ckpt-inspect", *command[:1], path, *command[1:], *cli_common.memory_limit("1GB"))
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_name_of_a_tensor_is_looked_for_once(self):
        storage, many = Storage("0", 1), 6 * self.MANY
        path = self.weights([1], **{f"w{i}": tensor(storage) for i in range(many)})
        other = self.written("other.bin", archive({"x": tensor(storage)}, [b"\0" * 4]))
        done = self.tool("ckpt-inspect", "diff", path, other, "--json")
        self.assertEqual(done.returncode, 1, done.stderr)
        line, = self.json_lines(done.stdout)
        self.assertEqual(len(line["data"]["tensors"]), many + 1)

    def test_values_of_many_dimensions_are_not_written_for_ever(self):
        path = self.weights([1], w=tensor(Storage("0", 1), (2, ) * 60, (0, ) * 60))
        done = self.tool("ckpt-inspect", "print", path, "w", capture_output=False, stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 2)
        self.assertIn("the shortened values are too many; give a slice", done.stderr)

    def test_the_key_of_a_storage_is_short(self):
        long = Storage("k" * (1 << 20), 1)
        path = self.written("pytorch_model.bin", archive({f"w{i}": tensor(long) for i in range(40000)}))
        found = self.findings(path, *cli_common.memory_limit("1GB"), count=40000)
        self.assertEqual({each["message"] for each in found}, {"a storage whose key has 1048576 bytes"})

    def ranks(self, values):
        """A folder of the model-states files of as many ranks at stage 3, of these values and storages of a float."""
        for rank, (value, floats) in enumerate(values):
            content = archive(value, [struct.pack("<f", number) for number in floats])
            name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
            folder = self.written(f"checkpoint/global_step1/{name}", content).parent.parent
        return folder

    def test_buffers_that_differ_everywhere_are_compared_with_one(self):
        ranks, names = 2000, [f"b{i}" for i in range(40)]
        value = {"module": {name: tensor(Storage(str(i), 1)) for i, name in enumerate(names)}, "buffer_names": names,
                 "dp_world_size": ranks}
        folder = self.ranks([(value, [rank] * len(names)) for rank in range(ranks)])
        found = [each for each in self.findings(folder, "--tag=global_step1") if each["check"] == "replica"]
        self.assertEqual(len(found), (ranks - 1) * len(names))

    def test_what_only_one_file_has_is_looked_for_there(self):
        ranks, steps = 4000, 150
        value = {"optimizer_state_dict": {"base_optimizer_state": {"state": {}}, "partition_count": [ranks]}}
        states = value["optimizer_state_dict"]["base_optimizer_state"]["state"]
        for rank in range(ranks):
            states.clear()
            states.update((rank * steps + i, {"step": 1}) for i in range(steps))
            name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            folder = self.written(f"checkpoint/global_step1/{name}", archive(value)).parent.parent
        found = [each for each in self.findings(folder, "--tag=global_step1") if each["check"] == "step"]
        self.assertEqual(len(found), ranks)
        self.assertIn(f"so do {steps - 1} more", found[0]["message"])


if __name__ == "__main__":
    cli_common.main()
