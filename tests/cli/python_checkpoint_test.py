"""dsckpt.open's Checkpoint as an object: what it says of itself, types while reading, batches, pickles, ties, notebooks.

By the compiled module, whose folder DSCKPT_NATIVE names, or by the program alone. Torch's side is in
oracle/python_torch_test.py.
"""
import copy
import html.parser
import json
import multiprocessing
import os
import pathlib
import pickle
import shutil
import struct
import sys
import types
import unittest
import warnings
from unittest import mock

from opened_case import OpenedCase  # first: it decides whether the module is there

import cli_common
import dsckpt
import dsckpt._tool
import numpy
import tools
from dsckpt import _checkpoint

STAGE_3 = "z3_bf16_w2"


def sums_in_worker(checkpoint, tensor, queue):
    """The values that a worker has read, for its parent."""
    queue.put((checkpoint.tag, {name: float(value.numpy().sum()) for name, value in list(checkpoint.items())[:3]},
               float(tensor.numpy().sum())))


class CheckpointTest(OpenedCase):

    def setUp(self):
        super().setUp()
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore", dsckpt.DsckptWarning)
        self.case = tools.case_named(STAGE_3)
        self.ckpt = dsckpt.open(self.case.load_dir, framework="np")
        self.truth = self.case.truth(dtype="keep")

    def weights(self, **options):
        output = self.new_path()
        dsckpt.convert(self.case.load_dir, output, safe_serialization=True, **options)
        return output


class FactsTest(CheckpointTest):

    def test_facts_are_those_of_the_run(self):
        for name in (STAGE_3, "z1_fp32_w1", "z2_fp32_full_w3"):
            case = tools.case_named(name)
            ckpt = dsckpt.open(case.load_dir)
            self.assertEqual((ckpt.tag, ckpt.stage), (case.facts["tag"], case.facts["stage"]))
            self.assertEqual(ckpt.ranks, int(name.rpartition("w")[2]))
            self.assertEqual(ckpt.step, int(case.facts["tag"].removeprefix("global_step")))
            self.assertEqual(ckpt.metadata["mesh"]["dp"], ckpt.ranks)
            for each in (ckpt.tag, f"stage {ckpt.stage}", f"{ckpt.ranks} rank", f"{len(ckpt)} tensors"):
                self.assertIn(each, repr(ckpt))

    def test_weights_have_none(self):
        ckpt = dsckpt.open(self.weights())
        self.assertEqual((ckpt.step, ckpt.tag, ckpt.stage, ckpt.ranks), (None, None, None, None))
        self.assertIn(f"{len(ckpt)} tensors", repr(ckpt))
        output = self.new_path()
        dsckpt.convert(self.case.load_dir, output)
        self.assertEqual(dsckpt.open(output).metadata, {})

    def test_files_of_safetensors_say_what_they_are(self):
        output = self.weights(max_shard_size="3KB")
        said = {}
        for path in output.glob("*.safetensors"):
            data = path.read_bytes()
            said.update(json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"])
        self.assertEqual(said["format"], "pt")
        self.assertEqual(dsckpt.open(output).metadata, said)

    def test_metadata_is_the_callers(self):
        self.ckpt.metadata.clear()
        self.assertEqual(self.ckpt.stage, 3)


class NamesTest(CheckpointTest):

    def test_a_name_that_is_none_gets_the_nearest(self):
        with self.assertRaises(KeyError) as caught:
            self.ckpt["gian"]
        self.assertEqual(caught.exception.args, ("gian",))
        self.assertIn("most like it is 'gain'", str(caught.exception))
        with self.assertRaises(KeyError) as caught:
            self.ckpt["@@@@"]
        self.assertNotIn("most like", str(caught.exception))
        self.assertIn("gian", str(pickle.loads(pickle.dumps(KeyError("gian")))))

    def test_what_is_not_there_costs_nothing_unless_it_is_shown(self):
        with mock.patch("difflib.get_close_matches", side_effect=AssertionError):
            self.assertNotIn("gian", self.ckpt)
            self.assertNotIn(5, self.ckpt)
            self.assertIsNone(self.ckpt.get("gian"))
            self.assertEqual(self.ckpt.get("gian", 7), 7)
            self.assertRaises(KeyError, self.ckpt.__getitem__, "gian")
        self.assertIs(self.ckpt.get("gain"), self.ckpt["gain"])

    def test_ties_of_our_own_weights_are_found(self):
        case = tools.case_named("hf_trainer_gpt2_z2_bf16_w2")
        output = self.new_path()
        dsckpt.convert(case.folder / "ckpt", output, safe_serialization=True)
        self.assertTrue(case.tied)
        file = output / "model.safetensors"
        for path in (output, file, os.path.relpath(file)):
            ckpt = dsckpt.open(path, framework="np")
            self.assertEqual(set(ckpt), set(case.truth()))
            together = ckpt.state_dict()
            for alias, owner in case.tied.items():
                self.assertEqual(ckpt[alias].alias_of, owner)
                self.assertTrue(numpy.may_share_memory(together[alias], together[owner]))
                self.assertEqual(ckpt[alias].numpy().tobytes(), case.truth()[owner].array.tobytes())

    def test_what_is_no_tie_is_none(self):
        folder = self.new_path()
        folder.mkdir()
        header = {"__metadata__": {"format": "pt", "b": "nowhere", "a": "c", "d": "a"},
                  **{name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
                     for i, name in enumerate("ac")}}
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        ckpt = dsckpt.open(folder)
        self.assertEqual({name: tensor.alias_of for name, tensor in ckpt.items()}, {"a": "", "c": "", "d": "a"})


class FormTest(CheckpointTest):

    def test_types_are_cast_while_reading(self):
        for dtype in ("fp16", "float16", numpy.float16, numpy.dtype("float16")):
            ckpt = dsckpt.open(self.case.load_dir, framework="np", dtype=dtype)
            for name, value in ckpt.state_dict(list(ckpt)[:6]).items():
                expected = self.truth[name]
                floating = expected.is_floating_point()
                self.assertEqual(value.dtype, numpy.float16 if floating else expected.array.dtype)
                self.assertEqual(value.tobytes(), expected.array.astype(value.dtype).tobytes())
            self.assertEqual(ckpt["gain"][:1].dtype, numpy.float16)
            self.assertEqual(ckpt["gain"].numpy().dtype, numpy.float16)
            self.assertEqual(ckpt["gain"].dtype, "float32")
        self.assertEqual(self.ckpt.state_dict(["gain"], dtype="fp64")["gain"].dtype, numpy.float64)

    def test_pieces_are_the_whole(self):
        """For tensors that are cast in pieces of some rows."""
        with mock.patch.object(_checkpoint, "PIECE", 100), mock.patch("dsckpt._arrays.PIECE", 100):
            together = dsckpt.open(self.case.load_dir, framework="np", dtype="fp16").state_dict()
        for name, value in together.items():
            self.assertEqual(value.tobytes(), self.truth[name].array.astype(value.dtype).tobytes(), name)

    def test_other_types_and_devices_are_refused(self):
        for options in ({"dtype": "int8"}, {"dtype": "float4"}, {"dtype": 7}, {"device": "cuda"}):
            with self.assertRaises(dsckpt.UsageError):
                dsckpt.open(self.case.load_dir, framework="np", **options)
        self.assertEqual(dsckpt.open(self.case.load_dir, framework="np", device="cpu")["gain"].ndim, 1)

    def test_states_by_parameter(self):
        expected = {}
        for key, value in self.case.expected("master").items():
            name, state = key.rsplit("|", 1)
            if state != "fp32" and value.array.size:
                expected.setdefault(name, {})[state] = value.array
        states = self.ckpt.state_dict(states=True)
        self.assertEqual(set(states) - set(expected), {name for name in states if not self.ckpt[name].numel})
        for name, of_name in expected.items():
            self.assertEqual(set(states[name]), set(of_name) | {"step"})
            self.assertEqual((states[name]["step"].dtype, states[name]["step"].shape), (numpy.float32, ()))
            self.assertEqual(states[name].pop("step"), of_name.pop("step", self.ckpt.step))
            self.assertEqual(self.ckpt[name].step, self.ckpt.step)
            for state, value in states[name].items():
                self.assertEqual(value.tobytes(), of_name[state].tobytes(), (name, state))
        cast = self.ckpt.state_dict(["gain"], states=True, dtype="fp16")["gain"]
        self.assertEqual({state: value.dtype for state, value in cast.items()},
                         {"step": numpy.float32, "exp_avg": numpy.float16, "exp_avg_sq": numpy.float16})

    def test_batches_are_bounded_and_all_of_it(self):
        for limit in (1, 2000, 1 << 30):
            seen = {}
            for batch in self.ckpt.iter_batches(bytes=limit):
                owners = {name for name in batch if not self.ckpt[name].alias_of}
                size = sum(self.ckpt[name].nbytes for name in owners)
                self.assertTrue(size <= limit or len(owners) == 1, batch)
                self.assertFalse(set(batch) & set(seen))
                seen.update(batch)
            self.assertEqual(set(seen), set(self.truth))
            if limit != 1:
                self.assertEqual({name: value.tobytes() for name, value in seen.items()},
                                 {name: value.array.tobytes() for name, value in self.truth.items()})
        self.assertEqual([list(batch) for batch in self.ckpt.iter_batches(1, ["gain"])], [["gain"]])


class PickleTest(CheckpointTest):

    def test_what_comes_out_reads_the_same(self):
        for made in (pickle.loads(pickle.dumps(self.ckpt)), copy.deepcopy(self.ckpt)):
            self.assertEqual(list(made), list(self.ckpt))
            self.assertEqual(made["gain"].numpy().tobytes(), self.truth["gain"].array.tobytes())
            self.assertIsInstance(made["gain"][:1], numpy.ndarray)
        state = pickle.loads(pickle.dumps(self.ckpt["gain"].states["exp_avg"]))
        self.assertEqual((state.name, state.state), ("gain", "exp_avg"))

    def test_workers_take_it(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.case.load_dir.parent)
        ckpt = dsckpt.open(self.case.load_dir.name, framework="np")
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        os.chdir(before)
        with mock.patch("os.getcwd", return_value=str(self.case.load_dir.parent.resolve())):
            sent = pickle.dumps((ckpt, ckpt["gain"]))
        worker = context.Process(target=sums_in_worker, args=(*pickle.loads(sent), queue))
        worker.start()
        tag, sums, one = queue.get(timeout=120)
        worker.join()
        self.assertEqual(tag, self.case.facts["tag"])
        self.assertEqual(one, float(self.truth["gain"].array.sum()))
        for name, value in sums.items():
            self.assertEqual(value, float(self.truth[name].array.sum()))

    def test_another_checkpoint_there_is_an_error(self):
        folder = shutil.copytree(self.case.load_dir, self.new_path())
        sent = pickle.dumps(dsckpt.open(folder))
        tag = folder / self.case.facts["tag"]
        shutil.copytree(tag, folder / "global_step9")
        (folder / "latest").write_text("global_step9")
        self.assertEqual(pickle.loads(sent).tag, tag.name)  # what latest named then
        cli_common.set_step(tag, 4)
        with self.assertRaisesRegex(dsckpt.InconsistentError, "is not the checkpoint that was pickled"):
            pickle.loads(sent)


class NotebookTest(CheckpointTest):

    def test_names_are_completed(self):
        self.assertEqual(self.ckpt._ipython_key_completions_(), list(self.ckpt))

    def test_the_page_is_well_formed_and_has_every_tensor(self):
        found = []

        class Page(html.parser.HTMLParser):
            CDATA_CONTENT_ELEMENTS = ()
            open_tags = []

            def handle_starttag(self, tag, attributes):
                if tag != "br":
                    self.open_tags.append(tag)

            def handle_endtag(self, tag):
                assert self.open_tags.pop() == tag

            def handle_data(self, data):
                found.append(data)

        page = Page()
        page.feed(self.ckpt._repr_html_())
        page.close()
        self.assertEqual(page.open_tags, [])
        text = "".join(found)
        for name, tensor in self.ckpt.items():
            self.assertIn(name.rpartition(".")[2], text)
        self.assertIn("stage 3", text)

    def test_layers_that_are_alike_are_one_and_names_are_escaped(self):
        folder = self.new_path()
        folder.mkdir()
        names = [f"layers.{i}.<b>.weight" for i in range(300)] + ["layers.300.other", "a", "a.b"]
        header = {name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
                  for i, name in enumerate(names)}
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * len(names)))
        page = dsckpt.open(folder)._repr_html_()
        self.assertIn("[0-299]", page)
        self.assertIn("&lt;b&gt;", page)
        self.assertNotIn("<b>.", page)
        self.assertLess(len(page), 3000)

    def test_a_bar_is_shown_where_a_kernel_runs(self):
        told = []

        class Bar:
            n = 0

            def __init__(self, **options):
                told.append(options["desc"])

            def update(self, more):
                self.n += more

            def close(self):
                pass

        modules = {"tqdm": types.ModuleType("tqdm"), "tqdm.auto": types.SimpleNamespace(tqdm=Bar),
                   "IPython": types.SimpleNamespace(get_ipython=lambda: self.shell)}
        with mock.patch.dict(sys.modules, modules):
            for self.shell, shown in ((None, 0), (types.SimpleNamespace(), 0), (types.SimpleNamespace(kernel=1), 1)):
                told.clear()
                with mock.patch.object(sys, "stderr", None):
                    dsckpt.convert(self.case.load_dir, self.new_path())
                    self.assertEqual(told, ["zero-to-fp32"] * shown)
                    dsckpt.convert(self.case.load_dir, self.new_path(), progress=False)
                    self.assertEqual(len(told), shown)


if __name__ == "__main__":
    cli_common.main()
