"""The command line of zero-to-fp32: spellings, selections and output places."""
import collections
import json
import os
import re
import shutil
import subprocess

import cli_common
import tools
import torch_files
from cli_common import CliTest, snapshot
from edits import edited

FULL = "z2_fp32_full_w3"  # tied and frozen parameters, buffers, two groups
SMALL = "z2_bf16_w2"
BIN = "pytorch_model.bin"
SAFE = "model.safetensors"


class SpellingTest(CliTest):

    def setUp(self):
        super().setUp()
        self.ckpt = self.scratch(FULL)
        self.reference = {}

    def files(self, *arguments, source=None):
        """The files of a run with these arguments: name -> bytes."""
        output = self.convert(source or self.ckpt.folder, *arguments)
        return {path.name: path.read_bytes() for path in output.iterdir()}

    def test_every_spelling_of_deepspeeds_options_means_the_same(self):
        tag = self.ckpt.case.facts["tag"]
        groups = [
            [["--safe_serialization"], ["--safe-serialization"], ["--safe"], ["--safe_ser"], ["--safe-s"]],
            [["--max_shard_size", "9KB", "--safe"], ["--max-shard-size=9KB", "--safe"], ["--max_shard=9kb", "--safe"],
             ["--max", "9 KB", "--safe"], ["--safe", "--max_shard_size=9.0KB"], ["--safe", "--max-s", "0.009MB"]],
            [["-t", tag], [f"-t{tag}"], ["--tag", tag], [f"--tag={tag}"], [f"--ta={tag}"], []],
            [["--exclude_frozen_parameters"], ["--exclude-frozen-parameters"], ["--exclude_f"], ["--exclude-fro"]],
            [["--dtype", "bf16"], ["--dtype=bfloat16"], ["--dty", "BF16"], ["--dtype", "BFloat16"]],
            [["--dtype", "fp16"], ["--dtype", "float16"], ["--dtype=FP16"]],
            [[], ["-d"], ["--debug"], ["--deb"], ["--dtype", "fp32"], ["--dtype=float32"], ["--threads", "1"],
             ["--fsync"], ["--verify"], ["--force"], ["-q"], ["--quiet"], ["--progress=never"]],
        ]
        for group in groups:
            expected = self.files(*group[0])
            for spelling in group[1:]:
                with self.subTest(spelling=spelling):
                    self.assertEqual(self.files(*spelling), expected)

    def test_options_may_stand_before_between_and_after_the_folders(self):
        expected = self.files("--safe")
        for place in range(3):
            output = self.new_path()
            arguments = [self.ckpt.folder, output]
            arguments.insert(place, "--safe_serialization")
            self.assertEqual(self.zero_to_fp32(*arguments).returncode, 0)
            self.assertEqual((output / SAFE).read_bytes(), expected[SAFE])
        output = self.root / "-out"
        done = self.zero_to_fp32("--safe", "--", os.path.relpath(self.ckpt.folder, self.root), "-out", cwd=self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((output / SAFE).read_bytes(), expected[SAFE])

    def test_usage_errors_exit_with_2_name_the_argument_and_write_nothing(self):
        source = str(self.ckpt.folder)
        output = str(self.root / "never")
        cases = [
            ([], "checkpoint_dir"),
            ([source], "output_dir"),
            ([source, output, "third"], "third"),
            ([source, output, "--nonsense"], "--nonsense"),
            ([source, output, "-z"], "-z"),
            ([source, output, "--ex"], "--ex"),  # --exclude, --exclude-frozen-parameters
            ([source, output, "--dtype", "int8"], "int8"),
            ([source, output, "--dtype"], "--dtype"),
            ([source, output, "--threads", "0"], "--threads"),
            ([source, output, "--threads", "-1"], "--threads"),
            ([source, output, "--threads", "many"], "--threads"),
            ([source, output, "--progress", "sometimes"], "--progress"),
            ([source, output, "--io", "fast"], "--io"),
            ([source, output, "--include", "("], r"--include '\('"),
            ([source, output, "--exclude", "[z-a]"], r"--exclude '\[z-a\]'"),
            ([source, output, "--keep-fp32", "*"], r"--keep-fp32 '\*'"),
            ([source, output, "--include", "no such name"], "no tensor is left"),
            ([source, output, "--exclude", ""], "no tensor is left"),
            ([str(self.root / "nowhere"), output], "nowhere"),
        ]
        for size in ["", "5", "GB", "5XB", "5IB", "-1GB", "0GB", "nanGB", "infGB", "1e99TB", "5 G B", "5GB5"]:
            cases.append(([source, output, f"--max_shard_size={size}"], "max-shard-size|shard size"))
        before = snapshot(self.root)
        for arguments, pattern in cases:
            with self.subTest(arguments=arguments[1:]):
                done = self.zero_to_fp32(*arguments)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(done.stderr, pattern)
                self.assertTrue(done.stderr.startswith("zero-to-fp32: error: "), done.stderr)
                self.assertEqual(done.stdout, "")
                with_json = self.zero_to_fp32(*arguments, "--json")
                self.assertEqual(self.error_of(with_json, 2)["kind"], "usage")
        self.assertEqual(snapshot(self.root), before)

    def test_help_and_version_answer_on_stdout(self):
        for name in ["zero-to-fp32", "ckpt-inspect"]:
            version = self.tool(name, "--version")
            self.assertEqual((version.returncode, version.stderr), (0, ""))
            self.assertRegex(version.stdout, rf"\A{name} \d+\.\d+.*oneTBB.*\nfeatures: .*\n\Z")
            text = self.tool(name, "--help")
            self.assertEqual((text.returncode, text.stderr), (0, ""))
            self.assertIn("Exit status:", text.stdout)
            self.assertEqual(text.stdout, self.tool(name, "-h").stdout)
        text = self.zero_to_fp32("--help").stdout
        for option in ["--tag", "--safe-serialization", "--max-shard-size", "--exclude-frozen-parameters", "--dtype",
                       "--keep-fp32", "--include", "--exclude", "--strip-prefix", "--hf-config", "--dry-run",
                       "--force", "--verify", "--json", "--threads", "--progress", "--quiet"]:
            self.assertIn(option, text)

    def test_sizes_may_be_in_powers_of_1024(self):
        scratch = self.scratch(SMALL)
        for size, files in [("6KiB", None), ("1GiB", 1), ("1gib", 1)]:
            output = self.new_path()
            done = self.zero_to_fp32(scratch.folder, output, "--safe-serialization", "--max-shard-size", size)
            self.assertEqual(done.returncode, 0, done.stderr)
            shards = list(output.glob("*.safetensors"))
            self.assertEqual(len(shards) if files else len(shards) > 1, files or True)

    def test_flags_may_have_pythons_booleans_behind_them(self):
        scratch = self.scratch(SMALL)
        for value, name in [("True", "model.safetensors"), ("true", "model.safetensors"), ("False", "pytorch_model.bin")]:
            output = self.new_path()
            done = self.zero_to_fp32("--safe_serialization", value, scratch.folder, output)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual([path.name for path in output.iterdir()], [name])
        for flag in ("-d", "-q"):
            self.assertEqual(self.zero_to_fp32(scratch.folder, self.new_path(), flag, "True").returncode, 0)


class ReportTest(CliTest):

    def setUp(self):
        super().setUp()
        self.ckpt = self.scratch(FULL)

    def test_results_are_on_stdout_and_messages_on_stderr(self):
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path())
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Azero-to-fp32: 30 tensors in 1 file, .*\nzero-to-fp32: next: .*\n\Z")
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "--json")
        self.assertEqual(done.stderr, "")
        self.assertEqual([line["type"] for line in self.json_lines(done.stdout)], ["done"])
        quiet = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "-q")
        self.assertEqual((quiet.stdout, quiet.stderr), ("", ""))
        debug = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "-d", "-q")
        self.assertEqual(debug.stdout, "")
        self.assertEqual(json.loads(debug.stderr)["zero_stage"], 2)

    def test_notes_are_on_stderr_unless_quiet(self):
        with edited(self.ckpt.model()) as state:
            state["module"]["_extra_state"] = {"not": "a tensor"}
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "--dry-run")
        self.assertRegex(done.stderr, r"\Azero-to-fp32: note: '_extra_state' .*not a tensor.*\n\Z")
        self.assertNotIn("_extra_state", done.stdout)
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "--dry-run", "--quiet")
        self.assertEqual(done.stderr, "")

    def test_types_that_hold_smaller_numbers_are_noted(self):
        for name, dtype, noted in ((SMALL, "fp16", True), (FULL, "fp16", True), ("z2_fp16_w2", "fp16", False),
                                   (SMALL, "bf16", False), (SMALL, "fp32", False), ("pp2_dp1_z1_bf16", "fp16", True),
                                   ("pp2_dp1_z1_fp16", "fp16", False), ("z3_bf16_w2", "fp16", True)):
            done = self.zero_to_fp32(tools.case_named(name).load_dir, self.new_path(), "--dtype", dtype)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("numbers above 65504 become infinite" in done.stderr, noted, (name, dtype))

    def test_a_dry_run_fails_as_the_run_would(self):
        taken = self.convert(self.ckpt.folder)
        before = snapshot(self.root)
        file = next(taken.iterdir()) / "below"
        for output, status, said in ((taken, 2, "exists already"), (file, 4, "is not a folder")):
            for arguments in ([], ["--json"]):
                done = self.zero_to_fp32(self.ckpt.folder, output, "--dry-run", *arguments)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(said, done.stderr)
                self.assertIn("writes", done.stdout.replace("bytes_written", "writes"))  # the plan is shown all the same
                if arguments:
                    lines = self.json_lines(done.stdout)
                    self.assertEqual([line["type"] for line in lines], ["plan", "error"])
                    self.assertEqual(lines[1]["data"]["status"], status)
        self.assertEqual(self.zero_to_fp32(self.ckpt.folder, taken, "--dry-run", "--force").returncode, 0)
        for tool, arguments in (("to-universal", []), ("reshard", ["--dp=1"])):
            done = self.tool(tool, self.ckpt.folder, file, "--dry-run", *arguments)
            self.assertNotEqual(done.returncode, 0, done.stderr)
        self.assertEqual(snapshot(self.root), before)

    def test_a_dry_run_writes_nothing_and_tells_what_the_run_does(self):
        for arguments in [["--safe"], [], ["--max-shard-size", "9KB"], ["--max-shard-size", "9KB", "--safe"]]:
            with self.subTest(arguments=arguments):
                output = self.new_path()
                before = snapshot(self.root)
                planned = self.zero_to_fp32(self.ckpt.folder, output, "--json", "--dry-run", *arguments)
                text = self.zero_to_fp32(self.ckpt.folder, output, "--dry-run", *arguments)
                self.assertEqual((planned.returncode, text.returncode), (0, 0))
                self.assertEqual(snapshot(self.root), before)
                plan, = self.json_lines(planned.stdout)
                self.assertEqual(plan["type"], "plan")
                plan = plan["data"]

                done, = self.json_lines(
                    self.zero_to_fp32(self.ckpt.folder, output, "--json", *arguments).stdout)
                self.assertEqual(done["type"], "done")
                done = done["data"]
                self.assertEqual(done["output"], str(output))
                self.assertEqual({key: done[key] for key in plan if key not in ("bytes_read", "notes")},
                                 {key: plan[key] for key in plan if key not in ("bytes_read", "notes")})
                self.assertLessEqual(set(plan["notes"]), set(done["notes"]))
                # The run also reads the padding of records whose checksum it verifies.
                self.assertGreaterEqual(done["bytes_read"], plan["bytes_read"])
                self.assertGreater(done["records_checked"], 0)

                written = {path.name: path.stat().st_size for path in output.iterdir()}
                self.assertEqual({file["path"]: file["bytes"] for file in plan["files"]}, written)
                self.assertEqual(plan["bytes_written"], sum(written.values()))
                for name, size in written.items():
                    self.assertRegex(text.stdout, rf"(?m)^{re.escape(name)}: \S+ K?B$")
                for file in plan["files"]:
                    if "tensors" not in file:
                        self.assertTrue(file["path"].endswith(".index.json"))
                        continue
                    load = torch_files.load_file if file["path"].endswith(".safetensors") else torch_files.load
                    stored = {t["name"]: t for t in file["tensors"]
                              if "alias_of" not in t or file["path"].endswith(".bin")}
                    actual = load(output / file["path"])
                    self.assertEqual(sorted(stored), sorted(actual))
                    for name, tensor in actual.items():
                        self.assertEqual(stored[name]["shape"], list(tensor.shape))
                        self.assertEqual(stored[name]["dtype"], tensor.dtype)
                        self.assertEqual(stored[name]["bytes"], tensor.nbytes)

    def test_progress_is_drawn_or_written_when_asked_for(self):
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "--progress=json", "-q")
        lines = self.json_lines(done.stderr)
        self.assertTrue(lines, "no progress")
        for line in lines:
            self.assertEqual(line["type"], "progress")
            self.assertLessEqual(line["data"]["bytes_done"], line["data"]["bytes_total"])
        self.assertEqual(lines[-1]["data"]["bytes_done"], lines[-1]["data"]["bytes_total"])
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "--progress=always")
        self.assertRegex(done.stderr, r"\[#{30}\] 100 %")
        self.assertRegex(done.stderr, r"\nzero-to-fp32: 30 tensors")
        for arguments in [["--progress=never"], ["--progress=auto"], []]:  # stderr is not a terminal here
            done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), *arguments)
            self.assertNotIn("%", done.stderr)

    def test_a_reader_that_closed_stdout_is_no_crash(self):
        for arguments in [["--json"], ["--dry-run"], ["--json", "--dry-run"], ["--help"]]:
            read, write = os.pipe()
            os.close(read)
            with open(write, "w") as closed:
                done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), *arguments, capture_output=False,
                                         stdout=closed, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stderr), (0, ""), arguments)

    def test_results_that_cannot_be_written_to_stdout_are_an_io_error(self):
        for tool, arguments in [("zero-to-fp32", [self.new_path(), "--dry-run"]),
                                ("ckpt-inspect", [])]:
            verb = ["list"] if tool == "ckpt-inspect" else []
            with open("/dev/full", "w") as full:
                done = self.tool(tool, *verb, self.ckpt.folder, *arguments, capture_output=False, stdout=full,
                                 stderr=subprocess.PIPE)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertRegex(done.stderr, "No space left")

    def test_an_output_that_is_there_is_no_error_if_nobody_can_be_told(self):
        output = self.new_path()
        with open("/dev/full", "w") as full:
            done = self.zero_to_fp32(self.ckpt.folder, output, "--json", capture_output=False, stdout=full,
                                     stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "note: cannot write to standard output.*the output is complete")
        self.assertTrue((output / BIN).exists())


class SelectionTest(CliTest):

    def setUp(self):
        super().setUp()
        self.ckpt = self.scratch(FULL)
        self.truth = self.ckpt.case.truth()

    def assert_tensors(self, expected, *arguments):
        """`expected`: name -> tensor, aliases included, as .bin has them."""
        output = self.convert(self.ckpt.folder, *arguments)
        tensors = torch_files.load(output / BIN)
        self.assertEqual(sorted(tensors), sorted(expected))
        for name, value in expected.items():
            self.assertTrue(torch_files.same_bits(tensors[name], value), name)
        return tensors

    def only(self, condition):
        return {name: value for name, value in self.truth.items() if condition(name)}

    def test_include_and_exclude_search_the_names(self):
        self.assert_tensors(self.only(lambda n: "ln_1" in n), "--include", "ln_1")
        self.assert_tensors(self.only(lambda n: n.startswith("blocks.0.") or "bias" in n),
                            "--include", r"^blocks\.0\.", "--include", "bias$")
        self.assert_tensors(self.only(lambda n: "ln_1" not in n and not n.startswith("stats.")),
                            "--exclude", "ln_1", "--exclude=^stats")
        self.assert_tensors(self.only(lambda n: "bias" in n and "ln" not in n), "--include=bias", "--exclude=ln")

    def test_an_alias_without_its_owner_stands_alone(self):
        self.assert_tensors(self.only(lambda n: n != "tok_emb.weight"), "--exclude", "tok_emb")
        tensors = self.assert_converts(self.ckpt.folder, "--include", "head.weight")
        self.assertEqual(list(tensors), ["head.weight"])
        self.assertTrue(torch_files.same_bits(tensors["head.weight"], self.truth["head.weight"]))

    def test_an_alias_of_another_type_than_its_owner_is_stored_itself(self):
        tensors = self.assert_converts(self.ckpt.folder, "--dtype=bf16", "--keep-fp32", "^head.weight$",
                                       "--include=tok_emb|head.weight")
        wide = self.truth["tok_emb.weight"]
        self.assertEqual(sorted(tensors), ["head.weight", "tok_emb.weight"])
        self.assertTrue(torch_files.same_bits(tensors["head.weight"], wide))
        self.assertTrue(torch_files.same_bits(tensors["tok_emb.weight"], wide.to("bfloat16")))

    def test_keep_fp32_leaves_what_it_finds_wide(self):
        expected = self.ckpt.case.truth(dtype="bfloat16", keep_fp32="ln_|bias")
        self.assertEqual({v.dtype for v in expected.values() if v.is_floating_point()},
                         {"float32", "bfloat16"})
        self.assert_tensors(expected, "--dtype", "bf16", "--keep-fp32", "ln_", "--keep_fp32=bias")

    def test_excluding_frozen_parameters_keeps_buffers(self):
        frozen = set(self.ckpt.case.facts["frozen"])
        self.assertTrue(frozen)
        self.assert_tensors(self.only(lambda n: n not in frozen), "--exclude_frozen_parameters")

    def test_a_prefix_is_taken_from_names_that_have_it_once(self):
        def strip(name):
            return name.removeprefix("blocks.0.") if name.startswith("blocks.0.") else name.removeprefix("blocks.")

        self.assert_tensors({strip(n): v for n, v in self.truth.items()},
                            "--strip-prefix", "blocks.0.", "--strip_prefix=blocks.")
        self.assert_tensors(self.truth, "--strip-prefix", "module.")
        # Nothing of such a name would be left.
        self.assert_tensors(self.truth, "--strip-prefix", "temperature")
        # Patterns mean the names that the checkpoint has.
        self.assert_tensors({n.removeprefix("blocks."): v for n, v in self.truth.items() if n.startswith("blocks.")},
                            "--include", "^blocks", "--strip-prefix=blocks.")

    def test_weights_of_another_run_in_the_folder_are_left_there_by_force_alone(self):
        output = self.convert(self.ckpt.folder, "--safe")
        before = snapshot(output)
        done = self.zero_to_fp32(self.ckpt.folder, output, "--safe", "--max-shard-size", "2KB")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"holds {SAFE} of another run", done.stderr)
        self.assertIn("--force", done.stderr)
        self.assertEqual(snapshot(output), before)
        # The same files are not different ones: they exist already.
        done = self.zero_to_fp32(self.ckpt.folder, output, "--safe")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(f"{SAFE}: exists already", done.stderr)
        done = self.zero_to_fp32(self.ckpt.folder, output, "--safe", "--max-shard-size", "2KB", "--force")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"note: {SAFE} of another run stays in {output}", done.stderr)
        # Notes that differ in a name alone are printed once; JSON has all.
        for more, printed in (((), 1), (("--json",), 11)):
            copy = self.new_path()
            shutil.copytree(output, copy)
            done = self.zero_to_fp32(self.ckpt.folder, copy, "--safe", "--include", "gain", "--force", *more)
            self.assertEqual(done.returncode, 0, done.stderr)
            text = done.stdout if more else done.stderr
            self.assertEqual(text.count("of another run stays in"), printed, text)
            self.assertIn("; likewise 'model-0000", done.stderr)
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "--safe")
        self.assertNotIn("another run", done.stderr)

    def test_names_that_collide_after_stripping_are_refused(self):
        self.assert_refused(self.ckpt.folder, 2, r"'blocks\.1\.mlp.* the name 'mlp\.up_proj\.weight' of another tensor",
                            "--strip-prefix", "blocks.0.", "--strip-prefix", "blocks.1.", inspect=False)

    def test_threads_do_not_change_a_byte(self):
        expected = (self.convert(self.ckpt.folder, "--threads", "1") / BIN).read_bytes()
        for threads in [2, 7, 64]:
            self.assertEqual((self.convert(self.ckpt.folder, f"--threads={threads}") / BIN).read_bytes(), expected)


class HfConfigTest(CliTest):

    def setUp(self):
        super().setUp()
        self.ckpt = self.scratch("hf_trainer_gpt2_z2_bf16_w2")

    def test_configuration_files_are_copied_byte_for_byte_and_nothing_else(self):
        model = self.new_path("model")
        model.mkdir()
        wanted = {"config.json": b'{"a": 1}', "generation_config.json": b"{}", "tokenizer.json": os.urandom(70001),
                  "tokenizer.model": b"\0\1", "merges.txt": b"", "modeling_custom.py": b"pass\n"}
        for name, content in {**wanted, SAFE: b"old", BIN: b"old", "trainer_state.json": b"{}", "x.py": b""}.items():
            (model / name).write_bytes(content)
        before = snapshot(model)
        output = self.convert(self.ckpt.folder, "--safe", "--hf-config", model)
        copied = {path.name: path.read_bytes() for path in output.iterdir()}
        self.assertNotEqual(copied.pop(SAFE), b"old")
        self.assertEqual(copied, wanted)
        self.assertEqual(snapshot(model), before)

    def test_the_checkpoint_folder_itself_can_be_the_model_folder(self):
        output = self.convert(self.ckpt.folder, "--safe", "--hf-config", self.ckpt.folder)
        self.assertEqual(sorted(path.name for path in output.iterdir()),
                         ["config.json", "generation_config.json", SAFE])

    def test_a_folder_without_config_is_a_usage_error(self):
        empty = self.new_path("empty")
        empty.mkdir()
        self.assert_refused(self.ckpt.folder, 2, "has no config.json", "--hf-config", empty)
        self.assert_refused(self.ckpt.folder, 2, "nowhere", "--hf-config", self.root / "nowhere")
        self.assert_refused(self.ckpt.folder, 2, "config.json", "--hf-config", self.ckpt.folder / "config.json")

    CONFIG = """{ "torch_dtype":"torch.bfloat16","big": 1000000000000000019884624838656, "tiny":1e-400,
\t"text_config": {"dtype": "bfloat16", "vision_config": {"torch_dtype": "float16"}, "dtypes": ["bfloat16"]},
  "quantization_config": {"dtype": "bfloat16"}, "x": {"dtype": "bfloat16"}, "é": "bfloat16", "a": {"dtype": null}}
"""

    def test_what_lies_beside_the_checkpoint_comes_along_and_says_the_type_written(self):
        (self.ckpt.folder / "config.json").write_text(self.CONFIG)
        more = {"tokenizer.json": os.urandom(70001), "tokenizer.model": b"\0", "preprocessor_config.json": b"{}",
                "chat_template.jinja": b"{{ x }}", "modeling_own.py": b"pass\n"}
        for name, content in more.items():
            (self.ckpt.folder / name).write_bytes(content)
        (self.ckpt.folder / "adapter_config.json").write_text("{}")  # from_pretrained would load that instead
        before = snapshot(self.ckpt.folder)
        for arguments, written in (([], "float32"), (["--dtype=fp16"], "float16"), (["--dtype=auto"], "bfloat16"),
                                   (["--dtype=bf16", "--keep-fp32=ln_f"], "bfloat16"),
                                   (["--dtype=bf16", "--keep-fp32=."], "float32")):
            output = self.convert(self.ckpt.folder, *arguments)
            copied = {path.name: path.read_bytes() for path in output.iterdir()}
            expected = self.CONFIG.replace('"torch.bfloat16"', f'"{written}"', 1)
            expected = expected.replace('{"dtype": "bfloat16", "vision', f'{{"dtype": "{written}", "vision')
            expected = expected.replace('{"torch_dtype": "float16"', f'{{"torch_dtype": "{written}"')
            if written == "bfloat16":
                expected = expected.replace('"bfloat16","big"', '"bfloat16","big"')
            self.assertEqual(copied.pop("config.json").decode(), expected)
            weights = torch_files.load(output / BIN)
            del copied[BIN]
            most = collections.Counter()
            for value in weights.values():
                most[value.dtype] += value.numel()
            self.assertEqual(most.most_common(1)[0][0], written)
            del copied["generation_config.json"]
            self.assertEqual(copied, more)
        self.assertEqual(snapshot(self.ckpt.folder), before)

    def test_a_configuration_that_is_no_json_comes_as_it_is(self):
        for text in ("", "{", '{"dtype": "bfloat16"', "[" * 100000, '{"dtype": "bfloat16"} x', "\0"):
            (self.ckpt.folder / "config.json").write_text(text)
            output = self.new_path()
            done = self.zero_to_fp32(self.ckpt.folder, output)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((output / "config.json").read_text(), text)
            self.assertIn("it is not a JSON object, and transformers cannot read it", done.stderr)
            self.assertNotIn("from_pretrained", done.stderr)
            self.assert_refused(self.ckpt.folder, 2, "no config.json with a dtype", "--dtype=auto")

    def test_a_given_configuration_that_is_no_json_is_refused(self):
        model = self.new_path()
        model.mkdir()
        for text in ("", "[]", '{"dtype": "bfloat16"'):
            (model / "config.json").write_text(text)
            self.assert_refused(self.ckpt.folder, 3, "is not a JSON object", f"--hf-config={model}",
                                inspect=False)

    def test_none_copies_none(self):
        for arguments in (["--hf-config", "none"], ["--hf-config=none", "--safe"]):
            output = self.new_path()
            done = self.zero_to_fp32(self.ckpt.folder, output, *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("note", done.stderr)
            self.assertEqual(len(list(output.iterdir())), 1)

    def test_what_transformers_will_miss_is_said(self):
        def said(*arguments):
            done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [line for line in done.stderr.splitlines() if "note" in line]

        no_tokenizer, = said()
        self.assertIn("no tokenizer or processor", no_tokenizer)
        (self.ckpt.folder / "tokenizer_config.json").write_text("{}")
        self.assertEqual(said(), [])
        (self.ckpt.folder / "config.json").unlink()
        no_config, = said()
        self.assertIn("no config.json", no_config)
        self.assertIn("--hf-config DIR", no_config)
        (self.ckpt.folder / "adapter_config.json").write_text("{}")
        adapter, = said()
        self.assertIn("--peft DIR", adapter)
        for name in ("tokenizer_config.json", "generation_config.json", "adapter_config.json"):
            (self.ckpt.folder / name).unlink()
        self.assertEqual(said(), [])  # no sign of transformers at all
        self.assertIn("no config.json", said("--safe")[0])

    def test_files_that_are_there_stay_but_those_of_the_run_before(self):
        mine = {"config.json": b'{"mine": 1}', "generation_config.json": b"mine"}
        for arguments in ([], ["--force"], ["--resume"]):
            output = self.new_path()
            output.mkdir()
            for name, content in mine.items():
                (output / name).write_bytes(content)
            done = self.zero_to_fp32(self.ckpt.folder, output, *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            for name, content in mine.items():
                self.assertEqual((output / name).read_bytes(), content)
                self.assertRegex(done.stderr, f"(note: |; likewise '){name}")
            self.assertIn("is in the output folder already, and is not changed", done.stderr)
        output = self.convert(self.ckpt.folder)
        (output / BIN).unlink()
        done = self.zero_to_fp32(self.ckpt.folder, output, "--dtype=fp16")
        self.assertIn("of another type; --force replaces it", done.stderr)
        self.assertIn('"dtype": "float32"', (output / "config.json").read_text())
        done = self.zero_to_fp32(self.ckpt.folder, output, "--dtype=fp16", "--force")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('"dtype": "float16"', (output / "config.json").read_text())

    def test_the_checkpoints_own_files_are_never_touched(self):
        before = {name: (self.ckpt.folder / name).read_bytes() for name in ("config.json", "generation_config.json")}
        for arguments in ([], ["--force"], ["--force", "--dtype=bf16"]):
            done = self.zero_to_fp32(self.ckpt.folder, self.ckpt.folder, *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("config.json is in the output" in done.stderr, "--dtype=bf16" not in arguments)
            for name, content in before.items():
                self.assertEqual((self.ckpt.folder / name).read_bytes(), content)

    def test_a_link_out_of_the_checkpoint_does_not_come_along(self):
        secret = self.new_path("secret")
        secret.write_text("secret")
        (self.ckpt.folder / "tokenizer.json").symlink_to(secret)
        output = self.new_path()
        done = self.zero_to_fp32(self.ckpt.folder, output)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("tokenizer.json is a link out of the checkpoint", done.stderr)
        self.assertFalse((output / "tokenizer.json").exists())

    def test_auto_is_the_configurations_type_or_an_error(self):
        model = self.new_path("model")
        model.mkdir()
        (model / "config.json").write_text('{"text_config": {"torch_dtype": "float16"}}')
        output = self.convert(self.ckpt.folder, "--dtype=auto", "--hf-config", model)
        kinds = {value.dtype for value in torch_files.load(output / BIN).values()}
        self.assertIn("float16", kinds)
        self.assertFalse(kinds & {"float32", "bfloat16"})
        (self.ckpt.folder / "config.json").unlink()
        self.assert_refused(self.ckpt.folder, 2, "--hf-config DIR", "--dtype=auto")


class EveryTagTest(CliTest):
    """--tag all."""

    def setUp(self):
        super().setUp()
        self.ckpt = self.scratch(SMALL)
        self.tag = self.ckpt.case.facts["tag"]
        for number in (9, 20):
            shutil.copytree(self.ckpt.folder / self.tag, self.ckpt.folder / f"global_step{number}")
        (self.ckpt.folder / "notes").mkdir()
        self.tags = sorted([self.tag, "global_step9", "global_step20"])

    def test_each_tag_gets_what_it_gets_by_itself(self):
        for tool, arguments in (("zero-to-fp32", ["--safe"]), ("to-universal", []), ("reshard", ["--dp=3"])):
            output = self.new_path()
            done = self.tool(tool, self.ckpt.folder, output, "--tag", "all", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(path.name for path in output.iterdir() if path.is_dir()), self.tags)
            for tag in self.tags:
                single = self.new_path() / tag
                single.parent.mkdir()
                done = self.tool(tool, self.ckpt.folder, single, "--tag", tag, *arguments)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(cli_common.tree(output / tag), cli_common.tree(single))
            if tool == "to-universal":
                self.assertEqual((output / "latest_universal").read_text(), "global_step20")

    def test_a_trainers_output_has_a_folder_a_checkpoint(self):
        trainer = self.new_path("trainer")
        for step in (5, 10):
            shutil.copytree(self.ckpt.folder, trainer / f"checkpoint-{step}")
        output = self.new_path()
        done = self.zero_to_fp32(trainer, output, "--tag=all", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line["data"]["output"] for line in self.json_lines(done.stdout)],
                         [str(output / "checkpoint-5"), str(output / "checkpoint-10")])

    def test_a_damaged_tag_is_named_and_the_others_are_converted(self):
        next((self.ckpt.folder / "global_step9").glob("*optim_states.pt")).write_bytes(b"x")
        output = self.new_path()
        done = self.zero_to_fp32(self.ckpt.folder, output, "--tag", "all")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("global_step9 is not converted", done.stderr)
        self.assertIn("1 of 3 checkpoints not converted", done.stderr)
        self.assertEqual(sorted(path.name for path in output.iterdir()), sorted({*self.tags} - {"global_step9"}))

    def test_a_tag_that_is_called_all_is_meant(self):
        (self.ckpt.folder / "global_step20").rename(self.ckpt.folder / "all")
        output = self.convert(self.ckpt.folder, "--tag", "all")
        self.assertEqual([path.name for path in output.iterdir()], [BIN])

    def test_a_folder_without_checkpoints_is_an_error(self):
        (self.root / "empty").mkdir()
        for path, status, said in ((self.root / "nothing", 4, "cannot open"), (self.root / "empty", 3, "holds no checkpoints"),
                                   (self.ckpt.folder / self.tag, 3, "give the folder that holds the tags")):
            done = self.zero_to_fp32(path, self.new_path(), "--tag=all")
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(said, done.stderr)
        done = self.zero_to_fp32(self.ckpt.folder, self.new_path(), "--tag=all", "--average", "--last=2")
        self.assertEqual(done.returncode, 2, done.stderr)


class OutputPlaceTest(CliTest):

    def setUp(self):
        super().setUp()
        self.ckpt = self.scratch(SMALL)
        self.expected = (self.convert(self.ckpt.folder) / BIN).read_bytes()

    def assert_written(self, output, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((output / BIN).read_bytes(), self.expected)
        self.assertEqual([p.name for p in output.iterdir() if p.name.startswith(".")], [])

    def test_the_output_may_lie_in_the_checkpoint_folder(self):
        shards = snapshot(self.ckpt.tag)
        self.assert_written(self.ckpt.folder / "out", self.zero_to_fp32(".", "out/", cwd=self.ckpt.folder))
        self.assert_written(self.ckpt.folder, self.zero_to_fp32(".", ".", cwd=self.ckpt.folder))
        self.assertEqual(snapshot(self.ckpt.tag), shards)

    def test_the_output_may_not_lie_in_the_tag_folder(self):
        link = self.new_path("link")
        link.symlink_to(self.ckpt.tag)
        inside = self.ckpt.tag / "deep"
        inside.mkdir()
        before = snapshot(self.root)
        for source, output, folder in [
            (self.ckpt.folder, self.ckpt.tag, None),
            (self.ckpt.folder, self.ckpt.tag / "out", None),
            (self.ckpt.folder, inside / "new" / "out", None),
            (self.ckpt.folder, link, None),
            (self.ckpt.folder, link / "out", None),
            (link, self.ckpt.tag / "out", None),
            (self.ckpt.folder, self.ckpt.folder / "missing" / ".." / self.ckpt.tag.name / "out", None),
            (".", "out", self.ckpt.tag),
            (".", ".", self.ckpt.tag),
            ("..", "out", self.ckpt.tag),
        ]:
            with self.subTest(source=source, output=output):
                done = self.zero_to_fp32(source, output, "--json", "--force", cwd=folder)
                self.assertRegex(self.error_of(done, 2)["message"], "(is|inside) the folder of the shards")
                self.assertEqual(snapshot(self.root), before)

    def test_a_file_in_the_place_of_the_folder_is_refused(self):
        output = self.new_path()
        output.write_text("mine")
        self.assertRegex(self.error_of(self.zero_to_fp32(self.ckpt.folder, output, "--json"), 2)["message"],
                         re.escape(str(output)))
        done = self.zero_to_fp32(self.ckpt.folder, output / "below", "--json")
        self.assertIn(done.returncode, (2, 4))
        self.assertIn(str(output), done.stderr)
        self.assertEqual(output.read_text(), "mine")

    def test_existing_output_is_named_and_replaced_only_by_force(self):
        output = self.new_path()
        (output / "sub").mkdir(parents=True)
        for name in [BIN, "config.json", "sub/" + BIN, "tokenizer.json"]:
            (output / name).write_text("mine")
        before = snapshot(output)
        error = self.error_of(self.zero_to_fp32(self.ckpt.folder, output, "--json"), 2)
        self.assertIn(str(output / BIN), error["message"])
        self.assertIn("--force", error["hint"])
        self.assertEqual(snapshot(output), before)
        self.assert_written(output, self.zero_to_fp32(self.ckpt.folder, output, "--force"))
        after = snapshot(output)
        self.assertEqual({k: v for k, v in after.items() if k != BIN}, {k: v for k, v in before.items() if k != BIN})

    def test_force_replaces_a_link_not_what_it_points_at(self):
        output = self.new_path()
        output.mkdir()
        precious = self.root / "precious"
        precious.write_text("mine")
        (output / BIN).symlink_to(precious)
        self.assertEqual(self.zero_to_fp32(self.ckpt.folder, output).returncode, 2)
        self.assert_written(output, self.zero_to_fp32(self.ckpt.folder, output, "--force"))
        self.assertEqual(precious.read_text(), "mine")
        self.assertFalse((output / BIN).is_symlink())

    def test_a_folder_with_an_outputs_name_is_never_replaced(self):
        output = self.new_path()
        (output / BIN / "x").mkdir(parents=True)
        before = snapshot(output)
        error = self.error_of(self.zero_to_fp32(self.ckpt.folder, output, "--force", "--json"), 2)
        self.assertIn(BIN, error["message"])
        self.assertEqual(snapshot(output), before)

    def test_missing_folders_are_made_and_existing_ones_kept(self):
        output = self.root / "a" / "b" / "c"
        self.assert_written(output, self.zero_to_fp32(self.ckpt.folder, output))
        self.assert_written(self.root / "a", self.zero_to_fp32(self.ckpt.folder, str(self.root / "a") + "/"))
        link = self.new_path("link")
        target = self.new_path("target")
        target.mkdir()
        link.symlink_to(target)
        self.assert_written(target, self.zero_to_fp32(self.ckpt.folder, link))

    def test_the_input_stays_as_it_was(self):
        before = snapshot(self.ckpt.folder)
        for arguments in [[], ["--safe"], ["--verify"], ["--dtype=bf16"]]:
            self.convert(self.ckpt.folder, *arguments)
        self.tool("ckpt-inspect", "list", self.ckpt.folder)
        self.assertEqual(snapshot(self.ckpt.folder), before)


if __name__ == "__main__":
    cli_common.main()
