"""Loads files in child processes, and finds those that do harm: run code, end the process, or take its memory.

A child loads one file after the other with every loader. A pickle that runs code makes the folder RAN. The effects are
recorded in a shared map. A child that dies or hangs is replaced, from the next file on.
"""
import mmap
import os
import pickle
import resource
import signal
import struct
import tempfile

from hostile_pickles import RAN

RUNS, CRASHES, MEMORY = 1, 2, 4
MOST_SECONDS = 10
FREE_BYTES = 64 << 20
TIMES = 10


def by_pickle(path):
    with open(path, "rb") as file:
        pickle.load(file)


def by_pickle_in_python(path):
    with open(path, "rb") as file:
        pickle._Unpickler(file).load()


def one_after_the_other(path):
    with open(path, "rb") as file:
        while True:
            pickle.load(file)


def by_numpy(path):
    import numpy
    if path.endswith((".npy", ".npz")):
        loaded = numpy.load(path, allow_pickle=True)
        for key in getattr(loaded, "files", []):
            loaded[key]


def by_torch(path):
    import torch
    torch.load(path, weights_only=False)


LOADERS = (by_pickle, by_pickle_in_python, one_after_the_other, by_numpy)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def load(paths, begin, seen, loaders):
    """Runs in a child, and never returns."""
    sink = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(sink, descriptor)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30),) * 2)
    for index in range(begin, len(paths)):
        struct.pack_into("<I", seen, 0, index)
        for loader in loaders:
            before = peak()
            signal.alarm(MOST_SECONDS)
            try:
                loader(paths[index])
            except BaseException:
                pass  # also MemoryError: a length beyond the file is allocated, but never used
            signal.alarm(0)
            if os.path.isdir(RAN):
                os.rmdir(RAN)
                seen[4 + index] |= RUNS
            if peak() - before > FREE_BYTES + TIMES * os.path.getsize(paths[index]):
                seen[4 + index] |= MEMORY
        if seen[4 + index] & MEMORY:
            os._exit(3)  # later effects would not be recorded
    os._exit(0)


def what_they_do(paths, loaders=LOADERS):
    """For each path the effects of loading it: RUNS, CRASHES and MEMORY, or 0."""
    seen = mmap.mmap(-1, 4 + len(paths))
    begin = 0
    with tempfile.TemporaryDirectory() as folder:
        while begin < len(paths):
            struct.pack_into("<I", seen, 0, begin)
            child = os.fork()
            if child == 0:
                try:
                    os.chdir(folder)
                    load(paths, begin, seen, loaders)
                finally:
                    os._exit(1)
            _, status = os.waitpid(child, 0)
            index, = struct.unpack_from("<I", seen, 0)
            if os.path.isdir(os.path.join(folder, RAN)):
                os.rmdir(os.path.join(folder, RAN))
                seen[4 + index] |= RUNS
            if os.WIFSIGNALED(status):
                seen[4 + index] |= CRASHES
            elif os.WEXITSTATUS(status) == 0:
                break
            begin = index + 1
    return list(seen[4:4 + len(paths)])
