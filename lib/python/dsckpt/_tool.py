"""Runs the program in the wheel."""
import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable

from ._errors import BY_KIND, Error, UsageError, warn

_program = None


def program():
    """The path of the program `dsckpt`: the one installed with this package, else the one in PATH."""
    global _program
    if _program is None:
        places = dict.fromkeys(os.path.realpath(place) for place in _places())
        _program = next((place for place in places if os.access(place, os.X_OK)), None) or _unpacked() or _in_path(places)
    return _program


def _places():
    """Possible paths of the program that was installed with this package, if they exist."""
    from importlib.metadata import Distribution
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # A record beside this package belongs to it. An editable install has its record elsewhere.
    for record in (*Distribution.discover(name="dsckpt", path=[home]), *Distribution.discover(name="dsckpt")):
        for path in record.files or ():
            if path.name == "dsckpt" and path.parent.name == "bin":
                yield from _existing(path.locate())
        yield from _existing(record.locate_file("bin/dsckpt"))  # pip install --target does not move the record
    # Some images leave out all records.
    yield from _existing(os.path.join(home, "bin", "dsckpt"))
    yield from _existing(os.path.join(sys.prefix, "bin", "dsckpt"))


def _existing(place):
    place = str(place)  # inside an archive it is not a path
    return [place] if os.path.isfile(place) else []


def _unpacked():
    """The program of an archive that this package runs from (zipapp), in a folder that is removed with the process."""
    import zipimport
    loader = __spec__.loader
    if not isinstance(loader, zipimport.zipimporter):
        return None
    try:
        data = loader.get_data(os.path.join(loader.archive, "bin", "dsckpt"))
    except OSError:
        return None
    import atexit
    import shutil
    folder = tempfile.mkdtemp(prefix="dsckpt-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = os.path.join(folder, "dsckpt")
    with open(place, "wb", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
        file.write(data)
    return place


def _in_path(places):
    from shutil import which
    found = which("dsckpt")
    if found is not None:
        return found
    if places:
        raise Error(f"{next(iter(places))}: may not be executed", hint="chmod +x makes it a program again")
    raise Error("the program 'dsckpt' is neither beside this package nor in PATH", hint="pip install dsckpt brings both")


def arguments_of(options):
    """{'dtype': 'bf16', 'force': True, 'include': ['a']} as a command line.

    Types of torch and NumPy have their names.

    >>> arguments_of({"dtype": "bf16", "force": True, "include": ["a", "-b"], "tag": None, "as_": "float32"})
    ['--dtype=bf16', '--force', '--include=a', '--include=-b', '--as=float32']
    """
    found = []
    for name, value in options.items():
        flag = "--" + name.rstrip("_").replace("_", "-")  # for keywords of Python, which end in an underscore
        if value is None or value is False:
            continue
        if value is True:
            found.append(flag)
        else:
            found += [f"{flag}={_text(one)}" for one in several(value)]
    return found


def several(value):
    """The values in a list, a set or the like; a list of a single value."""
    is_one = isinstance(value, (str, bytes, os.PathLike)) or not isinstance(value, Iterable)
    return [value] if is_one else list(value)


def _text(value):
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return dtype_name(value) or value


def dtype_name(value):
    """"bfloat16" for torch.bfloat16, numpy.float32 or numpy.dtype("float32"); "" for other objects.

    >>> dtype_name("bf16"), dtype_name(2.0)
    ('', '')
    """
    module, _, kind = f"{type(value).__module__}.{type(value).__name__}".partition(".")
    if (module, kind) == ("torch", "dtype"):
        return str(value).partition(".")[2]
    if module == "numpy" and hasattr(value, "itemsize") and isinstance(getattr(value, "name", None), str):
        return value.name
    return value.__name__ if isinstance(value, type) and value.__module__ in ("numpy", "ml_dtypes") else ""


def run(tool, paths, options, progress=False, *, several=False, warns=True, folder=None):
    """Runs a command of a tool. Returns the `data` of its --json output, whose `notes` are warnings too.

    tool: its name, and that of a command of it: ["ckpt-inspect", "list"].
    several: the tool prints a result for each of several paths or tags, which are returned as a list.
    warns: False: the notes are only in the result.
    folder: the folder to run the tool in; None: the current one.
    progress: called as progress(bytes_done, bytes_total), in this thread, about six times a second. An exception in it
    stops the tool, and this function raises it. True: a bar of tqdm. None: a bar if tqdm is installed and stderr is a
    terminal or this is a notebook. False: nothing, and for tools without --progress.

    Exit statuses 0 and 1 (a check answered no) are results. Raises Error, and KeyboardInterrupt if the tool was
    interrupted.
    """
    with shown(tool[0], progress) as report, tempfile.TemporaryFile() as printed:
        command = _command(tool, paths, options)
        if report:
            command.append("--progress=json")
        status, said = _carry_out(command, report, printed, folder)
        printed.seek(0)
        results = _results(tool[0], status, printed.read(), said)
    if warns:
        warn(dict.fromkeys(note for result in results for note in result["notes"]))
    return results if several else results[-1]


def run_for_bytes(tool, paths, names, options, size):
    """The `size` bytes, at least one, that a command prints, in writable memory. Raises like run()."""
    command = [*_command(tool, paths, options), "--", *names]
    with _memory_file() as printed:
        status, said = _carry_out(command, None, printed)
        length = printed.seek(0, os.SEEK_END)
        if status == 0 and length == size:
            return mmap.mmap(printed.fileno(), size, flags=mmap.MAP_PRIVATE)
        printed.seek(max(0, length - 65536))
        _, mark, rest = printed.read().rpartition(b'{"schema":')  # an error, after the bytes
        _results(tool[0], status or 70, mark + rest, said)


def _command(tool, paths, options):
    command = [program(), *tool, *arguments_of(options), "--json"]
    for path in map(os.fspath, paths):
        command.append(os.path.join(".", path) if path.startswith("-") else path)
    return command


def _memory_file():
    """A file without a name, in memory if the system has such files."""
    try:
        return open(os.memfd_create("dsckpt"), "r+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


@contextlib.contextmanager
def shown(title, progress):
    """Gives the function `progress`. If it is True, or None and somebody sees it, gives a bar of tqdm for the time of
    the block. Otherwise gives None."""
    if callable(progress):
        yield progress
    elif progress is None or isinstance(progress, bool):
        bar = _bar(title, progress)
        try:
            yield bar
        finally:
            if bar is not None:
                bar.close()
    else:
        raise UsageError(f"progress is a function, True, False or None, not {progress!r}")


def _carry_out(command, progress, printed, folder=None):
    """Runs `command` with stdout into the file `printed`: (exit status, the end of stderr without the progress)."""
    said = []
    # Even in a process of a training on several ranks, the tool must run alone.
    environment = {**os.environ, "DSCKPT_GROUP": "none"}
    # In its own session the tool gets a terminal's Ctrl-C once, from here. A second one would end it before it has
    # cleaned up.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.PIPE,
                               start_new_session=True, env=environment, cwd=folder)
    try:
        for line in process.stderr:
            if progress and line.startswith(b"{"):
                now = json.loads(line)
                if now.get("type") == "progress":
                    progress(now["data"]["bytes_done"], now["data"]["bytes_total"])
            else:
                said = [*said[-20:], line.decode(errors="replace")]
        process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.stderr.close()
        process.wait()
        raise
    process.stderr.close()
    return process.returncode, "".join(said)


def _results(tool, status, printed, said):
    """The `data` of each printed line. Raises an error among them."""
    answers = []
    for line in printed.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # for example the text of help=True
            answers.append(json.loads(line))
    answers = [answer for answer in answers if isinstance(answer, dict)]
    if status in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if not answers and status == 0:  # for example with help=True
        raise UsageError(f"{tool} was asked for a text, not for a result",
                         hint=f"`{tool} --help` and the like are for a shell")
    error = next((answer for answer in answers if answer["type"] == "error"), None)
    if not answers or (status not in (0, 1) and error is None):
        raise Error(f"dsckpt ended with status {status}: {said.strip() or 'without a message'}")
    results = [{"notes": [], **answer["data"]} for answer in answers if answer["type"] != "error"]
    if error is not None:
        raised = _error(error["data"])
        raised.results = results
        warn(error["data"].get("notes", ()))
        raise raised
    return results


def _error(data):
    where = {key: data.get(key) for key in ("file", "member", "tensor", "offset", "hint")}
    if data["kind"] == "io":
        where["errno"] = data.get("errno")
    return BY_KIND.get(data["kind"], Error)(_place(data) + data["message"], **where)


def _place(data):
    """The place like the tools print it: "file: member: tensor: at 123: "."""
    names = [data[key] for key in ("file", "member", "tensor") if data.get(key)]
    if data.get("offset") is not None:
        names.append(f"at {data['offset']}")
    return "".join(f"{name}: " for name in names)


def _bar(title, wanted):
    """A bar of tqdm as a `progress`, if it is `wanted`. None: if tqdm is installed and somebody would see it."""
    is_seen = wanted or _in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    if wanted is False or not is_seen:
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        if wanted:
            raise UsageError("progress=True needs tqdm", hint="pip install tqdm, or give a function") from None
        return None
    return _Bar(tqdm(desc=title, unit="B", unit_scale=True, leave=False))


def _in_notebook():
    """Returns whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class _Bar:

    def __init__(self, shown):
        self._shown = shown

    def __call__(self, done, total):
        self._shown.total = total
        self._shown.update(done - self._shown.n)

    def close(self):
        self._shown.close()
