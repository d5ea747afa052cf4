"""dsckpt.open gives torch's tensors: their values, types, memory and indices are torch's. By the compiled module and by
the program alone.

The tests that do not need torch are in cli/python_open_test.py.
"""
import gc
import os
import shutil
import subprocess
import sys
import unittest
from unittest import mock

from opened_case import NATIVE, OpenedCase  # first: it decides whether the module is there

import cli_common
import dsckpt
import object_server
import oracle
import safetensors.torch
import tools
import torch
from object_server import Store, serving

# Opens a file with one tensor; prints whether it is all 7, and of every 2 MiB whether they are to be huge pages ("hg").
HUGE_PAGES_OF = """
import re, sys, dsckpt
tensor, = (each[...] for each in dsckpt.open(sys.argv[1]).values())
huge = {}
for line in open("/proc/self/smaps"):
    if found := re.match("([0-9a-f]+)-([0-9a-f]+) ", line):
        begin, end = (int(part, 16) for part in found.groups())
    elif line.startswith("VmFlags:"):
        huge[begin, end] = "hg" in line.split()
def is_huge(address):
    return next(flag for (begin, end), flag in huge.items() if begin <= address < end)
print(bool((tensor == 7).all()), [is_huge(tensor.data_ptr() + at) for at in range(0, tensor.nbytes, 2 << 20)])
"""


class TensorsTest(OpenedCase):

    def setUp(self):
        super().setUp()
        self.case = oracle.case_named("z2_fp32_full_w3")
        self.ckpt = dsckpt.open(self.case.load_dir)
        self.name = max(self.ckpt, key=lambda name: self.ckpt[name].numel)
        self.expected = self.case.truth(dtype="keep")[self.name]

    def assert_same(self, got, expected):
        self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
        self.assertTrue(oracle.same_bits(got, expected))

    def test_the_reader_is_the_one_that_is_tested(self):
        self.assert_reader()

    def test_tensors_are_the_live_engines(self):

        def compare(case, ckpt, truth):
            together = ckpt.state_dict()
            self.assertEqual(list(together), list(ckpt))
            for name, expected in truth.items():
                self.assert_same(together[name], expected)
                self.assertEqual((ckpt[name].dtype, ckpt[name].shape, ckpt[name].nbytes),
                                 (str(expected.dtype)[6:], expected.shape, expected.nbytes))
            for name in list(truth)[:3]:
                self.assert_same(ckpt[name].torch(), truth[name])
            for alias, owner in case.tied.items():
                self.assertEqual(together[alias].data_ptr(), together[owner].data_ptr())
            return len(truth)

        self.compare_each(oracle.all_cases(), compare)

    def test_states_are_the_live_optimizers(self):
        compared = 0
        for _, _, found, expected in self.each_state(oracle.case_named):
            self.assert_same(found.torch().float().flatten(), expected.float().flatten())
            compared += 1
        self.assertGreater(compared, 3)

    def test_every_type_is_torchs(self):
        for tensor, expected in self.each_type(safetensors.torch.load_file):
            self.assert_same(tensor.torch(), expected)
            self.assertEqual(tensor.dtype, str(expected.dtype)[6:])

    def test_an_index_reads_what_torch_would_give(self):
        self.check_index(self.ckpt, self.name, self.expected, torch.tensor([1, 0]))

    def test_dlpack_takes_them(self):
        self.assert_same(torch.from_dlpack(self.ckpt[self.name]), self.expected)
        folder = self.new_path()
        dsckpt.convert(self.case.load_dir, folder, dtype="bf16", safe_serialization=True)
        self.assert_same(torch.from_dlpack(dsckpt.open(folder)[self.name]), self.expected.bfloat16())

    @unittest.skipUnless(tools.reads_object_stores(), "this build reads no object stores")
    def test_a_bucket(self):
        buckets = self.new_path("buckets")
        shutil.copytree(self.case.load_dir, buckets / "models")
        with serving(Store(buckets)) as endpoint, mock.patch.dict(os.environ, object_server.environment(endpoint)):
            far = dsckpt.open("s3://models")
            self.assert_same(far[self.name].torch(), self.expected)
            self.assert_same(far[self.name][1:3], self.expected[1:3])

    def test_writing_into_a_tensor_changes_no_file(self):
        before = cli_common.snapshot(self.case.load_dir)
        for mmap in (False, True):
            ckpt = dsckpt.open(self.case.load_dir, mmap=mmap)
            ckpt[self.name].torch().fill_(1)
            self.assert_same(dsckpt.open(self.case.load_dir)[self.name].torch(), self.expected)
        self.assertEqual(cli_common.snapshot(self.case.load_dir), before)

    def test_a_tensor_outlives_its_checkpoint(self):
        for mmap in (False, True):
            tensor = dsckpt.open(self.case.load_dir, mmap=mmap)[self.name].torch()
            gc.collect()
            self.assert_same(tensor, self.expected)

    @unittest.skipUnless(NATIVE, "the program writes files")
    def test_huge_pages_are_asked_for_where_torch_would(self):
        path = self.root / "large.safetensors"
        safetensors.torch.save_file({"large": torch.full([5 << 18], 7.0)}, path)  # 5 MiB
        for value, wanted in (("1", [True, True, False]), ("0", [False] * 3)):
            with self.subTest(value=value):
                done = subprocess.run([sys.executable, "-c", HUGE_PAGES_OF, path], capture_output=True, text=True,
                                      env={**os.environ, "THP_MEM_ALLOC_ENABLE": value})
                self.assertEqual(done.stderr, "")
                self.assertEqual(done.stdout, f"True {wanted}\n")

    @unittest.skipUnless(NATIVE, "of the module")
    def test_a_wrong_record_is_found_behind_deepspeeds_function(self):
        folder, _ = self.damaged("z2_bf16_w2")
        program = ("import dsckpt\n"
                   "read = dsckpt.deepspeed.get_fp32_state_dict_from_zero_checkpoint\n"
                   f"lazy = read({str(folder)!r}, lazy_mode=True)\n"
                   "try:\n  [value.contiguous() for value in lazy.values()]\n"
                   "except dsckpt.CorruptError:\n  print('now')\n")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertTrue("now" in done.stdout or "CRC32 mismatch" in done.stderr, done.stderr)


if __name__ == "__main__":
    tools.main()
