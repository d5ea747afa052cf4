"""Loads a checkpoint into a torch.nn.Module. Imports torch."""
import torch

from ._arrays import Form, batches
from ._errors import InconsistentError, UsageError
from ._into import address_of, straight
from ._tool import shown

_AS_STORED = Form.of("pt", None, None)


def load_into(checkpoint, model, strict, progress):
    """Implements Checkpoint.load_into()."""
    targets = dict(model.state_dict(keep_vars=True))
    tensors = {name: target for name, target in targets.items() if isinstance(target, torch.Tensor)}
    found = {name: checkpoint[name] for name in tensors if name in checkpoint}
    _check_all(found, tensors)
    tied = {_place(target) for name, target in tensors.items() if name in found}
    missing = [name for name, target in tensors.items() if name not in found and _place(target) not in tied]
    owners = {tensor._owner().name for tensor in found.values()}
    unexpected = [name for name, tensor in checkpoint.items()
                  if name not in tensors and tensor._owner().name not in owners]
    if strict and (missing or unexpected):
        said = [f"{what}: {_some(names)}" for what, names in (("the checkpoint lacks", missing),
                                                              ("the model lacks", unexpected)) if names]
        raise InconsistentError("; ".join(said), hint="strict=False loads what both have")
    # Tied tensors are read once.
    wanted = {}
    for name, tensor in found.items():
        wanted.setdefault(_place(tensors[name]), (tensor._owner(), tensors[name]))
    direct, others = [], []
    for tensor, target in wanted.values():
        is_direct = not checkpoint._mmap and address_of(tensor, target) is not None
        (direct if is_direct else others).append((tensor, target))
    straight(checkpoint, direct, progress)
    copy_pieces(checkpoint, others, progress)
    return torch.nn.modules.module._IncompatibleKeys(missing, unexpected)


def _check_all(found, targets):
    for name, tensor in found.items():
        target = targets[name]
        if target.is_meta:
            raise UsageError(f"{name}: the model has no memory for it (device meta)",
                             hint="model.to_empty(device='cpu') makes some")
        if hasattr(target, "device_mesh") or hasattr(target, "ds_tensor"):  # of FSDP2, or of DeepSpeed's stage 3
            raise UsageError(f"{name}: the model is sharded already, and has a part of it",
                             hint="fill it before fully_shard() or deepspeed.initialize()")
        if tuple(target.shape) != tensor.shape:
            raise InconsistentError(f"{name}: the checkpoint has {list(tensor.shape)}, the model "
                                    f"{list(target.shape)}", tensor=name)


def copy_pieces(checkpoint, wanted, progress):
    """Copies each tensor into the torch tensor beside it, of any type and on any device."""
    if not wanted:
        return
    of_tensor = {}
    for tensor, target in wanted:
        of_tensor.setdefault(tensor._index, (tensor, []))[1].append(target)
    with shown("loading", progress) as report, torch.no_grad():
        done, total = 0, sum(tensor.nbytes for tensor, _ in of_tensor.values())
        for batch in batches([tensor for tensor, _ in of_tensor.values()]):
            for tensor, begin, end, piece in _read(checkpoint, batch):
                for target in of_tensor[tensor._index][1]:
                    (target if begin is None else target[begin:end]).copy_(piece)
                del piece
            done += sum(tensor.nbytes for tensor in batch)
            if report:
                report(done, total)


def _read(checkpoint, batch):
    """(tensor, first row, end row, elements); the rows are None for the whole tensor"""
    rows = checkpoint._rows_of_piece(batch[0]) if len(batch) == 1 else None
    if rows is not None:
        for begin, end, piece in checkpoint._pieces(batch[0], rows, _AS_STORED):
            yield batch[0], begin, end, piece
            del piece
        return
    for tensor, elements in zip(batch, checkpoint._read(batch)):
        yield tensor, None, None, checkpoint._as_array(tensor, *elements, form=_AS_STORED)


def _place(target):
    """A value that is equal for tensors in the same memory."""
    return (target.device, target.data_ptr(), tuple(target.shape), target.stride()) if target.numel() else id(target)


def _some(names):
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
