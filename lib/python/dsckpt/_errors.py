"""What the functions raise, and the warnings. The classes of errors are the kinds of `--json`'s, as apps/README.md
lists them."""
import sys

TYPE_CHECKING = False  # typing's own, which takes time
if TYPE_CHECKING:
    from typing import Any, Iterable, NoReturn, Sequence


class DsckptWarning(UserWarning):
    """A note of the tool: what somebody should know of a result that is there. It is in the result's `notes` too.

    ``warnings.filterwarnings("error", category=dsckpt.DsckptWarning)`` makes one an exception, behind the result;
    "ignore" has nothing said.
    """


def warn(notes: "Iterable[str]") -> None:
    """A DsckptWarning for each of `notes`, in the line that called this package."""
    level = 1
    frame: "Any" = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    import warnings
    for note in notes:
        warnings.warn(note, DsckptWarning, stacklevel=level)


class Error(Exception):
    """Something that is wrong with a request, a checkpoint or a disk.

    kind: "usage", "corrupt", "inconsistent", "unsupported" or "io".
    file, member, tensor: which file, which record in it, which parameter; None where it is not known.
    offset: bytes from the start of the file, or elements of a flat group; None where it is not known.
    hint: what to do next, or None. As the message it is the tool's, and has the words of the command line:
        ``--dtype bf16`` there is ``dtype="bf16"`` here.
    results: where several were asked for (``verify(a, b)``, ``tag="all"``), what there is of the others.
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
    """The request itself is wrong: an option, a place for the output, a path that is not there."""

    kind = "usage"


class CorruptError(Error):
    """The bytes of one file are not what its format says."""

    kind = "corrupt"


class InconsistentError(Error):
    """Files disagree with one another, or some are missing."""

    kind = "inconsistent"


class UnsupportedError(Error):
    """Valid, but not read or written here."""

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
    """What the compiled module raises."""
    where: "dict[str, Any]" = {"file": file, "member": member, "tensor": tensor, "offset": offset, "hint": hint}
    if kind == "io":
        where["errno"] = errno
    raise BY_KIND[kind](message, **where)
