"""Another set of parameters in reshard: what becomes of values and states, what is said, and what is refused."""
import numpy

import tools
import torch_files
from cli_common import CliTest, snapshot

CASE = "z2_fp32_full_w3"  # tied and frozen parameters, buffers, two groups
HALF = "z3_bf16_full_w6"
STATES = ("exp_avg", "exp_avg_sq")


class ChangedSetTest(CliTest):

    def source(self, name=CASE):
        return tools.case_named(name).load_dir

    def resharded(self, source, *arguments, dp=2):
        """The folder and the notes."""
        output = self.new_path("made") / "out"
        done = self.tool("reshard", source, output, "--dp", str(dp), *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output, done.stderr

    def tensors(self, source):
        """name -> {"": weight, "exp_avg": ...}, as zero-to-fp32 writes them."""
        made = self.convert(source, "--safe-serialization", "--states", "--names", "module")
        found = {}
        for path in sorted(made.rglob("*.safetensors")):
            key = path.stem if path.parent.name == "optimizer_states" else ""
            for name, tensor in torch_files.load_file(path).items():
                found.setdefault(name, {})[key] = tensor.array
        return found

    def listed(self, source):
        done = self.tool("ckpt-inspect", "list", source)
        self.assertEqual(done.returncode, 0, done.stderr)
        return {name: kind for name, kind, *_ in (line.split("\t") for line in done.stdout.splitlines())}

    def weights(self, tensors, name="new.safetensors"):
        path = self.new_path("weights") / name
        path.parent.mkdir(parents=True)
        torch_files.save_file({key: torch_files.Tensor(array, str(array.dtype)) for key, array in tensors.items()}, path)
        return path

    def assert_same(self, found, wanted):
        self.assertEqual({name: set(values) for name, values in found.items()},
                         {name: set(values) for name, values in wanted.items()})
        for name, values in wanted.items():
            for key, value in values.items():
                self.assertEqual(found[name][key].shape, value.shape, (name, key))
                self.assertEqual(found[name][key].tobytes(), value.tobytes(), (name, key))

    def refused(self, *arguments, source=None, code=2):
        source = source or self.source()
        before = snapshot(source)
        output = self.new_path("made") / "out"
        done = self.tool("reshard", source, output, "--dp", "2", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertFalse(output.exists())
        self.assertEqual(snapshot(source), before)
        return done.stderr


class ValuesTest(ChangedSetTest):

    def test_all_changes_at_once(self):
        rng = numpy.random.default_rng(5)
        new = {name: rng.random(shape, dtype=numpy.float32) for name, shape in
               (("adapter.bias", (11,)), ("adapter.weight", (11, 11)), ("conv.lora.weight", (2, 11)))}
        for case in (CASE, HALF):
            with self.subTest(case):
                wanted = self.tensors(self.source(case))
                made, notes = self.resharded(
                    self.source(case), "--unfreeze", r"^frozen_adapter\.0\.", "--freeze", r"\.ln_1\.", "--drop", "^stats",
                    "--drop", "^narrow", "--add", self.weights(new), "--resize-vocab", "40", "--vocab", "^(tok_emb|head)",
                    *(["--sub-group-size", "1000000"] if case == HALF else []))
                found = self.tensors(made)
                for name in list(wanted):
                    if name.startswith(("stats.", "narrow.")):
                        del wanted[name]
                    elif name.startswith("frozen_adapter.0."):
                        wanted[name].update(dict.fromkeys(STATES, numpy.zeros_like(wanted[name][""])))
                    elif ".ln_1." in name:
                        value = wanted[name][""]
                        if case == HALF:  # in the module's type
                            value = torch_files.decoded(torch_files.encoded(value, "bfloat16"), "bfloat16")
                        wanted[name] = {"": value}
                    elif name.startswith(("tok_emb", "head")):
                        for key, value in wanted[name].items():
                            mean = value.astype(numpy.float64).mean(0, keepdims=True).astype(numpy.float32)
                            rows = mean if key == "" else numpy.zeros_like(mean)
                            wanted[name][key] = numpy.concatenate([value, *[rows] * 3])
                for name, value in new.items():
                    wanted[name] = {"": value, **dict.fromkeys(STATES, numpy.zeros_like(value))}
                self.assert_same(found, wanted)
                kinds = self.listed(made)
                self.assertEqual({name for name, kind in kinds.items() if kind == "frozen"},
                                 {"frozen_scalar", "frozen_adapter.1.weight",
                                  *(f"blocks.{i}.ln_1.{what}" for i in (0, 1) for what in ("weight", "bias"))})
                self.assertEqual(kinds["head.weight"], "trainable")
                if case != CASE:
                    continue
                for text in ("--unfreeze: 'frozen_adapter.0.weight', 'frozen_adapter.0.bias' (2 parameters, 60 elements) "
                             "are trained; masters are the values in float32, and states begin empty",
                             "(4 parameters, 44 elements) are frozen; states of 352 B are lost",
                             "states of 5.90 KB are lost", "--add: 'adapter.bias'", "new parameters come last",
                             "--resize-vocab: 'tok_emb.weight', 'head.bias' have 3 new rows (mean)",
                             "gets 'conv.lora.weight', 'frozen_adapter.0.weight', 'adapter.weight'"):
                    self.assertIn(text, notes.replace("\n", " "))

    def test_fewer_rows_and_rows_from_weights(self):
        source = self.source()
        before = self.tensors(source)
        made, notes = self.resharded(source, "--resize-vocab", "30", "--vocab", "^(tok_emb|head)")
        self.assertIn("rows 30 to 36 cut off", notes)
        for name in ("tok_emb.weight", "head.bias"):
            self.assert_same({name: self.tensors(made)[name]},
                             {name: {key: value[:30] for key, value in before[name].items()}})
        rows = {"tok_emb.weight": numpy.full((3, 11), 0.5, numpy.float32),  # the new rows, or all
                "head.bias": numpy.arange(40, dtype=numpy.float32)}
        made, _ = self.resharded(source, "--resize-vocab", "40", "--vocab", "^(tok_emb|head)", "--new-rows",
                                 self.weights(rows))
        found = self.tensors(made)
        self.assertTrue((found["tok_emb.weight"][""][37:] == 0.5).all())
        self.assertEqual(found["head.bias"][""][37:].tolist(), [37, 38, 39])
        self.assertFalse(found["head.bias"]["exp_avg"][37:].any())

    def test_a_new_parameter_may_take_the_place_of_one_that_goes(self):
        new = {"narrow.weight": numpy.ones((3, 67), numpy.float32)}
        made, _ = self.resharded(self.source(), "--drop", "^narrow", "--add", self.weights(new))
        found = self.tensors(made)["narrow.weight"]
        self.assertTrue((found[""] == 1).all())
        self.assertFalse(found["exp_avg"].any())

    def test_prefixes_are_for_names_of_new_parameters(self):
        new = {"base.lora.weight": numpy.ones((3, 67), numpy.float32)}
        made, _ = self.resharded(self.source(), "--add", self.weights(new), "--strip-prefix", "base.", "--add-prefix",
                                 "narrow.")
        self.assertIn("narrow.lora.weight", self.tensors(made))

    def test_there_and_back_again(self):
        """Frozen and unfrozen, added and dropped: everything but the lost states is what it was."""
        source = self.source()
        new = self.weights({"adapter.weight": numpy.ones((3, 3), numpy.float32)})
        first, _ = self.resharded(source, "--freeze", r"\.ln_1\.", "--add", new, "--resize-vocab", "40", "--vocab",
                                  "^(tok_emb|head)")
        second, _ = self.resharded(first, "--unfreeze", r"\.ln_1\.", "--drop", "^adapter", "--resize-vocab", "37", "--vocab",
                                   "^(tok_emb|head)", dp=3)
        wanted = self.tensors(source)
        for name, values in wanted.items():
            if ".ln_1." in name:
                values.update(dict.fromkeys(STATES, numpy.zeros_like(values[""])))
        self.assert_same(self.tensors(second), wanted)
        self.assertEqual(list(self.listed(second)), list(self.listed(source)))


class RefusalsTest(ChangedSetTest):

    def test_patterns_that_change_nothing(self):
        self.assertIn("--freeze '^nothing' fits no trained parameter\n", self.refused("--freeze", "^nothing"))
        self.assertIn("fits no trained parameter, only 5 other entries", self.refused("--freeze", "^(frozen|stats.r)"))
        self.assertIn("--unfreeze '^wide' fits no frozen parameter", self.refused("--unfreeze", "^wide"))
        self.assertIn("--drop '(': missing ): (", self.refused("--drop", "("))
        self.assertIn("'wide.weight' is named by both --freeze and --drop",
                      self.refused("--freeze", "^wide", "--drop", "^wide"))

    def test_tied_parameters_change_under_all_names(self):
        self.assertIn("'head.weight' is the same parameter as 'tok_emb.weight', which --freeze does not fit",
                      self.refused("--freeze", r"^head\."))
        self.assertIn("'tok_emb.weight' is the same parameter as 'head.weight', which --drop does not fit",
                      self.refused("--drop", "^tok_emb"))

    def test_new_parameters(self):
        def add(tensors, **options):
            return self.refused("--add", self.weights(tensors), **options)
        one = numpy.ones(3, numpy.float32)
        self.assertIn("has 'gain', which the checkpoint has already", add({"gain": one}))
        self.assertIn("is of type int64, which no optimizer trains",
                      add({"new": numpy.ones(3, numpy.int64)}, code=3))
        self.assertIn("is float64: it would be rounded more than once", add({"new": numpy.ones(3)}, code=3))

    def test_groups_with_two_answers_or_none(self):
        # Matrices decay and vectors do not: nothing tells of a parameter with four dimensions.
        error = self.refused("--add", self.weights({"new.kernel": numpy.ones((1, 2, 1, 2), numpy.float32)}))
        self.assertIn("no group of the optimizer has parameters like it:\n  group 0 (8 parameters, 'tok_emb.weight'", error)
        self.assertIn("weight_decay 0", error)
        self.assertIn("--like CHECKPOINT", error)

    def test_vocabularies(self):
        self.assertIn("no parameter has a name that embeddings have", self.refused("--resize-vocab", "40"))
        self.assertIn("do not have the same number of rows:",
                      self.refused("--resize-vocab", "40", "--vocab", "^(tok_emb|wide)"))
        self.assertIn("has 37 rows already", self.refused("--resize-vocab", "37", "--vocab", "^tok_emb"))
        self.assertIn("--resize-vocab", self.refused("--new-rows", "zero", code=2))
        rows = self.weights({"tok_emb.weight": numpy.ones((4, 11), numpy.float32)})
        self.assertIn("has shape [4, 11], not [3, 11] of the new rows or [40, 11] of all",
                      self.refused("--resize-vocab", "40", "--vocab", "^tok_emb", "--new-rows", rows, code=3))

    def test_models_that_are_split_and_weights(self):
        split = next(case for case in tools.model_parallel_cases() if case.name == "pp2_dp2_z1_bf16")
        self.assertIn("is of a model that is split over ranks",
                      self.refused("--resize-vocab", 64, source=split.load_dir, code=3))

    def test_an_order_that_is_not_the_models(self):
        names = self.new_path("names")
        names.parent.mkdir(parents=True, exist_ok=True)
        names.write_text("wide.weight\ntok_emb.weight\n")
        new = self.weights({"adapter.weight": numpy.ones((3, 3), numpy.float32)})
        self.assertIn("--param-names does not have", self.refused("--add", new, "--param-names", names))


if __name__ == "__main__":
    import unittest
    unittest.main()
