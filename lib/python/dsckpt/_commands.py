"""The tools' commands as functions. Options are theirs, as keywords: those that _options.py lists."""
import inspect as _inspect
import os
import textwrap as _textwrap

from ._errors import UsageError
from ._options import OPTIONS, TOOLS
from ._statistics import StatisticsTable
from ._tool import run, several


def _with_options(function):
    """Gives a function of `**options` the signature that has them all, and their descriptions."""
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
    """options: the caller's. fixed: what the function adds."""
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
    """The same of a function that writes every checkpoint of ``tag="all"``: the last result, with all of them.

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


def _all_of(path, more):
    """The paths, and whether a list of results is wanted."""
    is_one = isinstance(path, (str, bytes, os.PathLike))
    return [*several(path), *more], bool(more) or not is_one


@_with_options
def convert(checkpoint, output, *, progress=None, executor=None, engine=None, engine_options=None, **options):
    """The weights of a checkpoint, as zero-to-fp32 writes them to the folder `output`.

    checkpoint: a path; with ``average=True`` perhaps a list of them. output: None with ``peft=FOLDER``, where the
        adapter is written.
    progress: called as progress(bytes_done, bytes_total); True shows a bar of tqdm, None does so on a terminal and
        in a notebook, False nothing.
    executor: runs it as tasks, on processes or machines that see one file system: any concurrent.futures.Executor,
        such as ProcessPoolExecutor(), Dask's client.get_executor() and mpi4py.futures.MPIPoolExecutor(). The tasks
        call the tool that is installed where they run. ``engine="ray"`` runs tasks of Ray, with `engine_options` such
        as ``{"num_cpus": 4}``.

    Returns what was written (`results.Conversion`): ``{"files": [{"path", "bytes"}, ...], "notes", "seconds", ...}``,
    with ``dry_run=True`` what would be. With ``tag="all"`` it is that of the newest checkpoint, and "all" is a list
    of the results of each, the newest last.
    """
    paths = several(checkpoint)
    if output is not None:
        paths.append(output)
    return _run_each("convert", paths, options, progress, on=(executor, engine, engine_options))


@_with_options
def average(checkpoints, output, *, progress=None, **options):
    """The mean of several checkpoints of one model, element by element, as convert() writes weights.

    checkpoints: a list of paths; or one path and ``last=5``, of whose tags the newest are averaged.
    Returns as convert() does.
    """
    paths = several(checkpoints)
    if output is not None:
        paths.append(output)
    return _run("average", paths, options, progress, fixed={"average": True})


@_with_options
def to_universal(checkpoint, output, *, progress=None, executor=None, engine=None, engine_options=None, **options):
    """The folder `output` as the Universal Checkpoint of `checkpoint`; `latest_universal` beside it names it.

    `checkpoint` may be weights to start from. executor, engine, engine_options: as convert() takes them. Returns as
    convert() does.
    """
    return _run_each("to_universal", [], options, progress,
                     fixed={"input_folder": checkpoint, "output_folder": output},
                     on=(executor, engine, engine_options))


@_with_options
def to_dcp(checkpoint, output, *, dp=None, progress=None, executor=None, engine=None, engine_options=None, **options):
    """A checkpoint for torch.distributed.checkpoint.load on `dp` ranks of FSDP2 in the folder `output`.

    executor, engine, engine_options: as convert() takes them. Returns as
    convert() does.
    """
    return _run_each("to_dcp", [checkpoint, output], options, progress, fixed={"dp": dp},
                     on=(executor, engine, engine_options))


@_with_options
def reshard(checkpoint, output, *, dp=None, progress=None, executor=None, engine=None, engine_options=None, **options):
    """A checkpoint for `dp` data-parallel ranks in the folder `output`, which DeepSpeed loads as its own.

    executor, engine, engine_options: as convert() takes them. Returns as
    convert() does.
    """
    return _run_each("reshard", [checkpoint, output], options, progress, fixed={"dp": dp},
                     on=(executor, engine, engine_options))


@_with_options
def pack(folder, output, *, progress=None, **options):
    """The files of `folder` in fewer bytes, in the folder `output`. Returns `results.Packing`."""
    return _run("pack", [folder, output], options, progress)


@_with_options
def unpack(folder, output, *, progress=None, **options):
    """The files that pack() was given, byte by byte. Returns `results.Packing`."""
    return _run("unpack", [folder, output], options, progress)


@_with_options
def strip(checkpoint, output, *, keep, progress=None, **options):
    """What one needs of a checkpoint: ``keep="weights"`` or ``keep="resume"``. Returns `results.Stripping`."""
    return _run("strip", [checkpoint, output], options, progress, fixed={"keep": keep})


@_with_options
def keep(run, *, to, once=True, progress=None, **options):
    """Brings the complete checkpoints of the folder `run`, which a training saves to, to the folder `to`, or s3://.

    once: looks once. With False it goes on until it is interrupted, as the command does beside a training.

    Returns a list of what has happened (`results.Kept`): ``{"event": "kept", "name", "output", "step", ...}``,
    ``{"event": "removed", "name"}``, and so on.
    """
    return _run("keep", [run], {"to": to, "once": once, **options}, progress, is_several=True)


@_with_options
def inspect(path, **options):
    """What is at `path`: layout, stage, mesh, parameters, bytes by kind, memory to train, possible conversions.

    Returns `results.Summary`, what apps/ckpt_inspect/JSON.md calls `summary`.
    """
    return _run("inspect", [path], options)


@_with_options
def html(path, report, **options):
    """Writes what inspect() returns as a page, the file `report`: ``values=True``, ``param="lm_head.weight"``,
    ``force=True``, ... Returns as inspect() does. ``diff(a, b, html="diff.html")`` writes a page of two."""
    return _run("html", [path], options, fixed={"html": report})


@_with_options
def tree(path, **options):
    """The names at `path` as a tree of modules, layers that are alike as one: `results.Tree`, each node with "name",
    "folded" (how many it stands for), "tensors", "elements", "bytes", and perhaps "children"."""
    return _run("tree", [path], options)


@_with_options
def list_tensors(path, **options):
    """All tensors at `path` in the checkpoint's order: ``{"tensors": [{"name", "dtype", "shape", "files"}], ...}``,
    `results.TensorList`. ``match="norm"`` and ``states=True`` are options."""
    return _run("list_tensors", [path], options)


@_with_options
def where(path, name, **options):
    """Where the elements of the tensor `name` lie: ``{"extents": [{"file", "offset", ...}], ...}``,
    `results.Extents`. ``state="exp_avg"``: those of this state of it."""
    return _run("where", [path, name], options)


@_with_options
def print(path, name, slice=None, **options):
    """The values of the tensor `name`, row-major: ``{"values": [...], "dtype", "shape"}``, `results.Values`.

    slice: a text as Python writes it: ``"[0:4, -1]"``. ``state="exp_avg"``: of this state of it. For arrays there is
    open().
    """
    return _run("print", [path, name] + ([] if slice is None else [slice]), options)


@_with_options
def raw(file, **options):
    """The pickle of a file as data, with every class that it names, `results.RawPickle`. Nothing in it is run."""
    return _run("raw", [file], options)


@_with_options
def stats(path, *, progress=False, **options):
    """Mean, spread, extremes, zeros and NaNs of the tensors at `path`: a list with a dictionary for each, which
    pandas.DataFrame() takes, and with all of `results.StatisticsList` as its `result`.
    """
    return StatisticsTable(_run("stats", [path], options, progress))


@_with_options
def verify(path, *more, progress=False, **options):
    """Whether a checkpoint is whole, and what is wrong with it: ``{"ok", "findings": [...], ...}``,
    `results.Verification`.

    A checkpoint with something wrong is a result and no exception. Of several paths, or a list of them, or with
    ``tag="all"``, the result is a list, one for each checkpoint; one that is not there is an exception when the others
    are done, which has their `results`.
    """
    paths, is_several = _all_of(path, more)
    return _run("verify", paths, options, progress, is_several=is_several or options.get("tag") == "all")


@_with_options
def diff(a, b, *, progress=False, **options):
    """How two checkpoints differ, tensor by tensor: ``{"same", "counts", "tensors", ...}``, `results.Difference`.

    ``as_="float32"`` rounds the types of both first; ``html="diff.html"`` writes a page, too.
    """
    return _run("diff", [a, b], options, progress)


@_with_options
def scan(path, *more, **options):
    """What the pickles at `path` would run if they were loaded: ``{"class", "findings", ...}``, `results.Scan`.

    Of several paths, or a list of them, the result is a list, one for each.
    """
    paths, is_several = _all_of(path, more)
    return _run("scan", paths, options, is_several=is_several)
