"""A real browser without a window, and what it draws: what the tests of pages share."""
import shutil
import struct
import subprocess
import zlib

from cli_common import CliTest

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


class Png:
    """An 8-bit RGB or RGBA PNG; at(x, y) is (r, g, b)."""

    def __init__(self, data):
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        at, packed = 8, b""
        while at < len(data):
            size, kind = struct.unpack_from(">I4s", data, at)
            body = data[at + 8:at + 8 + size]
            if kind == b"IHDR":
                self.width, self.height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", body)
                self.channels = {2: 3, 6: 4}[colour]
                assert (depth, interlace) == (8, 0)
            elif kind == b"IDAT":
                packed += body
            at += 12 + size
        self.rows = self._unfiltered(zlib.decompress(packed))

    def _unfiltered(self, raw):
        line = self.width * self.channels
        rows, above = [], bytes(line)
        for start in range(0, self.height * (line + 1), line + 1):
            above = self._unfilter(raw[start], raw[start + 1:start + 1 + line], above)
            rows.append(above)
        return rows

    def _unfilter(self, kind, row, above):
        if kind in (2, 4) and not any(row):  # as the row above, also when guessed from three neighbours
            return above
        row = bytearray(row)
        for first in range(self.channels):
            left = corner = 0
            for i in range(first, len(row), self.channels):
                up = above[i]
                if kind == 1:
                    guess = left
                elif kind == 2:
                    guess = up
                elif kind == 3:
                    guess = (left + up) >> 1
                elif kind == 0 or left == corner:
                    guess = up if kind else 0
                elif up == corner:
                    guess = left
                else:
                    across, down, both = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
                    guess = left if across <= down and across <= both else up if down <= both else corner
                left = row[i] = (row[i] + guess) & 255
                corner = up
        return bytes(row)

    def at(self, x, y):
        return tuple(self.rows[y][x * self.channels:x * self.channels + 3])

    def column(self, x):
        return {self.at(x, y) for y in range(self.height)}


def rgb(hex_colour):
    digits = hex_colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    return tuple(bytes.fromhex(digits))


def variables(css, dark):
    """The colours of the style sheet: name -> (r, g, b)."""
    light, dark_part = css.split("@media (prefers-color-scheme: dark)")
    found = {}
    for line in (dark_part if dark else light).split("}")[0].replace("\n", " ").split(";"):
        name, _, value = line.rpartition("{")[2].strip().partition(": ")
        if name.startswith("--") and value.startswith("#"):
            found[name] = rgb(value)
    return found


class BrowserTest(CliTest):
    """Has a browser."""
    scale = 1  # pixels of a screenshot for one of the page

    @classmethod
    def setUpClass(cls):
        cls.browser = next(filter(None, map(shutil.which, BROWSERS)), None)
        assert cls.browser, f"no browser: install one of {BROWSERS}"

    def browse(self, page, *options):
        """Runs the browser on a file: what it says on stderr."""
        profile = self.new_path("profile")
        done = subprocess.run(
            [self.browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-extensions",
             f"--force-device-scale-factor={self.scale}", "--force-color-profile=srgb", "--enable-logging=stderr",
             f"--user-data-dir={profile}", *options, page.as_uri()],
            capture_output=True, text=True, errors="replace", timeout=120)
        shutil.rmtree(profile, ignore_errors=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def screenshot(self, page, width, height, *options):
        picture = self.new_path("shot").with_suffix(".png")
        self.browse(page, f"--window-size={width},{height}", f"--screenshot={picture}", *options)
        return Png(picture.read_bytes())

    def assert_needs_no_scrolling_to_the_side(self, picture, page_colour, margin):
        """Both margins of the page have its colour from top to bottom."""
        for x in (*range(margin), *range(picture.width - margin, picture.width)):
            self.assertEqual(picture.column(x), {page_colour}, x)
