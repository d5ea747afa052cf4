"""DeepSpeed goes on training from resharded pipeline-, tensor- and expert-parallel checkpoints.

Engines of the new numbers of ranks, which start from other weights, load what reshard wrote with no flag. Their
masters and optimizer states must be the saved ones, bit for bit. Their next losses must be those of the run
that was never interrupted, but for the order of sums over ranks. DSCKPT_CASES, a regular expression, restricts
it to some cases.
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
from reshard_mp_test import EXPERT, TESTDATA, Expected

# Case, data-parallel and expert-parallel ranks of the run that resumes, its ZeRO stage if that is another, and the
# variant of its model.
ROWS = [
    ("pp2_dp2_z1_bf16", 1, 1),
    ("pp2_dp2_z1_bf16opt", 3, 1),
    ("pp2_dp2_parwrite_z1_fp32", 3, 1),
    ("pp2_tp2_dp2_z1_fp32", 1, 1),
    ("mpu_tp2_dp2_z2_bf16", 3, 1),
    ("autotp2_dp2_z1_fp32", 3, 1),
    ("autotp2_dp2_z3_bf16", 3, 1),
    ("moe_ep2_dp4_z1_fp32", 2, 2),
    ("moe_ep2_dp4_z2_fp32", 4, 4),
    ("moe_ep2_dp2_z1_bf16", 3, 1),
    ("autoep2_dp4_z2_fp32", 2, 1),
    ("autoep2_dp4_z2_fp32", 4, 4),
    ("autoep2_dp4_z3_fp32", 2, 2),
    ("autoep2_dp4_z3_fp32", 4, 4),
    ("moe_ep2_dp2_z0_fp32", 4, 2),
    ("moe_ep2_dp2_z0_fp32", 4, 4),
    ("moe_ep2_dp2_z0_fp32", 3, 1),
    ("autoep2_dp2_z0_fp32", 2, 1),
    ("autoep2_dp2_z0_fp32", 4, 4),
    # Other stages
    ("moe_ep2_dp4_z1_fp32", 2, 2, 0, "marked"),
    ("moe_ep2_dp2_z1_bf16", 4, 4, 0, "marked"),
    ("moe_ep2_dp4_z2_fp32", 2, 1, 1),
    ("autoep2_dp2_z0_fp32", 4, 2, 2),
    ("autoep2_dp2_z0_fp32", 2, 1, 3),
    ("autoep2_dp2_z1_bf16", 2, 1, 0),
    ("autoep2_dp2_z1_bf16", 4, 2, 3),
    ("autoep4_dp4_z2_fp32", 2, 2, 0),
    ("autoep2_dp4_z2_fp32", 4, 4, 3),
    ("autoep2_dp4_z3_fp32", 2, 1, 0),
    ("autoep2_dp4_z3_fp32", 4, 4, 1),
    ("autoep2_dp4_z3_fp32", 2, 2, 2),
]
TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 2e-2}


def resume_worker(rank, world, port, case, folder, seed):
    from safetensors.torch import save_file
    run = make_model_parallel.start(rank, world, port, case, seed, seed + 1)
    path, _ = run.engine.load_checkpoint(str(folder / "out"))
    if path is None:
        raise AssertionError("DeepSpeed loaded nothing")
    live = make_model_parallel.gathered_by_place(run, make_model_parallel.live_masters(run.engine, case.stage))
    losses = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    if rank == 0:
        save_file(make_model_parallel.whole(live), folder / "live.safetensors")
        (folder / "losses.json").write_text(json.dumps(losses))
    torch.distributed.barrier()


class ReshardResumeTest(unittest.TestCase):

    def test_engines_of_other_sizes_hold_what_was_saved_and_go_on(self):
        by_name = {case.name: case for case in make_model_parallel.CASES}
        for name, dp, ep, *other in ROWS:
            if not re.search(os.environ.get("DSCKPT_CASES", ""), f"{name} {dp} {ep} {other}"):
                continue
            with self.subTest(case=name, dp=dp, ep=ep, other=other), tempfile.TemporaryDirectory() as scratch:
                self.resume(by_name[name], dp, ep, pathlib.Path(scratch), *other)

    def resume(self, case, dp, ep, folder, stage=None, model=""):
        saved = oracle.Case(TESTDATA / case.name)
        options = [*(["--ep", ep] if ep != case.ep else []), *(["--stage", stage] if stage is not None else [])]
        done = tools.run_tool("reshard", saved.load_dir, folder / "out", "--dp", dp, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        target = dataclasses.replace(case, dp=dp, ep=ep, model=model or case.model,
                                     stage=case.stage if stage is None else stage)
        port = free_port()
        error = run_forked(resume_worker, folder / "logs",
                           [(rank, target.world, port, target, folder, DEFAULT_SEED)
                            for rank in range(target.world)])
        self.assertFalse(error, error)
        self.compare(saved, ep, oracle.load_file(folder / "live.safetensors"))
        losses = json.loads((folder / "losses.json").read_text())
        same = dp == case.dp and ep == case.ep and target.stage == case.stage
        tolerance = 0 if same else TOLERANCE[case.dtype]
        for ours, theirs in zip(losses, saved.facts["losses_after_save"], strict=True):
            self.assertLessEqual(abs(ours - theirs), tolerance, f"{losses}")

    def compare(self, saved, ep, live):
        expected = Expected(saved)
        self.assertEqual(sum(tensor.numel() for tensor in live.values()),
                         sum(tensor.numel() for tensor in expected.live.values()))
        for key, tensor in live.items():
            name, state, pp, tp, rank = key.split("|")
            pp, tp, rank = int(pp[2:]), int(tp[2:]), int(rank[2:])
            if EXPERT.fullmatch(name) or expected.is_expert(name):
                self.assertLess(rank, ep)
            self.assertTrue(torch.equal(tensor, expected.tensor(name, state, pp, tp, rank, ep)), key)


if __name__ == "__main__":
    unittest.main()
