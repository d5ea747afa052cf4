"""Files that two readers could understand differently: what torch.load would read is what we read, and scan.

Each file is made of two or three archives of torch.save that hold different values, one of which runs code when it is
loaded: put one after the other, one inside the other, with two directories, names twice, headers that lie, as a tar and
as pickles... Then torch (from its path, mapped, and from a stream) and Python's zipfile load it, all in a
process of their own. ckpt-inspect reads it. POLYGLOTS is how many files are made; without it there are a few.
"""
import collections
import io
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import warnings
import zipfile
import zlib

import tools
import torch

COUNT = int(os.environ.get("POLYGLOTS", 400))
BATCH = 200
VALUES = {"A": 1.0, "B": 2.0}
RAN = "C"  # what ran code


class Runs:
    """Says that it ran, and is a tensor otherwise."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.polyglot_ran = True",)


def saved(label, legacy=False):
    stream = io.BytesIO()
    value = Runs() if label == RAN else torch.full((4,), VALUES[label])
    torch.save({"w": value}, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


def saved_as_tar(label):
    """As torch 0.1 did: what `pickle` holds is loaded last."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        content = pickle.dumps({"w": Runs()} if label == RAN else {"w": torch.full((4,), VALUES[label]).tolist()}, 2)
        for name, data in [("storages", pickle.dumps(0, 2) + pickle.dumps([], 2)), ("tensors", pickle.dumps(0, 2)),
                           ("pickle", content)]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


class Entry:
    """A record, and each field of its two headers as it will be written."""

    def __init__(self, name, data):
        self.data = data
        self.local = {"need": 0, "flags": 0, "method": 0, "time": 0, "crc": zlib.crc32(data), "csize": len(data),
                      "usize": len(data), "name": name, "extra": b""}
        self.central = {"made": 0, **self.local, "comment": b"", "disk": 0, "attributes": b"\0" * 6, "offset": None}
        self.behind = b""  # the data descriptor, and whatever else

    def write_local(self):
        h = self.local
        xlen = h.get("xlen", len(h["extra"]))
        return struct.pack("<4sHHHIIIIHH", b"PK\3\4", h["need"], h["flags"], h["method"], h["time"], h["crc"], h["csize"],
                           h["usize"], len(h["name"]), xlen) + h["name"] + h["extra"] + self.data + self.behind

    def write_central(self, offset):
        h = self.central
        at = offset if h["offset"] is None else h["offset"]
        return struct.pack("<4sHHHHIIIIHHHH6sI", b"PK\1\2", h["made"], h["need"], h["flags"], h["method"], h["time"],
                           h["crc"], h["csize"], h["usize"], len(h["name"]), len(h["extra"]), len(h["comment"]),
                           h["disk"], h["attributes"], at) + h["name"] + h["extra"] + h["comment"]


def entries_of(zipped, folder=None):
    """The records of an archive; under another top folder if one is given."""
    with zipfile.ZipFile(io.BytesIO(zipped)) as file:
        for name in file.namelist():
            inner = name.split("/", 1)[1]
            yield Entry(f"{folder or name.split('/')[0]}/{inner}".encode(), file.read(name))


def directory(entries, begin=0):
    offsets, at = [], begin
    for entry in entries:
        offsets.append(at)
        at += len(entry.write_local())
    return b"".join(entry.write_central(offset) for entry, offset in zip(entries, offsets))


def end_record(size, offset, count, comment=b"", length=None, disk=0, here=None):
    return struct.pack("<4sHHHHIIH", b"PK\5\6", disk, disk, count if here is None else here, count, size, offset,
                       len(comment) if length is None else length) + comment


def end64(size, offset, count, at, locator=None):
    return (struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, offset) +
            struct.pack("<4sIQI", b"PK\6\7", 0, at if locator is None else locator, 1))


def archive(entries, begin=0, **end):
    records = b"".join(entry.write_local() for entry in entries)
    listed = directory(entries, begin)
    return records + listed + end_record(len(listed), begin + len(records), len(entries), **end)


class Maker:
    """Makes polyglots, each of its number."""

    def __init__(self):
        self.zips = {label: saved(label) for label in "ABC"}
        self.legacy = {label: saved(label, legacy=True) for label in "ABC"}
        self.tars = {label: saved_as_tar(label) for label in "ABC"}

    def labels(self):
        return self.random.sample("ABC", 2)

    def entries(self, label, folder=None):
        return list(entries_of(self.zips[label], folder))

    def pickle_of(self, entries):
        return next(entry for entry in entries if entry.central["name"].endswith(b"/data.pkl"))

    def make(self, number):
        self.random = random.Random(number)
        kinds = [name for name in dir(self) if name.startswith("make_")]
        kind = "make_plain" if self.random.random() < 0.3 else self.random.choice(kinds)
        made = getattr(self, kind)()
        if self.random.random() < 0.2:
            kind += "+damaged"
            made = self.damaged(made)
        return kind.removeprefix("make_"), made

    def damaged(self, content):
        """Some bytes of headers replaced by what decides something."""
        content = bytearray(content)
        places = [at for signature in (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7")
                  for at in self.positions(content, signature)]
        for _ in range(self.random.choice([1, 1, 2, 4])):
            at = (self.random.choice(places) if places else 0) + self.random.randrange(50)
            if at < len(content):
                content[at] = self.random.choice([0, 1, 8, 0x7F, 0x80, 0xFE, 0xFF, content[at] ^ 1, content[at] ^ 0x20])
        return bytes(content)

    @staticmethod
    def positions(content, signature):
        at = content.find(signature)
        while at >= 0:
            yield at
            at = content.find(signature, at + 1)

    def make_plain(self):
        """Files of torch and others, and changes to them on the way: nobody could take them for anything
        else."""
        label = self.random.choice("ABC")
        entries = self.entries(label)
        how = self.random.randrange(7)
        if how == 0:
            return self.legacy[label]
        if how == 1:
            return archive(entries, comment=b"a comment" * self.random.randrange(5))
        if how == 2:  # sizes and checksums behind the data
            for entry in entries:
                entry.local.update(flags=8, crc=0, csize=0, usize=0)
                entry.central["flags"] = 8
                entry.behind = struct.pack("<4sIII", b"PK\7\10", entry.central["crc"], len(entry.data), len(entry.data))
        if how == 3:  # all that fits into zip64 fields
            for entry in entries:
                field = struct.pack("<HHQQ", 1, 16, len(entry.data), len(entry.data))
                entry.local.update(csize=0xFFFFFFFF, usize=0xFFFFFFFF, extra=field)
                entry.central.update(csize=0xFFFFFFFF, usize=0xFFFFFFFF, extra=field)
        if how == 4:
            self.random.shuffle(entries)
        if how == 5:
            records, listed = b"".join(entry.write_local() for entry in entries), directory(entries)
            behind = len(records) + len(listed)
            return (records + listed + end64(len(listed), len(records), len(entries), behind) +
                    end_record(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF))
        if how == 6:
            return self.zips[label]
        return archive(entries)

    def make_one_after_the_other(self):
        first, second = self.labels()
        begin = self.random.choice([0, len(self.zips[first])])
        return self.zips[first] + archive(self.entries(second), begin=begin)

    def make_prefixed(self):
        first, second = self.labels()
        ahead = self.random.choice([b"#!/bin/sh\n", b"PK\3\4" + bytes(60), self.legacy[first], self.tars[first],
                                    self.zips[first][:200]])
        return ahead + archive(self.entries(second), begin=self.random.choice([0, len(ahead)]))

    def make_second_directory_in_the_comment(self):
        first, second = self.labels()
        outer, inner = self.entries(first), self.entries(second)
        hidden = b"".join(entry.write_local() for entry in inner)
        outer.append(Entry(outer[0].central["name"].split(b"/")[0] + b"/data/9", hidden))
        records = b"".join(entry.write_local() for entry in outer)
        listed = directory(outer)
        other = directory(inner, len(records) - len(hidden))
        at = len(records) + len(listed) + 22
        junk = self.random.choice([b"", b"JUNK"])
        comment = other + end_record(len(other), at, len(inner), comment=junk,
                                     length=self.random.choice([None, 0, 1, 0xFFFF]))
        return records + listed + end_record(len(listed), len(records), len(outer), comment=comment,
                                             length=self.random.choice([None, None, 0, len(comment) - 22]))

    def make_two_directories(self):
        """The records of both, and the directories of both, one end record of either kind for each."""
        first, second = self.labels()
        one, two = self.entries(first), self.entries(second)
        records = b"".join(entry.write_local() for entry in one)
        begin = len(records)
        records += b"".join(entry.write_local() for entry in two)
        listed, other = directory(one), directory(two, begin)
        at, at_other = len(records), len(records) + len(listed)
        behind = at_other + len(other)
        wide = end64(len(other), at_other, len(two), behind)
        narrow = self.random.choice([
            end_record(len(listed), at, len(one)), end_record(len(listed), 0xFFFFFFFF, len(one)),
            end_record(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFF), end_record(len(other), at_other, len(two)),
            end_record(len(listed) + len(other), at, len(one)), end_record(len(listed) + len(other), at, len(one) + len(two))])
        return records + listed + other + self.random.choice([wide, b""]) + narrow

    def make_names_twice(self):
        first, second = self.labels()
        entries, others = self.entries(first), self.entries(second)
        folder = entries[0].central["name"].split(b"/")[0]
        other = self.pickle_of(others)
        name = self.random.choice([
            folder + b"/data.pkl", folder + b"/Data.pkl", folder + b"/DATA.PKL", folder.upper() + b"/data.pkl",
            folder + b"//data.pkl", folder + b"/./data.pkl", folder + b"\\data.pkl", folder + b"/data.pkl\0x",
            b"/" + folder + b"/data.pkl", folder + b"/data.pkl ", b"other/data.pkl", folder + b"/x/../data.pkl",
            b"data.pkl", folder + b"/constants.pkl"])
        other.local["name"] = other.central["name"] = name
        entries.insert(self.random.randrange(len(entries) + 1), other)
        listed_too = self.random.random() < 0.8
        return archive(entries, **({} if listed_too else {"here": len(entries) - 1}))

    def make_one_lies_in_the_other(self):
        """The directory says that the pickle is where another record's data have a header of their own."""
        first, second = self.labels()
        entries = self.entries(first)
        pickle_entry = self.pickle_of(entries)
        hidden = self.pickle_of(self.entries(second))
        hidden.local["name"] = pickle_entry.central["name"]
        holder = Entry(pickle_entry.central["name"].split(b"/")[0] + b"/data/9", hidden.write_local())
        entries.insert(0, holder)
        inside = 30 + len(holder.local["name"])
        pickle_entry.central.update(crc=zlib.crc32(hidden.data), csize=len(hidden.data), usize=len(hidden.data),
                                    offset=inside)
        if self.random.random() < 0.3:
            entries.remove(pickle_entry)
            entries.append(pickle_entry)
        return archive(entries)

    def make_headers_that_differ(self):
        first, second = self.labels()
        entries = self.entries(first)
        entry = self.pickle_of(entries)
        other = self.pickle_of(self.entries(second)).data
        what = self.random.randrange(8)
        if what == 0:  # where the data begin depends on whose length of the extra field is taken
            padded = other + b"." * 7
            entry.local.update(extra=b"FB" + struct.pack("<H", len(padded)) + padded, xlen=self.random.choice([0, 4, 4 + len(padded)]))
        elif what == 1:
            entry.local.update(csize=len(other), usize=len(other), crc=zlib.crc32(other))
        elif what == 2:
            entry.local["name"] = self.random.choice([b"x" * len(entry.local["name"]), b"archive/other.pkl", b""])
        elif what == 3:
            entry.local["flags"] = entry.central["flags"] = 8
            entry.local.update(crc=0, csize=0, usize=0)
            entry.behind = b"PK\7\10" + struct.pack("<III", zlib.crc32(other), len(other), len(other))
        elif what == 4:
            packed = zlib.compress(other)[2:-4]
            entry.data = packed
            entry.local.update(method=8, csize=len(packed), usize=len(other), crc=zlib.crc32(other))
            entry.central.update(method=self.random.choice([0, 8]), csize=len(packed), usize=len(other), crc=zlib.crc32(other))
        elif what == 5:
            entry.data += other
            entry.central.update(csize=len(entry.data), usize=len(entry.data), crc=zlib.crc32(entry.data))
            entry.local.update(csize=len(entry.data), usize=len(entry.data), crc=zlib.crc32(entry.data))
        elif what == 6:
            entry.local["flags"] = self.random.choice([1, 8, 0x800, 0x2000])
        else:
            entry.central["usize"] = self.random.choice([0, 1, len(entry.data) - 1, len(entry.data) + 1, 0xFFFFFFFF])
        return archive(entries)

    def make_zip64_that_lies(self):
        first, second = self.labels()
        entries, other = self.entries(first), self.pickle_of(self.entries(second))
        other.local["name"] = self.pickle_of(entries).local["name"]
        entry = self.pickle_of(entries)
        where = self.random.choice([0, 1])
        records = [e.write_local() for e in entries]
        hidden = b"".join(records)
        at = len(hidden)
        field = struct.pack("<QQQ", len(other.data), len(other.data), at)
        extra = struct.pack("<HH", 1, len(field)) + field
        entry.central["extra"] = extra * self.random.choice([1, 2])
        if where:
            entry.central.update(csize=0xFFFFFFFF, usize=0xFFFFFFFF, offset=0xFFFFFFFF, crc=zlib.crc32(other.data))
        elif self.random.random() < 0.5:
            entry.central.update(offset=0xFFFFFFFF)
        listed = directory(entries)
        body = hidden + other.write_local()
        return body + listed + end_record(len(listed), len(body), len(entries))

    def make_tar_and_pickles(self):
        first, second = self.labels()
        tar = bytearray(self.tars[first])
        legacy = self.legacy[second]
        name = legacy[:100] if self.random.random() < 0.5 else legacy[:36]
        tar[0:len(name)] = name
        if self.random.random() < 0.7:
            tar[148:156] = b" " * 8
            total = sum(tar[:512])
            form = self.random.choice(["octal", "padded", "binary", "signed", "wrong"])
            tar[148:156] = {"octal": b"%06o\0 " % total, "padded": b" %05o\0 " % total, "wrong": b"%06o\0 " % (total + 1),
                            "binary": b"\x80" + total.to_bytes(7, "big"),
                            "signed": b"%06o\0 " % (total - 256 * sum(byte > 127 for byte in tar[:512]))}[form][:8]
        return bytes(tar)

    def make_pickles_and_a_zip(self):
        first, second = self.labels()
        return self.random.choice([
            self.legacy[first] + self.zips[second], self.legacy[first] + archive(self.entries(second), len(self.legacy[first])),
            self.tars[first] + archive(self.entries(second), len(self.tars[first])), self.tars[first], self.legacy[first],
            b"PK\3\4" + self.legacy[first], b"PK\5\6" + bytes(18) + self.zips[second]])

    def make_counts_that_lie(self):
        first, second = self.labels()
        entries, others = self.entries(first), self.entries(second)
        if self.random.random() < 0.5:
            entries, count = entries + others, len(entries)
        else:
            entries, count = others + entries, len(others)
        records = b"".join(entry.write_local() for entry in entries)
        listed = directory(entries)
        size = self.random.choice([len(listed), len(directory(entries[:count]))])
        return records + listed + end_record(size, len(records), count, here=self.random.choice([None, 0, len(entries)]),
                                             disk=self.random.choice([0, 0, 0, 1]))

    def make_two_folders(self):
        first, second = self.labels()
        entries = self.entries(first, "one") + self.entries(second, "two")
        if self.random.random() < 0.5:
            self.random.shuffle(entries)
        return archive(entries)


def label_of(value):
    for label, number in VALUES.items():
        if isinstance(value, dict) and value and all(abs(float(n) - number) < 1e-6 for n in torch.as_tensor(value["w"])):
            return label
    return "other"


class ZipfilePickle(pickle.Unpickler):
    """torch.load on top of Python's zipfile."""

    def __init__(self, file, folder):
        self.file, self.folder = file, folder
        super().__init__(io.BytesIO(file.read(f"{folder}/data.pkl")))

    def persistent_load(self, saved_id):
        _, storage_class, key, _, numel = saved_id
        storage = torch.UntypedStorage(bytearray(self.file.read(f"{self.folder}/data/{key}")))
        return torch.storage.TypedStorage(wrap_storage=storage, dtype=storage_class.dtype, _internal=True)


def load_with_zipfile(path):
    with zipfile.ZipFile(path) as file:
        return ZipfilePickle(file, file.namelist()[0].split("/")[0]).load()


LOADERS = {
    "torch": lambda path: torch.load(path, weights_only=False),
    "mapped": lambda path: torch.load(path, weights_only=False, mmap=True),
    "stream": lambda path: torch.load(io.BytesIO(path.read_bytes()), weights_only=False),
    "zipfile": load_with_zipfile,
}


def load_all(paths):
    """The results of each loader for each file: a label, or nothing. A line for each, as soon as it is
    known."""
    import builtins
    warnings.simplefilter("ignore")
    for path in map(pathlib.Path, paths):
        for loader, load in LOADERS.items():
            builtins.polyglot_ran = False
            print(json.dumps(["begin", str(path), loader]), flush=True)
            try:
                label = label_of(load(path))
            except BaseException:  # whatever code that runs may raise
                label = None
            print(json.dumps([RAN if builtins.polyglot_ran else label, str(path), loader]), flush=True)


class PolyglotTest(unittest.TestCase):

    def loaded(self, paths):
        """path -> loader -> label. A loader that crashes has loaded nothing, and the next file is tried."""
        results, left = collections.defaultdict(dict), list(map(str, paths))
        while left:
            done = subprocess.run([sys.executable, __file__, "--load", *left], capture_output=True, text=True, cwd=self.folder)
            for line in done.stdout.splitlines():
                label, path, loader = json.loads(line)
                results[path][loader] = None if label == "begin" else label
            if done.returncode == 0:
                break
            left = left[left.index(path) + 1:]
        return results

    def read_by_us(self, path):
        done = tools.run_tool("ckpt-inspect", "print", path, "w", "--json")
        self.assertIn(done.returncode, (0, 2, 3), done.stderr)
        if done.returncode:
            return None
        values = [json.loads(line) for line in done.stdout.splitlines()]
        return label_of({"w": values[-1]["data"]["values"]})

    def called_harmless(self):
        """The names of the files that scan has nothing against."""
        done = tools.run_tool("ckpt-inspect", "scan", self.folder, "--json")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        data = json.loads(done.stdout.splitlines()[-1])["data"]
        accused = {finding["file"] for finding in data["findings"] if finding["class"] not in ("harmless", "allowed")}
        accused |= {entry["file"] for entry in data["unreadable"]}
        return {path.name for path in self.folder.iterdir()} - accused

    def test_what_torch_would_read_is_what_is_read_and_scanned(self):
        maker, counts = Maker(), collections.Counter()
        for begin in range(0, COUNT, BATCH):
            with tempfile.TemporaryDirectory(prefix="dsckpt-polyglots-") as folder:
                self.folder = pathlib.Path(folder).resolve()
                kinds = {}
                for number in range(begin, min(begin + BATCH, COUNT)):
                    kind, content = maker.make(number)
                    path = self.folder / f"{number}.pt"
                    path.write_bytes(content)
                    kinds[path] = kind
                loaded, harmless = self.loaded(kinds), self.called_harmless()
                for path, kind in kinds.items():
                    with self.subTest(kind=kind, number=path.stem):
                        self.judge(path, kind, loaded[str(path)], path.name in harmless, counts)
        print(dict(sorted(counts.items())), file=sys.stderr)
        for what in ("read alike", "refused", "runs code and is accused", "harmless"):
            self.assertGreater(counts[what], COUNT // 100, what)

    def judge(self, path, kind, loaded, is_harmless, counts):
        ours = self.read_by_us(path)
        labels = {label for label in loaded.values() if label is not None}
        if kind == "plain" and RAN not in labels:
            self.assertEqual(({ours}, is_harmless), (labels, True), loaded)
        if RAN in labels:
            self.assertFalse(is_harmless, f"{loaded}: scan calls it harmless")
            counts["runs code and is accused"] += 1
        counts["harmless" if is_harmless else "accused"] += 1
        if ours is None:
            counts["refused"] += 1
            counts["refused, though torch reads it"] += loaded["torch"] is not None
        else:
            self.assertIn(loaded["torch"], (ours, None), f"{loaded}: read as {ours}")
            self.assertLessEqual(labels, {ours}, f"read as {ours}")
            counts["read alike" if ours in labels else "read by us alone"] += 1
        if is_harmless:
            self.assertLessEqual(len(labels), 1, f"{loaded}: called harmless, and read in two ways")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        load_all(sys.argv[2:])
    else:
        unittest.main()
