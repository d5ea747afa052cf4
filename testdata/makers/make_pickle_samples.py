#!/usr/bin/env python3
"""Writes testdata/samples/pickles.json: values pickled by CPython in every protocol.

    testdata/makers/make_pickle_samples.py

A list of {"python": the expression, "shown": the value as show() prints it, "" of objects, "pickles": by protocol,
in hexadecimal}.
"""
import collections
import datetime
import json
import pathlib
import pickle
import struct

DATA = [
    "None",
    "True",
    "[False, True, 0, 1]",
    "[255, 256, 65535, 65536, -1, -2**31, 2**31 - 1]",
    "[2**31, -2**31 - 1, 2**63 - 1, -2**63, -128, -129, -2**39]",
    "[2**63, -2**63 - 1, 2**200, -2**200, 2**2100, -2**2039, -2**2040]",
    "[0.0, -0.0, 1.5, -2.5e-300, float('inf'), float('-inf'), 5e-324]",
    "['', 'a', 'h\\u00e9', '\\u20ac', '\\U0001d11e', '\\ud800', 'a\\nb\\\\u0041', 'x' * 300]",
    "[b'', b'a', b'ab', b'\\xe9\\xff\\x00', b'y' * 300]",
    "[(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((),), [], {}]",
    "{'a': 1, 'b': [1, 2], 3: 'c', None: 4, (1, 2): 5, 2.5: 6}",
    "[[], [1], [[1], [2]], {'k': {'k': {}}}]",
    "(lambda s: [s, s, (s, s), {'s': s}])(['shared'])",
    "{str(i): i for i in range(40)}",
    "[str(i) for i in range(300)] * 2",
]
OBJECTS = [
    "[bytearray(b''), bytearray(b'q'), bytearray(b'qr')]",
    "[set(), {1}, {1, 2, 3}, frozenset([4]), frozenset()]",
    "[int, range, range(3), OSError, PermissionError, ValueError, type(None), NotImplemented, ...]",
    "[complex(1, 2), slice(1, 2), map, bytes, str]",
    "collections.OrderedDict([('x', 1), ('y', [2])])",
    "[collections.OrderedDict(), collections.deque([1, 2]), collections.Counter('aab')]",
    "[datetime.timedelta(3), datetime.date(2020, 1, 2)]",
    "[Outer.Inner, Outer.Inner.Innermost, Outer, Outer.Inner]",
    "[Keywords(), Keywords()]",
    "[State(), State()]",
    "recursive_list()",
    "recursive_dict()",
    "recursive_tuple(1)",
    "recursive_tuple(3)",
    "recursive_tuple(4)",
    "recursive_object()",
]


class Outer:
    class Inner:
        class Innermost:
            pass


class Keywords:
    def __new__(cls, *args, **keywords):
        return object.__new__(cls)

    def __getnewargs_ex__(self):
        return (1,), {"k": 2}


class State:
    def __init__(self):
        self.x = 1


for cls in (Outer, Keywords, State, Outer.Inner, Outer.Inner.Innermost):
    cls.__module__ = "__main__"


def recursive_list():
    value = []
    value.append(value)
    return value


def recursive_dict():
    value = {}
    value["self"] = [value]
    return value


def recursive_tuple(size):
    inner = []
    value = (inner,) + tuple(range(size - 1))
    inner.append(value)
    return value


def recursive_object():
    value = State()
    value.me = value
    return value


def text(data):
    return "".join(
        chr(b) if 32 <= b < 127 and chr(b) not in "'\"\\?" else f"<{b:02x}>" for b in data
    )


def show(value):
    """The value in a notation that is easy to print in C++ too."""
    if value is None or value is True or value is False:
        return repr(value)
    if type(value) is int:
        if -(2**63) <= value < 2**63:
            return str(value)
        return "long" + text(pickle.encode_long(value))
    if type(value) is float:
        return "float" + struct.pack(">d", value).hex()
    if type(value) is str:
        return "'" + text(value.encode("utf-8", "surrogatepass")) + "'"
    if type(value) is bytes:
        return "b'" + text(value) + "'"
    if type(value) is tuple:
        return "(" + "".join(show(v) + "," for v in value) + ")"
    if type(value) is list:
        return "[" + "".join(show(v) + "," for v in value) + "]"
    if type(value) is dict:
        return "{" + "".join(show(k) + ":" + show(v) + "," for k, v in value.items()) + "}"
    raise TypeError(type(value))


def pickled(value, protocol):
    try:
        return pickle.dumps(value, protocol).hex()
    except RecursionError:
        return ""  # protocols 0 and 1 cannot do some objects


def main():
    samples = []
    for expression in DATA + OBJECTS:
        value = eval(expression, globals())
        samples.append({"python": expression, "shown": show(value) if expression in DATA else "",
                        "pickles": [pickled(value, protocol) for protocol in range(6)]})
    path = pathlib.Path(__file__).resolve().parent.parent / "samples" / "pickles.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(samples, indent=0) + "\n")


if __name__ == "__main__":
    main()
