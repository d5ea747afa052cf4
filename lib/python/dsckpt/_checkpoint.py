"""A checkpoint as a mapping of names to lazy tensors."""
import math
import os
import struct
import threading
import weakref
from collections.abc import Mapping
from numbers import Integral

from ._arrays import NUMPY, PIECE, SIZES, Form, batches, bytes_text
from ._errors import InconsistentError, UsageError, warn
from ._reader import ToolReader, is_far, open_reader
from ._tool import dtype_name

class Checkpoint(Mapping):
    """The result of `dsckpt.open()`: names to `Tensor`s, in the order of DeepSpeed's zero_to_fp32.

    Only metadata is read before a tensor is used. Tensors outlive this object. Any thread may use both. A checkpoint
    can be pickled for worker processes; unpickling opens the same path again.

    path: as it was given.
    notes: notes for the user, a list of texts. When the checkpoint was opened, they were warnings (DsckptWarning).
    metadata: facts about the run: "layout", "zero_stage", "tag", "global_steps", "ds_version",
        "optimizer_wrapper", "mesh" ({"pp", "tp", "dp", "ep"}, ranks of each kind). For weights in safetensors it is
        the
        metadata in their files ("format", ties); for other weights it is empty.
    step, tag, stage, ranks: the number of optimizer steps, the tag, the ZeRO stage, and the number of ranks
        that saved it (pp * tp * dp), from `metadata`. None if the files do not have it.
    """

    def __init__(self, path, *, check, mmap, framework, dtype=None, device=None, **options):
        self.path = path
        self._checks = _LaterChecks() if check == "later" else None
        self._check, self._mmap, self._options = check is True, mmap, options
        self._opened_with = {"check": check, "mmap": mmap, "framework": framework, "dtype": dtype, "device": device}
        self._form = Form.of(framework, dtype, device)
        self._lock = threading.Lock()
        self._with_states = None
        self._reader = open_reader(path, **options)
        self._tensors = {entry[0]: Tensor(self, self._reader, index, entry)
                         for index, entry in enumerate(self._reader.tensors()) if not entry[1]}
        self._said_in_files = self._reader.metadata()
        self._add_ties()

    @property
    def notes(self):
        return self._reader.notes()

    @property
    def metadata(self):
        return {**self._said_in_files, **self._reader.facts()}

    @property
    def step(self):
        return self._reader.facts().get("global_steps")

    @property
    def tag(self):
        return self._reader.facts().get("tag") or None

    @property
    def stage(self):
        return self._reader.facts().get("zero_stage")

    @property
    def ranks(self):
        mesh = self._reader.facts().get("mesh")
        return mesh and mesh["pp"] * mesh["tp"] * mesh["dp"]

    def __getitem__(self, name):
        try:
            return self._tensors[name]
        except (KeyError, TypeError):
            raise _NoSuchTensor(name, self._tensors) from None

    def __contains__(self, name):
        return name in self._tensors

    def get(self, name, default=None):
        return self._tensors.get(name, default)

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)

    def __repr__(self):
        return f"<dsckpt.Checkpoint {os.fspath(self.path)!r}, {', '.join(self._said())}>"

    def _repr_html_(self):
        from ._html import html_of
        return html_of(self, self._said())

    def _ipython_key_completions_(self):
        return list(self)

    def _said(self):
        """["global_step500", "step 500", "stage 3", "8 ranks", "291 tensors", "13.5 GB"]"""
        own = [tensor for tensor in self.values() if not tensor.alias_of]
        said = [] if self.tag is None else [self.tag]
        if self.step is not None and not (self.tag or "").endswith(str(self.step)):
            said.append(f"step {self.step}")
        if self.stage is not None:
            said.append(f"stage {self.stage}")
        if self.ranks is not None:
            said.append(f"{self.ranks} rank{'s' * (self.ranks != 1)}")
        said.append(f"{len(self)} tensor{'s' * (len(self) != 1)}")
        return [*said, bytes_text(sum(tensor.nbytes for tensor in own))]

    def __reduce__(self):
        path = self.path if is_far(self.path) else os.path.abspath(os.fsdecode(self.path))
        options = {**self._opened_with, **self._options}
        # `latest` may name another tag by then.
        if not options["tag"] and self.tag and not is_far(path) and os.path.isdir(os.path.join(path, self.tag)):
            options["tag"] = self.tag
        return _opened_again, (path, options, (self.tag, self.step))

    def state_dict(self, names=None, *, states=False, dtype=None, device=None, progress=None):
        """The tensors called `names` (default: all) as a dictionary, read together, on all cores.

        Values are torch tensors, or arrays with framework="np". Tied ones share one object's memory.

        states: the optimizer's states instead of the weights: ``{name: {"exp_avg": tensor, ...}}`` for the
            parameters with states, in the parameters' shapes. They equal "state" of torch's
            get_optimizer_state_dict(). The "step" is a float32; it is missing if the files have no steps.
        dtype, device: like open()'s, which are the defaults.
        progress: like convert()'s.
        """
        form = self._form.changed(dtype, device)
        if states:
            of_each = {name: self[name].states for name in (self if names is None else names)
                       if not self[name].alias_of}
            read = iter(self._together([each for found in of_each.values() for each in found.values()], form,
                                       progress))
            return {name: {**self._as_step(name), **{key: next(read) for key in found}}
                    for name, found in of_each.items() if found}
        chosen = {name: self[name] for name in (self if names is None else names)}
        own = {}
        for tensor in chosen.values():
            own.setdefault(tensor._owner()._index, tensor._owner())
        read = dict(zip(own, self._together(list(own.values()), form, progress)))
        return {name: read[tensor._owner()._index] for name, tensor in chosen.items()}

    def iter_batches(self, bytes=256 << 20, names=None, *, dtype=None, device=None):
        """All tensors, or those called `names`, as a series of dictionaries like state_dict()'s.

        bytes: the most that the tensors of one dictionary may take together, as stored. A larger tensor comes
            alone. Memory is needed for one dictionary at a time, if the caller keeps none. Tied ones come together.
        """
        groups = {}
        for name in self if names is None else names:
            owner = self[name]._owner()
            groups.setdefault(owner.name, (owner, []))[1].append(name)
        batch, size = [], 0
        for owner, tied in groups.values():
            if batch and size + owner.nbytes > bytes:
                yield self.state_dict(batch, dtype=dtype, device=device, progress=False)
                batch, size = [], 0
            batch += tied
            size += owner.nbytes
        if batch:
            yield self.state_dict(batch, dtype=dtype, device=device, progress=False)

    def load_into(self, model, strict=True, *, progress=None):
        """Copies the tensors into the parameters and buffers of `model`, a torch.nn.Module, which keep their types and
        devices. Tensors are read in pieces, so there is never a second state dict.

        strict: if a name is missing on one side, raises InconsistentError and copies nothing. A name that is tied to
        an
            existing name is not missing.
        Returns ``(missing_keys, unexpected_keys)`` like torch's load_state_dict(). Raises InconsistentError if shapes
        differ, and UsageError for a model without memory (device meta).
        """
        from ._load import load_into
        return load_into(self, model, strict, progress)

    def read_into(self, targets, *, progress=None):
        """Reads tensors into the caller's memory. `targets` maps names to torch tensors, NumPy arrays, or objects with
        DLPack, of the same shapes.

        A contiguous target of the stored type on the CPU is read into directly. Other targets get the elements in
        pieces, converted to their types and copied to their devices.

        If shapes differ, raises InconsistentError; if a target is read-only, raises UsageError. Nothing is written
        then.
        """
        from ._into import read_into
        read_into(self, targets, progress)

    def finish_checks(self):
        """Waits for the checks that ``check="later"`` began, and raises the error of the first wrong record."""
        if self._checks:
            self._checks.finish()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.finish_checks()

    def _add_ties(self):
        """Adds tied names that only the metadata of safetensors has: `{"lm_head.weight": "embed.weight"}`. This
        program, transformers and safetensors.torch.save_model write them."""
        for alias, owner in self._said_in_files.items():
            if alias not in self._tensors and owner in self._tensors:
                its = self._tensors[owner]
                entry = (alias, "", its.kind, its.dtype, its.shape, owner, None)
                self._tensors[alias] = Tensor(self, self._reader, its._index, entry)

    def _together(self, tensors, form, progress):
        """The array or tensor of each of `tensors` in this form. They belong to one reader."""
        if not tensors:
            return []
        if all(form.keeps(tensor.dtype) for tensor in tensors):
            return [self._as_array(tensor, *elements, form=form)
                    for tensor, elements in zip(tensors, self._read(tensors, progress))]
        from ._tool import shown
        with shown("reading", progress) as report:
            done, total, read = 0, sum(tensor.nbytes for tensor in tensors), []
            for batch in batches(tensors):
                if len(batch) == 1:
                    read.append(self._cast(batch[0], form))
                else:
                    read += [self._as_array(tensor, *elements, form=form)
                             for tensor, elements in zip(batch, self._read(batch))]
                done += sum(tensor.nbytes for tensor in batch)
                if report:
                    report(done, total)
        return read

    def _cast(self, tensor, form):
        """The whole `tensor`, read in pieces."""
        rows = self._rows_of_piece(tensor)
        if form.keeps(tensor.dtype) or rows is None:
            (data, strides), = self._read([tensor])
            return self._as_array(tensor, data, strides, form=form)
        made = form.empty(tensor.dtype, tensor.shape)
        for begin, end, piece in self._pieces(tensor, rows, form):
            made[begin:end] = piece
            del piece
        return made

    def _rows_of_piece(self, tensor):
        """The number of rows in a piece, or None to read everything at once."""
        # For every piece the program would start anew and check the whole record.
        if not tensor.shape or not tensor.nbytes or self._mmap or isinstance(tensor._reader, ToolReader):
            return None
        rows = max(1, PIECE // (tensor.nbytes // tensor.shape[0]))
        return None if rows >= tensor.shape[0] else rows

    def _pieces(self, tensor, rows, form):
        """(begin, end, elements as stored) of consecutive rows. Neither this nor the caller should keep them."""
        if self._checks:
            self._checks.begin([tensor])
        for begin in range(0, tensor.shape[0], rows):
            end = min(begin + rows, tensor.shape[0])
            yield begin, end, self._piece(tensor, begin, end, form)

    def _piece(self, tensor, begin, end, form):
        row = math.prod(tensor.shape[1:])
        data, = tensor._reader.gather([(tensor._index, begin * row, (end - begin) * row)], self._check, None)
        return form.make(data, tensor.dtype, (end - begin, *tensor.shape[1:]), None)

    def _read(self, tensors, progress=False):
        """(bytes, strides in elements or None) of each"""
        found = {}
        if self._checks:
            self._checks.begin(tensors)
        if self._mmap:
            for tensor in tensors:
                view = tensor._reader.view(tensor._index)
                if view is not None:
                    if self._check:
                        tensor._reader.check(tensor._index, None)
                    found[tensor._index] = view
        rest = [tensor for tensor in tensors if tensor._index not in found]
        if rest:
            from ._tool import shown
            with shown("reading", progress) as report:
                ranges = [(tensor._index, 0, tensor.numel) for tensor in rest]
                gathered = rest[0]._reader.gather(ranges, self._check, report)
            found.update((tensor._index, (data, None)) for tensor, data in zip(rest, gathered))
        return [found[tensor._index] for tensor in tensors]

    def _as_array(self, tensor, data, strides, shape=None, form=None):
        form = form or self._form
        return form.of_array(form.make(data, tensor.dtype, tensor.shape if shape is None else shape, strides),
                             tensor.dtype)

    def _states_of(self, name):
        with self._lock:
            if self._with_states is None:
                reader = open_reader(self.path, states=True, **self._options)
                self._with_states = {}
                for index, entry in enumerate(reader.tensors()):
                    of_parameter = self._with_states.setdefault(entry[0], {})
                    of_parameter[entry[1]] = Tensor(self, reader, index, entry)
        of_parameter = self._with_states.get(name, {})
        return {state: tensor for state, tensor in of_parameter.items() if state}

    def _as_step(self, name):
        step = self[name].step
        return {} if step is None else {"step": self._form.make(bytearray(struct.pack("<f", step)), "float32", (), None)}

    def _step_of(self, name):
        self._states_of(name)
        own = self._with_states.get(name, {}).get("")
        return None if own is None else own._step


def _opened_again(path, options, saved):
    """Called by a pickle of a Checkpoint. saved: tag and step of the pickled one."""
    checkpoint = Checkpoint(path, **options)
    if (checkpoint.tag, checkpoint.step) != saved:
        raise InconsistentError(f"{os.fspath(path)}: is not the checkpoint that was pickled: "
                                f"{checkpoint.tag}, step {checkpoint.step}, not {saved[0]}, step {saved[1]}")
    return checkpoint


def _tensor_of(checkpoint, name, state):
    """Called by a pickle of a Tensor."""
    return checkpoint[name].states[state] if state else checkpoint[name]


class _NoSuchTensor(KeyError):
    """A KeyError for a name, which suggests similar names. The search runs only when the message is read."""

    def __init__(self, name, names=()):
        super().__init__(name)
        self._names = names

    def __str__(self):
        from difflib import get_close_matches
        near = get_close_matches(str(self.args[0]), list(self._names), 1)
        return f"{self.args[0]!r}: there is no such tensor" + (f"; most like it is {near[0]!r}" if near else "")


class _LaterChecks:
    """Checks in a thread. The error of each wrong record is raised once, by the next call or at the latest at exit."""

    def __init__(self):
        from concurrent.futures import ThreadPoolExecutor
        self._thread = ThreadPoolExecutor(1, "dsckpt-check")
        self._lock = threading.Lock()
        self._begun, self._seen, self._raised = [], set(), set()
        weakref.finalize(self, self._report, self._thread, self._begun, self._raised)

    def begin(self, tensors):
        with self._lock:
            self._raise_first(self._begun, self._raised, lambda check: check.done())
            for tensor in tensors:
                key = (id(tensor._reader), tensor._index)
                if key not in self._seen:
                    self._seen.add(key)
                    self._begun.append(self._thread.submit(tensor._reader.check, tensor._index, None))

    def finish(self):
        with self._lock:
            self._raise_first(self._begun, self._raised)

    @staticmethod
    def _raise_first(begun, raised, wanted=lambda check: True):
        for check in [check for check in begun if wanted(check)]:
            error = check.exception()
            begun.remove(check)
            if error is not None and str(error) not in raised:
                raised.add(str(error))
                raise error

    @classmethod
    def _report(cls, thread, begun, raised):
        """For errors at exit, when nobody can catch them. They are reported like exceptions in finalizers."""
        thread.shutdown()
        cls._raise_first(begun, raised)


class Tensor:
    """A tensor of a checkpoint. Each access reads its elements from the files anew.

    name, state: the parameter, and the name of its optimizer state ("": the parameter itself).
    kind: "trainable", "frozen" or "buffer"; "" for weights.
    dtype: torch's name of the stored type, such as "bfloat16"; float32 for trained parameters. shape: a tuple, in
    elements.
    ndim, numel: the number of dimensions and elements. nbytes: the bytes that these take as stored.
    alias_of: for a tied tensor the name of its owner, else "".

    ``t[...]`` and ``t[2:4, 0]`` give a torch tensor (or an array, depending on open()'s `framework`). If the first
    index is a number or a range, only those rows are read. ``t.torch()``, ``t.numpy()``, ``t.to("cuda",
    torch.bfloat16)``, ``torch.from_dlpack(t)`` and ``numpy.asarray(t)`` give the whole tensor. The memory belongs to
    the caller: writing to it changes no file. open()'s `dtype` and `device` apply to all except dlpack, whose only
    device is the CPU.

    Reading raises CorruptError for a record with a wrong checksum. It raises IoError, also for a file that was changed
    or cut meanwhile, and KeyboardInterrupt.
    """

    __slots__ = ("_checkpoint", "_reader", "_index", "name", "state", "kind", "dtype", "shape", "alias_of",
                 "_step")

    def __init__(self, checkpoint, reader, index, entry):
        self._checkpoint, self._reader, self._index = checkpoint, reader, index
        self.name, self.state, self.kind, self.dtype, self.shape, self.alias_of, self._step = entry

    @property
    def numel(self):
        return math.prod(self.shape)

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def nbytes(self):
        return self.numel * SIZES[self.dtype]

    @property
    def files(self):
        """The files with its elements, by their names below the checkpoint's folder."""
        return list(self._reader.files(self._index))

    @property
    def states(self):
        """The optimizer's states of the parameter: {"exp_avg": Tensor, ...}. The first use reads their metadata."""
        if self.state:
            return {}
        return self._checkpoint._states_of(self.name)

    @property
    def step(self):
        """The number of steps that the optimizer has made with it; None where the files do not say, and of states. The
        first use reads the states' metadata."""
        return None if self.state or self.alias_of else self._checkpoint._step_of(self.name)

    def __repr__(self):
        state = f" {self.state}" if self.state else ""
        return f"<dsckpt.Tensor {self.name!r}{state} {self.dtype} {list(self.shape)}>"

    def __reduce__(self):
        return _tensor_of, (self._checkpoint, self.name, self.state)

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of a 0-dim tensor")
        return self.shape[0]

    def __getitem__(self, key):
        first = key[0] if isinstance(key, tuple) and key else key
        if not self.shape or isinstance(first, bool) or not isinstance(first, (Integral, slice)):
            return self._whole()[key]
        rest = key[1:] if isinstance(key, tuple) else ()
        if isinstance(first, slice):
            begin, end, step = first.indices(self.shape[0])
            if step <= 0:
                return self._whole()[key]
            return self._rows(begin, max(begin, end))[(slice(None, None, step), *rest)]
        row = int(first)
        if not -self.shape[0] <= row < self.shape[0]:
            raise IndexError(f"index {row} is out of range for {self!r}")
        row %= self.shape[0]
        return self._rows(row, row + 1)[(0, *rest)]

    def torch(self, *, dtype=None, device=None):
        """The whole tensor as a torch.Tensor. dtype, device: like open()'s, which are the defaults."""
        return self._whole(self._checkpoint._form.of_torch().changed(dtype, device))

    def to(self, *what, dtype=None, device=None):
        """Like torch.Tensor.to(): ``t.to("cuda")``, ``t.to(torch.float16)``, ``t.to("cuda", torch.float16)``. The
        elements are read anew. Only floating elements are converted; integers keep their type."""
        for each in what:
            if dtype_name(each):
                dtype = each
            else:
                device = each
        return self.torch(dtype=dtype, device=device)

    def numpy(self):
        """The whole tensor as a numpy.ndarray. bfloat16 and float8 need the package ml_dtypes."""
        return self._whole(self._checkpoint._form.of_numpy())

    def contiguous(self):
        """The same as torch(), for callers of DeepSpeed's lazy tensors."""
        return self.torch()

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options):
        array = self.numpy() if self.dtype in NUMPY else self.torch(device="cpu")
        return array.__dlpack__(**options)

    def __dlpack_device__(self):
        return 1, 0  # kDLCPU

    def _owner(self):
        return self._checkpoint[self.alias_of] if self.alias_of and not self.state else self

    def _whole(self, form=None):
        return self._checkpoint._cast(self, form or self._checkpoint._form)

    def _rows(self, begin, end):
        if self._checkpoint._mmap:
            return self._whole()[begin:end]
        if self._checkpoint._checks:
            self._checkpoint._checks.begin([self])
        row = math.prod(self.shape[1:])
        data, = self._reader.gather([(self._index, begin * row, (end - begin) * row)], self._checkpoint._check, None)
        return self._checkpoint._as_array(self, data, None, (end - begin, *self.shape[1:]))


def open(path, *, tag=None, model=None, roots=(), tp_rules=(), check=True, mmap=False, framework="pt", dtype=None,
         device=None):
    """The checkpoint or weights at `path`, as a mapping of names to lazy tensors.

        >>> ckpt = dsckpt.open("checkpoint-500")                    # doctest: +SKIP
        >>> ckpt["lm_head.weight"][:2]                              # doctest: +SKIP
        tensor([[-0.0101, ...], [0.0123, ...]])
        >>> ckpt["lm_head.weight"].states["exp_avg"].shape          # doctest: +SKIP
        (32000, 4096)

    tag, model, roots, tp_rules: --tag, --model, --root and --tp-rule of the tools.
    check: True: compares the checksum of a record before its first tensor is handed out, which reads the whole
        record. "later": compares it in another thread. The next use of a tensor, finish_checks() or the end of a
        `with`
        block raises an error that it finds; if none does, the error is printed at exit. False: does not compare.
    mmap: maps tensors that lie in one file in a form that torch can view. The mapping is private and not copied. If
    such
        a file is cut or its disk fails, touching the tensor kills the process (SIGBUS). Needs dsckpt-native; without
        it,
        nothing is mapped.
    framework: the result of indexing: "pt" for torch tensors, "np" for NumPy arrays.
    dtype: converts floating elements piece by piece while they are read: torch.bfloat16, "bf16", numpy.float16,
        ... Integers keep their type. Default: the stored type.
    device: the device of torch tensors, filled piece by piece: "cuda", torch.device("cuda:1"), ... Default: the CPU.

    Raises the errors of the tools, as `Error`s.
    """
    if check not in (True, False, "later"):
        raise UsageError(f"check is True, False or 'later', not {check!r}")
    if framework not in ("pt", "np"):
        raise UsageError(f"framework is 'pt' or 'np', not {framework!r}")
    if isinstance(roots, (str, bytes, os.PathLike)) or isinstance(tp_rules, str):
        raise UsageError("roots and tp_rules are lists")
    checkpoint = Checkpoint(path, check=check, mmap=mmap, framework=framework, dtype=dtype, device=device, tag=tag,
                            model=model, roots=tuple(roots), tp_rules=tuple(tp_rules))
    warn(checkpoint.notes)
    return checkpoint
