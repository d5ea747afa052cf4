"""The tools' help, dry runs and summaries are kept as files, so that they change only on purpose.

Each .txt file below this folder is a transcript:

    # The text that it shows.
    $ COMMAND
    what it prints on stdout
    stderr: what it prints there
    exit status N                      if it is not 0

The commands of a file run one after the other, by bash, in an empty folder that has `checkpoints`,
`model_parallel` and `peft` of testdata/. `at_width COLUMNS COMMAND` runs one on a terminal of that
width, and `after_keys COLUMNS KEYS COMMAND` shows the screen of one after these keys. Times, and sizes that
depend on the version of zstd, are masked with N.

    scripts/python tests/golden/golden_test.py               compares
    scripts/python tests/golden/golden_test.py --approve     writes what is printed now into all files

A new transcript is a new file of comments and commands, and --approve. A person has to read the text that it
then shows.
"""
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BIN = pathlib.Path(os.environ["DSCKPT_BIN"]).resolve()
TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"]).resolve()
PYTHON = pathlib.Path(sys.executable).parent  # the Python that has what after_keys imports
MASKS = [(re.compile(r"\b\d+\.\d\d s\b"), "N s"),
         (re.compile(r"packed to [\d.]+ \w+ \([\d.]+ %\)"), "packed to N"),
         (re.compile(r"(\d+ files?) of [\d.]+ \w+,"), r"\1 of N,")]
TOOLS = ("ckpt-inspect", "ckpt-pack", "ckpt-plan", "reshard", "to-dcp", "to-universal", "zero-to-fp32")


def masked(text):
    for pattern, mask in MASKS:
        text = pattern.sub(mask, text)
    return text


def run(command, folder):
    """The lines that a command leaves in the transcript."""
    path = f"{BIN}:{HERE.parent / 'support'}:{PYTHON}:{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(folder), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120)
    lines = masked(done.stdout).splitlines() + ["stderr: " + line for line in masked(done.stderr).splitlines()]
    if done.returncode:
        lines.append(f"exit status {done.returncode}")
    assert not any(line.startswith("$ ") for line in lines), command
    return lines


def transcript(text):
    """The same commands and comments, with what is printed now."""
    out = []
    with tempfile.TemporaryDirectory(prefix="dsckpt-golden-") as name:
        folder = pathlib.Path(name)
        for data in ("checkpoints", "model_parallel", "peft"):
            (folder / data).symlink_to(TESTDATA / data)
        for line in text.splitlines():
            if line.startswith("$ "):
                out += [line, *run(line[2:], folder)]
            elif line.startswith("# ") and not any(before.startswith("$ ") for before in out):
                out.append(line)
    return "\n".join(out) + "\n"


def golden_files():
    return sorted(HERE.rglob("*.txt"))


class Golden(unittest.TestCase):

    def test_the_tools_print_what_they_printed(self):
        files = golden_files()
        self.assertGreater(len(files), 30)
        for path in files:
            with self.subTest(str(path.relative_to(HERE))):
                expected = path.read_text()
                self.assertRegex(expected, r"(?m)^\$ ")
                actual = transcript(expected)
                if actual != expected:
                    self.fail("".join(difflib.unified_diff(expected.splitlines(True), actual.splitlines(True),
                                                           "golden", "now", n=2)))

    def test_every_tool_and_subcommand_has_its_help_there(self):
        shown = {line for path in golden_files() for line in path.read_text().splitlines() if line.startswith("$ ")}
        for tool in TOOLS:
            self.assertIn(f"$ {tool} --help", shown)
            text = subprocess.run([BIN / tool, "--help"], capture_output=True, text=True, check=True).stdout
            section = re.search(r"^Subcommands:\n((?: .*\n)+)", text, re.MULTILINE)
            for name in re.findall(r"^  (\w+)", section[1], re.MULTILINE) if section else []:
                self.assertIn(f"$ {tool} {name} --help", shown)

    def test_what_is_masked_is_masked_alone(self):
        self.assertEqual(masked("22 tensors in 1 file, 22.66 KB in out, 0.13 s, 4 checksums verified"),
                         "22 tensors in 1 file, 22.66 KB in out, N s, 4 checksums verified")
        self.assertEqual(masked("6 files, 79.67 KB packed to 64.01 KB (80.3 %) in p, 0.01 s"),
                         "6 files, 79.67 KB packed to N in p, N s")
        self.assertEqual(masked("6 files of 64.01 KB, 79.67 KB in q"), "6 files of N, 79.67 KB in q")


def approve():
    for path in golden_files():
        text = path.read_text()
        now = transcript(text)
        if now != text:
            path.write_text(now)
            print(path.relative_to(HERE))


if __name__ == "__main__":
    if sys.argv[1:] == ["--approve"]:
        approve()
    else:
        unittest.main()
