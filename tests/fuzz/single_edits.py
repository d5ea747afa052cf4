"""Single edits of pickles and texts, each tried once: what chance takes long to find.

    scripts/python tests/fuzz/single_edits.py [--every N] [--tree DIR] TARGET

Each value in a pickle becomes each of some others. Each opcode is left out, alone or with those behind it,
repeated, or has another one before it. Each word, number, quoted text and sign of a text becomes others or is
doubled. Each byte of CBOR becomes each other one, or has it before it. An input may reach an edge that nothing
in the target's corpus does. It goes there (build/asan/corpus/TARGET), and scripts/fuzz goes on from it. Its
--keep makes seeds of small ones. TARGET is one of those that read pickles, torch_archive_fuzz (archives with
right checksums), checkpoint_fuzz (edits of the files of its checkpoints) or texts_fuzz. scripts/fuzz has built
it in build/asan, or it is in DIR. --every N tries each Nth edit only. Findings as of scripts/fuzz, except those
of time, go into DIR/findings, and make the exit status 1.
"""
import argparse
import contextlib
import hashlib
import io
import itertools
import os
import pathlib
import pickletools
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TESTDATA = ROOT / "testdata"
CHECKPOINTS = ("z0_bf16_w2", "z2_bf16_w2", "z3_fp32_small_subgroups_w2")  # of checkpoint_fuzz.cpp
AT_ONCE = 20_000
MOST_OPCODES = 160  # of archives and pickles that are small
MOST_BYTES = 16_000
MOST_BYTES_OF_TEXT = 600
MOST_BYTES_OF_EDIT = 255  # of edited_pickle.cpp


def long(value):
    size = 8 if -2**63 <= value < 2**63 else 9
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


VALUES = (b"N", b"\x88", b"\x89", b"K\x00", b"K\x02", b"J\xff\xff\xff\xff", long(2**40), long(-2**63), long(2**64 - 1),
          text(b""), text(b"x"), text(b"\xff"), b"}", b"]", b")", b"\x8f", b"h\x00", b"h\x05",
          *(b"G" + struct.pack(">d", value) for value in (float("nan"), 1.0, 2.0)),
          b"ctorch\nSize\n", b"ctorch\nbfloat16\n", b"ctorch\nDoubleStorage\n", b"ccollections\nOrderedDict\n",
          b"cbuiltins\nset\n", b"(t", b"(d", b"(l", b"(K\x02K\x03t", b"(K\x05t", b"(]t", b"(K\x01K\x02l", b"(K\x01Nl",
          b"(" + text(b"a") + b"K\x01d")
OPCODES = [bytes([opcode]) for opcode in b"012(.Rbsuaet\x85\x86\x87Q\x81\x92\x93\x94o\x90\x91"] + [b"h\x01", b"q\x01"]
TOKENS = (b"", b"null", b"true", b"-1", b"0", b"1.5", b"1e400", b"18446744073709551616", b"9223372036854775807", b'""',
          b'"x"', b'"\xff"', rb'"\ud800"', b"{}", b"[]", b"[1]", b'{"a":1}', b",", b":", b"}", b"]", b"\n", b" ", b"x",
          b"/", b"..", b"\\", b"\0", b"0x10", b"1k")
IS_VALUE = set(b"N\x88\x89KMJ\x8aX\x8cG}])chj\x8f")


def pieces_of(pickle):
    """An opcode with its argument each; none if it is not a pickle."""
    try:
        begins = [place for _, _, place in pickletools.genops(pickle)]
    except Exception:
        return []
    return [pickle[begin:end] for begin, end in itertools.pairwise([*begins, len(pickle)])]


def edits(pieces):
    """From which piece on, how many are left out, and what is put there."""
    own = [piece for kind in (b"c", b"hj") for piece in sorted({each for each in pieces if each[:1] in kind})[:4]]
    for at, piece in enumerate(pieces):
        if piece[0] in IS_VALUE:
            for value in (*VALUES, *own):
                yield at, 1, value
        for count in (1, 2, 3):
            yield at, count, b""
        for more in (piece, *OPCODES):
            yield at, 0, more


def edited(pieces, edit):
    at, count, more = edit
    return b"".join([*pieces[:at], more, *pieces[at + count:]])


def as_edits(edit):
    """The input from which edited_pickle.cpp makes the edit."""
    at, count, more = edit
    left_out = b"\x04" + struct.pack("<HB", at, count) if count else b""
    return left_out + (b"\x06" + bytes([len(more)]) + more + struct.pack("<H", at) if more else b"")


def archives():
    """For each archive in testdata: the name of the pickle, the pickle, and the other records."""
    for path in sorted(path for path in TESTDATA.rglob("*") if path.is_file()):
        try:
            with zipfile.ZipFile(path) as file:
                records = {name: file.read(name) for name in file.namelist()}
        except Exception:
            continue
        for name in records:
            if name.endswith("data.pkl"):
                yield name, records[name], {other: records[other] for other in records if other != name}


def seeds(tree, target):
    for line in (tree / "fuzz_targets").read_text().splitlines():
        name, *folders = line.split(";")
        if name == target:
            yield from (path for folder in folders for path in sorted(pathlib.Path(folder).rglob("*")))


def of_pickles(seeds):
    found = [path.read_bytes() for path in seeds if path.is_file() and path.stat().st_size < MOST_BYTES]
    found += [pickle for _, pickle, _ in archives() if len(pickle) < MOST_BYTES]
    for pickle in sorted(set(found), key=lambda pickle: (len(pickle), pickle)):
        pieces = pieces_of(pickle)
        if len(pieces) <= MOST_OPCODES:
            for edit in edits(pieces):
                yield edited(pieces, edit)


def of_archives(_):
    done = set()
    for name, pickle, others in archives():
        pieces = pieces_of(pickle)
        if pickle in done or len(pieces) > MOST_OPCODES or sum(map(len, others.values())) > MOST_BYTES:
            continue
        done.add(pickle)
        for edit in edits(pieces):
            whole = io.BytesIO()
            with zipfile.ZipFile(whole, "w") as file:
                for record, content in {name: edited(pieces, edit), **others}.items():
                    file.writestr(zipfile.ZipInfo(record), content)
            yield whole.getvalue()


def of_checkpoints(_):
    files = [path for name in CHECKPOINTS for path in sorted((TESTDATA / "checkpoints" / name / "ckpt").rglob("*.pt"))]
    for number, path in enumerate(files):
        chosen = next(byte for byte in range(0x80, 0x100) if byte % len(files) == number)
        with zipfile.ZipFile(path) as file:
            pickle, = (file.read(name) for name in file.namelist() if name.endswith("/data.pkl"))
        for edit in edits(pieces_of(pickle)):
            if len(edit[2]) <= MOST_BYTES_OF_EDIT:
                yield bytes([chosen]) + as_edits(edit)


def of_texts(seeds):
    files = [path for path in seeds if path.is_file() and path.stat().st_size < MOST_BYTES_OF_TEXT]
    for whole in [path.read_bytes() for path in files if path.suffix == ".cbor"]:
        for at, byte in itertools.product(range(len(whole)), range(256)):
            for count in (0, 1):
                yield whole[:at] + bytes([byte]) + whole[at + count:]
    texts = {path.read_bytes() for path in files if path.suffix != ".cbor"}
    for whole in sorted(texts, key=lambda text: (len(text), text)):
        tokens = re.findall(rb'"(?:[^"\\]|\\.)*"|[A-Za-z_]+|[-+.0-9eE]+|\s+|.', whole, re.DOTALL)
        for at, token in enumerate(tokens):
            for other in (*TOKENS, 2 * token):
                yield b"".join([*tokens[:at], other, *tokens[at + 1:]])


SOURCES = {"dcp_metadata_fuzz": of_pickles, "pickle_fuzz": of_pickles, "pickle_trace_fuzz": of_pickles,
           "universal_info_fuzz": of_pickles, "torch_archive_fuzz": of_archives, "checkpoint_fuzz": of_checkpoints,
           "texts_fuzz": of_texts}


def distinct(inputs):
    done = set()
    for content in inputs:
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest not in done:
            done.add(digest)
            yield content


def copy_all(paths, folder):
    for number, path in enumerate(path for path in paths if path.is_file()):
        with contextlib.suppress(FileNotFoundError):  # a fuzzer that runs replaces long ones by shorter ones
            shutil.copy(path, folder / str(number))


def reach(tree, target, known, new):
    """Adds to `known` what of `new` reaches more; how many edges that are."""
    done = subprocess.run([tree / "tests" / target, "-merge=1", "-use_counters=0", "-max_len=65536", "-timeout=30",
                           "-rss_limit_mb=256", f"-artifact_prefix={tree / 'findings' / target}-", known, new],
                          cwd=tree, env={**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=16:malloc_context_size=1"},
                          stderr=subprocess.PIPE, check=True)
    return int(re.findall(rb"MERGE-OUTER: .* (\d+) new coverage edges", done.stderr)[-1])


def try_all(tree, target, inputs):
    """How many were tried, and how many edges they have brought."""
    corpus = tree / "corpus" / target
    tried = edges = 0
    with tempfile.TemporaryDirectory(dir=tree) as scratch:
        known, new = pathlib.Path(scratch, "known"), pathlib.Path(scratch, "new")
        known.mkdir()
        copy_all(itertools.chain(seeds(tree, target), corpus.iterdir()), known)
        while some := list(itertools.islice(inputs, AT_ONCE)):
            new.mkdir()
            for number, content in enumerate(some):
                (new / str(number)).write_bytes(content)
            edges += reach(tree, target, known, new)
            tried += len(some)
            shutil.rmtree(new)
            for path in known.iterdir():
                if not path.name.isdecimal():  # libFuzzer calls what is new by its digest
                    shutil.copy(path, corpus)
            print(f"{tried} tried, {edges} new edges", file=sys.stderr)
    return tried, edges


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--tree", type=pathlib.Path, default=ROOT / "build" / "asan", metavar="DIR")
    parser.add_argument("target", choices=sorted(SOURCES))
    args = parser.parse_args()
    findings = args.tree / "findings"
    findings.mkdir(exist_ok=True)
    before = set(findings.iterdir())
    inputs = distinct(SOURCES[args.target](seeds(args.tree, args.target)))
    tried, edges = try_all(args.tree, args.target, itertools.islice(inputs, 0, None, args.every))
    found = sorted(set(findings.iterdir()) - before)
    print(f"{args.target}: {tried} edits, {edges} new edges, {len(found)} findings", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
