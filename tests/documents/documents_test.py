"""The documents are short, their lines fit, what they link to and name is there, and each tool's page has all options."""
import functools
import os
import pathlib
import re
import subprocess
import unittest

from project_files import ROOT, files_ending

BIN = pathlib.Path(os.environ["DSCKPT_BIN"])
TOOLS = {"zero-to-fp32": "zero_to_fp32", "to-universal": "to_universal", "reshard": "reshard",
         "to-dcp": "to_dcp", "ckpt-inspect": "ckpt_inspect", "ckpt-pack": "ckpt_pack", "ckpt-plan": "ckpt_plan"}
# Texts that a program has written, and test data that is only called .md.
GENERATED = ("tests/bench/runs/", "testdata/malicious/zip-behind-a-text.md")
LINE = 120
README_LINES = 250
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
# Options of programs other than the tools.
FOREIGN_OPTIONS = {"--prefix", "--native", "--quick", "--safe_serialization", "--input_folder", "--output_folder"}


def documents():
    found = [path for path in files_ending(".md")
             if not str(path.relative_to(ROOT)).startswith(GENERATED)]
    assert len(found) > 10, found
    return found


@functools.cache
def parts(path):
    """The parts of a document: text outside code, with inline code; inline code; headings."""
    text = re.sub(r"^( *)```.*?^\1```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text), re.findall(r"`([^`\n]+)`", text), headings


def anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def help_of(tool, *command):
    return subprocess.run([BIN / tool, *command, "--help"], capture_output=True, text=True, check=True).stdout


def subcommands(tool):
    section = re.search(r"^Subcommands:\n((?: .*\n)+)", help_of(tool), re.MULTILINE)
    return re.findall(r"^  (\w+)", section[1], re.MULTILINE) if section else []


def options(tool):
    """All that --help of the tool and of its subcommands lists, by name."""
    found = set()
    for command in ([], *([name] for name in subcommands(tool))):
        for line in re.findall(r"^ +((?:-\w,)?--[a-z].*)$", help_of(tool, *command), re.MULTILINE):
            found.update(re.findall(r"(?<![\w-])--?[a-z][\w-]*", re.split(r"\s", line)[0]))
    return found


class Documents(unittest.TestCase):

    def test_the_readme_is_short(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), README_LINES)

    def test_every_way_to_install_is_run(self):
        """By .ci/run, or by hand, with a dated result."""
        section = re.search(r"^## Install\n(.*?)^## ", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[1]
        commands = [line for block in re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
                    for line in block.splitlines()]
        self.assertGreater(len(commands), 4)
        run = (ROOT / ".ci/run").read_text() + (ROOT / "tests/LONG_RUNS.md").read_text()
        for command in commands:
            words = command.split()
            self.assertRegex(run, r"(?m)^ *" + re.escape(" ".join(words[:3] if words[0] == "cmake" else words[:2])))

    def test_lines_fit(self):
        for path in documents():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                self.assertLess(len(line), LINE, f"{path.relative_to(ROOT)}:{number}: {line}")

    def test_links_lead_somewhere(self):
        links = 0
        for path in documents():
            text = parts(path)[0]
            targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
            for target in targets:
                if re.match(r"[a-z]+:", target):
                    continue
                links += 1
                with self.subTest(document=str(path.relative_to(ROOT)), link=target):
                    name, _, fragment = target.partition("#")
                    linked = path.parent / name if name else path
                    self.assertTrue(linked.exists(), "is not there")
                    if fragment:
                        self.assertIn(fragment, map(anchor, parts(linked)[2]))
        self.assertGreater(links, 50)

    def test_references_of_links_are_defined(self):
        text = parts(ROOT / "README.md")[0]
        defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
        self.assertTrue(defined)
        self.assertEqual(defined, set(re.findall(r"(?<!\])\[([^\]]+)\](?![(:])", text)))

    def test_files_that_are_named_are_there(self):
        named = 0
        for path in documents():
            for code in parts(path)[1]:
                for name in re.findall(r"(?<![\w/.*-])(?:\.ci|\.github|apps|lib|scripts|tests|testdata)/[\w./*-]*", code):
                    name = name.rstrip(".")
                    if re.search(r"[A-Z]{2}", name) and not (ROOT / name).exists() and "README" not in name:
                        continue  # a placeholder
                    named += 1
                    with self.subTest(document=str(path.relative_to(ROOT)), name=name):
                        self.assertTrue((ROOT / name).exists() or any(ROOT.glob(name)), "is not there")
        self.assertGreater(named, 30)

    def test_each_tool_has_a_page_with_all_its_options(self):
        for tool, folder in TOOLS.items():
            page = (ROOT / "apps" / folder / "README.md").read_text()
            named = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", page))
            listed = options(tool)
            self.assertGreater(len(listed), 5)
            self.assertEqual(listed - named, set(), f"not in apps/{folder}/README.md")
            for command in subcommands(tool):
                self.assertRegex(page, rf"\b{command}\b")

    def test_options_that_are_named_exist(self):
        of_scripts = set(OPTION.findall((ROOT / "scripts/test").read_text()))
        known = set().union(*(options(tool) for tool in TOOLS)) | {"--generate"} | FOREIGN_OPTIONS | of_scripts
        pages = [ROOT / "README.md", ROOT / "apps/README.md",
                 *(ROOT / "apps" / folder / "README.md" for folder in TOOLS.values())]
        for path in pages:
            for code in parts(path)[1]:
                for option in OPTION.findall(code):
                    self.assertIn(option, known | {"--safe"}, path.relative_to(ROOT))

    def test_each_variable_that_is_read_is_named(self):
        """apps/README.md says that no other is read."""
        name = r"(?:AWS|CURL|DSCKPT|OMPI|PMI|PMIX|SLURM|SSL)_[A-Z0-9_]+|[A-Z]+_COLOR|[A-Z]+_FORCE|MASTER_[A-Z]+"
        short = "COLUMNS|HOME|RANK|TERM|WORLD_SIZE"
        read = set()
        for path in [*(ROOT / "lib").rglob("*.cpp"), *(ROOT / "apps").rglob("*.cpp")]:
            read.update(re.findall(rf'"({name}|{short})"', path.read_text()))
        self.assertGreater(len(read), 40)
        named = set(re.findall(r"`([A-Za-z_0-9]+)(?:=\w+)?`", (ROOT / "apps/README.md").read_text()))
        self.assertEqual(read - named, set())

    def test_a_tool_of_the_list_is_on_the_front_page(self):
        text = (ROOT / "README.md").read_text()
        for folder in TOOLS.values():
            self.assertIn(f"apps/{folder}/README.md", text)


if __name__ == "__main__":
    unittest.main()
