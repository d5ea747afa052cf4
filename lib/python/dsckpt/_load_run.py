"""Loads a run into an engine: also optimizer states, counters and schedules. Imports torch and DeepSpeed."""
import os
import typing

import torch

from . import _agreement, _engine, _patching, _wrappers
from ._errors import InconsistentError, UnsupportedError
from ._storages import Read, Storages, gather, share


class _Place(typing.NamedTuple):
    """A tensor in a rank's file that the engine may have too."""
    holder: typing.Any
    key: typing.Any
    live: torch.Tensor  # the engine's
    kind: str  # "entry" of the model, "kept" if DeepSpeed leaves it alone, "masters", or "state" (`live`: its master)
    at: "int | None" = None  # the number of the master

    @property
    def planned(self):
        return self.holder[self.key]


class RunLoad:
    """One call on one rank. prepare() does not change the engine."""

    def __init__(self, engine, plan, states, strict, call):
        self.engine, self.plan, self.states, self._call = engine, plan, states, call
        self.wrapper = _engine.wrapper_of(engine)
        self.module = _engine.state_of(engine)
        self._strict, self._left_alone = strict, _engine.left_alone(engine)
        self.dicts = []
        self.reads = []  # those of gather()
        self._places_read = set()
        self._on_nvme = self.wrapper.swapped()
        self.swapped = {}  # of a sub-group on NVMe: [(None for the masters or the state's key, file, storages, tensor)]
        self.shared = []  # (the ranks' parts of a group's weights, this rank's masters or None, process group)

    # --- before anything changes

    def prepare(self):
        saved = []
        for number, (text, storages) in enumerate(self.plan.files()):
            records = Storages(storages)
            saved.append((number, text, records, records.unpickle(text)))
        self._check_names(saved[_patching.MODEL][3]["module"])
        self._check_layout(*(each[3] for each in saved))
        for number, text, records, planned in saved:
            places = list(self._places(number, planned))
            parts = self._read_parts(records, places) if number == _patching.MODEL else {}
            targets = [self._target(number, place, records, parts) for place in places]
            used = self.states or number == _patching.MODEL  # else DeepSpeed ignores it
            _put(places, targets)
            if used:
                for key in records.met_in(planned):
                    memory = records.allocate(key)
                    self.reads.append(Read((number, key), memory.itemsize, 0, memory, memory.dtype))
                planned = records.unpickle(text)
                _put(list(self._places(number, planned)), targets)
            self.dicts.append(planned)
        used = {(number, records.key_of(planned))
                for tensors in self.swapped.values() for _, number, records, planned in tensors}
        self.plan.open_files(sorted(used.union(read.what for read in self.reads if read.flat.numel())))

    def _places(self, number, saved):
        if number == _patching.MODEL:
            module, frozen = saved["module"], saved.get("frozen_param_fragments") or {}
            for name, tensor in self.module.items():
                if name in self._left_alone:
                    yield _Place(module, name, tensor.data, "kept")
                elif isinstance(module.get(name), torch.Tensor) and not hasattr(tensor, "ds_tensor"):
                    yield _Place(module, name, tensor.data, "entry")
                if isinstance(frozen.get(name), torch.Tensor):
                    yield _Place(frozen, name, getattr(tensor, "ds_tensor", tensor).data, "entry")
        if number == _patching.MODEL and len(self.plan.files()) > 1:
            return
        states = saved["optimizer_state_dict" if self.engine.zero_optimization() else "optimizer"]
        for at, (holder, key, flat) in enumerate(self.wrapper.master_places(states)):
            yield _Place(holder, key, flat, "masters", at)
        if not self.states:
            return
        base, flats = states[self.wrapper.base] if self.wrapper.base else states, self.wrapper.flats()
        for at, state in base["state"].items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.numel() == self._on_nvme.get(at, flats[at].numel()) > 1:
                    yield _Place(state, key, flats[at], "state", at)

    def _target(self, number, place, records, parts):
        """The engine's tensor that receives a planned tensor; None: it gets memory of its own."""
        if place.kind == "kept":
            return place.live
        planned, live = place.planned, place.live
        if place.kind != "entry" and place.at in self._on_nvme:
            return self._later(number, place, records)
        if place.kind == "state":
            live = self._state(live, place.key, planned)
        elif place.kind == "masters":
            if planned.numel() > live.numel():
                raise InconsistentError(f"{planned.numel()} elements for a partition of {live.numel()}")
            if live.is_contiguous():
                live = live.view(-1)[:planned.numel()].view(planned.shape)
        elif tuple(planned.shape) != tuple(live.shape):
            raise InconsistentError(f"{place.key} has shape {list(planned.shape)} in the checkpoint and "
                                    f"{list(live.shape)} in the engine", tensor=place.key)
        if not planned.is_contiguous() or not live.is_contiguous():
            return None
        if place.holder is parts.get("in") and place.key in parts["names"]:
            return live
        self._read(number, records, planned, 0, live.view(-1))
        return live

    def _later(self, number, place, records):
        """A tensor without memory in the place of one that is on NVMe. Its elements are read by _fill_swapped()."""
        planned = place.planned
        if not planned.is_contiguous() or planned.numel() > self._on_nvme[place.at]:
            raise InconsistentError(f"{planned.numel()} elements for a sub-group of {self._on_nvme[place.at]} on NVMe")
        key = place.key if place.kind == "state" else None
        self.swapped.setdefault(place.at, []).append((key, number, records, planned))
        return place.live if key is None else torch.empty(1, dtype=planned.dtype).expand(planned.shape)

    def _state(self, owner, key, planned):
        """The optimizer's existing tensor of this state, else new memory."""
        held = self.wrapper.inner.state.get(owner, {}).get(key)
        if isinstance(held, torch.Tensor) and held.dtype == planned.dtype and held.shape == planned.shape \
                and held.is_contiguous() and held.device == owner.device:
            return held
        return torch.empty(planned.shape, dtype=planned.dtype, device=owner.device)

    def _read_parts(self, records, places):
        """Makes each rank read only its part of the weights, if the engine has a flat tensor of all.

        Returns the entries of the module that are then complete, as {"in": the module, "names": names}.
        """
        entries = {id(self.module[place.key]): place for place in places
                   if place.kind == "entry" and place.key in self.module}  # fmt: skip
        names = set()
        for params, flat, ranks, masters, group in self.wrapper.partitions():
            offsets = [_wrappers.offset_in(p, flat) for p in params]
            rank = torch.distributed.get_rank(group)
            part, begin = ranks[rank], rank * ranks[rank].numel()
            members = [entries.get(id(p)) for p in params]
            if None in members or not all(place.planned.is_contiguous() for place in members):
                continue
            by_masters = self.plan.weights_are_masters() and \
                all(place.planned.dtype == flat.dtype for place in members)
            self.shared.append((ranks, masters if by_masters else None, group))
            names.update(name for p in params for name, tensor in self.module.items() if tensor is p)
            for place, p, offset in zip(members, params, offsets):
                low, high = max(begin, offset), min(begin + part.numel(), offset + p.numel())
                if by_masters or low >= high:
                    continue
                self._read(_patching.MODEL, records, place.planned, low - offset, part.view(-1)[low - begin:high - begin])
        module = next((place.holder for place in places if place.kind == "entry" and place.key in names), None)
        return {"in": module, "names": names}

    def _read(self, number, records, planned, first, flat):
        """Plans to read the elements of `planned` from `first` on; those of tied parameters only once."""
        read = records.read(number, planned, first, flat)
        place = (read.what, read.first, flat.data_ptr(), flat.numel())
        if place not in self._places_read:
            self._places_read.add(place)
            self.reads.append(read)

    def _check_names(self, module):
        """Checks that the files of layers and experts have all that a strict load wants. The planner checks others."""
        in_files = _engine.is_pipeline(self.engine) or \
            _engine.has_experts(self.engine) and not self.engine.zero_optimization_partition_weights()
        if not in_files or not self._strict:
            return
        missing = [name for name in self.module if name not in module and name not in self._left_alone]
        if missing:
            raise InconsistentError(f"{missing[0]} is in the engine, but in no file of the checkpoint",
                                    file=self.plan.folder(), tensor=missing[0])

    def _check_layout(self, model, optimizer=None):
        """Checks that each planned tensor of the optimizer has the shape and type of the engine's."""
        owners = self._owners()
        if isinstance(self.wrapper, _wrappers.Zero3Optimizer):
            planned = [[owners.get(name, name) for name in group] for group in model["param_shapes"]]
            live = [[self.engine.param_names[p] for p in group] for group in self.engine.optimizer.fp16_groups]
            _same("parameters in sub-groups", planned, live)
        if not self.wrapper.partitions():
            return
        planned = [{owners.get(name, name): (each.start, each.numel) for name, each in group.items()}
                   for group in optimizer["optimizer_state_dict"]["param_slice_mappings"]]
        live = [self._slices(*each) for each in self.wrapper.partitions()]
        _same("parameters in partitions", planned, live)
        sizes = zip(optimizer["optimizer_state_dict"]["single_partition_of_fp32_groups"],
                    optimizer["optimizer_state_dict"]["group_paddings"])
        whole = isinstance(self.wrapper, _wrappers.Bf16Optimizer)  # its masters have the padding
        _same("elements in partitions", [flat.numel() + (0 if whole else padding) for flat, padding in sizes],
              [flat.numel() for flat in self.wrapper.flats()])

    def _owners(self):
        """The engine's owner names of parameters with several names."""
        return {name: self.engine.param_names[tensor] for name, tensor in self.module.items()
                if isinstance(tensor, torch.nn.Parameter)}  # fmt: skip

    def _slices(self, params, flat, ranks, masters, group):
        size = masters.numel()
        begin, slices = torch.distributed.get_rank(group) * size, {}
        for p in params:
            offset = _wrappers.offset_in(p, flat)
            low, high = max(begin, offset), min(begin + size, offset + p.numel())
            if low < high:
                slices[self.engine.param_names[p]] = (low - begin, high - low)
        return slices

    # --- from here on the engine changes

    def fill(self, check):
        gather(self.plan.gather_into, self.reads, check)
        for at, tensors in self.swapped.items():
            self._fill_swapped(at, tensors, check)

    def _fill_swapped(self, at, tensors, check):
        states, reads = self.wrapper.inner.state, []
        with torch.no_grad(), self.wrapper.swapped_in(at) as flat:
            for key, number, records, planned in tensors:
                live = flat.data if key is None else self._state(flat, key, planned)
                if key is not None and states[flat].get(key) is not live:
                    states[flat][key] = live
                reads.append(records.read(number, planned, 0, live.view(-1)[:planned.numel()]))
            gather(self.plan.gather_into, reads, check)
            if not self.states:  # DeepSpeed's load gives masters the parameters' values then
                self.wrapper.round_masters(at)

    def finish(self, path, tag, options):
        with torch.no_grad():
            share(self.shared)
            if isinstance(self.wrapper, _wrappers.Zero3Optimizer) and not self.states:
                self.wrapper.set_weights()
        return self._through_deepspeed(path, tag, options)

    def _through_deepspeed(self, path, tag, options):
        engine, folder = self.engine, self.plan.folder()
        own = os.path.basename(folder) if tag is None else str(tag)
        with _patching.reading_from_memory(engine, self.wrapper, folder, self.dicts), \
             _agreement.together_in_deepspeed(self._call):
            loaded, client_state = _patching.original(engine)(engine, path, tag=own, **options)
        if loaded is None:
            raise UnsupportedError("DeepSpeed's own load_checkpoint found nothing to load")
        name = engine._get_ckpt_name(path, own)
        return (name if os.path.exists(name) else folder), client_state


def _put(places, targets):
    for place, target in zip(places, targets):
        if target is not None:
            place.holder[place.key] = target


def _same(what, planned, live):
    if planned != live:
        raise UnsupportedError(f"the engine has other {what} than the plan: {_other(planned, live)}",
                               hint="reshard writes files that DeepSpeed compares itself")


def _other(planned, live):
    if len(planned) != len(live):
        return f"as many as {len(live)}, not {len(planned)}"
    group = next(at for at, pair in enumerate(zip(planned, live)) if pair[0] != pair[1])
    return f"group {group} is {live[group]}, not {planned[group]}"[:500]
