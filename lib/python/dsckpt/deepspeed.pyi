from os import PathLike
from typing import Any, Callable, Iterable, Literal, Sequence, TypeVar, overload

import torch

__all__ = [
    "convert_zero_checkpoint_to_fp32_state_dict", "convert_zero_checkpoint_to_state_dict",
    "get_fp32_state_dict_from_zero_checkpoint", "load_checkpoint", "load_state_dict_from_zero_checkpoint",
    "patch_deepspeed",
]

_Path = str | PathLike[str]
_Module = TypeVar("_Module", bound=torch.nn.Module)

@overload
def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir: _Path, tag: _Path | None = None,
                                             exclude_frozen_parameters: bool = False,
                                             lazy_mode: Literal[False] = False) -> dict[str, torch.Tensor]: ...
@overload
def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir: _Path, tag: _Path | None = None,
                                             exclude_frozen_parameters: bool = False,
                                             lazy_mode: bool = False) -> dict[str, Any]: ...
def convert_zero_checkpoint_to_state_dict(checkpoint_dir: _Path, output_dir: _Path, dtype: torch.dtype | str = ...,
                                          max_shard_size: int | str | None = "5GB", safe_serialization: bool = False,
                                          tag: _Path | None = None,
                                          exclude_frozen_parameters: bool = False) -> None: ...
def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir: _Path, output_dir: _Path,
                                               max_shard_size: int | str | None = "5GB",
                                               safe_serialization: bool = False, tag: _Path | None = None,
                                               exclude_frozen_parameters: bool = False) -> None: ...
def load_state_dict_from_zero_checkpoint(model: _Module, checkpoint_dir: _Path,
                                         tag: _Path | None = None) -> _Module: ...
def load_checkpoint(engine: Any, path: _Path, tag: _Path | None = None, load_module_strict: bool = True,
                    load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                    load_module_only: bool = False, custom_load_fn: Callable[..., Any] | None = None, *,
                    roots: Iterable[_Path] = (), model: str | None = None,
                    tp_rules: Sequence[str] = (), check: bool = False) -> tuple[str | None, dict[str, Any] | None]: ...
def patch_deepspeed(load: bool = False) -> Callable[[], None]: ...
