"""Universal checkpoints of split models as input: native shards of other grids, and running engines.

DeepSpeed's own loader is the oracle. Engines of the new grid, which start from other weights, load the universal
checkpoint with load_universal. Others load what reshard makes of it with no flag, or the checkpoint itself by
dsckpt.load_checkpoint. All must hold the same masters and states, bit for bit, and take the same losses. An engine that
loads it itself must hold in everything what one holds that loads reshard's files.
DSCKPT_CASES, a regular expression, restricts it to some cases.
"""
import dataclasses
import json
import os
import pathlib
import re
import tempfile
import unittest
import warnings

import torch
from safetensors.torch import save_file

import make_model_parallel
import oracle
import resume_check
from live_load_test import TIMEOUT, after, unlike
from make_checkpoints import DEFAULT_SEED, STEPS_AFTER, STEPS_BEFORE, free_port, run_forked
from native_checkpoint import differences
from regrid_test import files_below, load, value_in, words
from reshard_mp_resume_test import TOLERANCE
from reshard_mp_test import TESTDATA
from split_values_test import write_weights
from universal_test import run_deepspeed

# A case, the grid of the engines, the options for it, and what makes the universal checkpoint.
OURS, THEIRS = "to-universal", "ds_to_universal.py"
ROWS = [
    ("mpu_tp2_dp2_z2_bf16", {"tp": 4, "dp": 1}, [], OURS),
    ("mpu_tp2_dp2_z1_fp32", {"tp": 3, "dp": 1}, [], THEIRS),
    ("mpu_tp3_dp1_z1_fp32", {"tp": 1, "dp": 2}, [], OURS),
    ("mpu_tp2_dp1_z1_bf16", {"dp": 2}, [], OURS),
    ("autotp2_dp2_z1_fp32", {"tp": 1}, [], THEIRS),
    ("autotp2_dp2_z2_bf16", {"dp": 1}, [], OURS),
    ("autotp2_dp2_z3_bf16", {"dp": 1}, [], OURS),
    ("pp2_dp2_z1_fp32", {"pp": 1, "dp": 1}, [], OURS),
    ("pp2_dp1_z1_fp16", {"pp": 3}, ["--stages", "uniform"], OURS),
    ("pp2_dp2_z1_bf16", {"dp": 1}, [], THEIRS),
    ("pp2_tp2_dp2_z1_fp32", {"tp": 1}, [], OURS),
    ("pp2_tp2_dp1_z1_bf16", {"pp": 1}, [], OURS),
]
# Cases of other kinds of cuts and of other programs; tensor-parallel ranks and pipeline stages of the new run.
FILES = [
    ("model_parallel/autotp2_dp1_z1_codegen", 1, 1), ("model_parallel/autotp2_dp1_z1_bigcode", 1, 1),
    ("model_parallel/autotp2_dp1_z1_bigcode", 4, 1), ("model_parallel/autotp2_dp1_z1_uneven", 1, 1),
    ("model_parallel/autotp2_dp1_z1_uneven", 2, 1), ("model_parallel/autotp2_dp2_z2_fused", 4, 1),
    ("model_parallel/autotp2_dp2_z3_fused", 1, 1), ("model_parallel/autotp2_dp2_z3_bf16", 4, 1),
    ("megatron/megatron_gpt_tp2_dp2_z2_fp16", 4, 1), ("megatron/megatron_gpt_pp2_tp2_dp1_z1_bf16", 4, 1),
    ("megatron/megatron_gpt_pp2_tp2_dp1_z1_bf16", 1, 2), ("megatron/neox_pp2_tp1_dp2_z1_bf16", 1, 1),
    ("model_parallel/pp2_dp2_z1_bf16opt", 1, 3), ("model_parallel/pp3_dp1_z1_fp32", 1, 2),
]


def tensors_of(run, stage):
    live = make_model_parallel.live_masters(run.engine, stage)
    return make_model_parallel.whole(make_model_parallel.gathered_by_place(run, live))


def load_worker(rank, world, port, case, folder, output, seed):
    # DeepSpeed's universal loader leaves buffers as the model was built with them.
    weights = seed if case.config.get("checkpoint") else seed + 1
    run = make_model_parallel.start(rank, world, port, case, seed, weights)
    path, _ = run.engine.load_checkpoint(str(folder))
    if path is None:
        raise AssertionError("DeepSpeed loaded nothing")
    live = tensors_of(run, case.stage)
    losses = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    if rank == 0:
        output.mkdir()
        save_file(live, output / "live.safetensors")
        (output / "losses.json").write_text(json.dumps(losses))
    torch.distributed.barrier()


def live_worker(rank, world, port, resume, source, reference, report):
    import dsckpt
    engine, step, _ = resume_check.start_model_parallel(resume, resume.case(False), rank, port)
    _, client_state = engine.load_checkpoint(str(reference))
    native = after(engine, step, client_state)
    engine, step, _ = resume_check.start_model_parallel(resume, resume.case(False), rank, port)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*DeepSpeed's own load_checkpoint", dsckpt.DsckptWarning)
        _, client_state = dsckpt.load_checkpoint(engine, source)
    lines = resume_check.everywhere(unlike(after(engine, step, client_state), native, False))
    if rank == 0:
        report.write_text(json.dumps(lines))
    torch.distributed.barrier()


class UniversalRegridTest(oracle.OracleTest):
    maxDiff = None

    def make_universal(self, case, folder, maker=OURS):
        """The folder with `latest_universal`."""
        universal = folder / f"{case.facts['tag']}_universal"
        if maker == OURS:
            self.run_well("to-universal", universal, case.load_dir, universal)
        else:
            folder.mkdir()
            self.assertEqual(run_deepspeed(case.tag_folder, universal), "")
            (folder / "latest_universal").write_text(universal.name)
        return folder

    def like_of(self, case, folder, grid, maker=OURS):
        """A checkpoint of the new run with other weights, which tells the layers of a pipeline.

        It has the buffers that DeepSpeed's converter leaves out.
        """
        if case.facts["topology"]["pp"] == 1:
            return []
        weights = []
        if maker == OURS:
            write_weights(case, folder)
            weights = ["--weights-from", folder / "given.safetensors"]
        self.run_well("reshard", folder / "like", case.load_dir, folder / "like", *weights, *grid)
        return ["--like", folder / "like"]

    def each_row(self, check, rows=ROWS):
        by_name = {case.name: case for case in make_model_parallel.CASES}
        for name, size, more, maker in rows:
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            with self.subTest(case=name, **size), tempfile.TemporaryDirectory() as scratch:
                case, target = oracle.Case(TESTDATA / name), dataclasses.replace(by_name[name], **size)
                grid = words(case, target.tp, target.pp, target.dp, more)
                folder = pathlib.Path(scratch)
                universal = self.make_universal(case, folder / "universal", maker)
                self.run_well("reshard", folder / "out", universal, folder / "out", *grid,
                              *self.like_of(case, folder, grid, maker))
                check(case, target, folder, size)

    def load(self, target, source, output):
        port = free_port()
        error = run_forked(load_worker, output.parent / f"logs_{output.name}",
                           [(rank, target.world, port, target, source, output, DEFAULT_SEED)
                            for rank in range(target.world)])
        self.assertFalse(error, error)
        return oracle.load_file(output / "live.safetensors"), json.loads((output / "losses.json").read_text())

    def test_engines_hold_what_deepspeeds_universal_loading_gives_them(self):
        self.each_row(self.compare_with_deepspeed)

    def compare_with_deepspeed(self, case, target, folder, _):
        universal = dataclasses.replace(target, config={**target.config, "checkpoint": {"load_universal": True}})
        expected, losses = self.load(universal, folder / "universal", folder / "theirs")
        found, taken = self.load(target, folder / "out", folder / "ours")
        self.assertEqual(set(found), set(expected))
        for key, value in expected.items():
            self.assertTrue(oracle.same_bits(found[key], value), key)
        if case.stage == 3:  # where the loader gives one count of steps to all sub-groups, which then runs ahead
            losses = losses[:1] + case.facts["losses_after_save"][1:]
        tolerance = TOLERANCE[case.facts["precision"]] if case.stage == 3 else 0
        for ours, theirs in zip(taken, losses, strict=True):
            self.assertLessEqual(abs(ours - theirs), tolerance)

    def test_running_engines_hold_what_they_would_hold_of_reshards_files(self):
        # An engine does not load buffers that are in no file.
        self.each_row(self.compare_live, [row for row in ROWS if row[0][:2] != "pp" or row[3] == OURS])

    def compare_live(self, case, target, folder, size):
        resume, port, report = resume_check.Resume(case.folder, size), free_port(), folder / "report.json"
        error = run_forked(live_worker, folder / "logs",
                           [(rank, target.world, port, resume, folder / "universal", folder / "out", report)
                            for rank in range(target.world)], timeout=TIMEOUT)
        self.assertIsNone(error)
        self.assertEqual(json.loads(report.read_text()), [])

    def test_the_universal_checkpoint_of_every_grid_is_that_of_the_input(self):
        for name, tp, pp in FILES:
            case = oracle.Case(TESTDATA.parent / name)
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            with self.subTest(case=name, tp=tp, pp=pp), tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch)
                grid = words(case, tp, pp, 1, ["--stages", "uniform"])
                universal = self.make_universal(case, folder / "universal")
                self.run_well("reshard", folder / "out", universal, folder / "out", *grid,
                              *self.like_of(case, folder, grid))
                self.assert_whole_and_harmless(folder / "out")
                self.run_well("to-universal", folder / "again", folder / "out", folder / "again")
                expected, found = (files_below(next(each.rglob("zero"))) for each in (universal, folder / "again"))
                self.assertEqual(set(found), set(expected))
                for path in expected:
                    if path.name == "optimizer_state.pt":  # what a rank's optimizer has besides, paddings and all
                        continue
                    if case.stage == 3 and tp == 1:  # where rules are not used
                        self.assertTrue(torch.equal(value_in(found[path]), value_in(expected[path])), path)
                    else:
                        self.assertEqual(found[path].read_bytes(), expected[path].read_bytes(), path)

    def test_other_values_get_into_it_as_into_the_native_checkpoint(self):
        """Other weights, and values of torch.distributed.checkpoint and of weights alone like a universal one."""
        rows = [("autotp2_dp2_z2_bf16", 4, 1), ("autotp2_dp2_z3_bf16", 1, 1), ("autotp2_dp1_z1_bigcode", 4, 1)]
        for name, tp, pp in rows:
            case = oracle.Case(TESTDATA / name)
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            with self.subTest(case=name), tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch)
                write_weights(case, folder)
                universal = self.make_universal(case, folder / "universal")
                self.run_well("to-dcp", folder / "dcp", case.load_dir, folder / "dcp", "--dp", 2)
                weights, grid = folder / "given.safetensors", words(case, tp, pp, 1, [])
                # The input and the checkpoint of the run, which is the input itself if there is no other.
                commands = {"weights": (None, "--weights-from", weights), "start": (weights, "--like", None),
                            "values": (folder / "dcp", "--like", None)}
                for what, command in commands.items():
                    for source, run in (("native", case.load_dir), ("universal", universal)):
                        given, option, other = (run if word is None else word for word in command)
                        output = folder / f"{what}_{source}"
                        self.run_well("reshard", output, given, output, option, other, *grid)
                    self.assert_same(folder / f"{what}_universal", folder / f"{what}_native")

    def assert_same(self, found, expected):
        self.assertEqual(set(files_below(found)), set(files_below(expected)))
        for path, file in files_below(expected).items():
            if path.suffix == ".pt":
                self.assertEqual(differences(load(found / path), load(file)), [], path)


if __name__ == "__main__":
    unittest.main()
