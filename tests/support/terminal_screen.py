"""The screen of a program that takes the whole terminal, by the terminal emulator pyte."""
import fcntl
import pathlib
import re
import struct
import termios
import time

import pyte
from pseudo_terminal import Terminal

# The keys that are not characters, for TERM=linux.
KEYS = {"UP": "\x1b[A", "DOWN": "\x1b[B", "RIGHT": "\x1b[C", "LEFT": "\x1b[D", "HOME": "\x1b[1~", "END": "\x1b[4~",
        "PAGEUP": "\x1b[5~", "PAGEDOWN": "\x1b[6~", "ENTER": "\r", "TAB": "\t", "ESC": "\x1b", "BACKSPACE": "\x7f",
        "SPACE": " "}

SIGNS = "\x03\x1a\x1c\x11\x13"  # signals of the terminal, and flow control


class TerminalScreen(Terminal):
    """Types keys one by one, each when the program waits for it."""

    def __init__(self, command, columns, environment, rows=24, **options):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.Stream(self.screen)
        self.raw = ""
        super().__init__(command, columns, {**environment, "TERM": environment.get("TERM", "linux")}, rows=rows,
                         controls=True, **options)

    def _feed(self, seconds):
        """Returns whether output came; None when the other end is closed."""
        more = self._read(seconds)
        if more is None:
            return None
        self.raw += more
        self.stream.feed(more)
        return more != ""

    def _asleep(self):
        try:
            return all(re.sub(r".*\) ", "", (task / "stat").read_text(), flags=re.S).startswith("S")
                       for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir())
        except OSError:  # the program has just ended
            return False

    def _bytes_read(self):
        """Bytes that the program has read since its start; none if unknown."""
        try:
            content = pathlib.Path(f"/proc/{self.process.pid}/io").read_text()
            return int(re.search(r"^rchar: (\d+)$", content, re.M)[1])
        except OSError:
            return None

    def type(self, text):
        """Types a text. It may take a moment until the waiting program can read it, above all on a busy machine."""
        before = self._bytes_read()
        super().type(text)
        if before is None or any(sign in text for sign in SIGNS):
            return
        end = time.monotonic() + 120
        while (now := self._bytes_read()) is not None and now < before + len(text.encode()):
            if self._feed(0.002) is None:
                return
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} is not read: {self.rows()!r}")

    def settle(self, seconds=120):
        """Waits until no more output comes, and the program waits for keys. Returns the rows."""
        end = time.monotonic() + seconds
        quiet = 0
        while quiet < 2:
            if time.monotonic() > end:
                raise AssertionError(f"never still: {self.rows()!r}")
            fed = self._feed(0.02)
            if fed is None:
                break
            waits = not fed and self._asleep() and self.screen.display[-1].strip() not in ("", "Esc stops")
            quiet = quiet + 1 if waits else 0
        return self.rows()

    def wait_until(self, seen, seconds=120):
        """Waits until `seen`, a function of the rows, is true. Returns the rows."""
        end = time.monotonic() + seconds
        while not seen(self.rows()):
            if self._feed(0.05) is None or time.monotonic() > end:
                raise AssertionError(f"not seen: {self.rows()!r}")
        return self.rows()

    def press(self, *keys):
        """Types keys, names in KEYS or else characters, those of one argument at once. Returns the rows after them."""
        rows = self.rows()
        for key in keys:
            self.type(KEYS.get(key, key))
            rows = self.settle()
        return rows

    def write(self, text):
        """Types a text and ENTER."""
        return self.press(text, "ENTER")

    def rows(self):
        return [row.rstrip() for row in self.screen.display]

    def highlighted(self):
        """The numbers of the rows that are highlighted from their first column on."""
        return [i for i in range(self.screen.lines) if self.screen.buffer[i][0].reverse]

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        return self.settle()

    def quit(self, key="q"):
        """Ends the program. Returns the exit code, and the terminal's output since the start."""
        self.type(KEYS.get(key, key))
        text, code = self.rest()
        return code, self.raw + text
