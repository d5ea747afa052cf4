"""ckpt-inspect scan: finds what would run code, wherever it hides, passes what is healthy, and never runs anything."""
import argparse
import collections
import datetime
import decimal
import fractions
import io
import json
import lzma
import os
import pathlib
import pickle
import pickletools
import random
import signal
import struct
import types
import uuid
import zipfile
import zlib

import cli_common
import numpy
import tools
import torch_files
from scan_case import ZOO, Payload, ScanCase, with_a_second_directory

MUTATIONS = 400


def expected_of_zoo():
    return json.loads((ZOO / "expected.json").read_text())


def v7_tar(content):
    """The form of tar before POSIX, which has no "ustar"; torch 0.1's names."""
    blocks = b""
    for name in ("sys_info", "storages", "tensors", "pickle"):
        header = bytearray(512)
        header[0:len(name)] = name.encode()
        header[100:108], header[108:116], header[116:124] = b"0000644\0", b"0000000\0", b"0000000\0"
        header[124:136], header[136:148], header[148:156] = b"%011o\0" % len(content), b"%011o\0" % 0, b" " * 8
        header[156] = ord("0")
        header[148:156] = b"%06o\0 " % sum(header)
        blocks += bytes(header) + content + b"\0" * (-len(content) % 512)
    return blocks + b"\0" * 1024


# Pickles put together opcode by opcode: what they name is neither imported nor called here.

STOP, REDUCE, BUILD, NEWOBJ, EMPTY_DICT, EMPTY_LIST, NONE, STORAGE = b".", b"R", b"b", b"\x81", b"}", b"]", b"N", b"NQ"


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def name(dotted):
    """For "module:name"."""
    module, attribute = dotted.split(":")
    return text(module) + text(attribute) + b"\x93"


def tuple_of(*values):
    return b"(" + b"".join(values) + b"t"


def call(function, *arguments):
    return name(function) + tuple_of(*arguments) + REDUCE


def made(named_class, state=None):
    return name(named_class) + b")" + NEWOBJ + (b"" if state is None else state + BUILD)


def dict_of(**items):
    return EMPTY_DICT + b"(" + b"".join(text(key) + value for key, value in items.items()) + b"u"


def pickled(body):
    return b"\x80\4" + body + STOP


def tensor(storage=STORAGE):
    return call("torch._utils:_rebuild_tensor_v2", storage, b"K\0", b"K\2\x85", b"K\1\x85", b"\x89", EMPTY_DICT)


NAMESPACE = made("argparse:Namespace", dict_of(to=name("builtins:str")))

# Names that run code or write files and that no list of dangerous ones had.
GADGETS = {
    "typing.get_type_hints": call("typing:get_type_hints", made("types:SimpleNamespace", dict_of(
        __annotations__=dict_of(a=text("__import__('os')"))))),
    "optparse.Values.read_file": call("optparse:Values.read_file", call("optparse:Values"), text("x.py")),
    "copyreg.add_extension": call("copyreg:add_extension", text("os"), text("system"), b"K\x77") + b"0\x82\x77" +
                             tuple_of(text("x")) + REDUCE,
    "torch.UntypedStorage.from_file": call("torch:UntypedStorage.from_file", text("x"), b"\x88", b"K\x10"),
    "torch.FloatStorage.from_file": call("torch:FloatStorage.from_file", text("x"), b"\x88", b"K\x10"),
    "torch.storage.TypedStorage.from_file": call("torch.storage:TypedStorage.from_file", text("x"), b"\x88", b"K\x10"),
    "torch.classes.load_library": call("torch:classes.load_library", text("/x.so")),
    "pathlib.PosixPath.write_text": call("pathlib:PosixPath.write_text", call("pathlib:PosixPath", text("x")), text("y")),
    "numpy.ndarray.tofile": call("numpy:ndarray.tofile", call("numpy:ndarray", tuple_of(b"K\1")), text("x")),
    "torch.utils.benchmark.Timer.timeit": call("torch.utils.benchmark:Timer.timeit",
                                               call("torch.utils.benchmark:Timer", text("x")), b"K\1"),
    "sympy.sympify": call("sympy:sympify", text("x")),
}

# Harmless names, not used as picklers use them.
MISUSED = {
    "_codecs.encode": [call("_codecs:encode", text("x"), text("zlib_codec")), call("_codecs:encode", text("x")),
                       call("_codecs:encode", NAMESPACE, text("latin1")),
                       made("argparse:Namespace", dict_of(append=name("_codecs:encode")))],
    "torch._utils._rebuild_tensor_v2": [tensor(NAMESPACE), tensor(text("x")), tensor() + EMPTY_DICT + BUILD,
                                        call("torch._utils:_rebuild_tensor_v2", STORAGE)],
    "torch._utils._rebuild_parameter": [call("torch._utils:_rebuild_parameter", NAMESPACE, b"\x88", EMPTY_DICT)],
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": [call(
        "torch._utils:_rebuild_device_tensor_from_cpu_tensor", NAMESPACE, name("torch:float32"), text("cpu"), b"\x89")],
    "torch._utils._rebuild_wrapper_subclass": [call("torch._utils:_rebuild_wrapper_subclass", NAMESPACE)],
    "torch._tensor._rebuild_from_type_v2": [
        call("torch._tensor:_rebuild_from_type_v2", name("collections:OrderedDict"), name("torch:Tensor"), b")", EMPTY_DICT),
        call("torch._tensor:_rebuild_from_type_v2", name("torch._utils:_rebuild_parameter"), name("torch:Tensor"),
             tuple_of(NAMESPACE, b"\x88", EMPTY_DICT), EMPTY_DICT),
        call("torch._tensor:_rebuild_from_type_v2", name("torch._utils:_rebuild_parameter"), NAMESPACE,
             tuple_of(tensor(), b"\x88", EMPTY_DICT), EMPTY_DICT)],
    "torch.device": [call("torch:device", NAMESPACE)],
    "collections.defaultdict": [call("collections:defaultdict", NAMESPACE)],
    "copyreg._reconstructor": [call("copyreg:_reconstructor", NAMESPACE, name("builtins:object"), NONE),
                               made("argparse:Namespace", dict_of(append=name("copyreg:_reconstructor")))],
    "numpy.core.multiarray._reconstruct": [call("numpy.core.multiarray:_reconstruct", NAMESPACE, b"K\0\x85", b"C\1b")],
    "numpy.random._pickle.__generator_ctor": [call("numpy.random._pickle:__generator_ctor", text("x"), name("builtins:list"))],
    "transformers.training_args.TrainingArguments": [
        call("transformers.training_args:TrainingArguments", text("x")),
        name("transformers.training_args:TrainingArguments") + tuple_of(text("x")) + NEWOBJ,
        call("copyreg:_reconstructor", name("transformers.training_args:TrainingArguments"), name("builtins:str"), text("x")),
        call("collections:defaultdict", name("transformers.training_args:TrainingArguments"))],
    "transformers.trainer_utils.HubStrategy": [call("transformers.trainer_utils:HubStrategy", text("x"), EMPTY_LIST)],
    "builtins.object": [call("builtins:object") + EMPTY_DICT + BUILD],
    "builtins.getattr": [call("builtins:getattr", name("transformers.trainer_utils:HubStrategy"), text("format")),
                         call("builtins:getattr", name("torch:UntypedStorage"), text("from_file")),
                         call("builtins:getattr", name("torch.distributed._shard.sharded_tensor.api:ShardedTensor"),
                              text("_init_rpc"))],
    "functools.partial": [call("functools:partial", name("builtins:str"))],
    "operator.attrgetter": [call("operator:attrgetter", text("x"))],
    "operator.methodcaller": [call("operator:methodcaller", text("x"))],
    "extension code 5": [b"\x82\5"],
}


class ScanTest(ScanCase):

    def test_zoo_is_large_and_each_file_is_described(self):
        files = {path.name for path in ZOO.iterdir()} - {"README.md", "expected.json"}
        self.assertEqual(files, set(expected_of_zoo()))
        self.assertGreaterEqual(len(files), 60)

    def test_what_loaders_unwrap_is_not_harmless_whatever_it_is_called(self):
        payload = pickle.dumps(Payload())
        wrapped = {"tar archive": [v7_tar(payload)],
                   "zlib stream": [zlib.compress(payload, level) for level in (0, 1, 6, 9)],
                   "lzma file": [lzma.compress(payload, format=lzma.FORMAT_ALONE, preset=p) for p in range(10)],
                   "lz4 file": [b"\x02\x21\x4c\x18" + payload]}
        for reason, contents in wrapped.items():
            for name in ("model.weights", "model", "model.pt"):
                for content in contents:
                    with self.subTest(reason, name=name):
                        (self.root / name).write_bytes(content)
                        data = self.scanned(self.root / name, code=1)
                        self.assertEqual([part["reason"] for part in data["unreadable"]], [reason])

    def test_a_second_directory_in_the_comment_is_the_one_that_counts(self):
        plain, file = self.root / "plain.pt", self.root / "model.pt"
        torch_files.save({"w": torch_files.zeros(4)}, plain)
        file.write_bytes(with_a_second_directory(plain.read_bytes(), "plain/data/0", {
            "archive/data.pkl": pickle.dumps(Payload(), 2), "archive/byteorder": b"little", "archive/version": b"3\n"
        }))
        with zipfile.ZipFile(file) as archive:  # reads it as torch does: oracle/scan_test.py
            self.assertIn(b"posix\nsystem", archive.read("archive/data.pkl"))
        found = self.scanned(file, code=1)
        self.assertIn("posix.system", {finding["global"] for finding in found["findings"]})
        self.assertIn("readers could take another one", found["unreadable"][0]["reason"])
        for tool in (["zero-to-fp32", file, self.root / "out"], ["ckpt-inspect", "list", file]):
            done = self.tool(*tool)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("readers could take another one", done.stderr)

    def test_a_zip_behind_pickles_is_not_harmless_even_if_both_are(self):
        """torch reads the pickles, and whatever looks for a directory at the end the zip."""
        file = self.root / "model.pt"
        torch_files.save({"w": torch_files.zeros(4)}, file, legacy=True)
        behind = torch_files.saved({"w": torch_files.ones(4)})
        for size in (None, 0x80):  # the end record's own, which zip64's replaces
            content = bytearray(behind)
            if size is not None:
                content[-22 + 14] = size
            (self.root / "both.pt").write_bytes(file.read_bytes() + content)
            found = self.scanned(self.root / "both.pt", code=1)
            self.assertEqual({finding["class"] for finding in found["findings"]}, {"harmless"})
            self.assertIn("a zip lies behind other bytes: readers could take either",
                          [part["reason"] for part in found["unreadable"]])
        self.assertEqual(self.tool("ckpt-inspect", "list", self.root / "both.pt").returncode, 3)

    def test_every_file_of_the_zoo_is_found_with_its_place(self):
        data = self.scanned(ZOO, code=1)
        findings, unreadable = collections.defaultdict(list), collections.defaultdict(list)
        for finding in data["findings"]:
            findings[finding["file"]].append(finding)
        for part in data["unreadable"]:
            unreadable[part["file"]].append(part)
        for file, expected in expected_of_zoo().items():
            with self.subTest(file=file):
                classes = {part["class"] for part in findings[file] + unreadable[file]}
                worst = "dangerous" if "dangerous" in classes else "unknown"
                self.assertTrue(findings[file] or unreadable[file])
                self.assertEqual(worst, expected["class"])
                found = {f["global"]: f for f in findings[file] if f["class"] == expected["class"]}
                self.assertLessEqual(set(expected["globals"]), set(found))
                if "unreadable" in expected:
                    self.assertIn(expected["unreadable"], " | ".join(part["reason"] for part in unreadable[file]))
                for name in expected["globals"]:
                    self.assertEqual(found[name].get("record"), expected.get("record"))
                    self.assert_named_there(ZOO / file, found[name])
                if not expected["globals"] and "record" in expected:
                    self.assertIn(expected["record"], [part.get("record") for part in unreadable[file]])

    def assert_named_there(self, path, finding):
        """An opcode that names something stands at the offset, in the files that hold their pickle as it is."""
        if "record" in finding or finding["global"] == "<persistent id>":
            return
        opcode = path.read_bytes()[finding["offset"]]
        self.assertIn(opcode, b"ci\x93\x82\x83\x84", finding)

    def test_each_file_of_the_zoo_alone_has_its_exit_code(self):
        for file, expected in random.Random(1).sample(sorted(expected_of_zoo().items()), 40):
            with self.subTest(file=file):
                self.scanned(ZOO / file, code=1)
                self.scanned(ZOO / file, "--strict", code=1)
                self.scanned(ZOO / file, "--dangerous-only", code=1 if expected["class"] == "dangerous" else 0)

    def test_healthy_checkpoints_pass(self):
        for family in ["checkpoints", "model_parallel"]:
            folder = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / family
            data = self.assert_harmless(folder)
            pickles = [path for path in folder.rglob("*") if path.suffix in (".pt", ".pth", ".pkl")]
            self.assertGreater(len(pickles), 300)
            self.assertEqual(data["files"] - len(data["not_examined"]), len(pickles))

    def test_other_files_pass_but_for_what_is_a_program(self):
        testdata = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
        self.assert_harmless(testdata / "peft")
        data = self.scanned(testdata / "formats", code=1)
        self.assertEqual({finding["file"] for finding in data["findings"] if finding["class"] != "harmless"},
                         {"torchscript.pt"})
        self.assertEqual(data["unreadable"], [])

    def test_globals_are_those_that_the_pickles_name(self):
        case = tools.case_named("hf_trainer_llama_z1_bf16_w3")
        expected = set()
        for path in case.load_dir.rglob("*"):
            if not path.is_file() or not zipfile.is_zipfile(path):
                continue
            with zipfile.ZipFile(path) as archive:
                record, = (name for name in archive.namelist() if name.endswith("data.pkl"))
                texts = [argument for opcode, argument, _ in pickletools.genops(archive.read(record))
                         if opcode.name == "GLOBAL"]
                expected |= {(str(path.relative_to(case.load_dir)), text.replace(" ", ".")) for text in texts}
        self.assertTrue(expected)
        data = self.assert_harmless(case.load_dir)
        self.assertEqual({(finding["file"], finding["global"]) for finding in data["findings"]}, expected)

    def test_what_python_and_numpy_save_passes(self):
        folder = self.new_path("saved")
        folder.mkdir()
        self.assert_harmless_beside_plain_files(folder)

    def assert_not_harmless(self, path, global_):
        data = self.scanned(path, code=1)
        classes = {finding["global"]: finding["class"] for finding in data["findings"]}
        self.assertIn(classes.get(global_), ("unknown", "dangerous"), data)

    def test_gadgets_that_are_on_no_list_are_not_harmless(self):
        for global_, body in GADGETS.items():
            with self.subTest(global_):
                for file in ("model.pkl", "model"):
                    self.assert_not_harmless(self.written(pickled(body), file), global_)
                    # Without a header, and broken off once it has run.
                    self.assert_not_harmless(self.written(body + b"\xff", file), global_)
                stream = io.BytesIO()
                with zipfile.ZipFile(stream, "w") as zipped:
                    zipped.writestr("archive/data.pkl", pickled(body))
                self.assert_not_harmless(self.written(stream.getvalue(), "model.pt"), global_)

    def test_harmless_names_that_are_misused_are_not_harmless(self):
        for global_, bodies in MISUSED.items():
            for body in bodies:
                with self.subTest(global_, body=body):
                    self.assert_not_harmless(self.written(pickled(body)), global_)

    def test_harmless_names_are_harmless_as_picklers_use_them(self):
        values = [
            numpy.random.RandomState(3), numpy.random.default_rng(3), numpy.random.MT19937(2), numpy.arange(3),
            numpy.array(["a"]), numpy.array([{}], dtype=object), numpy.zeros(1, dtype=[("a", "i4")]), numpy.float32(2),
            numpy.datetime64("2020-01-01"), numpy.dtype("f4"), numpy.float64, uuid.UUID(int=3), decimal.Decimal(3),
            fractions.Fraction(1, 3), datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc), b"bytes", bytearray(b"b"),
            datetime.date(2020, 1, 1), datetime.timedelta(1), pathlib.PurePosixPath("a"), signal.SIGTERM, 1j, range(3),
            slice(1), {1}, frozenset([2]), collections.Counter("ab"), collections.deque([1], 2), collections.OrderedDict(a=1),
            collections.defaultdict(list, {1: [2]}), collections.defaultdict(None), types.SimpleNamespace(a=1),
            argparse.Namespace(a=1), Ellipsis,
            random.getstate(), numpy.random.get_state()]
        for number, value in enumerate(values):
            for protocol in range(6):
                with self.subTest(value=value, protocol=protocol):
                    self.assert_harmless(self.written(pickle.dumps(value, protocol)))

    def test_members_of_enums_are_harmless_as_any_python_pickles_them(self):
        for body in (b"csignal\nSIGTERM\n", b"csignal\nSignals\nK\x0f\x85R",
                     b"cbuiltins\ngetattr\ncsignal\nSignals\nX\x07\0\0\0SIGTERM\x86R"):
            with self.subTest(body=body):
                self.assertEqual(pickle.loads(pickled(body)), signal.SIGTERM)
                self.assert_harmless(self.written(pickled(body)))
        self.assert_not_harmless(self.written(pickled(b"csignal\nalarm\n")), "signal.alarm")

    def test_objects_that_protocols_0_and_1_make_are_judged_by_their_class(self):
        made_by_copyreg = "copyreg:_reconstructor", name("transformers.training_args:TrainingArguments")
        state = call(*made_by_copyreg, name("builtins:object"), NONE) + dict_of(seed=b"K\1") + BUILD
        data = self.assert_harmless(self.written(pickled(state)))
        uses = {finding["global"]: finding["uses"] for finding in data["findings"]}
        self.assertEqual(uses["transformers.training_args.TrainingArguments"], ["made", "built"])
        theirs = call("copyreg:_reconstructor", name("somebody.models:Net"), name("builtins:object"), NONE)
        self.assert_not_harmless(self.written(pickled(theirs)), "somebody.models.Net")

    def test_what_is_not_followed_to_its_end_is_not_harmless(self):
        payload = GADGETS["typing.get_type_hints"] + STOP
        for file, content, found in (("model.pkl", b"N." * 17 + b"csomebody\nrun\n(tR.", "somebody.run"),
                                     ("model", b"N" * 9_000_000 + payload, "typing.get_type_hints")):
            with self.subTest(file=file):
                self.assert_not_harmless(self.written(content, file), found)
        data = self.scanned(self.written(b"N." * 20_000), code=1)
        self.assertEqual([part["reason"] for part in data["unreadable"]], ["more than 10000 pickles"])
        late = b"\x80\4" + b"N0" * (33 << 20) + payload
        for record, content, method in (("weights", late, zipfile.ZIP_DEFLATED), ("weights", payload, zipfile.ZIP_LZMA)):
            with self.subTest(method=method):
                stream = io.BytesIO()
                with zipfile.ZipFile(stream, "w", method, compresslevel=1) as zipped:
                    zipped.writestr(record, content)
                data = self.scanned(self.written(stream.getvalue(), "model.zip"), code=1)
                self.assertEqual([part["record"] for part in data["unreadable"]], ["weights"])
        # Numbers are not pickles, however many.
        numpy.savez_compressed(self.root / "large.npz", a=numpy.zeros(9 << 20))
        self.assert_harmless(self.root / "large.npz")

    def test_what_is_allowed_is_listed_and_does_not_count(self):
        theirs = self.written(pickled(made("somebody.models:Net", EMPTY_DICT) + made("somebody.data:Set")))
        self.scanned(theirs, code=1)
        for patterns in (["somebody"], [r"somebody\.models\.N"], [r"models\.Net"], [r"somebody\.models\.Net"]):
            self.scanned(theirs, *(f"--allow={pattern}" for pattern in patterns), code=1)
        for patterns in ([r"somebody\..*"], [r"somebody\.models\.Net", r"somebody\.data\.Set"]):
            data = self.scanned(theirs, *(f"--allow={pattern}" for pattern in patterns), code=0)
            self.assertEqual(data["class"], "allowed")
            self.assertEqual([(finding["global"], finding["class"]) for finding in data["findings"]],
                             [("somebody.models.Net", "allowed"), ("somebody.data.Set", "allowed")])
        done = self.tool("ckpt-inspect", "scan", theirs, "--allow", r"somebody\..*")
        self.assertEqual([line.split("\t")[:3] for line in done.stdout.splitlines()],
                         [["allowed", "somebody.data.Set", "made"], ["allowed", "somebody.models.Net", "built, made"]])
        self.assertIn("1 pickle in 1 of 1 file: allowed", done.stderr)
        for what in (ZOO / "call-os.system.pkl", ZOO / "opcode-extension.pkl", ZOO / "container-7z-archive.pkl"):
            self.scanned(what, "--allow=.*", code=1)
        wrong = self.tool("ckpt-inspect", "scan", theirs, "--allow", "(", "--json")
        self.assertIn("--allow '('", self.error_of(wrong, 2)["message"])

    def test_only_what_is_dangerous_fails_if_one_says_so(self):
        unknown, harmless = self.written(pickled(made("somebody.models:Net"))), self.written(pickled(NONE))
        for path, code in ((unknown, 0), (ZOO / "container-7z-archive.pkl", 0), (ZOO / "call-os.system.pkl", 1), (harmless, 0)):
            self.scanned(path, "--dangerous-only", code=code)
        self.scanned(unknown, "--strict", code=1)
        self.scanned(harmless, "--strict", code=0)
        self.error_of(self.tool("ckpt-inspect", "scan", unknown, "--strict", "--dangerous-only", "--json"), 2)

    def test_what_no_loader_of_pickles_reads_is_not_examined(self):
        folder = self.new_path("folder")
        folder.mkdir()
        torch_files.save({}, folder / "model.pt")
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        (folder / "tokenizer.model").write_bytes(b"\x0a\x0e\x0a\x05" + bytes(range(256)))
        data = self.assert_harmless(folder)
        self.assertEqual(set(data), {"path", "files", "not_examined", "pickles", "class", "findings", "unreadable", "notes"})
        self.assertEqual((data["files"], data["pickles"]), (4, 1))
        self.assertEqual(data["not_examined"], ["config.json", "model.safetensors", "tokenizer.model"])
        done = self.tool("ckpt-inspect", "scan", folder)
        self.assertIn("1 pickle in 1 of 4 files, 3 not examined: harmless", done.stderr)
        # But what a loader would unpack is not text.
        for content in (b"7z\xbc\xaf\x27\x1c\0\4" + bytes(40), zlib.compress(pickled(NONE)), lzma.compress(b"x")):
            (folder / "model.bin").write_bytes(content)
            data = self.scanned(folder, code=1)
            self.assertEqual([part["file"] for part in data["unreadable"]], ["model.bin"])

    def test_enums_as_early_python_311_pickled_them_are_harmless(self):
        path = self.new_path("enum.pkl")
        enum = b"c__builtin__\ngetattr\nq\1cdeepspeed.runtime.zero.config\nZeroStageEnum\nq\2X\7\0\0\0weights\x86R"
        again = b"h\1h\2X\x09\0\0\0gradients\x86R"
        path.write_bytes(b"\x80\2" + enum + again + b"\x86.")
        data = self.assert_harmless(path)
        by_name = {finding["global"]: finding["uses"] for finding in data["findings"]}
        owner = "deepspeed.runtime.zero.config.ZeroStageEnum"
        self.assertEqual(by_name["__builtin__.getattr"],
                         [f"getattr of {owner}.{member}" for member in ("weights", "gradients")])

    def test_unreadable_files_are_named(self):
        folder = self.new_path("folder")
        folder.mkdir()
        (folder / "dangling.pt").symlink_to(folder / "nothing")
        (folder / "loop").symlink_to(folder)
        os.mkfifo(folder / "pipe.pt")
        (folder / "link.pt").symlink_to(ZOO / "zip-torch.pt")
        data = self.scanned(folder, code=1)
        self.assertEqual({part["file"] for part in data["unreadable"]}, {"dangling.pt", "loop", "pipe.pt"})
        self.assertEqual([(f["file"], f["class"]) for f in data["findings"]], [("link.pt", "dangerous")])
        missing = self.tool("ckpt-inspect", "scan", folder / "none", "--json")
        self.assertEqual(self.error_of(missing, 4)["kind"], "io")

    def test_text_has_one_line_a_global_the_worst_first(self):
        folder = self.new_path("folder")
        folder.mkdir()
        for name in ["a.pkl", "b.pkl"]:
            (folder / name).write_bytes((ZOO / "call-os.system.pkl").read_bytes())
        (folder / "c.pkl").write_bytes((ZOO / "unknown-library.pkl").read_bytes())
        (folder / "d.pkl").write_bytes((ZOO / "container-7z-archive.pkl").read_bytes())
        torch_files.save({}, folder / "e.pt")
        torch_files.save(torch_files.Size([2]), folder / "f.pt")
        done = self.tool("ckpt-inspect", "scan", folder)
        self.assertEqual(done.returncode, 1)
        self.assertEqual([line.split("\t") for line in done.stdout.splitlines()],
                         [["dangerous", "os.system", "called", "2", "a.pkl at 2"],
                          ["unreadable", "7z archive", "", "1", "d.pkl"],
                          ["unknown", "somebody.models.Net", "called", "1", "c.pkl at 2"],
                          ["harmless", "torch.Size", "called", "1", "f.pt: f/data.pkl at 2"]])
        self.assertIn("6 of 6 files: dangerous", done.stderr)

    def test_mutations_neither_crash_nor_run_anything(self):
        dice = random.Random(20)
        healthy = [path for path in (ZOO.parent / "formats").iterdir() if path.stat().st_size < 50_000]
        sources = sorted(path for path in ZOO.iterdir() if path.suffix not in (".md", ".json")) + sorted(healthy)
        folder = self.new_path("mutated")
        folder.mkdir()
        for number in range(MUTATIONS):
            source = dice.choice(sources)
            data = bytearray(source.read_bytes())
            for _ in range(dice.randint(0, 4)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            if dice.random() < 0.3:
                del data[dice.randrange(len(data)):]
            (folder / f"{number}-{source.name}").write_bytes(data)
        data = self.scanned(folder)
        self.assertEqual(data["files"], MUTATIONS)

    def test_datastates_pickle_behind_its_tensors_is_found(self):
        """As datastates/llm/checkpointing.py writes it: a size, a header, tensors, and the rest pickled."""
        for state, code in (({"a": "TENSOR|a"}, 0), ({"a": Payload()}, 1)):
            tensor, rest = b"\0" * 16, pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
            header = json.dumps({"a": {"dtype": "torch.float32", "shape": [4], "data_offsets": [0, 16]},
                                 "datastates_metadata": {"data_offsets": [16, 16 + len(rest)]}}).encode()
            folder = self.new_path(f"datastates{code}")
            folder.mkdir()
            path = folder / "mp_rank_00_model_states.pt"
            path.write_bytes(struct.pack("<Q", len(header)) + header + tensor + rest)
            data = self.scanned(folder, code=code)
            self.assertEqual(data["pickles"], 1)
            self.assertEqual([finding["record"] for finding in data["findings"]], ["datastates_metadata.pkl"] * code)
            done = tools.run_tool("zero-to-fp32", folder.parent, self.new_path("out"), "-t", folder.name)
            self.assertEqual(done.returncode, 3)
            self.assertIn("written by DataStates", done.stderr)

    def test_what_stands_before_any_cut_is_found(self):
        source = (ZOO / "opcode-protocol4-frame.pkl").read_bytes()
        folder = self.new_path("cut")
        folder.mkdir()
        named = source.index(b"\x93") + 1
        for length in range(named, len(source)):
            (folder / f"{length}.pkl").write_bytes(source[:length])
        data = self.scanned(folder, code=1)
        found = {finding["file"] for finding in data["findings"] if finding["global"] == "os.system"}
        self.assertEqual(len(found), len(source) - named)


if __name__ == "__main__":
    cli_common.main()
