"""What reads a checkpoint's elements: the compiled module where it is installed, else the program.

Object stores (s3://) and web servers (https://) are read by the program.
"""
import math
import os

from . import _tool


_INTERFACE = 4  # of the compiled module


def is_native():
    """Whether the compiled module is installed, and fits this package."""
    try:
        import dsckpt_native
    except ImportError:
        return False
    return getattr(dsckpt_native, "INTERFACE", 0) == _INTERFACE


def open_reader(path, *, states=False, group_names=(), **options):
    """A reader of what lies at `path`.

    options: tag, model, roots, tp_rules; states: the optimizer's states are among its tensors. group_names: the names
    of the parameters of each group, for optimizers that number them; the program does not take them.

    Of a reader, `tensors()` lists (name, state, kind, dtype, shape, alias_of), a state following its parameter, and
    `facts()` is Checkpoint.metadata, {} of weights; the other methods take the number of one there. Both readers have
    the same methods; any thread may call them.
    """
    if not is_native() or is_far(path) or any(map(is_far, options["roots"])):
        return ToolReader(path, states=states, **options)
    import dsckpt_native
    tag, roots = os.fspath(options["tag"] or ""), [os.fsencode(root) for root in options["roots"]]
    return dsckpt_native.Reader(os.fsencode(path), tag, options["model"] or "", roots, list(options["tp_rules"]),
                                states, [list(group) for group in group_names])


def is_far(path):
    """Whether it is the URL of an object store or a web server."""
    return "://" in os.fsdecode(path)


class ToolReader:
    """Runs `ckpt-inspect list` once, and `ckpt-inspect print --bytes` for every tensor that is read."""

    def __init__(self, path, *, states, tag, model, roots, tp_rules):
        self._path = path
        self._options = {"tag": tag, "model": model, "root": list(roots), "tp_rule": list(tp_rules)}
        found = _tool.run(["ckpt-inspect", "list"], [path], {"states": states, **self._options}, warns=False)
        self._tensors, self._notes, self._facts = found["tensors"], found["notes"], found.get("checkpoint", {})

    def tensors(self):
        return [(each["name"], each.get("state", ""), each.get("kind", ""), each["dtype"], tuple(each["shape"]),
                 each.get("alias_of", "")) for each in self._tensors]

    def notes(self):
        return self._notes

    def facts(self):
        return self._facts

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
        """Nothing: gather() has done it."""

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
