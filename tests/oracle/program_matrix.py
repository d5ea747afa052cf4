#!/usr/bin/env python3
"""Every program of make_programs.py through every tool: what the tools write, the program itself must load.

    program_matrix.py                              all cases
    program_matrix.py --case 'trainer_.*_z3' --seed 7 --world 3 --to 2 --hidden 32
    program_matrix.py --keep FOLDER --results FILE

Each case is made anew. Then:

    weights     zero-to-fp32: each name, and each value, of the live model
    loaded      the program's own loader takes them, without missing or unexpected names: from_pretrained, peft's,
                Accelerate's load_checkpoint_in_model, Lightning's load_from_checkpoint, load_state_dict
    whole       ckpt-inspect verify and scan find nothing
    resumed     reshard to another number of ranks, where the program goes on: the same masters and states bit for
                bit, the same step and learning rates, the same next losses, so the same data
    live        the program goes on there from what it saved, with nothing changed but dsckpt.patch_deepspeed(load=True)
    universal   to-universal, from which the program goes on with load_universal

EXPECTED has the impossible cases with their reasons. Everything else is a failure, and so is an expected one
that does not happen. Needs what testdata/makers/make_programs.txt lists; no part of CI.
"""
import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("testdata/makers", "tests/support", "lib/python", "build/release/lib")]
os.environ.setdefault("DSCKPT_BIN", str(ROOT / "build" / "release" / "bin"))
os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"  # where lib/python finds the program

import make_programs  # noqa: E402  it sets the environment, so it comes first
from make_checkpoints import run_forked  # noqa: E402
from make_programs import CASES, Run, execute, make_case  # noqa: E402

import dsckpt  # noqa: E402
import oracle  # noqa: E402
import tools  # noqa: E402
import torch  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

TRAINERS = ("trainer", "sft", "dpo")
STEPS = ("weights", "loaded", "whole", "resumed", "live", "universal")
# Their loss is one of all rows that a rank has (contrastive, BatchNorm), so it depends on how many have them.
LOSS_OF_A_RANK = ("clip", "resnet")
# A bf16 loss has steps of 1/32; another number of ranks adds in another order.
LOSS_TOLERANCE = {"bf16": 5e-2, "fp32": 1e-3}

# (cases, step): what the answer must have in it, and why. Regular expressions.
EXPECTED = [
    (".*_ptuning_.*", "loaded", "only the model can compute", "a network makes the prompt"),
    (".*_(randlora|vblora|pvera|tinylora|unilora)_.*", "loaded", "does not save its tensors themselves",
     "peft saves projections, indices or sums besides"),
    (".*_optlinearsharded_.*", ".*",
     "no values|in no file|one rank.s part alone is in the files|start out of range|exceeds dimension size|size mismatch|not been initialized",
     "one rank's part of the base weight is saved, which OptimizedLinear itself cannot load"),
    ("trainer_llama_adafactor_z3", "universal", "exp_avg.pt", "DeepSpeed's stage 3 loads Adam's states alone"),
    ("ulysses_.*_z2", "universal", "parallel_state_sp' has no attribute 'get_tensor_model_parallel_world_size",
     "DeepSpeed's loader of stages 1 and 2 asks Ulysses' mpu for what it lacks"),
]


class Wrong(Exception):
    """The fault that a step found."""


def tool(name, *arguments):
    done = tools.run_tool(name, *arguments)
    if done.returncode:
        raise Wrong(f"{name} exits with {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}")
    return done


def differences(found, truth, names):
    """Names that are missing or have other values. Values that fewer bits were made of are compared in these."""
    missing = [name for name in names if name not in found]
    other = []
    for name in names:
        if name in found:
            a, b = found[name], truth[name]
            same = a.shape == b.shape and torch.equal(a.double() if a.is_floating_point() else a,
                                                      b.double() if b.is_floating_point() else b)
            if not same:
                other.append(name)
    return [f"{len(list_)} {what}, such as {list_[0]}" for what, list_ in (("missing", missing), ("differ", other))
            if list_]


def demand(problems):
    if problems:
        raise Wrong("; ".join(problems))


class Made:
    """A case that was made, and where its results go."""

    def __init__(self, case, folder, options):
        self.case, self.folder, self.options = case, folder, options
        self.ckpt = folder / "ckpt"
        self.facts = json.loads((folder / "case.json").read_text())
        self.truth = load_file(folder / "expected" / "truth.safetensors")
        self.states = load_file(folder / "expected" / "states.safetensors")
        self.trained = [name for name in self.facts["param_shapes"] if name not in self.facts["frozen"]]
        self.tag = (self.ckpt / "latest").read_text().strip()
        self.logs = folder / "logs"
        self.own = None  # losses, or what is wrong

    def child(self, function, *arguments):
        """Runs it in a process of its own, where libraries may be patched."""
        error = run_forked(function, self.logs, [(self, *arguments)])
        if error:
            raise Wrong(error.strip()[-600:])


def read_weights(folder):
    """name -> tensor, aliases included."""
    found, aliases = {}, {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
        with safe_open(path, "pt") as file:
            aliases |= file.metadata() or {}
    return found | {alias: found[owner] for alias, owner in aliases.items() if owner in found}


def configuration(made):
    return ["--hf-config", made.ckpt] if (made.ckpt / "config.json").exists() else []


def weights(made):
    out = made.folder / "weights"
    tool("zero-to-fp32", made.ckpt, out, "--safe-serialization", "--include", ".", "--names=module",
         *configuration(made))
    found = read_weights(out)
    # The Trainer saves what is frozen beside an adapter in no file.
    saved = made.trained if made.case.adapter and made.case.program in TRAINERS else list(made.truth)
    demand(differences(found, made.truth, saved) +
           [f"{name} is too much" for name in found if name not in made.truth][:1])


def build(made):
    torch.manual_seed(99)
    return make_programs.MODELS[made.case.model](made.options.hidden).float()


def check_loaded(made, model):
    demand(differences(model.state_dict(), {name: value.float() if value.is_floating_point() else value
                                            for name, value in made.truth.items()}, list(made.truth)))


def load_pretrained(made):
    # With the hub's names, where the model has others.
    tool("zero-to-fp32", made.ckpt, made.folder / "hub", "--safe-serialization", *configuration(made))
    model, info = type(build(made)).from_pretrained(made.folder / "hub", output_loading_info=True,
                                                    dtype=torch.float32)
    demand([f"{key}: {sorted(map(str, value))[:2]}" for key, value in info.items() if value])
    check_loaded(made, model)


def load_accelerate(made):
    import accelerate
    model = build(made)
    accelerate.load_checkpoint_in_model(model, made.folder / "weights", strict=True)
    check_loaded(made, model)


def load_lightning(made):
    import dsckpt
    from lightning.pytorch.utilities import deepspeed as utilities
    dsckpt.patch_deepspeed()
    utilities.convert_zero_checkpoint_to_fp32_state_dict(str(made.ckpt), str(made.folder / "whole.ckpt"))
    os.environ["RANK"] = "1"
    run = Run(made.folder, 1, 99, made.options.hidden)
    module = make_programs.lightning_module(made.case, run)
    loaded = type(module).load_from_checkpoint(made.folder / "whole.ckpt", strict=True, weights_only=False)
    check_loaded(made, loaded)


def load_strictly(made):
    model = build(made)
    if made.case.arguments.get("compile") == "module":
        model = torch.compile(model, backend="eager")
    tool("zero-to-fp32", made.ckpt, made.folder / "bin", "--include", ".", "--names=module")
    model.load_state_dict(oracle.load_bin(made.folder / "bin" / "pytorch_model.bin"), strict=True)
    check_loaded(made, model)


def load_adapter(made):
    """peft's loader takes the adapter, which is the one that peft saved."""
    import peft
    configured = list(made.ckpt.rglob("adapter_config.json"))
    tool("zero-to-fp32", made.ckpt, "--peft", made.folder / "adapter", *([] if configured else ["--lora-alpha", 8]))
    for saved in made.ckpt.rglob("adapter_model.safetensors"):
        ours = made.folder / "adapter" / saved.relative_to(made.ckpt)
        if ours.parent.name == "second" or (ours.parent.name == "first" and not ours.exists()):
            ours = made.folder / "adapter" / saved.name
        theirs = load_file(saved)
        if ours.exists() and not saved.parent.name == "second":
            written = load_file(ours)
            # peft also saves an embedding under its adapter, which is frozen and in no file.
            wanted = [name for name in theirs if not name.endswith("base_layer.weight")]
            demand(differences({name: value.to(theirs[name].dtype) if name in theirs else value
                                for name, value in written.items()}, theirs, wanted) +
                   [f"{name} is too much" for name in written if name not in theirs][:1])
    os.environ["RANK"] = "1"
    torch.manual_seed(made.options.seed)
    base = make_programs.MODELS[made.case.model](made.options.hidden)
    base = type(base).from_pretrained(made.folder / "base")
    name = "first" if made.case.adapter == "twoadapters" else "default"
    model = peft.PeftModel.from_pretrained(base, made.folder / "adapter", adapter_name=name)
    result = model.load_adapter(made.folder / "adapter", adapter_name=name)
    mine = [key for key in result.missing_keys if name in key]
    # Prompts are not loaded by the model's load_state_dict, which is what this result is of.
    demand([f"{key} is unexpected" for key in result.unexpected_keys if key != "prompt_embeddings"][:1] +
           [f"{key} is missing" for key in mine][:1])
    demand(differences(model.state_dict(), made.truth, made.trained))


def loaded(made):
    if made.case.adapter:
        return made.child(load_adapter)
    loaders = {"accelerate": load_accelerate, "lightning": load_lightning, "deepspeed": load_strictly}
    if made.case.program in ("accelerate", "lightning", "deepspeed") or not (made.ckpt / "config.json").exists():
        return made.child(loaders.get(made.case.program, load_strictly))
    return made.child(load_pretrained)


def whole(made):
    for command in ("verify", "scan"):
        tool("ckpt-inspect", command, made.ckpt)


def go_on(made, where, world, universal=False):
    """The program resumes there; what it has then, and how it goes on."""
    out = made.folder / f"resumed_{where.name}_{world}"
    run = Run(made.folder, world, made.options.seed, made.options.hidden, where, universal)
    try:
        execute(made.case, run, out, made.logs)
    except RuntimeError as error:
        raise Wrong(str(error).strip()[-700:]) from None
    facts = json.loads((out / "seen.json").read_text())
    found = load_file(out / "truth.safetensors")
    # Buffers and what is frozen come from no universal checkpoint, and from no Trainer's with an adapter.
    names = made.trained if universal or made.case.adapter else list(made.truth)
    problems = differences(found, made.truth, names)
    problems += differences(load_file(out / "states.safetensors"), made.states, list(made.states))
    if facts["step"] != made.facts["step"]:
        problems.append(f"goes on at step {facts['step']}")
    # Accelerate steps a schedule once for each rank.
    compared = 1 if made.case.program == "accelerate" and world != made.options.world else None
    if facts["learning_rates"][:compared] != made.facts["learning_rates"][:compared]:
        problems.append(f"goes on with learning rates {facts['learning_rates']}, not {made.facts['learning_rates']}")
    demand(problems)
    return facts["losses_after_save"]


def own(made):
    """The losses of the program that resumes its own save. They need not be those of the run that went on:
    Lightning begins an epoch's data again."""
    if made.own is None:
        try:
            made.own = go_on(made, made.ckpt, made.options.world)
        except Wrong as wrong:
            made.own = wrong
    if isinstance(made.own, Wrong):
        raise Wrong(f"its own: {made.own}")
    return made.own


def goes_on_as_its_own(made, where, world, universal=False):
    try:
        losses = go_on(made, where, world, universal)
    except Wrong as here:
        own(made)
        raise here from None
    pairs = list(zip(losses, own(made), strict=True))
    if made.case.model in LOSS_OF_A_RANK and world != made.options.world:
        return
    if not pairs or any(abs(a - b) > LOSS_TOLERANCE[made.case.dtype] for a, b in pairs):
        raise Wrong(f"losses {pairs}")


def other_world(made):
    return {"ulysses": 4}.get(made.case.program, made.options.to)  # each sequence has two


def resumed(made):
    out = made.folder / "resharded"
    world = other_world(made)
    tool("reshard", made.ckpt, out, "--dp", world)
    tool("ckpt-inspect", "verify", out)
    goes_on_as_its_own(made, out, world)


def live(made):
    """The ranks are forked, so they have the functions that are in DeepSpeed's place here."""
    with contextlib.suppress(Wrong):
        own(made)
    undo = dsckpt.patch_deepspeed(load=True)
    try:
        goes_on_as_its_own(made, made.ckpt, other_world(made))
    finally:
        undo()


def universal(made):
    out = made.folder / "universal"
    tag = made.tag if made.case.program in ("accelerate", "lightning") else f"{made.tag}_universal"
    shutil.copytree(made.ckpt, out, ignore=shutil.ignore_patterns(made.tag))
    tool("to-universal", "--input_folder", made.ckpt / made.tag, "--output_folder", out / tag)
    (out / "latest").write_text(tag)
    if made.case.stage:
        world = 2 if made.case.program == "ulysses" else 1
        goes_on_as_its_own(made, out, world, universal=True)


def try_case(case, folder, options):
    """step -> "ok", or what was wrong."""
    try:
        made = Made(case, make_case(case, folder, folder / "logs" / case.name, options.world, options.seed,
                                    options.hidden), options)
    except Exception as error:  # the program's own
        return {"made": str(error).strip()[-1500:]}
    answers = {}
    for step in STEPS:
        try:
            globals()[step](made)
            answers[step] = "ok"
        except Wrong as wrong:
            answers[step] = str(wrong)
    return answers


def reason(name, step, answer):
    """Why that answer was to be expected; None where it was not."""
    for cases, steps, text, why in EXPECTED:
        if re.fullmatch(cases, name) and re.fullmatch(steps, step) and re.search(text, answer):
            return why
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", default="", metavar="REGEX")
    parser.add_argument("--seed", type=int, default=make_programs.DEFAULT_SEED)
    parser.add_argument("--world", type=int, default=2, help="ranks that save")
    parser.add_argument("--to", type=int, default=3, help="ranks that go on")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--keep", type=pathlib.Path, help="keep everything in this folder")
    parser.add_argument("--results", type=pathlib.Path, help="append the answers to this file, a JSON a line")
    options = parser.parse_args()
    make_programs.preload()
    counts = {"ok": 0, "expected": 0, "wrong": 0}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or pathlib.Path(temporary)).resolve()
        for case in CASES:
            if not re.search(options.case, case.name):
                continue
            started = time.monotonic()
            answers = try_case(case, folder, options)
            if not options.keep:
                shutil.rmtree(folder / case.name, ignore_errors=True)
            line = []
            for step, answer in answers.items():
                why = None if answer == "ok" else reason(case.name, step, answer)
                kind = "ok" if answer == "ok" else "expected" if why else "wrong"
                counts[kind] += 1
                line.append(step if kind == "ok" else f"{step}: {why or 'WRONG: ' + answer}")
            print(f"{case.name} ({time.monotonic() - started:.0f} s): {', '.join(line)}", flush=True)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps({"name": case.name, **answers}) + "\n")
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if counts["wrong"] or not counts["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
