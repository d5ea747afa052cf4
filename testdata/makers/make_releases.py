#!/usr/bin/env python3
"""Makes testdata/releases: checkpoints that releases of DeepSpeed save on a CPU, and the state of their engines.

    make_releases.py --list
    make_releases.py --out testdata/releases --case all
    make_releases.py --out testdata/releases --case ds0.7.7_z2_bf16_w2,ds0.12.6_z3_bf16_w2
    make_releases.py --out SCRATCH --release 0.7.7,0.12.6 --recipe 2-bf16,3-bf16+sub --ranks 3 --seed 5 --width 2

Each release is first installed in build/releases (old_deepspeed.py). A recipe is STAGE-PRECISION[-torch][+FLAG...].
`torch` is torch's AdamW, else DeepSpeed's FusedAdam with its kernel in Python is used. Flags are `sub` (small
sub-groups), `rr` (round-robin gradients), `elastic` (elastic_checkpoint), `grads32` (gradients in fp32), `untied` and
`thawed` (a model without tied or frozen parameters).

A case is a folder like make_checkpoints.py's: ckpt/, case.json, expected/master.safetensors and
expected/module.safetensors. The masters are read from the engine's flat buffers at the address of the live parameter.

Needs torch, deepspeed and safetensors, and PyPI for the other releases.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import shutil
import sys
import tempfile

import old_deepspeed
from make_checkpoints import free_port, run_forked
from old_deepspeed import ROOT, number

STEPS_BEFORE, STEPS_AFTER = 3, 2
GLOBAL_BATCH = 12
DEFAULT_SEED = 7
CLIENT_STATE = {"note": "zoo", "n": 5}


@dataclasses.dataclass(frozen=True)
class Recipe:
    stage: int
    precision: str
    torch_adam: bool = False
    flags: frozenset = frozenset()

    @classmethod
    def parse(cls, text):
        head, *flags = text.split("+")
        stage, precision, *rest = head.split("-")
        return cls(int(stage), precision, rest == ["torch"], frozenset(flags))


@dataclasses.dataclass(frozen=True)
class ReleaseCase:
    release: str
    recipe: str
    ranks: int
    seed: int = DEFAULT_SEED
    width: int = 1

    @property
    def name(self):
        recipe = self.recipe.replace("-", "_").replace("+", "_")
        return f"ds{self.release}_z{recipe}_w{self.ranks}" + (f"_x{self.width}" if self.width > 1 else "") + \
            (f"_s{self.seed}" if self.seed != DEFAULT_SEED else "")


def cases_of(release, recipes, ranks=2):
    return [ReleaseCase(release, recipe, ranks) for recipe in recipes.split()]


EVERY = "0-bf16 0-fp32 1-bf16 2-bf16 2-fp32-torch 3-bf16 3-fp32+sub"
MORE = EVERY + " 0-fp16 1-fp32 2-fp16 3-fp16-torch"
CASES = [
    *cases_of("0.4.5", "0-fp16 1-fp16 2-fp16 3-fp16"),
    *cases_of("0.5.10", "1-fp16 2-fp16 2-bf16 3-fp16"),
    *cases_of("0.6.7", "2-bf16 3-bf16"), *cases_of("0.6.7", "3-bf16+sub", 3),
    *cases_of("0.7.7", MORE),
    *cases_of("0.8.3", "2-bf16 3-bf16"),
    *cases_of("0.9.5", "2-bf16 3-bf16"),
    *cases_of("0.10.3", "1-bf16 1-fp32 2-bf16 2-fp16 2-fp32-torch 3-bf16 3-fp16-torch 3-fp32+sub"),
    *cases_of("0.11.2", EVERY),
    *cases_of("0.12.6", MORE),
    *cases_of("0.13.5", EVERY),
    *cases_of("0.14.5", "1-bf16 2-bf16 3-bf16"),
    *cases_of("0.15.4", "1-bf16 2-bf16 2-fp32-torch 3-bf16"),
    *cases_of("0.16.1", EVERY),
    *cases_of("0.16.4", "2-bf16 3-bf16"),
    *cases_of("0.16.9", "1-bf16 1-bf16+grads32 1-fp32 2-bf16 2-fp16 2-fp32-torch 3-bf16 3-fp16-torch 3-fp32+sub"),
    *cases_of("0.17.6", EVERY + " 1-bf16+grads32"),
    *cases_of("0.18.2", "0-bf16 1-bf16 2-bf16 3-bf16"),
    *cases_of("0.19.8", "0-bf16 1-bf16 2-bf16 3-bf16"),
]


# --- the training

def build_model(recipe, seed, width=1):
    """A tied head, two frozen parameters, two buffers, and a parameter of one element."""
    import torch
    small, middle, large = 5 * width, 7 * width, 11 * width

    class Model(torch.nn.Module):

        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(13, middle)
            self.fc1 = torch.nn.Linear(middle, large)
            self.norm = torch.nn.LayerNorm(large)
            self.stem = torch.nn.Linear(large, small)
            self.mid = torch.nn.ModuleList([torch.nn.Linear(small, small) for _ in range(3)])
            self.fc2 = torch.nn.Linear(small, middle, bias=False)
            self.scale = torch.nn.Parameter(torch.ones(1))
            self.head = torch.nn.Linear(middle, 13, bias=False)
            if "untied" not in recipe.flags:
                self.head.weight = self.embed.weight
            self.register_buffer("mask", torch.linspace(0.5, 1.5, middle))
            self.register_buffer("count", torch.tensor([3, 5], dtype=torch.int64))
            if "thawed" not in recipe.flags:
                self.stem.weight.requires_grad_(False)
                self.mid[1].bias.requires_grad_(False)

        def forward(self, ids, labels):
            hidden = (self.embed(ids) * self.mask).to(self.fc1.weight.dtype)  # since 0.19 buffers keep their type
            hidden = self.norm(torch.tanh(self.fc1(hidden)))
            hidden = torch.tanh(self.stem(hidden))
            for layer in self.mid:
                hidden = hidden + torch.tanh(layer(hidden))
            logits = self.head(self.fc2(hidden) * self.scale)
            return torch.nn.functional.cross_entropy(logits.float().reshape(-1, 13), labels.reshape(-1))

    model, generator = Model(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for param in model.parameters():
            one = 1.0 if param.dim() == 1 and param.numel() == 1 else 0
            param.copy_(torch.randn(param.shape, generator=generator) * 0.3 + one)
    return model


def groups_of(model):
    trained = [param for param in model.parameters() if param.requires_grad]
    return [{"params": [param for param in trained if param.dim() > 1], "weight_decay": 0.1},
            {"params": [param for param in trained if param.dim() <= 1], "weight_decay": 0.0, "lr": 2e-3}]


def batch(step, rank, ranks):
    import torch
    ids = torch.randint(0, 13, (GLOBAL_BATCH, 4), generator=torch.Generator().manual_seed(1000 + step))
    rows = GLOBAL_BATCH // ranks
    mine = ids[rank * rows:(rank + 1) * rows]
    return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def config_of(recipe, ranks):
    optimizer = {"lr": 5e-3, "betas": [0.9, 0.97], "eps": 1e-8}
    if recipe.torch_adam:
        optimizer["torch_adam"] = True
    config = {
        "train_batch_size": GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": GLOBAL_BATCH // ranks,
        "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1000,
        "scheduler": {"type": "WarmupLR",
                      "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 5e-3, "warmup_num_steps": 10}},
        "optimizer": {"type": "AdamW", "params": optimizer},
    }
    if recipe.precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2}
    if recipe.precision == "bf16":
        config["bf16"] = {"enabled": True}
    if "grads32" in recipe.flags:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    zero = {"stage": recipe.stage}
    if recipe.stage == 3:
        zero.update(stage3_param_persistence_threshold=0, stage3_max_live_parameters=10**9,
                    stage3_prefetch_bucket_size=1000, sub_group_size=150 if "sub" in recipe.flags else 10**9,
                    reduce_bucket_size=5000)
    if recipe.stage in (1, 2):
        zero.update(reduce_bucket_size=5000, allgather_bucket_size=5000)
        if "rr" in recipe.flags:
            zero["round_robin_gradients"] = True
        if "elastic" in recipe.flags:
            zero["elastic_checkpoint"] = True
    config["zero_optimization"] = zero
    return config


def make_engine(recipe, ranks, seed, width=1, other=None):
    """An engine of the release; `other` has further keys of the configuration."""
    import deepspeed
    config = {**config_of(recipe, ranks), **(other or {})}
    key = "config" if old_deepspeed.takes(deepspeed.initialize, "config") else "config_params"
    model = build_model(recipe, seed, width)
    return deepspeed.initialize(model=model, model_parameters=groups_of(model), **{key: config})[0], config


def train(engine, first, count, rank, ranks):
    """The losses of `count` steps."""
    import torch
    losses = []
    for step in range(first, first + count):
        loss = engine(*batch(step, rank, ranks))
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        losses.append(float(mean / ranks))
    return losses


# --- what an engine holds

def base_of(optimizer):
    return getattr(optimizer, "optimizer", optimizer)


def first_of(owner, *names):
    """The attribute that has one of the names; releases differ in them."""
    return next(getattr(owner, name) for name in names if hasattr(owner, name))


@dataclasses.dataclass
class Stepped:
    """A tensor that the base optimizer updates, its parameter group, and the parameters in it."""
    tensor: object
    group: int
    shared: bool  # every rank has a part of it
    params: list  # (parameter, a function that takes its elements out of the ranks' parts)


def of_flat(at, numel, shape):
    import torch
    return lambda parts: torch.cat(parts)[at:at + numel].reshape(shape).clone()


def of_pieces(at, piece, numel, shape):
    import torch
    return lambda parts: torch.cat([part[at:at + piece] for part in parts])[:numel].reshape(shape).clone()


def stepped_at_stage_3(optimizer):
    for sub_group, flat in enumerate(optimizer.fp32_partitioned_groups_flat):
        at, params = 0, []
        for param in optimizer.fp16_groups[sub_group]:
            piece = getattr(param.ds_tensor, "ds_numel", param.ds_tensor.numel())
            params.append((param, of_pieces(at, piece, param.ds_numel, param.ds_shape)))
            at += piece
        yield Stepped(flat, optimizer.sub_group_to_group_id[sub_group], True, params)


PARTITIONS = ("fp32_groups_flat_partition", "single_partition_of_fp32_groups")


def stepped_in_partitions(optimizer):
    """Stages 1 and 2, and BF16_Optimizer at stage 0."""
    groups = first_of(optimizer, "bf16_groups", "bit16_groups", "fp16_groups")
    flats = first_of(optimizer, "bf16_groups_flat", "bit16_groups_flat", "fp16_groups_flat")
    parts = first_of(optimizer, *PARTITIONS)
    for index, (members, flat, part) in enumerate(zip(groups, flats, parts)):
        yield Stepped(part, index, True, [
            (param, of_flat((param.data_ptr() - flat.data_ptr()) // flat.element_size(), param.numel(), param.shape))
            for param in members])


def stepped_at_stage_0(optimizer):
    if hasattr(optimizer, "fp32_groups_flat"):
        for index, (members, flat) in enumerate(zip(optimizer.fp16_groups, optimizer.fp32_groups_flat)):
            at, params = 0, []
            for param in members:
                params.append((param, of_flat(at, param.numel(), param.shape)))
                at += param.numel()
            yield Stepped(flat, index, False, params)
        return
    for index, group in enumerate(base_of(optimizer).param_groups):
        members = optimizer.fp16_groups[index] if hasattr(optimizer, "fp32_groups") else group["params"]
        masters = optimizer.fp32_groups[index] if hasattr(optimizer, "fp32_groups") else group["params"]
        for param, master in zip(members, masters):
            yield Stepped(master, index, False, [(param, of_flat(0, param.numel(), param.shape))])


def stepped(optimizer, stage):
    if stage == 3:
        return stepped_at_stage_3(optimizer)
    # From 0.17.6 to 0.18.4, an optimizer of stage 0 with gradients in fp32 is made at stage 1 too.
    is_cut = any(hasattr(optimizer, name) for name in PARTITIONS)
    return stepped_in_partitions(optimizer) if is_cut else stepped_at_stage_0(optimizer)


def parts_of_ranks(tensor):
    import torch
    mine = tensor.detach().contiguous()
    parts = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, mine)
    return [part.reshape(-1) for part in parts]


def live_masters(engine, stage):
    """{"name|fp32": tensor, "name|exp_avg": ...} and {name: step}, for all trained parameters."""
    import torch
    names = {id(param): name for name, param in engine.module.named_parameters()}
    base, values, steps = base_of(engine.optimizer), {}, {}
    for each in stepped(engine.optimizer, stage):
        state = base.state.get(each.tensor, {})
        step = state.get("step", base.param_groups[each.group].get("step"))
        columns = {"fp32": each.tensor, **{key: value for key, value in state.items()
                                           if torch.is_tensor(value) and value.dim() > 0}}
        for key, value in columns.items():
            parts = parts_of_ranks(value) if each.shared else [value.detach().reshape(-1)]
            for param, take in each.params:
                values[f"{names[id(param)]}|{key}"] = take(parts)
        for param, _ in each.params:
            steps[names[id(param)]] = None if step is None else float(step)
    return values, steps


def live_module(engine):
    import deepspeed
    cut = [param for param in engine.module.parameters() if hasattr(param, "ds_id")]
    with deepspeed.zero.GatheredParameters(cut) if cut else contextlib.nullcontext():
        return {name: value.detach().clone().contiguous() for name, value in engine.module.state_dict().items()}


# --- a case

def save_case(case, folder, engine, config, masters, steps, module, losses):
    from safetensors.torch import save_file
    recipe = Recipe.parse(case.recipe)
    named = dict(engine.module.named_parameters())
    shape_of = {name: list(getattr(param, "ds_shape", param.shape)) for name, param in named.items()}
    facts = {
        "recipe": case.recipe, "version": case.release, "stage": recipe.stage, "ranks": case.ranks,
        "seed": case.seed, "width": case.width,
        "load_dir": "ckpt", "tag": (folder / "ckpt" / "latest").read_text().strip(),
        "param_shapes": dict(sorted(shape_of.items())),
        "frozen": [name for name, param in named.items() if not param.requires_grad],
        "tied": {} if "untied" in recipe.flags else {"head.weight": "embed.weight"},
        "buffers": [name for name, _ in engine.module.named_buffers()],
        "exclude_frozen_parameters": False,
        "wrapper": type(engine.optimizer).__name__, "optimizer": type(base_of(engine.optimizer)).__name__,
        "config": config, "steps": steps, "skipped": engine.skipped_steps,
        "losses_before_save": losses[:STEPS_BEFORE], "losses_after_save": losses[STEPS_BEFORE:],
    }
    (folder / "expected").mkdir()
    save_file(masters, folder / "expected" / "master.safetensors")
    save_file(module, folder / "expected" / "module.safetensors")
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")
    for script in (folder / "ckpt").glob("*.py"):
        script.unlink()


def run_case(rank, case, folder, port):
    """A rank of the training."""
    import torch
    old_deepspeed.start_distributed(rank, case.ranks, port)
    recipe = Recipe.parse(case.recipe)
    engine, config = make_engine(recipe, case.ranks, case.seed, case.width)
    losses = train(engine, 0, STEPS_BEFORE, rank, case.ranks)
    masters, steps = live_masters(engine, recipe.stage)
    module = live_module(engine)
    engine.save_checkpoint(str(folder / "ckpt"), client_state=dict(CLIENT_STATE))
    losses += train(engine, STEPS_BEFORE, STEPS_AFTER, rank, case.ranks)
    if rank == 0:
        save_case(case, folder, engine, config, masters, steps, module, losses)
    torch.distributed.barrier()


def make_case(case, out, logs):
    """Makes a case. Returns the error, or None."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    failure = run_forked(run_case, logs / case.name, [(rank, case, folder, port) for rank in range(case.ranks)])
    if failure:
        shutil.rmtree(folder)
    return failure


def under_release(version, function):
    """Calls `function` in a process that start() began, with the preparations before and after deepspeed's import."""
    old_deepspeed.prepare(version)
    import deepspeed  # noqa: F401
    old_deepspeed.adapt(version)
    return function()


def make_all(cases, out, logs):
    failed = 0
    for case in cases:
        failure = make_case(case, out, logs)
        failed += failure is not None
        print(f"{case.name}: " + ("made" if failure is None else "FAILED\n" + failure[-2000:]), flush=True)
    return 1 if failed else 0


def chosen_cases(arguments, parser):
    if arguments.release or arguments.recipe:
        if not (arguments.release and arguments.recipe):
            parser.error("--release and --recipe go together")
        return [ReleaseCase(release, recipe, arguments.ranks, arguments.seed, arguments.width)
                for release in arguments.release.split(",") for recipe in arguments.recipe.split(",")]
    cases = [dataclasses.replace(case, seed=arguments.seed, width=arguments.width) for case in CASES]
    if arguments.case == "all":
        return cases
    by_name = {case.name: case for case in cases}
    unknown = [name for name in arguments.case.split(",") if name not in by_name]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    return [by_name[name] for name in arguments.case.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "testdata" / "releases")
    parser.add_argument("--case", default="all", metavar="NAMES", help="names, separated by commas, or 'all'")
    parser.add_argument("--release", metavar="VERSIONS", help="instead of --case: these releases")
    parser.add_argument("--recipe", metavar="RECIPES", help="with --release: STAGE-PRECISION[-torch][+FLAG...]")
    parser.add_argument("--ranks", type=int, default=2, help="with --release")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--width", type=int, default=1, help="how many times as wide the model's layers are")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the ranks' logs in this folder")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--under", metavar="VERSION", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = chosen_cases(arguments, parser)
    if arguments.list:
        print(*(case.name for case in cases), sep="\n")
        return 0
    if arguments.under:
        cases = [case for case in cases if case.release == arguments.under]
        with tempfile.TemporaryDirectory() as temporary:
            logs = (arguments.logs or pathlib.Path(temporary)).resolve()
            return under_release(arguments.under, lambda: make_all(cases, arguments.out.resolve(), logs))
    failed = 0
    for release in sorted({case.release for case in cases}, key=number):
        done = old_deepspeed.start(release, __file__, *sys.argv[1:], "--under", release)
        failed += done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
