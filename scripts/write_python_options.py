#!/usr/bin/env python3
"""Writes the Python package's list of the tools' options, from the tools' own description (--generate json).

    scripts/write_python_options.py            writes lib/python/dsckpt/_options.py and _commands.pyi
    scripts/write_python_options.py --check    exits 1, and shows the differences, if these are not current

DSCKPT_BIN is the folder of the tools; default: build/release/bin.
"""
import argparse
import dataclasses
import difflib
import json
import keyword
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "lib" / "python" / "dsckpt"
MADE = "Made by scripts/write_python_options.py."

# Options for the command line, or for several processes: Python runs a single one.
NOT_IN_PYTHON = {"json", "quiet", "color", "generate", "help", "version", "progress", "group", "rank_timeout",
                 "emit_plan", "portions", "share"}

# Types by the value's name in --help; other values are texts.
TYPES = {
    "N": "int", "M": "int", "S": "int", "STEPS": "int", "STEP": "int | str", "SECONDS": "int", "ELEMENTS": "int", "SIZE": "int | str", "RATE": "int | str",
    "DECAY": "float", "ALPHA": "float", "ATOL": "float", "RTOL": "float", "W,W,...": "float",
    "DIR": "_Path", "FILE": "_Path", "CHECKPOINT": "_Path", "REPORT": "_Path", "WEIGHTS": "_Path",
}  # fmt: skip
WITH_LEVEL = {"pack", "zstd"}  # flags that also take a number


@dataclasses.dataclass(frozen=True)
class Function:
    tool: tuple  # the words of its command
    arguments: tuple  # positional arguments, as in the stub
    returns: str
    progress: str = ""  # its default; "": the function has none
    own: dict = dataclasses.field(default_factory=dict)  # options that the function declares itself, with their types
    without: tuple = ()  # options that the function passes itself
    takes_all: bool = False  # tag="all" gives a list
    takes_several: bool = False  # several paths give a list


ONE = ("checkpoint: _Path", "output: _Path")
ON = {"executor": "Executor | None = None", "engine": 'Literal["ray"] | None = None',
      "engine_options": "Mapping[str, object] | None = None"}
FUNCTIONS = {
    "convert": Function(("zero-to-fp32",), ("checkpoint: _Path | Iterable[_Path]", "output: _Path | None"),
                        "Conversion", "None", own=ON),
    "average": Function(("zero-to-fp32",), ("checkpoints: _Path | Iterable[_Path]", "output: _Path | None"),
                        "Conversion", "None", without=("average",)),
    "to_universal": Function(("to-universal",), ONE, "Conversion", "None", own=ON,
                             without=("input_folder", "output_folder")),
    "to_dcp": Function(("to-dcp",), ONE, "Conversion", "None", own={"dp": "int | None = None", **ON}),
    "reshard": Function(("reshard",), ONE, "Conversion", "None", own={"dp": "int | None = None", **ON}),
    "pack": Function(("ckpt-pack", "pack"), ("folder: _Path", "output: _Path"), "Packing", "None"),
    "unpack": Function(("ckpt-pack", "unpack"), ("folder: _Path", "output: _Path"), "Packing", "None"),
    "strip": Function(("ckpt-pack", "strip"), ONE, "Stripping", "None",
                      own={"keep": 'Literal["weights", "resume"]'}),
    "keep": Function(("ckpt-pack", "keep"), ("run: _Path",), "list[Kept]", "None",
                     own={"to": "_Path", "once": "bool = True"}),
    "inspect": Function(("ckpt-inspect",), ("path: _Path",), "Summary"),
    "html": Function(("ckpt-inspect",), ("path: _Path", "report: _Path"), "Summary", without=("html",)),
    "tree": Function(("ckpt-inspect", "tree"), ("path: _Path",), "Tree"),
    "list_tensors": Function(("ckpt-inspect", "list"), ("path: _Path",), "TensorList"),
    "where": Function(("ckpt-inspect", "where"), ("path: _Path", "name: str"), "Extents"),
    "print": Function(("ckpt-inspect", "print"), ("path: _Path", "name: str", "slice: str | None = None"), "Values",
                      without=("bytes", "full")),
    "raw": Function(("ckpt-inspect", "raw"), ("file: _Path",), "RawPickle"),
    "stats": Function(("ckpt-inspect", "stats"), ("path: _Path",), "StatisticsTable", "False", own=ON),
    "verify": Function(("ckpt-inspect", "verify"), ("path: _Path",), "Verification", "False", own=ON, takes_all=True,
                       takes_several=True),
    "diff": Function(("ckpt-inspect", "diff"), ("a: _Path", "b: _Path"), "Difference", "False", own=ON),
    "scan": Function(("ckpt-inspect", "scan"), ("path: _Path",), "Scan", takes_several=True),
}

OPTIONS_HEAD = f'''"""The tools' options by function: what each is called in Python, and what the tool says of it. {MADE}"""

'''

STUB_HEAD = f'''# {MADE}
from concurrent.futures import Executor
from os import PathLike
from typing import Callable, Iterable, Literal, Mapping, Protocol, overload

from ._statistics import StatisticsTable
from .results import (Conversion, Difference, Extents, Kept, Packing, RawPickle, Scan, Stripping, Summary, TensorList,
                      Tree, Values, Verification)

_Path = str | PathLike[str]
_Progress = Callable[[int, int], object] | bool | None

class _DType(Protocol):  # torch.dtype
    @property
    def is_floating_point(self) -> bool: ...

'''


def facts_of(tool):
    folder = pathlib.Path(os.environ.get("DSCKPT_BIN", ROOT / "build" / "release" / "bin"))
    said = subprocess.run([folder / tool, "--generate", "json"], capture_output=True, text=True, check=True).stdout
    return json.loads(said)["data"]


def options_of(function, facts):
    """{keyword: facts} of the command's options."""
    command = facts[function.tool[0]]
    for word in function.tool[1:]:
        command, = (each for each in command["commands"] if each["name"] == word)
    found = {}
    for option in command["options"]:
        name = max(option["names"], key=len).lstrip("-").replace("-", "_")
        if name not in NOT_IN_PYTHON and name not in function.without:
            found[name + "_" if keyword.iskeyword(name) else name] = option
    return found


def type_of(name, option):
    """The type for the stub, with the default."""
    if option["kind"] == "flag":
        kind = "bool | int" if name in WITH_LEVEL else "bool"
    elif option["kind"] == "choice":
        kind = f"Literal[{', '.join(json.dumps(word) for word in option['choices'])}]"
        if "bfloat16" in option["choices"]:
            kind += " | _DType"
    else:
        kind = TYPES.get(option["value"], "str")
    if option["repeated"]:
        kind += f" | Iterable[{kind}]"
    return f"{kind} = False" if option["kind"] == "flag" else f"{kind} | None = None"


def stub_of(name, function, options):
    """The function's definitions in the stub."""
    keywords = {**function.own}
    if function.progress:
        keywords["progress"] = f"_Progress = {function.progress}"
    keywords.update((each, type_of(each, option)) for each, option in options.items() if each not in keywords)

    def definition(arguments, returns, **others):
        of_each = [f"{each}: {kind}" for each, kind in {**keywords, **others}.items()]
        parts = [*arguments, *([] if any(each.startswith("*") for each in arguments) else ["*"]), *of_each]
        return f"def {name}(\n    " + ",\n    ".join(parts) + f",\n) -> {returns}: ...\n"

    several = (function.arguments[0] + " | Iterable[_Path]", "*more: _Path") if function.takes_several else None
    forms = []
    if function.takes_all:
        forms.append(definition(several or function.arguments, f"list[{function.returns}]", tag='Literal["all"]'))
    forms.append(definition(function.arguments, function.returns))
    if several:
        forms.append(definition(several, f"list[{function.returns}]"))
    if len(forms) == 1:
        return forms[0]
    ignored = [form.replace("(\n", "(  # type: ignore[overload-overlap]\n", 1) for form in forms[:-1]]
    return "".join(f"@overload\n{form}" for form in [*ignored, forms[-1]])


def text_of(option):
    value = "" if option["kind"] == "flag" else f"{option['value']}: "
    default = f" (default: {option['unless_given']})" if option["unless_given"] else ""
    return value + option["description"] + default


def files_of(facts):
    """{path: text}"""
    lines, stubs = ["TOOLS = {"], []
    lines += [f"    {json.dumps(name)}: {function.tool!r}," for name, function in FUNCTIONS.items()]
    lines += ["}  # fmt: skip", "", "OPTIONS = {"]
    for name, function in FUNCTIONS.items():
        options = options_of(function, facts)
        stubs.append(stub_of(name, function, options))
        lines.append(f"    {json.dumps(name)}: {{")
        lines += [f"        {json.dumps(each)}:\n            {json.dumps(text_of(option))},"
                  for each, option in options.items()]
        lines.append("    },")
    lines += ["}  # fmt: skip", ""]
    return {PACKAGE / "_options.py": OPTIONS_HEAD + "\n".join(lines),
            PACKAGE / "_commands.pyi": STUB_HEAD + "\n".join(stubs)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and say what differs")
    check = parser.parse_args().check
    facts = {tool: facts_of(tool) for tool in sorted({function.tool[0] for function in FUNCTIONS.values()})}
    status = 0
    for path, text in files_of(facts).items():
        if not check:
            path.write_text(text)
        elif path.read_text() != text:
            sys.stdout.writelines(difflib.unified_diff(path.read_text().splitlines(True), text.splitlines(True),
                                                       str(path.relative_to(ROOT)), "as the tools say"))
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
