"""DeepSpeed checkpoints: weights, universal checkpoints, another number of GPUs, and their content.

Each function is a tool's command, and takes its options as keywords. ``dtype="bf16"`` is ``--dtype bf16``, and
``force=True`` is ``--force``. ``include=["norm", "head"]`` is ``--include norm --include head``. ``as_="float32"`` is
``--as float32``, since `as` is a keyword of Python. Options that are None or False are not passed on. Types may be
torch's or NumPy's: ``dtype=torch.bfloat16``. ``help(dsckpt.convert)`` lists the options.

    >>> import dsckpt
    >>> dsckpt.convert("checkpoint-500", "weights", safe_serialization=True)  # doctest: +SKIP
    {'files': [...], 'seconds': 1.9, ...}

Results are the tool's ``--json`` output, as dictionaries; `dsckpt.results` has their types. Notes on a result are in
its "notes", and are warnings too (`DsckptWarning`). Errors are exceptions (`Error`), one class for each kind, with the
file, tensor and offset. Their messages and hints are the tool's, so hints are for a command line. Ctrl-C stops the
tool, which leaves nothing behind, and raises KeyboardInterrupt. Several threads may call functions at once, and other
threads run meanwhile.

`open()` gives a checkpoint's tensors by name, and reads only the requested elements:

    >>> dsckpt.open("checkpoint-500")["lm_head.weight"][:2]  # doctest: +SKIP

`load_checkpoint()` loads a checkpoint into a running DeepSpeed engine, also one of another number of ranks.

`dsckpt.deepspeed` has DeepSpeed's own functions, and `patch_deepspeed()` puts them in DeepSpeed's place.

Importing this package is fast: it imports neither torch nor other large packages.
"""

from ._errors import CorruptError, DsckptWarning, Error, InconsistentError, IoError, UnsupportedError, UsageError

# Everything but `print`, since Python has a function of that name.
__all__ = [
    "Checkpoint", "CorruptError", "DsckptWarning", "Error", "InconsistentError", "IoError", "Tensor",
    "UnsupportedError", "UsageError", "average", "convert", "diff", "html", "inspect", "keep", "list_tensors",
    "load_checkpoint", "open", "pack", "patch_deepspeed", "raw", "reshard", "scan", "stats", "strip", "to_dcp", "to_universal", "tree", "unpack",
    "verify", "where",
]  # fmt: skip

_COMMANDS = {"print", *(name for name in __all__ if name.islower())} - {"load_checkpoint", "open", "patch_deepspeed"}


def __getattr__(name):
    if name == "__version__":
        from importlib.metadata import version
        return version("dsckpt")
    if name in ("deepspeed", "results"):
        from importlib import import_module
        return import_module("." + name, __name__)
    if name in ("load_checkpoint", "patch_deepspeed"):
        from . import deepspeed
        return getattr(deepspeed, name)
    if name in ("Checkpoint", "Tensor", "open"):
        from . import _checkpoint
        return getattr(_checkpoint, name)
    if name in _COMMANDS:
        from . import _commands
        return getattr(_commands, name)
    raise AttributeError(f"module 'dsckpt' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, "__version__", "deepspeed", "print", "results"])
