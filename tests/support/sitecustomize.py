"""How Python processes of the tests end, also those that only run a guide or a program: Python imports this by itself.

While the interpreter ends, a thread of gloo may drop the last reference to a tensor. For this it asks for the
interpreter's lock, which then ends the thread, and the whole process: "terminate called without an active exception".
So a process that is in a group of torch.distributed ends at once, with its status.
"""
import atexit
import os
import sys

_exit, _excepthook = sys.exit, sys.excepthook
_status = 0


def _exit_with_status(code=None):
    global _status
    _status = code if isinstance(code, int) else int(code is not None)
    _exit(code)


def _fail(*error):
    global _status
    _status = 1
    _excepthook(*error)


def _end():
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status & 0xff)


sys.exit, sys.excepthook = _exit_with_status, _fail
atexit.register(_end)  # the first to be registered runs last
