#!/usr/bin/env python3
"""Writes testdata/malicious: pickles that would run code if they were loaded, one trick in each file.

They are put together opcode by opcode and container by container. Nothing is ever loaded, and no class or function in
a file is imported here. The payloads would only write a marker file (see MARKER), so a test can check that none of
them ran. expected.json has the findings that a scan must report for each file.
"""
import argparse
import json
import pathlib
import struct
import zlib

MARKER = "dsckpt-malicious-pickle-ran"
COMMAND = f"echo x > {MARKER}"
PYTHON = f"open('{MARKER}', 'w')"

# Opcodes by the names of pickletools.
MARK, STOP, POP, DUP, NONE, REDUCE, BUILD = b"(", b".", b"0", b"2", b"N", b"R", b"b"
EMPTY_TUPLE, TUPLE, TUPLE1, TUPLE2, TUPLE3 = b")", b"t", b"\x85", b"\x86", b"\x87"
EMPTY_DICT, EMPTY_LIST, SETITEM, SETITEMS, APPEND = b"}", b"]", b"s", b"u", b"a"
NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, MEMOIZE, OBJ, BINPERSID = b"\x81", b"\x92", b"\x93", b"\x94", b"o", b"Q"


def proto(version):
    return b"\x80" + bytes([version])


def text(value):
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def short_text(value):
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def name(module, function):
    """GLOBAL."""
    return b"c" + module.encode() + b"\n" + function.encode() + b"\n"


def stack_name(module, function):
    return short_text(module) + short_text(function) + STACK_GLOBAL


def put(index):
    return b"q" + bytes([index])


def get(index):
    return b"h" + bytes([index])


def call(function, *arguments):
    """REDUCE; `function` and arguments are pickled already."""
    return function + MARK + b"".join(arguments) + TUPLE + REDUCE


def pickled(body, version=2):
    return proto(version) + body + STOP


def runs(module, function, *arguments):
    """A protocol 2 pickle that calls a function with texts."""
    return pickled(call(name(module, function), *map(text, arguments or [COMMAND])))


SYSTEM = runs("os", "system")


class Zoo:

    def __init__(self):
        self.files = {}
        self.expected = {}

    def add(self, file, data, *found, cls="dangerous", record=None, unreadable=None):
        """`found`: the globals that must be reported with this class, perhaps with their offset."""
        self.files[file] = data
        self.expected[file] = {"class": cls, "globals": list(found)}
        if record is not None:
            self.expected[file]["record"] = record
        if unreadable is not None:
            self.expected[file]["unreadable"] = unreadable


def add_functions(zoo):
    """One dangerous function each, called by REDUCE."""
    table = """
        os system|posix system|nt system|os popen|os execv|os spawnlp|os.path expandvars|subprocess Popen
        subprocess check_output|subprocess getoutput|commands getoutput|popen2 popen3|builtins eval|builtins exec
        builtins compile|builtins open|builtins __import__|builtins getattr|builtins setattr|builtins map
        builtins type|__builtin__ eval|__builtin__ execfile|__builtin__ apply|__builtin__ reduce|itertools imap
        sys exit|shutil rmtree|socket create_connection|socket gethostbyname|runpy run_path
        runpy _run_code|importlib import_module|importlib.util spec_from_file_location|imp load_source|pkgutil resolve_name
        pickle loads|_pickle loads|cPickle loads|dill loads|cloudpickle loads|cloudpickle.cloudpickle _make_function
        joblib load|shelve open|marshal loads|types CodeType|types FunctionType|ctypes CDLL|ctypes.util find_library
        _ctypes dlopen|webbrowser open|pip main|pip._internal.cli.main main|ensurepip _run_pip|venv create
        distutils.spawn spawn|distutils.file_util write_file|setuptools.sandbox run_setup|timeit timeit|cProfile run
        cProfile runctx|profile run|profile Profile.runctx|pdb run|bdb Bdb.run|trace Trace.run|doctest debug_script
        code InteractiveInterpreter.runcode|code interact|codeop compile_command|pty spawn|pydoc pipepager
        pydoc locate|idlelib.run Executive.runcode|idlelib.pyshell ModifiedInterpreter.runcode
        idlelib.debugobj ObjectTreeItem.SetText|idlelib.autocomplete AutoComplete.fetch_completions
        idlelib.calltip get_entity|lib2to3.pgen2.grammar Grammar.loads|lib2to3.pgen2.pgen ParserGenerator.make_label
        asyncio.unix_events _UnixSubprocessTransport._start|asyncio create_subprocess_shell|aiohttp.client ClientSession
        multiprocessing.util spawnv_passfds|multiprocessing.process Process|_posixsubprocess fork_exec
        functools partial|functools reduce|functools singledispatch|operator attrgetter|operator methodcaller
        _operator itemgetter|inspect getattr_static|imaplib IMAP4_stream|smtplib SMTP|ftplib FTP|http.client HTTPSConnection
        urllib.request urlopen|urllib2 urlopen|urllib urlretrieve|requests.api get|ssl get_server_certificate
        xmlrpc.client ServerProxy|telnetlib Telnet|io open|_io FileIO|codecs open|tempfile mktemp|fileinput FileInput
        linecache getlines|tarfile open|zipfile ZipFile|sqlite3 connect|logging FileHandler|logging.config listen
        uuid _get_command_stdout|_aix_support _read_cmd_output|_osx_support _read_output|_pyrepl.pager pipe_pager
        test.support.script_helper assert_python_ok|platform popen|threading Thread|signal signal|atexit register
        site addsitedir|sysconfig _get_sysconfigdata_name|zipimport zipimporter|torch load|torch.serialization load
        torch.storage _load_from_bytes|torch.hub load|torch.jit load|torch.jit.unsupported_tensor_ops execWrapper
        torch._dynamo.guards GuardBuilder.get|torch.fx.experimental.symbolic_shapes ShapeEnv.evaluate_guards_expression
        torch.utils._config_module load_config|torch.utils._config_module ConfigModule.load_config
        torch.utils.bottleneck.__main__ run_cprofile|torch.utils.collect_env run|torch.utils.cpp_extension load
        torch.utils.data.datapipes.utils.decoder basichandlers|torch.distributed.rpc rpc_sync|torch.package PackageImporter
        torch.cuda.jiterator _create_jit_fn|torch.testing._internal.common_utils run_tests
        numpy load|numpy.testing._private.utils runstring|numpy.testing runstring|numpy.f2py.crackfortran getlincoef
        numpy.f2py.crackfortran _eval_length|numpy.f2py.crackfortran param_eval|numpy.f2py compile|numpy.distutils.exec_command exec_command
        numpy.ctypeslib load_library|pandas read_pickle|pandas.io.pickle read_pickle|yaml unsafe_load
        deepspeed.launcher.runner main|transformers.dynamic_module_utils get_class_in_module|fickling.hook activate_safe_ml_environment
        picklescan.scanner scan_pickle_bytes|py_compile compile|compileall compile_file|mailcap findmatch
        """
    for entry in table.replace("\n", "|").split("|"):
        if not entry.strip():
            continue
        module, function = entry.split()
        # Dotted names need protocol 4.
        body = stack_name(module, function) if "." in function else name(module, function)
        argument = PYTHON if function in ("eval", "exec", "runstring", "run", "timeit", "execfile") else COMMAND
        data = pickled(call(body, text(argument)), 4 if "." in function else 2)
        zoo.add(f"call-{module}.{function}.pkl", data, f"{module}.{function}")


def add_opcodes(zoo):
    """os.system in every way in which opcodes can name and call something."""
    system = name("os", "system")
    zoo.add("opcode-protocol0.pkl", b"cos\nsystem\n(S'" + COMMAND.encode() + b"'\ntR.", "os.system")
    zoo.add("opcode-protocol4-frame.pkl", proto(4) + b"\x95" + struct.pack("<Q", len(b"x" * 41)) +
            stack_name("os", "system") + short_text("echo x") + TUPLE1 + REDUCE + STOP, "os.system")
    zoo.add("opcode-inst.pkl", MARK + text(COMMAND) + b"ios\nsystem\n" + STOP, "os.system")
    zoo.add("opcode-obj.pkl", pickled(MARK + system + text(COMMAND) + OBJ), "os.system")
    zoo.add("opcode-newobj.pkl", pickled(name("subprocess", "Popen") + text(COMMAND) + TUPLE1 + NEWOBJ),
            "subprocess.Popen")
    zoo.add("opcode-newobj-ex.pkl", pickled(name("subprocess", "Popen") + text(COMMAND) + TUPLE1 + EMPTY_DICT +
                                            text("shell") + b"\x88" + SETITEM + NEWOBJ_EX, 4), "subprocess.Popen")
    zoo.add("opcode-result-dropped.pkl", pickled(call(system, text(COMMAND)) + POP + EMPTY_DICT), "os.system")
    zoo.add("opcode-named-only.pkl", pickled(system), "os.system")
    zoo.add("opcode-in-a-dict-key.pkl", pickled(EMPTY_DICT + call(system, text(COMMAND)) + NONE + SETITEM), "os.system")
    zoo.add("opcode-default-factory.pkl", pickled(call(name("collections", "defaultdict"), system)), "os.system")
    zoo.add("opcode-function-through-rebuild.pkl",
            pickled(call(name("torch._tensor", "_rebuild_from_type_v2"), system, name("torch", "Tensor"),
                         text(COMMAND) + TUPLE1, EMPTY_DICT)), "os.system")
    zoo.add("opcode-quoted-escapes.pkl", b"S'\\x6f\\163'\nS'sys\\x74em'\n\x93(S'" + COMMAND.encode() + b"'\ntR.",
            "os.system")
    zoo.add("opcode-unicode-escapes.pkl", b"V\\u006f\\U00000073\nVsyste\\u006d\n\x93(V" + COMMAND.encode() + b"\ntR.",
            "os.system")
    zoo.add("opcode-binstring-name.pkl", b"T\2\0\0\0osU\6system\x93" + text(COMMAND) + TUPLE1 + REDUCE + STOP, "os.system")
    zoo.add("opcode-binunicode8-name.pkl", pickled(b"\x8d" + struct.pack("<Q", 2) + b"os" + text("system") +
                                                   STACK_GLOBAL + text(COMMAND) + TUPLE1 + REDUCE, 4), "os.system")
    zoo.add("opcode-name-in-memo.pkl", pickled(text("system") + put(7) + POP + text("os") + put(0) + POP + get(0) +
                                               get(7) + STACK_GLOBAL + text(COMMAND) + TUPLE1 + REDUCE, 4), "os.system")
    # A reader that counts only MEMOIZE takes memo 0 and 1 for the harmless names.
    zoo.add("opcode-memo-confusion.pkl",
            pickled(text("os") + put(0) + text("system") + put(1) + text("torch._utils") + MEMOIZE +
                    text("_rebuild_tensor_v2") + MEMOIZE + b"0000" + get(0) + get(1) + STACK_GLOBAL + text(COMMAND) +
                    TUPLE1 + REDUCE, 4), "os.system")
    zoo.add("opcode-memo-overwritten.pkl",
            pickled(text("collections") + put(0) + POP + text("os") + put(0) + POP + get(0) + text("system") +
                    STACK_GLOBAL + text(COMMAND) + TUPLE1 + REDUCE, 4), "os.system")
    zoo.add("opcode-names-with-others-between.pkl",
            pickled(text("os") + NONE + POP + MARK + text("OrderedDict") + b"1" + text("system") + STACK_GLOBAL +
                    text(COMMAND) + TUPLE1 + REDUCE, 4), "os.system")
    zoo.add("opcode-dup-name.pkl", pickled(text("code") + DUP + STACK_GLOBAL + EMPTY_TUPLE + REDUCE, 4), "code.code")
    zoo.add("opcode-pop-mark.pkl", pickled(MARK + call(system, text(COMMAND)) + b"1" + NONE), "os.system")
    zoo.add("opcode-long-name.pkl", pickled(name("os", "system" + "." * 2000)), "os.system" + "." * 994)
    zoo.add("opcode-extension.pkl", pickled(b"\x82\x05" + text(COMMAND) + TUPLE1 + REDUCE),
            "extension code 5")
    zoo.add("opcode-extension-then-system.pkl", pickled(b"\x84\1\1\0\0" + POP + call(system, text(COMMAND))), "os.system")
    zoo.add("opcode-persistent-id-called.pkl", pickled(text("os.system") + BINPERSID + text(COMMAND) + TUPLE1 + REDUCE),
            "<persistent id>")


def add_indirect(zoo):
    """The callable is reached through something else."""
    harmless = name("collections", "OrderedDict")
    zoo.add("indirect-dotted-name.pkl",
            pickled(call(stack_name("torch.serialization", "os.system"), text(COMMAND)), 4),
            "torch.serialization.os.system")
    zoo.add("indirect-dotted-class.pkl",
            pickled(call(stack_name("collections", "OrderedDict.__init__.__globals__"), text(COMMAND)), 4),
            "collections.OrderedDict.__init__.__globals__")
    zoo.add("indirect-subclasses.pkl",
            pickled(call(stack_name("builtins", "object.__subclasses__")), 4), "builtins.object.__subclasses__")
    zoo.add("indirect-module-alias.pkl", runs("torch.os", "system"), "torch.os.system")
    zoo.add("indirect-module-attribute.pkl", runs("torch.serialization", "os"), "torch.serialization.os")
    zoo.add("indirect-argparse-os.pkl", pickled(stack_name("argparse", "_os.system"), 4), "argparse._os.system")
    zoo.add("indirect-import-in-package.pkl", runs("six.moves.builtins", "eval", PYTHON), "six.moves.builtins.eval")
    zoo.add("indirect-reexported-system.pkl", runs("mylib.tools", "system"), "mylib.tools.system")
    getattr_ = name("builtins", "getattr")
    zoo.add("indirect-getattr-chain.pkl",
            pickled(call(call(getattr_, call(name("importlib", "import_module"), text("os")), text("system")),
                         text(COMMAND))), "builtins.getattr", "importlib.import_module")
    zoo.add("indirect-getattr-of-harmless.pkl",
            pickled(call(call(getattr_, harmless, text("fromkeys")), text("ab"))), "builtins.getattr")
    zoo.add("indirect-getattr-inside-enum.pkl",
            pickled(call(name("__builtin__", "getattr"), name("deepspeed.runtime.zero.config", "ZeroStageEnum"),
                         text("__class__"))), "__builtin__.getattr")
    zoo.add("indirect-getattr-after-enum.pkl",
            pickled(name("builtins", "getattr") + put(1) +
                    name("deepspeed.runtime.zero.config", "ZeroStageEnum") + put(2) + text("weights") + TUPLE2 + REDUCE +
                    POP + call(name("torch._tensor", "_rebuild_from_type_v2"), get(1), get(2),
                               call(harmless) + text("__class__") + TUPLE2, NONE)), "builtins.getattr")
    zoo.add("indirect-getattr-enum-called.pkl",
            pickled(call(call(getattr_, name("deepspeed.runtime.zero.config", "ZeroStageEnum"), text("mro")))),
            "builtins.getattr")
    zoo.add("indirect-computed-name.pkl",
            pickled(text("builtins") + call(name("builtins", "str"), b"C\4eval", text("ascii")) + STACK_GLOBAL +
                    text(PYTHON) + TUPLE1 + REDUCE, 4), "builtins.<computed>")
    zoo.add("indirect-computed-module.pkl",
            pickled(call(name("_codecs", "encode"), text("os"), text("latin1")) + text("system") + STACK_GLOBAL +
                    text(COMMAND) + TUPLE1 + REDUCE, 4), "<computed>.system")
    zoo.add("indirect-result-called.pkl", pickled(call(call(harmless), text(COMMAND))), "collections.OrderedDict")
    zoo.add("indirect-partial.pkl",
            pickled(call(call(name("functools", "partial"), name("os", "system")), text(COMMAND))),
            "functools.partial", "os.system")
    zoo.add("indirect-build-setstate.pkl",
            pickled(name("argparse", "Namespace") + EMPTY_TUPLE + NEWOBJ + EMPTY_DICT + text("__setstate__") +
                    name("os", "system") + SETITEM + BUILD + text(COMMAND) + BUILD), "os.system")
    zoo.add("indirect-build-on-class.pkl",
            pickled(name("argparse", "Namespace") + NONE + EMPTY_DICT + text("__setstate__") + name("builtins", "str") +
                    SETITEM + TUPLE2 + BUILD), "argparse.Namespace")
    zoo.add("indirect-build-on-module-function.pkl",
            pickled(name("torch._utils", "_rebuild_tensor_v2") + EMPTY_DICT + text("__code__") + NONE + SETITEM + BUILD),
            "torch._utils._rebuild_tensor_v2")
    zoo.add("indirect-sys-modules.pkl",
            pickled(name("sys", "modules") + put(1) + text("sys") + get(1) + SETITEM + POP +
                    call(name("sys", "get"), text("os"))), "sys.modules", "sys.get")
    zoo.add("indirect-copyreg-reconstructor.pkl",
            pickled(call(name("copy_reg", "_reconstructor"), name("subprocess", "Popen"), name("builtins", "object"),
                         NONE)), "subprocess.Popen")
    zoo.add("indirect-reduce-ex.pkl",
            pickled(call(stack_name("builtins", "object.__reduce_ex__"), NONE), 4), "builtins.object.__reduce_ex__")
    zoo.add("indirect-nested-pickle.pkl",
            pickled(call(name("_pickle", "loads"), b"B" + struct.pack("<I", len(SYSTEM)) + SYSTEM)), "_pickle.loads")
    zoo.add("indirect-map-in-list.pkl",
            pickled(call(name("builtins", "list"), call(name("builtins", "map"), name("os", "system"), EMPTY_LIST +
                                                        text(COMMAND) + APPEND))), "builtins.map", "os.system")
    zoo.add("indirect-code-object.pkl",
            pickled(call(call(name("types", "FunctionType"), call(name("marshal", "loads"), b"C\2N."), EMPTY_DICT))),
            "types.FunctionType", "marshal.loads")
    zoo.add("unknown-library.pkl", runs("somebody.models", "Net"), "somebody.models.Net", cls="unknown")
    zoo.add("unknown-in-harmless-module.pkl", runs("collections", "namedtuple"), "collections.namedtuple",
            cls="unknown")
    zoo.add("unknown-dotted-in-harmless-module.pkl",
            pickled(call(stack_name("collections", "OrderedDict.fromkeys"), text("ab")), 4),
            "collections.OrderedDict.fromkeys", cls="unknown")


def add_broken(zoo):
    """The payload runs before the pickle breaks."""
    payload = proto(2) + call(name("os", "system"), text(COMMAND))
    where = "bytes end"
    zoo.add("broken-truncated.pkl", payload, "os.system", unreadable=where)
    zoo.add("broken-truncated-in-text.pkl", payload + b"X\xff\0\0\0abc", "os.system", unreadable=where)
    zoo.add("broken-opcode.pkl", payload + b"\xff\xff", "os.system", unreadable="0xff is not an opcode")
    zoo.add("broken-memo.pkl", payload + get(99) + STOP, "os.system")
    zoo.add("broken-stack.pkl", payload + POP + POP + TUPLE3 + STOP, "os.system")
    zoo.add("broken-text.pkl", payload + b"X\2\0\0\0\xff\xfe" + STOP, "os.system")
    zoo.add("broken-protocol0.pkl", b"cos\nsystem\n(S'" + COMMAND.encode() + b"'\ntRX", "os.system",
            unreadable="bytes end")
    zoo.add("broken-name-cut-off.pkl", proto(2) + b"cos\nsystem", "os.system", unreadable=where)
    zoo.add("broken-trailing-bytes.pkl", SYSTEM + b"\xffgarbage", "os.system", unreadable="bytes after the pickle")
    zoo.add("broken-build-on-dict.pkl", proto(2) + EMPTY_DICT + NONE + BUILD + payload[2:] + STOP, "os.system")
    zoo.add("broken-unknown-protocol.pkl", b"\x80\x06" + payload[2:] + STOP, "os.system")
    zoo.add("several-second-pickle.pkl", pickled(EMPTY_DICT) + SYSTEM, "os.system")
    zoo.add("several-many-pickles.pkl", pickled(NONE) * 300 + SYSTEM, "os.system")
    zoo.add("several-headless-second.pkl", b"N." + b"cos\nsystem\n(S'echo x'\ntR.", "os.system")


# Zips, written field by field.

def local_header(record, data, method=0, flags=0, crc=None, size=None, name_in_header=None, uncompressed=None):
    entry = (name_in_header or record).encode()
    return struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, flags, method, 0, 0x5821,
                       zlib.crc32(data) if crc is None else crc, len(data) if size is None else size,
                       len(data) if uncompressed is None else uncompressed, len(entry), 0) + entry + data


def make_zip(records, central_name=None, central_flags=None, central_method=None, prefix=b"", end=True):
    """`records`: (name, data, options of local_header)."""
    body, directory = prefix, b""
    for record, data, options in records:
        offset = len(body)
        body += local_header(record, data, **options)
        entry = (central_name or record).encode()
        flags = options.get("flags", 0) if central_flags is None else central_flags
        method = options.get("method", 0) if central_method is None else central_method
        directory += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, flags, method, 0, 0x5821,
                                 options.get("crc", zlib.crc32(data)), len(data),
                                 options.get("uncompressed", len(data)), len(entry), 0, 0, 0, 0, 0, offset) + entry
    if not end:
        return body
    return body + directory + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, len(records), len(records), len(directory),
                                          len(body), 0)


def torch_zip(data, record="archive/data.pkl", options=None, others=(), **more):
    records = [(record, data, options or {})]
    records += [(other, content, {}) for other, content in others]
    return make_zip(records, **more)


VERSION = ("archive/version", b"3\n")


def deflated(data):
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush()


def add_zips(zoo):
    pkl = "archive/data.pkl"
    broken = "broken zip"
    zoo.add("zip-torch.pt", torch_zip(SYSTEM, others=[VERSION]), "os.system", record=pkl)
    zoo.add("zip-wrong-extension.txt", torch_zip(SYSTEM), "os.system", record=pkl)
    zoo.add("zip-no-extension", torch_zip(SYSTEM), "os.system", record=pkl)
    zoo.add("zip-data-pkl-elsewhere.pt", torch_zip(pickled(EMPTY_DICT), others=[("archive/extra/deep/config", SYSTEM)]),
            "os.system", record="archive/extra/deep/config")
    zoo.add("zip-second-pkl.pt", torch_zip(pickled(EMPTY_DICT), others=[("archive/other.pkl", SYSTEM)]), "os.system",
            record="archive/other.pkl")
    zoo.add("zip-pickle-as-storage.pt", torch_zip(pickled(EMPTY_DICT), others=[("archive/data/0", SYSTEM)]),
            "os.system", record="archive/data/0")
    zoo.add("zip-bad-crc.pt", torch_zip(SYSTEM, options={"crc": 0x1234}), "os.system", record=pkl)
    for bit in (0x1, 0x20, 0x40):
        zoo.add(f"zip-flag-bit-{bit:#x}-in-local-header.pt", torch_zip(SYSTEM, options={"flags": bit}, central_flags=0),
                "os.system", record=pkl, unreadable=broken)
    zoo.add("zip-flag-bit-in-both.pt", torch_zip(SYSTEM, options={"flags": 1}), "os.system", record=pkl)
    zoo.add("zip-other-name-in-directory.pt", torch_zip(SYSTEM, central_name="archive/readme_.md"), "os.system",
            record=pkl, unreadable=broken)
    zoo.add("zip-other-name-in-local-header.pt",
            torch_zip(SYSTEM, options={"name_in_header": "archive/READ.me"}), "os.system", record="archive/READ.me",
            unreadable=broken)
    zoo.add("zip-other-method-in-directory.pt", torch_zip(SYSTEM, central_method=99), "os.system", record=pkl)
    zoo.add("zip-wrong-size-in-local-header.pt", torch_zip(SYSTEM, options={"size": 3}), "os.system", record=pkl,
            unreadable=broken)
    zoo.add("zip-without-directory.pt", torch_zip(SYSTEM, end=False), "os.system", record=pkl, unreadable=broken)
    zoo.add("zip-truncated.pt", torch_zip(SYSTEM, others=[VERSION])[:len(SYSTEM) + 60], "os.system", record=pkl,
            unreadable=broken)
    zoo.add("zip-behind-other-bytes.bin", torch_zip(SYSTEM, prefix=b"GIF89a" + bytes(64)), "os.system", record=pkl)
    zoo.add("zip-behind-a-text.md", torch_zip(SYSTEM, prefix=b"# A model\n\nNothing to see.\n"), "os.system", record=pkl)
    zoo.add("zip-behind-a-pickle.pt", torch_zip(SYSTEM, prefix=pickled(EMPTY_DICT)), "os.system", record=pkl)
    zoo.add("zip-two-records-of-one-name.pt",
            torch_zip(pickled(EMPTY_DICT), others=[(pkl, SYSTEM)]), "os.system", record=pkl, unreadable=broken)
    zoo.add("zip-record-not-in-directory.pt",
            local_header(pkl, SYSTEM) + torch_zip(pickled(EMPTY_DICT)), "os.system", record=pkl, unreadable=broken)
    zoo.add("zip-deflated.pt", torch_zip(deflated(SYSTEM), options={"method": 8, "uncompressed": len(SYSTEM)}),
            "os.system", record=pkl)
    zoo.add("zip-deflated-bomb.pt",
            torch_zip(deflated(proto(2) + call(name("os", "system"), text(COMMAND)) + b"N0" * 200000 + NONE + STOP),
                      options={"method": 8, "uncompressed": 400064}), "os.system", record=pkl)
    zoo.add("zip-bzip2.pt", torch_zip(b"BZh91AY&SY" + bytes(40), options={"method": 12}), record=pkl,
            unreadable="method 12")
    zoo.add("zip-in-a-zip.zip", torch_zip(torch_zip(SYSTEM), record="model.pt"), "os.system",
            record=f"model.pt > {pkl}")
    zoo.add("zip-legacy-in-a-zip.zip", torch_zip(legacy(SYSTEM), record="model.bin"), "os.system", record="model.bin")
    zoo.add("zip-7z-in-a-zip.zip", torch_zip(SEVEN_ZIP, record="model.bin"), cls="unknown", record="model.bin",
            unreadable="7z archive")


# Other containers.

MAGIC = 0x1950A86A20F9469CFC6C
SEVEN_ZIP = b"7z\xbc\xaf\x27\x1c\x00\x04" + bytes(40)


def legacy(data, magic=MAGIC):
    number = magic.to_bytes(10, "little")
    return (pickled(b"\x8a\x0a" + number) + pickled(b"M\xe9\x03") +
            pickled(EMPTY_DICT + text("little_endian") + b"\x88" + SETITEM) + data + pickled(EMPTY_LIST))


def numpy_file(data, descr="|O"):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (1,), }}"
    header += " " * (64 - (10 + len(header) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def add_containers(zoo):
    storages = bytes(range(200)) * 4
    zoo.add("legacy-torch.pt", legacy(SYSTEM) + storages, "os.system")
    zoo.add("legacy-torch-wrong-magic.pt", legacy(SYSTEM, MAGIC ^ 0xFF), "os.system")
    zoo.add("legacy-torch-in-system-info.pt",
            legacy(pickled(EMPTY_DICT)).replace(pickled(b"M\xe9\x03"), SYSTEM) + storages, "os.system")
    zoo.add("extension-safetensors.safetensors", SYSTEM, "os.system")
    zoo.add("extension-none", SYSTEM, "os.system")
    zoo.add("extension-json.json", b"cos\nsystem\n(S'" + COMMAND.encode() + b"'\ntR.", "os.system")
    zoo.add("extension-hidden.config", SYSTEM, "os.system")
    # To safetensors it is a header of 0x755 bytes that starts with a brace.
    polyglot = b"U\x07\0\0\0\0\0\0{0" + (NONE + POP) * 1000 + call(name("os", "system"), text(COMMAND)) + STOP
    zoo.add("polyglot-like-safetensors.safetensors", polyglot, "os.system")
    zoo.add("numpy-object-array.npy", numpy_file(pickled(EMPTY_LIST + call(name("os", "system"), text(COMMAND)) +
                                                         APPEND)), "os.system")
    zoo.add("numpy-object-array-dressed-as-floats.npy", numpy_file(SYSTEM, "<f8"), "os.system")
    zoo.add("numpy-npz.npz", torch_zip(numpy_file(SYSTEM), record="arr_0.npy"), "os.system", record="arr_0.npy")
    zoo.add("numpy-npz-deflated.npz",
            torch_zip(deflated(numpy_file(SYSTEM)), record="arr_0.npy", options={"method": 8}), "os.system",
            record="arr_0.npy")
    zoo.add("joblib-array-inside.joblib",
            pickled(name("joblib.numpy_pickle", "NumpyArrayWrapper") + EMPTY_TUPLE + NEWOBJ + EMPTY_DICT + BUILD)[:-1] +
            b"\xff" * 16 + call(name("os", "system"), text(COMMAND)) + STOP, "joblib.numpy_pickle.NumpyArrayWrapper",
            unreadable="0xff is not an opcode")
    for kind, data in {
            "7z archive": SEVEN_ZIP,
            "gzip file": b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + deflated(SYSTEM) + bytes(8),
            "xz file": b"\xfd7zXZ\0\0\x04" + bytes(24),
            "bzip2 file": b"BZh91AY&SY" + bytes(24),
            "zstd file": b"\x28\xb5\x2f\xfd" + bytes(24),
            "lz4 file": b"\x04\x22\x4d\x18" + bytes(24),
            "RAR archive": b"Rar!\x1a\x07\x01\0" + bytes(24),
            "tar archive": b"data.pkl".ljust(257, b"\0") + b"ustar\00000" + bytes(255) + SYSTEM,
            "zlib stream": zlib.compress(SYSTEM),
    }.items():
        zoo.add(f"container-{kind.replace(' ', '-')}.pkl", data, cls="unknown", unreadable=kind)
    zoo.add("container-unrecognised.pt", b"\x00\x01\x02\x03 nothing known", cls="unknown", unreadable="of no form")


README = f"""# Malicious pickles

What a scan must find: pickles that would run code if they were loaded. `testdata/makers/make_malicious.py` writes them
all. **Do not load them.** The payload is harmless (it would write a file `{MARKER}`), but a
scanner that is tested on them must not run even that.

A file is named after its trick. `expected.json` has for each one the class that the scan must come to, the globals
that must be found with that class, the record of a zip they are in, and a part of the reason where something is
unreadable.

* `call-MODULE.NAME.pkl`: a function that runs code, opens something or loads more pickles, called by REDUCE.
* `opcode-*`: os.system named and called by other opcodes.
* `indirect-*`: what is called is got at through attributes, other calls, a changed object.
* `unknown-*`: nothing dangerous that one could know of; with `--dangerous-only` it passes.
* `broken-*`, `several-*`: the payload runs before the pickle breaks; several pickles in a file.
* `zip-*`, `legacy-*`, `numpy-*`, `joblib-*`, `container-*`: where pickles hide: headers that disagree, missing
  directories, bad CRCs, other archives.
* `extension-*`, `polyglot-*`: files that are called, or begin like, something else.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parents[1] / "malicious")
    arguments = parser.parse_args()
    zoo = Zoo()
    for add in (add_functions, add_opcodes, add_indirect, add_broken, add_zips, add_containers):
        add(zoo)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for file, data in zoo.files.items():
        (arguments.out / file).write_bytes(data)
    lines = [f"  {json.dumps(file)}: {json.dumps(what)}" for file, what in sorted(zoo.expected.items())]
    (arguments.out / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    (arguments.out / "README.md").write_text(README)
    print(f"{len(zoo.files)} files, {sum(map(len, zoo.files.values()))} bytes")


if __name__ == "__main__":
    main()
