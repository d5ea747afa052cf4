"""DeepSpeed's functions of deepspeed/utils/zero_to_fp32.py (0.19.8), with their names, arguments and results.

    >>> from dsckpt.deepspeed import get_fp32_state_dict_from_zero_checkpoint

They read what DeepSpeed's read, and more: every ZeRO stage, pipeline, tensor and expert parallelism, Universal
Checkpoints. The folder of a tag is taken for the checkpoint too. Errors are dsckpt's (`dsckpt.Error`); where
DeepSpeed's raise ValueError or FileNotFoundError for a path, so do these.

Importing this module imports torch.
"""
import os
import shutil
import sys
import tempfile

import torch

from . import _commands
from ._errors import InconsistentError

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict", "convert_zero_checkpoint_to_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint", "load_state_dict_from_zero_checkpoint", "patch_deepspeed",
]

_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir,
                                             tag=None,
                                             exclude_frozen_parameters=False,
                                             lazy_mode=False):
    """The fp32 weights of a ZeRO checkpoint: a dictionary of names to tensors on the CPU, in DeepSpeed's order.

    Trained parameters are float32, buffers keep their type. Tied parameters share their memory. The tensors may be
    written to; they are a private mapping of a file that has no name any more, so they take address space, and
    memory only as they are touched, which the kernel can drop again.

    The file is made in Python's folder for temporary files (TMPDIR), which needs 4 bytes a parameter of space.

    lazy_mode: the values answer `.contiguous()`, as DeepSpeed's do. They are the same here: nothing is read before
    it is touched.
    """
    folder = tempfile.mkdtemp(prefix="dsckpt-")
    try:
        _convert(checkpoint_dir, os.path.join(folder, "weights"), tag, max_shard_size="none",
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
    """Writes the weights to the folder `output_dir`, in files of at most `max_shard_size` bytes (None: in one).

    dtype: torch.float32, torch.float16, torch.bfloat16, or their names, of floating tensors; others keep theirs.
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


def patch_deepspeed():
    """Puts these functions in the place of DeepSpeed's, wherever they have been imported already.

    Code that calls DeepSpeed's, such as Lightning's `convert_zero_checkpoint_to_fp32_state_dict`, then calls these.
    Imports DeepSpeed. Calling it again changes nothing. Returns a function that puts DeepSpeed's back.
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

    def restore():
        for module, name, theirs in replaced:
            setattr(module, name, theirs)

    return restore


def _convert(checkpoint_dir, output_dir, tag, **options):
    """convert(), with DeepSpeed's exceptions for paths that are not there."""
    if tag is not None and not os.path.isdir(os.path.join(checkpoint_dir, tag)):
        raise FileNotFoundError(f"Directory '{os.path.join(checkpoint_dir, tag)}' doesn't exist")
    try:
        _commands.convert(checkpoint_dir, output_dir, tag=tag, **options)
    except InconsistentError as error:
        latest = os.path.join(checkpoint_dir, "latest")
        if tag is not None or os.path.isfile(latest):
            raise
        raise ValueError(f"Unable to find 'latest' file at {latest}") from error
