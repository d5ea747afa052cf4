#!/usr/bin/env python3
"""Compare what a converter wrote with what bench_checkpoint.py made the checkpoint of.

    bench_check.py weights FOLDER [OTHER] --params 400M [--dtype float32|bfloat16]
    bench_check.py universal FOLDER [OTHER] --params 400M --stage 2

Weights, and those in OTHER, are compared bit for bit. So are universal checkpoints; and all that is in the
files of OTHER besides has to be in those of FOLDER.

Needs torch, and safetensors for .safetensors files.
"""
import argparse
import functools
import pathlib

import torch

from bench_checkpoint import STATES, STEPS, LossScaler, decoder_shapes, parameter_values, starts
from bench_count import parse_count


class Weights:
    """The tensors in a folder of .bin or .safetensors files, read one by one."""

    def __init__(self, folder):
        self.getters = {}
        for path in sorted(pathlib.Path(folder).iterdir()):
            if path.suffix == ".bin":
                tensors = torch.load(path, weights_only=True, mmap=True)
                for name in tensors:
                    self.add(name, functools.partial(tensors.__getitem__, name))
            elif path.suffix == ".safetensors":
                from safetensors import safe_open
                tensors = safe_open(path, "pt")
                for name in tensors.keys():
                    self.add(name, functools.partial(tensors.get_tensor, name))

    def add(self, name, getter):
        if name in self.getters:
            raise SystemExit(f"{name}: in two files")
        self.getters[name] = getter


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def check_weights(folder, shapes, dtype=torch.float32, other=None):
    """Compares weights with what they were written from, and with the weights in another folder."""
    offsets = starts(shapes)
    for weights in [folder] + ([other] if other else []):
        getters = Weights(weights).getters
        if getters.keys() != shapes.keys():
            raise SystemExit(f"{weights}: names differ: {sorted(getters.keys() ^ shapes.keys())}")
        for name, getter in getters.items():
            if not same(getter(), parameter_values(offsets[name], shapes[name]).to(dtype)):
                raise SystemExit(f"{weights}: {name}: wrong type, shape or values")


def files_of(folder):
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file()}


def load(path):
    return torch.load(path, weights_only=False, mmap=True)


def same_object(a, b):
    """Compares values as torch.load gives them: types, order of keys and bits are those of the other."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return same(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_object(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_object, a, b))
    if isinstance(a, LossScaler):
        return vars(a) == vars(b)
    return a == b


def check_universal(folder, shapes, stage, other=None):
    """Compares a universal checkpoint with what it was written from, and with the one in another folder."""
    offsets, extra = starts(shapes), {"zero/optimizer_state.pt"}
    keys = [*STATES, "step"] if stage == 2 else [*STATES]
    expected = {f"zero/{name}/{key}.pt" for name in shapes for key in keys}
    for root in [folder] + ([other] if other else []):
        def require(is_right, name):
            if not is_right:
                raise SystemExit(f"{root}: {name}: wrong type, shape or values")
        found = {name for name in files_of(root) if name.startswith("zero/")}
        if found != expected | extra:
            raise SystemExit(f"{root}: files differ: {sorted(found ^ (expected | extra))}")
        for name, shape in shapes.items():
            for state in STATES:
                path = f"zero/{name}/{state}.pt"
                value, right = load(root / path), parameter_values(offsets[name], shape, state)
                if stage == 2:
                    require(type(value) is dict and list(value) == ["cat_dim", "param"] and value["cat_dim"] == 0, path)
                    value = value["param"]
                else:  # plain stage 3 has no shapes
                    right = right.flatten()
                require(same(value, right), path)
            if stage == 2:
                path = f"zero/{name}/step.pt"
                require(same(load(root / path), torch.tensor(float(STEPS))), path)
    if not other:
        return
    if files_of(folder) != files_of(other):
        raise SystemExit(f"{other}: files differ: {sorted(files_of(folder) ^ files_of(other))}")
    # At stage 3 DeepSpeed keeps the flat tensors of rank 0 in optimizer_state.pt, which nothing reads.
    for name in sorted(files_of(folder) - expected - (extra if stage == 3 else set())):
        if not same_object(load(folder / name), load(other / name)):
            raise SystemExit(f"{other}: {name}: differs from that in {folder}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("weights", "universal"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("other", type=pathlib.Path, nargs="?")
    parser.add_argument("--params", type=parse_count, default=400_000_000)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="weights")
    parser.add_argument("--stage", type=int, choices=(2, 3), default=2, help="universal")
    options = parser.parse_args()

    torch.set_num_threads(1)
    shapes = decoder_shapes(options.params)
    if options.kind == "universal":
        check_universal(options.folder, shapes, options.stage, options.other)
    else:
        check_weights(options.folder, shapes, getattr(torch, options.dtype), options.other)


if __name__ == "__main__":
    main()
