"""The types of the functions' results: dictionaries, as apps/ckpt_inspect/JSON.md and apps/README.md describe them.

All have "notes", a list of texts for the user. Sizes and offsets are bytes, shapes and counts elements. Classes whose
names begin with an underscore have the keys that are always there.

    def check(found: dsckpt.results.Verification) -> bool:
        return found["ok"]
"""
from __future__ import annotations

from typing import Any, Dict, List, Literal, Optional, TypedDict, Union

# Spelled for Python 3.9, so that typing.get_type_hints() works there.
Number = Union[int, float]


class Mesh(TypedDict):
    """Ranks of each kind of parallelism."""

    pp: int
    tp: int
    dp: int
    ep: int


class Averaged(TypedDict):
    """One of the checkpoints of an average."""

    folder: str
    tag: str
    global_steps: Optional[int]
    weight: float


class _CheckpointFacts(TypedDict):
    layout: str
    zero_stage: int
    tag: str
    folder: str
    optimizer_wrapper: str
    ds_version: str
    global_steps: Optional[int]
    mesh: Mesh


class CheckpointFacts(_CheckpointFacts, total=False):
    """Facts about a run."""

    averaged: List[Averaged]


class TensorInFile(TypedDict, total=False):
    """A tensor in a written file."""

    name: str
    dtype: str
    shape: List[int]
    bytes: int
    alias_of: str


class Run(TypedDict, total=False):
    """The common part of every run's result. With ``dry_run=True`` it has only the bytes to read and to write and the
    last three keys. `next`: the next step, a command or a line of Python."""

    output: str
    next: str
    seconds: float
    bytes_read: int
    bytes_written: int
    bytes_stored: int
    bytes_verified: int
    bytes_kept: int
    records_checked: int
    records_unchecked: int
    bytes_without_checksum: int
    ranks: List[Dict[str, Any]]
    checkpoint: CheckpointFacts
    forecast: Dict[str, Any]
    transfers: Dict[str, int]


class _WrittenFile(TypedDict):
    path: str
    bytes: int


class WrittenFile(_WrittenFile, total=False):
    """A file of an output. `path` is relative to it."""

    tensors: List[TensorInFile]
    state: str


class _Conversion(TypedDict):
    files: List[WrittenFile]
    notes: List[str]


class Conversion(_Conversion, Run, total=False):
    """The files that convert(), average(), reshard(), to_dcp() and to_universal() write, or with ``dry_run=True``
    would write. Each function adds keys. "all": with ``tag="all"`` the results of each checkpoint."""

    masters: bool
    valueless: List[str]
    lost_files: List[Dict[str, Any]]
    incomplete: List[Dict[str, Any]]
    parameters: List[Dict[str, Any]]
    tensors: List[Dict[str, Any]]
    keys: int
    chunks: int
    metadata_bytes: int
    least_chunk_bytes: int
    dp: int
    tp: int
    pp: int
    ep: int
    stages: List[int]
    zero_stage: int
    zero_stages: List[int]
    optimizer_wrapper: str
    tag: str
    weights_from: str
    groups: List[Dict[str, Any]]
    batch: Dict[str, Any]
    all: List[Conversion]


class PackedFile(TypedDict):
    """`bytes`: of the content. `packed`: false if the file is only copied."""

    path: str
    bytes: int
    packed: bool


class _Packing(TypedDict):
    files: List[PackedFile]
    bytes: int
    notes: List[str]


class Packing(_Packing, Run, total=False):
    """The result of pack() and unpack()."""


class StrippedFile(TypedDict):
    """Bytes before and after."""

    path: str
    before: int
    after: int


class _Stripping(TypedDict):
    files: List[StrippedFile]
    keep: Literal["weights", "resume"]
    bytes_before: int
    bytes_after: int
    notes: List[str]


class Stripping(_Stripping, Run, total=False):
    """The result of strip()."""

    tag: str


class _Kept(TypedDict):
    event: str
    notes: List[str]


class Kept(_Kept, total=False):
    """An event of keep(). `why`: why a checkpoint is not kept. The numbers belong to the event "looked"."""

    name: str
    output: str
    step: Optional[int]
    how: Literal["copied", "packed", "weights", "resume"]
    bytes: int
    bytes_stored: int
    bytes_verified: int
    bytes_kept: int
    seconds: float
    why: str
    kept: int
    removed: int
    waiting: int
    refused: int


class Rank(TypedDict):
    dp_rank: int
    mp_rank: int


class _TensorFacts(TypedDict):
    name: str
    dtype: str
    shape: List[int]
    bytes: int
    files: List[str]


class TensorFacts(_TensorFacts, total=False):
    """A tensor. `state` is the name of an optimizer's state."""

    state: str
    kind: Literal["trainable", "frozen", "buffer"]
    alias_of: str
    ranks: List[Rank]
    lost_in_part: bool
    step: float


class _Summary(TypedDict):
    form: str
    precision: Any
    optimizer: Any
    counts: Dict[str, Dict[str, int]]
    tied: int
    parameters: int
    largest_layer: Any
    files: int
    bytes: int
    stored: int
    kinds: List[Dict[str, Any]]
    ranks: List[Dict[str, Any]]
    grid: List[Dict[str, Any]]
    other_files: List[Dict[str, Any]]
    memory: Dict[str, Any]
    conversions: List[Dict[str, Any]]
    notes: List[str]


class Summary(_Summary, total=False):
    """The result of inspect() and html()."""

    checkpoint: CheckpointFacts
    candidates: List[Dict[str, Any]]
    damage: Dict[str, Any]


class _TensorList(TypedDict):
    form: str
    tensors: List[TensorFacts]
    notes: List[str]


class TensorList(_TensorList, total=False):
    """The result of list_tensors()."""

    checkpoint: CheckpointFacts
    metadata: Dict[str, str]
    damage: Dict[str, Any]


class _Module(TypedDict):
    name: str
    folded: int
    tensors: int
    elements: int
    bytes: int


class Module(_Module, total=False):
    """A node of tree(): a module, or a tensor. `folded`: the number of equal modules in it, which are all counted."""

    dtype: str
    shape: List[int]
    alias_of: str
    lost_in_part: bool
    children: List[Module]


class Tree(Module):
    """The result of tree(): the model."""

    notes: List[str]


class _Extent(TypedDict):
    file: str
    offset: int
    row_bytes: int
    rows: int
    stride: int
    first: int
    row_elements: int
    step: int
    dtype: str
    copy: int
    mean: Any


class Extent(_Extent, total=False):
    """Row i has the bytes from `offset + i * stride` and the elements from `first + i * step`."""

    record: str
    dp_rank: int
    mp_rank: int


class Extents(TensorFacts):
    """The result of where()."""

    extents: List[Extent]
    notes: List[str]


class _Values(TypedDict):
    name: str
    dtype: str
    shape: List[int]
    values: List[Any]
    notes: List[str]


class Values(_Values, total=False):
    """The result of print(). `values` are row-major; values that are not JSON numbers are texts."""

    state: str


# A class in a pickle, and how dangerous it is.
NamedClass = TypedDict("NamedClass", {"global": str, "class": str})


class _RawPickle(TypedDict):
    file: str
    value: Any
    globals: List[NamedClass]
    notes: List[str]


class RawPickle(_RawPickle, total=False):
    """The result of raw()."""

    record: str


class Statistics(TypedDict):
    """Counts are of all elements, the rest of finite ones, None if there are none. A complex element counts as two."""

    count: int
    zeros: int
    nans: int
    positive_infinities: int
    negative_infinities: int
    min: Optional[Number]
    max: Optional[Number]
    mean: Optional[float]
    std: Optional[float]
    norm: Optional[float]


class TensorStatistics(TensorFacts):
    stats: Statistics


class _Total(TypedDict):
    tensors: int
    stats: Statistics


class Total(_Total, total=False):
    """Totals of all parameters, or of one of their states."""

    state: str


class StatisticsList(TypedDict):
    """The result of stats()."""

    form: str
    finite: bool
    tensors: List[TensorStatistics]
    totals: List[Total]
    notes: List[str]


class _Finding(TypedDict):
    check: str
    message: str


class Finding(_Finding, total=False):
    """One defect. `offset` counts bytes in the file, or elements of the flat tensor `member`."""

    file: str
    rank: Dict[str, int]
    member: str
    tensor: str
    state: str
    tensors: List[str]
    offset: int
    size: int


class _Check(TypedDict):
    check: str
    done: bool


class Check(_Check, total=False):
    """A check: whether it was done and, if not or not everywhere, why."""

    why: str


class _Verification(TypedDict):
    path: str
    form: Literal["zero", "universal", "dcp", "weights", "file"]
    folder: str
    ok: bool
    findings: List[Finding]
    files: int
    records: int
    bytes: int
    checks: List[Check]
    notes: List[str]


class Verification(_Verification, total=False):
    """The result of verify()."""

    tag: str


class Side(TypedDict):
    path: str
    form: str


class _Distance(TypedDict):
    relative_change: Optional[float]
    cosine: Optional[float]
    count: int
    differing: int
    outside: int
    max_absolute: Optional[Number]
    max_relative: Optional[float]
    max_ulps: Optional[Number]


class Distance(_Distance, total=False):
    """How far values are apart; None: infinite or NaN, or of integers. `relative_change`: |b - a| / |a|. `index`: the
    position of the largest difference, with the values `a` and `b`."""

    index: List[int]
    a: Optional[Number]
    b: Optional[Number]


class _TensorDifference(TypedDict):
    name: str
    verdict: Literal["equal", "within", "values", "dtype", "shape", "only in A", "only in B"]


class TensorDifference(_TensorDifference, total=False):
    state: str
    dtype_a: str
    shape_a: List[int]
    dtype_b: str
    shape_b: List[int]
    compared_as: str
    values: Distance


class Difference(TypedDict):
    """The result of diff()."""

    a: Side
    b: Side
    same: bool
    counts: Dict[str, int]
    tensors: List[TensorDifference]
    total: Distance
    largest_in: str
    notes: List[str]


# "class" is a keyword of Python.
_Judged = TypedDict("_Judged", {"class": Literal["harmless", "allowed", "unknown", "dangerous"]})
_Named = TypedDict("_Named", {"global": str})


class _ScanFinding(_Judged, _Named):
    uses: List[str]
    file: str
    offset: int


class ScanFinding(_ScanFinding, total=False):
    """A name that a pickle uses."""

    record: str
    reason: str


class _Unreadable(_Judged):
    file: str
    reason: str


class Unreadable(_Unreadable, total=False):
    """Content that was not examined, and content that no writer writes."""

    record: str


class Scan(_Judged):
    """The result of scan(). "class" is that of the worst finding."""

    path: str
    files: int
    not_examined: List[str]
    pickles: int
    findings: List[ScanFinding]
    unreadable: List[Unreadable]
    notes: List[str]
