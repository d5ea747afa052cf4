"""dsckpt.deepspeed against DeepSpeed's own functions: names, order, values, types, tied memory, and in their place."""
import contextlib
import inspect
import io
import os
import pathlib
import shutil
import sys
import unittest
from unittest import mock

import torch
from deepspeed.utils import zero_to_fp32 as theirs
from safetensors.torch import load_file

import cli_common
import dsckpt
import dsckpt.deepspeed as ours
import object_server
import oracle
import tools
import web_server
from cli_common import CliTest
from dsckpt._reader import is_native

os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"
NAMES = sorted(set(ours.__all__) - {"load_checkpoint", "patch_deepspeed"})


def sharing(state_dict):
    """Names by the memory of their tensors, but of those without any."""
    groups = {}
    for name, tensor in state_dict.items():
        if tensor.numel():
            groups.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    return sorted(names for names in groups.values() if len(names) > 1)


def weights_in(folder):
    """All tensors of the files in a folder, by the files' names and then in their order."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.suffix != ".json":
            found.update(load_file(path) if path.suffix == ".safetensors" else oracle.load_bin(path))
    return found


class QuietTest(CliTest):
    """DeepSpeed's functions print."""

    def setUp(self):
        super().setUp()
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            context = redirect(io.StringIO())
            context.__enter__()
            self.addCleanup(context.__exit__, None, None, None)


class FunctionsTest(QuietTest):

    def test_the_reader_is_the_one_that_is_tested(self):
        self.assertEqual(is_native(), bool(os.environ.get("DSCKPT_NATIVE")))

    def assert_same(self, got, expected):
        self.assertEqual(list(got), list(expected))
        for name, tensor in expected.items():
            tensor = tensor.contiguous()
            self.assertEqual((got[name].dtype, got[name].shape), (tensor.dtype, tensor.shape), name)
            self.assertTrue(oracle.same_bits(got[name], tensor), name)

    def test_patch_deepspeed_is_described(self):
        self.assertTrue(inspect.getdoc(dsckpt.patch_deepspeed))

    def test_signatures_are_deepspeeds(self):
        for name in NAMES:
            self.assertEqual(inspect.signature(getattr(ours, name)), inspect.signature(getattr(theirs, name)), name)

    def test_state_dicts_are_deepspeeds(self):
        compared = 0
        for case in oracle.all_cases():
            try:
                expected = theirs.get_fp32_state_dict_from_zero_checkpoint(str(case.load_dir))
            except Exception:  # noqa: BLE001: what DeepSpeed cannot read is tested against the engine elsewhere
                continue
            with self.subTest(case=case.name):
                got = ours.get_fp32_state_dict_from_zero_checkpoint(str(case.load_dir))
                truth = case.truth()
                if expected.keys() != truth.keys() or not all(oracle.same_bits(expected[n].contiguous(), truth[n])
                                                              for n in truth):
                    continue  # where DeepSpeed is wrong
                self.assert_same(got, expected)
                self.assertEqual(sharing(got), sharing(expected))
                compared += 1
        self.assertGreater(compared, 40 if not os.environ.get("DSCKPT_CASES") else 0)

    def test_arguments_are_heard(self):
        case = oracle.case_named("z2_fp32_full_w3")
        folder = str(case.load_dir)
        whole = ours.get_fp32_state_dict_from_zero_checkpoint(folder)
        tag = case.facts["tag"]
        self.assert_same(ours.get_fp32_state_dict_from_zero_checkpoint(folder, tag), whole)
        self.assert_same(ours.get_fp32_state_dict_from_zero_checkpoint(folder, exclude_frozen_parameters=True),
                         theirs.get_fp32_state_dict_from_zero_checkpoint(folder, exclude_frozen_parameters=True))
        lazy = ours.get_fp32_state_dict_from_zero_checkpoint(folder, lazy_mode=True)
        self.assert_same({name: value.contiguous() for name, value in lazy.items()}, whole)

    def test_adapters_have_the_names_that_the_model_has(self):
        """Which the tool alone refuses to write."""
        for case in sorted((pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "peft").iterdir()):
            folder, outputs = str(case / "ckpt"), [self.new_path(), self.new_path()]
            self.assert_same(ours.get_fp32_state_dict_from_zero_checkpoint(folder),
                             theirs.get_fp32_state_dict_from_zero_checkpoint(folder))
            for module, output in zip((theirs, ours), outputs):
                module.convert_zero_checkpoint_to_fp32_state_dict(folder, str(output))
            self.assert_same(*(weights_in(output) for output in reversed(outputs)))

    def test_tensors_are_ones_own(self):
        case = oracle.case_named("z1_fp32_w2")
        before = cli_common.snapshot(case.load_dir)
        state = ours.get_fp32_state_dict_from_zero_checkpoint(str(case.load_dir))
        name = next(name for name, tensor in state.items() if tensor.is_floating_point())
        state[name].fill_(3.25)
        again = ours.get_fp32_state_dict_from_zero_checkpoint(str(case.load_dir))
        self.assertFalse(torch.equal(again[name], state[name]))
        self.assertEqual(cli_common.snapshot(case.load_dir), before)

    def test_files_are_deepspeeds(self):
        # Tied weights as safetensors are beyond DeepSpeed's.
        cases = {False: oracle.case_named("z3_bf16_full_w6"), True: oracle.case_named("z3_bf16_w2")}
        for options in ({}, {"safe_serialization": True}, {"max_shard_size": None}, {"max_shard_size": "3KB"},
                        {"max_shard_size": "3KB", "safe_serialization": True}):
            case = cases["safe_serialization" in options]
            with self.subTest(**options):
                outputs = []
                for module in (theirs, ours):
                    outputs.append(self.new_path())
                    module.convert_zero_checkpoint_to_fp32_state_dict(str(case.load_dir), str(outputs[-1]), **options)
                self.assertEqual(*({path.name for path in output.iterdir()} for output in outputs))
                self.assert_same(*(weights_in(output) for output in reversed(outputs)))
        case, outputs = cases[False], [self.new_path(), self.new_path()]
        theirs.convert_zero_checkpoint_to_state_dict(str(case.load_dir), str(outputs[0]), "bf16", None)
        ours.convert_zero_checkpoint_to_state_dict(str(case.load_dir), str(outputs[1]), torch.bfloat16, None)
        self.assert_same(*(weights_in(output) for output in reversed(outputs)))
        ours.convert_zero_checkpoint_to_state_dict(str(case.load_dir), str(outputs[1]), max_shard_size=None)

    def test_paths_that_are_not_there_are_errors_as_deepspeeds(self):
        case = oracle.case_named("z1_fp32_w2")
        for arguments, kind in (((str(self.root),), ValueError), ((str(case.load_dir), "no_tag"), FileNotFoundError)):
            for module in (theirs, ours):
                with self.assertRaises(kind):
                    module.get_fp32_state_dict_from_zero_checkpoint(*arguments)

    def test_a_model_is_loaded(self):
        case = oracle.case_named("z2_fp32_full_w3")
        state = ours.get_fp32_state_dict_from_zero_checkpoint(str(case.load_dir))
        model = torch.nn.Module()
        name, value = next((name, value) for name, value in state.items() if value.numel() > 1)
        owner = model
        *parents, leaf = name.split(".")
        for parent in parents:
            owner.add_module(parent, torch.nn.Module())
            owner = getattr(owner, parent)
        owner.register_buffer(leaf, torch.zeros_like(value))
        self.assertIs(ours.load_state_dict_from_zero_checkpoint(model, str(case.load_dir)), model)
        self.assertTrue(torch.equal(model.state_dict()[name], value))


class PlacesTest(QuietTest):
    """The checkpoint on a disk, by each form of its path; in an object store; and on a web server."""

    def setUp(self):
        super().setUp()
        case = oracle.case_named("z1_fp32_w2")
        self.tag = case.facts["tag"]
        self.root = self.new_path("root")
        self.models = self.root / "models"
        for name in ("whole", "lost", "stale"):
            shutil.copytree(case.load_dir, self.models / name)
        next((self.models / "lost" / self.tag).glob("*_optim_states.pt")).unlink()
        (self.models / "stale" / "latest").write_text("global_step9")
        (self.models / "whole" / "empty").mkdir()
        (self.models / "whole" / "empty" / "notes.txt").write_text("")
        (self.models / "notes").mkdir()
        (self.models / "notes" / "notes.txt").write_text("")

    @contextlib.contextmanager
    def places(self):
        """The text before the name of one of them."""
        with contextlib.ExitStack() as stack:
            found = {"a disk": f"{self.models}/"}
            if tools.reads_object_stores():
                endpoint = stack.enter_context(object_server.serving(object_server.Store(self.root)))
                stack.enter_context(mock.patch.dict(os.environ, object_server.environment(endpoint)))
                found["a store"] = "s3://models/"
                url = stack.enter_context(web_server.serving(web_server.Site(self.root)))
                found["a web server"] = f"{url}/models/"
            yield found

    def assert_equal_states(self, got, expected):
        self.assertEqual(set(got), set(expected))
        for name, tensor in expected.items():
            self.assertTrue(oracle.same_bits(got[name], tensor), name)

    def test_tags_and_slashes(self):
        expected = theirs.get_fp32_state_dict_from_zero_checkpoint(str(self.models / "whole"))
        with self.places() as places:
            for place, before in places.items():
                for path in (f"{before}whole", f"{before}whole/"):
                    for tag in (None, self.tag, f"{self.tag}/", pathlib.PurePath(self.tag)):
                        with self.subTest(place, path=path, tag=tag):
                            self.assert_equal_states(ours.get_fp32_state_dict_from_zero_checkpoint(path, tag), expected)
                output = self.new_path()
                ours.convert_zero_checkpoint_to_state_dict(f"{before}whole", output, tag=self.tag,
                                                           safe_serialization=True)
                self.assert_equal_states(load_file(output / "model.safetensors"), expected)
        for path in (self.models / "whole", _PathLike(self.models / "whole")):
            self.assert_equal_states(ours.get_fp32_state_dict_from_zero_checkpoint(path, self.tag), expected)

    def test_errors_are_deepspeeds(self):
        cases = [("whole", "none"), ("whole", "latest"), ("whole", "empty"), ("none", "none"), ("none", None),
                 ("notes", None), ("notes", "none"), ("stale", None)]
        with self.places() as places:
            for name, tag in cases:
                with self.assertRaises((ValueError, FileNotFoundError)) as caught:
                    theirs.get_fp32_state_dict_from_zero_checkpoint(f"{self.models}/{name}", tag)
                for place, before in places.items():
                    with self.subTest(place, name=name, tag=tag), self.assertRaises(type(caught.exception)):
                        ours.get_fp32_state_dict_from_zero_checkpoint(before + name, tag)

    def test_a_lost_file_is_no_lost_folder(self):
        with self.places() as places:
            for place, before in places.items():
                for path, tag in (("lost", None), ("lost", self.tag), (f"lost/{self.tag}", None)):
                    with (self.subTest(place, path=path, tag=tag),
                          self.assertRaisesRegex(dsckpt.InconsistentError, "missing")):
                        ours.get_fp32_state_dict_from_zero_checkpoint(before + path, tag)


class _PathLike:

    def __init__(self, path):
        self.path = str(path)

    def __fspath__(self):
        return self.path


class InPlaceTest(QuietTest):

    def test_they_stand_in_deepspeeds_place_until_they_are_taken_back(self):
        module = type(sys)("imported_before")
        module.convert_zero_checkpoint_to_fp32_state_dict = theirs.convert_zero_checkpoint_to_fp32_state_dict
        sys.modules["imported_before"] = module
        self.addCleanup(sys.modules.pop, "imported_before")
        before = {name: getattr(theirs, name) for name in NAMES}
        restore = dsckpt.patch_deepspeed()
        again = dsckpt.patch_deepspeed()
        for name in NAMES:
            self.assertIs(getattr(theirs, name), getattr(ours, name))
        self.assertIs(module.convert_zero_checkpoint_to_fp32_state_dict, ours.convert_zero_checkpoint_to_fp32_state_dict)
        again()
        self.assertIs(theirs.load_state_dict_from_zero_checkpoint, ours.load_state_dict_from_zero_checkpoint)
        restore()
        self.assertEqual({name: getattr(theirs, name) for name in NAMES}, before)
        self.assertIs(module.convert_zero_checkpoint_to_fp32_state_dict,
                      before["convert_zero_checkpoint_to_fp32_state_dict"])

    def test_lightnings_function_makes_an_equal_file(self):
        try:
            from lightning.pytorch.utilities.deepspeed import convert_zero_checkpoint_to_fp32_state_dict as lightnings
        except ImportError:
            raise unittest.SkipTest("no Lightning here") from None
        folder = oracle.case_named("z2_bf16_w2").load_dir
        outputs = [self.new_path("theirs.bin"), self.new_path("ours.bin")]
        lightnings(str(folder), str(outputs[0]))
        self.addCleanup(dsckpt.patch_deepspeed())
        lightnings(str(folder), str(outputs[1]))
        a, b = (torch.load(path, weights_only=False) for path in outputs)
        self.assertEqual(a.keys(), b.keys())
        self.assertEqual({key: a[key] for key in a if key != "state_dict"},
                         {key: b[key] for key in b if key != "state_dict"})
        self.assertEqual(list(a["state_dict"]), list(b["state_dict"]))
        for name, value in a["state_dict"].items():
            self.assertTrue(oracle.same_bits(value, b["state_dict"][name]), name)


if __name__ == "__main__":
    cli_common.main()
