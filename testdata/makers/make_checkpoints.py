#!/usr/bin/env python3
"""Make small checkpoints with real DeepSpeed on the CPU, together with the truth about them.

    make_checkpoints.py --list
    make_checkpoints.py --out testdata/checkpoints --case z2_bf16_w4,z3_fp32_w3
    make_checkpoints.py --out testdata/checkpoints --case all --seed 1234
    make_checkpoints.py --out SCRATCH --case more

Each case trains a tiny, deliberately awkward model for three steps over gloo, one process per rank. Some train
a tiny GPT-2 or Llama through the Hugging Face Trainer or Accelerate. It saves the model with DeepSpeed, then
trains two more steps, so that a later resume can be compared.  A case is a folder:

    case.json                       facts: stage, world size, names, shapes, losses, what DeepSpeed refused
    ckpt/                           what DeepSpeed (or the Trainer, or Accelerate) wrote
    expected/master.safetensors     fp32 masters and optimizer states of the live engine: `name|fp32`,
                                    `name|exp_avg` ...; every trained parameter in its full shape
    expected/module.safetensors     the live model's whole state dict in its own dtypes: frozen
                                    parameters, buffers and tied names included
    expected/fp32.safetensors       get_fp32_state_dict_from_zero_checkpoint, where it works
    expected/command.safetensors    what the command zero_to_fp32.py writes, where it works
    expected/hf_config/             the model's config, for Hugging Face cases

The masters are read from the engine's flat buffers at the address of the live parameter, not at an offset from
saved metadata. So they do not depend on any knowledge of the file layout. The script compares its truths with
one another and fails when they disagree.

testdata/ holds the cases of CASES ("all"); those of MORE_CASES ("more") are variations that
resume_check.py --reshard --matrix makes for itself.

Needs torch, deepspeed, transformers, accelerate, safetensors, huggingface_hub, ninja and a C++ compiler.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import math
import multiprocessing
import os
import pathlib
import shutil
import socket
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Muon would compile for minutes
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(ROOT / ".cache" / "torch_extensions"))
# DeepSpeed builds its CPU optimizers with the ninja beside the interpreter.
os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ.get('PATH', '')}"

DEFAULT_SEED = 1234
GLOBAL_BATCH = 24  # divisible by every world size used, so that the data does not depend on it
LARGE_BATCH = 120  # by 5 as well
SEQUENCE = 6
VOCABULARY = 37
STEPS_BEFORE, STEPS_AFTER = 3, 2


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    stage: int
    world: int
    dtype: str = "fp32"  # fp32, bf16 or fp16
    optimizer: str = "adamw"  # a key of OPTIMIZERS
    kind: str = "plain"  # plain, hf_trainer or hf_accelerate
    architecture: str = ""  # gpt2 or llama, for Hugging Face kinds
    hidden: int = 11
    wide: int = 67  # rows of the largest parameter
    tied: bool = False  # the output head shares the embedding's weight
    frozen: bool = False
    frozen_transposed: bool = False  # one frozen parameter whose storage is column-major
    buffers: bool = False
    odd_buffers: bool = False  # further dtypes and strides
    groups: bool = False  # decay and no-decay parameter groups
    tiny_group: bool = False  # a group of one single element: whole partitions are padding
    empty_param: bool = False
    zero_dim: bool = False
    scheduler: bool = False
    client_state: bool = False
    exclude_frozen: bool = False
    batch: int = GLOBAL_BATCH
    zero: dict = dataclasses.field(default_factory=dict)  # more zero_optimization keys
    config: dict = dataclasses.field(default_factory=dict)  # more top-level config keys
    swap_from: int = 0  # bytes of a sub-group that goes to NVMe; 0: DeepSpeed's limit of 1 MiB
    seed_offset: int = 0
    note: str = ""


def adam(kind="AdamW", **options):
    params = {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.01, **options}
    return {"type": kind, "params": params}


OPTIMIZERS = {
    "adamw": adam(torch_adam=True),
    "fused_adamw": adam(),  # DeepSpeed's FusedAdam
    "cpu_adamw": adam(),  # becomes DeepSpeedCPUAdam under offload
    "sgd": {"type": "SGD", "params": {"lr": 5e-2, "momentum": 0.9, "nesterov": True}},
    "adagrad": {"type": "Adagrad", "params": {"lr": 1e-2}},
    "muon": {"type": "Muon",
             "params": {"lr": 2e-3, "momentum": 0.9, "weight_decay": 0.01, "torch_adam": True}},
    "radam": None,  # these two are torch optimizers that the client passes in
    "amsgrad": None,
}

FULL = dict(tied=True, frozen=True, buffers=True, groups=True)
WHOLE = {"stage3_param_persistence_threshold": 0}  # partition even the smallest parameter
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}
# A relative path is below the case's folder during the training, and names no machine in the checkpoint.
NVME = {"device": "nvme", "nvme_path": "nvme", "pin_memory": False}
NVME_OPTIMIZER = {"offload_optimizer": {**NVME, "buffer_count": 5}}
NVME_PARAMETERS = {"offload_param": {**NVME, "buffer_count": 8, "buffer_size": 65536, "max_in_cpu": 0}}


def aio(threads=1):
    return {"aio": {"block_size": 1024, "queue_depth": 8, "intra_op_parallelism": threads, "single_submit": False,
                    "overlap_events": True}}


UNTESTED = {"zero_allow_untested_optimizer": True}
FP32_GRADS = {"data_types": {"grad_accum_dtype": "fp32"}}


def python_writer(zipped):
    return {"checkpoint": {"checkpoint_serialization": zipped, "writer": {
        "type": "PYTHON", "io_buffer_size": 1048576, "io_buffer_double": True, "data_parallel": "REPLICA"}}}


LEGACY = {"checkpoint": {"checkpoint_serialization": False}}

CASES = [
    # Stage 0
    Case("z0_fp32_w2", 0, 2, **FULL),
    Case("z0_bf16_w2", 0, 2, "bf16", groups=True, tied=True),
    Case("z0_fp16_w2", 0, 2, "fp16"),
    Case("z0_fp32_sgd_w2", 0, 2, optimizer="sgd"),
    Case("z0_bf16_full_w2", 0, 2, "bf16", hidden=7, seed_offset=1, frozen_transposed=True, **FULL),
    Case("z0_fp16_full_w2", 0, 2, "fp16", hidden=9, seed_offset=2, **FULL),
    Case("z0_bf16_fusedadam_w2", 0, 2, "bf16", "fused_adamw", groups=True, tied=True,
         note="FP16_Optimizer: the masters are flat groups"),
    Case("z0_fp16_fusedadam_full_w1", 0, 1, "fp16", "fused_adamw", hidden=7, **FULL),
    # Stage 1
    Case("z1_fp32_w2", 1, 2),
    Case("z1_fp32_w1", 1, 1, **FULL),
    Case("z1_bf16_w2", 1, 2, "bf16"),
    Case("z1_fp16_w2", 1, 2, "fp16"),
    Case("z1_bf16opt_w2", 1, 2, "bf16", config=FP32_GRADS, note="BF16_Optimizer: no zero_stage in the file"),
    Case("z1_bf16opt_full_w3", 1, 3, "bf16", config=FP32_GRADS, **FULL),
    Case("z1_bf16opt_tinygroup_w4", 1, 4, "bf16", tiny_group=True, config=FP32_GRADS),
    Case("z1_bf16_full_w2", 1, 2, "bf16", hidden=9, seed_offset=1, frozen_transposed=True, **FULL),
    Case("z1_fp32_full_w4", 1, 4, scheduler=True, client_state=True, **FULL),
    Case("z1_fp32_full_w6", 1, 6, hidden=13, seed_offset=2, **FULL),
    Case("z1_fp32_fusedadam_w2", 1, 2, optimizer="fused_adamw"),
    Case("z1_fp32_elastic_w2", 1, 2, optimizer="fused_adamw", groups=True, zero={"elastic_checkpoint": True}),
    Case("z1_fp32_elastic_torchadam_w2", 1, 2, groups=True, zero={"elastic_checkpoint": True}),
    Case("z1_fp32_tinygroup_w4", 1, 4, tiny_group=True),
    Case("z1_fp32_zerodim_w2", 1, 2, zero_dim=True),
    Case("z1_fp32_sgd_w2", 1, 2, optimizer="sgd", config=UNTESTED),
    Case("z1_bf16_muon_w2", 1, 2, "bf16", "muon", config=UNTESTED),
    Case("z1_bf16_writer_python_w2", 1, 2, "bf16", config=python_writer(False)),
    Case("z1_bf16_writer_pyzip_w2", 1, 2, "bf16", config=python_writer(True),
         note="a zip written to a stream: its records lie under archive/"),
    # Stage 2
    Case("z2_bf16_w2", 2, 2, "bf16"),
    Case("z2_bf16_w4", 2, 4, "bf16"),
    Case("z2_fp16_w2", 2, 2, "fp16"),
    Case("z2_fp32_full_w3", 2, 3, scheduler=True, **FULL),
    Case("z2_bf16_full_w8", 2, 8, "bf16", hidden=7, seed_offset=1, **FULL),
    Case("z2_fp32_exclfrozen_w2", 2, 2, exclude_frozen=True, **FULL),
    Case("z2_fp32_elastic_w2", 2, 2, optimizer="fused_adamw", zero={"elastic_checkpoint": True}),
    Case("z2_fp32_emptyparam_w2", 2, 2, empty_param=True),
    Case("z2_bf16_zerodim_w2", 2, 2, "bf16", zero_dim=True, buffers=True),
    Case("z2_bf16_offload_w2", 2, 2, "bf16", "cpu_adamw", zero=OFFLOAD),
    Case("z2_bf16_fusedadam_w2", 2, 2, "bf16", "fused_adamw"),
    Case("z2_bf16_paramalign_w2", 2, 2, "bf16", groups=True, zero={"parameter_alignment": True},
         note="every parameter starts at a multiple of 16 bytes"),
    Case("z2_bf16_roundrobin_w2", 2, 2, "bf16", tied=True, zero={"round_robin_gradients": True}),
    Case("z2_bf16_roundrobin_full_w3", 2, 3, "bf16", hidden=9, seed_offset=1,
         zero={"round_robin_gradients": True}, **FULL),
    Case("z2_fp32_large_param_w8", 2, 8, hidden=5, wide=211,
         note="one parameter covers several partitions"),
    Case("z2_fp32_oddbuffers_w2", 2, 2, hidden=7, frozen=True, frozen_transposed=True, buffers=True,
         odd_buffers=True),
    Case("z2_fp32_adagrad_w2", 2, 2, optimizer="adagrad", config=UNTESTED),
    Case("z2_fp32_radam_w2", 2, 2, optimizer="radam", config=UNTESTED, groups=True),
    Case("z2_fp32_amsgrad_w2", 2, 2, optimizer="amsgrad", config=UNTESTED),
    Case("z2_bf16_adagrad_offload_w2", 2, 2, "bf16", "adagrad", config=UNTESTED, zero=OFFLOAD),
    Case("z2_bf16_muon_w2", 2, 2, "bf16", "muon", config=UNTESTED, tied=True),
    Case("z2_bf16_legacyserial_w2", 2, 2, "bf16", config=LEGACY, note="serialised without a zip"),
    # Stage 3
    Case("z3_bf16_w2", 3, 2, "bf16", zero=WHOLE, zero_dim=True),
    Case("z3_fp16_w2", 3, 2, "fp16", zero=WHOLE),
    Case("z3_fp32_w3", 3, 3, zero=WHOLE, zero_dim=True),
    Case("z3_fp32_full_w1", 3, 1, hidden=5, zero=WHOLE, **FULL),
    Case("z3_fp32_full_w2", 3, 2, zero={**WHOLE, "sub_group_size": 900}, client_state=True, **FULL),
    Case("z3_fp32_full_w8", 3, 8, hidden=9, seed_offset=1, zero=WHOLE, frozen_transposed=True, **FULL),
    Case("z3_bf16_full_w6", 3, 6, "bf16", hidden=7, seed_offset=2, zero={**WHOLE, "sub_group_size": 200},
         **FULL),
    Case("z3_bf16_full_subgroups_w4", 3, 4, "bf16", zero={**WHOLE, "sub_group_size": 600}, scheduler=True,
         **FULL),
    Case("z3_fp32_small_subgroups_w2", 3, 2, hidden=7, zero={**WHOLE, "sub_group_size": 30},
         note="most parameters are larger than a sub-group may be"),
    Case("z3_bf16_oddbuffers_w2", 3, 2, "bf16", hidden=7, zero=WHOLE, frozen=True, frozen_transposed=True,
         buffers=True, odd_buffers=True),
    Case("z3_fp32_persist_w2", 3, 2, tied=True, buffers=True,
         note="small parameters stay whole on every rank while training"),
    Case("z3_fp32_tinygroup_w4", 3, 4, tiny_group=True, zero=WHOLE),
    Case("z3_fp32_exclfrozen_w2", 3, 2, exclude_frozen=True, zero=WHOLE, **FULL),
    Case("z3_bf16_offload_w2", 3, 2, "bf16", "cpu_adamw", zero={**WHOLE, **OFFLOAD}),
    Case("z3_bf16_offloadparam_w2", 3, 2, "bf16", "cpu_adamw",
         zero={**WHOLE, **OFFLOAD, "offload_param": {"device": "cpu", "pin_memory": False}}),
    Case("z3_bf16_nvme_w2", 3, 2, "bf16", "cpu_adamw", zero={**WHOLE, **NVME_OPTIMIZER, "sub_group_size": 300},
         config=aio(), swap_from=1024, note="some sub-groups are in swap files, some in the optimizer's"),
    Case("z3_fp32_nvme_full_w3", 3, 3, "fp32", "cpu_adamw", hidden=9, config=aio(2), swap_from=1024,
         zero={**WHOLE, **NVME_OPTIMIZER, "sub_group_size": 700}, note="padded to multiples of 2048 bytes", **FULL),
    Case("z3_bf16_nvmeparam_w2", 3, 2, "bf16", "cpu_adamw", hidden=7, config=aio(), swap_from=512,
         zero={**WHOLE, **NVME_OPTIMIZER, **NVME_PARAMETERS, "sub_group_size": 10000},
         note="all is in swap files"),
    Case("z3_bf16_fusedadam_w2", 3, 2, "bf16", "fused_adamw", zero=WHOLE),
    Case("z3_bf16_hpz_w4", 3, 4, "bf16", zero={**WHOLE, "zero_hpz_partition_size": 2}),
    Case("z3_fp32_sgd_w2", 3, 2, optimizer="sgd", config=UNTESTED, zero=WHOLE),
    Case("z3_fp32_adagrad_w2", 3, 2, optimizer="adagrad", config=UNTESTED, zero=WHOLE),
    Case("z3_bf16_muon_w2", 3, 2, "bf16", "muon", config=UNTESTED, zero={**WHOLE, "reduce_scatter": False}),
    Case("z3_fp32_legacyserial_w2", 3, 2, buffers=True, tied=True, zero=WHOLE, config=LEGACY),
    # Hugging Face
    Case("hf_trainer_gpt2_z2_bf16_w2", 2, 2, "bf16", kind="hf_trainer", architecture="gpt2"),
    Case("hf_trainer_llama_z3_bf16_w2", 3, 2, "bf16", kind="hf_trainer", architecture="llama", zero=WHOLE),
    Case("hf_trainer_llama_z1_bf16_w3", 1, 3, "bf16", kind="hf_trainer", architecture="llama"),
    Case("hf_accelerate_gpt2_z2_fp32_w2", 2, 2, kind="hf_accelerate", architecture="gpt2"),
    Case("hf_accelerate_llama_z3_fp32_w2", 3, 2, kind="hf_accelerate", architecture="llama", zero=WHOLE),
]


def large_batch_name(stage, kind, world):
    return f"z{stage}_{kind}_full_b{LARGE_BATCH}_w{world}"


def large_batch_cases():
    """Cases with a batch that 1, 2, 3, 4, 5 and 8 ranks can share. They have every stage, precision and wrapper
    at 2, 3 and 4 ranks, and optimizers with fewer and with more states than Adam."""
    dtypes = {"fp32": "fp32", "bf16": "bf16", "bf16opt": "bf16", "fp16": "fp16"}
    optimizers = ("sgd", "adagrad", "amsgrad")
    for stage, world in itertools.product((1, 2, 3), (2, 3, 4)):
        for at, kind in enumerate([*dtypes, *(f"fp32_{optimizer}" for optimizer in optimizers)]):
            precision, _, optimizer = kind.partition("_")
            if precision == "bf16opt" and stage != 1 or optimizer == "adagrad" and stage == 3:
                continue  # DeepSpeed lacks this combination, or cannot resume it
            hidden = (7, 9, 11)[(stage + world + at) % 3]
            zero = {**WHOLE, "sub_group_size": 100 * hidden} if stage == 3 else {}
            config = FP32_GRADS if precision == "bf16opt" else UNTESTED if optimizer else {}
            traits = {**FULL, "groups": optimizer != "adagrad"}  # DeepSpeed trains only one group of them
            yield Case(large_batch_name(stage, kind, world), stage, world, dtypes[precision], optimizer or "adamw",
                       hidden=hidden, batch=LARGE_BATCH, zero=zero, config=config, **traits)


STORED_LARGE_BATCH = {large_batch_name(*which) for which in (
    (1, "fp32", 3), (1, "bf16opt", 4), (1, "fp16", 2), (2, "bf16", 3), (2, "fp32_amsgrad", 4), (3, "fp32", 2),
    (3, "bf16", 4), (3, "fp16", 3))}
CASES += [case for case in large_batch_cases() if case.name in STORED_LARGE_BATCH]
MORE_CASES = [case for case in large_batch_cases() if case.name not in STORED_LARGE_BATCH]


def build_model(case: Case, seed: int):
    """A small network whose sizes share no factor with the world sizes."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):

        def __init__(self, hidden):
            super().__init__()
            inner = 2 * hidden + 3
            self.ln_1 = nn.LayerNorm(hidden)
            # A key that starts with a digit is legal in a state dict.
            self.mlp = nn.ModuleDict({"up_proj": nn.Linear(hidden, inner),
                                      "1x1": nn.Linear(inner, hidden, bias=False)})

        def forward(self, x):
            return x + self.mlp["1x1"](functional.gelu(self.mlp["up_proj"](self.ln_1(x))))

    class Statistics(nn.Module):

        def __init__(self, hidden):
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(hidden))
            self.register_buffer("num_batches_tracked", torch.tensor(0, dtype=torch.int64))
            self.register_buffer("causal_mask", torch.tril(torch.ones(5, 5, dtype=torch.bool)))
            self.register_buffer("freq_table", torch.randn(hidden))
            self.register_buffer("scratch", torch.randn(4), persistent=False)

        def forward(self, x):
            if self.training:
                with torch.no_grad():
                    self.num_batches_tracked += 1
                    self.running_mean += 0.125  # the same on every rank
            return x + 0.01 * self.freq_table.to(x.dtype)

    class OddBuffers(nn.Module):
        """Buffers that no computation uses: further dtypes, strides, and sizes."""

        def __init__(self):
            super().__init__()
            values = torch.randn(7)
            for name, value in {
                    "f64": torch.randn(3, dtype=torch.float64), "f16": values.half(),
                    "bf16": values.bfloat16(), "f8": values.to(torch.float8_e4m3fn),
                    "i32": torch.tensor([-2**31, 0, 2**31 - 1], dtype=torch.int32),
                    "i16": torch.tensor([-5, 5], dtype=torch.int16),
                    "i8": torch.tensor([[-128, 127]], dtype=torch.int8),
                    "u8": torch.arange(9, dtype=torch.uint8), "c64": torch.randn(3, dtype=torch.complex64),
                    "transposed": torch.randn(3, 5).t(), "strided": torch.arange(12.0)[1::3],
                    "expanded": torch.randn(1).expand(4), "int_transposed": torch.arange(6).reshape(2, 3).t(),
                    "scalar": torch.tensor(0.5), "empty": torch.empty(0, 3), "more": torch.randn(300),
                    "also_empty": torch.empty(2, 0)}.items():
                self.register_buffer(name, value)

    class Awkward(nn.Module):

        def __init__(self):
            super().__init__()
            hidden = case.hidden
            self.tok_emb = nn.Embedding(VOCABULARY, hidden)
            self.conv = nn.Conv1d(hidden, hidden, 3, padding=1)
            self.blocks = nn.ModuleList([Block(hidden) for _ in range(2)])
            self.temperature = nn.Parameter(torch.ones(() if case.zero_dim else 1))
            self.gain = nn.Parameter(torch.ones(1))
            self.wide = nn.Linear(hidden, case.wide)
            self.narrow = nn.Linear(case.wide, hidden, bias=False)
            if case.frozen:
                self.frozen_adapter = nn.Sequential(nn.Linear(hidden, 5), nn.Linear(5, hidden, bias=False))
                self.frozen_scalar = nn.Parameter(torch.tensor(0.75), requires_grad=False)
                self.frozen_adapter.requires_grad_(False)
            if case.frozen_transposed:
                self.frozen_mix = nn.Parameter(torch.randn(hidden, 3).t(), requires_grad=False)
            if case.buffers:
                self.stats = Statistics(hidden)
            if case.odd_buffers:
                self.odd = OddBuffers()
            if case.empty_param:
                self.empty = nn.Parameter(torch.empty(0, 3))
            self.ln_f = nn.LayerNorm(hidden)
            self.head = nn.Linear(hidden, VOCABULARY)
            if case.tied:
                self.head.weight = self.tok_emb.weight

        def forward(self, tokens, targets):
            x = self.tok_emb(tokens)
            x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
            for block in self.blocks:
                x = block(x)
            x = x + self.narrow(torch.tanh(self.wide(x)))
            if case.frozen:
                x = x + self.frozen_scalar * self.frozen_adapter(x)
            if case.frozen_transposed:
                x = x + 0.1 * self.frozen_mix.sum(0)
            if case.buffers:
                x = self.stats(x)
            if case.empty_param:
                x = x + self.empty.sum()
            logits = self.head(self.ln_f(x * self.gain)) * self.temperature
            return functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), targets.reshape(-1))

    torch.manual_seed(seed)
    return Awkward()


def build_hf_model(case: Case, seed: int):
    import torch
    import transformers
    torch.manual_seed(seed)
    if case.architecture == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=67, n_positions=32, n_embd=12, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=1, eos_token_id=2))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=67, hidden_size=12, intermediate_size=27, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=True, bos_token_id=1,
        eos_token_id=2))


def batch(step: int, rank: int, world: int, seed: int, rows: int = GLOBAL_BATCH):
    """A rank's contiguous share of the global batch of one step, which has so many rows."""
    import torch
    generator = torch.Generator().manual_seed(seed * 7919 + step)
    tokens = torch.randint(0, VOCABULARY, (rows, SEQUENCE + 1), generator=generator)
    mine = tokens.chunk(world)[rank]
    return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def ds_config(case: Case) -> dict:
    config = {
        "train_batch_size": case.batch,
        "train_micro_batch_size_per_gpu": case.batch // case.world,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
        "zero_optimization": {"stage": case.stage},
    }
    zero = config["zero_optimization"]
    if case.stage:
        zero.update(reduce_bucket_size=100000, overlap_comm=False, contiguous_gradients=True)
    if case.stage in (1, 2):
        zero.update(allgather_bucket_size=100000)
    if case.stage == 3:
        zero.update(stage3_prefetch_bucket_size=0, stage3_max_live_parameters=100000)
    zero.update(case.zero)
    if OPTIMIZERS[case.optimizer]:
        config["optimizer"] = OPTIMIZERS[case.optimizer]
    else:
        config["zero_force_ds_cpu_optimizer"] = False
    if case.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if case.dtype == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 2, "hysteresis": 2}
    if case.scheduler:
        config["scheduler"] = {"type": "WarmupDecayLR",
                               "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 4e-3, "warmup_num_steps": 4,
                                          "total_num_steps": 40}}
    config.update(case.config)
    return json.loads(json.dumps(config))  # DeepSpeed changes its argument


def parameter_groups(case: Case, model):
    """The groups for the optimizer, and the same with names, for case.json."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if case.tiny_group:
        split = [({"lr": 3e-3}, lambda name, p: name != "gain"),
                 ({"weight_decay": 0.0}, lambda name, p: name == "gain")]
    elif case.groups:
        split = [({"weight_decay": 0.05}, lambda name, p: p.dim() >= 2),
                 ({"weight_decay": 0.0, "lr": 2e-3}, lambda name, p: p.dim() < 2)]
    else:
        return [p for _, p in trained], [{"names": [name for name, _ in trained]}]
    groups, named = [], []
    for options, belongs in split:
        members = [(name, p) for name, p in trained if belongs(name, p)]
        groups.append({"params": [p for _, p in members], **options})
        named.append({"names": [name for name, _ in members], **options})
    return groups, named


def client_state() -> dict:
    """Python objects of kinds that users save beside their model."""
    import collections
    import decimal
    import numpy
    import torch
    return {
        "epoch": 3, "best_metric": None, "flag": True, "big": 2**80 + 7, "negative": -(2**63) - 1, "pi": math.pi,
        "infinity": float("inf"), "complex": 1 + 2j, "text": "naïve ✓ \U0001F600", "long_text": "x" * 300,
        "bytes": b"\x00\xff", "bytearray": bytearray(b"abc"), "nested": ((1, (2.5, "three")), [None, {"k": (True, )}]),
        "set": {"alpha", "beta"}, "frozenset": frozenset([1, 2]), "range": range(3), "slice": slice(1, 5, 2),
        "args": argparse.Namespace(lr=1e-3, layers=[1, 2]), "path": pathlib.PurePosixPath("relative/x"),
        "when": datetime.datetime(2026, 1, 2, 3, 4, 5, 678), "day": datetime.date(2026, 1, 2),
        "delta": datetime.timedelta(seconds=12.5), "decimal": decimal.Decimal("1.50"),
        "counter": collections.Counter("abca"), "ordered": collections.OrderedDict(a=1, b=2),
        "default": collections.defaultdict(int, z=9), "deque": collections.deque([1, 2], maxlen=4),
        "numpy_float": numpy.float64(0.125), "numpy_bool": numpy.bool_(True),
        "numpy_array": numpy.arange(6, dtype=numpy.float32).reshape(2, 3),
        "numpy_state": numpy.random.RandomState(3).get_state(),
        "torch_state": torch.Generator().manual_seed(1).get_state(), "dtype": torch.bfloat16,
        "size": torch.Size([2, 3]), "device": torch.device("cpu"), "half": torch.tensor([1.5, -2.0]).half(),
        "strided": torch.arange(12.0).reshape(3, 4).t(), "view": torch.arange(8.0)[2:5],
        "parameter": torch.nn.Parameter(torch.ones(2)), "empty_tensor": torch.empty(0, 4),
        "bool_tensor": torch.tensor([True, False]), "short_tensor": torch.tensor(7, dtype=torch.int16),
    }


def whole(tensors) -> dict:
    """Safetensors refuses tensors that share memory, so every name gets its own."""
    import torch
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}


def element_offset(view, base) -> int:
    """The position of `view` in the flat tensor `base`, in elements."""
    offset, rest = divmod(view.data_ptr() - base.data_ptr(), base.element_size())
    if rest or not 0 <= offset <= base.numel() - view.numel():
        raise AssertionError("a parameter lies outside its flat group")
    return offset


def gather_flat(local, world):
    """All ranks' equal partitions, one after the other."""
    import torch
    parts = [torch.empty_like(local) for _ in range(world)]
    torch.distributed.all_gather(parts, local.contiguous())
    return torch.cat(parts)


def state_keys(states) -> list[str]:
    """Names of the tensor states that any rank has."""
    import torch
    local = sorted({key for state in states for key, value in state.items()
                    if torch.is_tensor(value) and value.dim()})
    everywhere = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, local)
    return sorted(set().union(*everywhere))


def masters_of_flat_groups(engine, names, flat_groups, partitions, groups, world):
    """Stages 1 and 2: the 16-bit parameters are views of one flat buffer, the masters mirror it."""
    import torch
    inner = engine.optimizer.optimizer
    result = {}
    for flat, local, members in zip(flat_groups, partitions, groups):
        columns = {"fp32": gather_flat(local.detach().float(), world)}
        state = inner.state[local]
        for key in state_keys([state]):
            value = state.get(key)
            whole = torch.is_tensor(value) and value.shape == local.shape
            everywhere = torch.tensor(int(whole))
            torch.distributed.all_reduce(everywhere, op=torch.distributed.ReduceOp.MIN)
            if everywhere:  # Muon's momentum is not partitioned like the masters
                columns[key] = gather_flat(value.detach().float(), world)
        for p in members:
            if p.numel():
                start = element_offset(p.data, flat)
                for key, column in columns.items():
                    result[f"{names[p]}|{key}"] = column[start:start + p.numel()].view(p.shape).clone()
    return result


def masters_stage3(engine, names):
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    optimizer, keys = engine.optimizer, {}
    for members, flat in zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat):
        of_group = state_keys([optimizer.optimizer.state.get(flat, {})])  # Muon's differ from those of its Adam
        keys.update({p: of_group for p in members})
    result = {}
    for p, name in names.items():
        if not p.requires_grad:
            continue
        result[f"{name}|fp32"] = safe_get_full_fp32_param(p).detach().float().reshape(p.ds_shape).clone()
        for key in keys[p]:
            value = safe_get_full_optimizer_state(p, key)
            if value is not None:
                result[f"{name}|{key}"] = value.detach().float().reshape(p.ds_shape).clone()
    return result


def masters_stage0(engine, names):
    import torch
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    pairs = []  # parameter, its master, the tensor that owns the optimizer state, offset in it
    if hasattr(optimizer, "fp32_groups_flat"):
        for flat, master, members in zip(optimizer.fp16_groups_flat, optimizer.fp32_groups_flat,
                                         optimizer.fp16_groups):
            pairs += [(p, master, element_offset(p.data, flat)) for p in members]
    elif hasattr(optimizer, "fp32_groups"):
        for members, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups):
            pairs += [(p, master, 0) for p, master in zip(members, masters)]
    else:
        pairs = [(p, p, 0) for group in inner.param_groups for p in group["params"]]
    result = {}
    for p, master, start in pairs:
        tensors = {"fp32": master, **{k: v for k, v in inner.state[master].items()
                                      if torch.is_tensor(v) and v.shape == master.shape and (v.dim() or k != "step")}}
        for key, value in tensors.items():
            flat = value.detach().float().reshape(-1)
            result[f"{names[p]}|{key}"] = flat[start:start + p.numel()].view(p.shape).clone()
    return result


def live_masters(engine, stage: int, world: int) -> dict:
    names = {p: name for name, p in engine.module.named_parameters()}
    optimizer = engine.optimizer
    if stage == 0:
        return masters_stage0(engine, names)
    if stage == 3:
        return masters_stage3(engine, names)
    if hasattr(optimizer, "fp32_groups_flat_partition"):  # BF16_Optimizer
        return masters_of_flat_groups(engine, names, optimizer.bf16_groups_flat,
                                      optimizer.fp32_groups_flat_partition, optimizer.bf16_groups, world)
    return masters_of_flat_groups(engine, names, optimizer.bit16_groups_flat,
                                  optimizer.single_partition_of_fp32_groups, optimizer.bit16_groups, world)


def live_module(engine) -> dict:
    """The model's state dict, whole, in its own dtypes."""
    import deepspeed
    partitioned = [p for p in engine.module.parameters() if hasattr(p, "ds_id")]
    with deepspeed.zero.GatheredParameters(partitioned) if partitioned else contextlib.nullcontext():
        return whole(engine.module.state_dict())


def engine_facts(engine) -> dict:
    """The facts for case.json on the model and the optimizer. They must be taken before the truth is written."""
    module = engine.module
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    owners, tied = {}, {}
    for name, p in module.named_parameters(remove_duplicate=False):
        if p in owners:
            tied[name] = owners[p]
        else:
            owners[p] = name
    persistent = set(module.state_dict())
    return {
        "param_shapes": {name: list(getattr(p, "ds_shape", p.shape)) for name, p in module.named_parameters()},
        "frozen": [name for name, p in module.named_parameters() if not p.requires_grad],
        "tied": tied,
        "buffers": {name: {"shape": list(b.shape), "dtype": str(b.dtype).removeprefix("torch."),
                           "persistent": name in persistent} for name, b in module.named_buffers()},
        "optimizer_classes": {kind: f"{type(o).__module__}.{type(o).__qualname__}"
                              for kind, o in (("wrapper", optimizer), ("base", inner))},
    }


def start_distributed(rank, world, port):
    import torch
    import deepspeed
    # CROSS_* are read by DeepSpeed's checkpoint writers.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world),
                      LOCAL_RANK=str(rank), LOCAL_SIZE=str(world), LOCAL_WORLD_SIZE=str(world), CROSS_RANK="0",
                      CROSS_SIZE="1")
    torch.set_num_threads(1)
    # DeepSpeed's all-reduce through shared memory leaves 66 MiB per rank in /dev/shm for ever, so only gloo is used.
    # (The attribute deepspeed.comm.torch is the real torch module, hence sys.modules.)
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)


def swap_tensors_from(size):
    """Makes DeepSpeed swap tensors from this size in bytes on, instead of 1 MiB. 0 changes nothing."""
    if size:
        from deepspeed.runtime.swap_tensor import optimizer_utils, partitioned_param_swapper
        optimizer_utils.MIN_AIO_BYTES = partitioned_param_swapper.MIN_AIO_BYTES = size


def relax_deepspeed(case):
    """Removes DeepSpeed's obstacles. The ranks build equal models, so the initial broadcast is not needed, and it
    cannot send 0-dim or strided tensors. fp16 works on any CPU although DeepSpeed asks for special instructions."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.partition_parameters import Init
    DeepSpeedEngine._broadcast_model = lambda self: None

    def partition_only(self, param):
        self._convert_to_deepspeed_param(param)
        param.partition()

    Init._zero_init_param = partition_only
    swap_tensors_from(case.swap_from)
    if case.dtype == "fp16":
        get_accelerator().is_fp16_supported = lambda: True


def save_truth(case, folder, masters, module, facts):
    """Called on rank 0 only."""
    from safetensors.torch import save_file
    expected = folder / "expected"
    expected.mkdir(exist_ok=True)
    save_file(masters, expected / "master.safetensors")
    save_file(module, expected / "module.safetensors")
    (folder / "case.json").write_text(json.dumps(facts, default=str))


def make_engine(case: Case, model, config: dict):
    """The engine that trains `model`, and the optimizer's groups by name."""
    import deepspeed
    import torch
    groups, named_groups = parameter_groups(case, model)
    client = {"radam": lambda: torch.optim.RAdam(groups, lr=3e-3),
              "amsgrad": lambda: torch.optim.Adam(groups, lr=3e-3, amsgrad=True)}.get(case.optimizer)
    how = {"optimizer": client()} if client else {"model_parameters": groups}
    return deepspeed.initialize(model=model, config=config, **how)[0], named_groups


def plain_worker(rank, world, port, case, folder, seed):
    import torch
    start_distributed(rank, world, port)
    relax_deepspeed(case)
    os.chdir(folder)
    config = ds_config(case)
    engine, named_groups = make_engine(case, build_model(case, seed), config)

    def train(first, count):
        losses = []
        for step in range(first, first + count):
            loss = engine(*batch(step, rank, world, seed, case.batch))
            engine.backward(loss)
            engine.step()
            mean = loss.detach().float().clone()
            torch.distributed.all_reduce(mean)
            losses.append(float(mean / world))
        return losses

    before = train(0, STEPS_BEFORE)
    if engine.skipped_steps >= STEPS_BEFORE:
        raise AssertionError("the loss scaler skipped every step")
    masters, module, facts = live_masters(engine, case.stage, world), live_module(engine), engine_facts(engine)
    engine.save_checkpoint(str(folder / "ckpt"), exclude_frozen_parameters=case.exclude_frozen,
                           client_state=client_state() if case.client_state else {})
    facts.update(param_groups=named_groups, ds_config=config, losses_before_save=before,
                 skipped_steps=engine.skipped_steps, lr_at_save=engine.get_lr())
    facts["losses_after_save"] = train(STEPS_BEFORE, STEPS_AFTER)
    if rank == 0:
        save_truth(case, folder, masters, module, facts)
    torch.distributed.barrier()


def use_gloo_in_accelerate():
    """Accelerate looks for a GPU backend before it uses DeepSpeed, so it gets gloo."""
    from accelerate import state
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    state.PartialState._prepare_backend = (
        lambda self, cpu=False, sagemaker_dp=False, backend=None: ("gloo", state.DistributedType.MULTI_CPU))


def make_trainer(case, world, seed, max_steps, **options):
    """A Hugging Face Trainer below the current folder, and its DeepSpeed configuration."""
    import torch
    import transformers
    use_gloo_in_accelerate()
    # bf16=True asks for a GPU unless use_cpu is set, and use_cpu turns DeepSpeed off.
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True

    class Tokens(torch.utils.data.Dataset):

        def __len__(self):
            return 96

        def __getitem__(self, i):
            generator = torch.Generator().manual_seed(seed * 131 + i)
            ids = torch.randint(3, 67, (SEQUENCE, ), generator=generator)
            return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}

    config = ds_config(case)
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                "gradient_clipping"):
        config[key] = "auto"
    config["optimizer"]["params"] = {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto",
                                     "torch_adam": True}
    config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": "auto",
                                                          "warmup_num_steps": "auto"}}
    config.update(UNTESTED)
    arguments = transformers.TrainingArguments(
        output_dir="ckpt", bf16=case.dtype == "bf16", deepspeed=json.loads(json.dumps(config)),
        max_steps=max_steps, save_steps=STEPS_BEFORE, save_strategy="steps",
        per_device_train_batch_size=case.batch // world, logging_steps=1, learning_rate=2e-3, warmup_steps=2,
        report_to=[], save_total_limit=1, seed=seed, disable_tqdm=True, dataloader_num_workers=0,
        weight_decay=0.01)
    model = build_hf_model(case, options.pop("model_seed", seed))
    return transformers.Trainer(model=model, args=arguments, train_dataset=Tokens(), **options), config


def hf_trainer_worker(rank, world, port, case, folder, seed):
    import torch
    start_distributed(rank, world, port)
    os.chdir(folder)  # so that the files hold a relative path only
    trainer, config = make_trainer(case, world, seed, STEPS_BEFORE)
    trainer.train()
    engine = trainer.model_wrapped
    masters, module, facts = live_masters(engine, case.stage, world), live_module(engine), engine_facts(engine)
    if rank == 0:
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        facts.update(ds_config=config, losses_before_save=losses)
        save_truth(case, folder, masters, module, facts)
        engine.module.config.save_pretrained(folder / "expected" / "hf_config")
    torch.distributed.barrier()


def make_accelerator(case, model):
    """An Accelerator, the engine and optimizer that it prepared, and the DeepSpeed configuration."""
    import accelerate
    use_gloo_in_accelerate()
    config = ds_config(case)
    plugin = accelerate.DeepSpeedPlugin(hf_ds_config=json.loads(json.dumps(config)))
    accelerator = accelerate.Accelerator(deepspeed_plugin=plugin,
                                         mixed_precision="no" if case.dtype == "fp32" else case.dtype)
    engine, optimizer = accelerator.prepare(model, accelerate.utils.DummyOptim(model.parameters(), lr=3e-3))
    return accelerator, engine, optimizer, config


def hf_accelerate_worker(rank, world, port, case, folder, seed):
    import torch
    start_distributed(rank, world, port)
    accelerator, engine, optimizer, config = make_accelerator(case, build_hf_model(case, seed))

    def train(first, count):
        losses = []
        for step in range(first, first + count):
            ids, _ = batch(step, rank, world, seed, case.batch)
            loss = engine(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            mean = loss.detach().float().clone()
            torch.distributed.all_reduce(mean)
            losses.append(float(mean / world))
        return losses

    before = train(0, STEPS_BEFORE)
    masters, module, facts = live_masters(engine, case.stage, world), live_module(engine), engine_facts(engine)
    os.chdir(folder)
    accelerator.save_state("ckpt")
    after = train(STEPS_BEFORE, STEPS_AFTER)
    if rank == 0:
        facts.update(ds_config=config, losses_before_save=before, losses_after_save=after)
        save_truth(case, folder, masters, module, facts)
        engine.module.config.save_pretrained(folder / "expected" / "hf_config")
    torch.distributed.barrier()


WORKERS = {"plain": plain_worker, "hf_trainer": hf_trainer_worker, "hf_accelerate": hf_accelerate_worker}


def in_child(function, log, arguments):
    """Body of a forked child: everything it prints goes to its log, and it never returns."""
    with open(log, "wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    status = 0
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run_forked(function, logs: pathlib.Path, argument_lists, timeout=300) -> str | None:
    """Runs one child for each argument list. Returns None, or the log of the first that failed."""
    import torch  # noqa: F401  imported before the fork, so that the children start at once
    import deepspeed  # noqa: F401
    logs.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")
    paths = [logs / f"{function.__name__}_{i}.log" for i in range(len(argument_lists))]
    children = [context.Process(target=in_child, args=(function, path, arguments))
                for path, arguments in zip(paths, argument_lists)]
    for child in children:
        child.start()
    deadline = time.monotonic() + timeout
    failed = []
    while not failed and time.monotonic() < deadline and any(child.is_alive() for child in children):
        time.sleep(0.05)
        failed = [i for i, child in enumerate(children) if child.exitcode not in (None, 0)]
    if failed:
        time.sleep(1)  # the others may report their reasons too
    timed_out = not failed and any(child.is_alive() for child in children)
    for child in children:
        if child.is_alive():
            child.kill()
        child.join()
    if timed_out:
        return f"timed out after {timeout} s"
    failed = failed or [i for i, child in enumerate(children) if child.exitcode]
    return paths[failed[0]].read_text(errors="replace") if failed else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask_api(load_dir, tag, target):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import save_file
    save_file(whole(get_fp32_state_dict_from_zero_checkpoint(str(load_dir), tag=tag)), target)


def ask_command(load_dir, tag, target):
    import torch
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_state_dict
    from safetensors.torch import save_file
    with tempfile.TemporaryDirectory() as folder:
        convert_zero_checkpoint_to_state_dict(str(load_dir), folder, dtype="float32", tag=tag)
        tensors = torch.load(os.path.join(folder, "pytorch_model.bin"), weights_only=True)
        save_file(whole(tensors), target)
        target.with_suffix(".names").write_text(json.dumps(list(tensors)))


def find_checkpoint(folder: pathlib.Path):
    [latest] = folder.rglob("latest")
    return latest.parent, latest.read_text().strip()


def check_truths(folder: pathlib.Path, case: Case, facts: dict):
    """The truths come from different places in DeepSpeed, and must agree if they overlap."""
    import torch
    from safetensors.torch import load_file
    expected = folder / "expected"
    module = load_file(expected / "module.safetensors")
    masters = {name.removesuffix("|fp32"): value for name, value in load_file(expected / "master.safetensors").items()
               if name.endswith("|fp32")}
    trained = {name for name, shape in facts["param_shapes"].items()
               if name not in facts["frozen"] and math.prod(shape)}
    if set(masters) - trained or trained - set(masters):
        raise AssertionError(f"masters of {sorted(set(masters) ^ trained)}")
    for name, value in masters.items():
        if not torch.equal(value.to(module[name].dtype), module[name]):
            raise AssertionError(f"{name}: the model's copy is not the master's rounding")
    learning_rates = set(facts.get("lr_at_save", []))
    decays = {group.get("weight_decay") for group in facts.get("param_groups", [])}
    if case.groups and not (len(decays) == 2 and len(learning_rates) == (1 if case.scheduler else 2)):
        raise AssertionError(f"the two groups have learning rates {learning_rates} and weight decays {decays}")
    for source in ("fp32", "command"):
        if (expected / f"{source}.safetensors").exists():
            for name, value in load_file(expected / f"{source}.safetensors").items():
                truth = masters.get(facts["tied"].get(name, name), module[name])
                if not torch.equal(value.to(torch.complex128), truth.to(value.dtype).to(torch.complex128)):
                    raise AssertionError(f"{name}: {source} differs from the live engine")


def last_line(log: str, folder: pathlib.Path) -> str:
    """The exception of a failed child, without any path of this machine."""
    lines = [line for line in log.splitlines() if line and not line.startswith((" ", "Traceback"))]
    return (lines[-1] if lines else "").replace(f"{folder}/", "")[:300]


def make_case(case: Case, out: pathlib.Path, seed: int, logs: pathlib.Path) -> str:
    """Makes one case below `out`, replacing it. Returns a line about it. Raises if it fails."""
    import deepspeed
    import torch
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "expected").mkdir(parents=True)
    seed += case.seed_offset
    started = time.monotonic()
    port = free_port()
    error = run_forked(WORKERS[case.kind], logs, [(rank, case.world, port, case, folder, seed)
                                                  for rank in range(case.world)])
    if error:
        shutil.rmtree(folder)
        raise RuntimeError(error)
    shutil.rmtree(folder / "nvme", ignore_errors=True)
    # Not part of the checkpoint's data: DeepSpeed's scripts, and pickled arguments that name the machine.
    for pattern in ("zero_to_fp32.py", "zero_to_torch.py", "training_args.bin", "README.md"):
        for path in (folder / "ckpt").rglob(pattern):
            path.unlink()
    load_dir, tag = find_checkpoint(folder / "ckpt")
    facts = json.loads((folder / "case.json").read_text())
    answers = {}
    for name, ask in (("fp32", ask_api), ("command", ask_command)):
        error = run_forked(ask, logs, [(load_dir, tag, folder / "expected" / f"{name}.safetensors")])
        answers[name] = last_line(error, folder) if error else "ok"
    names_file = folder / "expected" / "command.names"
    if names_file.exists():
        facts["command_names"] = json.loads(names_file.read_text())
        names_file.unlink()
    check_truths(folder, case, facts)
    facts = {
        "name": case.name, "note": case.note, "kind": case.kind, "stage": case.stage, "world_size": case.world,
        "precision": case.dtype, "optimizer": case.optimizer, "seed": seed, "global_batch": case.batch,
        "exclude_frozen_parameters": case.exclude_frozen, "client_state": case.client_state,
        "deepspeed_version": deepspeed.__version__, "torch_version": torch.__version__,
        "load_dir": str(load_dir.relative_to(folder)), "tag": tag, "deepspeed_answers": answers, **facts,
    }
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size >> 10} KiB, {time.monotonic() - started:.0f} s, {answers}"


def make_each(names, logs, make):
    """Calls make(name, folder for its logs) for each and prints the results. Returns the exit status, 1 if any failed.

    The logs are kept in `logs`, or nowhere if that is None.
    """
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (logs or pathlib.Path(temporary)).resolve()
        for name in names:
            try:
                print(f"{name}: {make(name, folder / name)}", flush=True)
            except Exception as error:
                failed += 1
                print(f"{name}: FAILED\n{str(error)[-3000:]}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "testdata" / "checkpoints")
    parser.add_argument("--case", default="all", metavar="NAMES", help="names, separated by commas, 'all' or 'more'")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--logs", type=pathlib.Path, help="keep the ranks' logs in this folder")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for case in CASES + MORE_CASES:
            print(f"{case.name:32} stage {case.stage}, {case.world} ranks, {case.dtype}, {case.optimizer}"
                  + (f": {case.note}" if case.note else ""))
        return 0
    by_name = {case.name: case for case in CASES + MORE_CASES}
    lists = {"all": CASES, "more": MORE_CASES}
    names = [case.name for case in lists[arguments.case]] if arguments.case in lists else arguments.case.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    return make_each(names, arguments.logs,
                     lambda name, logs: make_case(by_name[name], out, arguments.seed, logs))


if __name__ == "__main__":
    sys.exit(main())
