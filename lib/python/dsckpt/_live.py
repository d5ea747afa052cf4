"""Loads a checkpoint into a running DeepSpeed engine, without files. Imports torch and DeepSpeed.

reshard's planner plans the files of each rank. The elements of their tensors are read straight into the engine's tensors.
Then DeepSpeed's own load_checkpoint reads these files from memory. Their tensors are the engine's own, so DeepSpeed
copies them onto themselves, and it sets all other values itself.
"""
import contextlib
import functools
import io
import itertools
import os
import pickle
import sys
import threading
import time
import typing

import torch

from . import _engine, _planning
from ._errors import BY_KIND, Error, InconsistentError, UnsupportedError, warn
from ._reader import is_far

_RING_BYTES = 8 << 20  # size of a buffer; there are two
_MODEL, _OPTIMIZER = 0, 1  # numbers of the files

_WEIGHTS_ALONE = "these are only weights: the optimizer's states, counters and schedules of the engine do not change"
_NOTHING_CHANGED = "the engine is unchanged"
_HALF_FILLED = "the engine is half filled: load another checkpoint before it continues"
_POLL, _GRACE = 0.2, 5.0  # seconds: how often the store is asked, and how long ranks may take to leave DeepSpeed's code
_calls = itertools.count()  # ranks load equally often, so they agree on the number


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
    """Implements dsckpt.load_checkpoint()."""
    _engine.check(engine)
    own = {"load_module_strict": load_module_strict, "load_optimizer_states": load_optimizer_states,
           "load_lr_scheduler_states": load_lr_scheduler_states, "load_module_only": load_module_only}  # fmt: skip
    states = load_optimizer_states and not load_module_only
    why = "only DeepSpeed itself calls custom_load_fn" if custom_load_fn is not None else \
        _engine.why_unknown(engine)
    if why is not None:
        return _by_deepspeed(engine, path, tag, why, {**own, "custom_load_fn": custom_load_fn})
    place = _planning.Place(path, tag, tuple(roots), model, tuple(tp_rules))
    call = f"dsckpt/load/{next(_calls)}"
    with _agreement(_NOTHING_CHANGED):
        place.check()
        facts = _engine.facts(engine, _engine.wrapper_of(engine), load_module_strict)
    engines = _gathered((_planning.of_engine(facts), _engine.rank_of(engine)))
    with _agreement(_NOTHING_CHANGED):
        plan = _planning.plan(place, facts, engines, call, _described)
        if plan.is_of_weights():
            load, notes = _Weights(engine, plan, load_module_strict), [_WEIGHTS_ALONE]
        else:
            load, notes = _Load(engine, plan, states, load_module_strict, call), plan.notes()
        load.prepare()
    if _rank() == 0:
        warn(notes)
    with _agreement(_HALF_FILLED):
        load.fill(check)
    with _agreement(_HALF_FILLED):
        return load.finish(os.fspath(path), tag, own)


def patch_engine():
    """Replaces load_checkpoint of every DeepSpeedEngine. Returns [(class, name, original)]."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    theirs = DeepSpeedEngine.load_checkpoint
    if hasattr(theirs, "_dsckpt_original"):
        return []

    @functools.wraps(theirs)
    def patched(engine, load_dir, tag=None, *arguments, **options):
        if tag is None and not is_far(load_dir) and not any(os.path.lexists(os.path.join(load_dir, name))
                                   for name in ("latest", "latest_universal", ".metadata")):
            return theirs(engine, load_dir, tag, *arguments, **options)
        return load_checkpoint(engine, load_dir, tag, *arguments, **options)

    patched._dsckpt_original = theirs
    DeepSpeedEngine.load_checkpoint = patched
    return [(DeepSpeedEngine, "load_checkpoint", theirs)]


def original(engine):
    """DeepSpeed's own method, even if it has been replaced."""
    method = type(engine).load_checkpoint
    return getattr(method, "_dsckpt_original", method)


def _by_deepspeed(engine, path, tag, why, options):
    warn([f"{why}: DeepSpeed's own load_checkpoint is called"])
    try:
        return original(engine)(engine, path, tag=tag, **options)
    except Exception as error:
        raise UnsupportedError(f"{why}; and DeepSpeed's own load_checkpoint cannot load {os.fspath(path)}: {error}",
                               hint="reshard, or to-universal, writes a checkpoint that DeepSpeed loads") from error


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


class _Load:
    """One call on one rank. prepare() does not change the engine."""

    def __init__(self, engine, plan, states, strict, call):
        self.engine, self.plan, self.states, self._call = engine, plan, states, call
        self.wrapper = _engine.wrapper_of(engine)
        self.module = _engine.state_of(engine)
        self._strict, self._left_alone = strict, _engine.left_alone(engine)
        self.dicts = []
        self.reads = []  # those of _gather()
        self._places_read = set()
        self._on_nvme = self.wrapper.swapped()
        self.swapped = {}  # of a sub-group on NVMe: [(None for the masters or the state's key, file, storages, tensor)]
        self.shared = []  # (the ranks' parts of a group's weights, this rank's masters or None, process group)

    # --- before anything changes

    def prepare(self):
        saved = []
        for number, (text, storages) in enumerate(self.plan.files()):
            records = _Storages(storages)
            saved.append((number, text, records, records.unpickle(text)))
        self._check_names(saved[_MODEL][3]["module"])
        self._check_layout(*(each[3] for each in saved))
        for number, text, records, planned in saved:
            places = list(self._places(number, planned))
            parts = self._read_parts(records, places) if number == _MODEL else {}
            targets = [self._target(number, place, records, parts) for place in places]
            used = self.states or number == _MODEL  # else DeepSpeed ignores it
            _put(places, targets)
            if used:
                for key in records.met_in(planned):
                    memory = records.allocate(key)
                    self.reads.append(_Read((number, key), memory.itemsize, 0, memory, memory.dtype))
                planned = records.unpickle(text)
                _put(list(self._places(number, planned)), targets)
            self.dicts.append(planned)
        used = {(number, records.key_of(planned))
                for tensors in self.swapped.values() for _, number, records, planned in tensors}
        self.plan.open_files(sorted(used.union(read.what for read in self.reads if read.flat.numel())))

    def _places(self, number, saved):
        if number == _MODEL:
            module, frozen = saved["module"], saved.get("frozen_param_fragments") or {}
            for name, tensor in self.module.items():
                if name in self._left_alone:
                    yield _Place(module, name, tensor.data, "kept")
                elif isinstance(module.get(name), torch.Tensor) and not hasattr(tensor, "ds_tensor"):
                    yield _Place(module, name, tensor.data, "entry")
                if isinstance(frozen.get(name), torch.Tensor):
                    yield _Place(frozen, name, getattr(tensor, "ds_tensor", tensor).data, "entry")
        stage0 = len(self.plan.files()) == 1
        if number == _MODEL and not stage0:
            return
        states = saved["optimizer"] if stage0 else saved["optimizer_state_dict"]
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
            offsets = [_engine.offset_in(p, flat) for p in params]
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
                self._read(_MODEL, records, place.planned, low - offset, part.view(-1)[low - begin:high - begin])
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
        if isinstance(self.wrapper, _engine.Zero3Optimizer):
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
        whole = isinstance(self.wrapper, _engine.Bf16Optimizer)  # its masters have the padding
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
            offset = _engine.offset_in(p, flat)
            low, high = max(begin, offset), min(begin + size, offset + p.numel())
            if low < high:
                slices[self.engine.param_names[p]] = (low - begin, high - low)
        return slices

    # --- from here on the engine changes

    def fill(self, check):
        _gather(self.plan.gather_into, self.reads, check)
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
            _gather(self.plan.gather_into, reads, check)
            if not self.states:  # DeepSpeed's load gives masters the parameters' values then
                self.wrapper.round_masters(at)

    def finish(self, path, tag, options):
        with torch.no_grad():
            _share(self.shared)
            if isinstance(self.wrapper, _engine.Zero3Optimizer) and not self.states:
                self.wrapper.set_weights()
        return self._through_deepspeed(path, tag, options)

    def _through_deepspeed(self, path, tag, options):
        engine, folder = self.engine, self.plan.folder()
        own = os.path.basename(folder) if tag is None else str(tag)
        with _reading_from_memory(engine, self.wrapper, folder, self.dicts), _together_in_deepspeed(self._call):
            loaded, client_state = original(engine)(engine, path, tag=own, **options)
        if loaded is None:
            raise UnsupportedError("DeepSpeed's own load_checkpoint found nothing to load")
        name = engine._get_ckpt_name(path, own)
        return (name if os.path.exists(name) else folder), client_state


class _Storages:
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
        return _Read((number, key), unit, (tensor.storage_offset() + first) * dtype.itemsize // unit, flat, dtype)

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


class _Read(typing.NamedTuple):
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


def _gather(gather_into, reads, check):
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
        for done in range(0, flat.numel(), _RING_BYTES // size):
            count = min(_RING_BYTES // size, flat.numel() - done)
            if len(buffers) < 2:
                buffers.append([torch.empty(_RING_BYTES, dtype=torch.uint8, pin_memory=flat.is_cuda), None])
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


def _share(groups):
    """Each of `groups` is (the ranks' parts of weights, this rank's masters or None, process group). All ranks get all
    parts."""
    for ranks, masters, group in groups:
        if masters is not None:
            ranks[torch.distributed.get_rank(group)].copy_(masters)
        for rank, part in enumerate(ranks):
            if part.numel() and torch.distributed.get_world_size(group) > 1:
                source = torch.distributed.get_global_rank(group, rank)
                torch.distributed.broadcast(part.view(torch.uint8), source, group=group)


class _Weights:
    """Loads only weights into an engine: they become its masters, and after rounding its weights. All else stays."""

    def __init__(self, engine, plan, strict):
        self.engine, self.plan, self.strict = engine, plan, strict
        self.wrapper = _engine.wrapper_of(engine)
        [(text, storages)] = plan.files()
        self.records = _Storages(storages)
        self.found = self.records.unpickle(text)
        self.reads = []

    def prepare(self):
        if _engine.is_pipeline(self.engine) or _engine.has_experts(self.engine):
            raise UnsupportedError("weights alone are not loaded into pipelines, nor into models with experts")
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
            first, count = _engine.part_of(tensor) if hasattr(tensor, "ds_tensor") else (0, tensor.numel())
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
        _gather(self.plan.gather_into, self.reads, check)
        for at in self.wrapper.swapped():
            with torch.no_grad(), self.wrapper.swapped_in(at):
                _gather(self.plan.gather_into, [self._read(*piece) for piece in self.wrapper.pieces_of(at)], check)

    def finish(self, path, tag, options):
        optimizer = self.engine.optimizer
        if hasattr(optimizer, "checkpoint_event_prologue"):
            optimizer.checkpoint_event_prologue()
        with torch.no_grad():
            _share([(ranks, masters, group) for _, _, ranks, masters, group in self.wrapper.partitions()])
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


@contextlib.contextmanager
def _reading_from_memory(engine, wrapper, folder, dicts):
    """Makes the engine's own load_checkpoint find these files of its rank in memory."""
    from deepspeed.runtime import engine as module
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    def load_file(self, path, map_location=None):
        return dict(dicts[_OPTIMIZER if path.endswith("optim_states.pt") else _MODEL])

    def load_module(checkpoint, **options):
        # Stage 3 would gather parameters and copy whole ones from a file into them.
        options = {**options, **dict.fromkeys(options.keys() & {"z3_params_to_fetch"}), "fetch_z3_params": False}
        if not _engine.is_pipeline(engine):
            return type(engine).load_module_state_dict(engine, checkpoint, **options)
        # A pipeline's own method would open the files of layers, and then do this.
        module.DeepSpeedEngine.load_module_state_dict(engine, checkpoint, **options)
        return engine.module._synchronize_tied_weights()

    there = folder if os.path.exists(folder) else os.curdir  # DeepSpeed looks whether it is; a URL is not
    overrides = {
        "checkpoint_engine": type("InMemory", (TorchCheckpointEngine, ), {"load": load_file})(), "_get_all_ckpt_names": lambda *place: [there] * engine.mp_world_size,
        "load_universal_checkpoint": lambda: False, "load_module_state_dict": load_module,
    }  # fmt: skip
    if hasattr(engine, "zero_nvme_offload_optimizer"):  # it would copy swap files, and read no optimizer states
        overrides["zero_nvme_offload_optimizer"] = lambda: False
    of_optimizer = {"_restore_from_bit16_weights": wrapper.restore_masters} if wrapper.swapped() else {}
    whole_weights, no_more_files = lambda *place, **options: dicts[_MODEL]["module"], lambda *place, **options: None
    with _replaced(module, "get_fp32_state_dict_from_zero_checkpoint", whole_weights), \
         _replaced(module.DeepSpeedEngine, "load_moe_state_dict", staticmethod(no_more_files)), \
         _overridden(engine, overrides), _overridden(engine.optimizer, of_optimizer):
        yield


@contextlib.contextmanager
def _replaced(owner, name, value):
    """Sets an attribute of a module or a class meanwhile."""
    usual = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, usual)


@contextlib.contextmanager
def _overridden(owner, attributes):
    usual = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(owner)[name]
        vars(owner).update(usual)


@contextlib.contextmanager
def _agreement(state):
    """All ranks continue, or all raise the error of the first that failed. `state`: the state of the engine then."""
    failure = None
    try:
        yield
    except _Alone as alone:
        raise _error_of(*_described(alone.__cause__), state) from alone.__cause__
    except Exception as error:
        failure = error
    everyone = _gathered(None if failure is None else _described(failure))
    failed = [(rank, each) for rank, each in enumerate(everyone) if each is not None]
    if not failed:
        return
    rank, (kind, text, where) = failed[0]
    if len(failed) < len(everyone) or any(each != failed[0][1] for _, each in failed):
        text = f"rank {rank}: {text}"
    raise _error_of(kind, text, where, state) from failure


def _error_of(kind, text, where, state):
    text = f"{text}; {state}"
    return RuntimeError(text) if kind is None else BY_KIND[kind](text, **where)


class _Alone(Exception):
    """A rank failed in DeepSpeed's code, and the others were ended, so it can agree with nobody. Its cause says why."""


@contextlib.contextmanager
def _together_in_deepspeed(call):
    """If a rank fails in DeepSpeed's code, others may wait for it in a collective, for half an hour by default.

    So each rank watches the store of the process group meanwhile. A rank that fails writes its reason there. Those that
    do not come out by themselves print it and end their processes, since nothing brings them back from a collective.
    """
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        yield
        return
    watch = _Watch(torch.distributed.distributed_c10d._get_default_store(), call)
    try:
        yield
    except Exception as error:
        # The first reason, not a connection that an ended rank has closed.
        reason = f"rank {_rank()}: {type(error).__name__}: {error}"
        first = watch.tell(reason)
        cause = error if first == reason else RuntimeError(first)
        if not watch.all_come_out():
            raise _Alone from cause
        raise cause from error
    else:
        watch.come_out()


class _Watch:
    """A rank's view of the others through the store, which ends with the process of rank 0."""

    def __init__(self, store, key):
        self._store, self._failed, self._count = store, f"{key}/failed", f"{key}/out"
        self._first, self._out = None, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, reason):
        """Says why this rank failed, and returns the reason of the first that did."""
        self._out.set()
        try:
            self._first = self._store.compare_set(self._failed, "", reason).decode(errors="replace")
        except RuntimeError:
            pass
        return self._first or reason

    def come_out(self):
        self._out.set()
        self._store.add(self._count, 1)

    def all_come_out(self):
        """True if all other ranks come out of DeepSpeed's code, too."""
        try:
            self.come_out()
            for _ in range(int(2 * _GRACE / _POLL)):
                if self._store.add(self._count, 0) == torch.distributed.get_world_size():
                    return True
                time.sleep(_POLL)
        except RuntimeError:
            pass
        return False

    def _watch(self):
        while not self._out.wait(_POLL):
            try:
                if not self._store.check([self._failed]):
                    continue
                self._first = self._store.get(self._failed).decode(errors="replace")
            except RuntimeError:
                return
            if self._out.wait(_GRACE):
                return
            print(f"dsckpt: {self._first}; this rank waited for it in a collective of DeepSpeed's and ends; "
                  f"{_HALF_FILLED}", file=sys.stderr, flush=True)
            os._exit(1)


def _described(error):
    if isinstance(error, _planning.RankZeroFailed):
        return error.why
    if not isinstance(error, Error):
        return None, f"{type(error).__name__}: {error}", {}
    where = {name: getattr(error, name) for name in ("file", "member", "tensor", "offset", "hint")}
    if error.kind == "io":
        where["errno"] = error.errno
    return error.kind, str(error).partition("\nhint: ")[0], where


def _gathered(value):
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return [value]
    everyone = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, value)
    return everyone


def _rank():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


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


def _classes():
    """DeepSpeed's classes in reshard's files."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
