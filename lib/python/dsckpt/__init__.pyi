from . import deepspeed as deepspeed
from . import results as results
from ._checkpoint import Checkpoint as Checkpoint
from ._checkpoint import Tensor as Tensor
from ._checkpoint import open as open
from ._commands import average as average
from ._commands import convert as convert
from ._commands import diff as diff
from ._commands import html as html
from ._commands import inspect as inspect
from ._commands import keep as keep
from ._commands import list_tensors as list_tensors
from ._commands import pack as pack
from ._commands import print as print
from ._commands import raw as raw
from ._commands import reshard as reshard
from ._commands import scan as scan
from ._commands import stats as stats
from ._commands import strip as strip
from ._commands import to_dcp as to_dcp
from ._commands import to_universal as to_universal
from ._commands import tree as tree
from ._commands import unpack as unpack
from ._commands import verify as verify
from ._commands import where as where
from ._errors import CorruptError as CorruptError
from ._errors import DsckptWarning as DsckptWarning
from ._errors import Error as Error
from ._errors import InconsistentError as InconsistentError
from ._errors import IoError as IoError
from ._errors import UnsupportedError as UnsupportedError
from ._errors import UsageError as UsageError
from .deepspeed import load_checkpoint as load_checkpoint
from .deepspeed import patch_deepspeed as patch_deepspeed

__all__ = [
    "Checkpoint", "CorruptError", "DsckptWarning", "Error", "InconsistentError", "IoError", "Tensor",
    "UnsupportedError", "UsageError", "average", "convert", "diff", "html", "inspect", "keep", "list_tensors",
    "load_checkpoint", "open", "pack", "patch_deepspeed", "raw", "reshard", "scan", "stats", "strip", "to_dcp", "to_universal", "tree", "unpack",
    "verify", "where",
]

__version__: str
