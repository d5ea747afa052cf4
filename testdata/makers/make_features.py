#!/usr/bin/env python3
"""Make checkpoints of DeepSpeed's features that need a GPU, on the CPU.

    make_features.py --list
    make_features.py --out testdata/programs --case lamb_z0
    PYTHONPATH=FOLDER make_features.py --out SCRATCH --case onebit_adam_z0      # with DeepSpeed 0.18.2 in FOLDER

The saved data and the code that writes it are DeepSpeed's own. torch replaces only the parts that need the GPU:
the kernel of LAMB, the quantizer of ZeRO++, and the collective of single bits. Cases have the form of
make_programs.py's, with the same facts. --list marks cases that need release 0.18.2
(`pip install --no-deps --target FOLDER deepspeed==0.18.2`), since 0.19 has no 1-bit optimizers and no MiCS.
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
import types

import make_checkpoints  # noqa: F401  it sets the environment, so it comes first
from make_checkpoints import DEFAULT_SEED, batch, free_port, live_masters, live_module, run_forked, start_distributed
from make_programs import ROOT, trim, versions


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    stage: int
    optimizer: dict
    dtype: str = "bf16"
    world: int = 2
    zero: dict = dataclasses.field(default_factory=dict)
    frozen: bool = False
    steps: int = 5
    init: str = ""  # the context that makes the model: a class of deepspeed.zero
    release: str = ""


def one_bit(kind, **options):
    return {"type": kind, "params": {"lr": 3e-3, "comm_backend_name": "nccl", "cuda_aware": False, **options}}


ADAM = {"type": "AdamW", "params": {"lr": 3e-3, "torch_adam": True}}
CASES = [
    Case("onebit_adam_z0", 0, one_bit("OneBitAdam", freeze_step=2), "fp16", release="0.18.2"),
    Case("onebit_adam_fp32_z0", 0, one_bit("OneBitAdam", freeze_step=2), "fp32", release="0.18.2"),
    Case("zero_one_adam_z0", 0, one_bit("ZeroOneAdam", var_freeze_step=2), "fp16", release="0.18.2"),
    Case("onebit_lamb_z0", 0, one_bit("OneBitLamb", freeze_step=2), "fp16", release="0.18.2"),
    Case("lamb_z0", 0, {"type": "Lamb", "params": {"lr": 3e-3}}, "fp16"),
    Case("lamb_z2", 2, {"type": "Lamb", "params": {"lr": 3e-3}}),
    Case("hpz_z3", 3, ADAM, world=4, zero={"zero_hpz_partition_size": 2}),
    Case("quantized_weights_z3", 3, ADAM, zero={"zero_quantized_weights": True}),
    Case("quantized_frozen_z3", 3, ADAM, zero={"zero_quantized_nontrainable_weights": True}, frozen=True,
         steps=0),
    Case("mics_z3", 3, ADAM, world=4, zero={"mics_shard_size": 2}, init="MiCS_Init", release="0.18.2"),
]


class OneBitBackend:
    """deepspeed.runtime.comm.nccl.NcclBackend in torch: the mean of the ranks' signs, with the errors kept."""

    def __init__(self, mpu=None):
        import torch
        self.size = torch.distributed.get_world_size()
        self.rank = torch.distributed.get_rank()

    def compressed_allreduce(self, buffer, worker_error, server_error, local_rank):
        import torch
        flat = torch.zeros_like(worker_error)
        flat[:buffer.numel()] = buffer.flatten().float()
        flat += worker_error
        signs = flat.sign() * flat.abs().mean()
        worker_error.copy_(flat - signs)
        torch.distributed.all_reduce(signs)
        chunk = signs.chunk(self.size)[self.rank] / self.size + server_error
        server_error.copy_(chunk - chunk.sign() * chunk.abs().mean())
        buffer.copy_((signs / self.size)[:buffer.numel()].view_as(buffer))
        return buffer


def lamb(parameter, copy, exp_avg, exp_avg_sq, gradient, rate, beta1, beta2, most, least, eps, scale, step, mode,
         bias_correction, decay):
    """fused_lamb_cuda.lamb in torch."""
    import torch
    parameter = parameter.detach()
    gradient = gradient.float() / scale
    exp_avg.mul_(beta1).add_(gradient, alpha=1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    update = exp_avg / (exp_avg_sq.sqrt() + eps) + decay * parameter
    ratio = (parameter.norm() / update.norm().clamp(min=1e-12)).clamp(least, most)
    parameter.sub_(update * ratio * rate)
    if copy.numel():
        copy.data.copy_(parameter)
    return torch.as_tensor(ratio)


class Quantizer:
    """CUDAQuantizer in torch: int8, one scale for each group of elements."""

    def quantize(self, tensor, groups=None):
        import torch
        flat = tensor.detach().float().flatten()
        scale = (flat.abs().max() / 127).clamp(min=1e-12).reshape(1)
        return (flat / scale).round().to(torch.int8).view(tensor.shape), scale

    def dequantize(self, tensor, scale, dtype=None):
        wide = tensor.float() * scale.float()[0]
        return wide.to(dtype) if dtype is not None else wide


def all_gather_coalesced(outputs, inputs, group=None, async_op=False):
    """gloo has no coalescing manager, by which MiCS gathers."""
    import torch
    for output, input_ in zip(outputs, inputs, strict=True):
        torch.distributed.all_gather_into_tensor(output, input_, group=group)
    return types.SimpleNamespace(wait=lambda: None)


def stand_in(case):
    """Replaces the parts that need a GPU."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.zero import partition_parameters
    get_accelerator().is_fp16_supported = lambda: True
    sys.modules["deepspeed.runtime.comm.nccl"] = types.SimpleNamespace(NcclBackend=OneBitBackend)
    partition_parameters.CUDAQuantizer = Quantizer
    for module in ("deepspeed.comm", "deepspeed.comm.comm"):
        sys.modules[module].all_gather_coalesced = all_gather_coalesced
    if "lamb" in case.name:
        from deepspeed.ops.op_builder import FusedLambBuilder
        FusedLambBuilder.load = lambda self, verbose=True: types.SimpleNamespace(lamb=lamb)


def build(case, config, seed):
    import contextlib

    import deepspeed
    import torch

    class Net(torch.nn.Module):

        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(37, 8)
            self.still = torch.nn.Linear(8, 8)
            self.up = torch.nn.Linear(8, 11)
            self.head = torch.nn.Linear(11, 37, bias=False)
            self.register_buffer("running", torch.arange(5.))

        def forward(self, tokens, labels):
            hidden = self.up(self.still(self.embed(tokens)))
            logits = self.head(torch.nn.functional.gelu(hidden))
            return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    torch.manual_seed(seed)
    context = (getattr(deepspeed.zero, case.init)(config_dict_or_path=config) if case.init
               else contextlib.nullcontext())
    with context:
        model = Net()
    if case.frozen:
        model.still.requires_grad_(False)
    return model


def work(rank, world, port, case, folder, seed):
    import deepspeed
    import torch
    from safetensors.torch import save_file
    start_distributed(rank, world, port)
    stand_in(case)
    os.chdir(folder)
    config = {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 12 // world, "steps_per_print": 10**9,
              "optimizer": case.optimizer, "zero_allow_untested_optimizer": True,
              "zero_optimization": {"stage": case.stage, **case.zero},
              "bf16": {"enabled": case.dtype == "bf16"},
              "fp16": {"enabled": case.dtype == "fp16", "initial_scale_power": 8}}
    if case.stage == 3:
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    model = build(case, config, seed)
    engine, *_ = deepspeed.initialize(model=model, config=config,
                                      model_parameters=[p for p in model.parameters() if p.requires_grad])
    for step in range(case.steps):
        engine.backward(engine(*batch(step, rank, world, seed, 12)))
        engine.step()
    masters, module = live_masters(engine, case.stage, world), live_module(engine)
    engine.save_checkpoint("ckpt")
    if rank == 0:
        truth = {name: masters.get(f"{name}|fp32", value) for name, value in module.items()}
        os.makedirs("expected")
        save_file({name: value.contiguous() for name, value in truth.items()}, "expected/truth.safetensors")
        # A rank's compression error belongs to the optimizer, but is not a state of a parameter.
        states = {key: value for key, value in masters.items() if not key.endswith(("|fp32", "_error"))}
        save_file({key: value.contiguous() for key, value in states.items()}, "expected/states.safetensors")
    torch.distributed.barrier()


def make_case(case, out, logs, seed):
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port = free_port()
    error = run_forked(work, logs, [(rank, case.world, port, case, folder, seed) for rank in range(case.world)],
                       timeout=100)
    if error:
        raise RuntimeError(error)
    facts = {"name": case.name, "stage": case.stage, "world_size": case.world, "precision": case.dtype, "seed": seed,
             "versions": versions()}
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")
    trim(folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "testdata" / "programs")
    parser.add_argument("--case", default="all", metavar="NAMES", help="names, separated by commas, or 'all'")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for case in CASES:
            print(case.name + (f" (DeepSpeed {case.release})" if case.release else ""))
        return 0
    wanted = arguments.case.split(",")
    failed = 0
    with tempfile.TemporaryDirectory() as logs:
        for case in CASES:
            if arguments.case != "all" and case.name not in wanted:
                continue
            if case.release not in ("", versions()["deepspeed"]):
                print(f"{case.name}: needs DeepSpeed {case.release}", file=sys.stderr)
                continue
            try:
                folder = make_case(case, arguments.out.resolve(), pathlib.Path(logs) / case.name, arguments.seed)
                size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                print(f"{case.name}: {size >> 10} KiB", flush=True)
            except Exception as error:
                failed += 1
                print(f"{case.name}: FAILED\n{str(error)[-1800:]}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
