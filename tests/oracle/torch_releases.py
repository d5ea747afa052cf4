#!/usr/bin/env python3
"""Files of each release of torch, read by the tools. torch.save has both serialisations, every element type,
views, subclasses and whole optimizers. Folders of torch.distributed.checkpoint are by 1 to 4 ranks, nested,
flattened, with frozen parameters and ranks without elements.

    scripts/python tests/oracle/torch_releases.py                          the torch of this Python
    scripts/python tests/oracle/torch_releases.py 2.3.1 2.9.1 2.15.0       these, each in an environment of its own
    scripts/python tests/oracle/torch_releases.py 1.6.0@python3.8          of another Python, 3.6 or newer
    python tests/oracle/torch_releases.py --write FOLDER                   what a release writes; needs torch alone

Each value that comes out must have the type, shape and bits that the release itself held; `verify` and `scan` find
nothing. The names in pickles and the details of zips are printed for each release, so that a new one is seen.
Releases before 2.3 write files of torch.save only. The writing half runs in any Python since 3.6.
"""
import argparse
import collections
import ctypes
import hashlib
import io
import json
import os
import pathlib
import pickletools
import socket
import subprocess
import sys
import tempfile
import zipfile

TYPES = ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 complex32 "
         "uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu").split()
WORLDS = (1, 2, 3, 4)


# ---- with the release's own torch


def bytes_of(tensor):
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size()) if tensor.numel() else b""


def digest(tensor):
    tensor = tensor.detach().contiguous()
    return [str(tensor.dtype).replace("torch.", ""), list(tensor.shape), hashlib.sha256(bytes_of(tensor)).hexdigest()]


def tensor_of_bits(dtype, size):
    """Element types that a release has by name only give None."""
    import torch
    try:
        tensor = torch.zeros(3, size // 3 // torch.zeros(1, dtype=dtype).element_size(), dtype=dtype)
    except RuntimeError:
        return None
    bits = bytes([0, 1] * (size // 2) if dtype == torch.bool else range(size))
    ctypes.memmove(tensor.data_ptr(), bits, size)
    return tensor


def digests(tensors):
    return {name: digest(tensor) for name, tensor in tensors.items()}


def can_save(tensor, **options):
    """Releases have types that they cannot save yet."""
    import torch
    try:
        torch.save(tensor, io.BytesIO(), **options)
    except (KeyError, RuntimeError):
        return False
    return True


def write_files(folder, truth):
    import torch
    torch.manual_seed(3)
    types = {}
    for name in TYPES:
        tensor = tensor_of_bits(getattr(torch, name), 48) if hasattr(torch, name) else None
        if tensor is not None:
            types[f"of.{name}"] = tensor
    base = torch.arange(60, dtype=torch.float32).view(6, 10)
    views = {"base": base, "rows": base[2:4], "columns": base[:, 3:5], "turned": base.t(), "every": base[::2, 1::3],
             "one": base[3, 4], "none": torch.zeros(3, 0), "scalar": torch.tensor(2.5), "alone": base[5].clone()}
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Embedding(5, 2))
    wrapped = {"parameter": torch.nn.Parameter(base[:2].clone()), "buffer": torch.nn.Buffer(base[0].clone())
               if hasattr(torch.nn, "Buffer") else base[0].clone(), "strided": base.as_strided((2, 3), (1, 2), 4)}
    for name, tensors in {"types": types, "views": views, "module": layers.state_dict(), "wrapped": wrapped}.items():
        for form, options in (("", {}), ("_legacy", {"_use_new_zipfile_serialization": False})):
            saved = {key: value for key, value in tensors.items() if can_save(value, **options)}
            torch.save(saved, folder / f"{name}{form}.bin", **options)
            truth[f"{name}{form}.bin"] = digests(saved)


def rank_main(rank, world, port, folder):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict,
                                                         get_optimizer_state_dict)
    from torch.distributed.device_mesh import init_device_mesh
    try:
        from torch.distributed.tensor import Shard, distribute_tensor
    except ImportError:
        from torch.distributed._tensor import Shard, distribute_tensor  # until torch 2.4
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(11)
    net = torch.nn.Sequential(torch.nn.Embedding(7, 5), torch.nn.Linear(5, 3), torch.nn.Linear(3, 1))
    net[1].requires_grad_(False)
    net.register_buffer("counts", torch.arange(4))
    mesh = init_device_mesh("cpu", (world,))
    fsdp = world > 1 and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)  # on the CPU
    if fsdp:
        from torch.distributed.fsdp import fully_shard
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01)
    for step in range(2):
        net(torch.tensor([[1, 2, 3], [4, 5, rank + step]]) % 7).sum().backward()
        if world > 1 and not fsdp:
            for parameter in net.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
    model = get_model_state_dict(net)
    if world > 1 and not fsdp:
        model = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in model.items()}
    forms = {"nested": None}
    if "flatten_optimizer_state_dict" in StateDictOptions.__dataclass_fields__:  # since torch 2.4
        forms["flat"] = StateDictOptions(flatten_optimizer_state_dict=True)
    for form, options in forms.items():
        states = get_optimizer_state_dict(net, optimizer, options=options)
        dcp.save({"model": model, "optim": states}, checkpoint_id=str(folder / f"dcp_{form}_w{world}"))
    whole = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in model.items()}
    if rank == 0:
        (folder / f"dcp_w{world}.json").write_text(json.dumps(digests(whole)))
    dist.destroy_process_group()


def write(folder):
    """Everything, with truth.json: by file or folder, of each tensor its type, shape and a hash of its bits."""
    import torch
    import torch.multiprocessing as mp
    truth = {}
    write_files(folder, truth)
    has_dcp = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 3)
    for world in WORLDS if has_dcp else ():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        mp.spawn(rank_main, (world, port, folder), nprocs=world)
        expected = json.loads((folder / f"dcp_w{world}.json").read_text())
        for path in folder.glob(f"dcp_*_w{world}"):
            truth[path.name] = expected
    (folder / "truth.json").write_text(json.dumps({"torch": torch.__version__, "tensors": truth}))


# ---- with any torch


def pickles_in(path):
    """The bytes of each pickle of a file of torch.save or of DCP."""
    data = path.read_bytes()
    if path.name == ".metadata":
        return [data]
    if zipfile.is_zipfile(path) and data.startswith(b"PK"):
        with zipfile.ZipFile(path) as archive:
            return [archive.read(name) for name in archive.namelist() if name.endswith("data.pkl")]
    return []


def named_in(pickle):
    """Globals that a pickle names."""
    names, texts, memo = set(), [], {}
    for opcode, argument, _ in pickletools.genops(pickle):
        if opcode.name == "GLOBAL":
            names.add(argument.replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            names.add(".".join(texts[-2:]))
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = texts[-1] if texts else ""
        elif opcode.name.endswith("PUT"):
            memo[int(argument)] = texts[-1] if texts else ""
        elif opcode.name.endswith("GET"):
            texts.append(memo.get(int(argument), ""))
        elif isinstance(argument, str):
            texts.append(argument)
        else:
            texts.append("")  # something other than text
    return names


def zip_details(path):
    if not path.read_bytes().startswith(b"PK"):
        return set()
    with zipfile.ZipFile(path) as archive:
        found = set()
        for entry in archive.infolist():
            name = entry.filename.split("/", 1)[-1]
            kind = "data/N" if name.startswith("data/") else name
            found.add(f"{kind} method {entry.compress_type} flags {entry.flag_bits:#x} made by {entry.create_version} "
                      f"needs {entry.extract_version}")
        return found


def tool(*arguments):
    return subprocess.run([str(pathlib.Path(os.environ["DSCKPT_BIN"]) / arguments[0]), *map(str, arguments[1:])],
                          capture_output=True, text=True)


def judge(folder):
    """The faults, a line each, and the details of the pickles and zips."""
    import torch
    facts = json.loads((folder / "truth.json").read_text())
    wrong, names, details = [], set(), set()
    for name, expected in facts["tensors"].items():
        out = folder / "out" / name
        done = tool("zero-to-fp32", folder / name, out, "--dtype", "keep")
        if done.returncode:
            wrong.append(f"{name}: exit {done.returncode}: {done.stderr.strip()}")
            continue
        got = digests(torch.load(out / "pytorch_model.bin", weights_only=True))
        for tensor in sorted({*got, *expected}):
            if got.get(tensor) != expected.get(tensor):
                wrong.append(f"{name}: {tensor}: {got.get(tensor)} for {expected.get(tensor)}")
        for command in ("verify", "scan"):
            done = tool("ckpt-inspect", command, folder / name)
            if done.returncode:
                wrong.append(f"{name}: {command}: {done.stdout}{done.stderr}")
        if name.startswith("dcp_"):
            for tool_arguments in (["reshard", folder / name, out / "zero", "--dp", "2", "--ds-config", config(folder)],
                                   ["to-universal", "--input_folder", folder / name, "--output_folder", out / "universal"],
                                   ["to-dcp", folder / name, out / "dcp", "--dp", "2"]):
                done = tool(*tool_arguments)
                if done.returncode:
                    wrong.append(f"{name}: {tool_arguments[0]}: {done.stderr.strip()}")
        for path in [folder / name] if (folder / name).is_file() else sorted((folder / name).iterdir()):
            details |= zip_details(path) if path.suffix != ".distcp" else set()
            for pickle in pickles_in(path):
                names |= named_in(pickle)
    return facts["torch"], wrong, names, details


def config(folder):
    path = folder / "ds_config.json"
    path.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2},
                                "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}}))
    return path


def write_with(release, folder):
    """Makes an environment with that release, for as long as it writes."""
    release, _, other = release.partition("@")
    environment = folder / "environment"
    subprocess.run([other or sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    is_old = [int(number) for number in release.split(".")[:2]] < [2, 4]
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-cache-dir", "numpy<2" if is_old else "numpy",
                    "setuptools", f"torch=={release}"], check=True)
    (folder / "files").mkdir()
    subprocess.run([python, __file__, "--write", folder / "files"], check=True)
    subprocess.run(["rm", "-rf", environment], check=True)
    return folder / "files"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("releases", nargs="*")
    options = parser.parse_args()
    if options.write:
        write(options.write)
        return 0
    failed = False
    seen = collections.defaultdict(list)
    for release in options.releases or [None]:
        with tempfile.TemporaryDirectory() as scratch:
            if release:
                try:
                    folder = write_with(release, pathlib.Path(scratch))
                except subprocess.CalledProcessError as error:
                    print(f"torch {release}: {error}", flush=True)
                    failed = True
                    continue
            else:
                folder = pathlib.Path(scratch)
                subprocess.run([sys.executable, __file__, "--write", folder], check=True)
            version, wrong, names, details = judge(folder)
        print(f"torch {version}: {'; '.join(wrong) or 'all right'}", flush=True)
        failed = failed or bool(wrong)
        for each in names | details:
            seen[each].append(version.partition("+")[0])
    for each, versions in sorted(seen.items()):
        print(f"  {each}: {', '.join(versions)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
