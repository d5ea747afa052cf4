"""The exceptions and warnings of all functions. Each class of errors is a kind in the tools' `--json`, which
apps/README.md lists."""
import sys

TYPE_CHECKING = False  # like typing's, whose import takes time
if TYPE_CHECKING:
    from typing import Any, Iterable, NoReturn, Sequence


class DsckptWarning(UserWarning):
    """A note of the tool on a result that is there. The result's `notes` have it too.

    ``warnings.filterwarnings("error", category=dsckpt.DsckptWarning)`` turns a note into an exception, after the
    result is written. "ignore" hides notes.
    """


def warn(notes: "Iterable[str]") -> None:
    """Issues a DsckptWarning for each of `notes`, at the line that called this package."""
    level = 1
    frame: "Any" = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    import warnings
    for note in notes:
        warnings.warn(note, DsckptWarning, stacklevel=level)


class Error(Exception):
    """An error in a request, in a checkpoint or on a disk.

    kind: "usage", "corrupt", "inconsistent", "unsupported" or "io".
    file, member, tensor: the file, the record in it, and the parameter; None if unknown.
    offset: bytes from the start of the file, or elements of a flat group; None if unknown.
    hint: the next step, or None. Message and hint are the tool's, so a hint has options of the command line:
        ``--dtype bf16`` there is ``dtype="bf16"`` here.
    results: the other results, if there were several requests (``verify(a, b)``, ``tag="all"``).
    """

    kind = ""
    results: "Sequence[Any]" = ()

    def __init__(self, message: str, *, file: "str | None" = None, member: "str | None" = None,
                 tensor: "str | None" = None, offset: "int | None" = None, hint: "str | None" = None) -> None:
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")
        self.file = file
        self.member = member
        self.tensor = tensor
        self.offset = offset
        self.hint = hint


class UsageError(Error, ValueError):
    """The request itself is wrong: an option, a place for the output, or a path that does not exist."""

    kind = "usage"


class CorruptError(Error):
    """The bytes of a file do not agree with its format."""

    kind = "corrupt"


class InconsistentError(Error):
    """Files contradict each other, or some are missing."""

    kind = "inconsistent"


class UnsupportedError(Error):
    """A valid input, but reading or writing it is not supported."""

    kind = "unsupported"


class IoError(Error, OSError):
    """The operating system refused: permission, space, a failing disk. `errno` is its number."""

    kind = "io"

    def __init__(self, message: str, *, errno: "int | None" = None, **where: "Any") -> None:
        super().__init__(message, **where)
        self.errno = errno


BY_KIND = {each.kind: each for each in (UsageError, CorruptError, InconsistentError, UnsupportedError, IoError)}


def raise_native(kind: str, message: str, file: "str | None", member: "str | None", tensor: "str | None",
                 offset: "int | None", hint: "str | None", errno: int) -> "NoReturn":
    """Raises the error of the compiled module."""
    where: "dict[str, Any]" = {"file": file, "member": member, "tensor": tensor, "offset": offset, "hint": hint}
    if kind == "io":
        where["errno"] = errno
    raise BY_KIND[kind](message, **where)
