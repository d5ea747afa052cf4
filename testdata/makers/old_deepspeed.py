#!/usr/bin/env python3
"""Releases of DeepSpeed in their own folders, with replacements that let them run on a CPU under today's torch.

    old_deepspeed.py 0.7.7 0.12.6       installs them into build/releases/VERSION, beside the torch of this Python

start() starts a program under a release. The program calls prepare() before it imports deepspeed, and adapt() after.
Nothing that decides the content of a checkpoint is changed. Replaced are kernels (FusedAdam's, in Python), streams and
devices of CUDA, names that torch and numpy have dropped, and the backend, which is gloo.
"""
import argparse
import collections.abc
import contextlib
import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[2]
RELEASES = pathlib.Path(os.environ.get("DSCKPT_RELEASES", ROOT / "build" / "releases"))


def number(version):
    """0.16.4 as (0, 16, 4)."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:3])


def own_release():
    """The release that this Python already has."""
    from importlib.metadata import version
    return version("deepspeed")


# --- installing

def environment(version):
    """The environment of a process that runs under the release."""
    paths = [str(RELEASES / version)] if version != own_release() else []
    paths += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0",
            "DS_SKIP_CUDA_CHECK": "1", "DS_IGNORE_CUDA_DETECTION": "1", "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


def pip_install(version, *packages):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-compile",
                    "--target", RELEASES / version, *packages], env=environment(version), check=True)


def install(version):
    """Installs it into RELEASES/version, unless it is there. Dependencies are this Python's, except for old releases'
    needs."""
    folder = RELEASES / version
    if version == own_release() or (folder / "deepspeed").is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if number(version) < (0, 14):
        pip_install(version, "pydantic<2")
        for name in ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"):  # their CPU_Accelerator imports them
            (folder / f"{name}.py").write_text("")
    pip_install(version, f"deepspeed=={version}")


def start(version, program, *arguments, **options):
    """Runs a Python program under the release, which is installed first; `options` go to subprocess.run."""
    install(version)
    return subprocess.run([sys.executable, program, *map(str, arguments)], env=environment(version), **options)


# --- before deepspeed is imported

def add_missing(owner, **values):
    for name, value in values.items():
        if name not in vars(owner):
            setattr(owner, name, value)


def add_module(name, **values):
    if importlib.util.find_spec(name) is None:
        sys.modules[name] = types.SimpleNamespace(**values)


def keep_old_names():
    """Restores names of Python, numpy and torch that have been dropped."""
    import numpy
    import torch
    import torch.distributed as dist
    import torch.distributed.elastic.agent.server.api as agent
    add_missing(collections, Mapping=collections.abc.Mapping, Sequence=collections.abc.Sequence)
    add_missing(numpy, float=float, int=int, bool=bool, object=object, BUFSIZE=8192)
    add_missing(agent, log=agent.logger, _get_socket_with_port=lambda: None)
    add_missing(dist, _all_gather_base=dist.all_gather_into_tensor, _reduce_scatter_base=dist.reduce_scatter_tensor)
    add_module("torch._six", inf=float("inf"), string_classes=(str, bytes))
    add_module("tensorboardX", SummaryWriter=None)


def detached(tensor):
    import torch
    return tensor.detach() if torch.is_tensor(tensor) else tensor


def gather_into_views():
    """In today's torch no collective can write to one of several views that split() made."""
    import torch.distributed as dist
    for name in ("all_gather_into_tensor", "_all_gather_base"):
        plain = getattr(dist, name)
        setattr(dist, name, lambda *args, plain=plain, **options: plain(
            *map(detached, args), **{key: detached(value) for key, value in options.items()}))


class Idle:
    """A stream or an event of a device without any."""
    cuda_stream = 0

    def __init__(self, *args, **options):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False

    def nothing(self, *args):
        return None

    synchronize = wait = wait_event = wait_stream = record = nothing

    def record_event(self, *args):
        return Idle()

    def query(self):
        return True

    def elapsed_time(self, *args):
        return 1.0


def without_device(place):
    """The CPU in place of a CUDA device, in any notation."""
    import torch
    if isinstance(place, torch.device):
        return torch.device("cpu") if place.type == "cuda" else place
    if isinstance(place, bool) or not isinstance(place, (int, str)):
        return place
    return "cpu" if isinstance(place, int) or place.startswith("cuda") else place


def on_cpu(plain):
    def call(*args, **options):
        options.pop("pin_memory", None)
        return plain(*args, **{key: without_device(value) if key == "device" else value
                               for key, value in options.items()})
    return call


def moved_to_cpu(plain):
    def call(self, *args, **options):
        return plain(self, *map(without_device, args), **{key: without_device(value) for key, value in options.items()})
    return call


def be_cuda():
    """Before 0.9.3 CUDA is the only accelerator."""
    import torch
    cuda = torch.cuda
    cuda.Stream = cuda.Event = cuda.stream = cuda.device = Idle
    cuda.current_stream = cuda.default_stream = lambda *args, **options: Idle()
    cuda.current_device = lambda: "cpu"
    cuda.device_count = lambda: 1
    cuda.is_available = cuda.is_bf16_supported = lambda *args: True
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
                 "max_memory_cached", "reset_max_memory_cached", "reset_max_memory_allocated", "empty_cache",
                 "reset_peak_memory_stats", "synchronize", "set_device", "manual_seed", "manual_seed_all"):
        setattr(cuda, name, lambda *args, **options: 0)
    cuda.memory_stats = lambda *args: {"num_alloc_retries": 0}
    cuda.get_rng_state = lambda *args: torch.get_rng_state()
    cuda.get_device_capability = lambda *args: (8, 0)
    cuda.get_device_name = lambda *args: "cpu"
    cuda.get_device_properties = lambda *args: types.SimpleNamespace(total_memory=1 << 34, name="cpu", major=8, minor=0)
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *args: 0
    for name in ("Float", "Half", "BFloat16", "Byte", "Int", "Long", "Double"):
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    torch.Tensor.cuda = torch.Tensor.pin_memory = torch.nn.Module.cuda = lambda self, *args, **options: self
    for name in ("empty", "zeros", "ones", "full", "tensor", "arange", "empty_like", "zeros_like", "ones_like", "randn",
                 "rand"):
        setattr(torch, name, on_cpu(getattr(torch, name)))
    for owner in (torch.Tensor, torch.nn.Module):
        owner.to = moved_to_cpu(owner.to)
    from torch.utils import cpp_extension
    cpp_extension.CUDA_HOME = "/usr/local/cuda"  # nothing is built there


def prepare(version):
    """Must be called before deepspeed is imported."""
    import torch
    keep_old_names()
    gather_into_views()
    torch.Tensor.record_stream = lambda self, *args: None
    if number(version) < (0, 9, 3):
        be_cuda()


# --- with deepspeed imported

def adam(chunk, overflow, lists, lr, beta1, beta2, eps, step, adam_w, bias_correction, weight_decay, *rest):
    """multi_tensor_adam of csrc/adam: one step of every tensor in `lists`."""
    rates = (1 - beta1**step, 1 - beta2**step) if bias_correction else (1, 1)
    for gradient, master, average, square in zip(*lists):
        gradient = gradient.float()
        if not adam_w:
            gradient = gradient + weight_decay * master.float()
        average.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = (average / rates[0]) / ((square / rates[1]).sqrt() + eps)
        if adam_w:
            update = update + weight_decay * master.float()
        master.add_(update.to(master.dtype), alpha=-lr)


class Builder:
    """Replaces FusedAdamBuilder and UtilsBuilder."""

    def __init__(self, *args, **options):
        pass

    def load(self, verbose=True):
        import torch
        return types.SimpleNamespace(multi_tensor_adam=adam, flatten=torch._utils._flatten_dense_tensors,
                                     unflatten=torch._utils._unflatten_dense_tensors)


BUILDERS = ("FusedAdamBuilder", "UtilsBuilder")


def replace_kernels():
    import deepspeed.ops.adam.fused_adam
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("deepspeed"):
            for name in BUILDERS:
                if name in vars(module):
                    setattr(module, name, Builder)


def adapt_accelerator(version):
    """For releases since 0.8."""
    import torch
    from deepspeed.accelerator import get_accelerator
    kind = type(get_accelerator())
    create, get = kind.create_op_builder, getattr(kind, "get_op_builder", None)
    kind.create_op_builder = lambda self, name: Builder() if name in BUILDERS else create(self, name)
    kind.get_op_builder = lambda self, name: Builder if name in BUILDERS else get(self, name)
    kind.memory_stats = lambda self, *args: {"num_alloc_retries": 0}
    kind.is_fp16_supported = kind.is_bf16_supported = lambda self: True
    get_accelerator()._communication_backend_name = "gloo"
    cuda_alone = number(version) < (0, 9, 3)
    if cuda_alone or getattr(get_accelerator(), "Event", 1) is None:
        kind.Event = Idle
    if cuda_alone or getattr(get_accelerator(), "Stream", 1) is None:
        kind.Stream = Idle
        kind.stream = lambda self, stream: contextlib.nullcontext()
        kind.current_stream = kind.default_stream = lambda self, *args: Idle()
    if not cuda_alone:
        return
    kind.device_name = kind.current_device_name = kind.current_device = lambda self, *args: "cpu"
    kind.communication_backend_name = lambda self: "gloo"
    kind.on_accelerator = lambda self, tensor: True
    kind.pin_memory = lambda self, tensor, *args: tensor
    for name in ("Float", "Half", "BFloat16", "Byte", "Int", "Long", "Double"):
        setattr(kind, f"{name}Tensor", getattr(torch, f"{name}Tensor"))


def by_dtype(tensors):
    """Gradients by type; releases before 0.13 know only the types of CUDA."""
    kinds = {}
    for tensor in tensors:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    return [(str(dtype), bucket) for dtype, bucket in kinds.items()]


def adapt(version):
    """Must be called after deepspeed is imported. Checks that it is the requested release."""
    import deepspeed
    from deepspeed.runtime import engine
    if number(deepspeed.__version__) != number(version):
        raise SystemExit(f"{deepspeed.__file__} is of {deepspeed.__version__}, not {version}")
    replace_kernels()
    if importlib.util.find_spec("deepspeed.accelerator"):
        adapt_accelerator(version)
    # The all-reduce through shared memory leaves 66 MiB per rank in /dev/shm for ever, so only gloo is used.
    communication = sys.modules.get("deepspeed.comm.torch")
    if hasattr(communication, "build_shm_op"):
        communication.build_shm_op = lambda: None
    engine.DeepSpeedEngine._broadcast_model = lambda self: None  # the ranks build equal models
    for name in ("split_half_float_double_sparse", "split_half_float_double_csr", "split_half_float_double"):
        if hasattr(engine, name) and number(version) < (0, 13):
            setattr(engine, name, by_dtype)


def takes(function, option):
    return option in inspect.signature(function).parameters


def start_distributed(rank, ranks, port):
    """A process of a run with `ranks` ranks."""
    import deepspeed
    import torch
    # CROSS_* are read by DeepSpeed's checkpoint writers.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks),
                      LOCAL_RANK=str(rank), LOCAL_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), CROSS_RANK="0",
                      CROSS_SIZE="1")
    torch.set_num_threads(1)
    options = {"auto_mpi_discovery": False} if takes(deepspeed.init_distributed, "auto_mpi_discovery") else {}
    deepspeed.init_distributed(dist_backend="gloo", **options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="+")
    for each in parser.parse_args().version:
        install(each)
        print(f"{each}: {RELEASES / each}", flush=True)
