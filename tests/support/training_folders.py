"""Random folders such as trainings leave, built from real checkpoints, with the true place of each.

A seed always makes the same folder. Each saved state is a copy of a test checkpoint whose files have another step. The
checkpoint that a tool reads shows whether it took the right copy.
"""
import dataclasses
import math
import os
import pathlib
import random
import shutil

import cli_common
import tools
import torch_files

# The checkpoints of a family have the same model: the same parameters with other values.
FAMILIES = [
    ["z1_bf16_w2", "z2_bf16_w2", "z2_fp16_w2", "z3_fp16_w2", "z1_fp32_w2", "z2_fp32_radam_w2", "z0_fp16_w2"],
    ["z1_fp32_w1", "z2_fp32_full_w3", "z3_fp32_full_w2", "z0_fp32_w2"],
    ["z2_bf16_roundrobin_w2", "z0_bf16_fusedadam_w2", "z2_bf16_muon_w2"],
]
MODELS = ["actor", "critic", "reward", "generator", "discriminator", "ema", "reference", "pytorch_model",
          "pytorch_model_1"]


def small_values(first):
    """A small model's state_dict, with other values for each `first`."""
    shapes = {"a.weight": (2, 3), "a.bias": (2, ), "b.weight": (4, 2)}
    values, at = {}, 1000 * first
    for name, shape in shapes.items():
        count = math.prod(shape)
        values[name] = torch_files.tensor((torch_files.arange(count).values + at).astype("float32").reshape(shape))
        at += count
    return values


def adam(values, step):
    """torch.optim.Adam.state_dict() of these parameters."""
    state = {number: {"step": torch_files.full(value=float(step)), "exp_avg": value + 1, "exp_avg_sq": value + 2}
             for number, value in enumerate(values.values())}
    return {"state": state, "param_groups": [{"lr": 0.5, "betas": (0.9, 0.99), "params": list(range(len(values)))}]}


def lightning_file(values, step):
    return {"epoch": 1, "global_step": step, "pytorch-lightning_version": "2.6.6", "state_dict": values,
            "optimizer_states": [adam(values, step)], "lr_schedulers": []}


def tutorial_file(values, step):
    """torch's tutorials save the epoch and no step, which the optimizer has."""
    return {"epoch": 1, "model": values, "optimizer": adam(values, step), "loss": torch_files.full(value=0.5)}


def leave_stranger(folder, what):
    """Writes a file that programs leave beside states."""
    if what == "text":
        (folder / "notes.txt").write_text("global_step7")
    elif what == "events":
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "logs" / "events.out.tfevents.1").write_bytes(b"x")
    elif what == "hidden":
        (folder / ".cache").mkdir(exist_ok=True)
        torch_files.save_file({"x": torch_files.zeros(2)}, folder / ".cache" / "model.safetensors")


@dataclasses.dataclass
class State:
    path: str  # below the folder, as the user gives it
    case: tools.Case
    step: int
    model: str = ""


@dataclasses.dataclass
class Scene:
    folder: pathlib.Path
    what: str
    states: list
    # The states that a tool may choose. If there are none, it must refuse with exit status 3.
    right: list
    # True: a refusal is an error.
    clear: bool = False
    arguments: tuple = ()


class Maker:
    """Makes scenes in folders below `scratch`."""

    def __init__(self, scratch, seed):
        self.scratch = pathlib.Path(scratch)
        self.random = random.Random(seed)

    def pick(self, *choices):
        return self.random.choice(choices)

    def copy(self, case, step, folder):
        """A tag's folder: the shards of `case` with `step` as their number of steps; None: without a number."""
        made = self.scratch / "pieces" / f"{case.name}-{step}"
        if not made.exists():
            shutil.copytree(case.tag_folder, made)
            cli_common.set_step(made, step)
        shutil.copytree(made, folder)

    def cases(self, count, family=None):
        return [tools.case_named(name) for name in self.random.sample(family or self.pick(*FAMILIES), count)]

    def steps(self, count):
        return self.random.sample(range(1, 2000), count)

    def name(self, scheme, step, index):
        wrong = self.random.randrange(1, 5000)
        return {
            "global_step": f"global_step{step}",
            "checkpoint": f"checkpoint-{step}",
            "wrong number": f"checkpoint-{wrong}-{index}",
            "epoch": f"epoch-{wrong}-{index}",
            "lightning": f"epoch={index}-step={step}.ckpt",
            "metric": f"val_loss={self.random.random():.2f}-epoch={index}-step={step}.ckpt",
            "number": str(step),
            "words": ["best", "last", "final", "best_model"][index],
        }[scheme]

    def save(self, folder, name, case, step, model=""):
        """Saves a folder with its own `latest` like the Trainer, or only a tag's folder."""
        at = folder / name
        if self.pick(True, False):
            self.copy(case, step, at / f"global_step{step}")
            (at / "latest").write_text(f"global_step{step}")
        else:
            self.copy(case, step, at)
        return State(name, case, step, model)

    def make(self, number):
        folder = self.scratch / f"scene{number}" / "out"
        folder.mkdir(parents=True)
        scene = self.pick(self.ages, self.ages, self.with_latest, self.models, self.models_of_a_step, self.runs,
                          self.one_step_twice, self.without_steps)(folder)
        self.add_strangers(scene)
        self.touch(folder)
        return scene

    def ages(self, folder):
        count = self.pick(1, 2, 3, 4)
        cases = self.cases(min(count, 3), FAMILIES[self.pick(0, 1, 2)])
        steps = self.steps(len(cases))
        scheme = self.pick("global_step", "checkpoint", "wrong number", "epoch", "lightning", "metric", "number", "words")
        below = self.pick("", "", "version_0/checkpoints/", "ckpts/")
        states = [self.save(folder, below + self.name(scheme, step, i), case, step)
                  for i, (case, step) in enumerate(zip(cases, steps))]
        newest = max(states, key=lambda state: state.step)
        scene = Scene(folder, f"ages by {scheme}", states, [newest], clear=True)
        if scheme == "words":
            return scene
        extra = self.pick("none", "link", "copy", "partial", "empty")
        scene.what += f", {extra}"
        some = self.pick(*states)
        if extra == "link":
            (folder / below / "best").symlink_to(pathlib.Path(some.path).name)
        elif extra == "copy":
            shutil.copytree(folder / some.path, folder / below / "best")
        elif extra == "partial":
            # A copy of an existing state without an optimizer file.
            shutil.copytree(folder / some.path, folder / below / "last")
            lost = next(iter((folder / below / "last").rglob("*optim_states.pt")), None)
            if lost:
                lost.unlink()
        elif extra == "empty":
            # A save that a power cut has emptied is not a state.
            shutil.copytree(folder / some.path, folder / below / "global_step99999")
            for path in (folder / below / "global_step99999").rglob("*.pt"):
                path.write_bytes(b"")
            scene.clear = False
        return scene

    def with_latest(self, folder):
        cases = self.cases(3, FAMILIES[0])
        steps = self.steps(3)
        for case, step in zip(cases, steps):
            self.copy(case, step, folder / f"global_step{step}")
        states = [State(f"global_step{step}", case, step) for case, step in zip(cases, steps)]
        chosen = self.pick(*states)
        (folder / "latest").write_text(chosen.path + self.pick("", "\n"))
        return Scene(folder, "latest", states, [chosen], clear=True)

    def models(self, folder):
        """Several models, saved at several steps. The tool asks for one of them, or for none."""
        names = self.random.sample(MODELS[:7], self.pick(2, 3))
        steps = sorted(self.steps(2))
        families = [self.random.sample(self.pick(*FAMILIES), 2) for _ in names]
        states = []
        outer = self.pick(True, False)
        for model, family in zip(names, families):
            for step, name in zip(steps, family):
                path = f"global_step_{step}/{model}" if outer else f"{model}/global_step_{step}"
                states.append(self.save(folder, path, tools.case_named(name), step, model))
        asked = self.pick("", *names)
        own = [state for state in states if state.model == asked and state.step == steps[-1]]
        return Scene(folder, "models", states, own, clear=bool(asked),
                     arguments=("--model", asked) if asked else ())

    def models_of_a_step(self, folder):
        """Accelerate's form: the tags of one folder, whose `latest` names the one that was saved last."""
        names = self.pick(["pytorch_model", "pytorch_model_1"], ["generator", "discriminator"], ["model", "model_ema"])
        cases = self.cases(2, FAMILIES[self.pick(0, 1)])
        step = self.steps(1)[0]
        states = []
        for name, case in zip(names, cases):
            self.copy(case, step, folder / name)
            states.append(State(name, case, step, name))
        if self.pick(True, False):
            (folder / "latest").write_text(names[-1])
        asked = self.pick("", *names)
        own = [state for state in states if state.model == asked]
        return Scene(folder, "models of a step", states, own, clear=bool(asked),
                     arguments=("--model", asked) if asked else ())

    def runs(self, folder):
        cases = self.cases(2, FAMILIES[0])
        names = self.pick(("run1", "run2"), ("lr_1e-4", "lr_3e-4"), ("seed0", "seed1"), ("version_0", "version_1"))
        states = [self.save(folder, f"{name}/checkpoint-{step}", case, step)
                  for name, case, step in zip(names, cases, self.steps(2))]
        return Scene(folder, "runs", states, [])

    def one_step_twice(self, folder):
        cases = self.cases(2, FAMILIES[0])
        step = self.steps(1)[0]
        states = [self.save(folder, name, case, step) for name, case in zip(("checkpoint-1", "checkpoint-2"), cases)]
        return Scene(folder, "one step twice", states, [])

    def without_steps(self, folder):
        cases = self.cases(2, FAMILIES[0])
        steps = self.steps(2)
        states = []
        for case, step, told in zip(cases, steps, self.pick((None, None), (None, steps[1]))):
            self.copy(case, told, folder / f"checkpoint-{step}")
            states.append(State(f"checkpoint-{step}", case, step))
        return Scene(folder, "without steps", states, [])

    def add_strangers(self, scene):
        for _ in range(self.random.randrange(3)):
            what = self.pick("text", "events", "hidden", "weights")
            leave_stranger(scene.folder, what)
            if what == "weights" and (scene.folder / "latest").exists():
                torch_files.save_file({"stranger": torch_files.zeros(3)}, scene.folder / "model.safetensors")

    def touch(self, folder):
        """Times do not help: all are equal, or random."""
        equal = self.pick(True, False)
        for path in [*folder.rglob("*"), folder]:
            time = 1_700_000_000 + (0 if equal else self.random.randrange(10 ** 6))
            os.utime(path, (time, time), follow_symlinks=False)
