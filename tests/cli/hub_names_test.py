"""The names of tensors on the hub and in the module of transformers: zero-to-fp32 --names, and back.

NumPy puts the expected tensors together; tests/oracle/hub_names_test.py asks transformers itself.
"""
import json
import os
import pathlib

import numpy

import cli_common
import torch_files
from cli_common import CliTest

EXPERTS, INNER, HIDDEN = 3, 4, 5
LAYER = "model.layers.0."


def config(model="Qwen3MoeForCausalLM", release="5.24.0", **more):
    return {"architectures": [model], "model_type": "qwen3_moe", "transformers_version": release, **more}


def numbers(*shape):
    return numpy.random.default_rng(numpy.prod(shape)).standard_normal(shape).astype("float32")


def module():
    """The tensors of a Qwen3-MoE of one layer, as its module has them."""
    return {"model.embed_tokens.weight": numbers(7, HIDDEN), LAYER + "mlp.gate.weight": numbers(EXPERTS, HIDDEN),
            LAYER + "mlp.experts.gate_up_proj": numbers(EXPERTS, 2 * INNER, HIDDEN),
            LAYER + "mlp.experts.down_proj": numbers(EXPERTS, HIDDEN, INNER), "lm_head.weight": numbers(7, HIDDEN + 1)}


def hub(tensors):
    """The same as files on the hub have them."""
    made = {}
    for name, value in tensors.items():
        for i in range(EXPERTS):
            if name.endswith("experts.gate_up_proj"):
                made[f"{LAYER}mlp.experts.{i}.gate_proj.weight"] = value[i, :INNER]
                made[f"{LAYER}mlp.experts.{i}.up_proj.weight"] = value[i, INNER:]
            elif name.endswith("experts.down_proj"):
                made[f"{LAYER}mlp.experts.{i}.down_proj.weight"] = value[i]
            else:
                made[name] = value
    return made


class HubNamesTest(CliTest):

    def folder(self, tensors, settings):
        folder = self.new_path("model")
        folder.mkdir()
        torch_files.save_file({name: torch_files.tensor(value) for name, value in tensors.items()},
                              folder / "model.safetensors")
        if settings is not None:
            (folder / "config.json").write_text(json.dumps(settings))
        return folder

    def convert(self, folder, *options, code=0):
        output = self.new_path("weights")
        done = self.tool("zero-to-fp32", folder, output, "--safe-serialization", *options)
        self.assertEqual(done.returncode, code, done.stderr)
        if code:
            self.assertFalse(output.exists())
            return None, done.stderr
        return torch_files.load_file(output / "model.safetensors"), done.stderr

    def assert_tensors(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, value in expected.items():
            value = torch_files.tensor(numpy.ascontiguousarray(value))
            self.assertTrue(torch_files.same_bits(found[name], value), name)

    def test_names_are_the_hubs_where_config_json_says_whose_they_are(self):
        for options in ((), ("--names=hub",)):
            found, said = self.convert(self.folder(module(), config()), *options)
            self.assert_tensors(found, hub(module()))
            self.assertEqual(said.count("names are the hub's, as save_pretrained of Qwen3MoeForCausalLM writes them"),
                             0 if options else 1, said)
        # From elsewhere.
        found, _ = self.convert(self.folder(module(), None), "--hf-config", self.folder({}, config()))
        self.assert_tensors(found, hub(module()))

    def test_names_stay_the_modules(self):
        rules = self.new_path("rules")
        rules.write_text("^lm_head => head\n")
        head = {name.replace("lm_head", "head"): value for name, value in module().items()}
        for settings, options, expected, note in (
            (config(), ["--names=module"], module(), ""),
            (config(release="4.57.1"), [], module(), "--names hub writes the hub's"),
            (config("Llama4ForConditionalGeneration", release="4.57.1"), ["--hf-config=none"], module(), ""),
            (config(release=None), [], module(), "config.json names no release of transformers"),
            (config(release=5), [], module(), "config.json names no release of transformers"),
            (config("MyMoe"), [], module(), "no rules are known for the hub's names of MyMoe"),
            (config(auto_map={}), [], module(), "brings its own code"),
            (None, [], module(), "no config.json shows their model"),
            (config(), ["--key-map", rules], head, ""),
        ):
            with self.subTest(settings=settings, options=options):
                found, said = self.convert(self.folder(module(), settings), *options)
                self.assert_tensors(found, expected)
                self.assertNotIn("names are the hub's", said)
                if note:
                    self.assertIn("as transformers 5 has them and few others load them", said)
                    self.assertIn(note, said)

    def test_names_of_the_hub_stay(self):
        for options in ((), ("--names=hub",)):
            found, said = self.convert(self.folder(hub(module()), config()), *options)
            self.assert_tensors(found, hub(module()))
            self.assertNotIn("names", said)

    def test_rules_are_for_the_hubs_names_where_these_are_asked_for(self):
        rules = self.new_path("rules")
        rules.write_text("^lm_head => head\n")
        found, _ = self.convert(self.folder(module(), config()), "--names=hub", "--key-map", rules)
        self.assert_tensors(found, {name.replace("lm_head", "head"): value for name, value in hub(module()).items()})

    def test_a_class_without_rules_gets_a_note(self):
        plain = {name: value for name, value in module().items() if "experts" not in name}
        for model, notes in (("MyMoe", 1), ("LlamaForCausalLM", 0)):
            found, said = self.convert(self.folder(plain, config(model)))
            self.assert_tensors(found, plain)
            note = "names stay as they are: no rules are known for the hub's names of MyMoe"
            self.assertEqual(said.count(note), notes)

    def test_names_behind_a_wrappers_prefix(self):
        for prefix in ("model.", "module.net."):
            wrapped = {prefix + name: value for name, value in module().items()}
            folder, strip = self.folder(wrapped, config()), f"--strip-prefix={prefix}"
            hint = f"--strip-prefix {prefix} takes a wrapper's prefix off"
            found, said = self.convert(folder)
            self.assert_tensors(found, wrapped)
            self.assertIn("names stay the module's, not those of the hub", said)
            self.assertIn(hint, said)
            _, said = self.convert(folder, "--names=hub", code=3)
            self.assertIn(hint, said)
            found, said = self.convert(folder, strip)
            self.assert_tensors(found, hub(module()))
            self.assertIn("names are the hub's", said)
            self.assert_tensors(self.convert(folder, strip, "--names=hub")[0], hub(module()))
            self.assert_tensors(self.convert(folder, strip, "--names=module")[0], module())
            rules = self.new_path("rules")
            rules.write_text("^lm_head => head\n")
            self.assert_tensors(self.convert(folder, strip, "--names=hub", "--key-map", rules)[0],
                                {name.replace("lm_head", "head"): value for name, value in hub(module()).items()})
        # A prefix of the model's own names is taken off the hub's.
        found, said = self.convert(self.folder(module(), config()), "--strip-prefix=model.", "--names=hub")
        self.assert_tensors(found, {name.removeprefix("model."): value for name, value in hub(module()).items()})
        found, said = self.convert(self.folder(module(), config()), "--strip-prefix=model.")
        self.assert_tensors(found, {name.removeprefix("model."): value for name, value in module().items()})

    def test_next_names_no_class_for_names_of_rules(self):
        rules = self.new_path("rules")
        rules.write_text("^model\\. => backbone.\n")
        for options, line in (((), "Qwen3MoeForCausalLM.from_pretrained"),
                              (("--key-map", rules), "next: safetensors.torch.load_model(model, ")):
            _, said = self.convert(self.folder(module(), config()), *options)
            self.assertIn(line, said)

    def test_patterns_are_for_the_modules_names(self):
        found, _ = self.convert(self.folder(module(), config()), "--include=experts.gate_up", "--dtype=bf16",
                                "--keep-fp32=gate_up")
        expected = {name: value for name, value in hub(module()).items() if "gate_proj" in name or "up_proj" in name}
        self.assert_tensors(found, expected)

    def test_what_no_rule_fits_stays_whole_or_is_refused(self):
        wrapped = {**module(), "adapter.weight": numbers(2)}
        odd = {**module(), LAYER + "mlp.experts.gate_up_proj": numbers(EXPERTS, 2 * INNER + 1, HIDDEN)}
        double = {**module(), LAYER + "mlp.experts.1.down_proj.weight": numbers(3)}
        for tensors, why in ((wrapped, "'?adapter.weight'?:? is not a name of Qwen3MoeForCausalLM|"
                              "adapter.weight: --names hub: is not a name of Qwen3MoeForCausalLM"),
                             (odd, "gate_up_proj: the rule of its name does not fit: dimension 1 of .* is cut into 2"),
                             (double, "would be called '.*experts.1.down_proj.weight'")):
            with self.subTest(why):
                folder = self.folder(tensors, config())
                found, said = self.convert(folder)
                self.assert_tensors(found, tensors)
                self.assertRegex(said, "names stay the module's, not those of the hub: ")
                self.assertRegex(said, why)
                _, said = self.convert(folder, "--names=hub", code=3)
                self.assertRegex(said, why)

    def test_what_cannot_be_asked_for(self):
        for settings, options, code, why in (
            (None, ["--names=hub"], 2, "there is no config.json beside the checkpoint"),
            (config("MyMoe"), ["--names=hub"], 3, "no rules are known for the hub's names of MyMoe"),
            (config(), ["--names=hub", "--states"], 2, "--names hub and --states are both given"),
            (config(), ["--names=other"], 2, "hub"),
        ):
            with self.subTest(options=options):
                _, said = self.convert(self.folder(module(), settings), *options, code=code)
                self.assertIn(why, said)

    def test_names_of_the_hub_in_a_wrapper_are_not_translated_again(self):
        aria = config("AriaModel", "5.0.0", model_type="aria", text_config={"model_type": "aria_text"})
        tensors = {"language_model.model.layers.0.w": numbers(2), "vision_tower.w": numbers(2)}
        folder = self.folder({f"net.{name}": value for name, value in tensors.items()}, aria)
        for options in ([], ["--names=hub"]):
            self.assert_tensors(self.convert(folder, "--strip-prefix=net.", *options)[0], tensors)

    def universal(self, folder, *options):
        """The results of to-universal for weights: its folder, the tensors in it, and the messages."""
        output = self.new_path("parent") / "start"
        output.parent.mkdir()
        done = self.tool("to-universal", folder, output, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = {path.parent.name: torch_files.load(path)["param"] for path in output.glob("zero/*/fp32.pt")}
        return output.parent, found, done.stderr

    def test_a_training_starts_with_the_modules_names(self):
        for tensors in (hub(module()), module()):
            _, found, said = self.universal(self.folder(tensors, config()))
            self.assert_tensors(found, module())
            self.assertEqual(said.count("names are the module's"), int(tensors.keys() != module().keys()), said)
        _, found, said = self.universal(self.folder(hub(module()), config(release="4.57.1")))
        self.assert_tensors(found, hub(module()))
        self.assertIn("--like CHECKPOINT takes those of a run", said)
        _, found, said = self.universal(self.folder(hub(module()), None))
        self.assert_tensors(found, hub(module()))

    def test_names_are_those_of_the_run_that_the_weights_are_for(self):
        others = {name: value * 2 + 1 for name, value in module().items()}
        given = self.folder(hub(others), config(release="4.57.1"))
        run, _, _ = self.universal(self.folder(module(), config()))
        _, found, said = self.universal(given, "--like", run)
        self.assert_tensors(found, others)
        self.assertIn("names are the module's, as Qwen3MoeForCausalLM of transformers 5.24.0 has them", said)
        # A run with the hub's names takes them as they are.
        old_run, _, _ = self.universal(self.folder(hub(module()), config(release="4.57.1")))
        _, found, said = self.universal(given, "--like", old_run)
        self.assert_tensors(found, hub(others))
        self.assertNotIn("names are", said)
        # For a module in a wrapper.
        wrapped, _, _ = self.universal(self.folder({f"net.{name}": value for name, value in module().items()}, None))
        _, found, _ = self.universal(given, "--like", wrapped, "--add-prefix=net.")
        self.assert_tensors(found, {f"net.{name}": value for name, value in others.items()})

    def test_what_the_rules_do_not_fit_is_named_as_it_is(self):
        run, _, _ = self.universal(self.folder(module(), config()))
        lacking = hub(module())
        del lacking[LAYER + "mlp.experts.1.up_proj.weight"]
        done = self.tool("to-universal", self.folder(lacking, config()), self.new_path("u"), "--like", run)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("mlp.experts.gate_up_proj", done.stderr)
        self.assertIn("mlp.experts.1.gate_proj.weight", done.stderr)


class TrainerTest(CliTest):
    """A checkpoint of the Trainer at stage 3, where every tensor lies in pieces."""

    FOLDER = pathlib.Path(os.environ["DSCKPT_TESTDATA"], "hub_names", "trainer_qwen3moe_z3")

    def setUp(self):
        super().setUp()
        self.truth, self.hub = (torch_files.load_file(self.FOLDER / "expected" / f"{name}.safetensors")
                                for name in ("truth", "hf_names"))

    def weights_of(self, checkpoint, *options):
        output = self.new_path("weights")
        done = self.tool("zero-to-fp32", checkpoint, output, "--safe-serialization", *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return torch_files.load_file(output / "model.safetensors")

    def assert_same(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, value in expected.items():
            self.assertTrue(torch_files.same_bits(found[name], value), name)

    def test_names_are_those_that_save_pretrained_wrote(self):
        self.assertGreater(len(self.hub), len(self.truth))
        self.assert_same(self.weights_of(self.FOLDER / "ckpt"), self.hub)
        self.assert_same(self.weights_of(self.FOLDER / "ckpt", "--names=module"), self.truth)

    def test_training_goes_on_with_weights_of_the_hub(self):
        given = self.new_path("given")
        given.mkdir()
        others = {name: torch_files.tensor(value.values * numpy.float32(3) + numpy.float32(1)) for name, value in self.hub.items()}
        torch_files.save_file(others, given / "model.safetensors")
        (given / "config.json").write_bytes((self.FOLDER / "ckpt" / "config.json").read_bytes())
        for start in (["--weights-from", given], ["--like", self.FOLDER / "ckpt"]):
            output = self.new_path("out")
            source = self.FOLDER / "ckpt" if start[0] == "--weights-from" else given
            done = self.tool("reshard", source, output, "--dp", "3", *start)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("names are the module's, as Qwen3MoeForCausalLM", done.stderr)
            found = self.weights_of(output, "--names=hub", "--hf-config", given)
            self.assert_same(found, others)
            self.assertEqual(sorted(self.weights_of(output, "--names=module")), sorted(self.truth))


if __name__ == "__main__":
    cli_common.main()
