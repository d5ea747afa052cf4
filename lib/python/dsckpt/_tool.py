"""Runs the program that the wheel brings."""
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
    """Where the program `dsckpt` is: what was installed with this package, else the one in PATH."""
    global _program
    if _program is None:
        places = dict.fromkeys(os.path.realpath(place) for place in _places())
        _program = next((place for place in places if os.access(place, os.X_OK)), None) or _unpacked() or _in_path(places)
    return _program


def _places():
    """Where the program may be that was installed with this package; each only if something is there."""
    from importlib.metadata import Distribution
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    # What lies beside this package is its own, whatever else Python finds. An editable one has its record elsewhere.
    for record in (*Distribution.discover(name="dsckpt", path=[home]), *Distribution.discover(name="dsckpt")):
        for path in record.files or ():
            if path.name == "dsckpt" and path.parent.name == "bin":
                yield from _existing(path.locate())
        yield from _existing(record.locate_file("bin/dsckpt"))  # pip install --target moves it, and not its record
    # Where images leave out all records.
    yield from _existing(os.path.join(home, "bin", "dsckpt"))
    yield from _existing(os.path.join(sys.prefix, "bin", "dsckpt"))


def _existing(place):
    place = str(place)  # of an archive it is no path
    return [place] if os.path.isfile(place) else []


def _unpacked():
    """The program of an archive that this package is run out of (zipapp), in a folder that goes with the process."""
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
        flag = "--" + name.rstrip("_").replace("_", "-")  # Python's own words have a line behind them
        if value is None or value is False:
            continue
        if value is True:
            found.append(flag)
        else:
            found += [f"{flag}={_text(one)}" for one in several(value)]
    return found


def several(value):
    """The values in a list, a set or the like; of one alone, a list of it."""
    is_one = isinstance(value, (str, bytes, os.PathLike)) or not isinstance(value, Iterable)
    return [value] if is_one else list(value)


def _text(value):
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return dtype_name(value) or value


def dtype_name(value):
    """"bfloat16" of torch.bfloat16, numpy.float32 or numpy.dtype("float32"); "" of what is no type of elements.

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
    """Runs a command of a tool, and returns the `data` of what it prints with --json; its `notes` are warnings, too.

    tool: its name, and that of a command of it: ["ckpt-inspect", "list"].
    several: it prints a result for each of several paths or tags, which are returned as a list.
    warns: False: nobody is told of the notes but by the result.
    folder: where the tool is called; None: here.
    progress: called as progress(bytes_done, bytes_total), in this thread, about six times a second; what it
    raises stops the tool, and leaves this function. True: a bar of tqdm. None: a bar if there is tqdm and stderr is
    a terminal or this is a notebook. False: nothing, and of tools that have no --progress.

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
    """The `size` bytes, one at least, that a command prints, in memory that may be written to. Raises as run() does."""
    command = [*_command(tool, paths, options), "--", *names]
    with _memory_file() as printed:
        status, said = _carry_out(command, None, printed)
        length = printed.seek(0, os.SEEK_END)
        if status == 0 and length == size:
            return mmap.mmap(printed.fileno(), size, flags=mmap.MAP_PRIVATE)
        printed.seek(max(0, length - 65536))
        _, mark, rest = printed.read().rpartition(b'{"schema":')  # an error, behind what was printed until then
        _results(tool[0], status or 70, mark + rest, said)


def _command(tool, paths, options):
    command = [program(), *tool, *arguments_of(options), "--json"]
    for path in map(os.fspath, paths):
        command.append(os.path.join(".", path) if path.startswith("-") else path)
    return command


def _memory_file():
    """A file without a name: in memory where the system has such files."""
    try:
        return open(os.memfd_create("dsckpt"), "r+b")
    except (AttributeError, OSError):
        return tempfile.TemporaryFile()


@contextlib.contextmanager
def shown(title, progress):
    """Gives the function `progress`; or if it is True, or None and somebody sees it, a bar of tqdm as long as the
    block runs; or else None."""
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
    """Runs `command`, stdout into the file `printed`: (exit status, the last of stderr without the progress)."""
    said = []
    # A process that is one of several, of a training, is alone all the same.
    environment = {**os.environ, "DSCKPT_GROUP": "none"}
    # In a session of its own, so that a terminal's Ctrl-C reaches it once, from here: a second one would
    # end it before it has tidied up.
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
    """The `data` of each line that was printed. An error among them is raised."""
    answers = []
    for line in printed.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError):  # such as the texts of help=True
            answers.append(json.loads(line))
    answers = [answer for answer in answers if isinstance(answer, dict)]
    if status in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    if not answers and status == 0:  # such as help=True
        raise UsageError(f"{tool} was asked for a text, not for a result",
                         hint=f"`{tool} --help` and the like are for a shell")
    error = next((answer for answer in answers if answer["type"] == "error"), None)
    if not answers or (status not in (0, 1) and error is None):
        raise Error(f"dsckpt ended with status {status}: {said.strip() or 'it said nothing'}")
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
    """As the tools print it: "file: member: tensor: at 123: "."""
    names = [data[key] for key in ("file", "member", "tensor") if data.get(key)]
    if data.get("offset") is not None:
        names.append(f"at {data['offset']}")
    return "".join(f"{name}: " for name in names)


def _bar(title, wanted):
    """A bar of tqdm as a `progress`, if it is `wanted`; None: if there is one, and somebody would see it."""
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
    """Whether this process is the kernel of a notebook."""
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
