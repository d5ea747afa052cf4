#!/usr/bin/env python3
"""Make small checkpoints with Megatron-DeepSpeed's and GPT-NeoX's own training programs, and the truth about them.

    make_megatron.py --list
    make_megatron.py --megatron SOURCE --neox SOURCE --out testdata/megatron --case all --seed 7

SOURCE is a checkout of github.com/deepspeedai/Megatron-DeepSpeed or github.com/EleutherAI/gpt-neox. The programs run
unchanged, on the CPU over gloo: their own pretrain() builds the model, trains three steps, saves, and loads again.
Tokens are random. Stand-ins replace CUDA's own functions, but nothing that affects the files.

A case is a folder like make_model_parallel.py's: case.json, ckpt/, expected/live.safetensors and
expected/module.safetensors. The script stops if two sources of truth disagree. It also stops if the program loads the
checkpoint into a model of another seed and does not reach the same state.
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
import types

import make_model_parallel as mp
import old_deepspeed
from make_checkpoints import (DEFAULT_SEED, ROOT, engine_facts, find_checkpoint, free_port, live_module, make_each,
                              run_forked, whole)

STEPS = 3
SEQUENCE = 8
VOCABULARY = 61  # and one more, the end of a document


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    stage: int
    dtype: str = "bf16"
    pp: int = 1
    tp: int = 1
    dp: int = 1
    pipe: bool = True  # PipelineModule, or the plain model
    options: tuple = ()  # more of the program's arguments
    note: str = ""
    program: str = "megatron"
    release: str = "0.16.9"  # of DeepSpeed
    has_masters: bool = True

    @property
    def world(self):
        return self.pp * self.tp * self.dp


SWIGLU = ("--swiglu", "--normalization", "rmsnorm", "--disable-bias-linear", "--untie-embeddings-and-output-weights")

CASES = [
    Case("megatron_gpt_pp2_tp2_dp1_z1_bf16", 1, pp=2, tp=2),
    Case("megatron_gpt_tp2_dp2_z2_fp16", 2, "fp16", tp=2, dp=2, pipe=False),
    Case("megatron_swiglu_tp2_dp2_z1_fp32", 1, "fp32", tp=2, dp=2, options=SWIGLU),
    Case("megatron_gpt_dp2_z3_bf16", 3, dp=2, pipe=False),
    Case("megatron_gpt_pp2_tp2_dp1_z1_weights", 1, pp=2, tp=2, release="0.17.6", has_masters=False,
         note="what DeepSpeed 0.17.6 to 0.18.4 saves of bf16 with gradients in fp32"),
    Case("neox_pp1_tp2_dp1_z1_fp16", 1, "fp16", tp=2, program="neox"),
    Case("neox_pp2_tp1_dp2_z1_bf16", 1, pp=2, dp=2, program="neox", options=(("no_weight_tying", False), )),
    Case("neox_dp2_z2_fp32", 2, "fp32", dp=2, pipe=False, program="neox"),
]


# --- Megatron-DeepSpeed

def megatron_arguments(case, seed, places):
    config = {"train_batch_size": 2 * case.dp, "train_micro_batch_size_per_gpu": 1, "steps_per_print": 100,
              "gradient_clipping": 1.0, "zero_optimization": {"stage": case.stage},
              "bf16": {"enabled": case.dtype == "bf16"}, "data_types": {"grad_accum_dtype": "fp32"}}
    if case.dtype == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 8}
    file = f"ds_config_{os.environ['RANK']}.json"
    pathlib.Path(file).write_text(json.dumps(config))
    arguments = {
        "tensor-model-parallel-size": case.tp, "pipeline-model-parallel-size": case.pp, "num-layers": 2,
        "hidden-size": 16, "ffn-hidden-size": 24, "hidden-dropout": 0, "attention-dropout": 0,
        "num-attention-heads": 4, "seq-length": SEQUENCE, "max-position-embeddings": SEQUENCE,
        "micro-batch-size": 1, "global-batch-size": 2 * case.dp, "train-iters": STEPS, "lr": 1e-2, "min-lr": 1e-3,
        "lr-decay-style": "cosine", "lr-decay-iters": 10, "lr-warmup-iters": 1, "log-interval": 1, "eval-iters": 0,
        "eval-interval": 1000, "save-interval": 1000, "weight-decay": 0.1, "clip-grad": 1.0, "init-method-std": 0.1,
        "tokenizer-type": "NullTokenizer", "vocab-size": VOCABULARY, "make-vocab-size-divisible-by": 16,
        "dataloader-type": "single", "num-workers": 0, "seed": seed, "deepspeed_config": file,
        "zero-stage": case.stage, "distributed-backend": "gloo"}
    flags = ["deepspeed", "no-gradient-accumulation-fusion", "no-bias-gelu-fusion", "no-bias-dropout-fusion",
             "no-masked-softmax-fusion", "no-async-tensor-model-parallel-allreduce"]
    flags += [case.dtype] if case.dtype != "fp32" else []
    flags += [] if case.pipe else ["no-pipeline-parallel"]
    return [text for name, value in {**arguments, **places}.items()
            for text in (f"--{name}", *([] if value is None else [str(value)]))] + \
        [f"--{flag}" for flag in flags] + list(case.options)


def made_up_tokens(seed):
    import numpy

    class Tokens:

        def __len__(self):
            return 1000

        def __getitem__(self, index):
            numbers = numpy.random.default_rng([seed, index])
            return {"text": numbers.integers(0, VOCABULARY, SEQUENCE + 1, dtype=numpy.int64)}

    return Tokens()


def run_megatron(source, case, seed, model_seed, places):
    """pretrain() of pretrain_gpt.py. Returns the engine."""
    sys.path.insert(0, str(source))
    sys.modules.pop("tools", None)  # the tests', where the program has its own
    sys.argv = ["pretrain_gpt.py", *megatron_arguments(case, model_seed, places)]
    # Only vision models use this, and it needs torchvision.
    sys.modules["megatron.model.vision.knn_monitor"] = types.SimpleNamespace(compute_feature_bank=None)
    import megatron.data.dataset_utils
    megatron.data.dataset_utils.compile_helper = lambda: None  # for datasets, which are random here
    import pretrain_gpt
    from megatron.core.enums import ModelType

    def datasets(sizes):
        return made_up_tokens(seed), None, None

    model = pretrain_gpt.pretrain(datasets, pretrain_gpt.model_provider, ModelType.encoder_or_decoder,
                                  pretrain_gpt.forward_step, args_defaults={"tokenizer_type": "NullTokenizer"},
                                  data_post_process=pretrain_gpt.data_post_process)
    return model[0]


def info_of_megatron(engine):
    """The universal_checkpoint_info that it saves."""
    from megatron.checkpointing import _universal_checkpoint_info
    return _universal_checkpoint_info([engine])


def place_in_megatron(engine):
    from megatron.core import mpu
    return mp.Run(engine, None, pp=mpu.get_pipeline_model_parallel_rank(), tp=mpu.get_tensor_model_parallel_rank(),
                  dp=mpu.get_data_parallel_rank())


# --- GPT-NeoX

def neox_arguments(case, seed, places):
    """The content of a configuration file, which is saved with the checkpoint."""
    config = {
        "pipe_parallel_size": case.pp if case.pipe else 0, "model_parallel_size": case.tp, "num_layers": 2,
        "hidden_size": 16, "num_attention_heads": 4, "seq_length": SEQUENCE, "max_position_embeddings": SEQUENCE,
        "norm": "layernorm", "pos_emb": "rotary", "rotary_pct": 0.5, "no_weight_tying": True, "gpt_j_residual": True,
        "output_layer_parallelism": "column", "scaled_upper_triang_masked_softmax_fusion": False,
        "bias_gelu_fusion": False, "rope_fusion": False, "layernorm_fusion": False,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-8}}, "min_lr": 0.001,
        "zero_optimization": {"stage": case.stage}, "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2, "train_iters": STEPS, "lr_decay_iters": 10, "warmup": 0.1,
        "lr_decay_style": "cosine", "weight_decay": 0.1, "gradient_clipping": 1.0, "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "checkpoint_factor": 1000, "eval_interval": 1000, "eval_iters": 0,
        "log_interval": 1, "steps_per_print": 100, "tokenizer_type": "CharLevelTokenizer",
        "make_vocab_size_divisible_by": 16, "num_workers": 0, "seed": seed, "distributed_backend": "gloo",
        "attention_config": [[["global"], 2]], "init_method": "small_init", "output_layer_init_method": "wang_init",
        "global_num_gpus": case.world, "use_wandb": False, **dict(case.options)}
    config["precision"] = {"bf16": "bfloat16"}.get(case.dtype, case.dtype)
    if case.dtype == "bf16":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if case.dtype == "fp16":
        config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 8, "loss_scale_window": 1000}
    return {**config, "config_files": {"tiny.yml": json.dumps(config)}, **places}


def run_neox(source, case, seed, model_seed, places):
    """pretrain() of train.py. Returns the engine."""
    import packaging.version
    import torch
    sys.path.insert(0, str(source))
    old_deepspeed.be_cuda()
    torch.jit.script = lambda function, *args, **options: function  # it cannot read the stand-ins
    sys.modules.setdefault("pkg_resources", types.SimpleNamespace(packaging=packaging))
    for name in ("lm_dataformat", "best_download", "ftfy", "boto3", "hf_transfer"):  # of downloads
        sys.modules.setdefault(name, types.ModuleType(name))
    from megatron import training
    from megatron.neox_arguments import NeoXArgs
    from megatron.tokenizer.tokenizer import _vocab_size_with_padding
    arguments = NeoXArgs.from_dict(neox_arguments(case, model_seed, places))
    arguments.configure_distributed_args()
    arguments.tokenizer = types.SimpleNamespace(eod=VOCABULARY, vocab_size=VOCABULARY + 1)
    arguments.padded_vocab_size = _vocab_size_with_padding(VOCABULARY + 1, arguments)
    from megatron.data import data_utils
    data_utils.compile_helper = lambda: None  # for datasets, which are random here

    def loaders(neox_args):
        neox_args.do_train, neox_args.do_valid, neox_args.do_test = 1, 0, 0
        loader = data_utils.make_data_loader(made_up_tokens(seed), neox_args=neox_args)
        return {"train": loader, "valid": None, "test": None}

    training.build_train_valid_test_data_loaders = loaders
    kept, set_up = [], training.setup_model_and_optimizer

    def setup_and_keep(*args, **options):
        kept.append(set_up(*args, **options))
        return kept[-1]

    training.setup_model_and_optimizer = setup_and_keep
    training.pretrain(neox_args=arguments)
    return kept[0][0]


def place_in_neox(engine):
    from megatron import mpu
    return mp.Run(engine, None, pp=mpu.get_pipe_parallel_rank(), tp=mpu.get_model_parallel_rank(),
                  dp=mpu.get_data_parallel_rank())


PROGRAMS = {"megatron": (run_megatron, place_in_megatron, info_of_megatron),
            "neox": (run_neox, place_in_neox, lambda engine: {})}


# --- both

def start(rank, case, port):
    import torch
    old_deepspeed.start_distributed(rank, case.world, port)
    torch.cuda.current_device = lambda: "cpu"


def train_worker(rank, port, case, source, folder, seed):
    import torch
    from safetensors.torch import save_file
    os.chdir(folder)  # so that paths in the files are relative
    start(rank, case, port)
    run_program, place, info = PROGRAMS[case.program]
    engine = run_program(source, case, seed, seed, {"save": "ckpt"})
    run = place(engine)
    stage = case.stage if case.has_masters else 0
    masters = mp.gathered_by_place(run, mp.live_masters(engine, stage))
    module = mp.gathered_by_place(run, live_module(engine))
    mine = {"rank": rank, "pp": run.pp, "tp": run.tp, "dp": run.dp, "ep": 0, **engine_facts(engine), "experts": []}
    classes = mine.pop("optimizer_classes")
    ranks = [None] * case.world
    torch.distributed.all_gather_object(ranks, mine)
    step = mp.optimizer_step(engine)
    if rank == 0:
        save_file(whole(masters), folder / "expected" / "live.safetensors")
        save_file(whole(module), folder / "expected" / "module.safetensors")
        (folder / "case.json").write_text(json.dumps({
            "optimizer_classes": classes, "optimizer_step": step, "skipped_steps": engine.skipped_steps,
            "lr_at_save": engine.get_lr(), "ranks": ranks,
            "universal_info": info(engine)}, default=str))
    torch.distributed.barrier()


def without_padding(key, value):
    """Removes the rows that only pad a vocabulary, which universal checkpoints do not keep."""
    if "word_embeddings" not in key:
        return value
    first = int(key.split("|tp")[1].split("|")[0]) * len(value)
    return value[:max(0, VOCABULARY + 1 - first)]


def load_worker(rank, port, case, source, folder, checkpoint, seed, more=None):
    """The program loads a checkpoint into a model of another seed, whose state must become that of the run that
    saved."""
    import torch
    from safetensors.torch import load_file
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        start(rank, case, port)
        run_program, place, _ = PROGRAMS[case.program]
        engine = run_program(source, case, seed, seed + 1, {"load": str(checkpoint), **(more or {})})
    run = place(engine)
    truths = {"module": live_module(engine)}
    if case.has_masters:
        truths["live"] = mp.live_masters(engine, case.stage)
    for truth, tensors in truths.items():
        again = mp.gathered_by_place(run, tensors)
        saved = load_file(folder / "expected" / f"{truth}.safetensors")
        # The last stage has position embeddings that it does not use. A universal checkpoint has the first stage's.
        is_universal = "universal-checkpoint" in (more or {})
        ignored = mp.stale_copies(saved) if truth == "module" else set()
        if is_universal:
            ignored |= {key for key in saved if "position_embeddings" in key and "|pp0|" not in key}
            saved, again = ({key: without_padding(key, value) for key, value in each.items()}
                            for each in (saved, again))
        different = [key for key in (saved.keys() | again.keys()) - ignored
                     if key not in saved or key not in again or not torch.equal(saved[key], again[key])]
        if different:
            raise AssertionError(f"loading does not rebuild {truth}: {sorted(different)[:5]}")


def run_ranks(worker, case, logs, *arguments):
    port = free_port()
    error = run_forked(worker, logs, [(rank, port, case, *arguments) for rank in range(case.world)])
    if error:
        raise RuntimeError(error)


def neox_rule(name):
    """The rule of tools/ckpts/convert_neox_to_hf.py for a parameter's slices."""
    if name.endswith(("attention.dense.weight", "mlp.linear2.weight")):
        return "cat_dim_1"
    if name.endswith(("query_key_value.weight", "query_key_value.bias", "mlp.linear1.weight", "mlp.linear1.bias",
                      "word_embeddings.weight", "final_linear.weight")):
        return "cat_dim_0"
    return "sum" if name.endswith(("attention.dense.bias", "mlp.linear2.bias")) else "average"


def rules_of(case, info, ranks):
    rules = mp.merge_rules(case, info, ranks)
    if case.program == "neox" and case.tp > 1:
        rules = {}
        for name in sorted({name for rank in ranks for name in rank["param_shapes"]}):
            rules.setdefault(neox_rule(name), []).append(name)
    # Megatron-DeepSpeed's pattern treats them as a tied embedding, but all ranks have the same values.
    untied = [name for name in rules.get("cat_dim_0", ()) if name.endswith("position_embeddings.weight")]
    for name in untied:
        rules["cat_dim_0"].remove(name)
        rules["replicated"].append(name)
    return rules


def leave_out(checkpoint):
    """Files that no tool reads, and that would only be copied."""
    for path in checkpoint.rglob("zero_to_fp32.py"):
        path.unlink()


def make_case(case, out, sources, seed, logs):
    """Makes one case below `out`, replacing it. Returns a line about it. Raises if it fails."""
    import torch
    from safetensors.torch import load_file
    folder, source = out / case.name, sources[case.program]
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "expected").mkdir(parents=True)
    started = time.monotonic()
    try:
        run_ranks(train_worker, case, logs, source, folder, seed)
        if case.has_masters:  # else DeepSpeed does not load its own checkpoint
            run_ranks(load_worker, case, logs, source, folder, folder / "ckpt", seed)
        for path in folder.glob("ds_config_*.json"):
            path.unlink()
        leave_out(folder / "ckpt")
        live, module = (load_file(folder / "expected" / f"{each}.safetensors") for each in ("live", "module"))
        mp.check_rounding(live, module, [])
        load_dir, tag = find_checkpoint(folder / "ckpt")
        facts = json.loads((folder / "case.json").read_text())
        facts = {
            "name": case.name, "note": case.note, "kind": case.program, "release": case.release,
            "topology": {"pp": case.pp, "tp": case.tp, "dp": case.dp, "ep": 1}, "stage": case.stage,
            "num_experts": 0, "world_size": case.world, "precision": case.dtype, "seed": seed,
            "has_masters": case.has_masters, "vocabulary": VOCABULARY + 1, "torch_version": torch.__version__,
            "load_dir": str(load_dir.relative_to(folder)), "tag": tag,
            "rules": rules_of(case, facts["universal_info"], facts["ranks"]), **facts}
    except BaseException:
        shutil.rmtree(folder)
        raise
    (folder / "case.json").write_text(mp.compact_json(facts))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size >> 10} KiB, {time.monotonic() - started:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", type=pathlib.Path)
    parser.add_argument("--neox", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "testdata" / "megatron")
    parser.add_argument("--case", default="all", metavar="NAMES")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--logs", type=pathlib.Path, help="keep the ranks' logs in this folder")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    parser.add_argument("--under", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sources = {"megatron": arguments.megatron, "neox": arguments.neox}
    sources = {name: path.resolve() for name, path in sources.items() if path}
    by_name = {case.name: case for case in CASES}
    names = list(by_name) if arguments.case == "all" else arguments.case.split(",")
    if arguments.list:
        for case in CASES:
            print(f"{case.name:38} {case.program}, DeepSpeed {case.release}" + (f": {case.note}" if case.note else ""))
        return 0
    if not arguments.under:
        releases = sorted({by_name[name].release for name in names})
        return max(old_deepspeed.start(release, __file__, *sys.argv[1:], "--under", release).returncode
                   for release in releases)
    names = [name for name in names if by_name[name].release == arguments.under]
    old_deepspeed.prepare(arguments.under)
    import deepspeed  # noqa: F401
    old_deepspeed.adapt(arguments.under)
    out = arguments.out.resolve()
    return make_each(names, arguments.logs,
                     lambda name, logs: make_case(by_name[name], out, sources, arguments.seed, logs))


if __name__ == "__main__":
    sys.exit(main())
