"""Readers of a checkpoint's elements: the compiled module if it is installed, else the program.

Both read object stores (s3://) and web servers (https://), the module if it was built with libcurl.
"""
import math
import os

from . import _tool


_INTERFACE = 10  # of the compiled module


def is_native():
    """Returns whether the compiled module is installed and fits this package."""
    try:
        import dsckpt_native
    except ImportError:
        return False
    return getattr(dsckpt_native, "INTERFACE", 0) == _INTERFACE


def is_native_for(path, roots=()):
    """True if it is installed, and reads `path` and `roots`."""
    if not is_native():
        return False
    import dsckpt_native
    return dsckpt_native.READS_URLS or not any(map(is_far, [path, *roots]))


def open_reader(path, *, states=False, group_names=(), engine_tp=0, **options):
    """A reader for `path`.

    options: tag, model, roots, tp_rules; states: also lists the optimizer's states. group_names: the parameters of
    each group, for optimizers that number them; the program does not accept them. engine_tp: the tensor-parallel ranks
    of the engine that loads it, also only for the module.

    `tensors()` lists (name, state, kind, dtype, shape, alias_of, step or None), each state after its parameter.
    Checkpoint.metadata consists of `facts()`, {} for weights, and `metadata()`, {} for runs. The other methods take an
    index in tensors(). Both readers have the same methods, and any thread may call them.
    """
    if not is_native_for(path, options["roots"]):
        return ToolReader(path, states=states, **options)
    import dsckpt_native
    tag, roots = os.fspath(options["tag"] or ""), [os.fsencode(root) for root in options["roots"]]
    folders = dsckpt_native.FarFolders()  # lives until an error has its text
    return dsckpt_native.Reader(folders, os.fsencode(path), tag, options["model"] or "", roots, list(options["tp_rules"]),
                                states, [list(group) for group in group_names], engine_tp)


def is_far(path):
    """Returns whether it is the URL of an object store or a web server."""
    return "://" in os.fsdecode(path)


class ToolReader:
    """Runs `ckpt-inspect list` once, and `ckpt-inspect print --bytes` for every tensor that is read."""

    def __init__(self, path, *, states, tag, model, roots, tp_rules):
        self._path = path
        self._options = {"tag": tag, "model": model, "root": list(roots), "tp_rule": list(tp_rules)}
        found = _tool.run(["ckpt-inspect", "list"], [path], {"states": states, **self._options}, warns=False)
        self._tensors, self._notes = found["tensors"], found["notes"]
        self._facts, self._metadata = found.get("checkpoint", {}), found.get("metadata", {})

    def tensors(self):
        return [(each["name"], each.get("state", ""), each.get("kind", ""), each["dtype"], tuple(each["shape"]),
                 each.get("alias_of", ""), each.get("step")) for each in self._tensors]

    def notes(self):
        return self._notes

    def facts(self):
        return self._facts

    def metadata(self):
        return self._metadata

    def files(self, index):
        return self._tensors[index]["files"]

    def gather(self, ranges, check, progress):
        """The elements [first, first + count) of tensors, for each (index, first, count), as writable bytes.

        They are whole rows. Records are always checked. progress(bytes_done, bytes_total) is called after each.
        """
        sizes = [self._size(*each) for each in ranges]
        gathered = []
        for each, size in zip(ranges, sizes):
            gathered.append(self._read(*each, size) if size else bytearray())
            if progress:
                progress(sum(sizes[:len(gathered)]), sum(sizes))
        return gathered

    def check(self, index, progress):
        """Does nothing: gather() checks records."""

    def view(self, index):
        """None: the program maps nothing."""
        return None

    def _size(self, index, first, count):
        whole = self._tensors[index]
        elements = math.prod(whole["shape"])
        return whole["bytes"] // elements * count if elements else 0

    def _read(self, index, first, count, size):
        tensor = self._tensors[index]
        row = math.prod(tensor["shape"][1:])
        names = [tensor["name"]]
        if tensor["shape"]:
            names.append(f"{first // row}:{(first + count) // row}")
        options = {"state": tensor.get("state"), "bytes": True, **self._options}
        return _tool.run_for_bytes(["ckpt-inspect", "print"], [self._path], names, options, size)
