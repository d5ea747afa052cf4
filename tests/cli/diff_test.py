"""ckpt-inspect diff: conversions change nothing, and what does change is found, with NumPy's numbers."""
import json
import math
import os
import pathlib
from fractions import Fraction

import cli_common
import numpy
import tools
import torch_files
from cli_common import CliTest
from edits import edited
from pseudo_terminal import Terminal

LARGEST = {"float64": numpy.finfo("f8").max, "float32": numpy.finfo("f4").max, "float16": 65504,
           "bfloat16": float.fromhex("0x1.fep127")}


def bits_of(tensor):
    return numpy.ascontiguousarray(tensor.array).reshape(-1).view(f"i{tensor.element_size()}")


def ordered(bits):
    """Floating numbers as integers in the same order, one for each; both zeros are 0."""
    smallest = -(1 << (8 * bits.itemsize - 1))
    return [value if value >= 0 else smallest - value for value in bits.astype(object)]


def expected_difference(a, b):
    """The numbers of "values" in the JSON, by NumPy."""
    differs = bits_of(a) != bits_of(b)
    x, y = (each.values.reshape(-1).astype("f8") for each in (a, b))
    with numpy.errstate(all="ignore"):
        absolute = numpy.where(x == y, 0.0, numpy.abs(x - y))
        absolute = numpy.where(differs & numpy.isnan(absolute), math.inf, numpy.nan_to_num(absolute, posinf=math.inf))
        relative = numpy.nan_to_num(numpy.where(absolute == 0, 0.0, absolute / numpy.abs(y)), nan=math.inf,
                                    posinf=math.inf)
    countable = differs & ~numpy.isnan(x) & ~numpy.isnan(y)
    ulps = [abs(p - q) for p, q in zip(ordered(bits_of(a)[countable]), ordered(bits_of(b)[countable]))]
    largest = int(numpy.where(differs, absolute, -1.0).argmax())
    def number(value):
        return float(value) if math.isfinite(value) else None
    with numpy.errstate(all="ignore"):
        change = numpy.linalg.norm(y - x) / numpy.linalg.norm(x)
        cosine = x @ y / (numpy.linalg.norm(x) * numpy.linalg.norm(y))
    return {"relative_change": number(change), "cosine": number(cosine), "count": a.numel(), "differing": int(differs.sum()), "max_absolute": number(absolute.max()),
            "max_relative": number(relative.max()), "max_ulps": max(ulps, default=0), "index": largest,
            "a": number(x[largest]), "b": number(y[largest])}


class DiffTest(CliTest):

    def diff(self, a, b, *arguments, code):
        done = self.tool("ckpt-inspect", "diff", a, b, "--json", *arguments)
        self.assertEqual(done.returncode, code, done.stderr or done.stdout)
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["type"], "diff")
        data = line["data"]
        self.assertEqual(data["same"], code == 0)
        return data

    def assert_equal(self, a, b, *arguments):
        """All bits are equal. Returns the data."""
        data = self.diff(a, b, *arguments, code=0)
        self.assertGreater(data["counts"].pop("equal"), 0)
        self.assertEqual((set(data["counts"].values()), data["tensors"]), ({0}, []))
        self.assertEqual(data["total"]["differing"], 0)
        return data

    def weights(self, name="model.safetensors", **tensors):
        folder = self.new_path("weights")
        folder.mkdir()
        if name.endswith(".safetensors"):
            torch_files.save_file(tensors, folder / name)
        else:
            torch_files.save(tensors, folder / name)
        return folder

    def case(self, name):
        case = tools.case_named(name)
        return case

    def assert_values(self, values, a, b, outside=None):
        expected = expected_difference(a, b)
        for key, error in (("max_absolute", 1e-15), ("max_relative", 1e-15), ("relative_change", 1e-12),
                           ("cosine", 1e-12)):
            if expected[key] is not None:
                self.assertAlmostEqual(values[key], expected.pop(key), delta=error * abs(values[key]))
        expected["outside"] = expected["differing"] if outside is None else outside
        self.assertEqual({key: values[key] for key in expected}, expected)

    def test_every_conversion_to_fp32_is_bit_equal(self):
        for case in tools.all_cases():
            with self.subTest(case=case.name):
                data = self.assert_equal(case.load_dir, self.convert(case.load_dir, "--safe-serialization"))
                elements = {case.tied.get(name, name): value.numel() for name, value in case.truth().items()}
                self.assertGreaterEqual(data["total"]["count"], sum(elements.values()))

    def test_other_forms_of_a_conversion_are_bit_equal_in_both_directions(self):
        for name in ["z1_bf16_full_w2", "z2_fp32_full_w3", "z3_bf16_full_w6", "z3_fp16_full_b120_w3", "z0_fp16_full_w2"]:
            case = self.case(name)
            for arguments in [[], ["--max-shard-size=10KB"], ["--safe-serialization", "--max-shard-size=10KB"]]:
                with self.subTest(case=name, arguments=arguments):
                    output = self.convert(case.load_dir, *arguments)
                    self.assert_equal(case.load_dir, output)
                    self.assert_equal(output, case.load_dir)
            narrow = self.convert(case.load_dir, "--dtype=bfloat16")
            self.assert_equal(case.load_dir, narrow, "--as=bfloat16")
            data = self.diff(case.load_dir, narrow, code=1)
            changed = [t for t in data["tensors"] if t["verdict"] == "dtype"]
            self.assertGreater(len(changed), 0)
            self.assertEqual({t["dtype_b"] for t in changed}, {"bfloat16"})

    def test_universal_and_resharded_checkpoints_have_the_same_states(self):
        for name in ["z1_fp16_full_b120_w2", "z2_bf16_full_b120_w3", "z3_fp32_full_b120_w2"]:
            with self.subTest(case=name):
                case = self.case(name)
                universal = self.new_path("universal")
                done = self.tool("to-universal", "--input_folder", case.tag_folder, "--output_folder", universal,
                                 "--inject_missing_state")
                self.assertEqual(done.returncode, 0, done.stderr)
                resharded = self.new_path("resharded")
                done = self.tool("reshard", case.load_dir, resharded, "--dp=4")
                self.assertEqual(done.returncode, 0, done.stderr)
                for other in [universal, resharded]:
                    data = self.assert_equal(case.load_dir, other, "--states")
                    self.assertEqual(data["notes"], [])
                    values = sum(v.numel() for v in case.expected("master").values())
                    self.assertGreaterEqual(data["total"]["count"], values)

    def mp_case(self, name):
        case = tools.case_named(name)
        return case

    def test_a_pipelines_checkpoint_is_compared_with_weights(self):
        case = self.mp_case("pp2_dp2_z1_fp32")
        live = {key.split("|")[0]: value for key, value in case.expected("live").items() if "|fp32|" in key}
        module = {key.split("|")[0]: value for key, value in case.module.items()}
        weights = {**module, **live}
        self.assert_equal(case.load_dir, self.weights("pytorch_model.bin", **weights))
        name = sorted(live)[0]
        other = weights[name] + 1
        data = self.diff(case.load_dir, self.weights("pytorch_model.bin", **{**weights, name: other}), code=1)
        tensor, = [t for t in data["tensors"] if t["name"] == name]
        self.assert_values(tensor["values"], weights[name], other)

    def test_an_edit_of_one_tensor_parallel_rank_is_found(self):
        case = self.mp_case("autotp2_dp2_z1_fp32")
        scratch = cli_common.Scratch(case, self.root / "edited")
        self.assert_equal(case.load_dir, scratch.folder, "--states")
        path, = scratch.tag.glob("*zero_pp_rank_0_mp_rank_01_optim_states.pt")
        with edited(path) as state:
            flat = state["optimizer_state_dict"]["single_partition_of_fp32_groups"][0]
            # An element of a parameter that the ranks share, not of one that each has.
            live = case.expected("live")
            shared = [(name, slice_.reshape(-1)[0]) for name, slice_ in live.items() if name.endswith("|fp32|pp0|tp1|ep0")
                      and not torch_files.equal(slice_, live[name.replace("tp1", "tp0")])]
            name, before = next((n.split("|")[0], v) for n, v in shared if (flat.values == v.values).sum() == 1)
            flat[flat.values == before.values] += 0.5
        tensor, = self.diff(case.load_dir, scratch.folder, code=1)["tensors"]
        values = tensor["values"]
        self.assertEqual((tensor["name"], values["differing"], values["a"], values["b"]),
                         (name, 1, before.item(), (before + 0.5).item()))

    def test_states_are_compared_only_if_both_have_them(self):
        case = self.case("z2_fp32_full_w3")
        data = self.assert_equal(case.load_dir, self.convert(case.load_dir), "--states")
        self.assertEqual(data["notes"], ["only A has optimizer states: weights are compared"])

    def test_tied_names_that_are_stored_once_are_not_missing(self):
        case = self.case("z2_fp32_full_w3")
        (alias, owner), = case.tied.items()
        truth = case.truth()
        kept = self.weights(**{name: value for name, value in truth.items() if name != alias})
        data = self.assert_equal(case.load_dir, kept)
        self.assertEqual(data["notes"], [f"'{alias}' is in A only, where it is the same tensor as '{owner}'"])
        other = self.weights(**{name: value for name, value in truth.items() if name != owner})
        data = self.assert_equal(other, case.load_dir)
        self.assertEqual(data["notes"], [f"'{owner}' is in B only, where it is the same tensor as '{alias}'"])
        neither = self.weights(**{name: value for name, value in truth.items() if name not in (alias, owner)})
        data = self.diff(case.load_dir, neither, code=1)
        self.assertEqual({(t["name"], t["verdict"]) for t in data["tensors"]},
                         {(alias, "only in A"), (owner, "only in A")})

    def test_what_training_changed_is_what_numpy_says(self):
        a = {name: value for name, value in self.case("z2_fp32_full_w3").truth().items()}
        random = numpy.random.default_rng(1)
        b = {name: value + 1e-3 * random.standard_normal(value.shape) if value.is_floating_point() and i % 2 else value
             for i, (name, value) in enumerate(a.items())}
        data = self.diff(self.case("z2_fp32_full_w3").load_dir, self.weights("pytorch_model.bin", **b), code=1)
        changed = {name for name in a if not torch_files.same_bits(a[name], b[name])}
        self.assertGreater(len(changed), 5)
        self.assertEqual({t["name"] for t in data["tensors"]}, changed)
        for tensor in data["tensors"]:
            self.assertEqual(tensor["verdict"], "values")
            self.assert_values(tensor["values"], a[tensor["name"]], b[tensor["name"]])
        self.assertEqual(data["total"]["differing"], sum(t["values"]["differing"] for t in data["tensors"]))
        largest = max(data["tensors"], key=lambda t: t["values"]["max_absolute"])
        self.assertEqual((data["largest_in"], data["total"]["max_absolute"]),
                         (largest["name"], largest["values"]["max_absolute"]))

    def test_one_edited_element_of_a_shard_is_found(self):
        scratch = self.scratch("z3_fp32_full_w2")
        with scratch.optimizer(1) as state:
            flat = state["fp32_flat_groups"][0]
            before = flat[3].item()
            flat[3] += 0.25
        data = self.diff(scratch.case.load_dir, scratch.folder, code=1)
        tensor, = [t for t in data["tensors"] if t["name"] not in scratch.case.tied]
        values = tensor["values"]
        self.assertEqual((values["differing"], values["a"], values["b"]), (1, before, flat[3].item()))
        truth = scratch.case.masters[tensor["name"]].reshape(-1)
        self.assertEqual(truth[values["index"]].item(), before)

    def test_ulps_and_special_values(self):
        for dtype, largest in LARGEST.items():
            with self.subTest(dtype=dtype):
                a = torch_files.randn(3000, dtype=dtype)
                b = a.clone()
                b[5] = numpy.nextafter(b[5].values, numpy.float32(9)) if dtype == "float32" else -b[5].item()
                b[2047] *= 1.5
                b[2048] = 0.0
                a[7], b[7] = 0.0, -0.0
                a[8], b[8] = math.inf, math.inf
                self.assert_values(self.diff(self.weights(x=a), self.weights(x=b), code=1)["tensors"][0]["values"], a, b)
                a[9] = largest
                b[9] = math.inf
                self.assert_values(self.diff(self.weights(x=a), self.weights(x=b), code=1)["tensors"][0]["values"], a, b)
                a[9] = math.nan
                self.assert_values(self.diff(self.weights(x=a), self.weights(x=b), code=1)["tensors"][0]["values"], a, b)
                self.assert_equal(self.weights(x=a), self.weights("pytorch_model.bin", x=a))

    def test_signed_zeros_differ_in_bits_and_by_nothing(self):
        a, b = self.weights(x=torch_files.zeros(4)), self.weights(x=torch_files.full(4, value=-0.0))
        values = self.diff(a, b, code=1)["tensors"][0]["values"]
        self.assertEqual((values["differing"], values["max_absolute"], values["max_ulps"], values["index"]),
                         (4, 0, 0, 0))
        data = self.diff(a, b, "--atol=0", code=0)
        self.assertEqual(data["counts"]["within"], 1)

    def test_integers_and_booleans_are_compared(self):
        a = {"i": torch_files.arange(100), "b": torch_files.tensor(numpy.arange(100) % 3 == 0)}
        b = {"i": a["i"].clone(), "b": a["b"].clone()}
        b["i"][60] -= 7
        b["b"][[1, 2]] = True
        tensors = {t["name"]: t["values"] for t in self.diff(self.weights(**a), self.weights(**b), code=1)["tensors"]}
        self.assertEqual((tensors["i"]["differing"], tensors["i"]["index"], tensors["i"]["max_absolute"]), (1, 60, 7))
        self.assertEqual((tensors["b"]["differing"], tensors["b"]["index"]), (2, 1))

    def test_large_integers_are_subtracted_as_integers(self):
        pairs = {"i": ([2**53, 2**60 + 1, -2**60], [2**53 + 1, 2**60, -2**60]),
                 "range": ([-2**63, 5], [2**63 - 1, 5])}
        folders = [self.weights(**{name: torch_files.tensor(pair[side]) for name, pair in pairs.items()}) for side in (0, 1)]
        tensors = {t["name"]: t["values"] for t in self.diff(*folders, code=1)["tensors"]}
        for name, (a, b) in pairs.items():
            distances = [abs(p - q) for p, q in zip(a, b)]
            index = distances.index(max(distances))
            values = tensors[name]
            self.assertEqual((values["max_absolute"], values["index"], values["a"], values["b"]),
                             (max(distances), index, a[index], b[index]))
            self.assertEqual({type(values[key]) for key in ("max_absolute", "a", "b")}, {int})
            relative = max(Fraction(d, abs(q)) for d, q in zip(distances, b))
            self.assertAlmostEqual(values["max_relative"] / float(relative), 1, delta=1e-15)
        rows = {row.split("\t")[0]: row.split("\t") for row in self.tool("ckpt-inspect", "diff", *folders).stdout.splitlines()}
        self.assertEqual(rows["i"][7:8] + rows["i"][11:], ["1", str(2**53), str(2**53 + 1)])
        self.assertEqual(rows["range"][7:8] + rows["range"][11:], [str(2**64 - 1), str(-2**63), str(2**63 - 1)])
        for tolerance, outside in [("--atol=0", 2), ("--atol=0.5", 2), ("--rtol=1e-20", 2), ("--atol=1", 0), ("--rtol=1e-15", 0)]:
            data = self.diff(*folders, "--match=^i$", tolerance, code=1 if outside else 0)
            tensor, = data["tensors"]
            self.assertEqual((tensor["verdict"], tensor["values"]["outside"]),
                             ("values" if outside else "within", outside), tolerance)

    def test_tolerances_may_be_infinite_and_not_negative(self):
        folders = self.weights(x=torch_files.tensor([1.0, 2.0])), self.weights(x=torch_files.tensor([5.0, 2.0]))
        for tolerance in ["--atol=inf", "--rtol=inf", "--atol=4", "--rtol=1e0"]:
            self.diff(*folders, tolerance, code=0)
        for value in ["-1", "-inf", "nan", "x", "1x"]:
            error = self.error_of(self.tool("ckpt-inspect", "diff", *folders, "--json", f"--atol={value}"), 2)
            self.assertRegex(error["message"], f"^--atol: '{value}' is not a number of at least 0$")

    def test_a_match_that_finds_nothing_is_a_bad_call(self):
        a, b = self.weights(x=torch_files.ones(1)), self.weights(x=torch_files.ones(1), new=torch_files.ones(1))
        error = self.error_of(self.tool("ckpt-inspect", "diff", a, b, "--json", "--match=zzz"), 2)
        self.assertEqual(error["message"], "no tensor's name matches 'zzz'")
        self.assertEqual(self.diff(a, b, "--match=new", code=1)["counts"]["only in B"], 1)

    def test_one_tensor_is_not_called_tensors(self):
        a, b = self.weights(x=torch_files.ones(1)), self.weights(x=torch_files.zeros(1))
        self.assertEqual(self.tool("ckpt-inspect", "diff", a, a).stdout, "1 tensor, bit-equal\n")
        self.assertEqual(self.tool("ckpt-inspect", "diff", a, b).stdout.splitlines()[-1],
                         "1 tensor, 1 of other values; 1 of 1 element differs, by at most 1 in 'x'; relative change 1")

    def test_what_changed_most_comes_first_and_what_is_tied_once(self):
        chance = torch_files.randn(40, 50)
        a = {f"layer{i}": torch_files.randn(40, 50) for i in range(4)}
        steps = [3e-3, 5e-1, 0, 4e-2]
        b = {name: torch_files.tensor(a[name].values + step * chance.values, "float32")
             for name, step in zip(a, steps)}
        for of in (a, b):
            of["tied"] = of["layer1"]
        folders = self.weights("pytorch_model.bin", **a), self.weights("pytorch_model.bin", **b)
        rows = [row.split("\t") for row in self.tool("ckpt-inspect", "diff", *folders).stdout.splitlines()]
        self.assertEqual([row[0] for row in rows[:-1]], ["layer1", "layer3", "layer0"])
        self.assertRegex(rows[-1][0], r"6,?000 of 8,?000 elements differ.*; relative change 0\.\d+, cosine 0\.\d{6}$")
        top = self.tool("ckpt-inspect", "diff", *folders, "--top", "1").stdout.splitlines()
        self.assertEqual([row.split("\t")[0] for row in top[:-1]], ["layer1", "2 tensors more"])
        every = self.tool("ckpt-inspect", "diff", *folders, "--all").stdout.splitlines()
        self.assertEqual([row.split("\t")[0] for row in every[:-1]], [*a])
        data = self.diff(*folders, code=1)
        self.assertEqual([t.get("alias_of") for t in data["tensors"]], [None, None, None, "layer1"])
        self.assertEqual(data["total"]["count"], 8000)

    def test_tolerances_are_those_of_allclose(self):
        noise = [torch_files.randn(5000).values for _ in range(2)]
        a = torch_files.randn(5000)
        b = torch_files.tensor(a.values * (1 + 1e-4 * noise[0]) + 1e-5 * noise[1], "float32")
        folders = self.weights(x=a), self.weights(x=b)
        codes = set()
        for atol, rtol in [(0, 0), (1e-3, 0), (1e-5, 1e-4), (5e-5, 4e-4), (0, 1e-3), (1e-4, 1e-3)]:
            within = numpy.isclose(a.values.astype("f8"), b.values.astype("f8"), rtol, atol)
            codes.add(code := 0 if within.all() else 1)
            data = self.diff(*folders, f"--atol={atol}", f"--rtol={rtol}", code=code)
            tensor, = data["tensors"]
            self.assertEqual(tensor["verdict"], "values" if code else "within")
            self.assert_values(tensor["values"], a, b, outside=int((~within).sum()))
        self.assertEqual(codes, {0, 1})
        nan = self.weights(x=torch_files.tensor([1.0, math.nan])), self.weights(x=torch_files.tensor([1.0, 2.0]))
        self.diff(*nan, "--atol=1e9", code=1)
        infinite = self.weights(x=torch_files.tensor([1.0, 3.0])), self.weights(x=torch_files.tensor([1.0, math.inf]))
        self.diff(*infinite, "--rtol=0.5", code=1)

    def test_names_shapes_and_types_that_changed(self):
        a = self.weights(same=torch_files.ones(3), gone=torch_files.ones(2), reshaped=torch_files.ones(2, 3), cast=torch_files.ones(4),
                         counted=torch_files.ones(2, dtype="int64"))
        b = self.weights("pytorch_model.bin", same=torch_files.ones(3), new=torch_files.ones(2), reshaped=torch_files.ones(3, 2),
                         cast=torch_files.ones(4).to("bfloat16"), counted=torch_files.ones(2, dtype="int32"))
        data = self.diff(a, b, code=1)
        self.assertEqual({t["name"]: t["verdict"] for t in data["tensors"]},
                         {"gone": "only in A", "new": "only in B", "reshaped": "shape", "cast": "dtype",
                          "counted": "dtype"})
        self.assertEqual(data["counts"], {"equal": 1, "within": 0, "values": 0, "dtype": 2, "shape": 1,
                                          "only in A": 1, "only in B": 1})
        reshaped, = [t for t in data["tensors"] if t["name"] == "reshaped"]
        self.assertEqual((reshaped["shape_a"], reshaped["shape_b"]), ([2, 3], [3, 2]))
        cast = self.diff(a, b, "--as=float32", code=1)
        self.assertNotIn("cast", {t["name"] for t in cast["tensors"]})
        self.assertIn("counted", {t["name"] for t in cast["tensors"]})
        everything = self.diff(a, b, "--all", code=1)["tensors"]
        self.assertIn(("same", "equal"), {(t["name"], t["verdict"]) for t in everything})
        self.diff(a, b, "--match=same", code=0)

    def test_prefixes_are_stripped_from_both(self):
        a = self.weights(**{"module.x": torch_files.ones(3), "y": torch_files.zeros(2)})
        b = self.weights(**{"x": torch_files.ones(3), "model.y": torch_files.zeros(2)})
        self.assertEqual(self.diff(a, b, code=1)["counts"]["equal"], 0)
        self.assert_equal(a, b, "--strip-prefix=module.", "--strip-prefix=model.")
        clash = self.weights(**{"module.x": torch_files.ones(3), "x": torch_files.zeros(2)})
        self.error_of(self.tool("ckpt-inspect", "diff", clash, b, "--json", "--strip-prefix=module."), 2)

    def test_tags_are_chosen_for_each_side(self):
        case = self.case("z2_bf16_w2")
        tag = case.facts["tag"]
        self.assert_equal(case.load_dir, case.load_dir, f"--tag-a={tag}", f"--tag-b={tag}")
        self.error_of(self.tool("ckpt-inspect", "diff", case.load_dir, case.load_dir, "--tag-b=nope", "--json"), 3)

    def test_the_number_of_threads_changes_nothing(self):
        a = torch_files.randn(1_000_003)
        b = a.clone()
        b[::1000] = a.values.max() + 1
        folders = self.weights(x=a, y=torch_files.ones(700_000)), self.weights(x=b, y=torch_files.zeros(700_000))
        outputs = {self.tool("ckpt-inspect", "diff", *folders, "--json", f"--threads={n}").stdout for n in (1, 2, 8)}
        self.assertEqual(len(outputs), 1)
        tensor = json.loads(outputs.pop())["data"]["tensors"][0]
        self.assert_values(tensor["values"], a, b)

    def test_text_says_what_differs_and_ends_with_a_summary(self):
        case = self.case("z2_fp32_full_w3")
        count = len(case.module)
        done = self.tool("ckpt-inspect", "diff", case.load_dir, case.load_dir)
        self.assertEqual((done.returncode, done.stdout), (0, f"{count} tensors, bit-equal\n"))
        done = self.tool("ckpt-inspect", "diff", case.load_dir, case.load_dir, "--all")
        self.assertEqual(len(done.stdout.splitlines()), count + 1)
        a, b = self.weights(x=torch_files.tensor([1.0, 2.0]), y=torch_files.ones(1)), self.weights(x=torch_files.tensor([1.0, 2.5]), y=torch_files.ones(1))
        done = self.tool("ckpt-inspect", "diff", a, b)
        self.assertEqual(done.returncode, 1)
        row, summary = done.stdout.splitlines()
        self.assertEqual(row.split("\t"), ["x", "", "values", "float32[2]", "0.224", "0.996546", "1", "0.5", "0.2",
                                           str(1 << 21), "1", "2", "2.5"])
        self.assertEqual(summary, "2 tensors, 1 bit-equal, 1 of other values; "
                                  "1 of 3 elements differs, by at most 0.5 in 'x'; "
                                  "relative change 0.204, cosine 0.994937")

    def test_bad_calls_have_their_exit_codes(self):
        good = self.weights(x=torch_files.ones(1))
        for code, arguments in [(2, [good]), (2, [good, self.root / "nowhere"]), (2, [good, good, "--as=int8"]),
                                (2, [good, good, "--atol=-1"]), (2, [good, good, "--match=("]), (3, [good, self.tmp])]:
            self.error_of(self.tool("ckpt-inspect", "diff", "--json", *arguments), code)


class DiffForPeopleTest(CliTest):

    def on_terminal(self, *arguments, code):
        command = [str(pathlib.Path(os.environ["DSCKPT_BIN"]) / "ckpt-inspect"), "diff", *map(str, arguments)]
        with Terminal(command, 120, {**self.environment, "TERM": "dumb"}, [1, 2]) as terminal:
            text, status = terminal.rest()
        self.assertEqual(status, code, text)
        return text.replace("\r\n", "\n")

    def test_what_differs_in_types_alone_is_folded_and_the_next_command_is_named(self):
        case = tools.case_named("hf_trainer_gpt2_z2_bf16_w2")
        narrow = self.convert(case.load_dir, "--dtype", "bf16", "--safe-serialization")
        text = self.on_terminal(case.load_dir, narrow, code=1)
        rows = [line for line in text.splitlines() if " dtype " in line]
        self.assertEqual(len(rows), 1, text)
        self.assertRegex(rows[0], r"transformer.wte.weight and 27 more +dtype +float32 -> bfloat16")
        self.assertIn("hint: only types differ; --as bfloat16", text)
        self.assertIn("bit-equal", self.on_terminal(case.load_dir, narrow, "--as", "bfloat16", code=0))
        every = self.on_terminal(case.load_dir, narrow, "--all", code=1)
        self.assertEqual(sum(" dtype " in line for line in every.splitlines()), 28)
        piped = self.tool("ckpt-inspect", "diff", case.load_dir, narrow)
        self.assertEqual(piped.stdout.count("\tdtype\t"), 28)

    def test_types_are_not_said_to_be_all_where_values_differ_too(self):
        case = tools.case_named("hf_trainer_gpt2_z2_bf16_w2")
        narrow = self.convert(case.load_dir, "--dtype", "bf16", "--safe-serialization", "--keep-fp32", "wte")
        path = narrow / "model.safetensors"
        tensors = torch_files.load_file(path)
        tensors["transformer.wte.weight"][0, 0] += 1
        torch_files.save_file(tensors, path)
        self.assertNotIn("only types differ", self.on_terminal(case.load_dir, narrow, code=1))


if __name__ == "__main__":
    cli_common.main()
