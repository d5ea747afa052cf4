"""DeepSpeed's functions of deepspeed/utils/zero_to_fp32.py (0.19.8), with their names, arguments and results, and
load_checkpoint(), which is DeepSpeedEngine's.

    >>> from dsckpt.deepspeed import get_fp32_state_dict_from_zero_checkpoint

They read the same checkpoints as DeepSpeed's, and more: every ZeRO stage, pipeline, tensor and expert parallelism,
Universal Checkpoints. They accept the folder of a tag as the checkpoint too. Errors are dsckpt's (`dsckpt.Error`). If
DeepSpeed's functions raise ValueError or FileNotFoundError for a path, so do these.

Importing this module imports torch.
"""
import contextlib
import os
import shutil
import sys
import tempfile

import torch

from . import _checkpoint, _commands
from ._errors import InconsistentError, UsageError
from ._reader import is_native_for

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict", "convert_zero_checkpoint_to_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint", "load_checkpoint", "load_state_dict_from_zero_checkpoint",
    "patch_deepspeed",
]

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir,
                                             tag=None,
                                             exclude_frozen_parameters=False,
                                             lazy_mode=False):
    """The fp32 weights of a ZeRO checkpoint: a dictionary of names to tensors on the CPU, in DeepSpeed's order.

    All floating tensors are float32; others keep their type. Tied parameters share their memory. The tensors are
    writable.

    With dsckpt-native the tensors have memory of their own. Without it they are a private mapping of an unnamed file.
    The file is in Python's folder for temporary files (TMPDIR), which needs 4 bytes for each parameter.

    lazy_mode: `.contiguous()` reads the values, like DeepSpeed's; checksums are compared meanwhile (`dsckpt.open`,
    ``check="later"``). If the unnamed file is used, everything is written to it at once, and the values are tensors.
    """
    if is_native_for(checkpoint_dir):
        return _gathered(checkpoint_dir, tag, exclude_frozen_parameters, lazy_mode)
    folder = tempfile.mkdtemp(prefix="dsckpt-")
    try:
        _convert(checkpoint_dir, os.path.join(folder, "weights"), tag, max_shard_size="none", hf_config="none",
                 exclude_frozen_parameters=exclude_frozen_parameters)
        return torch.load(os.path.join(folder, "weights", "pytorch_model.bin"), map_location="cpu", mmap=True,
                          weights_only=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def convert_zero_checkpoint_to_state_dict(checkpoint_dir,
                                          output_dir,
                                          dtype=torch.float32,
                                          max_shard_size="5GB",
                                          safe_serialization=False,
                                          tag=None,
                                          exclude_frozen_parameters=False):
    """Writes the weights to the folder `output_dir`, in files of at most `max_shard_size` bytes (None: one file).

    dtype: the type of floating tensors: torch.float32, torch.float16, torch.bfloat16, or their names. Others keep
    theirs.
    safe_serialization: safetensors instead of torch.save's form. Files of the same names are replaced.
    """
    _convert(checkpoint_dir, output_dir, tag, dtype=_DTYPES.get(dtype, dtype), force=True,
             max_shard_size="none" if max_shard_size is None else max_shard_size,
             safe_serialization=safe_serialization, exclude_frozen_parameters=exclude_frozen_parameters)


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir,
                                               output_dir,
                                               max_shard_size="5GB",
                                               safe_serialization=False,
                                               tag=None,
                                               exclude_frozen_parameters=False):
    """convert_zero_checkpoint_to_state_dict() to float32."""
    return convert_zero_checkpoint_to_state_dict(checkpoint_dir, output_dir, dtype=torch.float32,
                                                 max_shard_size=max_shard_size,
                                                 safe_serialization=safe_serialization, tag=tag,
                                                 exclude_frozen_parameters=exclude_frozen_parameters)


def load_state_dict_from_zero_checkpoint(model, checkpoint_dir, tag=None):
    """Puts `model` on the CPU, loads the fp32 weights into it, and returns it."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def load_checkpoint(engine,
                    path,
                    tag=None,
                    load_module_strict=True,
                    load_optimizer_states=True,
                    load_lr_scheduler_states=True,
                    load_module_only=False,
                    custom_load_fn=None,
                    *,
                    roots=(),
                    model=None,
                    tp_rules=(),
                    check=False):
    """Loads a checkpoint into a running DeepSpeed engine: also one of another number of ranks, or another stage.

    No file is written, and each rank reads only the elements of its own partitions. All ranks must call it. Arguments
    and results are those of DeepSpeedEngine.load_checkpoint: the path, and the client state. Afterwards the engine is
    in the same state as if `reshard` had written files for it and DeepSpeed had loaded them.

    path: a path for dsckpt.open() with optimizer states: DeepSpeed's own checkpoints of every stage, universal
        ones, those of torch.distributed.checkpoint, and files of ranks.
    load_module_strict: False lets only one side, the checkpoint or the model, have some frozen parameters and buffers.
    roots, model, tp_rules: like dsckpt.open()'s.
    check: compares the checksums of everything that is read, which reads whole records. Without it, only records
        that are read whole anyway are compared.

    Parameters and their groups are matched by names. In case of an error all ranks raise the same `dsckpt.Error`, and
    the engine is unchanged. An exception is an error that only reading reveals, such as a damaged file. Then its
    message says that the engine is half filled, and another checkpoint may be loaded. An unknown engine is loaded by
    DeepSpeed itself, such as one with experts at stage 0. A DsckptWarning says why.
    """
    from . import _live
    return _live.load_checkpoint(engine, path, tag, load_module_strict, load_optimizer_states,
                                 load_lr_scheduler_states, load_module_only, custom_load_fn, roots=roots, model=model,
                                 tp_rules=tp_rules, check=check)


def patch_deepspeed(load=False):
    """Puts these functions in the place of DeepSpeed's, wherever they have been imported already.

    Code that calls DeepSpeed's, such as Lightning's `convert_zero_checkpoint_to_fp32_state_dict`, then calls these.
    Imports DeepSpeed. Calling it again changes nothing. Returns a function that puts DeepSpeed's back.

    load: replaces `DeepSpeedEngine.load_checkpoint` by load_checkpoint() too, so that the Trainer, Accelerate,
    Lightning
        and TRL resume at another number of ranks, and at another stage. If there is no checkpoint at all, DeepSpeed's
        own function answers.
    """
    from deepspeed.utils import zero_to_fp32
    ours = {name: globals()[name] for name in __all__ if name != "patch_deepspeed" and hasattr(zero_to_fp32, name)}
    replaced = []
    for name, function in ours.items():
        theirs = getattr(zero_to_fp32, name)
        if theirs is function:
            continue
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is theirs:
                setattr(module, name, function)
                replaced.append((module, name, theirs))
    if load:
        from . import _live
        replaced += _live.patch_engine()

    def restore():
        for module, name, theirs in replaced:
            setattr(module, name, theirs)

    return restore


def _gathered(checkpoint_dir, tag, exclude_frozen_parameters, lazy_mode):
    with _errors_as_deepspeeds(checkpoint_dir, tag):
        checkpoint = _checkpoint.open(checkpoint_dir, tag=tag, check="later" if lazy_mode else True)
    names = [name for name, tensor in checkpoint.items()
             if not (exclude_frozen_parameters and tensor.kind == "frozen")]
    if lazy_mode:
        return {name: _LazyTensor(checkpoint[name]) for name in names}
    # Tied tensors stay tied.
    wide = {}
    state = checkpoint.state_dict(names)
    return {name: wide.setdefault(id(value), _wide(value)) for name, value in state.items()}


def _wide(tensor):
    """Like DeepSpeed, gives buffers as float32, whatever their stored type."""
    return tensor.float() if tensor.is_floating_point() else tensor


class _LazyTensor:
    """Like DeepSpeed's GatheredTensor: has `shape` and `contiguous()`."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.shape = torch.Size(tensor.shape)

    def contiguous(self):
        return _wide(self._tensor.torch())


def _convert(checkpoint_dir, output_dir, tag, **options):
    with _errors_as_deepspeeds(checkpoint_dir, tag):
        # DeepSpeed keeps the model's own names, even an adapter's. The tool alone would refuse those.
        _commands.convert(checkpoint_dir, output_dir, tag=tag, include=["."], names="module", **options)


@contextlib.contextmanager
def _errors_as_deepspeeds(checkpoint_dir, tag):
    """DeepSpeed's exceptions for paths that do not exist: on a disk, in an object store, or on a web server.

    Only the tool knows which paths exist, so its messages decide.
    """
    try:
        yield
    except (InconsistentError, UsageError) as error:
        said = str(error).partition("\n")[0]
        if tag is None and "which is not there" in said:  # in the file latest
            raise FileNotFoundError(str(error)) from error
        if not any(words in said for words in ("there is no such", "holds no DeepSpeed shards")):
            raise
        if tag is not None:
            raise FileNotFoundError(str(error)) from error
        latest = os.path.join(checkpoint_dir, "latest")
        raise ValueError(f"Unable to find 'latest' file at {latest}") from error
