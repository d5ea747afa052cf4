"""What the tools print on a terminal, and what where none is: tables and progress that fit, colours, plain tabs."""
import pathlib
import re
import unicodedata

import cli_common
import common
import torch
from cli_common import CliTest
from pseudo_terminal import Terminal
from safetensors.torch import save_file

ESCAPE = "\x1b"
HEADINGS = ["name", "kind", "type", "shape", "bytes", "files"]


def columns(text):
    """How wide a terminal shows it, by the Unicode database."""
    return sum(0 if unicodedata.category(c) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
               for c in text)


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class TerminalTest(CliTest):

    def setUp(self):
        super().setUp()
        for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS"]:
            self.environment.pop(name, None)
        self.environment["TERM"] = "xterm"
        self.case = common.case_named("hf_trainer_gpt2_z2_bf16_w2")

    def on_terminal(self, tool, *arguments, width=80, descriptors=(1,), code=0, **variables):
        """What a tool prints on a terminal of that width."""
        command = [str(pathlib.Path(common.os.environ["DSCKPT_BIN"]) / tool), *map(str, arguments)]
        with Terminal(command, width, {**self.environment, **variables}, descriptors) as terminal:
            seen, status = terminal.rest()
        self.assertEqual(status, code, seen)
        return seen.replace("\r\n", "\n")

    def piped(self, tool, *arguments, code=0, **variables):
        done = self.tool(tool, *arguments, env={**self.environment, **variables})
        self.assertEqual(done.returncode, code, done.stderr)
        return done


class BytesTest(TerminalTest):

    def test_bytes_are_not_for_a_terminal(self):
        name = next(iter(self.case.truth()))
        arguments = ["ckpt-inspect", "print", self.case.load_dir, name, "--bytes"]
        self.assertIn("> FILE", self.on_terminal(*arguments, descriptors=(1, 2), code=2))
        with open(self.new_path(), "w+b") as file:
            self.assertEqual(self.tool(*arguments, stdout=file, capture_output=False).returncode, 0)
            self.assertEqual(file.seek(0, 2), self.case.truth(dtype="keep")[name].nbytes)


class TableTest(TerminalTest):

    def test_no_line_is_wider_than_the_terminal(self):
        names = [tensor.split("\t")[0] for tensor in
                 self.piped("ckpt-inspect", "list", self.case.load_dir).stdout.splitlines()]
        for width in [1, 12, 20, 40, 60, 80, 200]:
            lines = plain(self.on_terminal("ckpt-inspect", "list", self.case.load_dir, width=width)).splitlines()
            self.assertEqual(len(lines), len(names) + 1, width)
            self.assertLessEqual(max(map(columns, lines)), width)
            if width >= 40:
                self.assertEqual(len({column for column in lines[0].split("  ") if column}), len(HEADINGS))
            for line, name in zip(lines[1:], names):
                shown = line.split("  ")[0]
                front, cut, back = shown.partition("…")
                if width >= 60:
                    self.assertTrue(name.startswith(front) and name.endswith(back) if cut else shown == name, line)
                if width >= 80:
                    self.assertGreaterEqual(columns(shown), min(16, len(name)))
                if width == 200:
                    self.assertEqual(shown, name)

    def test_headings_stand_over_their_columns(self):
        lines = plain(self.on_terminal("ckpt-inspect", "list", self.case.load_dir, width=200)).splitlines()
        self.assertEqual(lines[0].split(), HEADINGS)
        for heading in ["kind", "type", "shape", "files"]:
            at = lines[0].index(heading)
            for line in lines[1:]:
                self.assertRegex(line[at - 2:at + 1], r"^  \S$")
        end = lines[0].index("bytes") + len("bytes")
        for line in lines[1:]:
            self.assertRegex(line[end - 1:end + 2], r"^\S  $")

    def test_wide_characters_and_marks_line_up(self):
        names = ["plain.weight", "层.注意力.权重", "café.bias", "cafe\u0301.bias", "한국어.weight", "ｆｕｌｌ", "😀.weight",
                 "層" * 60 + ".weight"]
        path = self.root / "wide.safetensors"
        save_file({name: torch.zeros(2, 3) for name in names}, path)
        for variables in [{}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}]:
            for width in [60, 200]:
                lines = plain(self.on_terminal("ckpt-inspect", "list", path, width=width, **variables)).splitlines()
                self.assertEqual(len(lines), len(names) + 1)
                self.assertLessEqual(max(map(columns, lines)), width)
                self.assertEqual(len({columns(line[:line.index("float32")]) for line in lines[1:]}), 1, lines)
            for name in names[:-1]:
                self.assertIn(f"{name} ", "\n".join(lines))

    def test_a_pipe_gets_tabs(self):
        done = self.piped("ckpt-inspect", "list", self.case.load_dir)
        self.assertNotIn(ESCAPE, done.stdout)
        self.assertEqual({line.count("\t") for line in done.stdout.splitlines()}, {len(HEADINGS) - 1})
        self.assertNotIn("…", done.stdout)

    def test_the_width_of_a_terminal_that_has_none_is_columns(self):
        lines = plain(self.on_terminal("ckpt-inspect", "list", self.case.load_dir, width=0, COLUMNS="70")).splitlines()
        self.assertIn(max(map(columns, lines)), range(60, 71))
        for odd in ["", "many", "-3", "0"]:
            lines = plain(self.on_terminal("ckpt-inspect", "list", self.case.load_dir, width=0, COLUMNS=odd))
            self.assertIn(max(map(columns, lines.splitlines())), range(71, 81), odd)


class ColourTest(TerminalTest):

    def list(self, *arguments, **variables):
        return self.on_terminal("ckpt-inspect", "list", self.case.load_dir, *arguments, **variables)

    def test_a_terminal_gets_colours_unless_somebody_says_no(self):
        self.assertIn(ESCAPE, self.list())
        for arguments, variables in [([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"}), (["--color=never"], {}),
                                     (["--color=never"], {"CLICOLOR_FORCE": "1"}),
                                     ([], {"NO_COLOR": "1", "CLICOLOR_FORCE": "1"}), ([], {"TERM": ""})]:
            shown = self.list(*arguments, **variables)
            self.assertNotIn(ESCAPE, shown, (arguments, variables))
            self.assertEqual(shown, plain(self.list()))
        for arguments, variables in [([], {"NO_COLOR": ""}), (["--color=always"], {"NO_COLOR": "1"}),
                                     (["--color", "always"], {"TERM": "dumb"}),
                                     ([], {"TERM": "dumb", "CLICOLOR_FORCE": "1"})]:
            self.assertEqual(self.list(*arguments, **variables), self.list(), (arguments, variables))

    def test_errors_are_coloured_on_a_terminal_only(self):
        for tool, arguments in [("ckpt-inspect", ["list", "nowhere"]), ("zero-to-fp32", ["nowhere", "out"]),
                                ("reshard", ["nowhere", "out", "--dp=2"]),
                                ("to-universal", ["--input-folder=nowhere", "--output-folder=out"])]:
            shown = self.on_terminal(tool, *arguments, descriptors=(2,), code=2)
            self.assertRegex(shown, rf"\A{tool}: \x1b\[\d+merror:\x1b\[0m ")
            expected = self.piped(tool, *arguments, code=2)
            self.assertRegex(expected.stderr, rf"\A{tool}: error: ")
            self.assertEqual(plain(shown), expected.stderr)
            self.assertEqual(self.on_terminal(tool, *arguments, descriptors=(2,), code=2, NO_COLOR="1"),
                             expected.stderr)
            self.assertEqual(self.piped(tool, *arguments, "--color=always", code=2).stderr, shown)
            self.assertEqual(self.piped(tool, *arguments, code=2, CLICOLOR_FORCE="1").stderr, shown)
            self.assertEqual(self.piped(tool, *arguments, code=2, CLICOLOR_FORCE="0").stderr, expected.stderr)


class ProgressTest(TerminalTest):

    def test_the_line_fits_and_is_written_over_without_escapes(self):
        for width in [20, 40, 80, 200]:
            shown = self.on_terminal("zero-to-fp32", self.case.load_dir, self.new_path(), "--progress=always",
                                     width=width, descriptors=(2,))
            bars, summary = shown.split("\n", 1)
            drawn = [line.rstrip() for line in bars.split("\r") if line]
            self.assertTrue(drawn)
            self.assertLess(max(map(columns, drawn)), width)
            self.assertNotIn(ESCAPE, shown)
            self.assertIn("100 %", drawn[-1])
            if width == 200:
                self.assertIn("[" + "#" * 30 + "]", drawn[-1])
            self.assertRegex(summary, r"\Azero-to-fp32: \d+ tensors in 1 file")


if __name__ == "__main__":
    cli_common.main()
