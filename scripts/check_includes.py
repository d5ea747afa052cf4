#!/usr/bin/env python3
"""Checks that lib/, apps/ and tests/ keep to the layers of the library.

    scripts/check_includes.py [FOLDER]     the project's folder; default: the one this script is in

Prints one line for each broken rule, as `file:line: what`, and exits 1 if there is any. The rules:

* A folder includes only itself and the folders that ALLOWED lists. Siblings do not know each other.
* `#include "..."` is relative to lib/ (in apps/ and tests/ also to their own folder), and the file
  exists. Headers do not include each other in a circle.
* Only lib/libtorch/, its public header and the tests include LibTorch.
* lib/ never prints to the standard streams and never ends the process: it throws.
* Only apps/cli/cli.*, interrupt.* there, and a `main` that calls it end a tool.
* A header and its source are one: in lib/ such pairs do not need each other in a circle either.
* Files are opened for writing, and temporary ones made, in lib/io/folder.cpp alone, which follows no link of others.
* Tables by texts are KeyedMap or KeyedSet (base/keyed_hash.h), or sorted. The author of a file may choose texts
that std::hash puts into one place.
"""

import os
import re
import sys

# For each folder in lib/, the folders that it may include. It may always include itself and the public headers in
# dsckpt/, which include nothing else.
LOWER = {"base", "io", "plan", "pickle", "format", "deepspeed"}
USE_CASE = LOWER | {"checkpoint/find", "checkpoint/names", "checkpoint", "exec", "job"}
ALLOWED = {
    "dsckpt": set(),
    "base": set(),
    "codec": {"base"},
    "io": {"base", "codec"},
    "plan": {"base"},
    "pickle": {"base"},
    "format": {"base", "io", "plan", "pickle"},
    "deepspeed": {"base", "io", "pickle"},
    "checkpoint/find": LOWER,
    "checkpoint/names": {"base", "plan"},
    "checkpoint": LOWER | {"checkpoint/find", "checkpoint/names"},
    "bucket": {"base", "io"},
    "nodes": {"base"},
    "exec": {"base", "codec", "io", "plan", "nodes"},
    "job": USE_CASE | {"codec"},
    "inspect": LOWER | {"checkpoint/find", "checkpoint", "exec"},
    "inspect/verify": LOWER | {"checkpoint/find", "checkpoint", "exec", "inspect"},
    # Use cases do not include each other.
    "weights": USE_CASE,
    "universal": USE_CASE,
    "dcp": USE_CASE,
    "reshard": USE_CASE,
    "pack": USE_CASE | {"codec"},
    "report": LOWER | {"checkpoint/find", "checkpoint", "exec", "job", "inspect"},
    "report/html": {"base", "inspect", "report"},
    # These have only what users of the library have. The module also opens URLs, as the tools do.
    "libtorch": set(),
    "python/native": {"bucket", "exec", "io"},
}

MAY_INCLUDE_LIBTORCH = ("lib/libtorch/", "lib/dsckpt/torch.h", "tests/")
LIBTORCH = re.compile(r"^(torch|ATen|c10)/")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
# Comments, and string and character literals. The rest is code.
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)
PRINTS = re.compile(
    r"std::(cout|cerr|clog)\b|\b(stdout|stderr)\b|(?<![\w.>])(std::)?(printf|puts|putchar|perror)\s*\("
)
ENDS = re.compile(r"(?<![\w.>])(::|std::)?(_Exit|_exit|abort|exit|quick_exit|terminate)\s*\(")

WRITES = re.compile(
    r"\bO_(WRONLY|RDWR|CREAT|TRUNC|APPEND|TMPFILE)\b|\bstd::(basic_)?o?fstream\b|(?<![\w.>])(::|std::)?"
    r"(f(re|d)?open(64)?|creat(64)?|mk(o?s?temps?|dtemp|fifo|nod)|tmpfile|symlink(at)?|truncate|[fl]?ch(mod|own))\s*\("
    r"|\b(fs|filesystem)::(copy|copy_file|create_(directory_)?symlink|create_hard_link|permissions|resize_file)\s*\("
)
MAY_WRITE = "lib/io/folder.cpp"

HASHES_TEXTS = re.compile(r"std::unordered_\w+<\s*(const\s+)?std::(string|string_view)\b")


def blank(match):
    """Replaces a comment or literal by spaces; a digit separator's quote stays."""
    return re.sub(r"[^\n]", " ", match.group(0))


def code_of(text):
    # 1'000'000 is not a character literal.
    return NOT_CODE.sub(blank, re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "_", text))


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def sources(root, top):
    for folder, _, names in sorted(os.walk(os.path.join(root, top))):
        for name in sorted(names):
            if name.endswith((".h", ".cpp")):
                yield os.path.relpath(os.path.join(folder, name), root)


def folder_in_lib(path):
    """'format' for lib/format/zip.h."""
    return os.path.dirname(path[len("lib/") :])


def resolve(root, path, name):
    """The project's file that `#include "name"` in `path` means, or None."""
    bases = ["lib"]
    if not path.startswith("lib/"):
        bases += [os.path.dirname(path), path.split("/")[0]]
    for base in bases:
        candidate = os.path.normpath(os.path.join(base, name))
        for written in (candidate, candidate + ".in"):  # CMake makes the header from its .in
            if os.path.isfile(os.path.join(root, written)):
                return written
    return None


def check_file(root, path, edges):
    """Yields (line, what) for each rule that `path` breaks, and adds its includes of project files to `edges`."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    code = code_of(text)
    stem = os.path.splitext(path)[0]

    for match in INCLUDE.finditer(text):
        line, (kind, name) = line_of(text, match.start()), match.groups()
        if not code[match.start() : match.end()].strip():
            continue  # inside a comment or a literal
        if LIBTORCH.match(name) and not path.startswith(MAY_INCLUDE_LIBTORCH):
            yield line, f"<{name}>: only lib/libtorch/ may include LibTorch"
        if kind == "<":
            continue
        target = resolve(root, path, name)
        if target is None:
            yield line, f'"{name}" does not exist; includes are relative to lib/'
            continue
        edges.setdefault(path, []).append(target)
        if path.startswith("lib/"):
            here, there = folder_in_lib(path), folder_in_lib(target)
            if not target.startswith("lib/"):
                yield line, f"lib/ may not include {target}"
            elif there not in {here, "dsckpt"} | ALLOWED.get(here, set()):
                yield line, f"{here or 'lib'}/ may not include {there or 'lib'}/ ({name})"
        if target == "lib/dsckpt/torch.h" and not path.startswith(MAY_INCLUDE_LIBTORCH):
            yield line, "only lib/libtorch/ may include dsckpt/torch.h: LibTorch takes half a second"

    if path.startswith("lib/"):
        for match in PRINTS.finditer(code):
            yield line_of(code, match.start()), f"lib/ may not print ({match.group(0).strip(' (')})"
    if path.startswith("lib/") or (path.startswith("apps/") and stem not in ("apps/cli/cli", "apps/cli/interrupt")):
        for match in ENDS.finditer(code):
            what = f"only apps/cli may end the process ({match.group(0).strip(' (')})"
            yield line_of(code, match.start()), what
    if path.startswith(("lib/", "apps/")):
        writes = {line_of(code, match.start()): match.group(0).strip(" (") for match in WRITES.finditer(code)}
        for line, call in writes.items() if path != MAY_WRITE else ():
            yield line, f"only {MAY_WRITE} opens files for writing ({call})"
        for match in HASHES_TEXTS.finditer(code):
            yield line_of(code, match.start()), "KeyedMap and KeyedSet are for texts of files"
    if path.startswith("lib/") and folder_in_lib(path) not in ALLOWED:
        yield 1, f"lib/{folder_in_lib(path)}/ is not a layer"


def circles(edges):
    """Yields each circle of includes once, as the list of its files."""
    done, trail = set(), []

    def visit(path):
        if path in trail:
            yield trail[trail.index(path) :] + [path]
            return
        if path in done:
            return
        trail.append(path)
        for target in edges.get(path, []):
            yield from visit(target)
        trail.pop()
        done.add(path)

    for path in sorted(edges):
        yield from visit(path)


def pairs(edges):
    """The same includes between headers together with their sources, by their common name; only lib/."""
    between = {}
    for path, targets in edges.items():
        stem = os.path.splitext(path)[0]
        for target in targets:
            other = os.path.splitext(target.removesuffix(".in"))[0]
            if stem != other and stem.startswith("lib/") and other.startswith("lib/"):
                between.setdefault(stem, []).append(other)
    return {stem: sorted(set(others)) for stem, others in between.items()}


def main():
    default = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    root = sys.argv[1] if len(sys.argv) > 1 else default
    complaints, edges, count = [], {}, 0
    for top in ("lib", "apps", "tests"):
        for path in sources(root, top):
            count += 1
            for line, what in check_file(root, path, edges):
                complaints.append(f"{path}:{line}: {what}")
    for circle in circles(edges):
        complaints.append(f"{circle[0]}:1: includes itself: {' -> '.join(circle)}")
    for circle in circles(pairs(edges)):
        complaints.append(f"{circle[0]}: needs itself, with header and source: {' -> '.join(circle)}")
    if not count:
        complaints.append(f"{root}: no source files here")
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
