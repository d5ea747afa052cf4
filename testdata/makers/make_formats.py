#!/usr/bin/env python3
"""Makes testdata/formats: small files of every container format, written by torch, safetensors and
zipfile themselves. Needs torch, numpy and safetensors.

    testdata/makers/make_formats.py [FOLDER]
"""

import json
import math
import pathlib
import sys
import zipfile

import numpy
import torch
from safetensors.torch import save_file

TYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
    "float8_e8m0fnu int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64 complex128"
).split()


def counting(count, name):
    """`count` elements of a type, with distinct bytes where the type allows."""
    dtype = getattr(torch, name)
    if name == "bool":
        return torch.arange(count) % 2 == 0
    raw = torch.arange(1, count * dtype.itemsize + 1, dtype=torch.int64).to(torch.uint8)
    return raw.view(dtype)


def rich():
    """One object with every tensor form that a checkpoint can hold."""
    flat = torch.arange(24, dtype=torch.float32)
    parameter = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    marked = torch.nn.Parameter(torch.tensor([5.0, 6.0]))
    marked.ds_id = 7
    tagged = torch.tensor([8, 9], dtype=torch.int32)
    tagged.note = "kept"
    return {
        "types": {name: counting(3, name) for name in TYPES},
        "flat": flat,
        "view": flat[6:18].view(3, 4),
        "transposed": flat[6:18].view(3, 4).t(),
        "strided": flat[1::5],
        "expanded": torch.tensor([2.5]).expand(4),
        "tied": flat,
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(-2.5),
        "step": torch.tensor(12, dtype=torch.int64),
        "one_bf16": torch.tensor([1.5], dtype=torch.bfloat16),
        "one_fp16": torch.tensor([[-0.25]], dtype=torch.float16),
        "parameter": parameter,
        "marked": marked,
        "tagged": tagged,
        "size": torch.Size([2, 3]),
        "numpy": numpy.float64(0.5),
        "plain": {"int": 3, "float": 1.25, "none": None, "text": "é", "bool": True},
    }


def main():
    root = pathlib.Path(__file__).resolve().parents[1] / "formats"
    if len(sys.argv) > 1:
        root = pathlib.Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)

    torch.save(rich(), root / "rich.pt")
    with open(root / "rich_stream.pt", "wb") as stream:
        torch.save(rich(), stream)
    torch.save(rich(), root / "rich_legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"w": torch.arange(4.0), "n": 5}, root / "small.pt")
    torch.save(
        {"w": torch.arange(4.0), "n": 5},
        root / "small_legacy.pt",
        _use_new_zipfile_serialization=False,
    )
    torch.save(torch.view_as_complex(torch.ones(2, 2)).conj(), root / "conjugate.pt")
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), root / "torchscript.pt")

    tensors = {f"{name}.{i}": counting(2 + i, name) for name in TYPES[:-1] for i in range(2)}
    tensors["scalar"] = torch.tensor(1.0)
    tensors["empty"] = torch.empty(0, 4)
    tensors["é \"quoted\" \\ \n\x01"] = torch.ones(1)
    save_file(tensors, root / "types.safetensors", {"format": "pt"})
    save_file({"w": torch.arange(4.0)}, root / "small.safetensors")
    save_file({}, root / "none.safetensors")

    # Elements of every floating type, spread over all bit patterns, with their values.
    scalars, values = {}, {}
    for name in [name for name in TYPES if name.startswith(("float", "bfloat"))]:
        dtype = getattr(torch, name)
        codes = torch.arange(0, 256, 3, dtype=torch.int64)
        if dtype.itemsize == 1:
            flat = codes.to(torch.uint8).view(dtype)
        elif dtype.itemsize == 2:
            codes = torch.cat([codes * 257, torch.tensor([1, 0x7C00, 0xFC00, 0x7F80, 0xFF80, 0x7FFF])])
            flat = codes.to(torch.int32).to(torch.int16).view(dtype)
        else:
            flat = torch.tensor([0.1, -3.5, float("inf"), float("nan")], dtype=dtype)
        scalars[name] = [flat[i] for i in range(len(flat))]
        items = [element.item() for element in scalars[name]]
        values[name] = [item if math.isfinite(item) else str(item) for item in items]
    torch.save(scalars, root / "scalars.pt")
    (root / "scalars.json").write_text(json.dumps(values) + "\n")

    with zipfile.ZipFile(root / "stored.zip", "w") as archive:
        archive.comment = b"a comment"
        archive.writestr("top/one", b"one")
        archive.writestr("top/two", b"")
    with zipfile.ZipFile(root / "deflated.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("top/one", b"one" * 100)

    # The tensors in Python, as the truth for the tests: type, shape and bytes of each.
    truth = {}
    for name, value in list(rich().items()) + list(rich()["types"].items()):
        if isinstance(value, torch.Tensor):
            raw = value.detach().contiguous().flatten().view(torch.uint8)
            truth[name] = {
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
                "stride": list(value.stride()),
                "offset": value.storage_offset(),
                "requires_grad": value.requires_grad,
                "bytes": bytes(raw.tolist()).hex(),
            }
    (root / "rich.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main()
