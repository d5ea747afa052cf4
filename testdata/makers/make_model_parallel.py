#!/usr/bin/env python3
"""Make small model-parallel checkpoints with real DeepSpeed on the CPU, together with the truth about them.

    make_model_parallel.py --list
    make_model_parallel.py --out testdata/model_parallel --case pp2_dp2_z1_bf16,autotp2_dp3_z3_fp32
    make_model_parallel.py --out testdata/model_parallel --case all --seed 1234

Each case trains a tiny model for three steps over gloo, one process per rank, under pipeline, tensor or expert
parallelism. It saves the model with DeepSpeed, and trains two more steps so that a later resume can be
compared.  A case is a folder:

    case.json                       facts: topology, stage, names and shapes of every rank, merge rules,
                                    losses, what DeepSpeed's own converters answered
    ckpt/                           what DeepSpeed wrote
    expected/live.safetensors       fp32 masters and optimizer states of the live engines, one tensor per
                                    parameter and model-parallel rank: `name|fp32|pp0|tp1|ep0` ...
    expected/module.safetensors     the live models' state dicts in their own dtypes, buffers and aliases
                                    included: `name|pp0|tp1|ep0`

The fragments of the data-parallel ranks are already put together; what is left to a reader is the merge
over the model-parallel ranks.  `ep` counts for expert parameters only and is 0 for all others. Expert
parameters carry the name that they have on their own rank, so `ep` is needed to tell the experts apart.

Initial weights depend on the parameter's name and the data on the step alone, so losses may be compared
between topologies.  The script fails when two sources of truth disagree. Ranks that hold the same slice must
hold the same values, and a 16-bit parameter must be its master's rounding. A fresh engine with other weights
that loads the checkpoint must come back to the same state and the same next losses. DeepSpeed's universal
converter must merge the elements of the slices.

Needs torch, deepspeed, transformers and safetensors.
"""
from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import types

import make_checkpoints
from make_checkpoints import (DEFAULT_SEED, FP32_GRADS, GLOBAL_BATCH, ROOT, SEQUENCE, STEPS_AFTER, STEPS_BEFORE,
                              VOCABULARY, WHOLE, ask_api, batch, element_offset, engine_facts, find_checkpoint,
                              free_port, last_line, live_module, make_each, masters_stage0, masters_stage3, run_forked,
                              start_distributed, whole)

MICRO_BATCH = 4  # rows of a micro-batch in a pipeline
EXPERTS = 4  # of every mixture-of-experts layer


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    kind: str  # a key of BUILDERS
    stage: int
    dtype: str = "fp32"  # fp32, bf16 or fp16
    pp: int = 1
    tp: int = 1
    dp: int = 1  # data-parallel ranks of dense parameters
    ep: int = 1  # expert-parallel ranks; they are some of the data-parallel ones
    model: str = ""  # the variant of the model
    info: str = ""  # the client's description of its tensors for DeepSpeed: "" for none
    partition: str = "uniform"  # how DeepSpeed cuts the simple pipeline into stages
    vocabulary_multiple: int = 8  # Megatron pads the vocabulary to a multiple of this and of tp
    kv_heads: int = 2  # of the Megatron model
    config: dict = dataclasses.field(default_factory=dict)  # more top-level config keys
    zero: dict = dataclasses.field(default_factory=dict)  # more zero_optimization keys
    swap_from: int = 0  # bytes of a sub-group that goes to NVMe
    note: str = ""

    @property
    def world(self):
        return self.pp * self.tp * self.dp


PARALLEL_WRITE = {"checkpoint": {"parallel_write": {"pipeline_stage": True}}}
DATA_FIRST = {"use_data_before_expert_parallelism": True}

CASES = [
    # Pipelines: a tied embedding, a layer without a file, buffers
    Case("pp2_dp1_z0_fp32", "pipeline", 0, pp=2, info="tied", note="the optimizer lies in the mp_rank files"),
    Case("pp2_dp1_z1_bf16", "pipeline", 1, "bf16", pp=2, info="tied"),
    Case("pp2_dp1_z1_fp16", "pipeline", 1, "fp16", pp=2, info="tied"),
    Case("pp2_dp2_z1_bf16", "pipeline", 1, "bf16", pp=2, dp=2, info="tied"),
    Case("pp2_dp2_z1_fp32", "pipeline", 1, pp=2, dp=2, info="tied"),
    Case("pp2_dp2_z1_bf16opt", "pipeline", 1, "bf16", pp=2, dp=2, info="tied", config=FP32_GRADS,
         note="BF16_Optimizer"),
    Case("pp2_dp2_parwrite_z1_fp32", "pipeline", 1, pp=2, dp=2, config=PARALLEL_WRITE,
         note="layer files written by all data-parallel ranks; no universal_checkpoint_info"),
    Case("pp2_dp2_noinfo_z1_fp32", "pipeline", 1, pp=2, dp=2, model="late_blocks",
         note="no universal_checkpoint_info, and the tied weight is cut in two in stage 0 only"),
    Case("pp3_dp1_z1_fp32", "pipeline", 1, pp=3, info="tied"),
    # AutoTP: DeepSpeed cuts the layers and writes universal_checkpoint_info itself
    Case("autotp2_dp1_z0_fp32", "autotp", 0, tp=2, model="llama"),
    Case("autotp2_dp1_z1_bf16", "autotp", 1, "bf16", tp=2, model="llama"),
    Case("autotp2_dp2_z1_fp32", "autotp", 1, tp=2, dp=2, model="llama"),
    Case("autotp2_dp2_z2_bf16", "autotp", 2, "bf16", tp=2, dp=2, model="llama"),
    Case("autotp2_dp2_z3_bf16", "autotp", 3, "bf16", tp=2, dp=2, model="llama"),
    Case("autotp2_dp3_z3_fp32", "autotp", 3, tp=2, dp=3, model="llama"),
    Case("autotp2_dp2_z3_nvme", "autotp", 3, "bf16", tp=2, dp=2, model="llama_uneven", config=make_checkpoints.aio(),
         zero={**make_checkpoints.NVME_OPTIMIZER, "sub_group_size": 600}, swap_from=1024,
         note="the optimizer is on NVMe; DeepSpeed does not load it exactly"),
    Case("autotp2_dp1_z1_uneven", "autotp", 1, tp=2, model="llama_uneven", note="3 key-value heads on 2 ranks"),
    Case("autotp2_dp2_z2_fused", "autotp", 2, tp=2, dp=2, model="fused",
         note="fused qkv and gate_up by partition_config, biases, 13 rows on 2 ranks"),
    Case("autotp2_dp2_z3_fused", "autotp", 3, tp=2, dp=2, model="fused"),
    Case("autotp2_dp1_z1_bigcode", "autotp", 1, tp=2, model="bigcode",
         note="query rows are split, key-value rows are on every rank; only the affine map says so"),
    Case("autotp2_dp1_z1_codegen", "autotp", 1, tp=2, model="codegen",
         note="every rank holds scattered blocks of rows; only the affine map says which"),
    # Tensor parallelism of the client's own (mpu), as Megatron-DeepSpeed does it
    Case("mpu_tp2_dp1_z1_bf16", "megatron", 1, "bf16", tp=2, info="sizes", note="every merge rule"),
    Case("mpu_tp2_dp2_z1_fp32", "megatron", 1, tp=2, dp=2, info="widths", kv_heads=3,
         note="universal_checkpoint_version 0.4: 3 key-value heads on 2 ranks"),
    Case("mpu_tp2_dp2_z2_bf16", "megatron", 2, "bf16", tp=2, dp=2, info="count", kv_heads=4,
         note="sub-parameters given by their count"),
    Case("mpu_tp3_dp1_z1_fp32", "megatron", 1, tp=3, info="widths", vocabulary_multiple=32, kv_heads=4,
         note="4 key-value heads on 3 ranks; the last rank's vocabulary is all padding"),
    Case("pp2_tp2_dp1_z1_bf16", "megatron_pipeline", 1, "bf16", pp=2, tp=2, info="sizes"),
    Case("pp2_tp2_dp2_z1_fp32", "megatron_pipeline", 1, pp=2, tp=2, dp=2, info="sizes"),
    # Mixtures of experts
    Case("moe_ep1_dp2_z1_bf16", "moe", 1, "bf16", dp=2),
    Case("moe_ep2_dp2_z0_fp32", "moe", 0, dp=2, ep=2, note="an optimizer file per expert-parallel rank"),
    Case("moe_ep2_dp2_z1_bf16", "moe", 1, "bf16", dp=2, ep=2),
    Case("moe_ep2_dp4_z1_fp32", "moe", 1, dp=4, ep=2, config=DATA_FIRST,
         note="use_data_before_expert_parallelism: neighbouring ranks share their experts"),
    Case("moe_ep2_dp4_z2_fp32", "moe", 2, dp=4, ep=2),
    Case("moe_ep2_tp2_dp2_z2_bf16", "tensor_moe", 2, "bf16", tp=2, dp=2, ep=2,
         note="the tensor-parallel ranks share each expert (enable_expert_tensor_parallelism)"),
    Case("autoep2_dp2_z0_fp32", "autoep", 0, dp=2, ep=2),
    Case("autoep2_dp2_z1_bf16", "autoep", 1, "bf16", dp=2, ep=2),
    Case("autoep2_dp4_z2_fp32", "autoep", 2, dp=4, ep=2),
    Case("autoep4_dp4_z2_fp32", "autoep", 2, dp=4, ep=4, note="one expert per rank"),
    Case("autoep2_dp4_z3_fp32", "autoep", 3, dp=4, ep=2, note="zero3_partitioned experts"),
    Case("autoep2_autotp2_z1_fp32", "autoep", 1, tp=2, dp=2, ep=2, note="AutoEP folded with AutoTP"),
]
# Not in testdata.
MORE_CASES = [Case("moe_ep2_pp2_dp2_z1_bf16", "pipeline_moe", 1, "bf16", pp=2, dp=2, ep=2)]


@dataclasses.dataclass
class Run:
    """One rank's engine, its function for a step (which returns the loss of the whole batch), and its position."""
    engine: object
    step: object
    pp: int = 0
    tp: int = 0
    dp: int = 0
    client_state: dict = dataclasses.field(default_factory=dict)


def named_values(name: str, shape, seed: int):
    """Values that depend only on the name, the shape and the seed."""
    import torch
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))
    return torch.randn(tuple(shape), generator=generator) * 0.25


def fill(module, seed: int, global_name=lambda name: name):
    """Initialises the parameters by name; the gains of norms stay near one."""
    import torch
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(named_values(global_name(name), p.shape, seed))
            if "norm" in name and name.endswith("weight"):
                p.add_(1)


def ds_config(case: Case) -> dict:
    plain = make_checkpoints.Case(case.name, case.stage, case.dp, case.dtype, scheduler=True, config=case.config,
                               zero={**WHOLE, "sub_group_size": 2000, **case.zero} if case.stage == 3 else {},
                               optimizer="cpu_adamw" if case.swap_from else "adamw")
    config = make_checkpoints.ds_config(plain)
    del config["train_batch_size"]  # it follows from the other two, and from DeepSpeed's world size
    if "pipeline" in case.kind:
        config["train_micro_batch_size_per_gpu"] = MICRO_BATCH
        config["gradient_accumulation_steps"] = GLOBAL_BATCH // case.dp // MICRO_BATCH
    return config


def language_model_loss(logits, targets):
    from torch.nn import functional
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1))


def step_of(engine, case: Case, seed: int, dp_rank: int, forward=None):
    """A step of an engine; `forward` makes the logits when the engine itself does not make the loss."""
    import torch

    def step(number):
        tokens, targets = batch(number, dp_rank, case.dp, seed)
        loss = language_model_loss(forward(tokens), targets) if forward else engine(tokens, targets)
        engine.backward(loss)
        engine.step()
        mean = loss.detach().double().clone()
        torch.distributed.all_reduce(mean)
        return float(mean / case.world)

    return step


def step_of_pipeline(engine, case: Case, seed: int, dp_rank: int):

    def step(number):
        tokens, targets = batch(number, dp_rank, case.dp, seed)
        micro_batches = zip(tokens.split(MICRO_BATCH), targets.split(MICRO_BATCH))
        return float(engine.train_batch(data_iter=iter(list(micro_batches))))

    return step


def build_pipeline(case: Case, seed: int, weights: int, rank: int) -> Run:
    import deepspeed
    import torch
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
    from torch import nn
    from torch.nn import functional
    hidden, inner = 16, 21

    class Embedding(nn.Module):

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(VOCABULARY, hidden))

        def forward(self, tokens):
            return functional.embedding(tokens, self.weight)

    class Block(nn.Module):

        def __init__(self, index):
            super().__init__()
            self.norm = nn.LayerNorm(hidden)
            self.fc1 = nn.Linear(hidden, inner)
            self.fc2 = nn.Linear(inner, hidden, bias=False)
            self.register_buffer("running", 1 + named_values(f"running.{index}", (4, ), weights))

        def forward(self, x):
            return x + self.fc2(torch.tanh(self.fc1(self.norm(x)))) * self.running[1].to(x.dtype)

    def head(embedding, x):
        return functional.linear(x, embedding.weight)

    def scale(x):  # has no state dict, hence no file
        return x * 1.0

    first, last = TiedLayerSpec("embed", Embedding), TiedLayerSpec("embed", Embedding, forward_fn=head)
    norm = LayerSpec(nn.LayerNorm, hidden)
    if case.model == "late_blocks":
        layers = [first, norm, scale, scale, LayerSpec(Block, 0), LayerSpec(Block, 1), norm, last]
    else:
        layers = [first, LayerSpec(Block, 0), LayerSpec(Block, 1), scale, LayerSpec(Block, 2), norm, last]
    module = PipelineModule(layers, loss_fn=language_model_loss, partition_method=case.partition,
                            topology=PipeDataParallelTopology(num_pp=case.pp, num_dp=case.dp))
    fill(module, weights)
    engine = deepspeed.initialize(model=module, config=ds_config(case))[0]
    client_state = {"client_note": "set by the training script"}
    if case.info == "tied":
        client_state["universal_checkpoint_info"] = {
            "universal_checkpoint_version": 0.2,
            "pipeline_replicated_parameter_patterns": [r"^tied_modules\.embed\..*"],
        }
    pp_rank, dp_rank = divmod(rank, case.dp)
    return Run(engine, step_of_pipeline(engine, case, seed, dp_rank), pp=pp_rank, dp=dp_rank,
               client_state=client_state)


@dataclasses.dataclass
class TensorGroup:
    """The tensor-parallel ranks that share a layer, and the three exchanges that Megatron's layers need."""
    rank: int
    size: int
    group: object

    def __post_init__(self):
        import torch

        def reduced(x):
            # Sums of 16-bit values must not depend on the order of the ranks.
            total = x.float().contiguous()
            torch.distributed.all_reduce(total, group=self.group)
            return total.to(x.dtype)

        class Copy(torch.autograd.Function):

            @staticmethod
            def forward(_, x):
                return x.view_as(x)

            @staticmethod
            def backward(_, gradient):
                return reduced(gradient)

        class Reduce(torch.autograd.Function):

            @staticmethod
            def forward(_, x):
                return reduced(x)

            @staticmethod
            def backward(_, gradient):
                return gradient

        class Gather(torch.autograd.Function):

            @staticmethod
            def forward(_, x):
                parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
                torch.distributed.all_gather(parts, x.contiguous(), group=self.group)
                return torch.cat(parts, dim=-1)

            @staticmethod
            def backward(_, gradient):
                return gradient.chunk(self.size, dim=-1)[self.rank].contiguous()

        self.copy, self.reduce, self.gather = Copy.apply, Reduce.apply, Gather.apply


def group_of(rank: int, rank_lists):
    """Makes all the groups, as every rank must, and returns the one that holds `rank`."""
    import torch
    mine = None
    for ranks in rank_lists:
        group = torch.distributed.new_group(ranks)
        if rank in ranks:
            mine = group
    return mine


class Megatron:
    """A transformer cut by hand like Megatron-LM's, and its description for DeepSpeed.

    `info` "sizes" gives the sizes of fused tensors, "count" their number (an old form), and "widths" every rank's part
    of them. Only the last allows heads that the ranks cannot share evenly.
    """
    hidden, head_size, inner = 16, 4, 24

    def __init__(self, case: Case, tensor: TensorGroup, weights: int):
        self.tensor, self.weights, self.info = tensor, weights, case.info
        self.kv_heads = case.kv_heads
        self.queries_per_head = 1 if case.info == "count" else 2
        multiple = case.vocabulary_multiple * tensor.size
        self.padded_vocabulary = -(-VOCABULARY // multiple) * multiple
        kv_rows = [(self.kv_heads // tensor.size + (r < self.kv_heads % tensor.size)) * self.head_size
                   for r in range(tensor.size)]
        self.qkv_widths = [[rows * self.queries_per_head for rows in kv_rows], kv_rows, kv_rows]
        self.qkv_sizes = [sum(widths) for widths in self.qkv_widths]

    def values(self, name, *shape):
        return named_values(name, shape, self.weights)

    def part(self, full, widths, dim=0):
        return full.narrow(dim, sum(widths[:self.tensor.rank]), widths[self.tensor.rank])

    def share(self, full, dim=0):
        return full.chunk(self.tensor.size, dim)[self.tensor.rank]

    def layers(self):
        """The classes of the embedding and of a block, and the function of the head that the embedding shares."""
        import torch
        from torch import nn
        from torch.nn import functional
        shape, tensor = self, self.tensor

        def holder(split=(), **parameters):
            """A module without a forward: only Megatron's parameter names matter here."""
            module = nn.Module()
            for name, value in parameters.items():
                p = nn.Parameter(value.clone(memory_format=torch.contiguous_format))
                if name in split:  # DeepSpeed asks for these marks when it computes the norm of the gradients
                    p.model_parallel = p.tensor_model_parallel = True
                module.register_parameter(name, p)
            return module

        class Embedding(nn.Module):

            def __init__(self):
                super().__init__()
                full = torch.zeros(shape.padded_vocabulary, shape.hidden)
                full[:VOCABULARY] = shape.values("embedding.word", VOCABULARY, shape.hidden)
                mine = shape.share(full)
                self.first, self.rows = len(mine) * tensor.rank, len(mine)
                self.word_embeddings = holder(("weight", ), weight=mine)
                self.position_embeddings = holder(
                    weight=shape.values("embedding.position", SEQUENCE, shape.hidden))

            def forward(self, tokens):
                local = tokens - self.first
                held = (local >= 0) & (local < self.rows)
                weight = self.word_embeddings.weight
                x = functional.embedding(local.where(held, 0), weight) * held.unsqueeze(-1).to(weight.dtype)
                return tensor.reduce(x) + self.position_embeddings.weight

        def head(embedding, x):
            logits = functional.linear(tensor.copy(x), embedding.word_embeddings.weight)
            return tensor.gather(logits)[..., :VOCABULARY]

        class Block(nn.Module):

            def __init__(self, index):
                super().__init__()
                values = lambda name, *sizes: shape.values(f"block.{index}.{name}", *sizes)  # noqa: E731
                hidden, inner, rows = shape.hidden, shape.inner, sum(shape.qkv_sizes)

                def cut_qkv(full):
                    return torch.cat([shape.part(piece, widths) for piece, widths in
                                      zip(full.split(shape.qkv_sizes), shape.qkv_widths)])

                def cut_pairs(full):
                    return torch.cat([shape.share(half) for half in full.chunk(2)])

                self.input_layernorm = nn.LayerNorm(hidden)
                self.post_attention_layernorm = nn.LayerNorm(hidden)
                # The ranks' scales see different heads and are never averaged, so they drift apart.
                self.attention = holder(head_scale=1 + values("scale", shape.head_size))
                self.attention.query_key_value = holder(
                    ("weight", "bias"), weight=cut_qkv(values("qkv", rows, hidden)),
                    bias=cut_qkv(values("qkv bias", rows)))
                self.attention.dense = holder(
                    ("weight", ), bias=values("dense bias", hidden),
                    weight=shape.part(values("dense", hidden, shape.qkv_sizes[0]), shape.qkv_widths[0], 1))
                # No pattern names channel_gain: it follows the default rule.
                self.mlp = holder(("channel_gain", ), channel_gain=1 + shape.share(values("gain", inner)))
                self.mlp.dense_h_to_4h = holder(("weight", ), weight=cut_pairs(values("up", 2 * inner, hidden)))
                self.mlp.dense_4h_to_h = holder(("weight", ), weight=shape.share(values("down", hidden, inner), 1),
                                                bias=values("down bias", hidden))
                self.register_buffer("output_scale", 1 + values("buffer", 1))

            def forward(self, x):
                rows, length, _ = x.shape
                qkv = self.attention.query_key_value
                widths = [w[tensor.rank] for w in shape.qkv_widths]
                pieces = functional.linear(tensor.copy(self.input_layernorm(x)), qkv.weight, qkv.bias)
                query, key, value = [piece.view(rows, length, -1, shape.head_size).transpose(1, 2)
                                     for piece in pieces.split(widths, dim=-1)]
                key, value = [t.repeat_interleave(shape.queries_per_head, 1) for t in (key, value)]
                mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
                mixed = (mixed * self.attention.head_scale).transpose(1, 2).reshape(rows, length, -1)
                dense = self.attention.dense
                x = x + tensor.reduce(functional.linear(mixed, dense.weight)) + dense.bias
                up, down = self.mlp.dense_h_to_4h, self.mlp.dense_4h_to_h
                gate, wide = functional.linear(tensor.copy(self.post_attention_layernorm(x)), up.weight).chunk(2, -1)
                wide = functional.silu(gate) * wide * self.mlp.channel_gain
                x = x + tensor.reduce(functional.linear(wide, down.weight)) + down.bias
                return x * self.output_scale.to(x.dtype)  # DeepSpeed leaves buffers in fp32

        class FinalNorm(nn.Module):

            def __init__(self):
                super().__init__()
                self.final_layernorm = nn.LayerNorm(shape.hidden)

            def forward(self, x):
                return self.final_layernorm(x)

        return Embedding, Block, FinalNorm, head

    def universal_info(self, pipeline: bool) -> dict:
        weight, bias = [rf".*attention\.query_key_value\.{kind}$" for kind in ("weight", "bias")]
        rows = 3 if self.info == "count" else tuple(self.qkv_sizes)
        info = {
            "universal_checkpoint_version": 0.4 if self.info == "widths" else 0.2,
            "original_vocab_size": VOCABULARY,
            "padded_vocab_size": self.padded_vocabulary,
            "vocabulary_parameter_patterns": [r".*word_embeddings\.weight$"],
            "pipeline_replicated_parameter_patterns": [r"^tied_modules\..*"] if pipeline else [],
            "tp_replicated_parameter_patterns": [
                r".*layernorm\.weight$", r".*layernorm\.bias$", r".*attention\.dense\.bias$",
                r".*mlp\.dense_4h_to_h\.bias$", r".*position_embeddings\.weight$"],
            "parameter_to_average_patterns": [r".*attention\.head_scale$"],
            "parameter_with_row_parallelism_patterns": [r".*attention\.dense\.weight$",
                                                        r".*mlp\.dense_4h_to_h\.weight$"],
            "parameter_with_2_sub_params_cat_dim_0": [r".*mlp\.dense_h_to_4h\.weight$"],
            "parameter_with_sub_params": [
                {"patterns": [weight], "shape": (rows, self.hidden), "partition_dim": 0},
                {"patterns": [bias], "shape": (rows, ), "partition_dim": 0}],
        }
        if self.info == "widths":
            info["sub_param_shard_widths"] = {pattern: self.qkv_widths for pattern in (weight, bias)}
        return info


class ModelParallelUnit:
    """The functions that DeepSpeed needs in an `mpu`. Tensor-parallel ranks are neighbours."""

    def __init__(self, rank, tp, dp):
        self.dp_rank, self.tp_rank = divmod(rank, tp)
        self.tp, self.dp = tp, dp
        self.tp_group = group_of(rank, [[d * tp + t for t in range(tp)] for d in range(dp)])
        self.dp_group = group_of(rank, [[d * tp + t for d in range(dp)] for t in range(tp)])

    def get_model_parallel_rank(self):
        return self.tp_rank

    def get_model_parallel_world_size(self):
        return self.tp

    def get_model_parallel_group(self):
        return self.tp_group

    # DeepSpeed's universal loader knows only this name.
    get_tensor_model_parallel_world_size = get_model_parallel_world_size

    def get_data_parallel_rank(self):
        return self.dp_rank

    def get_data_parallel_world_size(self):
        return self.dp

    def get_data_parallel_group(self):
        return self.dp_group


def megatron_client_state(megatron, pipeline):
    return {"universal_checkpoint_info": megatron.universal_info(pipeline), "iteration": STEPS_BEFORE,
            "args": {"note": "arguments of the training script"}}


def build_megatron(case: Case, seed: int, weights: int, rank: int) -> Run:
    import deepspeed
    from torch import nn
    mpu = ModelParallelUnit(rank, case.tp, case.dp)
    megatron = Megatron(case, TensorGroup(mpu.tp_rank, case.tp, mpu.tp_group), weights)
    Embedding, Block, FinalNorm, head = megatron.layers()

    class Model(nn.Module):

        def __init__(self):
            super().__init__()
            self.embedding = Embedding()
            self.layers = nn.ModuleList([Block(0), Block(1)])
            self.final = FinalNorm()

        def forward(self, tokens, targets):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x)
            return language_model_loss(head(self.embedding, self.final(x)), targets)

    model = Model()
    engine = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), mpu=mpu,
                                  config=ds_config(case))[0]
    return Run(engine, step_of(engine, case, seed, mpu.dp_rank), tp=mpu.tp_rank, dp=mpu.dp_rank,
               client_state=megatron_client_state(megatron, pipeline=False))


def build_megatron_pipeline(case: Case, seed: int, weights: int, rank: int) -> Run:
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
    topology = PipeModelDataParallelTopology(num_pp=case.pp, num_mp=case.tp, num_dp=case.dp)
    place = topology.get_coord(rank)
    group = group_of(rank, topology.get_axis_comm_lists("model"))
    megatron = Megatron(case, TensorGroup(place.model, case.tp, group), weights)
    Embedding, Block, FinalNorm, head = megatron.layers()
    # The position embeddings are not tied: the last stage's copy of them is never used and goes stale.
    tied = {"tied_weight_attr": ["word_embeddings.weight"]}
    module = PipelineModule([TiedLayerSpec("embed", Embedding, **tied), LayerSpec(Block, 0), LayerSpec(Block, 1),
                             LayerSpec(FinalNorm), TiedLayerSpec("embed", Embedding, forward_fn=head, **tied)],
                            loss_fn=language_model_loss, partition_method="uniform", topology=topology)
    engine = deepspeed.initialize(model=module, config=ds_config(case))[0]
    return Run(engine, step_of_pipeline(engine, case, seed, place.data), pp=place.pipe, tp=place.model,
               dp=place.data, client_state=megatron_client_state(megatron, pipeline=True))


def llama(uneven: bool):
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=24 if uneven else 16, intermediate_size=26 if uneven else 24,
        num_hidden_layers=2, num_attention_heads=6 if uneven else 4, num_key_value_heads=3 if uneven else 2,
        max_position_embeddings=16, tie_word_embeddings=False, use_cache=False, attn_implementation="eager"))


def scattered_model(kind: str):
    """Blocks of the fused layouts of GPTBigCode and CodeGen.

    AutoTP finds the layout by the class of the block; it needs a child called ...Model and a configuration. Attention
    itself is left out, since only the layout of the fused tensor matters.
    """
    import torch
    from torch import nn
    bigcode = kind == "bigcode"
    hidden, heads, kv_rows = 16, 4 if bigcode else 8, 8
    fused_name = "c_attn" if bigcode else "qkv_proj"

    class ScatteredBlock(nn.Module):

        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(hidden)
            self.attn = nn.ModuleDict({
                fused_name: nn.Linear(hidden, hidden + kv_rows if bigcode else 3 * hidden, bias=bigcode),
                "out_proj": nn.Linear(hidden, hidden)})
            self.fc_in = nn.Linear(hidden, 24)
            self.down_proj = nn.Linear(24, hidden)

        def forward(self, x):
            fused = self.attn[fused_name](self.norm(x))
            queries = fused.shape[-1] - kv_rows if bigcode else fused.shape[-1] // 3
            gain = torch.sigmoid(fused[..., queries:].mean(-1, keepdim=True).detach())
            x = x + self.attn["out_proj"](torch.tanh(fused[..., :queries]) * gain)
            return x + self.down_proj(torch.tanh(self.fc_in(x)))

    Block = type("GPTBigCodeBlock" if bigcode else "CodeGenBlock", (ScatteredBlock, ), {})

    class ToyModel(nn.Module):

        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(VOCABULARY, hidden)
            self.h = nn.ModuleList([Block()])
            self.ln_f = nn.LayerNorm(hidden)

        def forward(self, tokens):
            x = self.wte(tokens)
            for block in self.h:
                x = block(x)
            return self.ln_f(x)

    class ToyForCausalLM(nn.Module):

        def __init__(self):
            super().__init__()
            self.config = types.SimpleNamespace(
                hidden_size=hidden, n_embd=hidden, num_attention_heads=heads, num_key_value_heads=heads,
                vocab_size=VOCABULARY, model_type="toy")
            self.transformer = ToyModel()
            self.head = nn.Linear(hidden, VOCABULARY, bias=False)

        def forward(self, input_ids):
            return self.head(self.transformer(input_ids))

    return ToyForCausalLM()


# The rules for fused_model: the tensors that AutoTP must cut, and how.
FUSED_PARTITION = {
    "use_default_specs": False,
    "layer_specs": [
        {"patterns": [r".*\.o_proj\.weight$", r".*\.down_proj\.weight$", r".*\.side_down\.weight$"],
         "partition_type": "row"},
        {"patterns": [r".*\.qkv_proj\.weight$"], "partition_type": "column", "shape": [[16, 8, 8], -1],
         "partition_dim": 0},
        {"patterns": [r".*\.gate_up_proj\.weight$"], "partition_type": "column", "shape": [2, -1],
         "partition_dim": 0},
        {"patterns": [r".*\.side_up\.weight$"], "partition_type": "column"},
        {"patterns": [r".*head\.weight$", r".*embed\.weight$"], "partition_type": "skip"},
    ],
}


def fused_model():
    """Fused query-key-value and gate-up projections, and a side branch of 13 channels."""
    import torch
    from torch import nn
    from torch.nn import functional
    hidden, head_size, queries, inner, side = 16, 4, 16, 12, 13
    kv = queries // 2

    class FusedBlock(nn.Module):

        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.qkv_proj = nn.Linear(hidden, queries + 2 * kv)
            self.o_proj = nn.Linear(queries, hidden)
            self.gate_up_proj = nn.Linear(hidden, 2 * inner, bias=False)
            self.down_proj = nn.Linear(inner, hidden)
            self.side_up = nn.Linear(hidden, side)
            self.side_down = nn.Linear(side, hidden, bias=False)

        def forward(self, x):
            rows, length, _ = x.shape
            fused = self.qkv_proj(self.norm1(x))  # a rank has half of each part
            quarter = fused.shape[-1] // 4
            query, key, value = [part.reshape(rows, length, -1, head_size).transpose(1, 2)
                                 for part in fused.split([2 * quarter, quarter, quarter], -1)]
            mixed = functional.scaled_dot_product_attention(
                query, key.repeat_interleave(2, 1), value.repeat_interleave(2, 1), is_causal=True)
            x = x + self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))
            normed = self.norm2(x)
            gate, up = self.gate_up_proj(normed).chunk(2, -1)
            x = x + self.down_proj(functional.silu(gate) * up)
            return x + self.side_down(torch.tanh(self.side_up(normed)))

    class FusedForCausalLM(nn.Module):

        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, hidden)
            self.layers = nn.ModuleList([FusedBlock()])
            self.norm = nn.LayerNorm(hidden)
            self.head = nn.Linear(hidden, VOCABULARY, bias=False)

        def forward(self, input_ids):
            x = self.embed(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return FusedForCausalLM()


def build_autotp(case: Case, seed: int, weights: int, rank: int) -> Run:
    import deepspeed
    config = ds_config(case)
    config["tensor_parallel"] = {"autotp_size": case.tp}
    if case.model == "fused":
        model = fused_model()
        config["tensor_parallel"]["partition_config"] = FUSED_PARTITION
    elif case.model.startswith("llama"):
        model = llama(uneven=case.model == "llama_uneven")
    else:
        model = scattered_model(case.model)
    fill(model, weights)
    engine = deepspeed.initialize(model=model, config=config)[0]
    dp_rank, tp_rank = divmod(rank, case.tp)

    def forward(tokens):
        answer = engine(input_ids=tokens)
        return getattr(answer, "logits", answer)

    return Run(engine, step_of(engine, case, seed, dp_rank, forward), tp=tp_rank, dp=dp_rank)


def mixture(case: Case, hidden: int):
    """DeepSpeed's own mixture of experts."""
    import torch
    from deepspeed.moe.layer import MoE
    from torch import nn
    inner = 12

    class Expert(nn.Module):

        def __init__(self):
            super().__init__()
            self.up = nn.Linear(hidden, inner)
            self.down = nn.Linear(inner, hidden)

        def forward(self, x):
            return self.down(torch.tanh(self.up(x)))

    return MoE(hidden_size=hidden, expert=Expert(), num_experts=EXPERTS, ep_size=case.ep, k=1, use_rts=False,
               min_capacity=4, capacity_factor=4.0, eval_capacity_factor=4.0)


def build_moe(case: Case, seed: int, weights: int, rank: int) -> Run:
    """The client groups the parameters itself."""
    from torch import nn
    hidden = 8

    class Net(nn.Module):

        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, hidden)
            self.moe_a = mixture(case, hidden)
            self.mid = nn.Linear(hidden, hidden)
            self.moe_b = mixture(case, hidden)
            self.out = nn.Linear(hidden, VOCABULARY)

        def forward(self, tokens, targets):
            x = self.embed(tokens)
            x = self.mid(x + self.moe_a(x)[0])
            x = x + self.moe_b(x)[0]
            return language_model_loss(self.out(x), targets)

    ep_rank = rank // (case.dp // case.ep) if case.config.get(*DATA_FIRST) else rank % case.ep
    model = Net()
    fill(model, weights, global_expert_name(ep_rank, EXPERTS // case.ep))
    engine = engine_with_experts(case, model)
    return Run(engine, step_of(engine, case, seed, rank), dp=rank)


def build_pipeline_moe(case: Case, seed: int, weights: int, rank: int) -> Run:
    """With experts, a pipeline's layers have no files: they are in those of the ranks."""
    from deepspeed.pipe import LayerSpec, PipelineModule
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology
    from torch import nn
    hidden = 8

    class Block(nn.Module):

        def __init__(self):
            super().__init__()
            self.moe, self.mid = mixture(case, hidden), nn.Linear(hidden, hidden)

        def forward(self, x):
            return self.mid(x + self.moe(x)[0])

    module = PipelineModule([LayerSpec(nn.Embedding, VOCABULARY, hidden), LayerSpec(Block), LayerSpec(Block),
                             LayerSpec(nn.Linear, hidden, VOCABULARY)], loss_fn=language_model_loss,
                            topology=PipeDataParallelTopology(num_pp=case.pp, num_dp=case.dp))
    pp_rank, dp_rank = divmod(rank, case.dp)
    fill(module, weights, global_expert_name(dp_rank % case.ep, EXPERTS // case.ep))
    engine = engine_with_experts(case, module)
    return Run(engine, step_of_pipeline(engine, case, seed, dp_rank), pp=pp_rank, dp=dp_rank)


def global_expert_name(ep_rank, local):
    return lambda name: re.sub(r"(deepspeed_experts\.)(\d+)", lambda m: f"{m[1]}{ep_rank * local + int(m[2])}", name)


def engine_with_experts(case, model, **options):
    import deepspeed
    import torch
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
    group = {"params": list(model.parameters()), "name": "dense", "weight_decay": 0.01}
    marked = case.stage or case.model == "marked"
    groups = split_params_into_different_moe_groups_for_optimizer(group) if marked else [group]
    config = ds_config(case)
    del config["optimizer"]
    return deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95)),
                                config=config, **options)[0]


# The dimension along which the tensor-parallel ranks of build_tensor_moe cut a parameter.
MOE_CUTS = [(r".*dense_4h_to_h\.weight$", 1), (r".*dense_h_to_4h\.(weight|bias)$", 0)]


def let_gloo_gather():
    """DeepSpeed gathers tokens into a flat buffer, for which gloo takes only flat tensors."""
    from deepspeed import comm
    gather = comm.all_gather_into_tensor

    def flat(output, part, *args, **options):
        return gather(output, part.reshape(-1) if output.dim() == 1 else part, *args, **options)

    comm.all_gather_into_tensor = flat


def build_tensor_moe(case: Case, seed: int, weights: int, rank: int) -> Run:
    """A mixture of experts between tensor-parallel layers, and in its experts, as Megatron-DeepSpeed makes it."""
    import torch
    from deepspeed.moe.layer import MoE
    from torch import nn
    from torch.nn import functional
    let_gloo_gather()
    mpu = ModelParallelUnit(rank, case.tp, case.dp)
    tensor = TensorGroup(mpu.tp_rank, case.tp, mpu.tp_group)
    hidden, inner, local = 8, 12, EXPERTS // case.ep

    class Mlp(nn.Module):

        def __init__(self):
            super().__init__()
            self.dense_h_to_4h = nn.Linear(hidden, inner // case.tp)
            self.dense_4h_to_h = nn.Linear(inner // case.tp, hidden)

        def forward(self, x):
            up, down = self.dense_h_to_4h, self.dense_4h_to_h
            wide = torch.tanh(functional.linear(tensor.copy(x), up.weight, up.bias))
            return tensor.reduce(functional.linear(wide, down.weight)) + down.bias

    def mixture():
        return MoE(hidden_size=hidden, expert=Mlp(), num_experts=EXPERTS, ep_size=case.ep, k=1, use_rts=False,
                   min_capacity=4, capacity_factor=4.0, eval_capacity_factor=4.0,
                   enable_expert_tensor_parallelism=True)

    class Net(nn.Module):

        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, hidden)
            self.moe_a, self.mlp, self.moe_b = mixture(), Mlp(), mixture()
            self.out = nn.Linear(hidden, VOCABULARY)

        def forward(self, tokens, targets):
            x = self.embed(tokens)
            x = x + self.moe_a(x)[0]
            x = x + self.mlp(x)
            x = x + self.moe_b(x)[0]
            return language_model_loss(self.out(x), targets)

    model = Net()
    global_name = global_expert_name(mpu.dp_rank % case.ep, local)
    with torch.no_grad():
        for name, p in model.named_parameters():
            dim = next((dim for pattern, dim in MOE_CUTS if re.match(pattern, name)), None)
            shape = [size * case.tp if at == dim else size for at, size in enumerate(p.shape)]
            full = named_values(global_name(name), shape, weights)
            p.copy_(full if dim is None else full.chunk(case.tp, dim)[mpu.tp_rank])
            if dim is not None:
                p.model_parallel = p.tensor_model_parallel = True
    engine = engine_with_experts(case, model, mpu=mpu)
    # With experts, DeepSpeed takes it from the model alone.
    engine.module.universal_checkpoint_info = {
        "universal_checkpoint_version": 0.2,
        "tp_replicated_parameter_patterns": [r".*(embed|out|wg)\..*", r".*dense_4h_to_h\.bias$"],
        "parameter_with_row_parallelism_patterns": [r".*dense_4h_to_h\.weight$"],
        "parameter_with_sub_params": [{"patterns": [r".*dense_h_to_4h\.weight$"], "shape": ((inner, ), hidden),
                                       "partition_dim": 0},
                                      {"patterns": [r".*dense_h_to_4h\.bias$"], "shape": ((inner, ), ),
                                       "partition_dim": 0}],
    }
    return Run(engine, step_of(engine, case, seed, mpu.dp_rank), tp=mpu.tp_rank, dp=mpu.dp_rank)


def mixtral():
    """A model with the parameter names that AutoEP's preset for Mixtral looks for.

    transformers' own class does not work: AutoEP calls its recorder of outputs with an older signature.
    """
    import torch
    from torch import nn
    from torch.nn import functional
    hidden, inner, head_size = 16, 12, 4

    class Experts(nn.Module):

        def __init__(self):
            super().__init__()
            self.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, 2 * inner, hidden))
            self.down_proj = nn.Parameter(torch.zeros(EXPERTS, hidden, inner))

    class Mixture(nn.Module):
        """AutoEP puts its own layer in this one's place, hence no forward."""

        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(hidden, EXPERTS, bias=False)
            self.experts = Experts()
            self.top_k = 2

    class Attention(nn.Module):

        def __init__(self):
            super().__init__()
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                self.add_module(name, nn.Linear(hidden, hidden, bias=False))

        def forward(self, x):
            rows, length, _ = x.shape
            query, key, value = [projection(x).view(rows, length, -1, head_size).transpose(1, 2)
                                 for projection in (self.q_proj, self.k_proj, self.v_proj)]
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            return self.o_proj(mixed.transpose(1, 2).reshape(rows, length, -1))

    class Layer(nn.Module):

        def __init__(self):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
            self.self_attn, self.mlp = Attention(), Mixture()

        def forward(self, x):
            x = x + self.self_attn(self.input_layernorm(x))
            mixed = self.mlp(self.post_attention_layernorm(x))
            return x + (mixed[0] if isinstance(mixed, tuple) else mixed)

    class Net(nn.Module):

        def __init__(self):
            super().__init__()
            self.config = types.SimpleNamespace(
                model_type="mixtral", num_local_experts=EXPERTS, num_experts_per_tok=2, hidden_size=hidden,
                intermediate_size=inner, num_attention_heads=hidden // head_size,
                num_key_value_heads=hidden // head_size)
            self.model = nn.ModuleDict({"embed_tokens": nn.Embedding(VOCABULARY, hidden),
                                        "layers": nn.ModuleList([Layer(), Layer()])})
            self.lm_head = nn.Linear(hidden, VOCABULARY, bias=False)

        def forward(self, tokens):
            x = self.model["embed_tokens"](tokens)
            for layer in self.model["layers"]:
                x = layer(x)
            return self.lm_head(x)

    return Net()


def build_autoep(case: Case, seed: int, weights: int, rank: int) -> Run:
    import deepspeed
    model = mixtral()
    fill(model, weights)
    config = ds_config(case)
    config["expert_parallel"] = {"enabled": True, "autoep_size": case.ep, "preset_model": "mixtral",
                                 "use_grouped_mm": False}
    if case.tp > 1:
        config["tensor_parallel"] = {"autotp_size": case.tp, "partition_config": {
            "use_default_specs": False, "layer_specs": [
                {"patterns": [r".*\.self_attn\.o_proj\.weight$"], "partition_type": "row"},
                {"patterns": [r".*\.self_attn\.[qkv]_proj\.weight$"], "partition_type": "column"}]}}
    engine = deepspeed.initialize(model=model, config=config)[0]
    dp_rank, tp_rank = divmod(rank, case.tp)
    return Run(engine, step_of(engine, case, seed, dp_rank, engine), tp=tp_rank, dp=dp_rank)


BUILDERS = {"pipeline": build_pipeline, "autotp": build_autotp, "megatron": build_megatron,
            "megatron_pipeline": build_megatron_pipeline, "moe": build_moe, "tensor_moe": build_tensor_moe,
            "pipeline_moe": build_pipeline_moe, "autoep": build_autoep}


def masters_of_flat_groups(engine, names) -> dict:
    """Stages 1 and 2: as in make_checkpoints, but each group is cut over ranks of its own."""
    import torch
    optimizer = engine.optimizer
    if hasattr(optimizer, "fp32_groups_flat_partition"):  # BF16_Optimizer
        groups = zip(optimizer.bf16_groups_flat, optimizer.fp32_groups_flat_partition, optimizer.bf16_groups,
                     optimizer.real_dp_process_group)
    else:
        groups = zip(optimizer.bit16_groups_flat, optimizer.single_partition_of_fp32_groups,
                     optimizer.bit16_groups, optimizer.real_dp_process_group)
    result = {}
    for flat, local, members, process_group in groups:
        tensors = {"fp32": local, **{key: value for key, value in optimizer.optimizer.state[local].items()
                                     if torch.is_tensor(value) and value.dim()}}
        for key, value in tensors.items():
            parts = [torch.empty_like(value) for _ in range(torch.distributed.get_world_size(process_group))]
            torch.distributed.all_gather(parts, value.detach().contiguous(), group=process_group)
            column = torch.cat(parts)
            for p in members:
                start = element_offset(p.data, flat)
                result[f"{names[p]}|{key}"] = column[start:start + p.numel()].view(p.shape).clone()
    return result


def live_masters(engine, stage: int) -> dict:
    names = {p: name for name, p in engine.module.named_parameters()}
    if stage == 0:
        return masters_stage0(engine, names)
    return masters_stage3(engine, names) if stage == 3 else masters_of_flat_groups(engine, names)


def expert_names(engine) -> dict:
    """The expert parameters of this rank, and its place among the ranks that share the experts."""
    from deepspeed.moe.utils import is_moe_param
    from deepspeed.utils import groups
    return {name: groups._get_expert_parallel_rank(p.group_name) for name, p in engine.module.named_parameters()
            if is_moe_param(p)}


def gathered_by_place(run: Run, tensors: dict) -> dict:
    """All ranks' tensors by name and model-parallel place; ranks with the same place must agree."""
    import torch
    experts = expert_names(run.engine)
    mine = {f"{key}|pp{run.pp}|tp{run.tp}|ep{experts.get(key.split('|')[0], 0)}": value.contiguous()
            for key, value in tensors.items()}
    everyone = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, mine)
    result = {}
    for part in everyone:
        for key, value in part.items():
            if not torch.equal(result.setdefault(key, value), value):
                raise AssertionError(f"{key}: the data-parallel ranks disagree")
    return result


def optimizer_step(engine) -> float:
    optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    [step] = {float(state["step"]) for state in optimizer.state.values() if "step" in state}
    return step


def start(rank, world, port, case, seed, weights) -> Run:
    import torch
    from deepspeed.accelerator import get_accelerator
    start_distributed(rank, world, port)
    torch.manual_seed(weights)
    make_checkpoints.swap_tensors_from(case.swap_from)
    # fp16 works on any CPU although DeepSpeed asks for special instructions.
    get_accelerator().is_fp16_supported = lambda: True
    return BUILDERS[case.kind](case, seed, weights, rank)


def train_worker(rank, world, port, case, folder, seed):
    import torch
    from safetensors.torch import save_file
    os.chdir(folder)
    run = start(rank, world, port, case, seed, seed)
    engine = run.engine
    before = [run.step(number) for number in range(STEPS_BEFORE)]
    masters = gathered_by_place(run, live_masters(engine, case.stage))
    module = gathered_by_place(run, live_module(engine))
    experts = expert_names(engine)
    facts = engine_facts(engine)
    mine = {"rank": rank, "pp": run.pp, "tp": run.tp, "dp": run.dp, "ep": max(experts.values(), default=0), **facts,
            "experts": sorted(experts)}
    classes = mine.pop("optimizer_classes")
    ranks = [None] * world
    torch.distributed.all_gather_object(ranks, mine)
    step = optimizer_step(engine)
    engine.save_checkpoint(str(folder / "ckpt"), client_state=run.client_state)
    lr, skipped = engine.get_lr(), engine.skipped_steps
    after = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    if rank == 0:
        save_file(whole(masters), folder / "expected" / "live.safetensors")
        save_file(whole(module), folder / "expected" / "module.safetensors")
        (folder / "case.json").write_text(json.dumps({
            "optimizer_classes": classes, "optimizer_step": step, "skipped_steps": skipped, "lr_at_save": lr,
            "losses_before_save": before, "losses_after_save": after, "ds_config": engine.config, "ranks": ranks,
        }, default=str))
    torch.distributed.barrier()


def stale_copies(module: dict) -> set:
    """Copies in later stages that differ from the first stage's.

    A tied layer has one file, the first stage's. When it is loaded, only its tied attributes are sent to the later
    stages. Other parts of the layer there are neither saved nor loaded nor used.
    """
    import torch
    first, stale = {}, set()
    for key, value in sorted(module.items()):  # stages in order
        name, _, place = key.split("|", 2)
        if not torch.equal(first.setdefault((name, place), value), value):
            stale.add(key)
    return stale


def reload_worker(rank, world, port, case, folder, seed):
    """Loads the checkpoint into engines that start from other weights, and compares."""
    import torch
    from safetensors.torch import load_file
    run = start(rank, world, port, case, seed, seed + 1)
    path, _ = run.engine.load_checkpoint(str(folder / "ckpt"))
    if path is None:
        raise AssertionError("DeepSpeed loaded nothing")
    for source, tensors in (("live", live_masters(run.engine, case.stage)), ("module", live_module(run.engine))):
        again = gathered_by_place(run, tensors)
        saved = load_file(folder / "expected" / f"{source}.safetensors")
        ignored = stale_copies(saved) if source == "module" else set()
        different = [key for key in (saved.keys() | again.keys()) - ignored
                     if key not in saved or key not in again or not torch.equal(saved[key], again[key])]
        if different:
            raise AssertionError(f"loading does not rebuild {source}: {sorted(different)[:5]}")
    losses = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    expected = json.loads((folder / "case.json").read_text())["losses_after_save"]
    if losses != expected:
        raise AssertionError(f"after loading the next losses are {losses}, not {expected}")
    torch.distributed.barrier()


def ask_universal(load_dir, tag, output, options):
    from deepspeed.checkpoint import ds_to_universal
    ds_to_universal.main(argparse.Namespace(
        input_folder=str(load_dir / tag), output_folder=str(output), num_extract_workers=1, num_merge_workers=1,
        keep_temp_folder=False, **options))


# Options of DeepSpeed's universal converter, to be tried in turn.
UNIVERSAL_OPTIONS = {
    "universal": {"strict": True, "inject_missing_state": False},
    "universal_inject": {"strict": True, "inject_missing_state": True},
    "universal_inject_lax": {"strict": False, "inject_missing_state": True},
}


def universal_info(load_dir: pathlib.Path, tag: str) -> dict:
    """The description of the tensors in the checkpoint, written by the client or by DeepSpeed."""
    import torch
    for path in sorted((load_dir / tag).glob("*mp_rank_00_model_states.pt")):
        if "_expert_" not in path.name:
            state = torch.load(path, map_location="cpu", weights_only=False)
            return state.get("universal_checkpoint_info") or {}
    raise AssertionError("no model states")


def merge_rule(name: str, info: dict) -> str:
    """The rule by which DeepSpeed's converter merges a parameter's slices. It asks the lists in this order."""

    def listed(patterns):
        return any(re.match(pattern, name) for pattern in patterns)

    if listed(info.get("affine_map", {}).get("params", ())):
        return "affine_map"
    for rule, key in (("replicated", "tp_replicated_parameter_patterns"),
                      ("average", "parameter_to_average_patterns"),
                      ("two_sub_params", "parameter_with_2_sub_params_cat_dim_0")):
        if listed(info.get(key, ())):
            return rule
    if listed(pattern for entry in info.get("parameter_with_sub_params", ()) for pattern in entry["patterns"]):
        return "sub_params"
    return "cat_dim_1" if listed(info.get("parameter_with_row_parallelism_patterns", ())) else "cat_dim_0"


def merge_rules(case: Case, info: dict, ranks) -> dict:
    """Names by the rule that merges them. Experts belong to their rank's rule, and those that tensor-parallel ranks share
    have a rule for their slices besides."""
    rules = {}
    for name in sorted({name for rank in ranks for name in rank["param_shapes"]}):
        is_expert = any(name in rank["experts"] for rank in ranks)
        if is_expert:
            rules.setdefault("experts", []).append(name)
        if not is_expert or case.kind == "tensor_moe":
            rules.setdefault(merge_rule(name, info) if case.tp > 1 else "whole", []).append(name)
        if any(re.match(pattern, name) for pattern in info.get("vocabulary_parameter_patterns", ())):
            rules.setdefault("vocabulary", []).append(name)
        if case.pp > 1 and sum(name in rank["param_shapes"] for rank in ranks) > case.tp * case.dp:
            rules.setdefault("on_several_stages", []).append(name)
    return rules


def check_rounding(live, module, frozen):
    import torch
    for key, value in live.items():
        name, state, place = key.split("|", 2)
        if state == "fp32" and not torch.equal(value.to(module[f"{name}|{place}"].dtype), module[f"{name}|{place}"]):
            raise AssertionError(f"{key}: the model's copy is not the master's rounding")
    trained = {key for key in live if "|fp32|" in key}
    if not trained or frozen:
        raise AssertionError("every parameter of these models is trained")


def check_expert_files(case: Case, load_dir, tag, module):
    """Experts lie in files of their own under global numbers; the ranks number theirs from zero."""
    import torch
    local = EXPERTS // case.ep
    for path in (load_dir / tag).glob("layer_*_expert_*"):
        expert, tp = (int(number) for number in re.search(r"_expert_(\d+)_mp_rank_(\d+)", path.name).groups())
        place = f"pp0|tp{tp}|ep{expert // local}"
        for key, value in torch.load(path, weights_only=False).items():
            if not torch.is_tensor(value):
                continue
            if case.kind.endswith("moe"):
                name = key.replace(f"deepspeed_experts.{expert}.", f"deepspeed_experts.{expert % local}.")
                mine = module[f"{name}|{place}"]
            else:
                mine = module[f"{key.removesuffix(f'.{expert}')}|{place}"][expert % local]
            if not torch.equal(value, mine):
                raise AssertionError(f"{path.name}: {key} differs from the live engine")


def check_universal(case: Case, folder, live, rules):
    """The converter's merged tensors must consist of the slices' elements, and of all of them."""
    import torch
    slices = {}
    for key, value in sorted(live.items()):
        name, state, pp, _, _ = key.split("|")
        slices.setdefault((name, state), {}).setdefault(pp, []).append(value)
    rule_of = {name: rule for rule, names in rules.items() for name in names
               if rule not in ("vocabulary", "on_several_stages")}
    wrong = []
    for (name, state), stages in slices.items():
        parts = stages[min(stages)]
        merged = torch.load(folder / "zero" / name / f"{state}.pt", weights_only=False)
        merged = merged["param"] if isinstance(merged, dict) else merged
        if rule_of[name] == "average":
            good = torch.equal(merged, sum(parts) / len(parts))
        elif name in rules.get("vocabulary", ()) and case.kind.startswith("megatron"):
            rows = torch.cat(parts)
            good = len(merged) == VOCABULARY and torch.equal(merged, rows[:VOCABULARY])
        else:
            elements = torch.cat([part.reshape(-1) for part in parts])
            good = torch.equal(merged.unique(), elements.unique()) and merged.numel() <= elements.numel()
        if not good:
            wrong.append(f"{name}|{state}")
    if wrong:
        raise AssertionError(f"the universal converter disagrees about {wrong[:5]}")


def check_case(case: Case, folder: pathlib.Path, logs: pathlib.Path, facts: dict, load_dir, tag) -> dict:
    """Compares the truths. Returns the answers of DeepSpeed's converters, and the rules that matter."""
    from safetensors.torch import load_file
    live, module = [load_file(folder / "expected" / f"{source}.safetensors") for source in ("live", "module")]
    check_rounding(live, module, [name for rank in facts["ranks"] for name in rank["frozen"]])
    check_expert_files(case, load_dir, tag, module)
    info = universal_info(load_dir, tag)
    rules = merge_rules(case, info, facts["ranks"])
    answers = {}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = pathlib.Path(temporary)
        error = run_forked(ask_api, logs, [(load_dir, tag, scratch / "fp32.safetensors")])
        answers["fp32"] = last_line(error, folder) if error else "ok"
        for name, options in UNIVERSAL_OPTIONS.items():
            output = scratch / name
            error = run_forked(ask_universal, logs, [(load_dir, tag, output, options)])
            answers[name] = last_line(error, folder).replace(f"{scratch}/", "") if error else "ok"
            if not error:
                check_universal(case, output, live, rules)
                break
    return {"deepspeed_answers": answers, "universal_checkpoint_info": sorted(info), "rules": rules}


def make_case(case: Case, out: pathlib.Path, seed: int, logs: pathlib.Path) -> str:
    """Makes one case below `out`, replacing it. Returns a line about it. Raises if it fails."""
    import deepspeed
    import torch
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "expected").mkdir(parents=True)
    started = time.monotonic()
    try:
        # For an optimizer on NVMe, DeepSpeed loads only the swap files.
        for worker in (train_worker, ) if case.swap_from else (train_worker, reload_worker):
            port = free_port()
            error = run_forked(worker, logs, [(rank, case.world, port, case, folder, seed)
                                              for rank in range(case.world)])
            if error:
                raise RuntimeError(error)
        shutil.rmtree(folder / "nvme", ignore_errors=True)
        for pattern in ("zero_to_fp32.py", "zero_to_torch.py"):
            for path in (folder / "ckpt").rglob(pattern):
                path.unlink()
        load_dir, tag = find_checkpoint(folder / "ckpt")
        facts = json.loads((folder / "case.json").read_text())
        facts = {
            "name": case.name, "note": case.note, "kind": case.kind, "model": case.model,
            "topology": {"pp": case.pp, "tp": case.tp, "dp": case.dp, "ep": case.ep}, "stage": case.stage,
            "num_experts": EXPERTS if case.kind in ("moe", "tensor_moe", "autoep") else 0, "world_size": case.world,
            "precision": case.dtype, "optimizer": "adamw", "seed": seed, "global_batch": GLOBAL_BATCH,
            "deepspeed_version": deepspeed.__version__, "torch_version": torch.__version__,
            "load_dir": str(load_dir.relative_to(folder)), "tag": tag,
            **check_case(case, folder, logs, facts, load_dir, tag), **facts,
        }
    except BaseException:
        shutil.rmtree(folder)
        raise
    (folder / "case.json").write_text(compact_json(facts))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return f"{size >> 10} KiB, {time.monotonic() - started:.0f} s, {facts['deepspeed_answers']}"


def compact_json(facts: dict) -> str:
    """Indented JSON with lists of numbers on one line, since the ranks' shapes would fill pages otherwise."""
    text = json.dumps(facts, indent=1)
    return re.sub(r"\[[\s\d,.e+-]*\]", lambda m: re.sub(r"\s+", " ", m[0]).replace("[ ", "[").replace(" ]", "]"),
                  text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "testdata" / "model_parallel")
    parser.add_argument("--case", default="all", metavar="NAMES", help="names, separated by commas, or 'all'")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--logs", type=pathlib.Path, help="keep the ranks' logs in this folder")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for case in CASES:
            print(f"{case.name:26} {case.kind:18} pp{case.pp} tp{case.tp} dp{case.dp} ep{case.ep}, "
                  f"stage {case.stage}, {case.dtype}" + (f": {case.note}" if case.note else ""))
        return 0
    by_name = {case.name: case for case in CASES}
    names = list(by_name) if arguments.case == "all" else arguments.case.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    return make_each(names, arguments.logs,
                     lambda name, logs: make_case(by_name[name], out, arguments.seed, logs))


if __name__ == "__main__":
    sys.exit(main())
