"""DeepSpeed goes on training from what reshard made for other tensor-parallel ranks and pipeline stages.

Engines of the new grid, which start from other weights, load it with no flag. Their next losses are those of the run
that was never interrupted, but for the order of sums over ranks. Where ranks had values of their own, and now have
their mean, they are those of engines that load the universal checkpoint.
DSCKPT_CASES, a regular expression, restricts it to some cases.
"""
import dataclasses
import json
import os
import pathlib
import re
import tempfile
import unittest

import torch

import make_model_parallel
import oracle
import tools
from make_checkpoints import DEFAULT_SEED, STEPS_AFTER, STEPS_BEFORE, free_port, run_forked
from regrid_test import words
from reshard_mp_resume_test import TOLERANCE
from reshard_mp_test import TESTDATA

# Case; tensor-parallel ranks, pipeline stages and data-parallel ranks of the run that resumes; what has to be said.
ROWS = [
    ("autotp2_dp1_z0_fp32", 1, 1, 1, []),
    ("pp2_dp1_z0_fp32", 1, 1, 2, []),
    ("autotp2_dp2_z1_fp32", 1, 1, 2, []),
    ("autotp2_dp2_z2_bf16", 1, 1, 1, []),
    ("autotp2_dp2_z3_bf16", 1, 1, 2, []),
    ("mpu_tp2_dp2_z2_bf16", 4, 1, 1, []),
    ("mpu_tp2_dp2_z1_fp32", 3, 1, 1, []),
    ("mpu_tp3_dp1_z1_fp32", 2, 1, 2, []),
    ("pp2_dp2_z1_bf16", 1, 1, 1, []),
    ("pp2_dp1_z1_fp16", 1, 3, 1, ["--stages", "uniform"]),
    ("pp3_dp1_z1_fp32", 1, 2, 2, ["--stages", "uniform"]),
    ("pp2_tp2_dp2_z1_fp32", 1, 1, 2, []),
    ("pp2_tp2_dp2_z1_fp32", 1, 2, 1, []),
    ("pp2_tp2_dp1_z1_bf16", 2, 1, 1, []),
    ("moe_ep2_tp2_dp2_z2_bf16", 1, 1, 2, []),
]


# AutoTP saves no rules on a single rank.
LLAMA_RULES = [r".*(norm|embed_tokens)\.weight=replicated", r".*(o|down)_proj\.weight=cat:1",
               r".*(q|k|v|gate|up)_proj\.weight=cat:0", r"lm_head\.weight=cat:0"]


def save_worker(rank, world, port, case, folder, seed):
    run = make_model_parallel.start(rank, world, port, case, seed, seed)
    for number in range(STEPS_BEFORE):
        run.step(number)
    run.engine.save_checkpoint(str(folder / "ckpt"))
    losses = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    (folder / "expected.json").write_text(json.dumps(losses))
    torch.distributed.barrier()


def resume_worker(rank, world, port, case, folder, seed, weights):
    run = make_model_parallel.start(rank, world, port, case, seed, weights)
    path, _ = run.engine.load_checkpoint(str(folder / "out"))
    if path is None:
        raise AssertionError("DeepSpeed loaded nothing")
    losses = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    if rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses))
    torch.distributed.barrier()


class RegridResumeTest(unittest.TestCase):

    def test_engines_of_other_grids_go_on(self):
        by_name = {case.name: case for case in make_model_parallel.CASES}
        for name, tp, pp, dp, more in ROWS:
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            with self.subTest(case=name, tp=tp, pp=pp, dp=dp), tempfile.TemporaryDirectory() as scratch:
                self.resume(by_name[name], tp, pp, dp, more, pathlib.Path(scratch))

    def resume(self, case, tp, pp, dp, more, folder):
        saved = oracle.Case(TESTDATA / case.name)
        target = dataclasses.replace(case, tp=tp, pp=pp, dp=dp)
        losses = self.losses_of(folder / "native", target, "reshard", saved.load_dir,
                                *words(saved, tp, pp, dp, more))
        expected = saved.facts["losses_after_save"]
        if saved.facts["rules"].get("average"):
            target = dataclasses.replace(target, config={**case.config, "checkpoint": {"load_universal": True}})
            expected = self.losses_of(folder / "universal", target, "to-universal", saved.load_dir)
        for ours, theirs in zip(losses, expected, strict=True):
            self.assertLessEqual(abs(ours - theirs), TOLERANCE[case.dtype], f"{losses} {expected}")

    def test_autotps_ranks_get_uneven_shares_of_heads_and_rows(self):
        """3 key-value heads on 2 ranks, 26 and 37 rows on 3."""
        case = next(case for case in make_model_parallel.CASES if case.name == "autotp2_dp1_z1_uneven")
        if not re.search(os.environ.get("DSCKPT_CASES", ""), case.name):
            self.skipTest("not selected")
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            error = run_forked(save_worker, folder / "logs",
                               [(0, 1, free_port(), dataclasses.replace(case, tp=1), folder, DEFAULT_SEED)])
            self.assertFalse(error, error)
            rules = [word for rule in LLAMA_RULES for word in ("--tp-rule", rule)]
            for tp in (2, 3):
                losses = self.losses_of(folder / str(tp), dataclasses.replace(case, tp=tp), "reshard", folder / "ckpt",
                                        "--dp", 1, "--tp", tp, "--kv-heads", 3, *rules)
                for ours, theirs in zip(losses, json.loads((folder / "expected.json").read_text()), strict=True):
                    self.assertLessEqual(abs(ours - theirs), TOLERANCE[case.dtype], losses)

    def losses_of(self, folder, target, tool, saved, *options):
        (folder / "out").mkdir(parents=True)
        # Beside a universal checkpoint lies `latest_universal`.
        output = folder / "out" if tool == "reshard" else folder / "out" / "universal"
        done = tools.run_tool(tool, saved, output, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        # DeepSpeed's universal loader leaves buffers as the model was built with them.
        weights = DEFAULT_SEED + (tool == "reshard")
        port = free_port()
        error = run_forked(resume_worker, folder / "logs",
                           [(rank, target.world, port, target, folder, DEFAULT_SEED, weights)
                            for rank in range(target.world)])
        self.assertFalse(error, error)
        return json.loads((folder / "losses.json").read_text())


if __name__ == "__main__":
    unittest.main()
