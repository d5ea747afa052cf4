"""A change of tensor-parallel ranks reads each byte about once, and compares every copy of what ranks share."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import simulate
from simulate_models import MODELS
from simulate_tensor import TensorWriter

BIN = pathlib.Path(os.environ["DSCKPT_BIN"])

# Pipeline stages, tensor-parallel and data-parallel ranks of a run, and of the run that goes on.
CHANGES = [
    ((1, 2, 1), (1, 1, 1)),
    ((1, 2, 1), (1, 4, 1)),
    ((1, 2, 2), (1, 1, 1)),
    ((1, 4, 2), (1, 2, 2)),
    ((1, 4, 2), (1, 1, 1)),
    ((2, 1, 2), (2, 2, 1)),
    ((2, 2, 2), (2, 1, 2)),
    ((2, 2, 2), (1, 1, 1)),
    ((2, 2, 1), (2, 4, 2)),
    ((2, 4, 2), (2, 2, 1)),
]


def reshard(source, output, *options):
    return subprocess.run([str(word) for word in (BIN / "reshard", source, output, *options)], capture_output=True,
                          text=True)


class OddWriter(TensorWriter):
    """One number of the embeddings, which all ranks have, is another on one rank."""

    def __init__(self, folder, odd, rank, **ranks):
        super().__init__(folder, MODELS["tiny-llama"], **ranks)
        self.odd, self.odd_rank = odd, rank

    def weights(self, tp_rank):
        weights = super().weights(tp_rank)
        if (self.odd, self.odd_rank) == ("weight", tp_rank):
            next(iter(weights.values())).storage.values[3] = 5
        return weights

    def flat_states(self, tp_rank, dp_rank):
        states = super().flat_states(tp_rank, dp_rank)
        [number] = [i for i, group in enumerate(self.groups) if next(iter(self.shapes)) in group.shapes]
        if self.odd_rank == tp_rank and dp_rank == 0 and self.odd != "weight":
            masters, inner = states["single_partition_of_fp32_groups"], states["base_optimizer_state"]["state"]
            odd = masters[number] if self.odd == "fp32" else inner[number][self.odd]
            odd.storage.values[3] = 5
        return states


class RegridBytesTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def planned(self, source, pp, tp, dp):
        done = reshard(source, self.folder / "out", "--pp", pp, "--tp", tp, "--dp", dp, "--dry-run", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["data"]

    def test_no_more_is_read_than_by_a_change_of_data_parallel_ranks(self):
        for number, ((pp, tp, dp), grid) in enumerate(CHANGES):
            with self.subTest(pp=pp, tp=tp, dp=dp, grid=grid):
                source = self.folder / str(number)
                simulate.writer(source, MODELS["llama-400m"], stage=1 if pp > 1 else 2, pp=pp, tp=tp, dp=dp).write()
                done = reshard(source, self.folder / "out", "--dp", 3 - dp, "--dry-run", "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                ranks, plan = json.loads(done.stdout)["data"], self.planned(source, *grid)
                # More ranks have more copies, and each output is read for itself.
                self.assertLessEqual(plan["bytes_read"], 1.1 * max(ranks["bytes_read"], plan["bytes_written"]))

    def test_every_copy_is_compared(self):
        for tp in (1, 2):
            for odd in ("fp32", "exp_avg", "exp_avg_sq", "weight"):
                for rank in range(4):
                    with self.subTest(tp=tp, odd=odd, rank=rank):
                        source = self.folder / f"{tp}{odd}{rank}"
                        OddWriter(source, odd, rank, tp=4, dp=2).write()
                        done = reshard(source, self.folder / "out", "--tp", tp, "--dp", 1)
                        self.assertEqual(done.returncode, 3, done.stderr)
                        self.assertIn("model.embed_tokens.weight", done.stderr)
                        self.assertIn("tensor-parallel ranks", done.stderr)
                        self.assertFalse((self.folder / "out").exists())
        OddWriter(self.folder / "even", "fp32", None, tp=4, dp=2).write()
        self.assertEqual(reshard(self.folder / "even", self.folder / "out", "--tp", 2, "--dp", 1).returncode, 0)


if __name__ == "__main__":
    unittest.main()
