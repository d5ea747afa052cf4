"""`ckpt-inspect browse` on a terminal, as pyte shows it: what is shown, against NumPy; keys; how it ends."""
import ast
import os
import pathlib
import pty
import re
import signal
import struct
import termios
import unicodedata

import numpy
import tools
import torch_files
from cli_common import CliTest
from terminal_screen import TerminalScreen

LEAVES = "\x1b[?1049l"  # xterm: back from the alternate screen
UNITS = {"B": 1, "KB": 1000, "MB": 1000 ** 2, "GB": 1000 ** 3}


def text_of(rows):
    return "\n".join(rows)


def columns(text):
    return sum(0 if unicodedata.category(c) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
               for c in text)


class BrowseTest(CliTest):

    def setUp(self):
        super().setUp()
        for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LC_ALL", "LC_CTYPE", "TERM"]:
            self.environment.pop(name, None)
        self.environment["LANG"] = "C.UTF-8"
        self.case = tools.case_named("hf_trainer_gpt2_z2_bf16_w2")
        self.truth = self.case.without_aliases(self.case.truth(dtype="keep"))

    def browse(self, path, *options, width=80, rows=24, settle=True, **variables):
        command = [str(pathlib.Path(os.environ["DSCKPT_BIN"]) / "ckpt-inspect"), "browse", str(path), *options]
        screen = TerminalScreen(command, width, {**self.environment, **variables}, rows=rows)
        self.addCleanup(screen.__exit__)
        if settle:
            screen.settle()
        return screen

    def assert_quits(self, screen, code=0, key="q"):
        status, text = screen.quit(key)
        self.assertEqual(status, code, text[-1000:])
        return text

    def file(self, tensors, name="some.safetensors"):
        torch_files.save_file(tensors, self.root / name)
        return self.root / name

    def cells(self, rows):
        """{heading: cell} of the rows of a page that have one heading and one cell."""
        return dict(re.split("  +", row, maxsplit=1) for row in rows if re.match(r"\S+( \S+)*  +\S", row))


class TreeTest(BrowseTest):

    def test_every_module_has_the_elements_and_bytes_of_its_tensors(self):
        """Goes through all modules, by the keys that go in and out."""
        screen = self.browse(self.case.load_dir, width=120)
        seen = []

        def walk():
            rows = screen.rows()
            path = "" if rows[1].startswith("all tensors") else re.split("  +", rows[1])[0]
            inside = [value for name, value in self.truth.items() if not path or f"{name}.".startswith(path + ".")]
            elements = sum(value.numel() for value in inside)
            states = path.endswith((".weight", ".bias"))
            self.assertEqual(re.split("  +", rows[1])[1].split(", ")[:2],
                             [f"{len(inside)} tensor{'' if len(inside) == 1 else 's'}",
                              f"{elements} element{'' if elements == 1 else 's'}"])
            size, unit = re.search(r"([\d.]+) (\w+)$", rows[1]).groups()
            # float32 masters, exp_avg and exp_avg_sq
            self.assertAlmostEqual(float(size) * UNITS[unit], elements * 12, delta=5 if unit == "KB" else 0)
            lines = [row for row in rows[3:-2] if row]
            seen.append((path, len(lines)))
            self.assertEqual(int(re.search(r"of (\d+)", rows[-1])[1]), len(lines))
            if states:
                return
            for number in range(len(lines)):
                self.assertEqual(screen.highlighted(), [3 + number])
                if lines[number].split()[0] != "0":  # lm_head, which is tied
                    screen.press("RIGHT")
                    walk()
                    screen.press("LEFT")
                screen.press("DOWN")

        walk()
        self.assertIn(("transformer.h.0", 4), seen)
        modules = {name.rsplit(".", parts)[0] for name in self.truth for parts in range(name.count(".") + 1)}
        self.assertEqual({path for path, _ in seen}, modules | {""})
        self.assert_quits(screen)

    def test_no_row_is_wider_than_the_terminal_and_numbers_are_whole(self):
        for width in (20, 40, 60, 79, 100, 200):
            screen = self.browse(self.case.load_dir, width=width)
            for rows in (screen.rows(), screen.press("l", "l", "l"), screen.press("/c_attn.weight$", "ENTER"),
                         screen.press("w"), screen.press("TAB"), screen.press("TAB"), screen.press("q", "?")):
                self.assertLessEqual(max(map(columns, rows)), width)
            rows = screen.press("q", "h")
            if width >= 40:
                self.assertIn("5.18 KB", text_of(rows))
            screen.press("TAB")
            self.assert_quits(screen)

    def test_the_kinds_stand_in_columns_where_there_is_room(self):
        screen = self.browse(self.case.load_dir, width=160)
        rows = screen.press("l", "l", "l")
        self.assertEqual(re.split("  +", rows[2].strip())[-3:], ["fp32 masters", "exp_avg", "exp_avg_sq"])
        mlp = sum(value.numel() * 4 for name, value in self.truth.items() if ".h.0.mlp." in name)
        row = next(row for row in rows if " mlp. " in row)
        self.assertEqual(re.split("  +", row.strip())[-3:], [f"{mlp / 1000:.2f} KB"] * 3)

    def test_sorts(self):
        path = self.file({f"m.{i}": torch_files.zeros(i + 1) for i in range(12)} | {"m.x": torch_files.zeros(5, dtype="int8")})
        screen = self.browse(path, rows=30)
        names = lambda rows: [re.search(r"%  \[.*\]  (\S+)", row)[1] for row in rows[3:16]]
        numbers = [str(i) for i in range(12)]
        self.assertEqual(names(screen.press("l")), [*numbers[::-1][:10], "1", "x", "0"])
        self.assertEqual(names(screen.press("s")), [*numbers, "x"])
        # x has as many elements as 4
        self.assertEqual([name for name in names(screen.press("s")) if name != "x"], numbers[::-1])
        self.assertEqual(sorted(names(screen.press("s"))), sorted([*numbers, "x"]))
        self.assertIn("order of the checkpoint", screen.rows()[-1])

    def test_searches(self):
        screen = self.browse(self.case.load_dir)
        found = []
        for keys in (["/", "ln_1", "ENTER"], ["n"], ["n"], ["N"]):
            rows = screen.press(*keys)
            found.append(re.split("  +", rows[1])[0])
        order = [name for name in self.case.facts["param_shapes"] if "ln_1" in name]
        self.assertEqual(found[0], order[0])
        self.assertEqual(found[3], found[1])  # a tensor and its states, one after the other
        self.assertIn("no tensor's name matches", screen.press("/", "zebra", "ENTER")[-1])
        self.assertEqual(re.split("  +", screen.rows()[1])[0], found[3])
        self.assertIn("missing )", screen.press("/", "(", "ENTER")[-1])
        self.assertEqual(screen.press("/", "abc", "BACKSPACE")[-1], "/ab_")
        self.assertIn("q quit", screen.press("ESC")[-1])
        self.assert_quits(screen)

    def test_scrolls(self):
        count = 3000
        screen = self.browse(self.file({f"t{i}": torch_files.zeros(1) for i in range(count)}), rows=20)
        screen.press("s")
        self.assertIn(f" t{count - 1} ", screen.press("END")[17] + " ")
        self.assertEqual(screen.highlighted(), [17])
        self.assertIn(f" t{count - 16} ", screen.press("PAGEUP")[3] + " ")
        self.assertIn(" t0 ", screen.press("g")[3] + " ")
        self.assertIn(" t15 ", screen.press("PAGEDOWN")[17] + " ")
        self.assertIn("16 of 3000", screen.rows()[-1])

    def test_the_terminal_may_change_its_size(self):
        screen = self.browse(self.case.load_dir, width=120)
        self.assertIn("exp_avg_sq", screen.rows()[2])
        rows = screen.resize(60, 12)
        self.assertNotIn("exp_avg_sq", rows[2])
        self.assertIn("q quit", rows[-1])
        screen.press("/c_attn.weight$", "ENTER", "w")
        self.assertLessEqual(max(map(len, screen.resize(40, 8))), 40)
        self.assertIn("exp_avg_sq", screen.press("q") and screen.resize(120, 24)[-2])
        self.assert_quits(screen)

    def test_names_do_nothing_to_the_terminal(self):
        path = self.file({"a\x1b[2Jb\nc": torch_files.zeros(2), "\u202eevil": torch_files.zeros(2), "\x9b31m": torch_files.zeros(2)})
        screen = self.browse(path)
        rows = text_of(screen.rows())
        for shown in (r"a\x1b[2Jb\nc", r"\u{202e}evil", r"\u{009b}31m"):
            self.assertIn(shown, rows)
        screen.press("/b.*c", "ENTER")
        self.assertEqual(screen.press("w")[1], r"a\x1b[2Jb\nc")
        self.assertNotIn("\x1b[2Jb", screen.raw)
        self.assertNotIn("\x9b", screen.raw)

    def test_ascii_and_wide_characters(self):
        path = self.file({"层.注意力.权重": torch_files.zeros(2, 3), "x" * 90: torch_files.zeros(2)})
        screen = self.browse(path)
        self.assertIn("层.", text_of([row.replace(" ", "") for row in screen.rows()]))
        self.assertIn("…", text_of(screen.rows()))
        for variables in ({"LC_ALL": "C"}, {"LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}):
            screen = self.browse(path, **variables)
            rows = screen.press("/x", "ENTER")
            self.assertTrue(screen.raw.isascii(), screen.raw)
            self.assertIn(r"\u{5c42}.", text_of(rows))
            self.assertIn("...", text_of(rows))


class TensorTest(BrowseTest):

    def page(self, screen, name, key):
        return screen.press("/^" + re.escape(name) + "$", "ENTER", key)

    def test_values_are_those_of_the_file(self):
        screen = self.browse(self.case.load_dir, rows=80)
        for name in ("transformer.ln_f.bias", "transformer.h.1.attn.c_proj.weight"):
            rows = self.page(screen, name, "p")
            self.assertEqual(rows[1], name)
            shown = ast.literal_eval(" ".join(row for row in rows[5:-1] if row))
            self.assertTrue(torch_files.equal(torch_files.tensor(shown, dtype="float32"), self.truth[name]))
            screen.press("q")

    def test_statistics_are_those_of_numpy(self):
        screen = self.browse(self.case.load_dir)
        for name in list(self.truth)[:5]:
            value = self.truth[name].values.astype("f8")
            cells = self.cells(self.page(screen, name, "t")[4:])
            self.assertEqual(int(cells["elements"]), value.size)
            self.assertEqual(int(cells["zeros"]), int((value == 0).sum()))
            for heading, expected in {"min": value.min(), "max": value.max(), "mean": value.mean(),
                                      "std": value.std(ddof=1), "norm": numpy.linalg.norm(value)}.items():
                self.assertAlmostEqual(float(cells[heading]), float(expected), delta=1e-5 * (abs(float(expected)) + 1e-12))
            screen.press("q")

    def test_extents_hold_the_values(self):
        screen = self.browse(self.case.load_dir, width=200)
        for name in ("transformer.wte.weight", "transformer.h.1.mlp.c_fc.weight", "transformer.ln_f.weight"):
            rows = self.page(screen, name, "w")
            headings = re.split("  +", rows[4].strip())
            read = b""
            for row in rows[5:-1]:
                if not row:
                    continue
                cells = dict(zip(headings, re.split("  +", row.strip())))
                with open(self.case.load_dir / cells["file"], "rb") as file:
                    file.seek(int(cells["offset"]))
                    read += file.read(int(cells["bytes"]))
            self.assertEqual(read, self.truth[name].tobytes())
            screen.press("q")

    def test_two_are_compared(self):
        names = [f"transformer.h.{layer}.attn.c_attn.weight" for layer in (0, 1)]
        screen = self.browse(self.case.load_dir)
        self.assertIn("Space marks", screen.press("d")[-1])
        self.assertIn("module cannot", screen.press("m")[-1])
        for name in names:
            screen.press("/^" + re.escape(name) + "$", "ENTER", "SPACE")
        self.assertTrue(any(row.startswith("*") for row in screen.rows()))
        self.assertIn("2 marked", screen.rows()[-1])
        cells = self.cells(screen.press("d")[4:])
        a, b = (self.truth[name].values.astype("f8") for name in names)
        self.assertEqual((cells["A"], cells["B"], cells["differs"]), (*names, "values"))
        self.assertEqual(int(cells["elements"]), int((a != b).sum()))
        self.assertAlmostEqual(float(cells["max abs"]), float(abs(a - b).max()), delta=1e-6)
        screen.press("q")
        # The same bits under another name; other shapes.
        other = self.file({name: torch_files.arange(6, "float32") for name in "ab"} | {"c": torch_files.zeros(2)},
                          "three.safetensors")
        screen = self.browse(other)
        self.assertEqual(self.cells(screen.press("/^a", "ENTER", "m", "/^b", "ENTER", "m", "d")[4:])["differs"], "equal")
        self.assertEqual(self.cells(screen.press("q", "/^c", "ENTER", "m", "d")[4:])["differs"], "shape")
        self.assert_quits(screen.press("q") and screen)

    def test_an_error_is_shown_and_the_program_goes_on(self):
        path = self.file({"first": torch_files.arange(4000, "float32"), "second": torch_files.zeros(3)})
        screen = self.browse(path)
        size = path.stat().st_size
        os.truncate(path, size - 8000)
        screen.press("/first", "ENTER", "t")
        self.assertRegex(text_of(screen.rows()), r"error: .*some\.safetensors")
        self.assertRegex(text_of(screen.press("p")), r"error: ")
        self.assertIn("q quit", screen.press("q")[-1])
        self.assert_quits(screen)

    def test_reading_much_can_be_stopped(self):
        path = self.root / "huge.safetensors"
        elements = 250 * 10 ** 9  # a terabyte of holes
        header = f'{{"w":{{"dtype":"F32","shape":[{elements}],"data_offsets":[0,{elements * 4}]}}}}'.encode()
        header += b" " * (-len(header) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + elements * 4)
        screen = self.browse(path)
        screen.type("t")
        # rows come one after the other
        reads = lambda rows: re.search(r"reading: [\d.]+ [KMG]B of 1\.00 TB", text_of(rows)) and rows[-1] == "Esc stops"
        screen.wait_until(reads)
        screen.type("\x1b")
        screen.wait_until(lambda rows: "stopped" in rows and rows[-1] != "Esc stops")
        screen.type("t")
        screen.wait_until(reads)
        screen.type("q")  # back, and what was being read is not
        self.assertIn("q quit", screen.settle()[-1])
        self.assertIn("...", text_of(screen.press("p")))
        screen.press("q")
        self.assert_quits(screen)


class DamagedTest(BrowseTest):

    def test_what_is_lost_is_marked_and_not_read(self):
        scratch = self.scratch("z2_bf16_w4")
        gone = scratch.optim(1)
        gone.unlink()
        listed = self.tool("ckpt-inspect", "list", scratch.folder, "--json")
        lost = [tensor["name"] for tensor in self.json_lines(listed.stdout)[0]["data"]["tensors"] if "lost" in str(tensor)]
        self.assertTrue(lost)
        screen = self.browse(scratch.folder, width=120)
        self.assertTrue(screen.rows()[0].endswith("damaged"))
        self.assertIn(gone.name, text_of(screen.press("b")))
        screen.press("q", "/^" + re.escape(lost[0]) + "$", "ENTER")
        at, = screen.highlighted()
        self.assertTrue(screen.rows()[at].startswith("!"))
        self.assertIn("lost in part", screen.rows()[at])
        for key in "wpt":
            self.assertIn("lost in part", screen.press(key)[4])
            screen.press("q")
        text = self.assert_quits(screen, 1)
        self.assertIn("damaged: ", text)


class EndTest(BrowseTest):

    def test_the_terminal_is_as_it_was(self):
        def by_key(screen):
            screen.type("q")

        def by_control_c(screen):
            screen.type("\x03")

        def killed(number):
            return lambda screen: os.kill(screen.process.pid, number)

        fresh, other = pty.openpty()
        before = termios.tcgetattr(fresh)
        os.close(fresh)
        os.close(other)
        for end, code in ((by_key, 0), (by_control_c, 130), (killed(signal.SIGTERM), 130), (killed(signal.SIGHUP), 130)):
            with self.subTest(code=code):
                screen = self.browse(self.case.load_dir, TERM="xterm")
                self.assertNotEqual(termios.tcgetattr(screen.ours), before)
                end(screen)
                text, status = screen.rest()
                self.assertEqual(status, code, text)
                self.assertEqual(termios.tcgetattr(screen.ours), before)
                self.assertIn(LEAVES, screen.raw + text)
                self.assertIn("\x1b[?25h", (screen.raw + text).rpartition("\x1b[?25l")[2])

    def test_control_c_while_much_is_read(self):
        path = self.root / "huge.safetensors"
        header = b'{"w":{"dtype":"F32","shape":[250000000000],"data_offsets":[0,1000000000000]}}'
        header += b" " * (-len(header) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 10 ** 12)
        screen = self.browse(path)
        screen.type("t")
        screen.wait_until(lambda rows: "reading: " in text_of(rows))
        screen.type("\x03")
        self.assertEqual(screen.rest()[1], 130)

    def test_without_a_terminal_tree_is_named(self):
        for arguments in ([], ["--json"]):
            done = self.tool("ckpt-inspect", "browse", self.case.load_dir, *arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn("ckpt-inspect tree", done.stderr)

    def test_a_terminal_that_nothing_is_known_of(self):
        for name in ("dumb", "", "frobnicator"):
            screen = self.browse(self.case.load_dir, settle=False, TERM=name)
            text, code = screen.rest()
            self.assertEqual(code, 2, text)
            self.assertIn("TERM=xterm", text)
            self.assertIn("ckpt-inspect tree", text)

    def test_what_is_like_xterm_needs_no_description(self):
        for name in ("xterm-frobnicated", "tmux-frobnicated"):
            screen = self.browse(self.case.load_dir, TERM=name)
            self.assertIn("transformer.", text_of(screen.rows()))
            screen.type("\x1bOC")  # right, as xterm has it
            self.assertIn("transformer ", screen.settle()[1])
            self.assertIn(LEAVES, self.assert_quits(screen))


if __name__ == "__main__":
    tools.main()
