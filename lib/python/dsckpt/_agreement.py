"""Ranks agree before they continue, and none is left waiting for one that failed. Imports torch."""
import contextlib
import os
import sys
import threading
import time

import torch

from . import _planning
from ._errors import BY_KIND, Error

NOTHING_CHANGED = "the engine is unchanged"
HALF_FILLED = "the engine is half filled: load another checkpoint before it continues"
_POLL, _GRACE = 0.2, 5.0  # seconds: how often the store is asked, and how long ranks may take to leave DeepSpeed's code


@contextlib.contextmanager
def agreement(state):
    """All ranks continue, or all raise the error of the first that failed. `state`: the state of the engine then."""
    failure = None
    try:
        yield
    except _Alone as alone:
        raise _error_of(*described(alone.__cause__), state) from alone.__cause__
    except Exception as error:
        failure = error
    everyone = gathered(None if failure is None else described(failure))
    failed = [(rank, each) for rank, each in enumerate(everyone) if each is not None]
    if not failed:
        return
    rank, (kind, text, where) = failed[0]
    if len(failed) < len(everyone) or any(each != failed[0][1] for _, each in failed):
        text = f"rank {rank}: {text}"
    raise _error_of(kind, text, where, state) from failure


def _error_of(kind, text, where, state):
    text = f"{text}; {state}"
    return RuntimeError(text) if kind is None else BY_KIND[kind](text, **where)


class _Alone(Exception):
    """A rank failed in DeepSpeed's code, and the others were ended, so it can agree with nobody. Its cause says why."""


@contextlib.contextmanager
def together_in_deepspeed(call):
    """If a rank fails in DeepSpeed's code, others may wait for it in a collective, for half an hour by default.

    So each rank watches the store of the process group meanwhile. A rank that fails writes its reason there. Those that
    do not come out by themselves print it and end their processes, since nothing brings them back from a collective.
    """
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        yield
        return
    watch = _Watch(torch.distributed.distributed_c10d._get_default_store(), call)
    try:
        yield
    except Exception as error:
        # The first reason, not a connection that an ended rank has closed.
        reason = f"rank {rank()}: {type(error).__name__}: {error}"
        first = watch.tell(reason)
        cause = error if first == reason else RuntimeError(first)
        if not watch.all_come_out():
            raise _Alone from cause
        raise cause from error
    else:
        watch.come_out()


class _Watch:
    """A rank's view of the others through the store, which ends with the process of rank 0."""

    def __init__(self, store, key):
        self._store, self._failed, self._count = store, f"{key}/failed", f"{key}/out"
        self._first, self._out = None, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def tell(self, reason):
        """Says why this rank failed, and returns the reason of the first that did."""
        self._out.set()
        try:
            self._first = self._store.compare_set(self._failed, "", reason).decode(errors="replace")
        except RuntimeError:
            pass
        return self._first or reason

    def come_out(self):
        self._out.set()
        self._store.add(self._count, 1)

    def all_come_out(self):
        """True if all other ranks come out of DeepSpeed's code, too."""
        try:
            self.come_out()
            for _ in range(int(2 * _GRACE / _POLL)):
                if self._store.add(self._count, 0) == torch.distributed.get_world_size():
                    return True
                time.sleep(_POLL)
        except RuntimeError:
            pass
        return False

    def _watch(self):
        while not self._out.wait(_POLL):
            try:
                if not self._store.check([self._failed]):
                    continue
                self._first = self._store.get(self._failed).decode(errors="replace")
            except RuntimeError:
                return
            if self._out.wait(_GRACE):
                return
            print(f"dsckpt: {self._first}; this rank waited for it in a collective of DeepSpeed's and ends; "
                  f"{HALF_FILLED}", file=sys.stderr, flush=True)
            os._exit(1)


def described(error):
    if isinstance(error, _planning.RankZeroFailed):
        return error.why
    if not isinstance(error, Error):
        return None, f"{type(error).__name__}: {error}", {}
    where = {name: getattr(error, name) for name in ("file", "member", "tensor", "offset", "hint")}
    if error.kind == "io":
        where["errno"] = error.errno
    return error.kind, str(error).partition("\nhint: ")[0], where


def gathered(value):
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return [value]
    everyone = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everyone, value)
    return everyone


def rank():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
