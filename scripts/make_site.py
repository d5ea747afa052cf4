#!/usr/bin/env python3
"""Builds the documents as a site, from the repository's own Markdown, with mkdocs-material.

    scripts/make_site.py [--docs-only]    writes build/site/pages; --docs-only: only the Markdown, in build/site/docs

Further pages are generated: each tool's --help, the docstrings of the Python package, and the public headers. A link
to a file that has no page leads to the repository if GitHub builds the site (GITHUB_REPOSITORY); otherwise only its
text stays. A broken link is an error.

DSCKPT_BIN is the folder of the tools; default: build/release/bin.
"""
import inspect
import json
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "site"
BIN = pathlib.Path(os.environ.get("DSCKPT_BIN", ROOT / "build" / "release" / "bin"))
TOOLS = ("zero-to-fp32", "to-universal", "reshard", "to-dcp", "ckpt-inspect", "ckpt-pack", "ckpt-plan")
REPOSITORY = (f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{os.environ['GITHUB_REPOSITORY']}/blob/"
              f"{os.environ.get('GITHUB_SHA', 'main')}" if "GITHUB_REPOSITORY" in os.environ else None)

# Sections of the navigation: titles, and documents by their paths in the repository. reference/ is generated.
NAVIGATION = [
    {"Overview": "README.md"},
    {"Guides": ["apps/README.md", "apps/zero_to_fp32/README.md", "apps/to_universal/README.md",
                "apps/reshard/README.md", "apps/to_dcp/README.md", "apps/ckpt_inspect/README.md",
                "apps/ckpt_inspect/SCAN.md", "apps/ckpt_inspect/JSON.md", "apps/ckpt_pack/README.md", "apps/ckpt_plan/README.md", "apps/ENGINES.md",
                "apps/NODES.md", "apps/BUCKETS.md", "lib/python/README.md"]},
    {"Reference": ["reference/tools.md", "reference/python.md", "reference/cpp.md"]},
    {"Formats": ["lib/checkpoint/LAYOUTS.md", "lib/format/FORMATS.md", "lib/pickle/PICKLE.md",
                 "lib/checkpoint/names/README.md"]},
    {"Inside": ["lib/README.md", "lib/exec/README.md", "lib/nodes/README.md", "lib/bucket/README.md", "testdata/README.md",
                "tests/bench/README.md", "tests/LONG_RUNS.md", "tests/COSTS.md"]},
    {"Project": [".github/CONTRIBUTING.md", ".github/CHANGELOG.md", ".github/SECURITY.md", ".github/RELEASING.md",
                 ".github/CODE_OF_CONDUCT.md"]},
]


def place(document):
    """The path of a file's page. Folders that begin with a dot would be left out."""
    return re.sub(r"(^|/)\.", r"\1", str(document))


def pages():
    """All documents of the repository."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "*.md"], check=True, capture_output=True, text=True)
    return {name for name in listed.stdout.split() if not name.startswith(("testdata/malicious/", "tests/bench/runs/"))
            and "TEMPLATE" not in name}


def relinked(name, text, known, pictures):
    """The document with links for the site."""
    def target_of(target):
        if re.match(r"[a-z]+:|#", target):
            return target
        path, _, fragment = target.partition("#")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if found not in known and f"{found}/README.md" in known:
            found += "/README.md"
        if found in known or found.endswith((".svg", ".png")):
            if found not in known:
                pictures.add(found)
            relative = posixpath.relpath(place(found), posixpath.dirname(place(name)) or ".")
            return relative + (f"#{fragment}" if fragment else "")
        if not (ROOT / found).exists():
            raise SystemExit(f"{name}: {target} is not there")
        return f"{REPOSITORY}/{found}" if REPOSITORY else None

    def inline(match):
        target = target_of(match[3])
        return f"{match[1]}[{match[2]}]({target})" if target else match[2]

    blocks = re.split(r"(^ *```.*?^ *```$)", text, flags=re.MULTILINE | re.DOTALL)
    for at in range(0, len(blocks), 2):
        blocks[at] = re.sub(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", inline, blocks[at])
        blocks[at] = re.sub(r"^\[([^\]]+)\]: (\S+)$", lambda match: f"[{match[1]}]: {target_of(match[2]) or '#'}",
                            blocks[at], flags=re.MULTILINE)
        # Markdown needs an empty line before a list.
        blocks[at] = re.sub(r"^((?![ *|>-]|\d+\.).+\n)(?=[*-] )", r"\1\n", blocks[at], flags=re.MULTILINE)
    return "".join(blocks)


def help_of(*command):
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run([BIN / command[0], *command[1:], "--help"], check=True, capture_output=True, text=True,
                          env=environment).stdout


def tools_page():
    yield "# The tools' options\n"
    for tool in TOOLS:
        said = help_of(tool)
        yield f"## {tool}\n\n```text\n{said}```\n"
        section = re.search(r"^Subcommands:\n((?: .*\n)+)", said, re.MULTILINE)
        for command in re.findall(r"^  (\w+)", section[1], re.MULTILINE) if section else []:
            yield f"### {tool} {command}\n\n```text\n{help_of(tool, command)}```\n"


def python_page():
    sys.path.insert(0, str(ROOT / "lib" / "python"))
    import dsckpt
    yield f"# The package dsckpt\n\n```text\n{inspect.getdoc(dsckpt)}\n```\n"
    for name in sorted(dsckpt.__all__, key=str.lower):
        value = getattr(dsckpt, name)
        try:
            signature = re.sub(r"'(\w[\w.\[\]| ,]*)'", r"\1", str(inspect.signature(value)))
        except (TypeError, ValueError):
            signature = ""
        yield f"## {name}\n\n```python\n{name}{signature}\n```\n\n```text\n{inspect.getdoc(value) or ''}\n```\n"
        if not inspect.isclass(value) or issubclass(value, BaseException):
            continue
        for member, method in inspect.getmembers(value):
            if not member.startswith("_") and inspect.getdoc(method):
                yield f"### {name}.{member}\n\n```text\n{inspect.getdoc(method)}\n```\n"


def cpp_page():
    yield "# The C++ library\n\nThe public headers, as they are installed.\n"
    for header in sorted((ROOT / "lib" / "dsckpt").glob("*.h")):
        yield f"## dsckpt/{header.name}\n\n```cpp\n{header.read_text()}```\n"


def title_of(path):
    found = re.search(r"^# (.*)$", path.read_text(), re.MULTILINE)
    return found[1] if found else path.stem


def navigation(docs):
    for section in NAVIGATION:
        (title, entries), = section.items()
        if isinstance(entries, str):
            yield {title: place(entries)}
        else:
            yield {title: [{title_of(docs / place(entry)): place(entry)} for entry in entries]}


def main():
    docs = OUT / "docs"
    shutil.rmtree(OUT, ignore_errors=True)
    known, pictures = pages(), set()
    for name in sorted(known):
        page = docs / place(name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(relinked(name, (ROOT / name).read_text(), known, pictures))
    for name in pictures:
        (docs / place(name)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, docs / place(name))
    (docs / "reference").mkdir()
    for name, made in (("tools", tools_page()), ("python", python_page()), ("cpp", cpp_page())):
        (docs / "reference" / f"{name}.md").write_text("\n".join(made))
    settings = {
        "site_name": "dsckpt", "docs_dir": str(docs), "site_dir": str(OUT / "pages"), "use_directory_urls": False,
        "theme": {"name": "material", "font": False, "features": ["navigation.tabs", "navigation.top", "toc.follow"],
                  "palette": [{"media": "(prefers-color-scheme: light)", "scheme": "default"},
                              {"media": "(prefers-color-scheme: dark)", "scheme": "slate"}]},
        "plugins": ["search"],
        "markdown_extensions": ["tables", "toc", "pymdownx.superfences", "pymdownx.highlight"],
        "validation": {"links": {"not_found": "warn", "anchors": "warn", "absolute_links": "warn",
                                 "unrecognized_links": "warn"}},
        "nav": list(navigation(docs)),
    }
    (OUT / "mkdocs.yml").write_text(json.dumps(settings, indent=1))  # JSON is YAML
    if "--docs-only" not in sys.argv[1:]:
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        # --quiet would switch --strict off.
        done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file",
                               OUT / "mkdocs.yml"], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)


if __name__ == "__main__":
    main()
