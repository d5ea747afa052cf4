"""One rank of a DeepSpeed run whose set of parameters changes; changed_set_test.py runs as many as there are ranks.

    changed_set_worker.py OPTIONS.json

For each of OPTIONS["cases"] a run is saved, reshard changes its set of parameters, and an engine of the new model loads
the result. Weights, masters and states are held against those of the old engine and of the files, and one step against
AdamW written out. The first rank writes what is wrong, and what the engines held, to OPTIONS["found"].
"""
import json
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed import comm as dist  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402

WIDTH, LR, BETAS, EPS = 8, 1e-2, (0.9, 0.999), 1e-8
DECAY = {True: 0.1, False: 0.0}  # of matrices, of the rest
MODEL_KEYS = ("param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params", "buffer_names")


class Adapter(torch.nn.Module):
    def __init__(self, new):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.bias = torch.nn.Parameter(torch.rand(WIDTH))
        if new:
            self.lora_a = torch.nn.Linear(WIDTH, 2, bias=False)
            self.lora_b = torch.nn.Linear(2, WIDTH, bias=False)

    def forward(self, x):
        y = torch.nn.functional.linear(x, self.weight, self.bias)
        return y + self.lora_b(self.lora_a(x)) if hasattr(self, "lora_a") else y


class Net(torch.nn.Module):
    """The old model, or the new one that `changes` make of it."""

    def __init__(self, changes, vocabulary, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(vocabulary, WIDTH)
        self.fc = Adapter("add" in changes)
        if "drop" not in changes:
            self.extra = torch.nn.Linear(WIDTH, WIDTH)
            self.extra.register_buffer("seen", torch.rand(WIDTH))
        self.norm = torch.nn.LayerNorm(WIDTH)
        # Parameters of different shapes than the trained ones: stage 0 saves no names.
        self.tower = torch.nn.Sequential(torch.nn.Linear(WIDTH, 5), torch.nn.LayerNorm(5))
        self.tower.requires_grad_(False)
        self.fixed = torch.nn.Parameter(torch.rand(5), requires_grad=False)
        self.lm_head = torch.nn.Linear(WIDTH, vocabulary, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("scale", torch.rand(WIDTH))
        if "add" in changes:
            self.score = torch.nn.Linear(WIDTH, 3)
        if "unfreeze" in changes:
            self.tower[0].requires_grad_(True)
        if "freeze" in changes:
            self.norm.requires_grad_(False)

    def forward(self, tokens):
        hidden = self.fc(self.embed(tokens)) * self.scale
        hidden = hidden + (self.tower(hidden) * self.fixed).sum(-1, keepdim=True)
        if hasattr(self, "extra"):
            hidden = hidden + self.extra(hidden)
        hidden = self.norm(hidden)
        logits = self.lm_head(hidden[:, :-1]).flatten(0, 1).float()
        loss = torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        return loss + self.score(hidden).float().square().mean() if hasattr(self, "score") else loss


def batch(step, rank):
    torch.manual_seed(1000 * step + rank)
    return torch.randint(13, (2, 6))


class Run:

    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.stage = options["stage"]
        self.dtype = torch.bfloat16 if options["bf16"] else torch.float32
        self.wrong = []

    def check(self, what, found, wanted):
        same = type(found) is type(wanted) and (
            torch.equal(found, wanted) and found.dtype == wanted.dtype if torch.is_tensor(found) else found == wanted)
        if not same:
            self.wrong.append(f"{what}: {found} is not {wanted}"[:600])

    def engine(self, model):
        config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True,
                  "gradient_clipping": 0.0, "zero_optimization": {"stage": self.stage, **self.options["zero"]},
                  "bf16": {"enabled": self.options["bf16"]}}
        model = model.to(self.dtype)
        trained = [p for p in model.parameters() if p.requires_grad]
        groups = [{"params": [p for p in trained if (p.dim() > 1) == matrix], "weight_decay": DECAY[matrix]}
                  for matrix in (True, False)]
        optimizer = torch.optim.AdamW(groups if self.options["groups"] == 2 else trained, lr=LR, betas=BETAS, eps=EPS,
                                      weight_decay=DECAY[True])
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

    def master(self, param):
        return (safe_get_full_fp32_param(param) if self.stage else param).detach().clone()

    def are_alone(self):
        """True if the optimizer has a tensor for each parameter."""
        return not self.stage or self.options["zero"].get("sub_group_size") == 1

    def state(self, engine, param, key):
        """None if the optimizer has none yet."""
        if self.stage == 3 and key not in engine.optimizer.optimizer.state[self.flat_of(engine, param)]:
            value = None
        elif self.stage:
            value = safe_get_full_optimizer_state(param, key)
        else:
            value = engine.optimizer.state[param].get(key)
        return None if value is None else value.detach().clone().view(param.ds_shape if self.stage == 3 else param.shape)

    @staticmethod
    def flat_of(engine, param):
        return engine.optimizer.fp32_partitioned_groups_flat[engine.optimizer.grad_position[param.ds_id][0]]

    def held(self, engine):
        """name -> master and states of the trained, the value of others."""
        if self.stage in (1, 2):  # DeepSpeed links states when the first group steps; others have none by then
            engine.optimizer._hp_optimizer_states_linked = False
            engine.optimizer._lazy_init_hp_params_optimizer_state()
        found = {}
        for name, param in engine.module.named_parameters():
            if param.requires_grad:
                found[name] = {"master": self.master(param), "exp_avg": self.state(engine, param, "exp_avg"),
                               "exp_avg_sq": self.state(engine, param, "exp_avg_sq")}
            else:
                with deepspeed.zero.GatheredParameters([param], enabled=self.stage == 3):
                    found[name] = {"value": param.detach().clone()}
        for name, buffer in engine.module.named_buffers():
            found[name] = {"value": buffer.detach().clone()}
        return found

    def step(self, engine, number):
        engine.backward(engine(batch(number, dist.get_rank()).to(engine.device)))
        engine.step()

    def gradients(self, wanted, changes, vocabulary):
        """Those of the fourth step, of the model without DeepSpeed; the engine's accessors fail on two ranks."""
        model = Net(changes, vocabulary, seed=2)
        model.load_state_dict({**{name: held.get("master", held.get("value")) for name, held in wanted.items()},
                               "lm_head.weight": wanted["embed.weight"]["master"]})
        for rank in range(dist.get_world_size()):
            (model(batch(3, rank)) / dist.get_world_size()).backward()
        return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}

    def write_added(self):
        torch.manual_seed(7)
        added = {"fc.lora_a.weight": torch.rand(2, WIDTH), "fc.lora_b.weight": torch.rand(WIDTH, 2),
                 "score.bias": torch.rand(3), "score.weight": torch.rand(3, WIDTH)}
        if dist.get_rank() == 0:
            torch.save(added, self.folder / "added.bin")
            torch.save({"embed.weight": torch.full((4, WIDTH), 0.25)}, self.folder / "rows.bin")
        dist.barrier()
        return added

    def arguments(self, changes):
        known = {"unfreeze": ["--unfreeze", r"^tower\.0\."], "freeze": ["--freeze", r"^norm\."],
                 "drop": ["--drop", "^extra"], "add": ["--add", self.folder / "added.bin"],
                 "mean": ["--resize-vocab", 17, "--vocab", "^(embed|lm_head)"],
                 "zero": ["--resize-vocab", 17, "--vocab", "^(embed|lm_head)", "--new-rows", "zero"],
                 "rows": ["--resize-vocab", 17, "--vocab", "^(embed|lm_head)", "--new-rows", self.folder / "rows.bin"],
                 "fewer": ["--resize-vocab", 13, "--vocab", "^(embed|lm_head)"]}
        return [str(word) for change in changes for word in known[change]]

    def convert(self, changes):
        if dist.get_rank() == 0:
            like = ["--like", str(self.folder / "own")] if self.options["like"] else []
            done = subprocess.run([pathlib.Path(os.environ["DSCKPT_BIN"]) / "reshard", self.folder / "old",
                                   self.folder / "new", "--dp", str(dist.get_world_size()), "--stage", str(self.stage),
                                   *self.arguments(changes), *like], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
        dist.barrier()

    def rows(self, value, changes, master):
        """The values of a vocabulary in the new run."""
        if "fewer" in changes:
            return value[:13]
        if not {"mean", "zero", "rows"} & set(changes):
            return value
        new = torch.zeros(4, WIDTH)
        if master and "mean" in changes:
            new = value.double().mean(0, keepdim=True).float().expand(4, WIDTH)
        if master and "rows" in changes:
            new = torch.full((4, WIDTH), 0.25)
        return torch.cat([value, new])

    def expected(self, old, added, changes):
        """The values that the new engine has to hold after it has loaded; states that nobody had are None."""
        wanted = {}
        for name, held in old.items():
            if "drop" in changes and name.startswith("extra"):
                continue
            held = dict(held)
            if name == "embed.weight":
                held = {key: self.rows(value, changes, key == "master") for key, value in held.items()}
            if "unfreeze" in changes and name.startswith("tower.0."):
                held = {"master": held["value"].float(), "exp_avg": None, "exp_avg_sq": None}
            if "freeze" in changes and name.startswith("norm."):
                held = {"value": held["master"].to(self.dtype)}
            wanted[name] = held
        if "add" in changes:
            wanted.update({name: {"master": value, "exp_avg": None, "exp_avg_sq": None}
                           for name, value in added.items()})
        return wanted

    def compare_files(self):
        """The part of a model-states file that does not depend on values is the one that the new engine writes
        itself."""
        for path in sorted((self.folder / "own").rglob("*model_states.pt")):
            own = torch.load(path, weights_only=False)
            made = torch.load(self.folder / "new" / path.relative_to(self.folder / "own"), weights_only=False)
            for key in MODEL_KEYS:
                a, b = made[key], own[key]
                if key == "frozen_param_fragments" and b is not None:
                    a, b = [[(n, v.shape, v.dtype) for n, v in each.items()] for each in (a, b)]
                elif isinstance(b, dict):
                    a, b = list(a.items()), list(b.items())
                elif key == "param_shapes":
                    a, b = [[list(group.items()) for group in each] if each else each for each in (a, b)]
                self.check(f"{path.name} {key}", a, b)
            self.check(f"{path.name} module", *([(n, v.shape, v.dtype) for n, v in f["module"].items()]
                                                for f in (made, own)))

    def compare(self, found, wanted):
        self.check("names", sorted(found), sorted(wanted))
        for name in set(found) & set(wanted):
            self.check(f"{name} keys", sorted(found[name]), sorted(wanted[name]))
            for key, value in wanted[name].items():
                if value is None and not self.are_alone():
                    value = torch.zeros_like(wanted[name]["master"])
                self.check(f"{name} {key}", found[name].get(key), value)

    def compare_step(self, before, after, grads, count):
        for name, held in before.items():
            if "master" not in held:
                self.check(f"{name} after a step", after[name]["value"], held["value"])
                continue
            fresh = held["exp_avg"] is None
            t = (0 if fresh and self.are_alone() else count) + 1
            zero = torch.zeros_like(held["master"])
            m = BETAS[0] * (zero if fresh else held["exp_avg"]) + (1 - BETAS[0]) * grads[name]
            v = BETAS[1] * (zero if fresh else held["exp_avg_sq"]) + (1 - BETAS[1]) * grads[name]**2
            decay = DECAY[held["master"].dim() > 1 or self.options["groups"] == 1]
            step = (m / (1 - BETAS[0]**t)) / ((v / (1 - BETAS[1]**t)).sqrt() + EPS)
            wanted = held["master"] * (1 - LR * decay) - LR * step
            for key, value in (("master", wanted), ("exp_avg", m), ("exp_avg_sq", v)):
                if not torch.allclose(after[name][key], value, rtol=1e-4, atol=1e-6):
                    self.wrong.append(f"{name} {key} after a step is off by {(after[name][key] - value).abs().max()}")

    def run(self):
        changes = self.options["changes"]
        vocabulary = 15 if "fewer" in changes else 13
        old = self.engine(Net([], vocabulary, seed=1))
        for number in range(3):
            self.step(old, number)
        old.save_checkpoint(str(self.folder / "old"))
        truth = self.held(old)
        added = self.write_added()
        resized = 17 if {"mean", "zero", "rows"} & set(changes) else 13
        new = self.engine(Net(changes, resized, seed=2))
        new.save_checkpoint(str(self.folder / "own"), tag="global_step3")
        dist.barrier()
        self.convert(changes)
        path, _ = new.load_checkpoint(str(self.folder / "new"))
        self.check("loaded", bool(path), True)
        self.check("global_steps", new.global_steps, 3)
        wanted = self.expected(truth, added, changes)
        self.compare(self.held(new), wanted)
        if dist.get_rank() == 0:
            self.compare_files()
        for name, param in new.module.named_parameters():  # the copies that the model computes with
            with deepspeed.zero.GatheredParameters([param], enabled=self.stage == 3):
                value = wanted[name].get("master", wanted[name].get("value"))
                self.check(f"{name} weight", param.detach().clone(), value.to(self.dtype))
        self.step(new, 3)
        after = self.held(new)
        if self.options["bf16"]:  # gradients are rounded, at some place or other
            for name, held in wanted.items():
                self.check(f"{name} moves", torch.equal(after[name].get("master", torch.zeros(0)),
                                                        held.get("master", torch.zeros(0))), "master" not in held)
        else:
            self.compare_step(wanted, after, self.gradients(wanted, changes, resized), 3)
        return {"wrong": self.wrong, "held": sorted(wanted)}


def main(options):
    found = []
    for number, case in enumerate(options["cases"]):
        folder = pathlib.Path(options["folder"]) / str(number)
        if dist.get_rank() == 0:
            folder.mkdir()
        dist.barrier()
        found.append(Run(case, folder).run())
    if dist.get_rank() == 0:
        pathlib.Path(options["found"]).write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    main(json.loads(pathlib.Path(sys.argv[1]).read_text()))
    dist.barrier()
