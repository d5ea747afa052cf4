"""DeepSpeed checkpoints: weights, universal checkpoints, another number of GPUs, and what is inside.

Each function is a tool's command, and takes its options as keywords: ``dtype="bf16"`` is ``--dtype bf16``,
``force=True`` is ``--force``, ``include=["norm", "head"]`` is ``--include norm --include head``, and
``as_="float32"`` is ``--as float32``, since `as` is a word of Python's. What is None or False is left out. Types may
be torch's or NumPy's: ``dtype=torch.bfloat16``. ``help(dsckpt.convert)`` lists the options.

    >>> import dsckpt
    >>> dsckpt.convert("checkpoint-500", "weights", safe_serialization=True)  # doctest: +SKIP
    {'files': [...], 'seconds': 1.9, ...}

Results are what the tool prints with ``--json``, as dictionaries; `dsckpt.results` has their types. The notes that it
has for a result are in its "notes", and are warnings (`DsckptWarning`). Errors are exceptions, one class a kind
(`Error`), which know file, tensor and offset; their words and hints are the tool's, for a command line. Ctrl-C stops
the tool, which leaves nothing behind, and raises KeyboardInterrupt. Functions may be called from several threads at
once; other threads run meanwhile.

`open()` gives a checkpoint's tensors by name, and reads what is asked for:

    >>> dsckpt.open("checkpoint-500")["lm_head.weight"][:2]  # doctest: +SKIP

`load_checkpoint()` loads one into a running DeepSpeed engine, also of another number of ranks.

`dsckpt.deepspeed` has DeepSpeed's own functions, and `patch_deepspeed()` puts them in DeepSpeed's place.

Importing this package imports neither torch nor anything else that takes time.
"""

from ._errors import CorruptError, DsckptWarning, Error, InconsistentError, IoError, UnsupportedError, UsageError

# All but `print`, which Python has a function of that name for.
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
