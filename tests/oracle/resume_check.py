#!/usr/bin/env python3
"""Resume real DeepSpeed training from a checkpoint of testdata, at this or another number of ranks.

Run it with scripts/python, which knows where the makers of the test data are:

    resume_check.py testdata/checkpoints/z2_bf16_w4                                 as it was saved
    resume_check.py testdata/checkpoints/z2_bf16_w4 --universal --world 3           through to-universal
    resume_check.py testdata/model_parallel/pp2_dp1_z1_bf16 --universal --pp 1 --same-init
    resume_check.py testdata/checkpoints/z3_fp32_w3 --universal --world 2 --load-dir DIR --tag TAG
    resume_check.py --matrix [--quick] [--only REGEX]                               the whole table
    resume_check.py testdata/checkpoints/z2_bf16_w4 --reshard --world 3             through reshard
    resume_check.py --reshard --matrix [--quick] [--only REGEX]                     the table of reshard_resume.py

The engines start from different weights than the recorded run, so that only a real load can match. DeepSpeed's
universal loader restores neither buffers nor frozen parameters. --same-init gives the model those of the
checkpoint, as a training script that builds its model from the same sources does.  After loading, the masters
and optimizer states are read back and compared with those of the live engine when it saved. Then two more steps
are taken on the recorded batches.  The global batch stays as it was. Micro-batches are at most as large as in
the recorded run, and gradients are accumulated over as many as are needed.

The matrix converts every case with to-universal and with DeepSpeed's ds_to_universal, and resumes both at
several sizes. Both resumes must hold the same states and take the same losses, exactly. Where only the size
changed, the losses must also be those of the run that was never interrupted. The limits are 1e-5 (fp32) and
5e-3 (16 bits).  Exit status: 0 when all of that holds.

The output of reshard is loaded like any checkpoint of that size, and by frameworks as they do it.  Then all
contents of the files must be there again: every state, master, count of steps and hyper-parameter, the loss
scaler, the scheduler and counters. So must client state, frozen parameters, buffers and the 16-bit weights. The
losses are those of the uninterrupted run within 1e-5 (fp32) or 2e-2 (16 bits: another order of sums).  The
matrix makes those of its cases that testdata does not hold, in --cases or a scratch folder.

Needs what make_model_parallel.py needs, and the tools in DSCKPT_BIN or build/release/bin.
"""
from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

import make_checkpoints
import make_model_parallel
import oracle
import reshard_resume
from make_checkpoints import ROOT, STEPS_AFTER, STEPS_BEFORE, free_port, run_forked
from native_checkpoint import NativeCheckpoint

TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3, "fp16": 5e-3}
RESHARD_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
TIMEOUT = 900  # seconds; the machine may be busy with other things


@dataclasses.dataclass(frozen=True)
class Resume:
    """The checkpoint to load, and the size of the run that loads it."""
    folder: pathlib.Path
    size: dict  # world, or pp, tp, dp and ep
    same_init: bool = False
    stage: int | None = None  # another ZeRO stage than the one that saved
    zero: dict = dataclasses.field(default_factory=dict)  # different zero_optimization keys than when it was saved
    config: dict = dataclasses.field(default_factory=dict)  # other top-level keys; None takes one away
    compare_files: bool = False  # what is loaded must be all that the case's own files hold
    strict: bool = True
    live: bool = False  # the engine loads the checkpoint itself: dsckpt.load_checkpoint

    @functools.cached_property
    def facts(self):
        return json.loads((self.folder / "case.json").read_text())

    @property
    def model_parallel(self):
        return "topology" in self.facts

    def case(self, universal: bool):
        """The case of the recorded run at the new size."""
        facts = self.facts
        maker = make_model_parallel if self.model_parallel else make_checkpoints
        [case] = [case for case in maker.CASES + maker.MORE_CASES if case.name == facts["name"]]
        config = {**case.config, "checkpoint": {"load_universal": universal}, **self.config}
        config = {key: value for key, value in config.items() if value is not None}
        if self.model_parallel:
            return dataclasses.replace(case, config=config, **{**facts["topology"], **self.size})
        world = self.size.get("world", facts["world_size"])
        share, largest = case.batch // world, case.batch // facts["world_size"]
        micro = max(rows for rows in range(1, largest + 1) if share % rows == 0)
        config.update(train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=share // micro)
        stage, zero = case.stage, {**case.zero, **self.zero}
        if self.stage is not None:
            stage = self.stage
            config["zero_allow_untested_optimizer"] = True
        if world % zero.get("zero_hpz_partition_size", 1):
            del zero["zero_hpz_partition_size"]
        return dataclasses.replace(case, world=world, stage=stage, zero=zero, config=config)

    def __str__(self):
        if self.model_parallel:
            places = {**self.facts["topology"], **self.size}
            text = " ".join(f"{axis}{count}" for axis, count in places.items())
        else:
            text = f"{self.size.get('world', self.facts['world_size'])} ranks"
        changed = [] if self.stage is None else [f"stage {self.stage}"]
        others = {**self.zero, **self.config}
        return ", ".join([text, *changed, *(f"{key} {value}" for key, value in others.items())])


def set_untrained(module, saved: dict):
    """Gives the model the buffers and frozen parameters of the checkpoint."""
    for name, p in module.named_parameters():
        if not p.requires_grad and name in saved:
            p.data.copy_(saved[name])
    for name, old in list(module.named_buffers()):
        if name in saved and saved[name].shape == old.shape:
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, saved[name].to(old.dtype))


def start_data_parallel(resume: Resume, case, rank, port):
    import torch
    from safetensors.torch import load_file
    facts, seed = resume.facts, resume.facts["seed"]
    make_checkpoints.start_distributed(rank, case.world, port)
    make_checkpoints.relax_deepspeed(case)
    hugging_face = case.kind != "plain"
    model = (make_checkpoints.build_hf_model if hugging_face else make_checkpoints.build_model)(case, seed + 1)
    if resume.same_init:
        set_untrained(model, load_file(resume.folder / "expected" / "module.safetensors"))
    if case.odd_buffers:  # torch loads nothing into a buffer whose elements share their memory
        model.odd.expanded = model.odd.expanded.clone()
    engine, _ = make_checkpoints.make_engine(case, model, make_checkpoints.ds_config(case))
    micro = case.config["train_micro_batch_size_per_gpu"]

    def step(number):
        tokens, targets = make_checkpoints.batch(number, rank, case.world, seed, case.batch)
        total = torch.zeros(())
        for ids, labels in zip(tokens.split(micro), targets.split(micro)):
            loss = engine(input_ids=ids, labels=ids).loss if hugging_face else engine(ids, labels)
            engine.backward(loss)
            engine.step()
            total += loss.detach().float()
        mean = total / (len(tokens) // micro)
        torch.distributed.all_reduce(mean)
        return float(mean / case.world)

    def masters():
        return make_checkpoints.live_masters(engine, case.stage, case.world)

    return engine, step, masters


def start_model_parallel(resume: Resume, case, rank, port):
    from safetensors.torch import load_file
    seed = resume.facts["seed"]
    run = make_model_parallel.start(rank, case.world, port, case, seed, seed + 1)
    if resume.same_init:
        saved = load_file(resume.folder / "expected" / "module.safetensors")
        set_untrained(run.engine.module, {key.split("|")[0]: value for key, value in saved.items()})

    def masters():
        return make_model_parallel.gathered_by_place(run, make_model_parallel.live_masters(run.engine, case.stage))

    return run.engine, run.step, masters


def start_accelerate(resume: Resume, case, rank, port):
    """As start_data_parallel, and what loads as Accelerate does; it accumulates no gradients here."""
    import torch
    seed = resume.facts["seed"]
    make_checkpoints.start_distributed(rank, case.world, port)
    make_checkpoints.relax_deepspeed(case)
    case.config.update(train_micro_batch_size_per_gpu=case.batch // case.world, gradient_accumulation_steps=1)
    accelerator, engine, optimizer, _ = make_checkpoints.make_accelerator(
        case, make_checkpoints.build_hf_model(case, seed + 1))

    def step(number):
        ids, _ = make_checkpoints.batch(number, rank, case.world, seed, case.batch)
        loss = engine(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        return float(mean / case.world)

    def masters():
        return make_checkpoints.live_masters(engine, case.stage, case.world)

    return engine, step, masters, lambda load_dir: accelerator.load_state(str(load_dir))


def everywhere(lines: list) -> list:
    """The lines of all ranks, each line once."""
    import torch
    said = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(said, lines)
    return list(dict.fromkeys(line for rank in said for line in rank))


def compare_with_files(engine, resume: Resume, case, rank, client_state) -> list:
    from safetensors.torch import load_file
    facts = resume.facts
    source = NativeCheckpoint(resume.folder / facts["load_dir"] / facts["tag"], facts.get("param_groups", ()))
    wrong = reshard_resume.compare_engine(engine, case.stage, rank, case.world, client_state, source)
    wrong += reshard_resume.compare_module(make_checkpoints.live_module(engine),
                                           load_file(resume.folder / "expected" / "module.safetensors"))
    return everywhere(wrong)


def patch_for(resume: Resume):
    if resume.live:
        import dsckpt
        dsckpt.patch_deepspeed(load=True)


def trainer_worker(rank, world, port, resume, load_dir, report):
    """Lets the Hugging Face Trainer resume from a folder of its own."""
    import transformers
    case, seed = resume.case(False), resume.facts["seed"]
    make_checkpoints.start_distributed(rank, world, port)
    make_checkpoints.relax_deepspeed(case)
    patch_for(resume)
    found = {}

    class Look(transformers.TrainerCallback):

        def on_train_begin(self, arguments, state, control, **others):
            engine = trainer.model_wrapped
            live = make_checkpoints.live_masters(engine, case.stage, world)
            found.update(states=compare_whole(resume.folder, live, case.stage), digest=digest(live),
                         unlike=compare_with_files(engine, resume, case, rank, None))

    os.chdir(report.parent)
    trainer, _ = make_checkpoints.make_trainer(case, world, seed, STEPS_BEFORE + STEPS_AFTER, callbacks=[Look()],
                                            model_seed=seed + 1)
    trainer.train(resume_from_checkpoint=str(load_dir))
    if rank == 0:
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry][-STEPS_AFTER:]
        report.write_text(json.dumps({"losses": losses, **found}))


def compare_whole(folder, live: dict, stage: int) -> dict:
    """Data parallelism: every tensor is whole, at every number of ranks. Muon's momenta at stages 1 and 2 are not among
    what the engine has of its parameters: reshard_resume.compare_own_states looks at them."""
    import torch
    from safetensors.torch import load_file
    saved = load_file(folder / "expected" / "master.safetensors")
    if "muon" in folder.name and stage in (1, 2):
        saved = {key: value for key, value in saved.items() if not key.endswith("|momentum_buffer")}
    return {"compared": len(saved), "missing": sorted(saved.keys() - live.keys()),
            "different": sorted(key for key in saved.keys() & live.keys()
                                if not torch.equal(saved[key].reshape(-1), live[key].reshape(-1)))}


def compare_slices(folder, live: dict) -> dict:
    """Model parallelism: the slices may be cut otherwise than when they were saved. Then every element must be
    one of the saved ones. (Zeros pad vocabularies.)"""
    import torch
    from safetensors.torch import load_file
    recorded, saved, different = load_file(folder / "expected" / "live.safetensors"), {}, []
    if recorded.keys() == live.keys():
        return {"compared": len(live), "missing": [],
                "different": sorted(key for key in live if not torch.equal(live[key], recorded[key]))}
    for key, value in recorded.items():
        saved.setdefault(tuple(key.split("|")[:2]), []).append(value)
    seen = set()
    for key, value in live.items():
        name, state = key.split("|")[:2]
        seen.add((name, state))
        slices = saved.get((name, state), [])
        if not slices:
            # Experts of a layer are numbered from zero on every rank: under other numbers at another size.
            slices = [part for (other, kind), parts in saved.items() if kind == state
                      and re.sub(r"experts\.\d+", "", other) == re.sub(r"experts\.\d+", "", name) for part in parts]
        if any(part.shape == value.shape and torch.equal(part, value) for part in slices):
            continue
        elements = torch.cat([torch.zeros(1), *(part.reshape(-1) for part in slices)])
        if not torch.isin(value, elements).all():
            different.append(key)
    missing = ["|".join(key) for key in saved.keys() - seen]
    return {"compared": len(live), "missing": sorted(missing), "different": sorted(different)}


def digest(tensors: dict) -> str:
    import torch
    total = hashlib.sha256()
    for key, value in sorted(tensors.items()):
        total.update(f"{key} {tuple(value.shape)} ".encode())
        total.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def resume_worker(rank, world, port, resume, load_dir, tag, universal, report):
    import torch
    case = resume.case(universal)
    patch_for(resume)
    client_state = None
    if resume.compare_files and case.kind == "hf_accelerate":
        engine, step, masters, load = start_accelerate(resume, case, rank, port)
        load(load_dir)
    else:
        start = start_model_parallel if resume.model_parallel else start_data_parallel
        engine, step, masters = start(resume, case, rank, port)
        path, client_state = engine.load_checkpoint(str(load_dir), tag=tag, load_module_strict=resume.strict)
        if path is None:
            raise AssertionError("DeepSpeed loaded nothing")
    live = masters()
    unlike = compare_with_files(engine, resume, case, rank, client_state) if resume.compare_files else []
    losses = [step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    if rank == 0:
        states = (compare_slices(resume.folder, live) if resume.model_parallel
                  else compare_whole(resume.folder, live, case.stage))
        report.write_text(json.dumps({"losses": losses, "states": states,
                                      "digest": digest(live), "unlike": unlike}))
    torch.distributed.barrier()


@functools.lru_cache(maxsize=None)
def losses_of_the_trainer(folder: pathlib.Path, logs: pathlib.Path) -> list:
    resume = Resume(folder, {}, compare_files=True)
    logs.mkdir(parents=True, exist_ok=True)
    world, port, report = resume.facts["world_size"], free_port(), logs / "report.json"
    error = run_forked(trainer_worker, logs, [(rank, world, port, resume, folder / resume.facts["load_dir"], report)
                                              for rank in range(world)], timeout=TIMEOUT)
    if error:
        raise RuntimeError(f"{folder.name} cannot be resumed as it was saved: {error[-2000:]}")
    return json.loads(report.read_text())["losses"]


def run_resume(resume: Resume, load_dir, tag, universal: bool, logs: pathlib.Path) -> dict:
    """Starts the ranks; returns the losses and what was read back, or {"error": why}."""
    case = resume.case(universal)
    report = logs / "report.json"
    logs.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    port = free_port()
    trainer = resume.compare_files and case.kind == "hf_trainer"
    error = run_forked(trainer_worker if trainer else resume_worker, logs,
                       [(rank, case.world, port, resume, load_dir, *(() if trainer else (tag, universal)), report)
                        for rank in range(case.world)], timeout=TIMEOUT)
    if error:
        return {"error": make_checkpoints.last_line(error, pathlib.Path(load_dir).parent)}
    result = json.loads(report.read_text())
    recorded = resume.facts.get("losses_after_save")
    if recorded is None:  # the Trainer stopped when it had saved: let it go on at its own size
        recorded = losses_of_the_trainer(resume.folder, logs / "recorded")
    result["losses_of_the_recorded_run"] = recorded
    result["largest_difference"] = max(abs(a - b) for a, b in zip(result["losses"], recorded))
    return result


def case_folder(name: str) -> pathlib.Path:
    [folder] = pathlib.Path(os.environ.get("DSCKPT_TESTDATA", ROOT / "testdata")).glob(f"*/{name}")
    return folder


def tool_folder() -> pathlib.Path:
    return pathlib.Path(os.environ.get("DSCKPT_BIN", ROOT / "build" / "release" / "bin"))


def saved_now(case, folder):
    """A case that testdata does not have."""
    (folder / "expected").mkdir(parents=True)
    port = free_port()
    error = run_forked(make_model_parallel.train_worker, folder / "logs",
                       [(rank, case.world, port, case, folder, make_checkpoints.DEFAULT_SEED) for rank in range(case.world)],
                       timeout=TIMEOUT)
    if error:
        raise AssertionError(error)
    facts = {**json.loads((folder / "case.json").read_text()), "name": case.name, "kind": case.kind,
             "stage": case.stage, "seed": make_checkpoints.DEFAULT_SEED,
             "topology": {axis: getattr(case, axis) for axis in ("pp", "tp", "dp", "ep")}, "load_dir": "ckpt",
             "tag": (folder / "ckpt" / "latest").read_text()}  # fmt: skip
    (folder / "case.json").write_text(json.dumps(facts))
    return oracle.Case(folder)


def convert(facts: dict, folder: pathlib.Path, output: pathlib.Path) -> str | None:
    """Runs to-universal on a case; returns why it failed, or None."""
    done = subprocess.run([tool_folder() / "to-universal", "--input-folder", folder / facts["load_dir"], "--tag",
                           facts["tag"], "--output-folder", output, "--quiet"], capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


def reshard(resume: Resume, output: pathlib.Path, *options) -> subprocess.CompletedProcess:
    """Runs reshard on the resume's case for its number of ranks, stage and configuration."""
    facts, case = resume.facts, resume.case(False)
    if resume.stage is not None:
        options = (*options, "--stage", str(resume.stage))
    if resume.zero or resume.config:
        path = output.with_suffix(".config.json")
        path.write_text(json.dumps(make_checkpoints.ds_config(case)))
        options = (*options, "--ds-config", path)
    command = [tool_folder() / "reshard", resume.folder / facts["load_dir"], output, "--tag", facts["tag"],
               "--dp", str(case.world), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)


def convert_with_deepspeed(facts: dict, folder: pathlib.Path, output: pathlib.Path, logs) -> str | None:
    error = None
    for options in make_model_parallel.UNIVERSAL_OPTIONS.values():
        shutil.rmtree(output, ignore_errors=True)
        error = run_forked(make_model_parallel.ask_universal, logs,
                           [(folder / facts["load_dir"], facts["tag"], output, options)], timeout=TIMEOUT)
        if not error:
            return None
    return make_checkpoints.last_line(error, folder)


class Converted:
    """Universal checkpoints of one case, made when they are asked for."""

    def __init__(self, folder: pathlib.Path, facts: dict, scratch: pathlib.Path):
        self.folder, self.facts, self.scratch = folder, facts, scratch

    @functools.cached_property
    def ours(self):
        (self.scratch / "ours").mkdir(parents=True)
        return convert(self.facts, self.folder, self.scratch / "ours" / "universal")

    @functools.cached_property
    def deepspeed(self):
        (self.scratch / "deepspeed").mkdir(parents=True)
        return convert_with_deepspeed(self.facts, self.folder, self.scratch / "deepspeed" / "universal",
                                      self.scratch / "logs")

    @functools.cached_property
    def fat(self):
        """Our tensors with DeepSpeed's optimizer_state.pt."""
        if self.ours or self.deepspeed:
            return self.ours or self.deepspeed
        shutil.copytree(self.scratch / "ours", self.scratch / "fat")
        shutil.copyfile(self.scratch / "deepspeed" / "universal" / "zero" / "optimizer_state.pt",
                        self.scratch / "fat" / "universal" / "zero" / "optimizer_state.pt")
        return None

    def resume(self, resume: Resume, source: str) -> dict:
        error = getattr(self, source)
        if error:
            return {"unconverted": error}
        return run_resume(resume, self.scratch / source, "universal", True,
                          self.scratch / "logs" / re.sub(r"\W+", "_", f"{source} {resume}"))


@dataclasses.dataclass(frozen=True)
class Row:
    """One or more resumes of a case in the matrix."""
    case: str
    sizes: tuple
    quick: tuple = ()  # those of the sizes that --quick tries
    stage: int | None = None
    zero: dict = dataclasses.field(default_factory=dict)
    deepspeed: str = ""  # why DeepSpeed's own folder may differ, or is not there
    uninterrupted: bool = True  # the losses must be those of the run that was never interrupted
    refused: str = ""  # part of the message with which DeepSpeed's loader stops
    fat: bool = False  # also with DeepSpeed's optimizer_state.pt among our tensors


def ranks(*counts):
    return tuple({"world": count} for count in counts)


# Why a run resumed from DeepSpeed's own folder cannot be the measure.
SCRAMBLES = "DeepSpeed's converter scrambles round-robin gradients"
NOT_CONVERTED = "DeepSpeed does not convert it"
IN_ORDER = {"round_robin_gradients": False}
ONE_SUB_GROUP = {"sub_group_size": 10**9}

MATRIX = [
    # Stages 1, 2 and 3, saved at 2 and at 4 ranks (and at 1, 3, 6, 8), resumed at 1, 2, 3 and 4
    Row("z1_fp32_w2", ranks(1, 2, 3, 4), quick=ranks(3)),
    Row("z1_bf16_w2", ranks(1, 2, 3, 4)),
    Row("z1_fp16_w2", ranks(1, 2, 3, 4)),
    Row("z1_bf16opt_w2", ranks(1, 2, 3, 4)),
    Row("z1_bf16opt_full_w3", ranks(2, 4)),
    Row("z1_fp32_full_w4", ranks(1, 2, 3, 4)),
    Row("z1_fp32_full_w6", ranks(3)),
    Row("z1_fp32_w1", ranks(2)),
    Row("z1_bf16_full_w2", ranks(3)),
    Row("z1_fp32_fusedadam_w2", ranks(3)),
    Row("z1_bf16_writer_python_w2", ranks(1)),
    # The loader stops where a rank has nothing of a group.
    Row("z1_fp32_tinygroup_w4", ranks(1)),
    Row("z1_fp32_tinygroup_w4", ranks(2, 4), refused="IndexError: list index out of range"),
    Row("z2_bf16_w2", ranks(1, 2, 3, 4)),
    Row("z2_bf16_w4", ranks(1, 2, 3, 4), quick=ranks(1)),
    Row("z2_fp16_w2", ranks(1, 2, 3, 4)),
    Row("z2_fp32_full_w3", ranks(1, 2, 3, 4)),
    Row("z2_bf16_full_w8", ranks(4)),
    Row("z2_fp32_emptyparam_w2", ranks(3)),
    Row("z2_bf16_offload_w2", ranks(3)),
    Row("z2_bf16_paramalign_w2", ranks(3)),
    Row("z2_fp32_large_param_w8", ranks(3)),
    Row("z2_fp32_oddbuffers_w2", ranks(3)),
    Row("z2_fp32_radam_w2", ranks(3)),
    Row("z2_bf16_legacyserial_w2", ranks(1)),
    Row("hf_accelerate_gpt2_z2_fp32_w2", ranks(3)),
    Row("z3_bf16_w2", ranks(1, 2, 3, 4), quick=ranks(4), fat=True),
    Row("z3_fp16_w2", ranks(1, 2, 3, 4)),
    Row("z3_fp32_w3", ranks(1, 2, 3, 4), fat=True),
    Row("z3_bf16_hpz_w4", ranks(1, 2, 3, 4)),
    # At stage 3 all sub-groups get one and the same step, which torch's Adam then counts once for each of them.
    # So the second loss is off unless there is but one sub-group.
    Row("z3_fp32_small_subgroups_w2", ranks(1, 3), zero=ONE_SUB_GROUP, fat=True),
    Row("z3_fp32_small_subgroups_w2", ranks(1), uninterrupted=False),
    Row("z3_fp32_persist_w2", ranks(4)),
    Row("z3_bf16_offload_w2", ranks(3)),
    Row("z3_bf16_fusedadam_w2", ranks(3), fat=True),
    Row("z3_bf16_oddbuffers_w2", ranks(3)),
    Row("z3_fp32_legacyserial_w2", ranks(3)),
    Row("hf_accelerate_llama_z3_fp32_w2", ranks(3)),
    # And the loader gives every group the first one's hyper-parameters at stage 3.
    Row("z3_fp32_full_w2", ranks(1, 3), uninterrupted=False),
    Row("z3_bf16_full_subgroups_w4", ranks(1, 2, 3, 4), uninterrupted=False, fat=True),
    Row("z3_fp32_tinygroup_w4", ranks(2, 3), uninterrupted=False),
    Row("z3_fp32_full_w8", ranks(4), uninterrupted=False),
    # DeepSpeed's converter refuses these, or converts them wrongly.
    Row("z1_fp32_zerodim_w2", ranks(1, 3), deepspeed=NOT_CONVERTED),
    Row("z2_bf16_zerodim_w2", ranks(3), deepspeed=NOT_CONVERTED),
    Row("z1_fp32_elastic_w2", ranks(1, 3), deepspeed=NOT_CONVERTED),
    Row("z1_fp32_elastic_torchadam_w2", ranks(3), deepspeed=NOT_CONVERTED),
    Row("z2_fp32_elastic_w2", ranks(3), deepspeed=NOT_CONVERTED),
    Row("z1_bf16opt_tinygroup_w4", ranks(1), deepspeed=NOT_CONVERTED),
    Row("z1_bf16opt_tinygroup_w4", ranks(2), deepspeed=NOT_CONVERTED, refused="IndexError: list index out of range"),
    Row("z1_fp32_sgd_w2", ranks(1, 2, 3), quick=ranks(3), deepspeed=NOT_CONVERTED),
    Row("z2_fp32_adagrad_w2", ranks(1, 3), deepspeed=NOT_CONVERTED),
    Row("z2_bf16_adagrad_offload_w2", ranks(3), deepspeed=NOT_CONVERTED),
    Row("z2_fp32_amsgrad_w2", ranks(1, 3), deepspeed="DeepSpeed drops max_exp_avg_sq"),
    # Muon's own momentum is not cut as the masters are, but the loader cuts it so: good for one rank only.
    Row("z1_bf16_muon_w2", ranks(1), deepspeed=NOT_CONVERTED),
    Row("z1_bf16_muon_w2", ranks(2, 3), deepspeed=NOT_CONVERTED, refused="exceeds dimension size"),
    Row("z2_bf16_muon_w2", ranks(2), deepspeed=NOT_CONVERTED, refused="exceeds dimension size"),
    # With round-robin gradients the loader itself scrambles: a run has to resume without them.
    Row("z2_bf16_roundrobin_w2", ranks(1, 2, 3), quick=ranks(3), zero=IN_ORDER, deepspeed=SCRAMBLES),
    Row("z2_bf16_roundrobin_full_w3", ranks(2), zero=IN_ORDER, deepspeed=SCRAMBLES),
    # At stage 3 the loader wants a step, exp_avg and exp_avg_sq.
    Row("z3_fp32_sgd_w2", ranks(2), deepspeed=NOT_CONVERTED, refused="KeyError: 'step'"),
    Row("z3_fp32_adagrad_w2", ranks(2), deepspeed=NOT_CONVERTED, refused="exp_avg.pt"),
    Row("z3_bf16_muon_w2", ranks(2), deepspeed=NOT_CONVERTED, refused="KeyError: 'step'"),
    Row("z0_fp32_w2", ranks(2, 3), stage=1, deepspeed=NOT_CONVERTED),
    Row("z0_bf16_w2", ranks(3), stage=2, deepspeed=NOT_CONVERTED),
    Row("z0_fp16_w2", ranks(1, 2), stage=1, deepspeed=NOT_CONVERTED),
    Row("z0_fp32_sgd_w2", ranks(3), stage=1, deepspeed=NOT_CONVERTED),
    Row("z0_bf16_fusedadam_w2", ranks(2), stage=2, deepspeed=NOT_CONVERTED),
    # Pipelines
    Row("pp2_dp1_z1_bf16", ({}, {"pp": 1}, {"pp": 1, "dp": 2}), quick=({"pp": 1}, )),
    Row("pp2_dp1_z1_fp16", ({"dp": 2}, )),
    Row("pp2_dp2_z1_bf16", ({"pp": 1, "dp": 2}, )),
    Row("pp2_dp2_z1_fp32", ({"dp": 1}, {"pp": 3, "dp": 1})),
    Row("pp2_dp2_z1_bf16opt", ({"pp": 1, "dp": 2}, )),
    Row("pp2_dp2_parwrite_z1_fp32", ({"pp": 1, "dp": 2}, )),
    Row("pp2_dp2_noinfo_z1_fp32", ({"pp": 1, "dp": 2}, {"pp": 1, "dp": 1}), deepspeed=NOT_CONVERTED),
    Row("pp3_dp1_z1_fp32", ({"pp": 1}, {"pp": 2, "dp": 2})),
    # Tensor parallelism by DeepSpeed
    Row("autotp2_dp1_z1_bf16", ({"tp": 1}, )),
    Row("autotp2_dp2_z1_fp32", ({"dp": 1}, {"tp": 1}), quick=({"tp": 1}, )),
    Row("autotp2_dp2_z2_bf16", ({"tp": 1}, )),
    Row("autotp2_dp2_z3_bf16", ({"tp": 1}, {"dp": 1})),
    Row("autotp2_dp3_z3_fp32", ({"tp": 1, "dp": 2}, ), uninterrupted=False),  # two sub-groups
    Row("autotp2_dp1_z1_uneven", ({}, {"tp": 1})),
    Row("autotp2_dp2_z2_fused", ({"tp": 1}, {"dp": 1})),
    Row("autotp2_dp2_z3_fused", ({"tp": 1}, )),
    Row("autotp2_dp1_z1_bigcode", ({}, )),
    Row("autotp2_dp1_z1_codegen", ({}, )),
    # Tensor parallelism by the client: averaged parameters change the losses
    Row("mpu_tp2_dp1_z1_bf16", ({}, {"tp": 1}), uninterrupted=False),
    Row("mpu_tp2_dp2_z1_fp32", ({"tp": 1}, ), uninterrupted=False),
    Row("mpu_tp2_dp2_z2_bf16", ({"tp": 1}, {"dp": 1}), uninterrupted=False),
    Row("mpu_tp3_dp1_z1_fp32", ({"tp": 1}, ), uninterrupted=False),
    Row("pp2_tp2_dp1_z1_bf16", ({"pp": 1}, {"tp": 1}, {"pp": 1, "tp": 1, "dp": 2}), uninterrupted=False),
    Row("pp2_tp2_dp2_z1_fp32", ({"pp": 1, "dp": 1}, {"tp": 1, "dp": 1}, {"pp": 1, "tp": 1, "dp": 1}),
        uninterrupted=False),
    # Mixtures of experts
    Row("moe_ep1_dp2_z1_bf16", ({}, {"dp": 1})),
    Row("moe_ep2_dp2_z1_bf16", ({"ep": 1}, ), deepspeed=NOT_CONVERTED),
    # The loader goes by the experts' local names: every expert-parallel rank gets the first rank's experts.
    Row("moe_ep2_dp2_z1_bf16", ({}, ), deepspeed=NOT_CONVERTED, uninterrupted=False),
    Row("moe_ep2_dp4_z1_fp32", ({"ep": 1, "dp": 2}, ), deepspeed=NOT_CONVERTED),
    Row("moe_ep2_dp4_z2_fp32", ({"ep": 1, "dp": 2}, {"ep": 1, "dp": 1}), deepspeed=NOT_CONVERTED),
    Row("autoep2_dp2_z1_bf16", ({}, {"ep": 1}), quick=({"ep": 1}, )),
    Row("autoep2_dp4_z2_fp32", ({"ep": 4}, {"ep": 1, "dp": 2})),
    Row("autoep4_dp4_z2_fp32", ({"ep": 2, "dp": 2}, )),
    Row("autoep2_dp4_z3_fp32", ({"ep": 1, "dp": 2}, ), uninterrupted=False),  # two sub-groups and more
]


def judge(row: Row, facts: dict, ours: dict, deepspeed: dict, fat: dict | None) -> list:
    """The faults of a resume; none if it is right."""
    if row.refused:
        return [] if row.refused in ours.get("error", "") else [f"was not refused with {row.refused!r}"]
    for key in ("unconverted", "error"):
        if key in ours:
            return [f"{'to-universal' if key == 'unconverted' else 'DeepSpeed'}: {ours[key]}"]
    wrong = []
    if not row.deepspeed:
        if "losses" not in deepspeed:
            wrong.append("nothing to compare with: " + (deepspeed.get("unconverted") or deepspeed["error"]))
        else:
            for key in ("losses", "digest"):
                if ours[key] != deepspeed[key]:
                    wrong.append(f"{key} differ from those of DeepSpeed's folder")
    if fat is not None and (fat.get("losses"), fat.get("digest")) != (ours["losses"], ours["digest"]):
        wrong.append("DeepSpeed's optimizer_state.pt makes a difference")
    if row.uninterrupted:
        if ours["largest_difference"] > TOLERANCE[facts["precision"]]:
            wrong.append(f"losses are off by {ours['largest_difference']:.1e}")
        for what in ("missing", "different"):
            if ours["states"][what]:
                wrong.append(f"{len(ours['states'][what])} states {what}: {ours['states'][what][0]} ...")
    return wrong


def summary(result: dict) -> str:
    if "losses" not in result:
        return (result.get("unconverted") or result["error"])[:60]
    difference = result["largest_difference"]
    states = result["states"]
    bad = [f"{len(states[what])} {what}" for what in ("missing", "different") if states[what]]
    return (f"{difference:.1e}" if difference else "exact") + (f" ({', '.join(bad)})" if bad else "")


def run_matrix(quick: bool, only: str, scratch: pathlib.Path, show=print) -> list:
    """Returns an entry for each resume; show() gets a line for each as soon as it is done."""
    entries = []
    for row in MATRIX:
        sizes = row.quick if quick else row.sizes
        if not sizes or not re.search(only, row.case):
            continue
        folder = case_folder(row.case)
        facts = json.loads((folder / "case.json").read_text())
        work = scratch / row.case
        shutil.rmtree(work, ignore_errors=True)
        converted = Converted(folder, facts, work)
        for size in sizes:
            started = time.monotonic()
            resume = Resume(folder, size, same_init=True, stage=row.stage, zero=row.zero)
            ours = converted.resume(resume, "ours")
            deepspeed = {"unconverted": "not asked"} if quick and row.deepspeed else \
                converted.resume(resume, "deepspeed")
            fat = converted.resume(resume, "fat") if row.fat else None
            wrong = judge(row, facts, ours, deepspeed, fat)
            same = "-"
            if "losses" in ours and "losses" in deepspeed:
                same = "same" if (ours["losses"], ours["digest"]) == (deepspeed["losses"], deepspeed["digest"]) \
                    else "OTHER"
            entries.append({"case": row.case, "size": str(resume), "ours": ours, "deepspeed": deepspeed,
                            **({"fat": fat} if fat else {}), "same": same, "wrong": wrong, "note": row.deepspeed})
            show(f"{'ok  ' if not wrong else 'FAIL'} {row.case:28} -> {str(resume):20} {same:5} "
                 f"ours {summary(ours):28} deepspeed {summary(deepspeed):28}"
                 + (f" fat {summary(fat)}" if fat else "") + (f" [{row.deepspeed}]" if row.deepspeed else "")
                 + (f" {'; '.join(wrong)}" if wrong else "") + f" {time.monotonic() - started:.0f} s")
        shutil.rmtree(work, ignore_errors=True)
    return entries


def refused_live(row: reshard_resume.Row, facts: dict) -> str:
    """Part of the message with which load_checkpoint() refuses what reshard takes."""
    if "_elastic_" in row.case:
        return "makes a checkpoint that DeepSpeed loads"
    # The client state has classes that torch.load(weights_only=True) does not take either.
    return "add_safe_globals" if facts.get("client_state") else ""


def judge_reshard(row: reshard_resume.Row, facts: dict, done, result: dict | None) -> list:
    """The faults of a resume from reshard's output, or of its refusal; `done` None: of a live load."""
    refused = (refused_live(row, facts) if done is None else "") or row.refused
    if done is None and refused:
        return [] if refused in result.get("error", "") else [f"was not refused for {refused!r}"]
    if row.refused:
        good = done.returncode == 3 and row.refused in done.stderr
        return [] if good else [f"exit {done.returncode}, not a refusal for {row.refused}: {done.stderr[-300:]}"]
    if done and done.returncode:
        return [f"reshard: exit {done.returncode}: {done.stderr.strip()[-300:]}"]
    if row.deepspeed_refuses:
        return [] if row.deepspeed_refuses in result.get("error", "") else \
            [f"was not refused with {row.deepspeed_refuses!r}"]
    if "error" in result:
        return [f"DeepSpeed: {result['error']}"]
    wrong = [*result["unlike"]]
    for what in ("missing", "different"):
        if result["states"][what]:
            wrong.append(f"{len(result['states'][what])} states {what}: {result['states'][what][0]} ...")
    if row.uninterrupted and not result["largest_difference"] <= RESHARD_TOLERANCE[facts["precision"]]:
        wrong.append(f"losses are off by {result['largest_difference']:.1e}")
    return wrong


def made_case(name: str, cases: pathlib.Path) -> pathlib.Path:
    """The folder of a case, of testdata or made below `cases`."""
    if name not in {case.name for case in make_checkpoints.MORE_CASES}:
        return case_folder(name)
    if not (cases / name / "case.json").exists():
        [case] = [case for case in make_checkpoints.MORE_CASES if case.name == name]
        make_checkpoints.make_case(case, cases, make_checkpoints.DEFAULT_SEED, cases / "logs")
    return cases / name


def run_reshard_matrix(quick: bool, only: str, scratch: pathlib.Path, cases: pathlib.Path, show=print,
                       live: bool = False) -> list:
    """Returns an entry for each resume; show() gets a line of JSON for each as soon as it is done.

    live: nothing is written, the engines load the cases themselves."""
    entries = []
    for row in reshard_resume.MATRIX:
        worlds = row.quick if quick else row.worlds
        for world in worlds:
            started = time.monotonic()
            change = f" stage {row.stage}" if row.stage is not None else ""
            entry = {"case": row.case, "to": f"{world} ranks{change}"}
            if not re.search(only, f"{row.case} -> {entry['to']}"):
                continue
            folder = made_case(row.case, cases)
            resume = Resume(folder, {"world": world}, same_init=row.same_init, stage=row.stage, zero=row.zero,
                            config=row.config, compare_files=True, strict=row.strict, live=live)
            entry["to"] = str(resume)
            work = scratch / row.case
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            # The Trainer goes by the name of the folder.
            output = work / pathlib.Path(resume.facts["load_dir"]).name
            done = None if live else reshard(resume, output)
            result = None
            if live:
                result = run_resume(resume, folder / resume.facts["load_dir"], resume.facts["tag"], False, work / "logs")
            elif done.returncode == 0:
                result = run_resume(resume, output, resume.facts["tag"], False, work / "logs")
            entry["wrong"] = judge_reshard(row, resume.facts, done, result)
            entry.update(result="refused" if done and done.returncode else summary(result),
                         seconds=round(time.monotonic() - started, 1))
            entries.append(entry)
            show(json.dumps(entry))
            shutil.rmtree(work, ignore_errors=True)
    return entries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case_dir", type=pathlib.Path, nargs="?", help="a folder of make_(mp_)testdata.py")
    parser.add_argument("--load-dir", type=pathlib.Path, help="load this instead of the case's own checkpoint")
    parser.add_argument("--tag", help="the tag in --load-dir")
    parser.add_argument("--universal", action="store_true",
                        help="load a universal checkpoint: --load-dir, or what to-universal makes of the case")
    parser.add_argument("--reshard", action="store_true", help="load what reshard makes of the case")
    parser.add_argument("--live", action="store_true", help="with --reshard --matrix: the engines load the cases themselves")
    parser.add_argument("--cases", type=pathlib.Path,
                        help="with --reshard --matrix: keep the cases that are not in testdata here")
    parser.add_argument("--world", type=int, help="ranks of a data-parallel case")
    for axis in ("pp", "tp", "dp", "ep"):
        parser.add_argument(f"--{axis}", type=int, help="of a model-parallel case")
    parser.add_argument("--stage", type=int, help="another ZeRO stage")
    parser.add_argument("--same-init", action="store_true",
                        help="start with the buffers and frozen parameters of the checkpoint")
    parser.add_argument("--matrix", action="store_true", help="convert and resume all that the table lists")
    parser.add_argument("--quick", action="store_true", help="with --matrix: a few resumes of every kind")
    parser.add_argument("--only", default="", metavar="REGEX", help="with --matrix: only these cases")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the ranks' logs in this folder")
    parser.add_argument("--json", action="store_true", help="results as JSON on stdout")
    arguments = parser.parse_args()
    if arguments.matrix == bool(arguments.case_dir):
        parser.error("give either a case's folder or --matrix")
    if arguments.load_dir and not arguments.tag and not arguments.universal:
        parser.error("--load-dir needs --tag")
    if arguments.reshard and (arguments.universal or arguments.load_dir):
        parser.error("--reshard makes what it loads: no --universal or --load-dir")
    with tempfile.TemporaryDirectory() as temporary:
        scratch = pathlib.Path(temporary)
        if arguments.matrix and arguments.reshard:
            entries = run_reshard_matrix(arguments.quick, arguments.only, scratch / "work",
                                         (arguments.cases or scratch / "cases").resolve(),
                                         functools.partial(print, flush=True), arguments.live)
            failed = sum(bool(entry["wrong"]) for entry in entries)
            print(f"{len(entries)} resumes, {failed} failed", file=sys.stderr)
            return 1 if failed or not entries else 0
        if arguments.matrix:
            log = functools.partial(print, flush=True, file=sys.stderr if arguments.json else sys.stdout)
            entries = run_matrix(arguments.quick, arguments.only, scratch, log)
            if arguments.json:
                print(json.dumps(entries, indent=1))
            failed = sum(bool(entry["wrong"]) for entry in entries)
            log(f"{len(entries)} resumes, {failed} failed")
            return 1 if failed or not entries else 0
        size = {axis: getattr(arguments, axis) for axis in ("world", "pp", "tp", "dp", "ep")
                if getattr(arguments, axis)}
        resume = Resume(arguments.case_dir.resolve(), size, arguments.same_init, arguments.stage,
                        compare_files=arguments.reshard)
        if resume.model_parallel == ("world" in size) and size:
            parser.error("--world is for data-parallel cases, --pp, --tp, --dp and --ep for all others")
        load_dir, tag = arguments.load_dir, arguments.tag
        if not load_dir and arguments.universal:
            load_dir, tag = scratch, "universal"
            error = convert(resume.facts, resume.folder, scratch / tag)
            if error:
                raise SystemExit(error)
        elif not load_dir and arguments.reshard:
            load_dir, tag = scratch / pathlib.Path(resume.facts["load_dir"]).name, resume.facts["tag"]
            done = reshard(resume, load_dir)
            if done.returncode:
                raise SystemExit(done.stderr.strip())
        elif not load_dir:
            load_dir, tag = resume.folder / resume.facts["load_dir"], resume.facts["tag"]
        logs = (arguments.logs or scratch / "logs").resolve()
        result = run_resume(resume, load_dir.resolve(), tag, arguments.universal, logs)
    if arguments.json:
        print(json.dumps(result, indent=1))
    elif "error" in result:
        print(f"{resume}: {result['error']}")
    else:
        print(f"{resume}: losses {result['losses']}, the recorded run's {result['losses_of_the_recorded_run']}: "
              f"{summary(result)}")
        for what in ("missing", "different"):
            for key in result["states"][what]:
                print(f"  {what}: {key}")
        for line in result["unlike"]:
            print(f"  {line}")
    tolerance = (RESHARD_TOLERANCE if arguments.reshard else TOLERANCE)[resume.facts["precision"]]
    good = "error" not in result and result["largest_difference"] <= tolerance and not result["unlike"]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
