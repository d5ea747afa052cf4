"""--key-map: rules that rename tensors, cut them and join them, with their optimizer states, in all tools that write."""
import json
import pathlib

import numpy

import cli_common
import tools
import torch_files
from cli_common import CliTest, snapshot

# One of each stage, of each wrapper, with tied and frozen parameters, buffers and two groups.
CASES = ["z0_bf16_full_w2", "z0_fp16_fusedadam_full_w1", "z1_bf16opt_full_w3", "z1_fp32_full_b120_w3",
         "z2_fp32_full_w3", "z2_bf16_roundrobin_full_w3", "z3_bf16_full_subgroups_w4", "z3_fp32_full_w2"]

RULES = r"""
# a name alone
^narrow => slim
^wide\.weight$ => wide.a, wide.b | split 0 33 34
^blocks\.\d+\.mlp\.up_proj\.weight$ => ups.weight | stack 0
^blocks\.(\d+)\.ln_1\.weight$, ^blocks\.(\d+)\.ln_1\.bias$ => blocks.\1.ln_1.both | cat 0
^(tok_emb|head)\.weight$ => \1.upper, \1.lower | split 0 30 7
^frozen_adapter\.0\.weight$ => frozen.upper, frozen.lower | split 0 2 3
^stats\.running_mean$, ^stats\.freq_table$ => stats.table | cat 0
^frozen_adapter\.1\.weight$ => frozen_adapter.*.w | unstack 0
^blocks\.1\.mlp\.1x1\.weight$ => turned | transpose 0 1
"""


def changed(tensors):
    """The results of RULES for arrays by name, without those that a state lacks; the verbs are NumPy's own."""
    made = {}
    for name, value in tensors.items():
        made[name.replace("narrow", "slim", 1) if name.startswith("narrow") else name] = value

    def take(names, make):
        if names[0] in made:
            made.update(make(*[made.pop(name) for name in names]))
    take(["wide.weight"], lambda w: {"wide.a": w[:33], "wide.b": w[33:]})
    take(["blocks.0.mlp.up_proj.weight", "blocks.1.mlp.up_proj.weight"],
         lambda *all_: {"ups.weight": numpy.stack(all_)})
    for block in "01":
        take([f"blocks.{block}.ln_1.weight", f"blocks.{block}.ln_1.bias"],
             lambda *both, block=block: {f"blocks.{block}.ln_1.both": numpy.concatenate(both)})
    for name in ("tok_emb", "head"):
        take([f"{name}.weight"], lambda w, name=name: {f"{name}.upper": w[:30], f"{name}.lower": w[30:]})
    take(["frozen_adapter.0.weight"], lambda w: {"frozen.upper": w[:2], "frozen.lower": w[2:]})
    take(["stats.running_mean", "stats.freq_table"], lambda *both: {"stats.table": numpy.concatenate(both)})
    take(["frozen_adapter.1.weight"], lambda w: {f"frozen_adapter.{i}.w": row for i, row in enumerate(w)})
    take(["blocks.1.mlp.1x1.weight"], lambda w: {"turned": w.T})
    return made


class KeyMapTest(CliTest):

    def rules(self, text=RULES):
        path = self.new_path("rules")
        path.write_text(text)
        return path

    def case(self, name):
        return tools.case_named(name)

    def read(self, output):
        """All arrays of zero-to-fp32 --states, by file; steps; ties."""
        files, said = {}, {}
        for path in sorted(output.rglob("*.safetensors")):
            key = str(path.relative_to(output))
            files[key] = {name: tensor.array for name, tensor in torch_files.load_file(path).items()}
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                said[key] = json.loads(file.read(size)).get("__metadata__", {})
        return files, said

    def assert_same(self, found, wanted):
        self.assertEqual(set(found), set(wanted))
        for file, tensors in wanted.items():
            self.assertEqual(set(found[file]), set(tensors), file)
            for name, array in tensors.items():
                self.assertEqual(found[file][name].shape, array.shape, (file, name))
                self.assertEqual(found[file][name].tobytes(), array.tobytes(), (file, name))

    def weights(self, source, *arguments):
        return self.read(self.convert(source, "--safe-serialization", "--states", "--names", "module", *arguments))

    def changed_weights(self, source):
        """The weights of zero-to-fp32 for the whole, changed by NumPy."""
        files, said = self.weights(source)
        return {file: {name: array.copy(order="C") for name, array in changed(tensors).items()}
                for file, tensors in files.items()}, said

    def run_ok(self, name, *arguments):
        done = self.tool(name, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def refused(self, name, code, *arguments):
        source = pathlib.Path(arguments[0])
        before = snapshot(source)
        output = self.new_path("made") / "out"
        done = self.tool(name, source, output, *arguments[1:])
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertFalse(output.exists())
        self.assertEqual(snapshot(source), before)
        return done.stderr


class ValuesTest(KeyMapTest):

    def test_weights_and_states_are_cut_and_joined(self):
        for name in CASES:
            with self.subTest(name):
                source = self.case(name).load_dir
                wanted, said = self.changed_weights(source)
                found, found_said = self.weights(source, "--key-map", self.rules())
                self.assert_same(found, wanted)
                # A step goes with each part, and a tie with both.
                states = "optimizer_states/exp_avg.safetensors"
                self.assertEqual(found_said[states]["step.wide.a"], said[states]["step.wide.weight"])
                self.assertEqual(found_said[states]["step.wide.b"], said[states]["step.wide.weight"])
                self.assertEqual(found_said["model.safetensors"]["head.upper"], "tok_emb.upper")
                self.assertEqual(found_said["model.safetensors"]["head.lower"], "tok_emb.lower")

    def test_a_resharded_checkpoint_has_them(self):
        for name in CASES:
            with self.subTest(name):
                source = self.case(name).load_dir
                output = self.new_path()
                self.run_ok("reshard", source, output, "--dp", "2", "--key-map", self.rules())
                wanted, _ = self.changed_weights(source)
                self.assert_same(self.weights(output)[0], wanted)
                self.run_ok("ckpt-inspect", "verify", output)

    def test_at_every_stage(self):
        source = self.case("z3_bf16_full_subgroups_w4").load_dir
        wanted, said = self.changed_weights(source)
        for stage in "0123":
            with self.subTest(stage):
                output = self.new_path()
                self.run_ok("reshard", source, output, "--dp", "3", "--stage", stage, "--key-map", self.rules())
                found, found_said = self.weights(output)
                self.assert_same(found, wanted)
                states = "optimizer_states/exp_avg.safetensors"
                self.assertEqual(found_said[states]["step.wide.a"], said[states]["step.wide.weight"])
                self.run_ok("ckpt-inspect", "verify", output)

    def test_a_universal_checkpoint_has_them(self):
        for name in CASES:
            with self.subTest(name):
                source = self.case(name).load_dir
                output = self.new_path()
                self.run_ok("to-universal", source, output, "--key-map", self.rules())
                wanted, _ = self.changed_weights(source)
                found, _ = self.weights(output)
                if self.case(name).stage == 3:  # whose universal checkpoints have no buffers and nothing frozen
                    wanted["model.safetensors"] = {key: wanted["model.safetensors"][key]
                                                   for key in found["model.safetensors"]}
                    self.assertIn("wide.a", found["model.safetensors"])
                self.assert_same(found, wanted)

    def test_a_checkpoint_of_torch_has_them(self):
        for name in CASES[2:5]:
            with self.subTest(name):
                source = self.case(name).load_dir
                output = self.new_path()
                self.run_ok("to-dcp", source, output, "--dp", "2", "--key-map", self.rules())
                wanted, _ = self.changed_weights(source)
                self.assert_same(self.weights(output)[0], wanted)

    def test_weights_that_a_checkpoint_gets(self):
        """The rules are for the files of weights, whose experts are apart where the run has them joined."""
        source = self.case("z2_fp32_full_w3").load_dir
        given = self.convert(source, "--safe-serialization", "--key-map", self.rules(
            r"^(wide)\.weight$ => \1.*.w | unstack 0" + "\n" + r"^narrow => slim"))
        back = self.rules(r"^wide\.\d+\.w$ => wide.weight | stack 0" + "\n" + r"^slim => narrow")
        for arguments in (["--weights-from", given], []):
            with self.subTest(len(arguments)):
                output = self.new_path()
                source_of = source if arguments else given
                like = arguments or ["--like", source]
                self.run_ok("reshard", source_of, output, "--dp", "2", *like, "--key-map", back)
                self.assert_same(self.read(self.convert(output, "--safe-serialization"))[0],
                                 self.read(self.convert(source, "--safe-serialization"))[0])
        output = self.new_path()
        self.run_ok("to-universal", given, output, "--key-map", back)
        found = self.read(self.convert(output, "--safe-serialization"))[0]["model.safetensors"]
        self.assertEqual(found["wide.weight"].shape, (67, 11))
        self.assertIn("narrow.weight", found)

    def test_an_optimizer_for_torch_has_them(self):
        source = self.case("z2_fp32_full_w3").load_dir
        output = self.convert(source, "--torch-optimizer", "--key-map", self.rules())
        with torch_files.edited(output / "optimizer.pt") as state:
            names = [name for group in state["param_groups"] for name in group["param_names"]]
            self.assertEqual(len(names), len(set(names)))
            self.assertEqual(set(range(len(names))), set(state["state"]))
            at = {name: state["state"][number] for number, name in enumerate(names)}
        wanted, _ = self.changed_weights(source)
        for key in ("exp_avg", "exp_avg_sq"):
            for name, array in wanted[f"optimizer_states/{key}.safetensors"].items():
                self.assertEqual(at[name][key].array.tobytes(), array.tobytes(), name)


class RefusalsTest(KeyMapTest):
    SOURCE = "z2_fp32_full_w3"

    def test_rules_that_do_not_fit(self):
        source = self.case(self.SOURCE).load_dir
        for rule, says in [
            ("^nothing => else", "no rule fits the name of a tensor: "),
            (r"^wide\.weight$ => a, b | chunk 0", r"1: of 'a': .*\[67, 11\]"),
            (r"^wide\.weight$ => a, b | chunk 2", "no dimension 2"),
            (r"^wide\.weight$ => a, b | halve 0", "'halve 0' is not an operation"),
            (r"^(wide|narrow)\.weight$ => a", "'narrow.weight' gets the name 'a' of another tensor"),
            (r"^wide\.weight$ => a, narrow.weight | split 0 66 1", "gets the name 'narrow.weight' of another tensor"),
            (r"^blocks\.(\d+)\.mlp\.(up_proj\.|1x1\.)weight$ => ups | stack 0", "not numbered from 0 on"),
            (r"^blocks\.1\.ln_1\.(weight|bias)$ => both | cat 0", "not numbered from 0 on"),
            (r"^wide\.weight$, ^thin => both | cat 0", "there is no '\\^thin' for 'both'"),
            (r"^wide\.weight$, ^narrow\.weight$ => both | cat 0", "become one"),
        ]:
            for tool, arguments in [("zero-to-fp32", []), ("reshard", ["--dp", "2"]), ("to-universal", []),
                                    ("to-dcp", ["--dp", "2"])]:
                with self.subTest(rule, tool=tool):
                    self.assertRegex(
                        self.refused(tool, 2, source, *arguments, "--key-map", self.rules(rule + "\n")), says)

    def test_parameters_that_are_unlike(self):
        source = self.case(self.SOURCE).load_dir
        for rule, says in [
            (r"^tok_emb\.weight$, ^stats\.\w+$ => both | cat 0", "'.*stats"),
            (r"^conv\.bias$, ^stats\.running_mean$ => both | cat 0", "is buffer, 'conv.bias' trainable"),
        ]:
            with self.subTest(rule):
                said = self.tool("reshard", source, self.new_path(), "--dp", "2", "--key-map", self.rules(rule))
                self.assertIn(said.returncode, (2, 3), said.stderr)
                self.assertRegex(said.stderr, says)
        # One of two names of a parameter.
        for tool, arguments in [("reshard", ["--dp", "2"]), ("to-universal", []), ("to-dcp", ["--dp", "2"])]:
            said = self.refused(tool, 3, source, *arguments, "--key-map",
                                self.rules(r"^tok_emb\.weight$ => upper, lower | split 0 30 7"))
            self.assertIn("head.weight: is tied to 'tok_emb.weight', which --key-map turns into something else", said)

    def test_parameters_of_two_groups(self):
        source = self.case("z1_fp32_tinygroup_w4").load_dir
        rules = self.rules("^temperature$, ^gain$ => both | cat 0")
        for tool, arguments in [("reshard", ["--dp", "2"]), ("to-universal", []), ("to-dcp", ["--dp", "2"]),
                                ("zero-to-fp32", ["--torch-optimizer"])]:
            with self.subTest(tool):
                said = self.refused(tool, 3, source, *arguments, "--key-map", rules)
                self.assertIn("gain: is in a different group of the optimizer than 'temperature'", said)

    def test_parameters_that_were_stepped_unlike(self):
        source = self.new_path("universal")
        self.run_ok("to-universal", self.case(self.SOURCE).load_dir, source)
        rules = self.rules(r"^blocks\.0\.ln_1\.weight$, ^blocks\.0\.ln_1\.bias$ => both | cat 0")
        self.run_ok("zero-to-fp32", source, self.new_path(), "--states", "--key-map", rules)
        with torch_files.edited(source / "zero" / "blocks.0.ln_1.bias" / "step.pt") as step:
            step.array[...] += 1
        for tool, arguments in [("zero-to-fp32", ["--states"]), ("to-universal", []), ("to-dcp", ["--dp", "2"])]:
            with self.subTest(tool):
                said = self.refused(tool, 3, source, *arguments, "--key-map", rules)
                self.assertIn("blocks.0.ln_1.bias: was stepped a different number of times than 'blocks.0.ln_1.weight'",
                              said)

    def test_a_part_of_what_was_lost(self):
        scratch = self.scratch(self.SOURCE)
        scratch.optim(2).unlink()
        said = self.refused("zero-to-fp32", 2, scratch.folder, "--allow-missing", "--key-map",
                            self.rules(r"^wide\.weight$ => a, b | split 0 33 34"))
        self.assertIn("'wide.weight' is incomplete", said)

    def test_a_model_that_is_split_over_ranks(self):
        source, = (case.load_dir for case in tools.model_parallel_cases() if case.name == "pp2_dp2_z1_bf16")
        rules = self.rules(r"^(\d+)\. => layers.\1.")
        for tool, arguments in [("reshard", ["--dp", "2"]), ("to-universal", [])]:
            self.assertIn("split over ranks", self.refused(tool, 3, source, *arguments, "--key-map", rules))
        self.run_ok("to-dcp", source, self.new_path(), "--dp", "2", "--key-map", rules)

    def test_a_file_that_is_too_long(self):
        source = self.case(self.SOURCE).load_dir
        long = self.new_path("long")
        with open(long, "wb") as file:
            file.truncate((16 << 20) + 1)
        self.assertIn(f"{long}: is too long for rules of names",
                      self.refused("zero-to-fp32", 2, source, "--key-map", long))
        self.assertIn(f"{long}: is too long for names of parameters",
                      self.refused("zero-to-fp32", 2, source, "--param-names", long))
        self.assertIn(f"{long}: is too long for a configuration",
                      self.refused("reshard", 2, source, "--dp", "2", "--ds-config", long))

    def test_a_rule_of_no_use_is_noted(self):
        source = self.case(self.SOURCE).load_dir
        rules = self.rules("^nothing => else\n^wide => broad\n")
        for tool, arguments in [("zero-to-fp32", []), ("reshard", ["--dp", "2"]), ("to-universal", []),
                                ("to-dcp", ["--dp", "2"])]:
            done = self.run_ok(tool, source, self.new_path(), *arguments, "--key-map", rules)
            self.assertIn(f"note: {rules}:1: fits no name", done.stderr, tool)


if __name__ == "__main__":
    cli_common.main()
