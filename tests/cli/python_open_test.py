"""dsckpt.open: arrays by name, against the live engine's, by the compiled module and by the program alone.

Torch's tensors are the business of oracle/python_tensors_test.py.
"""
import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from opened_case import NATIVE, OpenedCase  # first: it decides whether the module is there

import cli_common
import dsckpt
import large_checkpoint
import numpy
import object_server
import tools
import torch_files
from object_server import Store, serving


def is_numpys(dtype):
    return dtype != "bfloat16" and not dtype.startswith("float8")


def open_arrays(path, **options):
    return dsckpt.open(path, framework="np", **options)


class OpenTest(OpenedCase):

    def setUp(self):
        super().setUp()
        self.case = tools.case_named("z2_fp32_full_w3")
        self.ckpt = open_arrays(self.case.load_dir)
        self.name = max(self.ckpt, key=lambda name: self.ckpt[name].numel)
        self.expected = self.case.truth(dtype="keep")[self.name].values

    def assert_same(self, got, expected):
        self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
        self.assertEqual(got.tobytes(), expected.tobytes())


class ReaderTest(OpenTest):

    def test_the_reader_is_the_one_that_is_tested(self):
        self.assert_reader()


class ValuesTest(OpenTest):

    def test_arrays_are_the_live_engines(self):

        def compare(case, ckpt, truth):
            names = [name for name in ckpt if is_numpys(truth[name].dtype)]
            together = ckpt.state_dict(names)
            self.assertEqual(list(together), names)
            for name in names:
                self.assert_same(together[name], truth[name].array)
            for name, expected in truth.items():
                self.assertEqual((ckpt[name].dtype, ckpt[name].shape, ckpt[name].nbytes),
                                 (expected.dtype, expected.shape, expected.nbytes))
                self.assertEqual(ckpt[name].alias_of, case.tied.get(name, "") or ckpt[name].alias_of)
            for name in names[:3]:
                self.assert_same(ckpt[name].numpy(), truth[name].array)
            for alias, owner in case.tied.items():
                if alias in together:
                    self.assertTrue(numpy.may_share_memory(together[alias], together[owner]))
            return len(names)

        self.compare_each(tools.all_cases(), compare, framework="np")

    def test_states_are_the_live_optimizers(self):
        compared = 0
        for parameter, state, found, expected in self.each_state(tools.case_named, framework="np"):
            self.assertEqual((found.name, found.state, found.states), (parameter, state, {}))
            self.assert_same(found.numpy().flatten(), expected.array.flatten())
            compared += 1
        self.assertGreater(compared, 3)

    def test_weights_are_opened_too_and_every_type_has_its_name(self):
        for tensor, expected in self.each_type(torch_files.load_file, framework="np"):
            self.assertEqual((tensor.dtype, tensor.shape), (expected.dtype, expected.shape))
            if is_numpys(expected.dtype):
                self.assert_same(tensor.numpy(), expected.array)
            else:
                self.assert_is_not_numpys(tensor)

    def test_an_index_reads_what_numpy_would_give(self):
        self.check_index(self.ckpt, self.name, self.expected, numpy.array([1, 0]))

    def test_numpy_takes_them(self):
        tensor = dsckpt.open(self.case.load_dir)[self.name]
        self.assertTrue(numpy.array_equal(numpy.asarray(tensor), self.expected))
        self.assertTrue(numpy.array_equal(numpy.from_dlpack(tensor), self.expected))
        self.assertEqual(numpy.asarray(tensor, dtype="float64").dtype, numpy.float64)
        self.assertIsInstance(self.ckpt[self.name][:2], numpy.ndarray)
        self.assertIsInstance(self.ckpt.state_dict([self.name])[self.name], numpy.ndarray)

    def test_bfloat16_is_not_numpys(self):
        folder = self.new_path()
        dsckpt.convert(self.case.load_dir, folder, dtype="bf16", safe_serialization=True)
        self.assert_is_not_numpys(dsckpt.open(folder)[self.name])

    def assert_is_not_numpys(self, tensor):
        with mock.patch.dict(sys.modules, {"ml_dtypes": None}):
            with self.assertRaisesRegex(dsckpt.UnsupportedError, f"no {tensor.dtype}"):
                tensor.numpy()


class FarTest(OpenTest):

    @unittest.skipUnless(tools.reads_object_stores(), "this build reads no object stores")
    def test_a_bucket(self):
        buckets = self.new_path("buckets")
        shutil.copytree(self.case.load_dir, buckets / "models")
        with serving(Store(buckets)) as endpoint, mock.patch.dict(os.environ, object_server.environment(endpoint)):
            far = open_arrays("s3://models")
            self.assertEqual(list(far), list(self.ckpt))
            self.assert_same(far[self.name].numpy(), self.expected)
            self.assert_same(far[self.name][1:3], self.expected[1:3])
            self.assertTrue(dsckpt.verify("s3://models")["ok"])
            dsckpt.convert("s3://models", "s3://models/weights", safe_serialization=True)
            with self.assertRaisesRegex(dsckpt.Error, "s3://models/none"):
                dsckpt.open("s3://models/none")
            self.assert_same(open_arrays("s3://models", mmap=True)[self.name].numpy(), self.expected)
        written = torch_files.load_file(buckets / "models" / "weights" / "model.safetensors")
        self.assert_same(written[self.name].array, self.expected)

    @unittest.skipUnless(tools.reads_object_stores(), "this build reads no object stores")
    def test_tied_names_that_metadata_alone_has(self):
        case = next(each for each in tools.all_cases() if each.tied)
        buckets = self.new_path("buckets")
        dsckpt.convert(case.load_dir, buckets / "models", safe_serialization=True)
        local = open_arrays(buckets / "models")
        with serving(Store(buckets)) as endpoint, mock.patch.dict(os.environ, object_server.environment(endpoint)):
            far = open_arrays("s3://models")
            self.assertEqual(far.metadata, {"format": "pt", **case.tied})
            self.assertEqual({name: tensor.alias_of for name, tensor in far.items()},
                             {name: tensor.alias_of for name, tensor in local.items()})
            alias, owner = next(iter(case.tied.items()))
            self.assert_same(far[alias].numpy(), local[owner].numpy())

    @unittest.skipUnless(NATIVE and tools.reads_object_stores(), "the program opens it again in each process")
    def test_a_forked_process_opens_it_again(self):
        buckets = self.new_path("buckets")
        shutil.copytree(self.case.load_dir, buckets / "models")
        with serving(Store(buckets)) as endpoint, mock.patch.dict(os.environ, object_server.environment(endpoint)):
            far = open_arrays("s3://models")
            child = os.fork()
            if child == 0:
                try:
                    far[self.name].numpy()
                except dsckpt.UsageError as error:
                    os._exit(7 if "forked" in str(error) else 1)
                finally:
                    os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
            self.assert_same(far[self.name].numpy(), self.expected)


class MemoryTest(OpenTest):

    def test_writing_into_an_array_changes_no_file(self):
        before = cli_common.snapshot(self.case.load_dir)
        for mmap in (False, True):
            ckpt = open_arrays(self.case.load_dir, mmap=mmap)
            ckpt[self.name].numpy()[...] = 1
            self.assert_same(open_arrays(self.case.load_dir)[self.name].numpy(), self.expected)
        self.assertEqual(cli_common.snapshot(self.case.load_dir), before)

    def test_an_array_outlives_its_checkpoint(self):
        for mmap in (False, True):
            array = open_arrays(self.case.load_dir, mmap=mmap)[self.name].numpy()
            gc.collect()
            self.assert_same(array, self.expected)

    @unittest.skipUnless(NATIVE, "of the module")
    def test_what_lies_in_one_place_is_mapped(self):
        scratch = self.scratch("z1_fp32_w2")
        ckpt = open_arrays(scratch.folder, mmap=True)
        whole = [name for name in ckpt if len(ckpt[name].files) == 1 and ckpt[name].kind == "trainable"]
        self.assertTrue(whole)
        kept = {name: ckpt[name].numpy() for name in whole}
        mapped = pathlib.Path("/proc/self/maps").read_text()
        self.assertIn(scratch.optim(0).name, mapped)
        kept.clear()
        del ckpt
        gc.collect()
        self.assertNotIn(scratch.optim(0).name, pathlib.Path("/proc/self/maps").read_text())

    def test_many_threads_may_read(self):
        for check in (True, "later"):
            self.read_in_threads(open_arrays(self.case.load_dir, check=check))

    def read_in_threads(self, ckpt):
        truth, wrong = self.case.truth(dtype="keep"), []

        def read(name):
            try:
                if ckpt[name].numpy().tobytes() != truth[name].tobytes():
                    wrong.append(name)
            except Exception as error:  # noqa: BLE001: whatever it is, in this thread nobody else would see it
                wrong.append(error)

        threads = [threading.Thread(target=read, args=(name,)) for name in list(ckpt)[:12]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class ErrorsTest(OpenTest):

    def failing(self, ckpt):
        """{name: the error} of what cannot be read."""
        errors = {}
        for name, tensor in ckpt.items():
            try:
                tensor.numpy()
            except dsckpt.Error as error:
                errors[name] = error
        return errors

    def test_a_wrong_record_is_an_error_for_all_that_lies_in_it(self):
        folder, record = self.damaged()
        for options in ({}, {"mmap": True}):
            ckpt = open_arrays(folder, **options)
            errors = self.failing(ckpt)
            self.assertTrue(errors)
            self.assertLess(len(errors), len(ckpt))
            for error in errors.values():
                self.assertIsInstance(error, dsckpt.CorruptError)
                self.assertIn("optim_states", error.file)
                self.assertEqual(error.member, record)
                self.assertGreater(error.offset, 0)
                self.assertIn("CRC32", str(error))
            with self.assertRaises(dsckpt.CorruptError):
                ckpt.state_dict()

    @unittest.skipUnless(NATIVE, "of the module")
    def test_checks_can_be_left_out_or_come_later(self):
        folder, _ = self.damaged()
        self.assertEqual(self.failing(open_arrays(folder, check=False)), {})
        ckpt = open_arrays(folder, check="later")
        ckpt.finish_checks()
        self.assertLessEqual(len(self.failing(ckpt)), 1)  # for the record, by whichever tensor comes next
        with self.assertRaises(dsckpt.CorruptError):
            with open_arrays(folder, check="later") as ckpt:
                for name in reversed(list(ckpt)):
                    ckpt[name].numpy()

    def test_what_is_not_there_is_an_error_of_its_kind(self):
        with self.assertRaises(KeyError):
            self.ckpt["no such tensor"]
        self.assertEqual(self.ckpt[self.name].states.get("nothing"), None)
        for kind, call in ((dsckpt.UsageError, lambda: dsckpt.open("/no/such/folder")),
                           (dsckpt.Error, lambda: dsckpt.open(self.root)),
                           (dsckpt.UsageError, lambda: dsckpt.open(self.case.load_dir, framework="tf")),
                           (dsckpt.UsageError, lambda: dsckpt.open(self.case.load_dir, check="maybe")),
                           (dsckpt.UsageError, lambda: dsckpt.open(self.case.load_dir, roots="folder")),
                           (dsckpt.Error, lambda: dsckpt.open(self.case.load_dir, tag="none")),
                           (dsckpt.Error, lambda: dsckpt.open(self.case.load_dir, tp_rules=["=nonsense"]))):
            with self.assertRaises(kind):
                call()

    def test_one_of_several_models(self):
        output = self.new_path()
        for model, name in (("actor", "z2_bf16_w2"), ("critic", "z1_fp32_w1")):
            shutil.copytree(tools.case_named(name).load_dir, output / "global_step3" / model)
        with self.assertRaises(dsckpt.InconsistentError) as caught:
            dsckpt.open(output)
        self.assertIn("global_step3/actor", str(caught.exception))
        truth = tools.case_named("z2_bf16_w2").truth(dtype="keep")
        actor = open_arrays(output, model="actor")
        self.assertEqual(set(actor), set(truth))
        self.assert_same(actor["gain"].numpy(), truth["gain"].array)

    def test_a_file_that_shrinks_is_named(self):
        scratch = self.scratch("z1_fp32_w2")
        ckpt = open_arrays(scratch.folder)
        names = [name for name in ckpt if any("rank_1" in file for file in ckpt[name].files)]
        os.truncate(scratch.optim(1), 1000)
        with self.assertRaises(dsckpt.Error) as caught:
            ckpt[names[0]].numpy()
        self.assertIn(scratch.optim(1).name, str(caught.exception))

    def test_a_path_that_is_no_text_is_a_path(self):
        place = os.fsencode(self.new_path()) + b"\xff"
        os.symlink(os.path.abspath(self.case.load_dir), place)
        self.assertEqual(list(dsckpt.open(os.fsdecode(place))), list(self.ckpt))
        self.assertIn(self.name, dsckpt.open(pathlib.Path(os.fsdecode(place))))


@unittest.skipUnless(NATIVE, "of the module")
class ProgressTest(OpenTest):

    def large(self):
        folder = self.new_path("ckpt")
        large_checkpoint.write_one(folder, 64 << 20)
        return folder

    def test_it_is_told_and_what_it_raises_stops_the_reading(self):
        ckpt = open_arrays(self.large())
        seen = []
        ckpt.state_dict(progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(seen[-1][0], seen[-1][1])
        self.assertGreater(seen[-1][1], 0)

        def stop(done, total):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            ckpt.state_dict(progress=stop)
        self.assertEqual(len(ckpt.state_dict()), len(ckpt))

    def test_other_threads_run_meanwhile(self):
        ckpt, ticks, done = open_arrays(self.large()), [], threading.Event()

        def tick():
            while not done.is_set():
                ticks.append(1)
                time.sleep(0.001)

        thread = threading.Thread(target=tick)
        thread.start()
        for _ in range(5):
            before = len(ticks)
            ckpt.state_dict()
            if len(ticks) > before + 1:
                break
        done.set()
        thread.join()
        self.assertGreater(len(ticks), before + 1)

    def test_ctrl_c_is_a_keyboardinterrupt(self):
        program = ("import dsckpt\n"
                   f"ckpt = dsckpt.open({str(self.large())!r}, framework='np')\n"
                   "print('ready', flush=True)\n"
                   "while True: ckpt.state_dict()\n")
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        process.stdout.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", said)


if __name__ == "__main__":
    cli_common.main()
