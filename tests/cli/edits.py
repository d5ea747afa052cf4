"""Edits of checkpoints: shards that are loaded, changed and saved again, and tensors that torch itself would not write."""
import collections
import contextlib

import torch_files
from torch_files import Reduced, named  # noqa: F401: for tests

load_shard, edited = torch_files.load, torch_files.edited


@contextlib.contextmanager
def optimizer(path, **options):
    """The optimizer's dictionary in a shard, which is saved again under the same name."""
    with edited(path, **options) as shard:
        yield shard["optimizer_state_dict"]


@contextlib.contextmanager
def module(path):
    """The weights in a model file, which is saved again under the same name."""
    with edited(path) as shard:
        yield shard["module"]


def fake_tensor(storage, offset, size, stride):
    """A tensor with a geometry that torch itself would not allow."""
    return Reduced(named("torch._utils", "_rebuild_tensor_v2"), storage, offset, size, stride, False,
                   collections.OrderedDict())


def fake_size(*sizes):
    return Reduced(named("torch", "Size"), sizes)
