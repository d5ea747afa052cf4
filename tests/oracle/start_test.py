"""DeepSpeed trains from weights: through the universal checkpoint and through the native shards made of them.
It has the very masters and losses of an engine whose model had the weights from the beginning.
"""
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

WORKER = pathlib.Path(__file__).with_name("start_worker.py")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(folder, world, worker=WORKER, **options):
    """The findings of the first of `world` ranks of `worker`."""
    options = {"stage": 1, "bf16": False, "warmup": False, "groups": 2, "like_steps": 2,
               "starts": ["alone", "told", "native"], **options, "folder": str(folder),
               "found": str(folder / "found.json")}
    (folder / "options.json").write_text(json.dumps(options))
    port = str(free_port())
    ranks = [subprocess.Popen([sys.executable, str(worker), str(folder / "options.json")], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**os.environ, "DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1",
                                   "MASTER_PORT": port, "WORLD_SIZE": str(world), "RANK": str(rank),
                                   "LOCAL_RANK": str(rank)}) for rank in range(world)]
    outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise AssertionError("\n".join(output[-4000:] for output in outputs))
    return json.loads((folder / "found.json").read_text())


class StartTest(unittest.TestCase):

    def check(self, world, **options):
        with self.subTest(world=world, **options), tempfile.TemporaryDirectory() as folder:
            found = run(pathlib.Path(folder), world, **options)
            reference = found.pop("reference")
            self.assertEqual(len(reference), 4)
            self.assertEqual(len(set(reference)), 4, "the reference does not train")
            for name, start in found.items():
                self.assertEqual(start["wrong"], [], name)
                self.assertEqual(start["held"], ["embed.weight", "fc.bias", "fc.weight", "norm.bias", "norm.weight",
                                                 "order", "scale"], name)
                self.assertEqual(start["global_steps"], 0, name)
                self.assertEqual(start["losses"], reference, name)

    def test_every_stage_starts_at_every_number_of_ranks(self):
        for stage, world in itertools.product((1, 2, 3), (1, 2)):
            # Stage 3 loads one step count and the first group's hyper-parameters for all sub-groups of a
            # universal checkpoint. torch's AdamW of two groups cannot use that.
            self.check(world, stage=stage, groups=1 if stage == 3 else 2)

    def test_two_groups_start_at_stage_3_from_native_shards(self):
        self.check(2, stage=3, starts=["native"])

    def test_16_bit_runs_start_from_16_bit_weights(self):
        for stage in (1, 2, 3):
            self.check(2, stage=stage, bf16=True, groups=1)

    def test_schedules_begin(self):
        for stage in (1, 3):
            self.check(2, stage=stage, warmup=True, groups=1, like_steps=0)


if __name__ == "__main__":
    unittest.main()
