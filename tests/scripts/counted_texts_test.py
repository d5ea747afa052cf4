"""Texts count things as people do: "1 tensor", not "1 tensors". In C++ counted() and grouped_count() see to that."""
import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.environ["DSCKPT_SOURCE"])
PLURAL = r"(?:[a-z][\w-]* ){0,2}[A-Za-z][\w-]*s\b"
# Words that end in an s and are not nouns.
VERBS = {"adds", "appears", "as", "begins", "differs", "does", "ends", "exists", "fails", "gives", "has", "holds",
         "is", "its", "makes", "names", "needs", "reads", "runs", "says", "stands", "starts", "takes", "than",
         "this", "was", "whose"}
# A number as text, and the text behind it.
INNER = r"[^()]"
for _ in range(4):
    INNER = rf"(?:[^()]|\({INNER}*\))"
CPP = re.compile(rf'(?:std::to_string|grouped)\({INNER}*\)\s*\+\s*" ({PLURAL})')
BY_HAND = re.compile(r'== 1 \? " ([\w ]+)[^"]*" : " (\1s\b)')
PYTHON = re.compile(rf"f\".*?\{{(?:len\(|[a-z_.]*(?:count|total|number))[^{{}}]*\}} ({PLURAL})")
# Transcripts: "1 tensors".
SHOWN = re.compile(rf"(?<![\d.,:/+-])1 ({PLURAL})")


def nouns(pattern, text):
    """[(place, words)] of plurals behind a number."""
    found = []
    for match in pattern.finditer(text):
        words = match[match.lastindex].split()
        until = next((i for i, word in enumerate(words) if word.endswith("s")), len(words))
        if until < len(words) and not any(word in VERBS for word in words[:until + 1]):
            found.append((match.start(), " ".join(words[:until + 1])))
    return found


class CountedTexts(unittest.TestCase):

    def check(self, pattern, files):
        self.assertGreater(len(files), 0)
        found = []
        for path in files:
            text = path.read_text()
            found += [f"{path.relative_to(ROOT)}:{text[:at].count(chr(10)) + 1}: {words}"
                      for at, words in nouns(pattern, text)]
        self.assertEqual(found, [])

    def test_what_is_looked_for_is_found(self):
        for text in ('std::to_string(tensors) + " tensors in "', 'grouped(a.size(b())) +\n    " flat tensors"'):
            self.assertEqual(len(nouns(CPP, text)), 1, text)
        self.assertEqual(nouns(BY_HAND, 'text + (files == 1 ? " file, " : " files, ")'), [(14, "files")])
        self.assertEqual(nouns(PYTHON, 'f"{len(names)} tensors"'), [(0, "tensors")])
        self.assertEqual([words for _, words in nouns(SHOWN, "1 tensors in 1 file, 21 parameters, 1 is")], ["tensors"])
        self.assertEqual(nouns(CPP, 'std::to_string(layer) + " is"'), [])

    def test_numbers_in_cpp_are_counted(self):
        sources = [path for folder in ("lib", "apps") for ending in ("*.cpp", "*.h")
                   for path in sorted((ROOT / folder).rglob(ending))]
        self.check(CPP, sources)
        self.check(BY_HAND, sources)

    def test_numbers_in_python_are_counted(self):
        self.check(PYTHON, sorted((ROOT / "lib" / "python" / "dsckpt").glob("*.py")))

    def test_transcripts_have_no_plural_of_one(self):
        self.check(SHOWN, sorted((ROOT / "tests" / "golden").rglob("*.txt")))


if __name__ == "__main__":
    unittest.main()
