"""Sentences have a noun that acts, and end before 26 words: in documents, and in the comments of headers.

    tests/documents/prose_test.py            runs as a test
    tests/documents/prose_test.py --list     prints every offence
    tests/documents/prose_test.py --write    writes let_through.txt: how many each file has today

CONTRIBUTING has the rules. No file may have more offences than let_through.txt says.
"""
import collections
import os
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(os.environ.get("DSCKPT_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
LET_THROUGH = pathlib.Path(__file__).with_name("let_through.txt")
GENERATED = ("build/", ".venv/", ".cache/", "tests/bench/runs/", "testdata/malicious/", "tests/LONG_RUNS.md")
MOST_WORDS = 25
# A clause or a part of the sentence in the place of its subject.
CLAUSE = re.compile(r"(?:What|Who|Whoever|Whatever|Whether|That|Of)\b(?!.*\?$)")


def paragraphs_of_document(text):
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *(?:\|.*|<!--.*|#+ .*|\[[^\]]+\]: .*|!\[.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[*-]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    return re.split(r"\n\s*\n", text)


def paragraphs_of_header(text):
    comment = []
    for line in [*text.splitlines(), ""]:
        found = re.match(r"\s*// ?(.*)", line)
        if found and found[1].strip():
            comment.append(found[1])
        elif comment:
            yield "\n".join(comment)
            comment = []


def sentences(paragraph):
    plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", paragraph))
    plain = re.sub(r"\b(e\.g|i\.e|etc)\.", r"\1", re.sub(r"[*_\[\]]|\s+", " ", plain))
    return [sentence.strip() for sentence in re.split(r"(?<=[.?!]) +(?=[A-Z])", plain) if sentence.strip()]


def offences(path):
    """What is wrong, sentence by sentence."""
    text = path.read_text()
    paragraphs = paragraphs_of_document(text) if path.suffix == ".md" else paragraphs_of_header(text)
    for paragraph in paragraphs:
        for sentence in sentences(paragraph):
            if CLAUSE.match(sentence):
                yield f"begins with a clause: {sentence}"
            elif len(re.findall(r"\w[\w'-]*", sentence)) > MOST_WORDS:
                yield f"more than {MOST_WORDS} words: {sentence}"


def files():
    for pattern in ("*.md", "*.h"):
        for path in sorted(ROOT.rglob(pattern)):
            name = str(path.relative_to(ROOT))
            if not name.startswith(GENERATED):
                yield name, path


def counts():
    return collections.Counter({name: sum(1 for _ in offences(path)) for name, path in files()})


def let_through():
    return {name: int(number) for number, name in (line.split(" ", 1) for line in LET_THROUGH.read_text().splitlines())}


class ProseTest(unittest.TestCase):
    maxDiff = None

    def test_no_file_has_more_offences_than_it_had(self):
        found, allowed = counts(), let_through()
        for name in sorted({*found, *allowed}):
            with self.subTest(file=name):
                self.assertLessEqual(found[name], allowed.get(name, 0), "write plainer ones (CONTRIBUTING.md)")

    def test_it_sees_what_is_wrong(self):
        for text, wanted in (("What is lost is named.", 1), ("Lost files are named.", 0), ("What is it?", 0),
                             ("Of several models the first counts. It is named.", 1), ("word " * 26 + "end.", 1),
                             ("word " * 24 + "end.", 0), ("* Who reads `What is` sees it.", 1)):
            with self.subTest(text):
                self.assertEqual(sum(1 for paragraph in paragraphs_of_document(text) for sentence in sentences(paragraph)
                                     if CLAUSE.match(sentence) or len(sentence.split()) > MOST_WORDS), wanted)


if __name__ == "__main__":
    if "--list" in sys.argv:
        for name, path in files():
            for offence in offences(path):
                print(f"{name}: {offence}")
    elif "--write" in sys.argv:
        LET_THROUGH.write_text("".join(f"{number} {name}\n" for name, number in sorted(counts().items()) if number))
    else:
        unittest.main()
