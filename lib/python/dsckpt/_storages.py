"""The storages of planned files, and reads of their elements into tensors. Imports torch."""
import io
import pickle
import typing

import torch

from ._errors import UnsupportedError

RING_BYTES = 8 << 20  # size of a buffer; there are two


class Storages:
    """The storages of one file. They have no memory until it is set."""

    def __init__(self, described):
        self._described = [(getattr(torch, dtype), numel) for dtype, numel in described]
        self._bare = [torch.UntypedStorage(dtype.itemsize * numel, device="meta") for dtype, numel in self._described]
        self._keys = {storage._cdata: key for key, storage in enumerate(self._bare)}
        self._memory = {}

    def key_of(self, tensor):
        return self._keys[tensor.untyped_storage()._cdata]

    def read(self, number, tensor, first, flat):
        """The elements of a tensor of file `number` from `first` on."""
        key, dtype = self.key_of(tensor), tensor.dtype
        unit = self._described[key][0].itemsize  # a storage may lack a type of its own
        return Read((number, key), unit, (tensor.storage_offset() + first) * dtype.itemsize // unit, flat, dtype)

    def allocate(self, key):
        dtype, numel = self._described[key]
        self._memory[key] = torch.empty(numel, dtype=dtype)
        return self._memory[key]

    def met_in(self, value):
        """The storages without memory in all tensors of `value`."""
        keys, seen, waiting = {}, set(), [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, torch.Tensor):
                if each.is_meta:
                    keys[self.key_of(each)] = None
                continue
            if id(each) in seen or each is None or isinstance(each, (str, bytes, int, float)):
                continue
            seen.add(id(each))
            if isinstance(each, dict):
                waiting += [*each.keys(), *each.values()]
            elif isinstance(each, (list, tuple, set, frozenset)):
                waiting += each
            waiting += getattr(each, "__dict__", {}).values()
        return sorted(keys)

    def unpickle(self, text):
        """The unpickled value, with tensors in these storages, like torch.load(weights_only=True)."""
        from torch import _weights_only_unpickler
        unpickler = _weights_only_unpickler.Unpickler(io.BytesIO(text), encoding="utf-8")
        unpickler.persistent_load = self._storage
        try:
            with torch.serialization.safe_globals([*torch.serialization.get_safe_globals(), *_classes()]):
                return unpickler.load()
        except pickle.UnpicklingError as error:
            raise UnsupportedError(f"the checkpoint has a value that is not loaded from a file: {error}",
                                   hint="torch.serialization.add_safe_globals() allows a class") from error

    def _storage(self, described):
        _, kind, key, _, _ = described
        key = int(key)
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        memory = self._memory.get(key)
        bare = self._bare[key] if memory is None else memory.untyped_storage()
        return torch.storage.TypedStorage(wrap_storage=bare, dtype=dtype, _internal=True)


class Read(typing.NamedTuple):
    """Elements of a storage from its element `first` on, in units of `unit` bytes."""
    what: "tuple[int, int]"  # the file and the storage
    unit: int
    first: int
    flat: torch.Tensor  # that receives them
    dtype: torch.dtype  # of the elements

    @property
    def is_direct(self):
        return self.flat.device.type == "cpu" and self.flat.dtype == self.dtype

    def place(self, begin, count, address):
        """The arguments of gather_into() for `count` elements from `begin` on."""
        scale = self.dtype.itemsize // self.unit
        return (*self.what, self.first + begin * scale, count * scale, address)


def gather(gather_into, reads, check):
    reads = [read for read in reads if read.flat.numel()]
    places = [read.place(0, read.flat.numel(), read.flat.data_ptr()) for read in reads if read.is_direct]
    with torch.no_grad():
        gather_into(places, check, None)
        _through_ring(gather_into, [read for read in reads if not read.is_direct], check)


def _through_ring(gather_into, reads, check):
    """Reads elements of another device or type through two buffers: one is filled while the other is copied."""
    buffers, turn = [], 0
    for read in reads:
        flat, size = read.flat, read.dtype.itemsize
        for done in range(0, flat.numel(), RING_BYTES // size):
            count = min(RING_BYTES // size, flat.numel() - done)
            if len(buffers) < 2:
                buffers.append([torch.empty(RING_BYTES, dtype=torch.uint8, pin_memory=flat.is_cuda), None])
            buffer, copied = buffers[turn]
            if copied is not None:
                copied.synchronize()
            gather_into([read.place(done, count, buffer.data_ptr())], check, None)
            flat[done:done + count].copy_(buffer[:count * size].view(read.dtype), non_blocking=True)
            if flat.is_cuda:
                buffers[turn][1] = torch.cuda.Event()
                buffers[turn][1].record()
            turn = (turn + 1) % 2
    for _, copied in buffers:
        if copied is not None:
            copied.synchronize()


def share(groups):
    """Each of `groups` is (the ranks' parts of weights, this rank's masters or None, process group). All ranks get all
    parts."""
    for ranks, masters, group in groups:
        if masters is not None:
            ranks[torch.distributed.get_rank(group)].copy_(masters)
        for rank, part in enumerate(ranks):
            if part.numel() and torch.distributed.get_world_size(group) > 1:
                source = torch.distributed.get_global_rank(group, rank)
                torch.distributed.broadcast(part.view(torch.uint8), source, group=group)


def _classes():
    """DeepSpeed's classes in reshard's files."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
