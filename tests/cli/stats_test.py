"""ckpt-inspect stats against NumPy on every test checkpoint, and planted NaN and infinity."""
import json
import math
from fractions import Fraction

import cli_common
import numpy
import tools
import torch_files
from cli_common import CliTest

KEYS = {"count", "zeros", "nans", "positive_infinities", "negative_infinities", "min", "max", "mean", "std", "norm"}


def real(value):
    """A vector of real numbers in float64; a complex one is two."""
    numbers = value.values.reshape(-1)
    return (numbers.view(f"f{numbers.itemsize // 2}") if numbers.dtype.kind == "c" else numbers).astype("f8")


def expected_stats(x):
    """The same numbers by NumPy, in float64."""
    finite = x[numpy.isfinite(x)]
    some = finite.size > 0
    return {"count": x.size, "zeros": int((x == 0).sum()), "nans": int(numpy.isnan(x).sum()),
            "positive_infinities": int((x == math.inf).sum()), "negative_infinities": int((x == -math.inf).sum()),
            "min": finite.min() if some else None, "max": finite.max() if some else None,
            "mean": finite.mean() if some else 0.0, "std": finite.std(ddof=1) if finite.size > 1 else None,
            "norm": numpy.linalg.norm(finite)}


class StatsTest(CliTest):

    def stats(self, source, *arguments, code=0):
        done = self.tool("ckpt-inspect", "stats", source, "--json", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["type"], "stats")
        return line["data"]

    def assert_stats(self, stats, value, what):
        self.assertEqual(set(stats), KEYS)
        expected = expected_stats(value if isinstance(value, numpy.ndarray) else real(value))
        scale = max(abs(expected["min"] or 0), abs(expected["max"] or 0))
        for key, number in expected.items():
            if key in ("mean", "std", "norm") and number is not None:
                size = scale * math.sqrt(expected["count"]) if key == "norm" else scale
                self.assertAlmostEqual(stats[key], number, delta=1e-12 * size, msg=f"{what} {key}")
            else:
                self.assertEqual(stats[key], number, f"{what} {key}")

    def save(self, name="tensors.safetensors", **tensors):
        path = self.new_path("weights")
        path.mkdir()
        if name.endswith(".safetensors"):
            torch_files.save_file(tensors, path / name)
        else:
            torch_files.save(tensors, path / name)
        return path / name

    def test_every_tensor_of_every_checkpoint_is_as_numpy_says(self):
        for case in tools.all_cases():
            with self.subTest(case=case.name):
                truth = {name: case.masters.get(case.tied.get(name, name), stored)
                         for name, stored in case.module.items()}
                data = self.stats(case.load_dir)
                self.assertGreater(len(data["tensors"]), 0)
                for tensor in data["tensors"]:
                    self.assert_stats(tensor["stats"], truth[tensor["name"]], tensor["name"])
                self.assertTrue(data["finite"])
                once = [real(truth[t["name"]]) for t in data["tensors"] if "alias_of" not in t]
                total, = data["totals"]
                self.assertEqual(total["tensors"], len(once))
                self.assert_stats(total["stats"], numpy.concatenate(once), "total")

    def test_optimizer_states_are_the_engines(self):
        for name in ["z2_fp32_full_w3", "z3_bf16_full_w6", "z1_bf16_w2"]:
            case = tools.case_named(name)
            data = self.stats(case.load_dir, "--states")
            states = {f"{t['name']}|{t['state']}": t["stats"] for t in data["tensors"]
                      if "state" in t and "alias_of" not in t}
            truth = {key: value for key, value in case.expected("master").items()
                     if key.split("|")[1] in ("exp_avg", "exp_avg_sq") and key.split("|")[0] not in case.tied}
            self.assertEqual(sorted(states), sorted(truth))
            for key, value in truth.items():
                self.assert_stats(states[key], value, key)
            self.assertEqual([total.get("state", "") for total in data["totals"]], ["", "exp_avg", "exp_avg_sq"])

    def test_model_parallel_checkpoints_have_the_values_of_their_ranks(self):
        case = tools.case_named("pp2_dp2_z1_fp32")
        live = {key.split("|")[0]: value for key, value in case.expected("live").items() if "|fp32|" in key}
        seen = 0
        for tensor in self.stats(case.load_dir)["tensors"]:
            if tensor["name"] in live:
                self.assert_stats(tensor["stats"], live[tensor["name"]], tensor["name"])
                seen += 1
        self.assertGreater(seen, 3)

    def test_all_types_are_read(self):
        plain = torch_files.randn(70_001)
        tensors = {t: plain.to(t) for t in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")}
        for t in ("int64", "int32", "int16", "int8"):
            tensors[t] = torch_files.tensor(plain.values * 30, t)
        tensors["uint8"] = torch_files.tensor(abs(plain.values) * 30, "uint8")
        tensors["bool"] = torch_files.tensor(plain.values > 0)
        tensors["complex64"] = torch_files.tensor(plain.values * (1 + 2j), "complex64")
        tensors["scalar"] = torch_files.tensor(-2.5)
        tensors["empty"] = torch_files.zeros(0, 3)
        data = self.stats(self.save("tensors.bin", **tensors))
        self.assertEqual({t["name"] for t in data["tensors"]}, set(tensors))
        for tensor in data["tensors"]:
            self.assert_stats(tensor["stats"], tensors[tensor["name"]], tensor["name"])

    def test_a_mean_far_larger_than_the_deviation_spoils_nothing(self):
        value = (torch_files.randn(300_000, dtype="float64") + 1e6).to("float32")
        tensor, = self.stats(self.save(value=value))["tensors"]
        wide = value.values.astype(numpy.longdouble)
        self.assertAlmostEqual(tensor["stats"]["std"] / float(wide.std(ddof=1)), 1, delta=1e-12)

    def test_squares_beyond_float64_are_infinite_in_text_and_null_in_json(self):
        huge = 1.7e308
        path = self.save(value=torch_files.tensor([huge, -huge, huge], dtype="float64"),
                         same=torch_files.tensor([1e300, 1e300], dtype="float64"))
        data = self.stats(path)
        tensors = {t["name"]: t["stats"] for t in data["tensors"]}
        mean = float(Fraction(huge) / 3)
        self.assertAlmostEqual(tensors["value"]["mean"] / mean, 1, delta=1e-15)
        self.assertEqual((tensors["same"]["mean"], tensors["same"]["std"]), (1e300, 0))
        total, = data["totals"]
        everything = float((Fraction(huge) + 2 * Fraction(1e300)) / 5)
        self.assertAlmostEqual(total["stats"]["mean"] / everything, 1, delta=1e-15)
        for stats in [tensors["value"], total["stats"]]:
            self.assertEqual((stats["std"], stats["norm"]), (None, None))
        lines = self.tool("ckpt-inspect", "stats", path).stdout.splitlines()
        rows = {row[0]: row for row in (line.split("\t") for line in lines)}
        self.assertEqual(rows["value"][4:9], ["-1.7e+308", "1.7e+308", f"{mean:.6g}", "inf", "inf"])
        self.assertEqual(rows["total"][6:9], [f"{everything:.6g}", "inf", "inf"])

    def test_nan_and_infinity_are_found_wherever_they_are(self):
        for name in ["tensors.safetensors", "tensors.bin"]:
            good, bad, worse = torch_files.randn(200_003), torch_files.randn(200_003), torch_files.randn(70_001).to("bfloat16")
            bad[199_999] = math.nan
            worse[0], worse[65_536], worse[-1] = math.inf, -math.inf, -math.inf
            path = self.save(name, good=good, bad=bad, worse=worse)
            data = self.stats(path, code=1)
            self.assertFalse(data["finite"])
            tensors = {t["name"]: t["stats"] for t in data["tensors"]}
            for key, value in {"good": good, "bad": bad, "worse": worse}.items():
                self.assert_stats(tensors[key], value, key)
            self.assertEqual((tensors["bad"]["nans"], tensors["worse"]["negative_infinities"]), (1, 2))
            done = self.tool("ckpt-inspect", "stats", path)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr, "ckpt-inspect: 2 of 3 tensors have NaN or infinite elements\n")
            self.assertEqual(self.tool("ckpt-inspect", "-q", "stats", path).stderr, "")
            self.assertTrue(self.stats(path, "--match=good")["finite"])

    def test_a_nan_in_a_shard_is_a_nan_of_the_parameter(self):
        scratch = self.scratch("z2_fp32_full_w3")
        with scratch.optimizer(1) as state:
            state["single_partition_of_fp32_groups"][0][5] = math.nan
        data = self.stats(scratch.folder, code=1)
        bad = [t["name"] for t in data["tensors"] if t["stats"]["nans"]]
        self.assertEqual(len(bad), 1, bad)
        self.assertEqual(sum(total["stats"]["nans"] for total in data["totals"]), 1)

    def test_the_number_of_threads_changes_nothing(self):
        path = self.save(a=torch_files.randn(1_000_003), b=torch_files.randn(500, 700).to("float16"), c=torch_files.randn(9))
        outputs = {self.tool("ckpt-inspect", "stats", path, "--json", f"--threads={n}").stdout for n in (1, 2, 8)}
        outputs.add(self.tool("ckpt-inspect", "stats", path, "--json").stdout)
        self.assertEqual(len(outputs), 1)

    def test_text_and_json_say_the_same(self):
        case = tools.case_named("z2_fp32_full_w3")
        data = self.stats(case.load_dir)
        done = self.tool("ckpt-inspect", "stats", case.load_dir)
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        self.assertEqual(len(rows), len(data["tensors"]) + 1)
        for row, tensor in zip(rows, data["tensors"]):
            stats = tensor["stats"]
            self.assertEqual(row[:4], [tensor["name"], tensor["kind"], tensor["dtype"],
                                       "[" + ", ".join(map(str, tensor["shape"])) + "]"])
            self.assertEqual(row[4:9], ["-" if stats[key] is None else f"{stats[key]:.6g}"
                                        for key in ("min", "max", "mean", "std", "norm")])
            self.assertEqual(row[9:], [str(stats["zeros"]), "0", "0"])
        self.assertEqual(rows[-1][0], "total")

    def test_a_match_that_finds_nothing_is_a_bad_call(self):
        path = self.save(a=torch_files.ones(3))
        error = self.error_of(self.tool("ckpt-inspect", "stats", path, "--json", "--match=zzz"), 2)
        self.assertEqual(error["message"], "no tensor's name matches 'zzz'")
        empty = self.save("tensors.bin", note="no tensor")
        self.assertEqual(self.stats(empty)["tensors"], [])

    def test_one_tensor_is_not_called_tensors(self):
        path = self.save(a=torch_files.tensor([1.0, math.nan]))
        done = self.tool("ckpt-inspect", "stats", path)
        self.assertEqual(done.stdout.splitlines()[-1].split("\t")[:4], ["total", "", "1 tensor", "[2]"])
        self.assertEqual(done.stderr, "ckpt-inspect: 1 of 1 tensor has NaN or infinite elements\n")

    def test_progress_and_bad_calls(self):
        path = self.save(a=torch_files.randn(1000))
        done = self.tool("ckpt-inspect", "stats", path, "--progress=json")
        last = json.loads(done.stderr.splitlines()[-1])["data"]
        self.assertEqual((last["bytes_done"], last["bytes_total"]), (4000, 4000))
        for arguments in [["--threads=0"], ["--progress=often"], ["--match", "("]]:
            self.error_of(self.tool("ckpt-inspect", "stats", path, "--json", *arguments), 2)
        path.write_bytes(path.read_bytes()[:-4])
        self.error_of(self.tool("ckpt-inspect", "stats", path, "--json"), 3)


if __name__ == "__main__":
    cli_common.main()
