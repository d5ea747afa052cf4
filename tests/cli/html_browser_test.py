"""ckpt-inspect --html in a real browser without a window. The screen shows the page's contents, in light and in
dark, in wide and in narrow windows. The browser has nothing to complain about or to fetch."""
import collections
import json

import cli_common
import tools
from browser import BrowserTest, variables
from html_page import Page, treemap_cells

TREEMAP_HEIGHT = 560


class HtmlBrowserTest(BrowserTest):

    def report(self, name, *arguments):
        case = tools.case_named(name)
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
        # Letters may hang over the edge of the text by a pixel.
        for x in (*range(0, 11), *range(389, 400)):
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
