#!/usr/bin/env python3
"""Resumes checkpoints of testdata/releases in the releases of DeepSpeed themselves, at other numbers of ranks.

Run it with scripts/python, which knows where the makers of the test data are:

    release_resume.py ds0.7.7_z2_bf16_w2 --dp 3                        through reshard, loaded by 0.7.7
    release_resume.py ds0.16.9_z2_bf16_w2 --dp 3 --ds-version 0.10.3   loaded by 0.10.3
    release_resume.py ds0.16.9_z2_bf16_w2 --dp 3 --universal           through to-universal
    release_resume.py --matrix [--only REGEX]                          all of them

The engine starts from different weights than the run that saved, so that only a real load can match. After its own
load_checkpoint the engine must hold the state that the live one had when it saved, bit for bit. This is
masters, optimizer states, counts of steps, the module and the client state. The loss of the next step must be
that of the run that was never interrupted, within 1e-5 (fp32) or 2e-2 (16 bits: another order of sums). Exit
status: 0 when all of that holds.

Needs the tools in DSCKPT_BIN, and what make_releases.py needs.
"""
from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import pathlib
import re
import sys
import tempfile

import make_releases
import old_deepspeed
from make_checkpoints import free_port, run_forked
from make_releases import Recipe
from old_deepspeed import number
from oracle import case_of_release, cases_in, same_bits
from tools import run_tool

TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
RANKS = (1, 2, 3)


@dataclasses.dataclass(frozen=True)
class Resume:
    case: str  # of testdata/releases
    dp: int
    release: str  # that loads
    universal: bool = False

    @property
    def name(self):
        return f"{self.case}, {self.dp} ranks" + (", universal" if self.universal else "") + f", by {self.release}"

    @property
    def path(self):
        return f"{self.case}_dp{self.dp}_{self.release}" + ("_universal" if self.universal else "")


def converted(resume, folder):
    """Makes folder/PATH; returns the error, or None."""
    case, out = case_of_release(resume.case), folder / resume.path
    if resume.universal:
        out.mkdir(parents=True)
        done = run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder", out / "universal")
        (out / "latest_universal").write_text("universal")
    else:
        other = ["--ds-version", resume.release] if resume.release != case.facts["version"] else []
        done = run_tool("reshard", case.load_dir, out, "--dp", resume.dp, *other)
    return done.stderr.strip() or f"exit status {done.returncode}" if done.returncode else None


# --- under the release

def partly(resume, case):
    """Universal checkpoints restore what the optimizer owns; before 0.9.1 stage 3 does not save the rest."""
    oldest = min(number(case.facts["version"]), number(resume.release))
    return resume.universal or (case.stage == 3 and oldest < (0, 9, 1))


def differences(case, resume, engine, client_state):
    """The differences between a loaded engine and the engine that saved."""
    found = []
    masters, steps = make_releases.live_masters(engine, case.stage)
    truth = case.expected("master")
    if set(masters) != set(truth):
        found.append(f"states of {sorted(set(masters) ^ set(truth))[:4]}")
    found += [key for key in truth if key in masters and not same_bits(masters[key], truth[key])]
    # Before 0.5.10 stages 1 and 2 do not save FusedAdam's.
    counted = case.facts["steps"] if case.stage == 3 or number(resume.release) >= (0, 5, 10) else {}
    found += [f"step of {name}: {steps.get(name)}, not {step}" for name, step in counted.items()
              if steps.get(name) != step]
    skipped = {*case.facts["frozen"], *case.facts["buffers"]} if partly(resume, case) else set()
    wrong = set(case.module) - skipped
    for _ in range(3):  # what gloo gathers for an old release is not always there when it is read
        module = make_releases.live_module(engine)
        # Since 0.19 buffers keep their type.
        wrong = {name for name in wrong if not same_bits(module[name], case.module[name].to(module[name].dtype))}
    found += [f"module's {name}" for name in sorted(wrong)]
    if engine.global_steps != make_releases.STEPS_BEFORE:
        found.append(f"global_steps {engine.global_steps}")
    if {key: client_state.get(key) for key in make_releases.CLIENT_STATE} != make_releases.CLIENT_STATE:
        found.append(f"client_state {sorted(client_state)}")
    # Keys unknown to a release would reach the program as client state, and overwrite those of its next save.
    strange = {"frozen_param_shapes", "frozen_param_fragments", "shared_params"} & set(client_state)
    if strange and number(resume.release) < (0, 9, 1):
        found.append(f"client_state has {sorted(strange)}")
    return found


def resume_rank(rank, resume, folder, port):
    old_deepspeed.start_distributed(rank, resume.dp, port)
    case = case_of_release(resume.case)
    recipe = Recipe.parse(case.facts["recipe"])
    extra = {"checkpoint": {"load_universal": True}} if resume.universal else {}
    engine, _ = make_releases.make_engine(recipe, resume.dp, make_releases.DEFAULT_SEED + 1,
                                          case.facts.get("width", 1), extra)
    path, client_state = engine.load_checkpoint(str(folder / resume.path))
    if path is None:
        raise AssertionError("load_checkpoint found nothing")
    found = differences(case, resume, engine, client_state)
    loss, = make_releases.train(engine, make_releases.STEPS_BEFORE, 1, rank, resume.dp)
    expected = case.facts["losses_after_save"][0]
    # After a partial load the rest is as the engine began, so the loss differs.
    if not partly(resume, case) and not abs(loss - expected) <= TOLERANCE[recipe.precision]:
        found.append(f"loss {loss}, not {expected}")
    if found:
        raise AssertionError(f"{len(found)} differ: " + "; ".join(found[:6]))


def resume_all(resumes, folder, logs):
    """Prints a line of JSON for each: what went wrong, or null."""
    for resume in resumes:
        port = free_port()
        failure = run_forked(resume_rank, logs / resume.path,
                             [(rank, resume, folder, port) for rank in range(resume.dp)], timeout=120)
        print("RESUMED " + json.dumps([dataclasses.asdict(resume), failure]), flush=True)


# --- the matrix

def loads_universal(version, stage):
    """Before 0.14 it takes a client's mpu; stage 3 has it since 0.15, and until 0.17 of one parameter group alone."""
    return number(version) >= ((0, 18, 0) if stage == 3 else (0, 14, 0))


# Which release is to load what another has saved.
ACROSS = [("0.7.7", "0.12.6"), ("0.7.7", "0.19.8"), ("0.10.3", "0.7.7"), ("0.10.3", "0.16.9"), ("0.12.6", "0.14.5"),
          ("0.14.5", "0.10.3"), ("0.16.9", "0.10.3"), ("0.16.9", "0.18.2"), ("0.17.6", "0.12.6"), ("0.18.2", "0.7.7"),
          ("0.18.2", "0.19.8"), ("0.19.8", "0.14.5"), ("0.19.8", "0.6.7"), ("0.6.7", "0.18.2")]


# 0.5.10 cannot load its own bf16 checkpoints: it has no _restore_from_fp16_weights. The other has no masters.
NOT_LOADED = ("ds0.5.10_z2_bf16_w2", "ds0.17.6_z1_bf16_grads32_w2")


def matrix():
    resumes = []
    for case in cases_in("releases"):
        version = case.facts["version"]
        if case.stage == 0 or case.name in NOT_LOADED:
            continue
        resumes += [Resume(case.name, dp, version) for dp in RANKS]
        if loads_universal(version, case.stage):
            resumes += [Resume(case.name, dp, version, universal=True) for dp in RANKS]
        if "bf16" in case.facts["config"]:
            # BF16_Optimizer of 0.10.3 does not take what its engine gives it to load; 0.18.2 makes none.
            resumes += [Resume(case.name, 3, loading) for saving, loading in ACROSS
                        if saving == version and not (loading in ("0.10.3", "0.18.2") and "grads32" in case.name)]
    return resumes


def report(resume, failure):
    print(f"{resume.name}: " + ("equal" if failure is None else "FAILED: " + failure.strip().splitlines()[-1][:600]),
          flush=True)


def run(resumes, logs):
    """Returns how many failed."""
    failed, by_release = 0, collections.defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        logs = logs or folder / "logs"
        for resume in resumes:
            failure = converted(resume, folder)
            if failure is None:
                by_release[resume.release].append(resume)
                continue
            failed += 1
            report(resume, failure)
        for release in sorted(by_release, key=number):
            todo = by_release[release]
            (folder / "todo.json").write_text(json.dumps([dataclasses.asdict(resume) for resume in todo]))
            done = old_deepspeed.start(release, __file__, "--under", release, "--todo", folder, "--logs", logs,
                                       capture_output=True, text=True)
            answers = {Resume(**what): failure for what, failure in
                       (json.loads(line.removeprefix("RESUMED ")) for line in done.stdout.splitlines()
                        if line.startswith("RESUMED "))}
            for resume in todo:
                failure = answers.get(resume, done.stderr or "no answer")
                failed += failure is not None
                report(resume, failure)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", help="of testdata/releases")
    parser.add_argument("--dp", type=int, default=3)
    parser.add_argument("--ds-version", metavar="X.Y.Z", help="the release that loads; default: the one that saved")
    parser.add_argument("--universal", action="store_true", help="through to-universal")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--only", default="", metavar="REGEX", help="of --matrix: those whose lines match")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the ranks' logs in this folder")
    parser.add_argument("--under", help=argparse.SUPPRESS)
    parser.add_argument("--todo", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.under:
        todo = [Resume(**each) for each in json.loads((arguments.todo / "todo.json").read_text())]
        return make_releases.under_release(arguments.under, lambda: resume_all(todo, arguments.todo, arguments.logs))
    if arguments.matrix == bool(arguments.case):
        parser.error("give a case or --matrix")
    if arguments.matrix:
        resumes = [resume for resume in matrix() if re.search(arguments.only, resume.name)]
    else:
        release = arguments.ds_version or case_of_release(arguments.case).facts["version"]
        resumes = [Resume(arguments.case, arguments.dp, release, arguments.universal)]
    failed = run(resumes, arguments.logs and arguments.logs.resolve())
    print(f"{len(resumes)} resumes, {failed} failed")
    return 1 if failed or not resumes else 0


if __name__ == "__main__":
    sys.exit(main())
