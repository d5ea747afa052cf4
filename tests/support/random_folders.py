"""Random folders of every kind of saved state, with the truth of what each path means.

A seed always makes the same folder. Each saved state has values of its own, so the values that a tool writes show
which state it took. The truth comes from the rules of LAYOUTS.md ("What a path means"), never from a tool.
"""
import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil

import cli_common
import tools
import torch_files
import training_folders
from training_folders import FAMILIES, adam, leave_stranger, lightning_file, tutorial_file

# How a path may fare.
TAKEN, LISTED, DAMAGED = "taken", "listed", "damaged"
# Names of ages that have a number, whose places are {number}.
AGES = ["global_step{}", "checkpoint-{}", "step_{}", "epoch{}", "iter_{}", "{}"]
MODELS = ["actor", "critic", "reward", "generator", "discriminator", "ema", "reference", "unet", "vae"]
MOE = ["moe_ep2_dp2_z0_fp32", "moe_ep2_dp2_z0_fp32", "moe_ep2_dp2_z1_bf16", "moe_ep2_dp4_z1_fp32",
       "moe_ep2_dp4_z2_fp32"]
# Beginnings of names of files that no tool needs, and of those that no weights need.
COMPANIONS = ("extra_state", "rng_state", "scheduler", "trainer_state")
BESIDE_WEIGHTS = ("optim", "latest")
ENDINGS = [".ckpt", ".pt", ".pth", ".pth.tar"]

# Defects of the program that are not yet mended: scenes leave them out. OPEN=NAME,NAME asks for some of them, OPEN=all
# for all.
OPEN = {"two of them read"}
OPEN -= OPEN if os.environ.get("OPEN") == "all" else set(os.environ.get("OPEN", "").split(","))


@dataclasses.dataclass
class Piece:
    """A saved state."""
    path: str  # below the folder: it means this state alone
    values: dict
    step: int | None = None  # that its files tell
    model: str = ""  # --model chooses it among models
    said: str = ""  # its name in a list
    damaged: bool = False
    has_weights: bool = False  # though it is damaged
    buffers: frozenset = frozenset()  # names of values that no average has

    def name(self):
        return self.said or self.path


@dataclasses.dataclass
class Scene:
    folder: pathlib.Path
    what: str
    pieces: list
    truth: str
    right: Piece | None = None  # that is taken; for DAMAGED, what may be taken with a note
    arguments: tuple = ()
    says: list = dataclasses.field(default_factory=list)  # in stderr, whatever happens
    models: dict = dataclasses.field(default_factory=dict)  # --model NAME -> its newest piece; None: a list
    # The ages that --tag all and --average see, the oldest first; None: these are not asked for.
    ages: list | None = None
    ages_arguments: tuple = ()
    tools: tuple = ("to-universal", "to-dcp")
    param_names: tuple = ()  # for these tools
    status: tuple = (3,)  # of a refusal
    verify: tuple | None = None  # exit status of verify, where it is not that of the truth


@functools.lru_cache(maxsize=None)
def truth_of(case):
    return tools.case_named(case).truth()


def trainer_state(folder, step):
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "log_history": []}))


class Maker(training_folders.Maker):
    """Makes scenes in folders below `scratch`."""

    def __init__(self, scratch, seed):
        super().__init__(scratch, seed)
        self.seed = seed
        self.count = 0

    # Pieces.

    def values(self, shapes=0):
        """A small model with values that no other of the scene has; other `shapes` for another model."""
        self.count += 1
        values = training_folders.small_values(self.count)
        if shapes:
            values[f"c{shapes}.weight"] = torch_files.full(shapes + 1, 2, value=float(self.count))
        return values

    def shards(self, folder, case, step):
        self.copy(tools.case_named(case), step, folder)
        return truth_of(case)

    def shards_of_a_program(self, at, case, step):
        """DeepSpeed's folder of a tag, or the Trainer's or Lightning's, whose `latest` names a folder in it."""
        program = self.pick("deepspeed", "deepspeed", "trainer", "lightning")
        if program == "deepspeed":
            return self.shards(at, case, step)
        tag = f"global_step{step}" if program == "trainer" else "checkpoint"
        values = self.shards(at / tag, case, step)
        (at / "latest").write_text(tag)
        if program == "trainer":
            trainer_state(at, step)
            torch_files.save({"python": (3, )}, at / "rng_state_0.pth")
            torch_files.save({"last_epoch": step}, at / "scheduler.pt")
        return values

    def tool_made(self, words, made):
        done = tools.run_tool(*words)
        assert done.returncode == 0, done.stderr
        return made

    def universal(self, folder, case, step):
        source = self.scratch / "pieces" / f"{case}-{step}-for"
        made = self.scratch / "pieces" / f"{case}-{step}-universal"
        if not made.exists():
            self.shards(source / f"global_step{step}", case, step)
            self.tool_made(["to-universal", source / f"global_step{step}", made], made)
        shutil.copytree(made, folder)
        return truth_of(case)

    def dcp(self, folder, values, step, preset=None):
        file = self.scratch / "pieces" / f"of_dcp{self.count}.pt"
        file.parent.mkdir(parents=True, exist_ok=True)
        torch_files.save(tutorial_file(values, step), file)
        folder.parent.mkdir(parents=True, exist_ok=True)
        preset = preset or self.preset
        self.tool_made(["to-dcp", file, folder, "--dp", str(self.pick(1, 2)), "--preset", preset], folder)
        return values

    def rank_files(self, folder, values, step, ranks):
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(ranks):
            torch_files.save(values, folder / f"model_world_size_{ranks}_rank_{rank}.pt")
            if step is not None:
                torch_files.save(adam(values, step), folder / f"optim_world_size_{ranks}_rank_{rank}.pt")
            torch_files.save({"rng": torch_files.arange(3)}, folder / f"extra_state_world_size_{ranks}_rank_{rank}.pt")
        return values

    def weights(self, folder, values, name="model", form=None):
        """A model's weights in one of their forms."""
        folder.mkdir(parents=True, exist_ok=True)
        form = form or self.pick("safetensors", "bin", "split", self.pick("split", "split without index", "bin"))
        bins = {"model": "pytorch_model", "model_1": "pytorch_model_1"}
        if form == "safetensors":
            torch_files.save_file(values, folder / f"{name}.safetensors")
        elif form == "bin":
            torch_files.save(values, folder / f"{bins[name]}.bin")
        else:
            parts = {}
            for number, (key, value) in enumerate(values.items(), start=1):
                parts[key] = f"{name}-{number:05}-of-{len(values):05}.safetensors"
                torch_files.save_file({key: value}, folder / parts[key])
            if form == "split":
                (folder / f"{name}.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
        return values

    def file(self, path, values, step, make=None):
        path.parent.mkdir(parents=True, exist_ok=True)
        make = make or self.pick(lightning_file, tutorial_file)
        torch_files.save(make(values, step), path)
        return values

    def save_kind(self, kind, folder, path, step, number, shapes=0, model=""):
        """A state of one kind. `number` counts the states of a model, so that cases differ."""
        at = folder / path
        piece = Piece(path, {}, step, model)
        if kind in ("zero", "tag"):
            family = FAMILIES[shapes % len(FAMILIES)]
            case = tools.case_named(family[number % len(family)])
            save = self.shards_of_a_program if kind == "zero" else self.shards
            piece.values = save(at, case.name, step)
            piece.buffers = frozenset({*piece.values} - {*case.facts["param_shapes"], *case.tied})
        elif kind == "universal":
            family = FAMILIES[shapes % len(FAMILIES)]
            piece.values = self.universal(at, family[number % len(family)], step)
        elif kind == "dcp":
            piece.values = self.dcp(at, self.values(shapes), step)
        elif kind == "ranks":
            piece.values = self.rank_files(at, self.values(shapes), step, self.pick(1, 2, 3))
        elif kind == "trainer":
            piece.values = self.weights(at, self.values(shapes), form=self.pick("safetensors", "bin", "split"))
            torch_files.save(adam(piece.values, step), at / "optimizer.pt")
            if self.pick(True, False):
                trainer_state(at, step)
        elif kind == "weights":
            piece.values = self.weights(at, self.values(shapes))
            if step is not None:
                trainer_state(at, step)
        else:
            assert kind == "file", kind
            piece.values = self.file(at, self.values(shapes), step, self.make_file)
        return piece

    # Names.

    def age_names(self, count, steps):
        """Names of one scheme. Their numbers are the steps, or lie."""
        scheme, lies = self.pick(*AGES), self.pick(True, False)
        numbers = self.random.sample(range(1, 5000), count) if lies else steps
        return [scheme.format(number) for number in numbers], lies

    # Scenes.

    def make(self, number, scene=None):
        self.count = self.random.randrange(100) * 100  # float32 has all values
        folder = self.scratch / f"scene{number}" / self.pick("run", "run", "my run", "it's $1")
        folder.mkdir(parents=True)
        self.make_file = self.pick(lightning_file, tutorial_file)
        self.preset = self.pick("torch", "torch", "accelerate", "trainer")
        made = getattr(self, scene or self.pick(*SCENES))(folder)
        self.decoys(made)
        if made.right and any(any(each.parent.glob("optimizer*")) for each in folder.rglob("model*.safetensors")):
            names = folder.with_name("names.txt")
            names.write_text("".join(f"{name}\n" for name in made.right.values))
            made.param_names = ("--param-names", names)
        self.touch(folder)
        return made

    def kind_ages(self, folder):
        kind = self.pick("zero", "universal", "dcp", "ranks", "trainer", "weights", "file")
        count = self.pick(1, 2, 3)
        steps = self.steps(count)
        names, lies = self.age_names(count, steps)
        if kind == "file":
            ending = self.pick(*ENDINGS)
            names = [name + ending for name in names]
        below = self.pick("", "", "checkpoints/", "version_0/checkpoints/")
        pieces = [self.save_kind(kind, folder, below + name, step, i)
                  for i, (name, step) in enumerate(zip(names, steps))]
        by_step = sorted(pieces, key=lambda piece: piece.step)
        scene = Scene(folder, f"ages of {kind}{' that lie' if lies else ''}", pieces, TAKEN, by_step[-1], ages=by_step)
        if kind == "zero":
            scene.tools += ("reshard", )
        if kind == "universal":
            scene.tools = ()
        self.add_to_ages(scene, kind, below)
        return scene

    def add_to_ages(self, scene, kind, below):
        """A copy of one of the ages, a link to it, or a damaged one that is newer."""
        extra = self.pick("none", "copy", "link", "other notes" if kind == "file" else "none",
                          "cut off", "cut off")
        some = self.pick(*scene.pieces)
        source = scene.folder / some.path
        if extra == "none" or (extra == "cut off" and kind in ("weights", "universal")):
            return
        if extra in ("copy", "link", "other notes"):
            if kind not in ("zero", "universal", "file", "ranks") and extra == "copy":
                return  # no checksums tell copies of these
        scene.what += f", {extra}"
        name = self.pick("last", "best") + ("".join(source.suffixes[-2:]) if kind == "file" and
                                             source.name.endswith(".tar") else
                                             source.suffix if kind == "file" else "")
        target = scene.folder / below / name
        if extra == "link":
            target.symlink_to(source.name)
        elif extra == "copy":
            (shutil.copy if source.is_file() else shutil.copytree)(source, target)
        elif extra == "other notes":
            value = torch_files.load(source)
            torch_files.save(value | {"callbacks": {"last": 5}}, target)
        else:
            self.add_cut_off(scene, kind, below)

    def add_cut_off(self, scene, kind, below):
        """A further age, newer than all, one file of which was cut off."""
        step = max(piece.step for piece in scene.pieces) + 7
        sample = pathlib.Path(scene.pieces[0].path).name
        digits = re.search(r"\d+", sample)[0]
        number = 90000 + self.random.randrange(9999)
        piece = self.save_kind(kind, scene.folder, below + sample.replace(digits, str(number), 1), step,
                               len(scene.pieces))
        at = scene.folder / piece.path
        files = [at] if at.is_file() else [path for path in at.rglob("*") if path.is_file() and
                                           not path.name.startswith(COMPANIONS) and path.suffix != ".json"]
        file = self.pick(*sorted(files))
        data = file.read_bytes()
        file.write_bytes(data[:self.pick(0, len(data) // 3, len(data) - 30)])
        piece.damaged = True
        piece.has_weights = file.name.startswith(BESIDE_WEIGHTS) or file.parent.name.startswith("optimizer_")
        scene.pieces.append(piece)
        scene.truth = DAMAGED
        scene.what += f" of {file.name}"
        scene.says.append(pathlib.Path(piece.path).name)
        scene.ages = None

    def unknown_steps(self, folder):
        kind = self.pick("zero", "ranks", "weights", "file")
        count = self.pick(2, 3)
        steps = self.steps(count)
        names, _ = self.age_names(count, steps)
        told = [None, *self.pick((None, None), (steps[1], None), tuple(steps[1:]))][:count]
        told += [None] * (count - len(told))
        pieces = []
        for i, (name, step) in enumerate(zip(names, told)):
            if kind == "file":
                name += ".pt"
                values = self.values()
                value = tutorial_file(values, step or 1)
                if step is None:
                    value["optimizer"] = {"state": {}, "param_groups": []}
                torch_files.save(value, folder / name)
                pieces.append(Piece(name, values, step))
            else:
                pieces.append(self.save_kind(kind, folder, name, step, i))
        return Scene(folder, f"{kind} without steps", pieces, LISTED)

    def kind_models(self, folder):
        """Several models of several steps, in folders above, below, or in names of tags."""
        kind = self.pick("zero", "zero", "dcp", "ranks", "trainer", "weights", "file")
        names = self.random.sample(MODELS, self.pick(2, 3))
        steps = self.steps(self.pick(1, 2))
        forms = ["{model}/step_{step}", "step_{step}/{model}", "{model}_step{step}", "step{step}-{model}",
                 "global_step{step}/{model}"]
        form = self.pick(*forms)
        if kind == "file":
            form += self.pick(*ENDINGS)
        pieces, models = [], {}
        same = self.pick(True, False)
        for i, model in enumerate(names):
            for j, step in enumerate(sorted(steps)):
                # Models of one shape differ in their values.
                piece = self.save_kind(kind, folder, form.format(model=model, step=step), step,
                                       i * len(steps) + j, 0 if same else i, model)
                pieces.append(piece)
                models[model] = piece
        scene = Scene(folder, f"models of {kind} as {form}", pieces, LISTED, models=models)
        asked = self.pick("", *names)
        if asked:
            scene.ages_arguments = ("--model", asked)
            scene.ages = [piece for piece in pieces if piece.model == asked]
            scene.arguments, scene.truth, scene.right = scene.ages_arguments, TAKEN, models[asked]
        return scene

    def numbered_runs(self, folder):
        """Runs, or Lightning's versions: other models by their names, though each has ages."""
        kind = self.pick("file", "zero", "trainer", "dcp")
        front = self.pick("version_{}", "run{}", "seed{}", "lr_{}e-4")
        pieces, models = [], {}
        for run in range(2):
            for j, step in enumerate(sorted(self.steps(self.pick(1, 2)))):
                name = f"{front.format(run)}/checkpoints/epoch={j}-step={step}"
                piece = self.save_kind(kind, folder, name + (".ckpt" if kind == "file" else ""), step, 2 * run + j)
                pieces.append(piece)
                models[front.format(run)] = piece
        return Scene(folder, f"runs of {kind}", pieces, LISTED, models=models)

    def two_weights(self, folder):
        """Accelerate's second model, or an EMA beside the model, with optimizers or without."""
        first, second = self.pick(("model", "model_1"), ("pytorch_model", "pytorch_model_1"), ("model", "ema"),
                                  ("model", "model_ema"), ("generator", "discriminator"))
        pieces, models = [], {}
        alike = self.pick(True, False)
        numbered = second.endswith("_1")
        ending = ".bin" if first == "pytorch_model" else ".safetensors"
        trained = numbered and self.pick(True, False)
        for i, name in enumerate((first, second)):
            values = self.values(0 if alike else i)
            path = folder / (name + ending)
            (torch_files.save if ending == ".bin" else torch_files.save_file)(values, path)
            pieces.append(Piece(name + ending, values, model=name, said=name))
            models[name] = pieces[-1]
            if trained:
                torch_files.save(adam(values, 9), folder / ("optimizer_1.bin" if i else "optimizer.bin"))
        scene = Scene(folder, f"{first} and {second}{', trained' if trained else ''}", pieces, LISTED, models=models)
        self.ask(scene)
        if first == "generator" and not scene.arguments:
            scene.verify = (1,)  # they may be the parts of one model
        return scene

    def ask(self, scene):
        if scene.models and self.pick(True, False):
            name = self.pick(*scene.models)
            scene.arguments, scene.truth, scene.right = ("--model", name), TAKEN, scene.models[name]

    def forms_of_weights(self, folder):
        """One model in two forms: transformers' order decides, and a note names the other. An adapter beside its base
        is likewise left out."""
        other = self.pick("pytorch_model.bin", "consolidated.safetensors", "adapter_model.safetensors",
                          "model.fp16.safetensors")
        own, others = self.values(), self.values()
        if other.startswith("adapter"):
            others = {f"base_model.model.{name}.lora_A.weight": value for name, value in others.items()}
            (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
        torch_files.save_file(own, folder / "model.safetensors")
        (torch_files.save if other.endswith(".bin") else torch_files.save_file)(others, folder / other)
        right = Piece("model.safetensors", own)
        piece = Piece(other, others, model=other.rpartition(".")[0])
        return Scene(folder, f"model.safetensors beside {other}", [right, piece], TAKEN, right, says=[other],
                     models={piece.model: piece})

    def stale_parts(self, folder):
        """Split weights beside those of an older save, which had another number of files."""
        how = self.pick("index", "no index", "lost part", "whole file")
        stale = self.values()
        stale = dict(list(stale.items())[:2]) if how != "whole file" else stale
        self.weights(folder, stale, form="safetensors" if how == "whole file" else "split without index")
        own = self.weights(folder, self.values(), form="split without index" if how == "no index" else "split")
        right = Piece("model.safetensors.index.json", own)
        scene = Scene(folder, f"stale parts, {how}", [right], TAKEN, right, verify=(1, ))
        if how == "no index":
            scene.truth, scene.right, scene.pieces = DAMAGED, None, []
            scene.says = ["-of-0000"]
            scene.verify = (1, 3)
        elif how == "lost part":
            (folder / "model-00002-of-00003.safetensors").unlink()
            scene.truth, scene.right, scene.pieces = DAMAGED, None, []
            scene.says, scene.verify = ["model-00002-of-00003.safetensors"], (1, 3)
        elif how == "whole file":
            scene.truth, scene.right = LISTED, None
            scene.pieces = [dataclasses.replace(right, model="model.safetensors.index.json"),
                            Piece("model.safetensors", stale, model="model.safetensors")]
            scene.models, scene.verify = {piece.model: piece for piece in scene.pieces}, None
            self.ask(scene)
        return scene

    def two_worlds(self, folder):
        """Files of ranks of two sizes of the world in one folder."""
        pieces = []
        below = self.pick("", "actor/")
        sizes = self.random.sample(range(1, 5), 2)
        for ranks in sizes:
            values = self.rank_files(folder / below, self.values(), self.pick(5, 9), ranks)
            pieces.append(Piece(f"{below}model_world_size_{ranks}_rank_{self.random.randrange(ranks)}.pt", values,
                                said=f"world_size_{ranks}"))
        return Scene(folder, "files of ranks of two worlds", pieces, LISTED)

    def two_kinds(self, folder):
        """DCP, or files of ranks, in the folder of the shards."""
        step = self.steps(1)[0]
        tag = folder / f"global_step{step}"
        case = self.pick("z2_bf16_w2", "z1_fp32_w2", "z3_fp16_w2")
        zero = Piece(str(tag.relative_to(folder)), self.shards(tag, case, step), step, said="ZeRO")
        shard = sorted(path.name for path in tag.glob("*model_states.pt"))[0]
        zero.path += f"/{shard}"
        if self.pick(True, False):
            made = self.scratch / f"dcp{self.count}"
            values = self.dcp(made, self.values(), self.pick(step, step + 1), "torch")
            for path in made.iterdir():
                shutil.move(path, tag / path.name)
            made.rmdir()
            other = Piece(f"{tag.name}/.metadata", values, step, said="DCP")
        else:
            values = self.rank_files(tag, self.values(), step, 2)
            other = Piece(f"{tag.name}/model_world_size_2_rank_1.pt", values, step, said="rank files")
        if self.pick(True, False):
            (folder / "latest").write_text(tag.name)
        return Scene(folder, f"{other.said} among shards", [zero, other], LISTED)

    def two_of_accelerate(self, folder):
        """Two models of FSDP in Accelerate's folders, each with its optimizer."""
        step = self.steps(1)[0]
        pieces, models = [], {}
        for number in range(2):
            made = self.scratch / f"dcp{self.count}-{number}"
            values = self.dcp(made, self.values(), step, "accelerate")
            for front in ("pytorch_model_fsdp_", "optimizer_"):
                (folder / "checkpoint_0").mkdir(exist_ok=True)
                shutil.move(made / f"{front}0", folder / "checkpoint_0" / f"{front}{number}")
            made.rmdir()
            name = f"pytorch_model_fsdp_{number}"
            pieces.append(Piece(f"checkpoint_0/{name}", values, step, name, f"checkpoint_0/{name}"))
            models[name] = pieces[-1]
        scene = Scene(folder, "two models of Accelerate's FSDP", pieces, LISTED, models=models)
        self.ask(scene)
        return scene

    def universal_beside(self, folder):
        """A universal checkpoint of the same step beside its shards, or of another."""
        cases = self.random.sample(FAMILIES[0], 2)
        step = self.steps(1)[0]
        same = self.pick(True, True, False)
        zero = Piece(f"global_step{step}", self.shards(folder / f"global_step{step}", cases[0], step), step)
        other = step if same else step + self.pick(-1, 1)
        path = f"global_step{step}_universal"
        universal = Piece(path, self.universal(folder / path, cases[1], other), other)
        latest = self.pick("none", "latest", "latest_universal", "both")
        if latest in ("latest", "both"):
            (folder / "latest").write_text(zero.path)
        if latest in ("latest_universal", "both"):
            (folder / "latest_universal").write_text(universal.path)
        truth, right = (TAKEN, zero) if same else (LISTED, None)
        if latest != "none":
            truth, right = TAKEN, universal if latest == "latest_universal" else zero
        scene = Scene(folder, f"universal {'of the same step' if same else 'of another step'}, {latest}",
                      [zero, universal], truth, right)
        scene.tools = ()
        return scene

    def missing_tag(self, folder):
        kind = self.pick("tag", "tag", "dcp")
        steps = self.steps(2)
        pieces = [self.save_kind(kind, folder, f"global_step{step}", step, i) for i, step in enumerate(steps)]
        named = self.pick("global_step99999", f"global_step{steps[0]}x", "")
        if named and self.pick(True, False):
            (folder / named).mkdir()
        (folder / "latest").write_text(named)
        scene = Scene(folder, f"latest names {named!r}", pieces, DAMAGED)
        scene.says, scene.verify = [named or "latest"], (1, 3)
        scene.ages = sorted(pieces, key=lambda piece: piece.step)
        return scene

    def damaged_latest(self, folder):
        """The tag that `latest` names is damaged: another is never taken for it."""
        scene = self.with_two_tags(folder)
        newest = scene.right
        files = sorted((folder / newest.path).glob("*.pt"))
        file = self.pick(*files)
        how = self.pick("cut off", "lost", "empty")
        if how == "lost" and len(files) > 1:
            file.unlink()
        else:
            file.write_bytes(b"" if how == "empty" else file.read_bytes()[:file.stat().st_size // 2])
        scene.truth, scene.right, newest.damaged = DAMAGED, None, True
        scene.what, scene.verify = f"latest names one with {file.name} {how}", (1, 3)
        scene.says = [newest.path]
        scene.ages = None
        return scene

    def with_two_tags(self, folder):
        steps = self.steps(2)
        pieces = [self.save_kind("tag", folder, f"global_step{step}", step, i) for i, step in enumerate(steps)]
        right = self.pick(*pieces)
        (folder / "latest").write_text(right.path + self.pick("", "\n", "/", " \r\n"))
        return Scene(folder, "latest", pieces, TAKEN, right, ages=sorted(pieces, key=lambda piece: piece.step))

    def mixed_save(self, folder):
        """One rank's optimizer file, perhaps of experts, is of another step."""
        experts = self.pick(True, False)
        case = tools.case_named(self.pick(*MOE) if experts else
                                self.pick("z1_fp32_w2", "z2_fp32_radam_w2", "z2_bf16_w2", "z3_fp16_w2"))
        shutil.copytree(case.tag_folder, folder / "global_step3")
        for path in (folder / "global_step3").iterdir():
            path.chmod(0o644)
        files = sorted((folder / "global_step3").glob("*optim_states.pt"))
        file = self.pick(*files)
        ranks = sorted((folder / "global_step3").glob("zero_pp_rank_*model_states.pt"))
        if len(ranks) > 1 and self.pick(True, False):
            file = self.pick(*ranks[1:])
            with torch_files.edited(file) as state:
                state["global_steps"] = 9
        else:
            set_steps(file, 9)
        scene = Scene(folder, f"{case.name}: {file.name} of another step", [Piece("global_step3", {})], DAMAGED)
        scene.pieces, scene.verify, scene.says = [], (1, 3), [file.name]
        if self.pick(True, False):
            (folder / "latest").write_text("global_step3")
        scene.tools = ("to-universal",)
        return scene

    def models_in_files(self, folder):
        """Files of whole trainings that each have two models."""
        names = self.random.sample(MODELS, 2)
        steps = sorted(self.steps(self.pick(1, 2)))
        lies = self.random.sample(range(1, 5000), len(steps))
        pieces, models = [], {}
        for step, number in zip(steps, lies):
            both = {name: self.values() for name in names}
            value = {**both, "step": step, "optimizer": adam(both[names[0]], step)}
            path = f"step{number}.pt"
            torch_files.save(value, folder / path)
            for name in names:
                pieces.append(Piece(path, both[name], step, name, said=f"'{name}'"))
                models[name] = pieces[-1]
        scene = Scene(folder, "models in files", pieces, LISTED, models=models)
        scene.tools, scene.verify = (), (0, )  # of all values in the newest file
        self.ask(scene)
        if scene.arguments:
            scene.ages_arguments = scene.arguments
            scene.ages = [piece for piece in pieces if piece.model == scene.arguments[1]]
        return scene

    def two_of_a_step(self, folder):
        """Two states of one step with other values."""
        kind = self.pick("zero", "dcp", "trainer", "weights", "file", "ranks")
        step = self.steps(1)[0]
        names, _ = self.age_names(2, [step, step + 1])
        ending = self.pick(*ENDINGS) if kind == "file" else ""
        pieces = [self.save_kind(kind, folder, name + ending, step, i) for i, name in enumerate(names)]
        return Scene(folder, f"two of {kind} of one step", pieces, LISTED)

    def ages_of_two_kinds(self, folder):
        kinds = self.random.sample(["zero", "dcp", "ranks", "trainer"], 2)
        steps = self.steps(2)
        pieces = [self.save_kind(kind, folder, f"checkpoint-{step}", step, 0) for kind, step in zip(kinds, steps)]
        return Scene(folder, f"ages of {kinds[0]} and {kinds[1]}", pieces, LISTED)

    def other_shapes(self, folder):
        """Names of ages, but other parameters."""
        kind = self.pick("dcp", "ranks", "trainer", "weights", "file", "zero")
        steps = self.steps(2)
        ending = self.pick(*ENDINGS) if kind == "file" else ""
        pieces = [self.save_kind(kind, folder, f"step{step}{ending}", step, i, i) for i, step in enumerate(steps)]
        return Scene(folder, f"{kind} of other shapes", pieces, LISTED)

    def states_and_exports(self, folder):
        """Weights that were exported do not count where there are states of trainings."""
        kind = self.pick("zero", "dcp", "ranks", "trainer")
        steps = self.steps(2)
        pieces = [self.save_kind(kind, folder, f"checkpoint-{step}", step, i) for i, step in enumerate(steps)]
        self.weights(folder / self.pick("export", "hf", "huggingface", "checkpoint-9999"), self.values())
        by_step = sorted(pieces, key=lambda piece: piece.step)
        return Scene(folder, f"{kind} beside exported weights", pieces, TAKEN, by_step[-1], ages=by_step)

    def weights_above(self, folder):
        """The weights at the end of a training above its checkpoints: no file says which are newer."""
        kind = self.pick("tag", "file", "zero", "dcp", "ranks", "trainer")
        step = self.steps(1)[0]
        ending = self.pick(*ENDINGS) if kind == "file" else ""
        pieces = [self.save_kind(kind, folder, f"checkpoint-{step}{ending}", step, 0)]
        values = self.weights(folder, self.values(), form="safetensors")
        pieces.append(Piece("model.safetensors", values))
        return Scene(folder, f"weights above {kind}", pieces, LISTED)

    def decoys(self, scene):
        """Files that programs leave beside states."""
        for _ in range(self.random.randrange(4)):
            what = self.pick("text", "events", "hidden", "args", "tokenizer", "empty", "hub", "verl")
            leave_stranger(scene.folder, what)
            if what == "args":
                torch_files.save({"lr": 0.5}, scene.folder / "training_args.bin")
                torch_files.save({"python": (3, )}, scene.folder / "rng_state_0.pth")
            elif what == "tokenizer":
                (scene.folder / "tokenizer.json").write_text("{}")
            elif what == "empty":
                (scene.folder / "checkpoint-99999").mkdir(exist_ok=True)
            elif what == "verl":
                (scene.folder / "latest_checkpointed_iteration.txt").write_text("7")
                torch_files.save({"_snapshot": {"step": 7}}, scene.folder / "data.pt")
            elif what == "hub":
                (scene.folder / "huggingface").mkdir(exist_ok=True)
                (scene.folder / "huggingface" / "config.json").write_text('{"model_type": "x"}')


def set_steps(path, step):
    """Sets the steps of all parameters in an optimizer's file."""
    with torch_files.edited(path) as state:
        pending = [state]
        while pending:
            value = pending.pop()
            if isinstance(value, dict):
                if "step" in value:
                    old = value["step"]
                    is_tensor = isinstance(old, torch_files.Tensor)
                    value["step"] = torch_files.full(value=float(step)) if is_tensor else step
                pending += value.values()
            elif isinstance(value, (list, tuple)):
                pending += value


SCENES = ["kind_ages", "kind_ages", "kind_ages", "unknown_steps", "kind_models", "kind_models", "numbered_runs",
          "two_weights", "forms_of_weights", "stale_parts", "two_worlds", "two_kinds", "two_of_accelerate",
          "universal_beside", "missing_tag", "damaged_latest", "with_two_tags", "mixed_save", "models_in_files",
          "two_of_a_step", "ages_of_two_kinds", "other_shapes", "states_and_exports", "weights_above"]
