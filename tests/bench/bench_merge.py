#!/usr/bin/env python3
"""Write a base model and a LoRA adapter of it, of any size, and check what became of both.

    bench_merge.py write FOLDER --params 400M [--rank 16]     FOLDER/base and FOLDER/adapter
    bench_merge.py check MERGED FOLDER --params 400M [--dtype float32|bfloat16]

The base has the tensors of bench_checkpoint.py's decoder in bfloat16. Every matrix of its layers has a pair of
factors, in float32 as peft keeps them. Merged weights are compared with sums of float64 products.

Needs torch and safetensors.
"""
import argparse
import json
import pathlib

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bench_checkpoint import decoder_shapes, parameter_values, starts
from bench_count import parse_count

RANK = 16
ALPHA = 32
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FRONT = "base_model.model."


def is_target(name):
    return name.split(".")[-2] in TARGETS if "." in name else False


def write(folder, params, rank):
    shapes = decoder_shapes(params)
    offsets = starts(shapes)
    for part in ("base", "adapter"):
        (folder / part).mkdir(parents=True)
    save_file({name: parameter_values(offsets[name], shape).to(torch.bfloat16) for name, shape in shapes.items()},
              folder / "base/model.safetensors", {"format": "pt"})
    (folder / "base/config.json").write_text(json.dumps({"model_type": "bench", "torch_dtype": "bfloat16"}))
    generator = torch.Generator().manual_seed(1)
    factors = {}
    for name, (rows, columns) in ((name, shape) for name, shape in shapes.items() if is_target(name)):
        module = FRONT + name.removesuffix(".weight")
        factors[module + ".lora_A.weight"] = torch.empty(rank, columns).uniform_(-0.05, 0.05, generator=generator)
        factors[module + ".lora_B.weight"] = torch.empty(rows, rank).uniform_(-0.05, 0.05, generator=generator)
    save_file(factors, folder / "adapter/adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter/adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "target_modules": TARGETS, "bias": "none",
        "fan_in_fan_out": False, "base_model_name_or_path": "bench"}))


# The error of a value rounded to nearest; sums of float64 differ by their order besides.
MOST_WRONG = {"float32": 2.0**-24 * 1.0001, "bfloat16": 2.0**-8 * 1.0001}


def check(merged, folder, params, dtype):
    shapes = decoder_shapes(params)
    with (safe_open(merged / "model.safetensors", "pt") as result, safe_open(folder / "base/model.safetensors", "pt")
          as base, safe_open(folder / "adapter/adapter_model.safetensors", "pt") as adapter):
        if set(result.keys()) != set(shapes):
            raise SystemExit(f"{merged}: names differ")
        for name in shapes:
            wanted, found = base.get_tensor(name), result.get_tensor(name)
            if is_target(name):
                down, up = (adapter.get_tensor(f"{FRONT}{name.removesuffix('.weight')}.lora_{which}.weight").double()
                            for which in "AB")
                exact = wanted.double() + ALPHA / down.shape[0] * (up @ down)
                wrong = (found.double() - exact).abs() > exact.abs() * MOST_WRONG[dtype] + 1e-12
                if wrong.any() or torch.equal(found, wanted.to(found.dtype)):
                    raise SystemExit(f"{merged}: {name}: {int(wrong.sum())} elements are not the merged ones")
            elif not torch.equal(found, wanted.to(found.dtype)):
                raise SystemExit(f"{merged}: {name}: is not the base's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("write", "check"))
    parser.add_argument("folders", type=pathlib.Path, nargs="+")
    parser.add_argument("--params", type=parse_count, default=400_000_000)
    parser.add_argument("--rank", type=int, default=RANK)
    parser.add_argument("--dtype", choices=MOST_WRONG, default="float32")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "write":
        write(options.folders[0], options.params, options.rank)
    else:
        check(*options.folders, options.params, options.dtype)


if __name__ == "__main__":
    main()
