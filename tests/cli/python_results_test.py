"""The Python package's results: notes, types, one for each of several paths, hints as the tool has them, and the list
of options.

Notes and hints are compared with what the tool prints for people.
"""
import json
import os
import pathlib
import pickle
import re
import shutil
import subprocess
import sys
import typing
import warnings

import cli_common
import dsckpt
import dsckpt._tool
import tools
from cli_common import CliTest
from dsckpt import results

os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"
SOURCE = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = SOURCE / "tests" / "golden"
STAGE_2 = "z2_bf16_w2"
TRAINER = "hf_trainer_llama_z3_bf16_w2"


def problems(value, kind, place="result"):
    """Where `value` is not what the type `kind` says, as texts."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is typing.Any:
        return []
    if hasattr(kind, "__required_keys__"):
        hints = typing.get_type_hints(kind)
        wrong = [f"{place}: lacks {key}" for key in kind.__required_keys__ if key not in value]
        wrong += [f"{place}: {key} is in no type" for key in value if key not in hints]
        return wrong + [problem for key in value if key in hints
                        for problem in problems(value[key], hints[key], f"{place}.{key}")]
    if origin is list:
        return [] if isinstance(value, list) and not [
            problem for each in value for problem in problems(each, arguments[0], place)] else [
                problem for each in value for problem in problems(each, arguments[0], place)] or [f"{place}: no list"]
    if origin is dict:
        return [problem for key, each in value.items() for problem in problems(each, arguments[1], f"{place}.{key}")]
    if origin is typing.Literal:
        return [] if value in arguments else [f"{place}: {value!r} is none of {arguments}"]
    if origin is typing.Union:
        return min((problems(value, each, place) for each in arguments), key=len)
    if kind is float:
        kind = (int, float)
    is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return [] if is_right else [f"{place}: {value!r} is no {kind}"]


class ResultsTest(CliTest):

    def setUp(self):
        super().setUp()
        self.enterContext(warnings.catch_warnings())
        self.checkpoint = tools.case_named(STAGE_2).load_dir
        self.trainer = tools.case_named(TRAINER).folder / "ckpt"

    def warned(self, function, *arguments, **options):
        """The result, and the texts of the warnings. All of them must point at this file."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(*arguments, **options)
        for each in caught:
            self.assertIs(each.category, dsckpt.DsckptWarning)
            self.assertEqual(each.filename, __file__)
        return result, [str(each.message) for each in caught]

    def said(self, tool, *words):
        """The notes that the tool prints."""
        done = tools.run_tool(tool, *words)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return re.findall(r"^\S+: note: (.*)$", done.stderr, re.MULTILINE)


class NotesTest(ResultsTest):

    def test_notes_are_those_of_the_tool_and_warnings(self):
        folders = [self.new_path(name) for name in ("one", "other")]
        for options in ({"safe_serialization": True, "dtype": "bf16"}, {"force": True}):  # the second finds the first's files
            words = [f"--{key.replace('_', '-')}" + ("" if value is True else f"={value}")
                     for key, value in options.items()]
            expected = self.said("zero-to-fp32", self.trainer, folders[0], *words)
            done, warned = self.warned(dsckpt.convert, self.trainer, folders[1], **options)
            self.assertEqual([note.replace(str(folders[1]), str(folders[0])) for note in done["notes"]], expected)
            self.assertEqual(warned, done["notes"])
        self.assertTrue(any("model.safetensors of another run" in note for note in warned), warned)

    def test_what_has_nothing_to_note_says_so(self):
        done, warned = self.warned(dsckpt.verify, self.checkpoint)
        self.assertEqual((done["notes"], warned), ([], []))

    def test_quiet_results_have_them_too(self):
        for words in (["reshard", self.trainer, self.new_path(), "--dp=3"],
                      ["ckpt-inspect", "tree", self.trainer], ["ckpt-inspect", self.trainer],
                      ["to-universal", self.trainer, self.new_path(), "--dry-run"]):
            loud = self.said(*words, "--dry-run" if words[0] == "reshard" else "--color=never")
            done = tools.run_tool(*words, "--json", "--quiet")
            self.assertEqual(done.stderr, "")
            self.assertEqual(json.loads(done.stdout)["data"]["notes"], loud, words)
            self.assertTrue(loud)

    def test_a_filter_makes_an_error_of_them(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error", dsckpt.DsckptWarning)
            with self.assertRaisesRegex(dsckpt.DsckptWarning, "the only checkpoint"):
                dsckpt.inspect(self.trainer)

    def test_open_has_them(self):
        opened, warned = self.warned(dsckpt.open, self.trainer)
        self.assertEqual(warned, opened.notes)
        self.assertIn("the only checkpoint", warned[0])


class TypesTest(ResultsTest):

    def check(self, result, kind):
        self.assertEqual(problems(result, kind)[:3], [])

    def test_results_are_what_their_types_say(self):
        warnings.simplefilter("ignore", dsckpt.DsckptWarning)
        for path in (self.checkpoint, self.trainer, tools.case_named("z0_bf16_full_w2").load_dir):
            outputs = [self.new_path() for _ in range(8)]
            name = dsckpt.list_tensors(path)["tensors"][-1]["name"]
            for done in (dsckpt.convert(path, outputs[0], states=True, safe_serialization=True),
                         dsckpt.convert(path, self.new_path(), dry_run=True, ranks=2),
                         dsckpt.reshard(path, outputs[1], dp=3), dsckpt.to_dcp(path, outputs[2], dp=2),
                         dsckpt.to_universal(path, outputs[3]), dsckpt.average([path, outputs[1]], outputs[7])):
                self.check(done, results.Conversion)
            for done in (dsckpt.pack(path, outputs[4]), dsckpt.pack(path, self.new_path(), dry_run=True),
                         dsckpt.unpack(outputs[4], outputs[5])):
                self.check(done, results.Packing)
            self.check(dsckpt.strip(path, outputs[6], keep="weights"), results.Stripping)
            run = self.new_path("run")
            shutil.copytree(path, run / "save")
            kept, looked = dsckpt.keep(run, to=self.new_path(), interval=0.05)
            self.check(kept, results.Kept)
            self.check(looked, results.Kept)
            self.check(dsckpt.inspect(path), results.Summary)
            self.check(dsckpt.html(path, self.new_path()), results.Summary)
            self.check(dsckpt.tree(path), results.Tree)
            self.check(dsckpt.where(path, name), results.Extents)
            self.check(dsckpt.print(path, name), results.Values)
            self.check(dsckpt.diff(path, outputs[0], all=True), results.Difference)
            self.check(dsckpt.diff(path, outputs[1], states=True), results.Difference)
            for each in (path, *outputs[:5]):
                self.check(dsckpt.list_tensors(each, states=True), results.TensorList)
                self.check(dsckpt.stats(each, states=True).result, results.StatisticsList)
                self.check(dsckpt.verify(each), results.Verification)
                self.check(dsckpt.scan(each), results.Scan)
            for file in pathlib.Path(path).rglob("*.pt"):
                self.check(dsckpt.raw(file), results.RawPickle)

    def test_statistics_are_rows(self):
        """Results are plain values by plain names, as pandas.DataFrame and csv.DictWriter take them."""
        rows = dsckpt.stats(self.checkpoint, states=True)
        self.assertEqual([row["name"] for row in rows], [tensor["name"] for tensor in rows.result["tensors"]])
        self.assertTrue(any(row.get("state") == "exp_avg" for row in rows))
        for row, tensor in zip(rows, rows.result["tensors"]):
            facts = {key: value for key, value in tensor.items() if key != "stats"}
            self.assertEqual(row, {"state": "", "alias_of": "", **facts, **tensor["stats"]})
            self.assertEqual(list(row)[:3], ["name", "state", "alias_of"])
            self.assertTrue({"mean", "std", "norm", "min", "max", "zeros", "count"} <= set(row))
            self.assertFalse(any(isinstance(value, dict) for value in row.values()))
        self.assertEqual(rows["totals"], rows.totals)
        self.assertEqual((rows.finite, rows.notes), (rows["finite"], rows["notes"]))
        again = pickle.loads(pickle.dumps(rows))
        self.assertEqual((again, again.result), (rows, rows.result))
        self.assertIsInstance(rows, list)

    def test_what_is_damaged_is_of_these_types_too(self):
        warnings.simplefilter("ignore", dsckpt.DsckptWarning)
        scratch = self.scratch(STAGE_2)
        cli_common.flip(scratch.optim(1), scratch.optim(1).stat().st_size // 2)
        self.check(dsckpt.verify(scratch.folder, finite=True), results.Verification)
        scratch.optim(1).unlink()
        found = dsckpt.verify(scratch.folder)
        self.assertFalse(found["ok"])
        self.check(found, results.Verification)
        self.check(dsckpt.list_tensors(scratch.folder), results.TensorList)
        self.check(dsckpt.inspect(scratch.folder), results.Summary)

    def test_a_wrong_type_is_found(self):
        """It shows that problems() can say no."""
        right = dsckpt.scan(self.checkpoint)
        self.assertEqual(problems(right, results.Scan), [])
        for change in ({"pickles": "3"}, {"class": "good"}, {"more": 1}, {"findings": [{"class": "unknown"}]},
                       {"not_examined": [1]}, {"files": True}):
            self.assertTrue(problems({**right, **change}, results.Scan), change)
        self.assertTrue(problems({key: right[key] for key in right if key != "notes"}, results.Scan))


class SeveralTest(ResultsTest):

    def run_folder(self):
        """A run with two tags; the older one is damaged."""
        scratch = self.scratch(STAGE_2)
        tag = scratch.optim(1).parent
        older = tag.with_name("global_step2")
        shutil.copytree(tag, older)
        damaged = older / scratch.optim(1).name
        cli_common.flip(damaged, damaged.stat().st_size // 2)
        return scratch.folder

    def test_several_paths_have_a_result_each(self):
        other = tools.case_named("z1_fp32_w2").load_dir
        for paths in ((self.checkpoint, other), ([self.checkpoint, other],), ([str(other)],)):
            count = sum(len(each) if isinstance(each, list) else 1 for each in paths)
            scanned, verified = dsckpt.scan(*paths), dsckpt.verify(*paths)
            self.assertEqual((len(scanned), len(verified)), (count, count))
            self.assertEqual(scanned[-1], dsckpt.scan(other))
            self.assertEqual(verified[-1], dsckpt.verify(other))
        self.assertIsInstance(dsckpt.scan(other), dict)

    def test_every_tag_of_a_run(self):
        folder = self.run_folder()
        for found in (dsckpt.verify(folder, tag="all"), dsckpt.verify([folder], tag="all")):
            self.assertEqual([each["ok"] for each in found], [False, True])
            self.assertIn("global_step2", found[0]["folder"])
            self.assertIn("global_step3", found[1]["folder"])
        whole = shutil.copytree(self.checkpoint, self.new_path())
        shutil.copytree(whole / "global_step3", whole / "global_step2")
        written = dsckpt.convert(whole, self.new_path(), tag="all")
        self.assertEqual([pathlib.Path(each["output"]).name for each in written["all"]],
                         ["global_step2", "global_step3"])
        self.assertEqual(written["output"], written["all"][-1]["output"])
        self.assertEqual(problems(written, results.Conversion), [])

    def test_one_that_is_not_there_stops_no_other(self):
        with self.assertRaisesRegex(dsckpt.UsageError, "nowhere") as caught:
            dsckpt.verify("nowhere", self.checkpoint)
        self.assertEqual([each["ok"] for each in caught.exception.results], [True])

    def test_the_tool_says_which_and_exits_with_the_worst(self):
        folder = self.run_folder()
        cases = [(["verify", folder, "--tag=all"], 1), (["verify", self.checkpoint, folder], 0),
                 (["verify", folder, "nowhere", self.checkpoint, "--tag=all"], 2),
                 (["verify", folder / "global_step2", self.checkpoint], 1),
                 (["scan", self.checkpoint, self.checkpoint], 0), (["scan", "nowhere", self.checkpoint], 4)]
        for words, status in cases:
            done = tools.run_tool("ckpt-inspect", *words)
            self.assertEqual(done.returncode, status, done.stderr)
            as_json = tools.run_tool("ckpt-inspect", *words, "--json")
            self.assertEqual(as_json.returncode, status)
            answers = [json.loads(line) for line in as_json.stdout.splitlines()]
            headings = [line for line in done.stdout.splitlines() if line.endswith(":")]
            self.assertEqual(len(headings), len(answers), done.stdout)
            if words[0] == "verify":
                self.assertEqual(max(answer["data"].get("status", int(not answer["data"].get("ok")))
                                     for answer in answers), status)
        done = tools.run_tool("ckpt-inspect", "verify", folder, "--tag=all", f"--write-manifest={self.new_path()}")
        self.assertEqual(done.returncode, 2)
        self.assertIn("a manifest is for one checkpoint", done.stderr)


class HintsTest(ResultsTest):

    def test_a_hint_is_the_tools_whole(self):
        """For every mistake of the golden file, as the tool prints it."""
        hints = re.findall(r"^stderr: hint: (.*)$", (GOLDEN / "mistakes.txt").read_text(), re.MULTILINE)
        self.assertGreater(len(hints), 50)
        for hint in hints:
            answer = {"type": "error", "data": {"kind": "usage", "message": "no", "hint": hint}}
            with self.assertRaises(dsckpt.UsageError) as caught:
                dsckpt._tool._results("reshard", 2, json.dumps(answer).encode(), "")
            self.assertEqual(caught.exception.hint, hint)
            self.assertTrue(str(caught.exception).endswith(f"\nhint: {hint}"))

    def test_errors_have_the_hints_that_the_tool_prints(self):
        output = self.new_path()
        dsckpt.convert(self.checkpoint, output)
        pairs = [
            (lambda: dsckpt.convert(self.checkpoint, output), ["zero-to-fp32", self.checkpoint, output]),
            (lambda: dsckpt.convert(self.checkpoint, "o", tag="no"), ["zero-to-fp32", self.checkpoint, "o", "--tag=no"]),
            (lambda: dsckpt.reshard(self.checkpoint, "o"), ["reshard", self.checkpoint, "o"]),
            (lambda: dsckpt.convert("nowhere", "o"), ["zero-to-fp32", "nowhere", "o"]),
            (lambda: dsckpt.convert(self.checkpoint, "o", last=2), ["zero-to-fp32", self.checkpoint, "o", "--last=2"]),
            (lambda: dsckpt.where(self.checkpoint, "gian"), ["ckpt-inspect", "where", self.checkpoint, "gian"]),
            (lambda: dsckpt.raw(self.checkpoint), ["ckpt-inspect", "raw", self.checkpoint]),
        ]
        for call, words in pairs:
            with self.subTest(words), self.assertRaises(dsckpt.Error) as caught:
                call()
            printed = re.search(r"^hint: (.*)$", tools.run_tool(*words).stderr, re.MULTILINE)
            self.assertEqual(caught.exception.hint, printed and printed[1])

    def test_an_option_that_is_none_is_named_as_python_has_it(self):
        for function, options, words in ((dsckpt.convert, {"safe_serialisation": True}, "safe_serialization is one"),
                                         (dsckpt.reshard, {"dp": 2, "stagee": 3}, "stage is one"),
                                         (dsckpt.to_dcp, {"dp": 2, "zzz": 3}, "help(dsckpt.to_dcp) lists them")):
            with self.assertRaises(dsckpt.UsageError) as caught:
                function(self.checkpoint, self.new_path(), **options)
            self.assertEqual(caught.exception.hint, words)
            self.assertNotIn("--", str(caught.exception))


class OptionsTest(ResultsTest):

    def test_the_list_of_options_is_what_the_tools_have(self):
        done = subprocess.run([sys.executable, SOURCE / "scripts" / "write_python_options.py", "--check"],
                              capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_every_option_of_help_is_a_keyword(self):
        import inspect
        not_in_python = {"json", "quiet", "color", "generate", "help", "version", "progress", "group", "rank_timeout",
                         "emit_plan", "portions", "share"}
        for name, words in (("convert", ["zero-to-fp32"]), ("reshard", ["reshard"]), ("to_dcp", ["to-dcp"]),
                            ("to_universal", ["to-universal"]), ("diff", ["ckpt-inspect", "diff"]),
                            ("pack", ["ckpt-pack", "pack"]), ("verify", ["ckpt-inspect", "verify"])):
            shown = set(re.findall(r"^ {2,6}(?:-\w,)?--([a-z][a-z0-9-]+)", tools.run_tool(*words, "--help").stdout,
                                   re.MULTILINE))
            shown = {each.replace("-", "_") for each in shown} - not_in_python - {"input_folder", "output_folder"}
            signature = inspect.signature(getattr(dsckpt, name))
            keywords = {each.name.rstrip("_") for each in signature.parameters.values()
                        if each.kind is inspect.Parameter.KEYWORD_ONLY}
            keywords -= {"progress", "executor", "engine", "engine_options"}
            self.assertEqual(keywords, shown, name)
            for option in shown:
                self.assertRegex(inspect.getdoc(getattr(dsckpt, name)), rf"\b{option}\b")

    def test_types_of_elements_have_their_names(self):
        import numpy
        warnings.simplefilter("ignore", dsckpt.DsckptWarning)
        for dtype in (numpy.float16, numpy.dtype("float16"), "fp16"):
            output = self.new_path()
            dsckpt.convert(self.checkpoint, output, dtype=dtype, safe_serialization=True)
            found = {each["dtype"] for each in dsckpt.list_tensors(output)["tensors"]}
            self.assertIn("float16", found)
            self.assertNotIn("float32", found)


if __name__ == "__main__":
    cli_common.main()
