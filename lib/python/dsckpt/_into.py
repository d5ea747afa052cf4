"""Reads tensors into the caller's memory."""
import sys

from ._arrays import NUMPY
from ._errors import InconsistentError, UsageError
from ._reader import ToolReader
from ._tool import shown


def read_into(checkpoint, targets, progress):
    """Implements Checkpoint.read_into()."""
    wanted = [(checkpoint[name]._owner(), _usable(name, target)) for name, target in targets.items()]
    for (tensor, target), name in zip(wanted, targets):
        if tuple(target.shape) != tensor.shape:
            raise InconsistentError(f"{name}: the checkpoint has {list(tensor.shape)}, the memory "
                                    f"{list(target.shape)}", tensor=name)
    direct = [each for each in wanted if address_of(*each) is not None]
    straight(checkpoint, direct, progress)
    others = [each for each in wanted if address_of(*each) is None]
    of_numpy = [each for each in others if not hasattr(each[1], "data_ptr")]
    for tensor, target in of_numpy:
        target[...] = tensor.numpy()
    if len(others) > len(of_numpy):
        from ._load import copy_pieces
        copy_pieces(checkpoint, [each for each in others if hasattr(each[1], "data_ptr")], progress)


def straight(checkpoint, wanted, progress):
    """Reads elements to their final place, without a copy. wanted: [(tensor, target)] for targets with an
    address_of()."""
    if not wanted:
        return
    if checkpoint._checks:
        checkpoint._checks.begin([tensor for tensor, _ in wanted])
    places = [(tensor._index, 0, tensor.numel, address_of(tensor, target)) for tensor, target in wanted]
    with shown("reading", progress) as report:
        wanted[0][0]._reader.gather_into(places, checkpoint._check, report)


def address_of(tensor, target):
    """The address to which the stored elements of `tensor` can be read; None if they must be converted or copied."""
    if isinstance(tensor._reader, ToolReader):
        return None
    if hasattr(target, "data_ptr"):  # torch's
        kind = str(target.dtype) == f"torch.{tensor.dtype}"
        return target.data_ptr() if kind and target.device.type == "cpu" and target.is_contiguous() else None
    kind = target.dtype.str[1:] == NUMPY.get(tensor.dtype) or tensor.dtype == "bool" and target.dtype == bool \
        or target.dtype.name == tensor.dtype
    native = target.dtype.byteorder in "=|" or target.dtype.byteorder == "<>"[sys.byteorder == "big"]
    return target.ctypes.data if kind and native and target.flags.c_contiguous else None


def _usable(name, target):
    """Accepts torch tensors and NumPy arrays that can be written to, and other objects by DLPack."""
    if hasattr(target, "data_ptr"):
        if target.is_meta:
            raise UsageError(f"{name}: a tensor without memory (device meta)")
        return target.detach()
    if hasattr(target, "__array_interface__"):
        import numpy
        target = numpy.asarray(target)
        if not target.flags.writeable:
            raise UsageError(f"{name}: the memory is read-only")
        return target
    if hasattr(target, "__dlpack__"):
        import torch
        return torch.from_dlpack(target)
    raise UsageError(f"{name}: {type(target).__name__} is neither torch's tensor nor an array, and has no DLPack")
