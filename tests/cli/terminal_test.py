"""The outputs of the tools on a terminal and elsewhere: tables and progress that fit, colours, plain tabs."""
import os
import pathlib
import re
import unicodedata

import cli_common
import tools
import torch_files
from cli_common import CliTest
from pseudo_terminal import Terminal

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
        self.case = tools.case_named("hf_trainer_gpt2_z2_bf16_w2")

    def on_terminal(self, tool, *arguments, width=80, descriptors=(1,), code=0, **variables):
        """A tool's output on a terminal of that width."""
        command = [str(pathlib.Path(os.environ["DSCKPT_BIN"]) / tool), *map(str, arguments)]
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

    def shown(self, width, *arguments):
        """The lines of a table, and what stands above and below it."""
        lines = plain(self.on_terminal("ckpt-inspect", *arguments, width=width)).splitlines()
        above = next((i for i, line in enumerate(lines) if line.startswith("name")), 0)
        below = next((i for i, line in enumerate(lines) if line.startswith("not shown:")), len(lines))
        return lines[above:below], " ".join(lines[:above] + lines[below:])

    def test_no_line_is_wider_than_the_terminal_and_numbers_are_never_cut(self):
        rows = [line.split("\t") for line in
                self.piped("ckpt-inspect", "list", self.case.load_dir).stdout.splitlines()]
        for width in [1, 12, 20, 40, 60, 80, 120, 200]:
            table, below = self.shown(width, "list", self.case.load_dir)
            self.assertLessEqual(max(map(columns, table)), width)
            if width < 40:
                continue
            self.assertEqual(len(table), len(rows) + 1, width)
            headings = [heading for heading in re.split("  +", table[0].strip())]
            gone = below.partition("not shown: ")[2].partition(" (")[0].split(", ") if below else []
            self.assertEqual(sorted(headings + gone), sorted(HEADINGS))
            self.assertEqual(len({line.split("  ")[0] for line in table[1:]}), len(rows), "names that look the same")
            for line, row in zip(table[1:], rows):
                cells = dict(zip(headings, re.split("  +", line.strip())))
                for heading, cell in zip(HEADINGS, row):
                    if heading == "bytes" and heading in cells:
                        number, unit = cells[heading].split(" ")
                        self.assertAlmostEqual(float(number) * {"B": 1, "KB": 1000}[unit], int(cell), delta=5)
                    elif heading in cells and heading != "name":
                        self.assertEqual(cells[heading], cell, line)
            if width == 200:
                self.assertEqual((gone, [line.split("  ")[0] for line in table[1:]]), ([], [row[0] for row in rows]))

    def test_layers_stay_apart_where_names_are_abbreviated(self):
        names = [f"model.language_model.layers.{layer}.self_attention.{part}.weight"
                 for layer in range(30) for part in ("query_projection", "output_projection")]
        path = self.root / "deep.safetensors"
        torch_files.save_file({name: torch_files.zeros(2, 3) for name in [*names, "lm_head.weight"]}, path)
        for width in [40, 60, 80]:
            table, _ = self.shown(width, "stats", path)
            shown = [line.split("  ")[0] for line in table[1:-1]]
            self.assertEqual(len(set(shown)), len(names) + 1, width)
            for layer in range(30):
                self.assertEqual(sum(f".{layer}." in name for name in shown), 2)

    def test_what_all_names_begin_with_is_said_once(self):
        path = self.root / "front.safetensors"
        torch_files.save_file({f"a_very_long_name_of_a_module.and_another_long_one.{i}.weight": torch_files.zeros(2) for i in range(3)}, path)
        table, beside = self.shown(60, "list", path)
        self.assertIn("all names begin with a_very_long_name_of_a_module.and_another_long_one.", beside.replace("  ", " "))
        self.assertEqual([line.split("  ")[0] for line in table[1:]], ["0.weight", "1.weight", "2.weight"])
        self.assertNotIn("all names", self.shown(200, "list", path)[1])

    def test_the_c_locale_gets_ascii(self):
        for command in ("tree", "list", "where"):
            arguments = [self.case.load_dir, *(["transformer.wte.weight"] if command == "where" else [])]
            shown = self.on_terminal("ckpt-inspect", command, *arguments, width=44, LC_ALL="C")
            self.assertTrue(shown.isascii(), shown)
            other = self.on_terminal("ckpt-inspect", command, *arguments, width=44, LC_ALL="", LC_CTYPE="", LANG="C.UTF-8")
            if command != "list":
                self.assertFalse(other.isascii(), other)
            for text in (shown, other):
                self.assertLessEqual(max(map(columns, plain(text).splitlines()[:-1])), 44)

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
        torch_files.save_file({name: torch_files.zeros(2, 3) for name in names}, path)
        for variables in [{}, {"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8"}]:
            for width in [60, 200]:
                lines = plain(self.on_terminal("ckpt-inspect", "list", path, width=width, **variables)).splitlines()
                self.assertLessEqual(max(map(columns, lines)), width)
                lines = [line for line in lines if not line.startswith("not shown")][:len(names) + 1]
                self.assertEqual(len({columns(line[:line.index("[2, 3]")]) for line in lines[1:]}), 1, lines)
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
                                     "--hf-config=none", width=width, descriptors=(2,))
            bars, summary = shown.split("\n", 1)
            drawn = [line.rstrip() for line in bars.split("\r") if line]
            self.assertTrue(drawn)
            self.assertLess(max(map(columns, drawn)), width)
            self.assertNotIn(ESCAPE, shown)
            self.assertIn("100 %", drawn[-1])
            if width == 200:
                self.assertIn("[" + "#" * 30 + "]", drawn[-1])
            self.assertRegex(summary, r"(?m)^zero-to-fp32: \d+ tensors in 1 file")

    def test_a_quick_checkpoint_is_opened_in_silence(self):
        self.assertEqual(self.on_terminal("ckpt-inspect", "list", self.case.load_dir, descriptors=(2,)), "")


if __name__ == "__main__":
    cli_common.main()
