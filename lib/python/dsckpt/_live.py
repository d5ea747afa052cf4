"""A checkpoint into a running DeepSpeed engine, without files. Imports torch and DeepSpeed.

reshard's planner says what this rank's files would be. The elements of their tensors go straight into the engine's,
and then DeepSpeed's own load_checkpoint reads these files from memory, whose tensors are the engine's: what it copies
it copies onto itself, and all else it sets itself.
"""
import contextlib
import functools
import io
import os
import pickle
import typing

import torch

from . import _engine
from ._errors import BY_KIND, Error, InconsistentError, UnsupportedError, warn
from ._reader import is_far, is_native, open_reader

_RING_BYTES = 8 << 20  # of a buffer, of which there are two
_MODEL, _OPTIMIZER = 0, 1  # numbers of the files

_WEIGHTS_ALONE = "these are weights alone: the optimizer's states, counters and schedules of the engine stay as they are"
_NOTHING_CHANGED = "nothing of the engine was changed"
_HALF_FILLED = "the engine is half filled: it must not go on before a checkpoint has been loaded"


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
    """What dsckpt.load_checkpoint() does."""
    own = {"load_module_strict": load_module_strict, "load_optimizer_states": load_optimizer_states,
           "load_lr_scheduler_states": load_lr_scheduler_states, "load_module_only": load_module_only}  # fmt: skip
    why = "custom_load_fn is DeepSpeed's to call" if custom_load_fn is not None else _engine.why_unknown(engine)
    if why is not None:
        return _by_deepspeed(engine, path, tag, why, {**own, "custom_load_fn": custom_load_fn})
    states = load_optimizer_states and not load_module_only
    with _agreement(_NOTHING_CHANGED):
        facts = _engine.facts(engine, _engine.wrapper_of(engine), load_module_strict)
        reader = _opened(path, tag, roots, model, tp_rules, facts[2])
        if reader.facts():
            load = _Load(engine, _resume(reader, facts), states)
            notes = load.plan.notes()
        else:
            load, notes = _Weights(engine, reader, load_module_strict), [_WEIGHTS_ALONE]
        load.prepare()
    if _rank() == 0:
        warn(notes)
    with _agreement(_HALF_FILLED):
        load.fill(check)
    with _agreement(_HALF_FILLED):
        return load.finish(os.fspath(path), tag, own)


def patch_engine():
    """Has every DeepSpeedEngine load so. Returns [(class, name, its own)]."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    theirs = DeepSpeedEngine.load_checkpoint
    if hasattr(theirs, "_dsckpt_original"):
        return []

    @functools.wraps(theirs)
    def patched(engine, load_dir, tag=None, *arguments, **options):
        if tag is None and not any(os.path.lexists(os.path.join(load_dir, name))
                                   for name in ("latest", "latest_universal", ".metadata")):
            return theirs(engine, load_dir, tag, *arguments, **options)
        return load_checkpoint(engine, load_dir, tag, *arguments, **options)

    patched._dsckpt_original = theirs
    DeepSpeedEngine.load_checkpoint = patched
    return [(DeepSpeedEngine, "load_checkpoint", theirs)]


def original(engine):
    """DeepSpeed's own method, whatever has been put in its place."""
    method = type(engine).load_checkpoint
    return getattr(method, "_dsckpt_original", method)


def _by_deepspeed(engine, path, tag, why, options):
    warn([f"{why}: DeepSpeed's own load_checkpoint is called"])
    try:
        return original(engine)(engine, path, tag=tag, **options)
    except Exception as error:
        raise UnsupportedError(f"{why}; and DeepSpeed's own load_checkpoint cannot load {os.fspath(path)}: {error}",
                               hint="reshard, or to-universal, makes a checkpoint that DeepSpeed loads") from error


def _opened(path, tag, roots, model, tp_rules, group_names):
    if not is_native():
        raise UnsupportedError("loading into an engine needs the compiled module", hint="pip install dsckpt-native")
    if is_far(path) or any(map(is_far, roots)):
        raise UnsupportedError(f"{os.fspath(path)}: object stores are not read into an engine",
                               hint="reshard reads them, and writes what DeepSpeed loads")
    return open_reader(path, states=True, group_names=group_names, tag=None if tag is None else str(tag), model=model,
                       roots=roots, tp_rules=tp_rules)


def _resume(reader, facts):
    import dsckpt_native
    return dsckpt_native.Resume(reader, *facts)


class _Place(typing.NamedTuple):
    """Where a rank's file has a tensor that the engine may have, too."""
    holder: typing.Any
    key: typing.Any
    live: torch.Tensor  # the engine's
    kind: str  # "entry" of the model, "masters", or "state": then `live` is the master whose it is

    @property
    def planned(self):
        return self.holder[self.key]


class _Load:
    """One call, of one rank. Nothing of the engine is changed by prepare()."""

    def __init__(self, engine, plan, states):
        self.engine, self.plan, self.states = engine, plan, states
        self.wrapper = _engine.wrapper_of(engine)
        self.module = _engine.state_of(engine)
        self.dicts = []
        self.reads = []  # those of _gather()
        self._places_read = set()
        self.shared = []  # (the ranks' parts of a group's weights, this rank's masters or None, process group)

    # --- before anything changes

    def prepare(self):
        saved = []
        for number, (_, text, storages) in enumerate(self.plan.files()):
            records = _Storages(storages)
            saved.append((number, text, records, records.unpickle(text)))
        self._check_layout(*(each[3] for each in saved))
        for number, text, records, planned in saved:
            places = list(self._places(number, planned))
            parts = self._read_parts(records, places) if number == _MODEL else {}
            targets = [self._target(number, place, records, parts) for place in places]
            used = self.states or number == _MODEL  # else DeepSpeed does not look at it
            _put(places, targets)
            if used:
                for key in records.met_in(planned):
                    memory = records.allocate(key)
                    self.reads.append(_Read((number, key), memory.itemsize, 0, memory, memory.dtype))
                planned = records.unpickle(text)
                _put(list(self._places(number, planned)), targets)
            self.dicts.append(planned)

    def _places(self, number, saved):
        if number == _MODEL:
            module, frozen = saved["module"], saved.get("frozen_param_fragments") or {}
            for name, tensor in self.module.items():
                if isinstance(module.get(name), torch.Tensor) and not hasattr(tensor, "ds_tensor"):
                    yield _Place(module, name, tensor.data, "entry")
                if isinstance(frozen.get(name), torch.Tensor):
                    yield _Place(frozen, name, getattr(tensor, "ds_tensor", tensor).data, "entry")
        stage0 = len(self.plan.files()) == 1
        if number == _MODEL and not stage0:
            return
        states = saved["optimizer"] if stage0 else saved["optimizer_state_dict"]
        for holder, key, flat in self.wrapper.master_places(states):
            yield _Place(holder, key, flat, "masters")
        if not self.states:
            return
        base, flats = states[self.wrapper.base] if self.wrapper.base else states, self.wrapper.flats()
        for at, state in base["state"].items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.numel() == flats[at].numel() > 1:
                    yield _Place(state, key, flats[at], "state")

    def _target(self, number, place, records, parts):
        """The engine's tensor for one of the plan, which is going to be read; None: it gets memory of its own."""
        planned, live = place.planned, place.live
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

    def _state(self, owner, key, planned):
        """What the optimizer has of this state already, else new memory."""
        held = self.wrapper.inner.state.get(owner, {}).get(key)
        if isinstance(held, torch.Tensor) and held.dtype == planned.dtype and held.shape == planned.shape \
                and held.is_contiguous() and held.device == owner.device:
            return held
        return torch.empty(planned.shape, dtype=planned.dtype, device=owner.device)

    def _read_parts(self, records, places):
        """Has each rank read its part of the weights alone, where the engine has a flat tensor of all.

        The entries of the module that need no more then, as {"in": the module, "names": names}.
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
        """The elements of `planned` from `first` on; those of tied parameters once."""
        key, dtype = records.key_of(planned), planned.dtype
        begin = (planned.storage_offset() + first) * dtype.itemsize
        place = (number, key, begin, flat.data_ptr(), flat.numel())
        if place not in self._places_read:
            self._places_read.add(place)
            unit = records.unit_of(key)  # a storage may have no type of its own
            self.reads.append(_Read((number, key), unit, begin // unit, flat, dtype))

    def _check_layout(self, model, optimizer=None):
        """That the plan has for each of the optimizer's tensors what the engine has."""
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
        """The engine's names of the parameters that have several."""
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

    def finish(self, path, tag, options):
        with torch.no_grad():
            _share(self.shared)
            if isinstance(self.wrapper, _engine.Zero3Optimizer) and not self.states:
                self.wrapper.set_weights()
        return self._through_deepspeed(path, tag, options)

    def _through_deepspeed(self, path, tag, options):
        engine, folder = self.engine, self.plan.folder()
        own = os.path.basename(folder) if tag is None else str(tag)
        with _reading_from_memory(engine, folder, self.dicts):
            loaded, client_state = original(engine)(engine, path, tag=own, **options)
        if loaded is None:
            raise UnsupportedError("DeepSpeed's own load_checkpoint found nothing to load")
        name = engine._get_ckpt_name(path, own)
        return (name if os.path.exists(name) else folder), client_state


class _Storages:
    """The storages of one file: without memory, until they are given some."""

    def __init__(self, described):
        self._described = [(getattr(torch, dtype), numel) for dtype, numel in described]
        self._bare = [torch.UntypedStorage(dtype.itemsize * numel, device="meta") for dtype, numel in self._described]
        self._keys = {storage._cdata: key for key, storage in enumerate(self._bare)}
        self._memory = {}

    def key_of(self, tensor):
        return self._keys[tensor.untyped_storage()._cdata]

    def unit_of(self, key):
        """The bytes of one of its elements."""
        return self._described[key][0].itemsize

    def allocate(self, key):
        dtype, numel = self._described[key]
        self._memory[key] = torch.empty(numel, dtype=dtype)
        return self._memory[key]

    def met_in(self, value):
        """The storages without memory of all tensors in `value`."""
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
        """The value, with tensors in the storages. As torch.load(weights_only=True) does it."""
        from torch import _weights_only_unpickler
        unpickler = _weights_only_unpickler.Unpickler(io.BytesIO(text), encoding="utf-8")
        unpickler.persistent_load = self._storage
        try:
            with torch.serialization.safe_globals([*torch.serialization.get_safe_globals(), *_classes()]):
                return unpickler.load()
        except pickle.UnpicklingError as error:
            raise UnsupportedError(f"the checkpoint has a value that is not taken from a file: {error}",
                                   hint="torch.serialization.add_safe_globals() allows a class") from error

    def _storage(self, described):
        _, kind, key, _, _ = described
        key = int(key)
        dtype = torch.uint8 if kind is torch.UntypedStorage else kind.dtype
        memory = self._memory.get(key)
        bare = self._bare[key] if memory is None else memory.untyped_storage()
        return torch.storage.TypedStorage(wrap_storage=bare, dtype=dtype, _internal=True)


class _Read(typing.NamedTuple):
    """Elements of a storage, from its element `first` on, which has `unit` bytes."""
    what: "tuple[int, ...]"  # the storage
    unit: int
    first: int
    flat: torch.Tensor  # that takes them
    dtype: torch.dtype  # theirs

    @property
    def is_direct(self):
        return self.flat.device.type == "cpu" and self.flat.dtype == self.dtype

    def place(self, begin, count, address):
        """What gather_into() takes, of `count` elements from `begin` on."""
        scale = self.dtype.itemsize // self.unit
        return (*self.what, self.first + begin * scale, count * scale, address)


def _gather(gather_into, reads, check):
    reads = [read for read in reads if read.flat.numel()]
    places = [read.place(0, read.flat.numel(), read.flat.data_ptr()) for read in reads if read.is_direct]
    with torch.no_grad():
        gather_into(places, check, None)
        _through_ring(gather_into, [read for read in reads if not read.is_direct], check)


def _through_ring(gather_into, reads, check):
    """To another device or type, through two buffers: one is read into while the other is copied."""
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
    """Each of `groups` is (the ranks' parts of weights, this rank's masters or None, process group): all get all parts."""
    for ranks, masters, group in groups:
        if masters is not None:
            ranks[torch.distributed.get_rank(group)].copy_(masters)
        for rank, part in enumerate(ranks):
            if part.numel() and torch.distributed.get_world_size(group) > 1:
                source = torch.distributed.get_global_rank(group, rank)
                torch.distributed.broadcast(part.view(torch.uint8), source, group=group)


class _Weights:
    """Weights alone into an engine: its masters are these numbers, and the weights those rounded. All else stays."""

    def __init__(self, engine, reader, strict):
        self.engine, self.reader, self.strict = engine, reader, strict
        self.wrapper = _engine.wrapper_of(engine)
        self.reads = []

    def prepare(self):
        state = _engine.state_of(self.engine)
        found = {entry[0]: (index, entry) for index, entry in enumerate(self.reader.tensors()) if not entry[1]}
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
        for p, first, masters in pieces:
            self._read(own[id(p)], found, p, first, masters)
        for tensor in {id(tensor): tensor for tensor in state.values()}.values():
            if id(tensor) in trained or own[id(tensor)] is None:
                continue
            first, count = _engine.part_of(tensor) if hasattr(tensor, "ds_tensor") else (0, tensor.numel())
            self._read(own[id(tensor)], found, tensor, first, _flat(tensor)[:count])

    def _read(self, name, found, tensor, first, flat):
        index, (_, _, _, dtype, shape, _) = found[name]
        if tuple(shape) != _engine.shape_of(tensor):
            raise InconsistentError(f"{name} has shape {list(shape)} in the weights, "
                                    f"{list(_engine.shape_of(tensor))} in the engine", tensor=name)
        if dtype == "float64":
            raise UnsupportedError(f"{name} is float64, and would be rounded", tensor=name)
        kind = getattr(torch, dtype)
        self.reads.append(_Read((index, ), kind.itemsize, first, flat, kind))

    def fill(self, check):
        _gather(self.reader.gather_into, self.reads, check)

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
    """The memory of what the optimizer does not own."""
    data = getattr(tensor, "ds_tensor", tensor).data
    if not data.is_contiguous():
        raise UnsupportedError("the engine has a frozen parameter or a buffer that is not contiguous")
    return data.view(-1)


@contextlib.contextmanager
def _reading_from_memory(engine, folder, dicts):
    """Has the engine's own load_checkpoint find these files of its rank, in place of any on a disk."""
    from deepspeed.runtime import engine as module
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    def load_file(self, path, map_location=None):
        return dict(dicts[_OPTIMIZER if path.endswith("optim_states.pt") else _MODEL])

    def load_module(checkpoint, **options):
        # Without optimizer states stage 3 would gather all parameters, and copy whole ones of a file into them.
        return type(engine).load_module_state_dict(engine, checkpoint, **{**options, "fetch_z3_params": False})

    whole_weights = "get_fp32_state_dict_from_zero_checkpoint"
    overrides = {
        "checkpoint_engine": type("InMemory", (TorchCheckpointEngine, ), {"load": load_file})(), "_get_all_ckpt_names": lambda *place: [folder],
        "load_universal_checkpoint": lambda: False, "load_module_state_dict": load_module,
    }  # fmt: skip
    usual = {name: vars(engine)[name] for name in overrides if name in vars(engine)}
    theirs = getattr(module, whole_weights, None)
    setattr(module, whole_weights, lambda *place, **options: dicts[_MODEL]["module"])
    for name, value in overrides.items():
        setattr(engine, name, value)
    try:
        yield
    finally:
        setattr(module, whole_weights, theirs)
        for name in overrides:
            delattr(engine, name)
        for name, value in usual.items():
            setattr(engine, name, value)


@contextlib.contextmanager
def _agreement(state):
    """All ranks go on, or all raise what the first one did. `state`: how the engine is left then."""
    failure = None
    try:
        yield
    except Exception as error:
        failure = error
    everyone = _gathered(None if failure is None else _described(failure))
    failed = [(rank, each) for rank, each in enumerate(everyone) if each is not None]
    if not failed:
        return
    rank, (kind, text, where) = failed[0]
    if len(failed) < len(everyone) or any(each != failed[0][1] for _, each in failed):
        text = f"rank {rank}: {text}"
    text = f"{text}; {state}"
    raise (RuntimeError(text) if kind is None else BY_KIND[kind](text, **where)) from failure


def _described(error):
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
    """DeepSpeed's that reshard's files have."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    return [DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]
