"""ckpt-inspect --html from 1 to 2,048 ranks and from 360 to 2,560 pixels, and diff --html, in a real browser.

Screenshots are kept, small, in tests/golden/html, and compared with a tolerance for other fonts. DSCKPT_APPROVE=1
writes them again.
"""
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import zlib

import numpy

import cli_common
import tools
import torch_files
from browser import BrowserTest, Png, variables
from html_page import Page, rows_of

TESTS = pathlib.Path(__file__).resolve().parents[1]
KEPT = TESTS / "golden" / "html"
APPROVE = os.environ.get("DSCKPT_APPROVE") == "1"
MOST_BYTES = 400_000
BLOCK = 4  # pixels of a screenshot that are one of what is kept

# Windows: width and height.
WIDE, NARROW, HUGE = (1200, 3400), (360, 6000), (2560, 2400)


def write_png(path, pixels):
    height, width, _ = pixels.shape

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    raw = b"".join(b"\0" + pixels[y].tobytes() for y in range(height))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def pixels_of(png):
    rows = numpy.frombuffer(b"".join(png.rows), dtype=numpy.uint8)
    return rows.reshape(png.height, png.width, png.channels)[:, :, :3]


def smaller(pixels):
    """Means of blocks, in 32 shades: text becomes grey and small files stay small."""
    height, width = (size // BLOCK * BLOCK for size in pixels.shape[:2])
    blocks = pixels[:height, :width].reshape(height // BLOCK, BLOCK, width // BLOCK, BLOCK, 3).astype(float)
    return (blocks.mean(axis=(1, 3)) / 8).round().clip(0, 31).astype(numpy.uint8) * 8


class HtmlRanksTest(BrowserTest):
    scale = 0.5

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.pages = {}
        cls.holder = tempfile.TemporaryDirectory(prefix="dsckpt-html-")
        cls.shared = pathlib.Path(cls.holder.name).resolve()

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def checkpoint(self, stage, ranks):
        """A sparse checkpoint of Llama's 8 B parameters; the path does not depend on where the test runs."""
        name = f"llama-8b-z{stage}-{ranks}"
        folder = self.shared / name
        if name not in self.pages:
            subprocess.run([sys.executable, TESTS / "simulate" / "simulate.py", "write", "--model", "llama-8b", "--stage",
                            str(stage), "--dp", str(ranks), folder], check=True, capture_output=True)
            self.pages[name] = self.page_of(name, name, folder=self.shared)
        return self.pages[name]

    def page_of(self, name, *arguments, folder=None):
        """Run in `folder`, so that the page's title does not depend on where that is."""
        folder = folder or self.root
        page = folder / f"{name}.html"
        done = self.tool("ckpt-inspect", *arguments, "--html", page, cwd=folder)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        self.assertLess(page.stat().st_size, MOST_BYTES)
        return page

    def seen(self, page, size, dark=False):
        return self.screenshot(page, *size, f"--blink-settings=preferredColorScheme={0 if dark else 1}")

    def compare(self, name, picture, approve=APPROVE):
        shown, kept = smaller(pixels_of(picture)), KEPT / f"{name}.png"
        if approve:
            KEPT.mkdir(exist_ok=True)
            write_png(kept, shown)
        wanted = pixels_of(Png(kept.read_bytes()))
        self.assertEqual(shown.shape, wanted.shape, name)
        apart = numpy.abs(shown.astype(int) - wanted.astype(int)).max(axis=2)
        if apart.mean() >= 4 or (apart > 48).mean() >= 0.02:
            seen = pathlib.Path(os.environ.get("DSCKPT_SEEN", self.root)) / f"{name}.png"
            write_png(seen, shown)
            self.fail(f"{name}: not as {kept}: {apart.mean():.1f} apart, {(apart > 48).mean():.1%} far; see {seen}")

    def assert_fits(self, picture, page, dark=False):
        """Nothing is cut off at the sides, and the page ends."""
        colours = variables(Page(page.read_text()).root.one("style").text(), dark)
        self.assert_needs_no_scrolling_to_the_side(picture, colours["--page"], 5)
        self.assertEqual(set(zip(*[iter(picture.rows[-1])] * picture.channels)), {colours["--page"]}, "it goes on below")

    def test_a_thousand_ranks_fit_every_window(self):
        page = self.checkpoint(3, 1024)
        for name, size, dark in (("ranks_1024_wide", WIDE, False), ("ranks_1024_narrow", NARROW, False),
                                 ("ranks_1024_huge_dark", HUGE, True)):
            with self.subTest(name):
                picture = self.seen(page, size, dark)
                self.assert_fits(picture, page, dark)
                self.compare(name, picture)

    def test_one_rank_and_two_thousand(self):
        for ranks, stage in ((1, 3), (2048, 2)):
            page = self.checkpoint(stage, ranks)
            for name, size in ((f"ranks_{ranks}_wide", WIDE), (f"ranks_{ranks}_narrow", NARROW)):
                with self.subTest(name):
                    picture = self.seen(page, size)
                    self.assert_fits(picture, page)
                    self.compare(name, picture)

    def test_another_page_would_be_noticed(self):
        page = self.checkpoint(3, 1024)
        text = page.read_text()
        other = self.root / "other.html"
        other.write_text(text.replace('<section id="ranks">', '<section id="ranks" hidden>'))
        with self.assertRaises(AssertionError):
            self.compare("ranks_1024_wide", self.seen(other, WIDE), approve=False)

    def test_what_is_asked_first_comes_first(self):
        root = Page(self.checkpoint(3, 1024).read_text()).root
        self.assertEqual([section["id"] for section in root.all("section")],
                         ["facts", "kinds", "ranks", "modules", "memory", "conversions", "shards"])
        self.assertLess(len(root.all("tr")), 150)

    def test_ranks_that_stand_out_come_first(self):
        page = Page(self.checkpoint(2, 2048).read_text())
        first, *more = rows_of(page.section("ranks").one("table"))
        self.assertEqual((first[0].text(), more), ("dp 0 mp 0", []))
        sizes = [path.stat().st_size for path in (self.shared / "llama-8b-z2-2048").rglob("*rank_0_mp*.pt")]
        sizes += [path.stat().st_size for path in (self.shared / "llama-8b-z2-2048").rglob("mp_rank_00_model*.pt")]
        self.assertEqual(int(first[1]["data-bytes"]), sum(sizes))
        # The others are as high as the chart all the same, and the one has a cap.
        chart = page.section("ranks").one("svg", "columns")
        self.assertEqual(len(chart.all("rect", "cap")), 1)
        heights = [sum(float(rect["height"]) for rect in g.all("rect") if "cap" not in rect.classes())
                   for g in chart.all("g")]
        self.assertGreater(min(heights), 100)
        self.assertLessEqual(len(heights), 96)

    def test_parts_that_are_not_as_the_others_come_first(self):
        section = Page(self.checkpoint(2, 2048).read_text()).section("shards")
        strip = section.one("svg", "strip")
        self.assertLessEqual(len(strip.all("rect")), 128)
        self.assertAlmostEqual(sum(float(rect["width"][:-1]) for rect in strip.all("rect")), 100, delta=0.1)
        shades = [int(rect.classes()[0][1:]) for rect in strip.all("rect")]
        self.assertEqual(shades, sorted(shades))
        self.assertEqual((shades[0], shades[-1]), (0, 9))
        hidden = section.one("details")
        odd = [table for table in section.all("table") if table not in hidden.all("table")]
        counts = {row[2].text().split(" + ")[1] for table in odd for row in rows_of(table)}
        usual = {row[2].text().split(" + ")[1] for row in rows_of(hidden.one("table"))}
        self.assertEqual(len(usual), 1)
        self.assertEqual(counts & usual, set())

    def test_many_tensors_of_many_ranks_are_one_small_page(self):
        self.checkpoint(3, 1024)
        chosen = [f"model.layers.{layer}.mlp.{part}.weight" for layer in range(10) for part in ("up_proj", "down_proj")]
        page = self.page_of("chosen", "llama-8b-z3-1024", *(word for name in chosen for word in ("--param", name)),
                            folder=self.shared)
        shown = [title.text() for title in Page(page.read_text()).section("shards").all("h3")]
        self.assertEqual(shown, chosen)

    def test_values_that_are_no_numbers_come_first(self):
        values = {f"a{i:04}": torch_files.ones(4) for i in range(1000)}
        values["z"] = torch_files.tensor([1.0, float("nan")])
        torch_files.save_file(values, self.root / "values.safetensors")
        page = self.page_of("values", "values.safetensors", "--values")
        table = Page(page.read_text()).section("values").one("table")
        self.assertIn("z", rows_of(table)[0][0].text())

    # --- diff

    def two(self):
        """Weights of a model of forty layers that differ here and there."""
        random = numpy.random.default_rng(7)
        a = {}
        for layer in range(40):
            for part in ("attn.q_proj", "attn.k_proj", "attn.o_proj", "mlp.up_proj", "mlp.down_proj"):
                a[f"model.layers.{layer}.{part}.weight"] = torch_files.randn(16, 16, random=random)
            a[f"model.layers.{layer}.norm.weight"] = torch_files.ones(16)
        a["model.embed.weight"] = torch_files.randn(64, 16, random=random)
        a["lm_head.weight"] = torch_files.randn(64, 16, random=random)
        b = {name: value.clone() for name, value in a.items()}
        for layer in range(0, 40, 2):
            b[f"model.layers.{layer}.mlp.up_proj.weight"] += 1e-3 * random.standard_normal((16, 16))
        b["model.layers.7.attn.q_proj.weight"][3, 4] = 12.5
        b["model.embed.weight"] = b["model.embed.weight"].to("bfloat16")
        b["lm_head.weight"] = b["lm_head.weight"][:60].contiguous()
        del b["model.layers.39.norm.weight"]
        b["<b>new</b>.weight"] = torch_files.ones(3)
        (self.root / "before").mkdir(exist_ok=True)
        (self.root / "after").mkdir(exist_ok=True)
        torch_files.save_file(a, self.root / "before" / "model.safetensors")
        torch_files.save_file(b, self.root / "after" / "model.safetensors")
        return a, b

    def test_two_side_by_side(self):
        self.two()
        page = self.page_of("diff", "diff", "before", "after")
        for name, size, dark in (("diff_wide", (1200, 3000), False), ("diff_narrow", (360, 4400), False),
                                 ("diff_huge_dark", (2560, 2800), True)):
            with self.subTest(name):
                picture = self.seen(page, size, dark)
                self.assert_fits(picture, page, dark)
                self.compare(name, picture)

    def test_numbers_of_the_page_of_two_are_numpys(self):
        a, b = self.two()
        root = Page(self.page_of("diff", "diff", "before", "after").read_text()).root
        verdicts = {row[0].text(): int(row[1].text())
                    for row in rows_of([s for s in root.all("section") if s["id"] == "verdicts"][0].one("table"))}
        same = {name for name in a.keys() & b.keys() if a[name].shape == b[name].shape and a[name].dtype == b[name].dtype}
        equal = {name for name in same if torch_files.equal(a[name], b[name])}
        self.assertEqual(verdicts, {"bit-equal": len(equal), "other values": len(same - equal), "another type": 1,
                                    "another shape": 1, "only in A": 1, "only in B": 1})
        where, = (section for section in root.all("section") if section["id"] == "where")
        rows = [cells for table in where.all("table") for cells in rows_of(table)]
        self.assertEqual(len(rows), sum(verdicts.values()) - len(equal))
        largest, = (cells for cells in rows if "12.5" in cells[2].text())
        name = "model.layers.7.attn.q_proj.weight"
        self.assertAlmostEqual(float(largest[4].text()), abs(a[name].values - b[name].values).max(), places=4)
        self.assertEqual(largest[3].text(), "0.4 %")  # 1 of 256
        # The way to it is open, and to nothing else.
        opened = [each.all("summary")[0].one("span", "mono").text() for each in where.all("details")
                  if "open" in each.attributes]
        self.assertEqual(opened, ["model", "layers", "7"])
        self.assertNotIn("<b>", (self.root / "diff.html").read_text())

    def test_ten_thousand_tensors_that_differ_are_one_small_page(self):
        a = {f"model.layers.{i}.{name}": torch_files.full((2, ), value=float(i)) for i in range(1000)
             for name in ("q.weight", "k.weight", "v.weight", "o.weight", "a.b.c.d.e.f.weight", "bias", "u.weight",
                          "g.weight", "d.weight", "n.weight")}
        b = {name: value + 1 for name, value in a.items()}
        for name, values in (("many_a", a), ("many_b", b)):
            torch_files.save_file(values, self.root / f"{name}.safetensors")
        page = self.page_of("many", "diff", "many_a.safetensors", "many_b.safetensors")
        root = Page(page.read_text()).root
        self.assertIn("10,000", root.one("dl", "headline").text())
        self.assertIn("300 tensors that are furthest apart", root.text())

    def test_two_checkpoints_and_their_own_weights(self):
        """The same checkpoint in any form gives a page that says so."""
        case = tools.case_named("z2_bf16_full_w8")
        weights = self.new_path("weights")
        done = self.tool("zero-to-fp32", case.load_dir, weights, "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        root = Page(self.page_of("same", "diff", case.load_dir, weights, "--states").read_text()).root
        self.assertEqual(root.one("h1").text(), "The same")
        values = torch_files.load_file(weights / "model.safetensors")
        self.assertIn(f"{len(values)} tensors", root.one("header").text())
        done = self.tool("ckpt-inspect", "diff", case.load_dir, weights, "--html", self.root / "same.html", "--json")
        self.assertEqual(self.error_of(done, 2)["hint"], "--force replaces it")


if __name__ == "__main__":
    cli_common.main()
