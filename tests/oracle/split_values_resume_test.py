"""DeepSpeed's engines load what reshard makes of models that are split: other weights, another stage or precision.

Engines that start from other weights load the files with no flag. Their masters and optimizer states must be the given
or saved ones, bit for bit, and their modules the rounded masters. Where the training goes on, the next losses must be
those of the run that was never interrupted.
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
from safetensors.torch import load_file, save_file

import make_model_parallel
import oracle
from make_checkpoints import DEFAULT_SEED, STEPS_AFTER, STEPS_BEFORE, free_port, run_forked
from regrid_test import VOCABULARY, words
from reshard_mp_test import TESTDATA, Expected
from split_values_test import Given, as_masters, write_weights

TOLERANCE = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 2e-2}


def resume_worker(rank, world, port, case, folder, seed):
    run = make_model_parallel.start(rank, world, port, case, seed, seed + 1)
    path, _ = run.engine.load_checkpoint(str(folder / "out"))
    if path is None:
        raise AssertionError("DeepSpeed loaded nothing")
    live = make_model_parallel.gathered_by_place(run, make_model_parallel.live_masters(run.engine, case.stage))
    module = {} if case.stage == 3 else \
        make_model_parallel.gathered_by_place(run, make_model_parallel.live_module(run.engine))
    losses = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    if rank == 0:
        save_file(make_model_parallel.whole(live), folder / "live.safetensors")
        save_file(make_model_parallel.whole(module), folder / "module.safetensors")
        (folder / "losses.json").write_text(json.dumps(losses))
    torch.distributed.barrier()


def start_worker(rank, world, port, case, folder, seed):
    """The masters that an engine begins with."""
    run = make_model_parallel.start(rank, world, port, case, seed, seed + 2)
    live = make_model_parallel.gathered_by_place(run, make_model_parallel.live_masters(run.engine, case.stage))
    if rank == 0:
        save_file(make_model_parallel.whole(live), folder / "live.safetensors")
    torch.distributed.barrier()


def masters_in(live):
    return {key: value for key, value in live.items() if "|fp32|" in key}


class Engines(oracle.OracleTest):
    def each(self, rows, check):
        by_name = {case.name: case for case in make_model_parallel.CASES}
        for name, changes in rows:
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            with self.subTest(case=name, **changes), tempfile.TemporaryDirectory() as scratch:
                target = dataclasses.replace(by_name[name], **changes)
                check(oracle.Case(TESTDATA / name), target, pathlib.Path(scratch))

    def fork(self, worker, target, folder):
        folder.mkdir(exist_ok=True)
        port = free_port()
        error = run_forked(worker, folder / "logs", [(rank, target.world, port, target, folder, DEFAULT_SEED)
                                                     for rank in range(target.world)])
        self.assertFalse(error, error)

    def load(self, target, folder):
        self.fork(resume_worker, target, folder)
        return (load_file(folder / "live.safetensors"), load_file(folder / "module.safetensors"),
                json.loads((folder / "losses.json").read_text()))

    def check_held(self, expected, target, live, module):
        for key, value in live.items():
            name, state, pp, tp, ep = key.split("|")
            wanted = expected.tensor(name, state, int(pp[2:]), int(tp[2:]), int(ep[2:]), target.ep)
            self.assertTrue(torch.equal(value.reshape(wanted.shape).float(), wanted.float()), key)
        dtype = oracle.DTYPES[{"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[target.dtype]]
        compared, stale = 0, make_model_parallel.stale_copies(module)
        for key, value in module.items():
            name, *place = key.split("|")
            master = "|".join([name, "fp32", *place])
            if master not in live or key in stale:
                continue
            self.assertEqual(value.dtype, dtype, key)
            self.assertTrue(torch.equal(value, live[master].reshape(value.shape).to(dtype)), key)
            compared += 1
        self.assertTrue(compared or target.stage == 3)

    def test_engines_hold_the_given_weights_and_the_states_that_were_saved(self):
        rows = [("pp2_tp2_dp1_z1_bf16", {}), ("autotp2_dp1_z1_bf16", {}), ("mpu_tp2_dp2_z2_bf16", {"dp": 1}),
                ("autotp2_dp2_z3_bf16", {"dp": 1}), ("moe_ep2_dp2_z1_bf16", {}), ("autoep2_dp2_z1_bf16", {})]
        self.each(rows, self.check_weights)

    def check_weights(self, case, target, folder):
        given = write_weights(case, folder)
        self.run_well("reshard", folder / "out", case.load_dir, folder / "out", "--dp", target.dp, "--weights-from",
                      folder / "given.safetensors")
        live, module, losses = self.load(target, folder)
        self.check_held(Given(case, as_masters(given)), target, live, module)
        self.assertEqual(len(losses), STEPS_AFTER)

    def test_engines_of_another_grid_hold_their_parts_of_the_given_weights(self):
        """Engines of that grid begin with these parts if their program makes the model with these weights."""
        rows = [("mpu_tp2_dp2_z2_bf16", {"tp": 4, "dp": 1}), ("pp2_dp1_z1_fp16", {"pp": 3}),
                ("moe_ep2_tp2_dp2_z2_bf16", {"tp": 4, "dp": 1, "ep": 1})]
        self.each(rows, self.check_weights_on_grid)

    def check_weights_on_grid(self, case, target, folder):
        self.fork(start_worker, dataclasses.replace(target, tp=1, pp=1, dp=1, ep=1), folder / "whole")
        self.fork(start_worker, target, folder / "parts")
        whole, parts = (masters_in(load_file(folder / name / "live.safetensors")) for name in ("whole", "parts"))
        weights = {key.split("|")[0]: value for key, value in whole.items()}
        for name in case.facts["rules"].get("vocabulary", ()):
            weights[name] = weights[name][:VOCABULARY].clone()
        save_file(weights, folder / "given.safetensors")
        more = ["--stages", "uniform"] if target.pp > 1 else []
        more += ["--ep", target.ep] if target.ep != case.facts["topology"]["ep"] else []
        self.run_well("reshard", folder / "out", case.load_dir, folder / "out", "--weights-from",
                      folder / "given.safetensors", *words(case, target.tp, target.pp, target.dp, more))
        live, _, losses = self.load(target, folder)
        self.assertEqual(set(masters_in(live)), set(parts))
        for key, value in parts.items():
            self.assertTrue(torch.equal(live[key], value), key)
        self.assertEqual(len(losses), STEPS_AFTER)

    def test_engines_of_another_stage_or_precision_go_on(self):
        rows = [("autotp2_dp1_z1_bf16", {"stage": 2}), ("autotp2_dp1_z1_bf16", {"stage": 3}),
                ("autotp2_dp1_z1_bf16", {"stage": 0, "dtype": "fp32"}), ("autotp2_dp2_z3_bf16", {"stage": 1, "dp": 1}),
                ("mpu_tp2_dp1_z1_bf16", {"stage": 2, "dtype": "fp16"}), ("pp2_dp1_z1_bf16", {"dtype": "fp32"}),
                ("pp2_dp1_z1_fp16", {"dtype": "bf16", "dp": 2}), ("pp2_dp1_z1_bf16", {"stage": 0, "dtype": "fp32"}),
                ("moe_ep2_dp4_z1_fp32", {"stage": 2, "ep": 4}), ("moe_ep2_dp2_z1_bf16", {"dtype": "fp32"}),
                ("autoep2_dp2_z1_bf16", {"stage": 2, "dtype": "fp32"}), ("autotp2_dp1_z0_fp32", {"stage": 1, "dp": 2}),
                ("pp2_dp1_z0_fp32", {"stage": 1, "dtype": "bf16"})]
        self.each(rows, self.check_change)

    def check_change(self, case, target, folder):
        config = make_model_parallel.ds_config(target)
        (folder / "ds.json").write_text(json.dumps(config))
        options = ["--ep", target.ep] if target.ep != case.facts["topology"]["ep"] else []
        self.run_well("reshard", folder / "out", case.load_dir, folder / "out", "--dp", target.dp, "--ds-config",
                      folder / "ds.json", *options)
        self.check_goes_on(case, target, folder)

    def check_goes_on(self, case, target, folder):
        live, module, losses = self.load(target, folder)
        self.check_held(Expected(case), target, live, module)
        tolerance = max(TOLERANCE[case.facts["precision"]], TOLERANCE[target.dtype])
        for ours, theirs in zip(losses, case.facts["losses_after_save"], strict=True):
            self.assertLessEqual(abs(ours - theirs), tolerance, f"{losses}")

    def test_an_example_of_the_new_run_says_its_stage_precision_and_groups(self):
        rows = [("autotp2_dp2_z1_fp32", "autotp2_dp2_z2_bf16", {"dp": 1}, []),
                ("autotp2_dp2_z2_bf16", "autotp2_dp2_z3_bf16", {"dp": 1}, []),
                ("moe_ep2_dp4_z1_fp32", "moe_ep2_dp4_z2_fp32", {"dp": 2}, []),
                ("pp2_dp2_z1_fp32", "pp3_dp1_z1_fp32", {}, ["--pp", 3, "--stages", "uniform"])]
        by_name = {case.name: case for case in make_model_parallel.CASES}
        for name, like, changes, options in rows:
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            with self.subTest(case=name, like=like), tempfile.TemporaryDirectory() as scratch:
                folder, case = pathlib.Path(scratch), oracle.Case(TESTDATA / name)
                target = dataclasses.replace(by_name[like], **changes)
                self.run_well("reshard", folder / "out", case.load_dir, folder / "out", "--dp", target.dp, "--like",
                              oracle.Case(TESTDATA / like).load_dir, *options)
                if options:  # the names of the stages are others
                    live, _, losses = self.load(target, folder)
                    whole = {key.split("|pp")[0]: value for key, value in case.expected("live").items()}
                    for key, value in live.items():
                        self.assertTrue(torch.equal(value, whole[key.split("|pp")[0]]), key)
                    for ours, theirs in zip(losses, case.facts["losses_after_save"], strict=True):
                        self.assertLessEqual(abs(ours - theirs), TOLERANCE["fp32"])
                else:
                    self.check_goes_on(case, target, folder)


if __name__ == "__main__":
    unittest.main()
