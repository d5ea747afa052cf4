#!/usr/bin/env python3
"""Writes an index of wheels for `pip install --index-url` (the simple repository API of PyPI, in HTML).

    scripts/package_index.py PACKAGES URL OUT

PACKAGES is a folder with wheels, and URL the address of their files. OUT/simple/NAME/index.html links to each wheel of
the name, with its SHA-256 and the Pythons that it is for.
"""
import collections
import email
import hashlib
import html
import pathlib
import re
import sys
import zipfile

PAGE = '<!doctype html>\n<html lang="en">\n<head><meta name="pypi:repository-version" content="1.0"><title>{title}</title></head>\n'


def normalised(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def requires_python(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(metadata)).get("Requires-Python", "")


def page(title, links):
    return PAGE.format(title=title) + "<body>\n" + "".join(f"{link}<br>\n" for link in links) + "</body>\n</html>\n"


def main(packages, url, out):
    wheels = collections.defaultdict(list)
    for wheel in sorted(pathlib.Path(packages).glob("*.whl")):
        wheels[normalised(wheel.name.split("-")[0])].append(wheel)
    if not wheels:
        raise SystemExit(f"{packages}: has no wheels")
    simple = pathlib.Path(out) / "simple"
    for name, files in wheels.items():
        links = []
        for wheel in files:
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            links.append(f'<a href="{html.escape(url)}/{wheel.name}#sha256={digest}" '
                         f'data-requires-python="{html.escape(requires_python(wheel))}">{wheel.name}</a>')
        (simple / name).mkdir(parents=True, exist_ok=True)
        (simple / name / "index.html").write_text(page(name, links))
    (simple / "index.html").write_text(page("dsckpt", [f'<a href="{name}/">{name}</a>' for name in sorted(wheels)]))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
