"""Loads weights alone into an engine. Imports torch and DeepSpeed."""
import torch

from . import _engine, _wrappers
from ._errors import InconsistentError, UnsupportedError
from ._storages import Storages, gather, share


class WeightsLoad:
    """Loads only weights into an engine: they become its masters, and after rounding its weights. All else stays."""

    def __init__(self, engine, plan, strict):
        self.engine, self.plan, self.strict = engine, plan, strict
        self.wrapper = _engine.wrapper_of(engine)
        [(text, storages)] = plan.files()
        self.records = Storages(storages)
        self.found = self.records.unpickle(text)
        self.reads = []

    def prepare(self):
        if _engine.has_experts(self.engine):
            raise UnsupportedError("weights alone are not loaded into models with experts")
        state = _engine.state_of(self.engine)
        found = self.found
        names = {}
        for name, tensor in state.items():
            names.setdefault(id(tensor), []).append(name)
        own = {ident: next((name for name in each if name in found), None) for ident, each in names.items()}
        missing = [each[0] for ident, each in names.items()
                   if own[ident] is None and isinstance(state[each[0]], torch.nn.Parameter)]
        unexpected = [name for name in found if name not in state]
        pieces = list(self.wrapper.pieces())
        trained = {id(p) for p in map(lambda piece: piece[0], pieces)} | \
            {id(p) for group in self.wrapper.param_groups() for p in group}
        if missing and (self.strict or any(id(state[name]) in trained for name in missing)):
            raise InconsistentError(f"{missing[0]} is not in the weights, but is in the engine", tensor=missing[0])
        if unexpected and self.strict:
            raise InconsistentError(f"{unexpected[0]} is in the weights, but is not in the engine",
                                    tensor=unexpected[0], hint="load_module_strict=False leaves it out")
        self._own = own
        for tensor in state.values():
            if own[id(tensor)] is not None:
                self._check(own[id(tensor)], tensor)
        for p, first, masters in pieces:
            self.reads.append(self._read(p, first, masters))
        for tensor in {id(tensor): tensor for tensor in state.values()}.values():
            if id(tensor) in trained or own[id(tensor)] is None:
                continue
            first, count = _wrappers.part_of(tensor) if hasattr(tensor, "ds_tensor") else (0, tensor.numel())
            self.reads.append(self._read(tensor, first, _flat(tensor)[:count]))
        self.plan.open_files([(0, self.records.key_of(self.found[name])) for name in own.values() if name is not None])

    def _check(self, name, tensor):
        weights = self.found[name]
        if tuple(weights.shape) != _engine.shape_of(tensor):
            raise InconsistentError(f"{name} has shape {list(weights.shape)} in the weights, "
                                    f"{list(_engine.shape_of(tensor))} in the engine", tensor=name)
        if weights.dtype == torch.float64:
            raise UnsupportedError(f"{name} is float64, and would be rounded", tensor=name)

    def _read(self, tensor, first, flat):
        return self.records.read(0, self.found[self._own[id(tensor)]], first, flat)

    def fill(self, check):
        gather(self.plan.gather_into, self.reads, check)
        for at in self.wrapper.swapped():
            with torch.no_grad(), self.wrapper.swapped_in(at):
                gather(self.plan.gather_into, [self._read(*piece) for piece in self.wrapper.pieces_of(at)], check)

    def finish(self, path, tag, options):
        optimizer = self.engine.optimizer
        if hasattr(optimizer, "checkpoint_event_prologue"):
            optimizer.checkpoint_event_prologue()
        with torch.no_grad():
            share([(ranks, masters, group) for _, _, ranks, masters, group in self.wrapper.partitions()])
            self.wrapper.set_weights()
        if hasattr(optimizer, "checkpoint_event_epilogue"):
            optimizer.checkpoint_event_epilogue()
        return path, {}


def _flat(tensor):
    """The memory of a tensor that the optimizer does not own."""
    data = getattr(tensor, "ds_tensor", tensor).data
    if not data.is_contiguous():
        raise UnsupportedError("the engine has a frozen parameter or a buffer that is not contiguous")
    return data.view(-1)
