"""Sentences have a noun that acts, and end before 26 words, without stiff turns: in documents, comments, docstrings.

    tests/documents/prose_test.py            runs as a test
    tests/documents/prose_test.py --list     prints every offence
    tests/documents/prose_test.py --write    writes let_through.txt: how many each file has today

CONTRIBUTING has the rules. No file may have more offences than let_through.txt says.
"""
import ast
import collections
import pathlib
import re
import sys
import unittest

from project_files import ROOT, files_ending

LET_THROUGH = pathlib.Path(__file__).with_name("let_through.txt")
GENERATED = ("tests/bench/runs/", "testdata/malicious/", "tests/LONG_RUNS.md")
MOST_WORDS = 25
# Not sentences: an example in JSON, a list of sources.
NO_SENTENCE = re.compile(r"[{\[]|(?:Sources?|Layout): ")
# A clause or a part of the sentence in the place of its subject.
CLAUSE = re.compile(r"(?:What|Who|Whoever|Whatever|Whether|That|Of)\b(?!.*\?$)")
# `is no file` for "is not a file", `another file than` for "a different file than", and clauses with `of which`.
STIFF = re.compile(r"(?<!here )\b(?:is|are) no (?!longer|more|errors?\b|use\b)\w|\b(?:an)?other (?:[\w'-]+ ){1,3}than\b|, of which\b|"
                   r"\b(?:gone|goes|go) on with\b")


def paragraphs_of_document(text):
    text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<=\n\n)(?: {4}.*\n)+", "", text)
    text = re.sub(r"^ *(?:\|.*|<!--.*|#+ .*|\[[^\]]+\]: .*|!\[.*)$", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(?:[*-]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    return re.split(r"\n\s*\n", text)


def paragraphs_of_comments(text, mark="//"):
    """The comment of each run of lines that have nothing else."""
    comment = []
    for line in [*text.splitlines(), ""]:
        found = re.match(rf"\s*{mark} ?(.*)", line)
        if found and found[1].strip():
            comment.append(found[1])
        elif comment:
            yield "\n".join(comment)
            comment = []


def paragraphs_of_python(text):
    yield from paragraphs_of_comments(text, "#")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = (ast.get_docstring(node, clean=False) or "").replace("``", "`")
            docstring = re.sub(rf"^ {{{node.body[0].col_offset if docstring else 0}}}", "", docstring, flags=re.MULTILINE)
            # Indented lines are commands, unless they continue the description of an argument.
            docstring = re.sub(r"^(?: {4}.*\n?)+", "", re.sub(r"(?<=\S)\n {4}(?=\w)", " ", docstring), flags=re.MULTILINE)
            yield from paragraphs_of_document(re.sub(r"^(?=\w+(?:, \w+)*: )", "\n\n", docstring, flags=re.MULTILINE))


PARAGRAPHS = {".md": paragraphs_of_document, ".h": paragraphs_of_comments, ".cpp": paragraphs_of_comments,
              ".py": paragraphs_of_python}


def sentences(paragraph):
    plain = re.sub(r"`[^`]*`", "Code", re.sub(r"\]\([^)]*\)", "]", paragraph))
    plain = re.sub(r"\bCode(?:(?:,\s+|\s+)(?:and\s+|or\s+)?Code)+\b", "Code", plain)  # a list of names
    plain = re.sub(r"\b(e\.g|i\.e|etc)\.", r"\1", re.sub(r"[*\[\]]|\b_|_\b|\s+", " ", plain))
    found = (sentence.strip() for sentence in re.split(r"(?<=[.?!]) +", plain))
    return [sentence for sentence in found if sentence and not NO_SENTENCE.match(sentence)]


def offence(sentence):
    if CLAUSE.match(sentence):
        return "begins with a clause"
    if STIFF.search(sentence):
        return "is stiff"
    return f"more than {MOST_WORDS} words" if len(re.findall(r"\w[\w'-]*", sentence)) > MOST_WORDS else ""


def offences(path):
    """The offences, sentence by sentence."""
    text = path.read_text()
    for paragraph in PARAGRAPHS[path.suffix](text):
        for sentence in sentences(paragraph):
            if why := offence(sentence):
                yield f"{why}: {sentence}"


def messages(path):
    """The texts of a source file; neighbouring literals are one."""
    text = re.sub(r"^\s*(?://|#include).*$", "", path.read_text(), flags=re.MULTILINE)
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"\s*\n\s*"', "", text))


def files():
    for suffix in PARAGRAPHS:
        for path in files_ending(suffix):
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

    def test_no_message_is_stiff(self):
        self.assertEqual([], [(name, message) for name, path in files()
                              if name.startswith(("lib/", "apps/")) and path.suffix in (".h", ".cpp")
                              for message in messages(path) if STIFF.search(message)])

    def test_it_sees_what_is_wrong(self):
        for text, wanted in (("What is lost is named.", 1), ("Lost files are named.", 0), ("What is it?", 0),
                             ("Of several models the first counts. It is named.", 1), ("word " * 26 + "end.", 1),
                             ("word " * 24 + "end.", 0), ("* Who reads `What is` sees it.", 1), ("It is no file.", 1),
                             ("There is no file.", 0), ("It has another size than before.", 1), ("It goes on.", 0),
                             ("Two files, of which one is new.", 1), ("A run is gone on with.", 1)):
            with self.subTest(text):
                self.assertEqual(sum(1 for paragraph in paragraphs_of_document(text) for sentence in sentences(paragraph)
                                     if offence(sentence)), wanted)


if __name__ == "__main__":
    if "--list" in sys.argv:
        for name, path in files():
            for found in offences(path):
                print(f"{name}: {found}")
    elif "--write" in sys.argv:
        LET_THROUGH.write_text("".join(f"{number} {name}\n" for name, number in sorted(counts().items()) if number))
    else:
        unittest.main()
