"""README's messages that people search for are those of DeepSpeed, torch and transformers as they are installed."""
import importlib.util
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = {"deepspeed": ("runtime/engine.py", "utils/zero_to_fp32.py"), "torch": ("serialization.py", "nn/modules/module.py"),
           "transformers": ("trainer.py",)}


def said():
    """All text of these sources, what is put together of several literals as one."""
    text = ""
    for package, files in SOURCES.items():
        folder = pathlib.Path(importlib.util.find_spec(package).origin).parent
        for name in files:
            text += re.sub(r'"\s*\\?\s*f?"', "", (folder / name).read_text())
    return text


def messages():
    table = re.search(r"^\| the message \|.*\n\|---.*\n((?:\|.*\n)+)", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    for row in table.splitlines():
        yield from re.findall(r"`([^`]+)`", row.split("|")[1])


class ErrorMessagesTest(unittest.TestCase):
    def test_each_is_what_the_program_says(self):
        text, found = said(), 0
        for message in messages():
            # Numbers stand for what the program puts there.
            for part in re.split(r"(?: (?=\d))?\d+(?:(?<=\d) )?|torch\.Size\(\[\d\]\)", message):
                part = part.strip(" ()[]")
                if len(part) < 8 or re.fullmatch(r"\W*", part):
                    continue
                found += 1
                with self.subTest(message=message, part=part):
                    self.assertIn(part, text)
        self.assertGreater(found, 7)


if __name__ == "__main__":
    unittest.main()
