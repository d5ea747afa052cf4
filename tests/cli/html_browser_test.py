"""ckpt-inspect --html in a real browser without a window: what is on the screen is what the page says, in light
and in dark, in wide and in narrow windows, and the browser has nothing to complain about or to fetch."""
import collections
import json
import shutil
import struct
import subprocess
import zlib

import cli_common
import common
from cli_common import CliTest
from html_page import Page, treemap_cells

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
TREEMAP_HEIGHT = 560


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
             "--force-device-scale-factor=1", "--force-color-profile=srgb", "--enable-logging=stderr",
             f"--user-data-dir={profile}", *options, page.as_uri()],
            capture_output=True, text=True, errors="replace", timeout=120)
        shutil.rmtree(profile, ignore_errors=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr

    def screenshot(self, page, width, height, *options):
        picture = self.new_path("shot").with_suffix(".png")
        self.browse(page, f"--window-size={width},{height}", f"--screenshot={picture}", *options)
        return Png(picture.read_bytes())

    def report(self, name, *arguments):
        case = common.case_named(name)
        path = self.new_path("report").with_suffix(".html")
        done = self.tool("ckpt-inspect", case.load_dir, "--html", path, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path

    def probes(self, page, width):
        """(x, y, colour class) of points of cells that no text or border covers, in pixels of the treemap."""
        for cell in treemap_cells(page):
            if cell.width * width < 16 or cell.height * TREEMAP_HEIGHT < 16:
                continue
            yield (int((cell.x + cell.width) * width) - 5, int((cell.y + cell.height) * TREEMAP_HEIGHT) - 5,
                   cell.colour)

    def assert_treemap_seen(self, picture, page, colours, left, width):
        """Somewhere down the page are the cells, each in its place and colour."""
        probes = list(self.probes(page, width))
        self.assertGreater(len(probes), 5)
        x0, y0, first = probes[0]
        tops = [y - y0 for y in range(y0, picture.height - TREEMAP_HEIGHT)
                if picture.at(left + x0, y) == colours["--" + first]]
        best = max(tops, default=0, key=lambda top: sum(
            picture.at(left + x, top + y) == colours["--" + colour] for x, y, colour in probes))
        for x, y, colour in probes:
            self.assertEqual(picture.at(left + x, best + y), colours["--" + colour], (x, y))
        self.assertGreaterEqual(len({colour for *_, colour in probes}), 4)

    def test_the_page_and_its_treemap_are_seen_in_light_and_dark(self):
        path = self.report("hf_trainer_llama_z3_bf16_w2")
        page = Page(path.read_text())
        css = page.root.one("style").text()
        seen = {}
        for dark in (False, True):
            with self.subTest(dark=dark):
                colours = variables(css, dark)
                picture = self.screenshot(path, 1200, 2400, f"--blink-settings=preferredColorScheme={0 if dark else 1}")
                self.assertEqual((picture.width, picture.height), (1200, 2400))
                self.assertEqual(picture.at(3, 3), colours["--page"])
                counts = collections.Counter(picture.at(x, y) for y in range(0, 2400, 7) for x in range(0, 1200, 7))
                self.assertGreater(counts[colours["--card"]], 5_000)
                self.assertGreater(len(counts), 50)  # text has many shades
                # 1060 pixels of page less 24 of padding, 1 of border and 24 of padding on each side.
                self.assert_treemap_seen(picture, page, colours, left=119, width=962)
                seen[dark] = picture.rows
        self.assertNotEqual(seen[False], seen[True])

    def test_narrow_windows_need_no_scrolling_to_the_side(self):
        path = self.report("hf_trainer_llama_z3_bf16_w2")
        page = Page(path.read_text())
        colours = variables(page.root.one("style").text(), False)
        picture = self.screenshot(path, 400, 4000, "--blink-settings=preferredColorScheme=1")
        self.assertEqual(picture.width, 400)
        for x in (*range(0, 12), *range(388, 400)):
            self.assertEqual(picture.column(x), {colours["--page"]}, x)
        # The cards end where they should, and the map fills them.
        self.assertIn(colours["--line"], picture.column(12))
        self.assertIn(colours["--line"], picture.column(387))
        self.assert_treemap_seen(picture, page, colours, left=27, width=346)

    def fetched(self, page):
        """The addresses of all requests that the browser made, and its complaints."""
        log = self.new_path("netlog")
        said = self.browse(page, f"--log-net-log={log}", "--dump-dom")
        events = json.loads(log.read_text())
        start = events["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
        urls = [e["params"]["url"] for e in events["events"] if e["type"] == start and "url" in e.get("params", {})]
        return urls, [line for line in said.splitlines() if "CONSOLE" in line]

    def test_the_browser_fetches_nothing_and_complains_of_nothing(self):
        urls, complaints = self.fetched(self.report("z2_fp32_full_w3", "--values"))
        self.assertEqual([url for url in urls if not url.startswith("file:")], [])
        self.assertEqual(complaints, [])

    def test_a_page_that_fetches_or_runs_something_would_be_noticed(self):
        page = self.new_path("bad").with_suffix(".html")
        page.write_text("<!DOCTYPE html><img src='http://127.0.0.1:9/x.png'>")
        urls, _ = self.fetched(page)
        self.assertIn("http://127.0.0.1:9/x.png", urls)
        good = self.report("z2_fp32_full_w3").read_text()
        page.write_text(good.replace("</main>", "<script>alert(1)</script></main>"))
        _, complaints = self.fetched(page)
        self.assertEqual(len(complaints), 1)
        self.assertIn("Content Security Policy", complaints[0])


if __name__ == "__main__":
    cli_common.main()
