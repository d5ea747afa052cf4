"""ckpt-inspect raw against Python's own unpickler, which is given classes that only remember how they were made."""
import collections
import io
import math
import os
import pathlib
import pickle
import random
import zipfile

import cli_common
import tools
import torch_files
from cli_common import CliTest

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])


class Made:
    """The object that an unpickler made of a global: the name itself, or the result of a call."""

    def __init__(self, name, how=None, arguments=None):
        self.name, self.how, self.arguments = name, how, arguments
        self.state, self.items, self.mapping = None, [], []

    def append(self, item):
        self.items.append(item)

    def extend(self, items):
        self.items.extend(items)

    def __setitem__(self, key, value):
        self.mapping.append((key, value))

    def __setstate__(self, state):
        self.state = (state,)


class Reader(pickle._Unpickler):
    """Python's unpickler written in Python, with stand-ins for all that a pickle names."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module, name):
        return Made((module, name))

    def persistent_load(self, pid):
        return ("persistent", pid)

    def load_reduce(self):
        arguments = self.stack.pop()
        function = self.stack[-1]
        if function.name == ("_codecs", "encode"):
            self.stack[-1] = arguments[0].encode(arguments[1])
        else:
            self.stack[-1] = Made(function, "reduce", arguments)

    def load_newobj(self):
        arguments = self.stack.pop()
        self.stack[-1] = Made(self.stack[-1], "newobj", arguments)

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_newobj


class Same:
    """Compares a JSON tree with what Reader made; `shared` has the numbers of containers met so far."""

    def __init__(self, test):
        self.test = test
        self.shared = {}
        self.tensors = 0

    def check(self, tree, value):
        test = self.test
        if isinstance(tree, dict) and "$ref" in tree:
            test.assertIs(self.shared[tree["$ref"]], self.container(value))
            return
        if isinstance(tree, dict) and "$shared" in tree:
            test.assertNotIn(tree["$shared"], self.shared)
            self.shared[tree["$shared"]] = self.container(value)
            tree = tree["value"]
        kind, content = self.kind_of(tree)
        if isinstance(value, Made):
            if value.how is None:
                return test.assertEqual((kind, content), ("$global", list(value.name)))
            if kind == "$tensor":
                return self.check_tensor(content, value)
            test.assertEqual(kind, "$object")
            return self.check_object(content, value)
        if isinstance(value, tuple) and value[:1] == ("persistent",) and kind == "$persistent":
            return self.check(content, value[1])
        python = type(value)
        if python is dict:
            pairs = content if kind == "$dict" else list(content.items())
            test.assertEqual(kind, "$dict" if any(type(k) is not str or k[:1] == "$" for k in value) else "dict")
            test.assertEqual(len(pairs), len(value))
            for (tree_key, tree_value), (key, item) in zip(pairs, value.items()):
                self.check(tree_key, key)
                self.check(tree_value, item)
            return
        if python in (list, tuple):
            test.assertEqual(kind, "list" if python is list else "$tuple")
            return self.check_all(content, value)
        if python in (set, frozenset):
            test.assertEqual(kind, "$" + python.__name__)
            return test.assertEqual(sorted(map(repr, content)), sorted(map(repr, value)))
        if python in (bytes, bytearray):
            return test.assertEqual((kind, content), ("$" + python.__name__, value.hex()))
        if python is int and not -2**63 <= value < 2**63:
            test.assertEqual(kind, "$integer")
            return test.assertEqual(int(content, 16), value)
        if python is float and not math.isfinite(value):
            return test.assertEqual((kind, content), ("$float", str(value)))
        test.assertIs(type(tree), python)
        test.assertEqual(tree, value)

    @staticmethod
    def container(value):
        # The stand-in of a persistent value is made anew at every place.
        return value

    @staticmethod
    def kind_of(tree):
        if isinstance(tree, dict) and len(tree) == 1 and next(iter(tree)).startswith("$"):
            return next(iter(tree.items()))
        return type(tree).__name__, tree

    def check_all(self, trees, values):
        self.test.assertEqual(len(trees), len(values))
        for tree, value in zip(trees, values):
            self.check(tree, value)

    def check_object(self, content, made):
        test = self.test
        test.assertEqual(content["made"], made.how)
        self.check(content["callable"], made.name)
        self.check(content["arguments"], made.arguments)
        test.assertEqual("state" in content, made.state is not None)
        if made.state is not None:
            self.check(content["state"], made.state[0])
        self.check_all(content.get("items", []), made.items)
        mapping = content.get("mapping", [])
        test.assertEqual(len(mapping), len(made.mapping))
        for (tree_key, tree_value), (key, value) in zip(mapping, made.mapping):
            self.check(tree_key, key)
            self.check(tree_value, value)

    def check_tensor(self, content, made):
        test = self.test
        self.tensors += 1
        function, arguments = made.name.name[1], made.arguments
        attributes = None
        if function == "_rebuild_from_type_v2":
            attributes = arguments[3]
            function, arguments = arguments[0].name[1], arguments[2]
        if function == "_rebuild_parameter":
            test.assertIs(content["requires_grad"], arguments[1])
            function, arguments = arguments[0].name.name[1], arguments[0].arguments
        else:
            test.assertIs(content["requires_grad"], arguments[4])
        test.assertIn(function, ("_rebuild_tensor_v2", "_rebuild_tensor_v3"))
        storage = arguments[0][1]
        sizes = [list(part.arguments[0]) if isinstance(part, Made) else list(part) for part in arguments[2:4]]
        test.assertEqual([content["shape"], content["strides"]], sizes)
        test.assertEqual(content["storage"], storage[2])
        view = storage[5] if len(storage) == 6 and storage[5] else (None, 0, None)
        test.assertEqual(content["storage_offset"], arguments[1] + view[1])
        if function == "_rebuild_tensor_v2":
            test.assertEqual(torch_files.TYPES[content["dtype"]][0], storage[1].name[1])
        else:
            test.assertEqual(content["dtype"], arguments[6].name[1])
        test.assertEqual("attributes" in content, attributes is not None)
        if attributes is not None:
            self.check(content["attributes"], attributes)


def python_reading(path):
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            record, = (name for name in archive.namelist() if name.endswith("/data.pkl"))
            return Reader(io.BytesIO(archive.read(record))).load()
    with open(path, "rb") as file:
        values = [Reader(file).load() for _ in range(4)]
    return values[3]


class RawTest(CliTest):

    def raw(self, path, *arguments):
        done = self.tool("ckpt-inspect", "raw", path, "--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["type"], "raw")
        return line["data"]

    def text(self, path, *arguments):
        done = self.tool("ckpt-inspect", "raw", path, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def plain(self, value, protocol=4):
        path = self.new_path("plain.pkl")
        path.write_bytes(pickle.dumps(value, protocol))
        return path

    def test_trees_are_what_python_reads(self):
        paths = [path for case in tools.all_cases()[::4] + tools.model_parallel_cases()[::4]
                 for path in sorted(case.load_dir.rglob("*.pt"))[::3]]
        paths += [path for case in tools.all_cases() if "legacyserial" in case.name
                  for path in sorted(case.load_dir.rglob("*.pt"))]
        paths += sorted((TESTDATA / "checkpoints").rglob("*.pth")) + sorted((TESTDATA / "checkpoints").rglob("*.pkl"))
        legacy = tensors = 0
        for path in paths:
            with self.subTest(path=path):
                data = self.raw(path)
                same = Same(self)
                same.check(data["value"], python_reading(path))
                tensors += same.tensors
                legacy += not zipfile.is_zipfile(path)
        self.assertGreater(len(paths), 60)
        self.assertGreater(legacy, 3)
        self.assertGreater(tensors, 500)

    def test_plain_pickles_of_every_protocol(self):
        shared = [1, 2]
        value = {"a": [None, True, -1, 2**70, -2**63, -2**63 - 1, 1.5, -0.0, float("nan"), float("-inf"), 1e300],
                 "b": ("ü\n\"\\", "\ud800x", b"\x00\xff", ()), 3: shared, "c": shared, "$odd": {1: 2}, "s": "x" * 5000}
        for protocol in range(6):
            path = self.plain(value, protocol)
            Same(self).check(self.raw(path)["value"], python_reading_of_plain(path))
        path = self.plain({"x": {1, 2}, "y": frozenset("ab"), "z": bytearray(b"ab")}, 5)
        Same(self).check(self.raw(path)["value"], python_reading_of_plain(path))

    def test_shared_values_are_written_once_and_cycles_end(self):
        laughs = ["ha"]
        for _ in range(60):
            laughs = [laughs, laughs]
        path = self.plain(laughs)
        Same(self).check(self.raw(path)["value"], pickle.loads(path.read_bytes()))
        self.assertLess(len(self.text(path)), 20_000)
        loop = [1]
        loop.append({"again": loop})
        path = self.plain(loop)
        self.assertEqual(self.raw(path)["value"], {"$shared": 1, "value": [1, {"again": {"$ref": 1}}]})
        self.assertEqual(self.text(path), "&1 [\n  1,\n  {\n    'again': *1,\n  },\n]\n")

    def test_text_is_like_python(self):
        path = self.new_path("model.pt")
        weight = torch_files.Parameter(torch_files.arange(12, "float32").reshape(3, 4))
        torch_files.save(collections.OrderedDict(step=3, weight=weight, view=weight.t(), none=None,
                                                 sizes=torch_files.Size([3, 4]), names=["a", "b"], name="it's"), path)
        text, names = self.text(path).split("\n\nnames:\n")
        self.assertEqual(text, """collections.OrderedDict() with {
  'step': 3,
  'weight': tensor(float32, [3, 4], storage 0 + 0, requires_grad),
  'view': tensor(float32, [4, 3], storage 0 + 0, strides [1, 4]),
  'none': None,
  'sizes': torch.Size(
    (3, 4),
  ),
  'names': ['a', 'b'],
  'name': 'it\\'s',
}""")
        self.assertEqual(names.splitlines(), [f"  {name}\tharmless" for name in [
            "collections.OrderedDict", "torch._utils._rebuild_parameter", "torch._utils._rebuild_tensor_v2",
            "torch.FloatStorage", "torch.Size"]])

    def test_part_depth_and_length(self):
        path = self.plain({"a": {"b.c": [10, {"d": 20}], "b": 5}, 7: "x" * 1000, "deep": [[[1]]]})
        self.assertEqual(self.raw(path, "--key", "a.b.c.1.d")["value"], 20)
        self.assertEqual(self.raw(path, "--key", "a.b")["value"], 5)
        self.assertEqual(self.raw(path, "--key", "7")["value"], "x" * 1000)
        self.assertEqual(self.text(path, "--key", "7"), f"'{'x' * 200}'... (1000 bytes)\n")
        self.assertEqual(self.text(path, "--key", "7", "--full"), f"'{'x' * 1000}'\n")
        self.assertEqual(self.raw(path, "--key", "deep", "--depth", "2")["value"], [[{"$elided": "list"}]])
        self.assertEqual(self.text(path, "--key", "deep", "--depth", "1"), "[\n  <list ...>,\n]\n")
        missing = self.tool("ckpt-inspect", "raw", path, "--key", "a.x", "--json")
        self.assertIn("'a.x'", self.error_of(missing, 2)["message"])

    def test_record_and_offset(self):
        path = self.new_path("model.pt")
        first, second = pickle.dumps([1]), pickle.dumps({"b": 2})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("m/data.pkl", pickle.dumps({"a": 1}, 2))
            archive.writestr("m/other", first + second)
        self.assertEqual(self.raw(path)["value"], {"a": 1})
        self.assertEqual(self.raw(path, "--record", "other")["record"], "m/other")
        self.assertEqual(self.raw(path, "--record", "m/other")["value"], [1])
        self.assertEqual(self.raw(path, "--record", "m/other", "--offset", str(len(first)))["value"], {"b": 2})
        none = self.tool("ckpt-inspect", "raw", path, "--record", "nothing", "--json")
        self.error_of(none, 2)

    def test_nothing_of_a_malicious_pickle_reaches_the_terminal_or_runs(self):
        path = self.new_path("evil.pkl")
        path.write_bytes(b"\x80\2cos\nsystem\n\x8c\x09\x1b[2J\xc2\x9b1mx\x85R.")
        text = self.text(path)
        self.assertEqual(text, "os.system('\\x1b[2J\\x9b1mx')\n\nnames:\n  os.system\tdangerous\n")

    def test_broken_pickles_are_refused(self):
        dice = random.Random(4)
        whole = (TESTDATA / "malicious" / "indirect-nested-pickle.pkl").read_bytes()
        path = self.new_path("broken.pkl")
        for length in range(0, len(whole), 7):
            path.write_bytes(whole[:length])
            self.error_of(self.tool("ckpt-inspect", "raw", path, "--json"), 3)
        for _ in range(40):
            data = bytearray(whole)
            data[dice.randrange(len(data))] = dice.randrange(256)
            path.write_bytes(data)
            self.assertIn(self.tool("ckpt-inspect", "raw", path).returncode, (0, 3))


def python_reading_of_plain(path):
    return Reader(io.BytesIO(path.read_bytes())).load()


if __name__ == "__main__":
    cli_common.main()
