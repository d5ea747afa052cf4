"""Files of a benchmark, and how much of them is in the page cache. Nothing here needs root."""
import contextlib
import ctypes
import mmap
import os
import shutil

from measure import BenchError

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
MAP_FAILED = ctypes.c_void_p(-1).value
LOWEST_BITS = bytes(i & 1 for i in range(256))  # the others of a byte of mincore have no meaning
LEFT_WHEN_COLD = 0.01  # at most this part of the input


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(files):
    return sum(path.stat().st_size for path in files)


@contextlib.contextmanager
def opened(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(folder):
    """Waits until all that was written to the file system of a folder is on its disk."""
    with opened(folder) as descriptor:
        if libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))


def remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
    sync(folder.parent)


def cached_pages(path):
    """How many pages of a file are in the page cache, and how many it has."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    if not pages:
        return 0, 0
    with opened(path) as descriptor:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if address == MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    try:
        states = (ctypes.c_ubyte * pages)()
        if libc.mincore(address, size, states) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        libc.munmap(address, size)
    return bytes(states).translate(LOWEST_BITS).count(1), pages


def cached_fraction(files):
    counts = [cached_pages(path) for path in files]
    return sum(cached for cached, _ in counts) / max(1, sum(pages for _, pages in counts))


def make_warm(files):
    """Reads what is not in the page cache yet. Returns the part that is there in the end: memory may not hold all."""
    buffer = bytearray(1 << 20)
    for path in files:
        cached, pages = cached_pages(path)
        if cached < pages:
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
    return cached_fraction(files)


def make_cold(files):
    """Drops the files' pages, which are to be clean, from the page cache. Returns the part that is left there."""
    for path in files:
        with opened(path) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    left = cached_fraction(files)
    if left > LEFT_WHEN_COLD:
        raise BenchError(f"{left:.0%} of the input cannot be dropped from the page cache: is it on a tmpfs, or mapped?")
    return left
