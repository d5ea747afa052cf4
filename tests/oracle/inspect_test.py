"""ckpt-inspect's output for the test checkpoints, confirmed with torch, DeepSpeed and plain reads of the files."""
import collections
import itertools
import json
import pathlib
import random
import re
import tempfile
import zipfile

import torch
from deepspeed.runtime.zero import stage3, stage_1_and_2

import oracle
import tools
from oracle import OracleTest
from tools import run_tool


def inspect(*arguments):
    """The data object of one call with --json."""
    done = run_tool("ckpt-inspect", *arguments, "--json")
    if done.returncode != 0:
        raise AssertionError(f"ckpt-inspect {arguments}: {done.stderr}")
    line, = done.stdout.splitlines()
    answer = json.loads(line)
    assert answer["schema"] == 1
    return answer["data"]


def truth_of(case):
    """Name -> the live engine's value, of everything that was saved."""
    left_out = case.frozen if case.facts["exclude_frozen_parameters"] else set()
    return {name: case.masters.get(case.tied.get(name, name), stored)
            for name, stored in case.module.items() if name not in left_out}


def live_states(case):
    """(name, state) -> the live optimizer's value, of states with a value an element."""
    states = {}
    for key, value in case.expected("master").items():
        name, state = key.split("|")
        if state == "fp32" or name not in case.masters or value.shape != case.masters[name].shape:
            continue
        # At stage 3 Muon keeps its momentum in the gradients' type; the engine's accessor gives it in fp32.
        kept = torch.bfloat16 if case.name.startswith("z3_bf16_muon") and state == "momentum_buffer" else value.dtype
        states[name, state] = value.to(kept)
    return states


def bytes_at(folder, data):
    """The tensor that `where` describes, read with open, seek and read; and how often each element was."""
    dtype = getattr(torch, data["dtype"])
    size = torch.empty((), dtype=dtype).element_size()
    count = torch.Size(data["shape"]).numel()
    out = bytearray(count * size)
    seen = [0] * count
    for extent in data["extents"]:
        assert extent["dtype"] == data["dtype"] and not extent["mean"] and extent["copy"] == 0
        with open(folder / extent["file"], "rb") as file:
            for row in range(extent["rows"]):
                file.seek(extent["offset"] + row * extent["stride"])
                first = extent["first"] + row * extent["step"]
                piece = file.read(extent["row_bytes"])
                assert len(piece) == extent["row_bytes"] == extent["row_elements"] * size
                out[first * size:first * size + len(piece)] = piece
                for i in range(extent["row_elements"]):
                    seen[first + i] += 1
    if not count:
        return torch.empty(data["shape"], dtype=dtype), seen
    return torch.frombuffer(out, dtype=dtype).reshape(data["shape"]), seen


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "__dict__"):
        yield from tensors_in(vars(value))


def ranges_of(tensors):
    """Storage address -> the set of its bytes that the tensors see."""
    covered = collections.defaultdict(set)
    for tensor in tensors:
        storage = covered[tensor.untyped_storage().data_ptr()]
        size = tensor.element_size()
        positions = itertools.product(*(range(0, n * s, s) if s else [0] * min(n, 1)
                                        for n, s in zip(tensor.shape, tensor.stride())))
        for position in positions:
            begin = (tensor.storage_offset() + sum(position)) * size
            storage.update(range(begin, begin + size))
    return covered


def covered_bytes(tensors):
    return sum(map(len, ranges_of(tensors).values()))


def swap_files(case):
    """The files of an optimizer on NVMe beside the shards."""
    return sorted(case.tag_folder.glob("offloaded_tensors/*/*.swp"))


def shards(case):
    return sorted(case.tag_folder.glob("*_states.pt"))


class WhereTest(OracleTest):

    def check(self, case, folder, expected, data):
        actual, seen = bytes_at(folder, data)
        self.assertEqual(set(seen) - {1}, set(), data["name"])
        self.assertTrue(oracle.same_bits(actual, expected), data["name"])

    def test_bytes_at_the_offsets_are_the_live_weights(self):
        compared = 0
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                for name, value in truth_of(case).items():
                    self.check(case, case.load_dir, value, inspect("where", case.load_dir, name))
                    compared += 1
        self.require(compared, "weights")

    def test_bytes_at_the_offsets_are_the_live_optimizers_states(self):
        compared = 0
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                states = live_states(case)
                for name, state in random.Random(case.name).sample(sorted(states), min(5, len(states))):
                    data = inspect("where", case.load_dir, name, "--state", state)
                    self.assertEqual(data["state"], state)
                    self.check(case, case.load_dir, states[name, state], data)
                    compared += 1
        self.require(compared, "states")

    def test_records_are_those_of_zipfile_at_the_offset(self):
        for case in oracle.all_cases()[::7]:
            for name in list(truth_of(case))[::5]:
                for extent in inspect("where", case.load_dir, name)["extents"]:
                    path = case.load_dir / extent["file"]
                    if not zipfile.is_zipfile(path):
                        self.assertRegex(extent["record"], r"^storage \d+$")
                        continue
                    entry = zipfile.ZipFile(path).getinfo(extent["record"])
                    self.assertLess(entry.header_offset, extent["offset"])
                    self.assertEqual(entry.file_size > 0, True)
                    rank = re.search(r"zero_pp_rank_(\d+)_mp_rank_(\d+)", path.name)
                    if rank:
                        self.assertEqual([extent["dp_rank"], extent["mp_rank"]], list(map(int, rank.groups())))

    def test_a_name_that_is_not_there_is_an_error_with_the_nearest_one(self):
        case = oracle.all_cases()[0]
        name = next(iter(truth_of(case)))
        done = run_tool("ckpt-inspect", "where", case.load_dir, name[:-1])
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"'{name}'", done.stderr)


class PrintTest(OracleTest):

    def same_values(self, data, expected):
        self.assertEqual(data["shape"], list(expected.shape))
        self.assertEqual("torch." + data["dtype"], str(expected.dtype))
        values = [float(v) if isinstance(v, str) else v for v in data["values"]]
        actual = torch.tensor(values, dtype=torch.float64 if expected.is_floating_point() else None)
        self.assertTrue(oracle.same_bits(actual.to(expected.dtype).reshape(expected.shape), expected.clone(memory_format=torch.contiguous_format)))

    def test_values_of_slices_are_torchs(self):
        compared = 0
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                rng = random.Random(case.name)
                truth = truth_of(case)
                for name in rng.sample(sorted(truth), 3):
                    value = truth[name]
                    if any(n == 0 for n in value.shape):
                        continue
                    slices = [rng.choice([str(rng.randrange(-n, n)), ":", f"{rng.randrange(n)}:", f":{-rng.randrange(1, n + 1)}",
                                          f"{rng.randrange(n)}:{n + 3}"]) for n in value.shape]
                    text = ", ".join(slices)
                    expected = eval(f"value[{text}]", {"value": value}) if slices else value
                    self.same_values(inspect("print", case.load_dir, name, f"[{text}]"), expected)
                    compared += 1
        self.require(compared, "slices")

    def test_an_ellipsis_stands_for_whole_dimensions(self):
        case = oracle.case_named("z3_fp32_w3")
        value = truth_of(case)["conv.weight"]
        self.same_values(inspect("print", case.load_dir, "conv.weight", "..., 1"), value[..., 1])
        self.same_values(inspect("print", case.load_dir, "conv.weight", "2, ..."), value[2])

    def test_every_type_prints_values_that_read_back(self):
        torch.manual_seed(3)
        wide = torch.randn(400, dtype=torch.float64) * torch.logspace(-8, 8, 400, dtype=torch.float64)
        special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")], dtype=torch.float64)
        tensors = {str(d)[6:]: torch.cat([wide, special]).to(d)
                   for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2)}
        tensors["int64"] = torch.tensor([-2**63, 2**63 - 1, 0])
        tensors["uint8"] = torch.arange(256, dtype=torch.uint8)
        tensors["bool"] = torch.tensor([True, False])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "types.pt"
            torch.save(tensors, path)
            for name, value in tensors.items():
                data = inspect("print", path, name)
                if name == "int64":
                    self.assertEqual(data["values"], value.tolist())
                    continue
                read = [float(v) if isinstance(v, str) else v for v in data["values"]]
                back = torch.tensor(read, dtype=torch.float64).to(value.dtype)
                finite = ~value.to(torch.float64).isnan()
                self.assertTrue(oracle.same_bits(back[finite], value[finite]), name)
                self.assertTrue(back.to(torch.float64)[~finite].isnan().all())

    def test_text_has_every_value_once(self):
        case = oracle.case_named("z2_bf16_w2")
        value = truth_of(case)["conv.weight"]
        done = run_tool("ckpt-inspect", "print", case.load_dir, "conv.weight", "--full")
        head, _, text = done.stdout.partition("\n")
        self.assertEqual(head, f"conv.weight float32 {list(value.shape)}")
        self.assertTrue(torch.equal(torch.tensor(json.loads(text)), value))

    def test_bad_slices_are_usage_errors(self):
        case = oracle.case_named("z3_fp32_w3")
        for text in ("999", "-999", "0,0,0,0", "::2", "x", "...,...", "1:2:3", "0x1", "1e3", "99999999999999999999"):
            with self.subTest(slice=text):
                done = run_tool("ckpt-inspect", "print", case.load_dir, "conv.weight", f"[{text}]")
                self.assertEqual((done.returncode, done.stdout), (2, ""))


def expanded(node, prefix=""):
    """The names below a node, with folded modules unfolded."""
    found = re.fullmatch(r"(.*?)\[(\d+)-(\d+)\](.*)", node["name"])
    names = [node["name"]]
    if found:
        names = [found[1] + str(i) + found[4] for i in range(int(found[2]), int(found[3]) + 1)]
    for name in names:
        path = f"{prefix}.{name}" if prefix and name else prefix or name
        if "shape" in node:
            yield path
        for child in node.get("children", []):
            yield from expanded(child, path)


class TreeTest(OracleTest):

    def test_unfolded_names_are_the_models(self):
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                names = sorted(truth_of(case))
                for options in ([], ["--no-fold"]):
                    self.assertEqual(sorted(expanded(inspect("tree", case.load_dir, *options))), names)

    def test_counts_are_the_models(self):
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                truth = {n: v for n, v in truth_of(case).items() if n not in case.tied}
                root = inspect("tree", case.load_dir)
                self.assertEqual(root["tensors"], len(truth))
                self.assertEqual(root["elements"], sum(v.numel() for v in truth.values()))
                self.assertEqual(root["bytes"], sum(v.nbytes for v in truth.values()))

    def test_layers_fold_only_where_they_are_alike(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.pt"
            layer = {"w": torch.zeros(2, 3), "b": torch.zeros(2)}
            model = {f"layers.{i}.{k}": v.clone() for i in range(5) for k, v in layer.items()}
            model["layers.3.w"] = torch.zeros(2, 4)
            torch.save(model, path)
            layers, = inspect("tree", path)["children"]
            self.assertEqual([(c["name"], c["folded"], c["tensors"], c["elements"]) for c in layers["children"]],
                             [("[0-2]", 3, 6, 24), ("3", 1, 2, 10), ("4", 1, 2, 8)])


    def test_a_module_that_is_a_tensor_too_counts_itself_once(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.pt"
            torch.save({"m": torch.ones(2), "m.w": torch.ones(3), "m.w.x": torch.ones(4)}, path)
            node, = inspect("tree", path, "--no-fold")["children"]
            self.assertEqual((node["name"], node["shape"], node["folded"], node["tensors"], node["elements"]),
                             ("m", [2], 1, 3, 9))
            self.assertIn("float32 [2]\t9", run_tool("ckpt-inspect", "tree", path, "--no-fold").stdout)


class SummaryTest(OracleTest):

    def test_counts_are_the_models(self):
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                truth = {n: v for n, v in truth_of(case).items() if n not in case.tied}
                persistent = {n for n, facts in case.facts["buffers"].items() if facts["persistent"]}
                data = inspect(case.load_dir)
                elements = collections.Counter()
                for name, value in truth.items():
                    elements["buffer" if name in persistent else
                             "frozen" if name in case.frozen else "trainable"] += value.numel()
                self.assertEqual({k: c["elements"] for k, c in data["counts"].items() if c["elements"]}, dict(+elements))
                self.assertEqual(data["tied"], len([n for n in case.tied if n in truth_of(case)]))
                modules = collections.Counter()
                for name, value in truth.items():
                    if name not in persistent:
                        modules[name.rpartition(".")[0]] += value.numel()
                self.assertEqual(data["largest_layer"], max(modules.values()))

    def test_precision_and_optimizer_are_the_runs(self):
        half = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                data = inspect(case.load_dir)
                self.assertEqual(data["precision"], half[case.facts["precision"]])

    def test_every_byte_is_of_the_kind_that_torch_finds_there(self):
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                data = inspect(case.load_dir)
                kinds = {k["kind"]: k["bytes"] for k in data["kinds"]}
                files = shards(case)
                sizes = {path: path.stat().st_size for path in [*files, *swap_files(case)]}
                self.assertEqual(data["files"], len(sizes))
                self.assertEqual(data["bytes"], sum(sizes.values()))
                self.assertEqual(sum(kinds.values()), sum(sizes.values()))

                stored = sum(path.stat().st_size for path in swap_files(case))  # they have no headers
                unreachable = weights = buffers = 0
                persistent = {n for n, facts in case.facts["buffers"].items() if facts["persistent"]}
                for path in files:
                    state = torch.load(path, weights_only=False)
                    ranges = ranges_of(tensors_in(state))
                    if zipfile.is_zipfile(path):
                        here = sum(e.file_size for e in zipfile.ZipFile(path).infolist() if "/data/" in e.filename)
                    else:
                        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
                                    for t in tensors_in(state)}
                        here = sum(storages.values())
                    stored += here
                    unreachable += here - sum(map(len, ranges.values()))
                    module = state.get("module") or {}
                    weights += covered_bytes(v for n, v in module.items() if n in case.masters)
                    buffers += covered_bytes(v for n, v in module.items() if n in persistent)
                self.assertEqual(kinds.get("unreachable", 0), unreachable)
                self.assertEqual(kinds["pickles and headers"], sum(sizes.values()) - stored)
                self.assertEqual(kinds.get("buffers", 0), buffers)
                dtype = data["precision"]
                self.assertEqual(kinds.get(f"weights ({dtype})", 0), weights)
                masters = sum(v.nbytes for v in case.masters.values())
                plain = case.stage == 0 and case.facts["precision"] == "fp32"
                self.assertEqual(kinds.get("fp32 masters", 0), 0 if plain else masters)
                states = collections.Counter()
                for (name, state), value in live_states(case).items():
                    states[state] += value.nbytes
                for state in states:
                    self.assertEqual(kinds.get(state, 0), states[state], state)

    def test_ranks_have_the_bytes_of_their_files(self):
        for case in oracle.all_cases():
            with self.subTest(case=case.name):
                sizes = collections.Counter()
                for path in shards(case):
                    rank = re.search(r"zero_pp_rank_(\d+)_mp", path.name)
                    sizes[int(rank[1]) if rank else 0] += path.stat().st_size
                for path in swap_files(case):
                    sizes[int(path.parent.name.removeprefix("rank"))] += path.stat().st_size
                ranks = inspect(case.load_dir)["ranks"]
                self.assertEqual({r["dp_rank"]: r["bytes"] for r in ranks}, dict(sizes))
                for rank in ranks:
                    self.assertEqual(sum(k["bytes"] for k in rank["kinds"]), rank["bytes"])

    def test_memory_is_what_deepspeeds_own_functions_say(self):
        case = oracle.case_named("z3_fp32_w3")
        for gpus, per_node in ((1, 1), (3, 3), (8, 8), (384, 8), (24, 4), (1000, 5)):
            data = inspect(case.load_dir, "--gpus", str(gpus), "--gpus-per-node", str(per_node))
            total, layer = data["parameters"], data["largest_layer"]
            self.assertEqual(total, sum(v.numel() for v in case.masters.values()) +
                             sum(v.numel() for n, v in case.module.items() if n in case.frozen))
            hardware = {"num_gpus_per_node": per_node, "num_nodes": gpus // per_node}
            memory = {(e["stage"], e["offload"]): (e.get("cpu_bytes"), e["gpu_bytes"])
                      for e in data["memory"]["estimates"]}
            for offload, name in ((False, "none"), (True, "optimizer")):
                self.assertEqual(memory[2, name], stage_1_and_2.estimate_zero2_model_states_mem_needs(
                    total, cpu_offload=offload, **hardware))
            for options, name in (((False, False), "none"), ((True, False), "optimizer"),
                                  ((True, True), "optimizer and parameters")):
                self.assertEqual(memory[3, name], stage3.estimate_zero3_model_states_mem_needs(
                    total, layer, cpu_offload=options[0], cpu_offload_params=options[1], **hardware)[:2])

    def test_conversions_are_those_that_the_tools_do(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            for case in [*oracle.all_cases()[::6], *oracle.model_parallel_cases()[::4]]:
                with self.subTest(case=case.name):
                    done = run_tool("ckpt-inspect", case.load_dir, "--json")
                    if done.returncode != 0:
                        self.assertEqual(run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder",
                                                  out, "--dry-run").returncode, 3)
                        continue
                    possible = {c["tool"]: c["possible"] for c in json.loads(done.stdout)["data"]["conversions"]}
                    dp = json.loads(done.stdout)["data"]["checkpoint"]["mesh"]["dp"]
                    calls = {
                        "zero-to-fp32": (case.load_dir, out, "--dry-run"),
                        "to-universal": ("--input_folder", case.load_dir, "--output_folder", out, "--dry-run"),
                        "reshard": (case.load_dir, out, "--dp", str(dp), "--dry-run"),
                        "to-dcp": (case.load_dir, out, "--dp", str(dp), "--dry-run"),
                    }
                    self.assertEqual({tool: run_tool(tool, *call).returncode == 0 for tool, call in calls.items()}, possible)


class OtherFormsTest(OracleTest):
    """Files that are not a ZeRO checkpoint."""

    def saved(self, folder, value):
        path = pathlib.Path(folder) / "file.pt"
        torch.save(value, path)
        return path

    def test_keys_of_other_types_are_told_apart(self):
        x, y = torch.ones(3), torch.zeros(2)
        for value, names in [
            ({(0, 1): x, (0, 2): y}, ["(0, 1)", "(0, 2)"]),
            ({1: x, "1": y}, ["1", "1 #2"]),
            ({"a.b": x, "a": {"b": y}}, ["a.b", "a.b #2"]),
            ({None: x, True: y}, ["None", "True"]),
        ]:
            with self.subTest(names=names), tempfile.TemporaryDirectory() as folder:
                path = self.saved(folder, value)
                tensors = inspect("list", path)["tensors"]
                self.assertEqual([(t["name"], t["shape"]) for t in tensors], [(names[0], [3]), (names[1], [2])])
                self.assertEqual(inspect("print", path, names[1])["values"], [0, 0])

    def test_nan_has_no_sign(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.saved(folder, {"n": torch.tensor([-1], dtype=torch.int32).view(torch.float32)})
            self.assertEqual(inspect("print", path, "n")["values"], ["nan"])

    def test_bloat_is_what_no_tensor_reaches(self):
        big = torch.zeros(1000, 100)
        for value, unreachable in [
            ({"row": big[3]}, 4 * (100000 - 100)),
            ({"column": big[:, 3]}, 4 * (100000 - 1000)),
            ({"whole": big, "row": big[3]}, 0),
            ({"turned": big.t()}, 0),
            ({"permuted": torch.zeros(30, 40, 50).permute(2, 0, 1)}, 0),
            ({"two": [big[:10], big[5:20]]}, 4 * (100000 - 2000)),
            ({"quantized": torch.quantize_per_tensor(big, 0.1, 0, torch.qint8)}, 0),
        ]:
            with self.subTest(value=next(iter(value))), tempfile.TemporaryDirectory() as folder:
                kinds = {k["kind"]: k["bytes"] for k in inspect(self.saved(folder, value))["kinds"]}
                self.assertEqual(kinds.get("unreachable", 0), unreachable)

    def test_a_huge_expanded_tensor_takes_no_time(self):
        with tempfile.TemporaryDirectory() as folder:
            path = self.saved(folder, {"w": torch.zeros(1).expand(10**9, 10**9)})
            for command in ([], ["list"], ["tree"]):
                self.assertEqual(run_tool("ckpt-inspect", *command, path, timeout=20).returncode, 0)
            self.assertEqual(inspect("print", path, "w", "[5, :3]")["values"], [0, 0, 0])

    def test_lists_are_what_torch_and_safetensors_load(self):
        case = oracle.case_named("z2_bf16_w2")
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            outputs = {
                "bin": self.convert(case.load_dir, folder / "bin"),
                "shards": self.convert(case.load_dir, folder / "shards", "--max-shard-size", "2KB"),
                "safe": self.convert(case.load_dir, folder / "safe", "--safe_serialization", "--max-shard-size", "2KB"),
                "universal": self.convert_to_universal(case.tag_folder, folder / "universal" / "u"),
            }
            truth = case.truth()
            for form, path in outputs.items():
                with self.subTest(form=form):
                    data = inspect("list", path)
                    shapes = {t["name"]: t["shape"] for t in data["tensors"]}
                    names = truth if form != "safe" else case.without_aliases(truth)
                    if form == "universal":
                        self.assertLessEqual(set(case.masters), set(shapes))
                    else:
                        self.assertEqual(sorted(shapes), sorted(names))
                    for name, shape in shapes.items():
                        self.assertEqual(shape, list(truth[name].shape))
                    data = inspect("where", path, "conv.weight")
                    actual, _ = bytes_at(path.parent if form == "universal" else path, data)
                    self.assertTrue(oracle.same_bits(actual, truth["conv.weight"]))
            one = sorted((folder / "shards").glob("*.bin"))[0]
            expected = torch.load(one, weights_only=True)
            self.assertEqual({t["name"]: t["shape"] for t in inspect("list", one)["tensors"]},
                             {n: list(v.shape) for n, v in expected.items()})

    def test_every_tensor_of_a_shard_has_the_path_of_its_keys(self):
        def walk(value, path):
            if isinstance(value, torch.Tensor):
                yield path, value
            elif isinstance(value, dict):
                for key, item in value.items():
                    yield from walk(item, f"{path}.{key}" if path else str(key))
            elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
                for i, item in enumerate(value):
                    yield from walk(item, f"{path}.{i}" if path else str(i))
        for case in oracle.all_cases()[::9]:
            for path in shards(case):
                with self.subTest(file=path.name, case=case.name):
                    expected = dict(walk(torch.load(path, weights_only=False), ""))
                    listed = {t["name"]: t for t in inspect("list", path)["tensors"]}
                    self.assertLessEqual(set(expected), set(listed))
                    for name, value in expected.items():
                        self.assertEqual(listed[name]["shape"], list(value.shape))
                        self.assertEqual("torch." + listed[name]["dtype"], str(value.dtype))


if __name__ == "__main__":
    tools.main()
