"""`ckpt-inspect verify` finds every defect of defects/, where it is, and nothing else; and does not touch what
it reads."""
import collections
import concurrent.futures
import importlib
import json
import os
import pathlib
import pkgutil
import random
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import time
import unittest
import zipfile

import cli_common
import defects
import plant
import salvage_test
import tools
import torch_files
from cli_common import snapshot
from edits import load_shard
from torch_files import Reduced, named

FINDING_KEYS = {"check", "message", "file", "rank", "member", "tensor", "state", "tensors", "offset", "size"}
HANDFUL = 6


class Failure(AssertionError):
    pass


def require(condition, message):
    if not condition:
        raise Failure(message)


def cases():
    return {case.name: case for case in [*tools.all_cases(), *tools.model_parallel_cases()]}


def verify(path, *arguments):
    done = tools.run_tool("ckpt-inspect", "verify", path, "--json", *arguments)
    require(done.returncode in (0, 1), f"exit code {done.returncode}: {done.stderr}{done.stdout}")
    line, = done.stdout.splitlines()
    record = json.loads(line)
    require((record["schema"], record["type"]) == (1, "verify"), line)
    report = record["data"]
    require(report["ok"] == (done.returncode == 0) == (not report["findings"]), line)
    for finding in report["findings"]:
        require(set(finding) <= FINDING_KEYS and finding["message"].isprintable(), str(finding))
    return report


class Sources:
    """Writable copies of checkpoints and of what the tools make of them."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.made = {}

    def make(self, case_name, made):
        """The folder that defects are planted in copies of."""
        key = case_name, made
        if key not in self.made:
            source = cases()[case_name].load_dir
            if made:
                tool, *options = made
                output = self.root / f"made{len(self.made)}" / "out"
                places = (["--input_folder", source, "--output_folder", output] if tool == "to-universal" else
                          [source, output])
                done = tools.run_tool(tool, *places, *options)
                require(done.returncode == 0, done.stderr)
                source = output
            self.made[key] = source
        return self.made[key]

    def copy(self, case_name, made, name):
        folder = self.root / name / "ckpt"
        shutil.copytree(self.make(case_name, made), folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
        return folder


def one_of(value):
    return value if isinstance(value, tuple) else (value,)


def ends_with(name, expected):
    """True if `expected` is the path `name`, perhaps without folders in front."""
    parts = pathlib.PurePosixPath(expected).parts
    return pathlib.PurePosixPath(name).parts[-len(parts):] == parts


def meets(finding, expected):
    """True if a finding is the expected one, at the expected place."""
    def is_met(key, wanted):
        if key == "file":
            return any(ends_with(finding.get("file", ""), name) for name in one_of(wanted))
        if key == "rank":
            return finding.get("rank") == {"dp": wanted[0], "mp": wanted[1]}
        if key == "member":  # with or without the zip's folder
            return ends_with(finding.get("member", ""), wanted)
        return finding.get(key) in one_of(wanted)
    return all(is_met(key, wanted) for key, wanted in expected.items())


class Defect:
    """A module of defects/; see plant.py."""

    def __init__(self, name):
        self.name = name
        module = importlib.import_module(f"defects.{name}")
        self.description = module.__doc__
        self.case = module.CASE
        self.made = getattr(module, "MADE", None)
        self.plant = module.plant
        self.expected = module.EXPECT if isinstance(module.EXPECT, list) else [module.EXPECT]
        self.arguments = getattr(module, "ARGUMENTS", [])
        self.has_manifest = getattr(module, "MANIFEST", False)
        self.may_name = set(getattr(module, "MAY_NAME", []))
        self.most = getattr(module, "MOST", HANDFUL)

    def plant_in(self, folder):
        """Plants it; returns the findings that must be reported then."""
        facts = self.plant(folder) or {}
        return [{**expected, **facts} for expected in self.expected]

    def check(self, sources):
        folder = sources.copy(self.case, self.made, self.name)
        arguments = list(self.arguments)
        if self.has_manifest:
            manifest = folder.parent / "manifest"
            before = verify(folder, "--write-manifest", manifest)
            require(before["ok"], f"not healthy to begin with: {before['findings']}")
            arguments += ["--manifest", manifest]
        expected = self.plant_in(folder)
        seen = snapshot(folder)
        report = verify(folder, *arguments)
        require(snapshot(folder) == seen, "the input was changed")
        self.judge(report["findings"], expected)

    def judge(self, findings, expected):
        listed = "\n".join(map(str, findings)) or "nothing"
        for wanted in expected:
            require(any(meets(finding, wanted) for finding in findings), f"not found: {wanted}\nfound: {listed}")
        may_name = self.may_name.union(*(one_of(wanted["file"]) for wanted in expected if "file" in wanted))
        for finding in findings:
            require(any(ends_with(finding.get("file", ""), name) for name in may_name),
                    f"a healthy file is named: {finding}\nfound: {listed}")
        require(len(findings) <= self.most, f"{len(findings)} findings: {listed}")


ALL_DEFECTS = sorted(module.name for module in pkgutil.iter_modules(defects.__path__))


class PlantedDefectTest(unittest.TestCase):
    """One test for each module of defects/. All are run at once, by two threads, before the first."""

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-verify-")
        cls.addClassCleanup(holder.cleanup)
        sources = Sources(holder.name)
        planted = [Defect(name) for name in ALL_DEFECTS]
        for defect in planted:
            sources.make(defect.case, defect.made)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            cls.outcomes = {defect.name: pool.submit(defect.check, sources) for defect in planted}

    def test_there_are_many(self):
        self.assertGreaterEqual(len(ALL_DEFECTS), 45)

    def test_every_defect_says_what_happens(self):
        for name in ALL_DEFECTS:
            self.assertTrue(Defect(name).description, name)


def add_test(name):
    def test(self):
        self.outcomes[name].result()
    setattr(PlantedDefectTest, f"test_{name}", test)


for defect_name in ALL_DEFECTS:
    add_test(defect_name)


class VerifyTest(cli_common.CliTest):

    def report(self, source, *arguments):
        before = snapshot(source)
        report = verify(source, *arguments)
        self.assertEqual(snapshot(source), before)
        return report

    def planted(self, sources, folder, *names):
        return [wanted for name in names for wanted in Defect(name).plant_in(folder)]

    def test_healthy_checkpoints_have_nothing_wrong(self):
        for name in ["z2_fp32_full_w3", "z3_bf16_full_subgroups_w4", "pp2_dp2_z1_bf16"]:
            report = self.report(cases()[name].load_dir, "--finite")
            self.assertEqual(report["findings"], [], name)
            self.assertEqual(report["form"], "zero")
            files = [path for path in cases()[name].tag_folder.iterdir()]
            self.assertGreaterEqual(report["files"], len(files))
            self.assertGreaterEqual(report["bytes"], sum(path.stat().st_size for path in files))
            self.assertTrue({c["check"] for c in report["checks"] if c["done"]} >= {"missing", "crc", "nonfinite"})

    def test_the_tag_folder_alone_can_be_verified(self):
        case = cases()["z3_fp32_w3"]
        self.assertTrue(self.report(case.tag_folder)["ok"])
        self.assertTrue(self.report(case.load_dir, "--tag", case.facts["tag"])["ok"])

    def test_several_defects_at_once_are_all_reported(self):
        sources = Sources(self.root)
        folder = sources.copy("z2_bf16_full_w8", None, "several")
        wanted = self.planted(sources, folder, "missing_last_rank", "truncated_optim_file",
                            "parameter_missing_from_module", "first_rank_from_an_earlier_step")
        bad = plant.find(folder, "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt")
        crc = plant.flip_bit(
            bad, lambda shard: shard["optimizer_state_dict"]["base_optimizer_state"]["state"][1]["exp_avg"], element=5)
        wanted.append({"check": "crc", "file": bad.name, "rank": (3, 0), **crc})
        findings = self.report(folder)["findings"]
        for expected in wanted:
            self.assertTrue(any(meets(finding, expected) for finding in findings), (expected, findings))
        self.assertLessEqual(len(findings), 2 * len(wanted))

    def test_a_damaged_record_is_named_by_all_that_lies_in_it(self):
        sources = Sources(self.root)
        flat = ["z2_fp32_full_w3", "z1_fp32_full_w6"]
        for name in [*flat, "z3_fp32_w3", "z3_fp32_full_w8"]:
            case = cases()[name]
            for rank in range(case.facts["world_size"]):
                scratch = cli_common.Scratch(case, self.root / f"{name}-{rank}")
                lost = salvage_test.lost_of_flat_groups(scratch, [rank]) if name in flat else \
                    salvage_test.lost_of_pieces(scratch, [rank], [])
                names = {each for each, ranks in lost.items() if ranks}
                flats = "single_partition_of_fp32_groups" if name in flat else "fp32_flat_groups"
                saved = scratch.optim(rank).read_bytes()
                groups = len(load_shard(scratch.optim(rank))["optimizer_state_dict"][flats])
                found = {"weight": set(), "exp_avg": set()}
                for group in range(groups):
                    picks = {"weight": lambda s: s["optimizer_state_dict"][flats][group],
                             "exp_avg": lambda s: self.base_state(s)[group]["exp_avg"]}
                    for what, pick in picks.items():
                        plant.flip_bit(scratch.optim(rank), pick)
                        finding, = verify(scratch.folder)["findings"]
                        scratch.optim(rank).write_bytes(saved)
                        found[what].update(finding["tensors"])
                with self.subTest(case=name, rank=rank):
                    self.assertEqual(found["weight"], names)
                    self.assertEqual(found["exp_avg"], {f"{each} exp_avg" for each in names})

    def base_state(self, shard):
        state = shard["optimizer_state_dict"]
        return (state.get("base_optimizer_state") or state["optimizer_state_dict"])["state"]

    def test_a_damaged_header_does_not_hide_a_damaged_record_of_the_same_file(self):
        sources = Sources(self.root)
        folder = sources.copy("z3_bf16_full_subgroups_w4", None, "both")
        bad = plant.find(folder, "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt")
        data, _ = cli_common.record_extent(bad, "data/1")
        cli_common.flip(bad, data + 5)
        with zipfile.ZipFile(bad) as archive:
            header = next(e.header_offset for e in archive.infolist() if e.filename.endswith("/data/4"))
        cli_common.flip(bad, header + 30)  # the first letter of its name
        findings = verify(folder)["findings"]
        self.assertEqual({(f["check"], f["member"].split("/", 1)[1]) for f in findings},
                         {("crc", "data/1"), ("unreadable", "data/4")})
        keys = {key for f in findings for key in f["tensors"]}
        self.assertTrue(keys and all(key.endswith("exp_avg") or "flat" in key for key in keys), keys)

    def test_any_flipped_bit_of_any_record_is_found_in_its_record(self):
        sources = Sources(self.root)
        for name in ["z3_fp32_full_w2", "autotp2_dp1_z1_bf16", "pp2_dp2_z1_bf16opt"]:
            folder = sources.copy(name, None, name)
            draw = random.Random(name)
            for _ in range(15):
                path = draw.choice(sorted(folder.rglob("*.pt")))
                with zipfile.ZipFile(path) as archive:
                    record = draw.choice([entry.filename for entry in archive.infolist() if entry.file_size])
                member = record.split("/", 1)[1]
                offset, size = cli_common.record_extent(path, member)
                place = offset + draw.randrange(size), 1 << draw.randrange(8)
                cli_common.flip(path, *place)
                findings = verify(folder)["findings"]
                cli_common.flip(path, *place)
                wanted = {"check": "crc", "file": path.name, "member": member, "offset": offset, "size": size}
                self.assertTrue(any(meets(finding, wanted) for finding in findings), (name, wanted, place, findings))
                self.assertEqual({finding["file"] for finding in findings}, {f"{path.parent.name}/{path.name}"})

    def test_values_that_are_no_numbers_are_looked_for_only_if_asked(self):
        sources = Sources(self.root)
        folder = sources.copy("z3_bf16_full_subgroups_w4", None, "inf")
        self.planted(sources, folder, "inf_in_master_of_a_sub_group")
        self.assertTrue(self.report(folder)["ok"])
        self.assertFalse(self.report(folder, "--finite")["ok"])

    def test_the_text_names_the_same_place(self):
        sources = Sources(self.root)
        for name in ["flipped_bit_in_exp_avg", "one_weight_off_by_one_ulp", "missing_last_rank",
                     "inf_in_master_of_a_sub_group"]:
            with self.subTest(defect=name):
                defect = Defect(name)
                folder = sources.copy(defect.case, defect.made, name)
                wanted, = defect.plant_in(folder)
                finding = next(f for f in self.report(folder, *defect.arguments)["findings"] if meets(f, wanted))
                done = self.tool("ckpt-inspect", "verify", folder, *defect.arguments)
                self.assertEqual(done.returncode, 1, done.stderr)
                for place in [finding["file"], finding.get("member", ""), finding.get("tensor", ""),
                              str(finding.get("offset", ""))]:
                    self.assertIn(place, done.stdout)

    def test_nan_is_found_in_every_type_that_has_it(self):
        types = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
                 "complex64", "complex128"]
        for dtype in types:
            with self.subTest(dtype=dtype):
                path = self.new_path("tensor.pt")
                values = torch_files.ones(100_000, dtype=dtype)
                torch_files.save({"w": values, "counts": torch_files.ones(3, dtype="int64")}, path)
                self.assertTrue(self.report(path, "--finite")["ok"])
                values[[70_000, 70_001, 99_999]] = torch_files.tensor(float("nan")).to(dtype)
                torch_files.save({"w": values}, path)
                finding, = self.report(path, "--finite")["findings"]
                offset, _ = cli_common.record_extent(path, "data/0")
                self.assertEqual((finding["check"], finding["tensor"], finding["offset"], finding["message"]),
                                 ("nonfinite", "w", offset + 70_000 * values.element_size(),
                                  "3 NaN and 0 Inf among 100000 elements"))

    def test_a_tensor_that_is_not_supported_keeps_nothing_else_from_being_checked(self):
        path = self.new_path("conj.pt")
        bad = torch_files.tensor([1.0, float("inf")])
        conjugate = Reduced(named("torch._utils", "_rebuild_tensor_v2"), torch_files.ones(3, dtype="complex64").storage, 0,
                            (3, ), (1, ), False, collections.OrderedDict(), {"conj": True})
        torch_files.save({"bad": bad, "c": conjugate, "end": torch_files.ones(5)}, path)
        offset, size = cli_common.record_extent(path, "data/2")
        cli_common.flip(path, offset + 1, 1)
        report = self.report(path, "--finite")
        self.assertEqual({(f["check"], f.get("tensor", f.get("member"))) for f in report["findings"]},
                         {("nonfinite", "bad"), ("crc", "conj/data/2")})
        why, = (check["why"] for check in report["checks"] if check["check"] == "layout")
        for word in [path.name, "c: ", "conj"]:
            self.assertIn(word, why)

    def test_it_can_be_interrupted_inside_a_tensor(self):
        count = 1 << 36
        header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
        path = self.new_path("model") / "model.safetensors"
        path.parent.mkdir()
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        os.truncate(path, 8 + len(header) + 4 * count)
        process = subprocess.Popen([os.path.join(os.environ["DSCKPT_BIN"], "ckpt-inspect"), "verify", "--finite", path],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        time.sleep(1)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, 130)

    def test_a_manifest_holds_of_an_unchanged_checkpoint(self):
        sources = Sources(self.root)
        folder = sources.copy("z2_fp32_full_w3", None, "kept")
        manifest = self.new_path("manifest")
        self.assertTrue(self.report(folder, "--write-manifest", manifest)["ok"])
        self.assertTrue(manifest.is_file())
        self.assertTrue(self.report(folder, "--manifest", manifest)["ok"])
        moved = folder.rename(folder.with_name("moved"))
        self.assertTrue(self.report(moved, "--manifest", manifest)["ok"])

    def test_what_is_no_checkpoint_is_refused(self):
        for folder in [self.new_path(), self.tmp]:
            done = self.tool("ckpt-inspect", "verify", folder, "--json")
            self.assertIn(done.returncode, (2, 3, 4), done.stdout)


if __name__ == "__main__":
    cli_common.main()
