"""The tools' commands as functions. Options are theirs, as keywords."""
from ._tool import run, several


def convert(checkpoint, output, *, progress=None, **options):
    """The weights of a checkpoint, as zero-to-fp32 writes them to the folder `output`.

    options: of `zero-to-fp32 --help`: ``safe_serialization=True``, ``dtype="bf16"``, ``tag="global_step5"``,
    ``max_shard_size="2GB"``, ``include=["norm"]``, ``force=True``, ``dry_run=True``, ...
    progress: called as progress(bytes_done, bytes_total); True shows a bar of tqdm, None does so on a terminal, False
        nothing.

    Returns what was written: ``{"files": [{"path", "bytes"}, ...], "seconds", "records_checked", ...}``. With
    ``peft=FOLDER`` the adapter is written there and `output` is None; with ``merge=BASE`` it is merged into that model.
    With ``average=True`` `checkpoint` may be a list.
    """
    paths = several(checkpoint)
    if output is not None:
        paths.append(output)
    return run(["zero-to-fp32"], paths, options, progress)


def to_universal(checkpoint, output, *, progress=None, **options):
    """The folder `output` as the Universal Checkpoint of `checkpoint`; `latest_universal` beside it names it.

    options: of `to-universal --help`. `checkpoint` may be weights to start from. Returns as convert() does.
    """
    return run(["to-universal"], [], {"input_folder": checkpoint, "output_folder": output, **options}, progress)


def to_dcp(checkpoint, output, *, dp=None, progress=None, **options):
    """A checkpoint for torch.distributed.checkpoint.load on `dp` ranks of FSDP2 in the folder `output`.

    options: of `to-dcp --help`: ``preset="accelerate"``, ``weights_only=True``, ... Returns as convert() does.
    """
    return run(["to-dcp"], [checkpoint, output], {"dp": dp, **options}, progress)


def reshard(checkpoint, output, *, dp=None, progress=None, **options):
    """A checkpoint for `dp` data-parallel ranks in the folder `output`, which DeepSpeed loads as its own.

    options: of `reshard --help`: ``stage=3``, ``ds_config="ds_config.json"``, ``like="ckpt"``, ...
    Returns as convert() does.
    """
    return run(["reshard"], [checkpoint, output], {"dp": dp, **options}, progress)


def pack(folder, output, *, progress=None, **options):
    """The files of `folder` in fewer bytes, in the folder `output`. options: of `ckpt-pack pack --help`."""
    return run(["ckpt-pack", "pack"], [folder, output], options, progress)


def unpack(folder, output, *, progress=None, **options):
    """The files that pack() was given, byte by byte. options: of `ckpt-pack unpack --help`."""
    return run(["ckpt-pack", "unpack"], [folder, output], options, progress)


def strip(checkpoint, output, *, keep, progress=None, **options):
    """What one needs of a checkpoint: ``keep="weights"`` or ``keep="resume"``. options: of `ckpt-pack strip --help`."""
    return run(["ckpt-pack", "strip"], [checkpoint, output], {"keep": keep, **options}, progress)


def inspect(path, **options):
    """What is at `path`: layout, stage, mesh, parameters, bytes by kind, memory to train, possible conversions.

    options: of `ckpt-inspect --help`: ``gpus=64``. Returns what apps/ckpt_inspect/JSON.md calls `summary`.
    """
    return run(["ckpt-inspect"], [path], options)


def list_tensors(path, **options):
    """All tensors at `path` in the checkpoint's order: ``{"tensors": [{"name", "dtype", "shape", "files"}], ...}``.

    options: of `ckpt-inspect list --help`: ``match="norm"``, ``states=True``.
    """
    return run(["ckpt-inspect", "list"], [path], options)


def stats(path, *, progress=False, **options):
    """Mean, spread, extremes, zeros and NaNs of the tensors at `path`. options: of `ckpt-inspect stats --help`."""
    return run(["ckpt-inspect", "stats"], [path], options, progress)


def verify(path, *, progress=False, **options):
    """Whether a checkpoint is whole, and what is wrong with it. options: of `ckpt-inspect verify --help`.

    A checkpoint with something wrong is a result and no exception.
    """
    return run(["ckpt-inspect", "verify"], [path], options, progress)


def diff(a, b, *, progress=False, **options):
    """How two checkpoints differ, tensor by tensor. options: of `ckpt-inspect diff --help`: ``as_="float32"``, ..."""
    return run(["ckpt-inspect", "diff"], [a, b], options, progress)


def scan(path, **options):
    """What the pickles at `path` would run if they were loaded. options: of `ckpt-inspect scan --help`."""
    return run(["ckpt-inspect", "scan"], [path], options)
