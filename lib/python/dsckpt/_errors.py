"""What the functions raise. The classes are the kinds of `--json`'s errors, as apps/README.md lists them."""


class Error(Exception):
    """Something that is wrong with a request, a checkpoint or a disk.

    kind: "usage", "corrupt", "inconsistent", "unsupported" or "io".
    file, member, tensor: which file, which record in it, which parameter; None where it is not known.
    offset: bytes from the start of the file, or elements of a flat group; None where it is not known.
    hint: what to do next, or None.
    """

    kind = ""

    def __init__(self, message, *, file=None, member=None, tensor=None, offset=None, hint=None):
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

    def __init__(self, message, *, errno=None, **where):
        super().__init__(message, **where)
        self.errno = errno


BY_KIND = {each.kind: each for each in (UsageError, CorruptError, InconsistentError, UnsupportedError, IoError)}


def raise_native(kind, message, file, member, tensor, offset, hint, errno):
    """What the compiled module raises."""
    where = {"file": file, "member": member, "tensor": tensor, "offset": offset, "hint": hint}
    if kind == "io":
        where["errno"] = errno
    raise BY_KIND[kind](message, **where)
