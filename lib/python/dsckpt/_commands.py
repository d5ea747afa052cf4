"""The tools' commands as functions. Their keywords are the tools' options in _options.py."""
import inspect as _inspect
import os
import textwrap as _textwrap

from ._errors import UsageError
from ._options import OPTIONS, TOOLS
from ._statistics import StatisticsTable
from ._tool import run, several


def _with_options(function):
    """Gives a function with `**options` a signature that has all of them, with their descriptions."""
    options = OPTIONS[function.__name__]
    signature = _inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not _inspect.Parameter.VAR_KEYWORD]
    taken = {each.name for each in own}
    more = [_inspect.Parameter(name, _inspect.Parameter.KEYWORD_ONLY, default=None if _has_value(text) else False)
            for name, text in options.items() if name not in taken]
    function.__signature__ = signature.replace(parameters=[*own, *more])
    lines = [_textwrap.fill(f"{name}: {text}", 100, initial_indent=" " * 8, subsequent_indent=" " * 12)
             for name, text in options.items() if name not in taken]
    function.__doc__ += "\n    Options, None or False where nothing is said:\n" + "\n".join(lines) + "\n"
    return function


def _has_value(text):
    return text.split(" ", 1)[0].endswith(":")


def _run(function, paths, options, progress=False, *, fixed=None, is_several=False):
    """Runs the command. options: the caller's. fixed: added by the function."""
    try:
        return run(list(TOOLS[function]), paths, {**(fixed or {}), **options}, progress, several=is_several)
    except UsageError as error:
        unknown = next((name for name in options if name not in OPTIONS[function]), None)
        if unknown is None:
            raise
        from difflib import get_close_matches
        near = get_close_matches(unknown, OPTIONS[function], 1)
        hint = f"{near[0]} is one" if near else f"help(dsckpt.{function}) lists them"
        raise UsageError(f"{function}() has no option {unknown!r}", hint=hint) from error


def _run_each(function, paths, options, progress, fixed=None, on=(None, None, None)):
    """Like _run(), for functions that write every checkpoint of ``tag="all"``. Returns the last result, with all
    results.

    on: executor, engine and engine_options.
    """
    if any(each is not None for each in on):
        return _run_on(function, paths, {**(fixed or {}), **options}, progress, on)
    found = _run(function, paths, options, progress, fixed=fixed, is_several=True)
    if options.get("tag") != "all":
        return found[-1]
    notes = list(dict.fromkeys(note for each in found for note in each["notes"]))
    return {**found[-1], "notes": notes, "all": found}


def _run_on(function, paths, options, progress, on):
    if options.get("dry_run"):
        raise UsageError("dry_run is done here, without executor and engine")
    from ._steps import run_in_steps
    return run_in_steps(list(TOOLS[function]), paths, options, progress, *on)


def _report(function, paths, options, progress, on, is_several=False):
    """Like _run(), for functions that only read, perhaps as tasks. on: executor, engine and engine_options."""
    if all(each is None for each in on):
        return _run(function, paths, options, progress, is_several=is_several)
    from ._steps import report_in_steps
    found = report_in_steps(list(TOOLS[function]), paths, options, progress, *on)
    return found if is_several else found[-1]


def _all_of(path, more):
    """The paths, and whether the caller wants a list of results."""
    is_one = isinstance(path, (str, bytes, os.PathLike))
    return [*several(path), *more], bool(more) or not is_one


@_with_options
def convert(checkpoint, output, *, progress=None, executor=None, engine=None, engine_options=None, **options):
    """Writes the weights of a checkpoint to the folder `output`, like zero-to-fp32.

    checkpoint: a path; with ``average=True`` perhaps a list of paths. output: None with ``peft=FOLDER``, which
    receives the adapter.
    progress: a function that is called as progress(bytes_done, bytes_total). True shows a bar of tqdm. None shows one
    on a terminal and in a notebook. False shows nothing.
    executor: runs the conversion as tasks, in processes or on machines with a shared file system. Any
    concurrent.futures.Executor will do, such as ProcessPoolExecutor(), Dask's client.get_executor() and
    mpi4py.futures.MPIPoolExecutor(). The tasks call the tool that is installed where they run. ``engine="ray"`` runs
    tasks of Ray, with `engine_options` such as ``{"num_cpus": 4}``.

    Returns a description of the written files (`results.Conversion`): ``{"files": [{"path", "bytes"}, ...], "notes",
    "seconds", ...}``. ``dry_run=True`` writes nothing and describes the files that would be written. With
    ``tag="all"`` it describes those of the newest checkpoint, and "all" is a list of the results of all checkpoints,
    the newest last.
    """
    paths = several(checkpoint)
    if output is not None:
        paths.append(output)
    return _run_each("convert", paths, options, progress, on=(executor, engine, engine_options))


@_with_options
def average(checkpoints, output, *, progress=None, **options):
    """Averages several checkpoints of one model element by element, and writes weights like convert().

    checkpoints: a list of paths; or one path and ``last=5`` for its five newest tags.
    Returns the same as convert().
    """
    paths = several(checkpoints)
    if output is not None:
        paths.append(output)
    return _run("average", paths, options, progress, fixed={"average": True})


@_with_options
def to_universal(checkpoint, output, *, progress=None, executor=None, engine=None, engine_options=None, **options):
    """Writes `checkpoint` to the folder `output` as a Universal Checkpoint; `latest_universal` beside it names it.

    `checkpoint` may be weights to start from. executor, engine, engine_options: like convert()'s. Returns the same as
    convert().
    """
    return _run_each("to_universal", [], options, progress,
                     fixed={"input_folder": checkpoint, "output_folder": output},
                     on=(executor, engine, engine_options))


@_with_options
def to_dcp(checkpoint, output, *, dp=None, progress=None, executor=None, engine=None, engine_options=None, **options):
    """Writes a checkpoint for torch.distributed.checkpoint.load on `dp` ranks of FSDP2 to the folder `output`.

    executor, engine, engine_options: like convert()'s. Returns the same as convert().
    """
    return _run_each("to_dcp", [checkpoint, output], options, progress, fixed={"dp": dp},
                     on=(executor, engine, engine_options))


@_with_options
def reshard(checkpoint, output, *, dp=None, progress=None, executor=None, engine=None, engine_options=None, **options):
    """Writes a checkpoint for `dp` data-parallel ranks to the folder `output`. DeepSpeed loads it like its own.

    executor, engine, engine_options: like convert()'s. Returns the same as convert().
    """
    return _run_each("reshard", [checkpoint, output], options, progress, fixed={"dp": dp},
                     on=(executor, engine, engine_options))


@_with_options
def pack(folder, output, *, progress=None, **options):
    """Compresses the files of `folder` into the folder `output`. Returns `results.Packing`."""
    return _run("pack", [folder, output], options, progress)


@_with_options
def unpack(folder, output, *, progress=None, **options):
    """Restores the files that pack() was given, byte by byte. Returns `results.Packing`."""
    return _run("unpack", [folder, output], options, progress)


@_with_options
def strip(checkpoint, output, *, keep, progress=None, **options):
    """Writes only a part of a checkpoint: ``keep="weights"`` or ``keep="resume"``. Returns `results.Stripping`."""
    return _run("strip", [checkpoint, output], options, progress, fixed={"keep": keep})


@_with_options
def keep(run, *, to, once=True, progress=None, **options):
    """Copies complete checkpoints of a training from its folder `run` to the folder `to`, or to s3://.

    once: looks once. With False it continues until it is interrupted, like the command beside a training.

    Returns a list of events (`results.Kept`): ``{"event": "kept", "name", "output", "step", ...}``, ``{"event":
    "removed", "name"}``, and so on.
    """
    return _run("keep", [run], {"to": to, "once": once, **options}, progress, is_several=True)


@_with_options
def inspect(path, **options):
    """Describes `path`: layout, stage, mesh, parameters, bytes by kind, memory to train, possible conversions.

    Returns `results.Summary`, which is `summary` in apps/ckpt_inspect/JSON.md.
    """
    return _run("inspect", [path], options)


@_with_options
def html(path, report, **options):
    """Writes the result of inspect() as a page, the file `report`. Options are ``values=True``,
    ``param="lm_head.weight"``, ``force=True``, ... Returns the same as inspect(). ``diff(a, b, html="diff.html")``
    writes a page for two checkpoints."""
    return _run("html", [path], options, fixed={"html": report})


@_with_options
def tree(path, **options):
    """The names at `path` as a tree of modules, with equal layers in one node: `results.Tree`. Each node has "name",
    "folded" (the number of layers in it), "tensors", "elements", "bytes", and perhaps "children"."""
    return _run("tree", [path], options)


@_with_options
def list_tensors(path, **options):
    """All tensors at `path` in the checkpoint's order: ``{"tensors": [{"name", "dtype", "shape", "files"}], ...}``,
    `results.TensorList`. ``match="norm"`` and ``states=True`` are options."""
    return _run("list_tensors", [path], options)


@_with_options
def where(path, name, **options):
    """The positions of the elements of the tensor `name`: ``{"extents": [{"file", "offset", ...}], ...}``,
    `results.Extents`. ``state="exp_avg"`` asks for that state of the parameter."""
    return _run("where", [path, name], options)


@_with_options
def print(path, name, slice=None, **options):
    """The values of the tensor `name`, row-major: ``{"values": [...], "dtype", "shape"}``, `results.Values`.

    slice: an index in Python's notation, as a text: ``"[0:4, -1]"``. ``state="exp_avg"`` asks for that state of the
    parameter. open() returns arrays.
    """
    return _run("print", [path, name] + ([] if slice is None else [slice]), options)


@_with_options
def raw(file, **options):
    """The pickle of a file as data, with every class that it names: `results.RawPickle`. Nothing in it is run."""
    return _run("raw", [file], options)


@_with_options
def stats(path, *, progress=False, executor=None, engine=None, engine_options=None, **options):
    """Mean, spread, extremes, zeros and NaNs of the tensors at `path`. Returns a list with a dictionary for each,
    which pandas.DataFrame() accepts. The list's `result` is the whole `results.StatisticsList`.

    executor, engine, engine_options: like convert()'s. Until the end, the plan is in a new folder in the current one,
    which the tasks share.
    """
    return StatisticsTable(_report("stats", [path], options, progress, (executor, engine, engine_options)))


@_with_options
def verify(path, *more, progress=False, executor=None, engine=None, engine_options=None, **options):
    """Checks whether a checkpoint is complete and undamaged: ``{"ok", "findings": [...], ...}``,
    `results.Verification`.

    Defects are part of the result, not an exception. For several paths, a list of paths, or ``tag="all"``, the result
    is a list with one item for each checkpoint. If one of them does not exist, the others are checked first. Then an
    exception is raised, which has their `results`.

    executor, engine, engine_options: like stats()'.
    """
    paths, is_several = _all_of(path, more)
    return _report("verify", paths, options, progress, (executor, engine, engine_options),
                   is_several=is_several or options.get("tag") == "all")


@_with_options
def diff(a, b, *, progress=False, executor=None, engine=None, engine_options=None, **options):
    """The differences between two checkpoints, tensor by tensor: ``{"same", "counts", "tensors", ...}``,
    `results.Difference`.

    ``as_="float32"`` converts the types of both first; ``html="diff.html"`` writes a page too.
    executor, engine, engine_options: like stats()'.
    """
    return _report("diff", [a, b], options, progress, (executor, engine, engine_options))


@_with_options
def scan(path, *more, **options):
    """Lists the code that the pickles at `path` would run if they were loaded: ``{"class", "findings", ...}``,
    `results.Scan`.

    For several paths, or a list of paths, the result is a list with one item for each.
    """
    paths, is_several = _all_of(path, more)
    return _run("scan", paths, options, is_several=is_several)
