"""ckpt-inspect --html: the page is whole and asks for nothing from elsewhere. Its numbers are those of the
checkpoint, found out with NumPy and plain reads."""
import math
import os
import re

import cli_common
import numpy
import tools
import torch_files
from cli_common import CliTest
from html_page import Page, rows_of, treemap_cells

CASES = ["z0_bf16_full_w2", "z1_bf16opt_full_w3", "z2_fp32_full_w3", "z2_bf16_full_w8", "z3_bf16_full_w6",
         "z3_fp32_full_w8", "hf_trainer_llama_z3_bf16_w2"]
HOSTILE = ["<script>alert(1)</script>.weight", "\"onload=\"x.'y'&amp;", "a\x00b\x1b[31m\n\tc", "]]><!--.x", "bad\udcff\ud800",
           "\u202eright-to-left", "\u0085\ufffe", "dots...", "", "x" * 5000, "a." * 500 + "z", "<svg/onload=1>.<b>"]


def case_named(name):
    case = tools.case_named(name)
    return case


def truth_of(case):
    """name -> tensor, without those that are another's: fp32 masters, the rest as stored."""
    left_out = case.frozen if case.facts["exclude_frozen_parameters"] else set()
    return {name: case.masters.get(name, stored) for name, stored in case.module.items()
            if name not in case.tied and name not in left_out}


class HtmlTest(CliTest):

    def report(self, source, *arguments):
        """The bytes of the page."""
        path = self.new_path("report")
        done = self.tool("ckpt-inspect", source, "--html", path, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path.read_bytes()

    def page(self, source, *arguments):
        return Page(self.report(source, *arguments).decode())

    def assert_asks_for_nothing(self, page, text):
        tags = {e.tag for e in page.root.walk()}
        self.assertFalse(tags & {"script", "link", "img", "iframe", "object", "embed", "image", "use", "a", "base",
                                 "form", "foreignobject", "animate", "set"}, tags)
        for element in page.root.walk():
            for name in element.attributes:
                self.assertFalse(name.startswith("on") or name in {"src", "href", "xlink:href", "style", "srcset"},
                                 (element.tag, name))
        self.assertNotRegex(page.root.one("style").text(), r"url\(|@import|expression")
        policy = [e["content"] for e in page.root.all("meta") if e.attributes.get("http-equiv")]
        self.assertEqual(policy, ["default-src 'none'; style-src 'unsafe-inline'"])

    def test_page_of_every_checkpoint_is_whole_and_asks_for_nothing(self):
        for case in tools.all_cases() + tools.model_parallel_cases():
            with self.subTest(case=case.name):
                if self.tool("ckpt-inspect", case.load_dir).returncode:
                    self.assertIn(case, tools.model_parallel_cases())  # there is no summary of some
                    continue
                text = self.report(case.load_dir).decode()
                page = Page(text)
                self.assert_asks_for_nothing(page, text)
                self.assertNotRegex(text, r"https?:|//[a-z]")
                for section in ("facts", "kinds", "modules", "shards", "memory", "conversions"):
                    self.assertIsNotNone(page.section(section), section)
                self.assertIsNone(page.section("values"))

    def test_bytes_by_kind_are_those_on_disk(self):
        for name in CASES:
            with self.subTest(case=name):
                case = case_named(name)
                page = self.page(case.load_dir)
                rows = rows_of(page.section("kinds").one("table"))
                kinds = {row[0].text(): int(row[1]["data-bytes"]) for row in rows}
                on_disk = sum(p.stat().st_size for p in case.tag_folder.glob("*.pt"))
                self.assertEqual(sum(kinds.values()), on_disk)
                masters = sum(t.nbytes for n, t in case.masters.items() if n not in case.tied)
                if case.stage:
                    self.assertEqual(kinds["fp32 masters"], masters)
                    if "exp_avg" in kinds:
                        self.assertEqual((kinds["exp_avg"], kinds["exp_avg_sq"]), (masters, masters))
                # The bar has the same proportions, in the same order.
                parts = page.section("kinds").one("svg", "bar").all("rect")
                self.assertEqual(len(parts), len(kinds))
                for part, size in zip(parts, kinds.values()):
                    self.assertAlmostEqual(float(part["width"][:-1]) / 100, size / on_disk, delta=1e-6)

    def test_ranks_have_the_bytes_of_their_files(self):
        case = case_named("z3_bf16_full_w6")
        rows = rows_of(self.page(case.load_dir).section("ranks").one("table"))
        self.assertEqual(len(rows), 6)
        for rank, (name, size, bar) in enumerate(rows):
            self.assertEqual(name.text(), f"dp {rank} mp 0")
            files = case.tag_folder.glob(f"*zero_pp_rank_{rank}_mp_rank_00_*.pt")
            self.assertEqual(int(size["data-bytes"]), sum(p.stat().st_size for p in files))

    def test_the_grid_has_a_line_a_stage_and_a_column_a_tensor_parallel_rank(self):
        self.assertIsNone(self.page(case_named("z3_fp32_full_w8").load_dir).section("grid"))
        compared = 0
        for case in tools.model_parallel_cases():
            pp, tp = case.facts["topology"]["pp"], case.facts["topology"]["tp"]
            if case.stage == 0 or pp * tp == 1 or case.name.startswith("autoep2_autotp2"):
                continue
            with self.subTest(case=case.name):
                rows = rows_of(self.page(case.load_dir).section("grid").one("table"))
                self.assertEqual([row[0].text() for row in rows], [str(stage) for stage in range(pp)])
                for stage, row in enumerate(rows):
                    # Expert-parallel ranks have other experts each, by the same names.
                    held = [{(name, rank["ep"] if ".deepspeed_experts." in name else 0): shape
                             for rank in case.facts["ranks"] if (rank["pp"], rank["tp"]) == (stage, each)
                             for name, shape in rank["param_shapes"].items()} for each in range(tp)]
                    self.assertEqual(int(row[2].text()), len(held[0]))
                    numels = [sum(math.prod(shape) for shape in shapes.values()) for shapes in held]
                    self.assertEqual([cell.elements() and cell.children[0] for cell in row[3:]],
                                     [f"{numel:,}" for numel in numels])
                    compared += 1
        self.assertTrue(compared)

    def test_areas_of_the_treemap_are_in_proportion_and_tile_it(self):
        for name in CASES:
            with self.subTest(case=name):
                case = case_named(name)
                cells = treemap_cells(self.page(case.load_dir))
                total = sum(t.nbytes for t in truth_of(case).values())
                self.assertEqual(sum(c.bytes for c in cells), total)
                for cell in cells:
                    self.assertAlmostEqual(cell.width * cell.height, cell.bytes / total, delta=2e-6)
                    self.assertGreaterEqual(min(cell.x, cell.y), 0)
                    self.assertLessEqual(max(cell.x + cell.width, cell.y + cell.height), 1 + 1e-6)
                for i, a in enumerate(cells):
                    for b in cells[:i]:
                        across = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
                        down = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
                        self.assertLess(min(across, down), 1e-6, (a.title, b.title))

    def test_cells_of_the_treemap_are_the_models_tensors(self):
        case = case_named("z2_fp32_full_w3")
        truth = {name: t.nbytes for name, t in truth_of(case).items()}
        seen = 0
        for cell in treemap_cells(self.page(case.load_dir)):
            if cell.name.startswith("small tensors in "):
                continue
            if cell.name in truth:
                seen += 1
                self.assertEqual(cell.bytes, truth[cell.name])
            else:  # folded layers
                pattern = r"\d+".join(map(re.escape, re.split(r"\[\d+-\d+\]", cell.name)))
                alike = [size for name, size in truth.items() if re.fullmatch(pattern, name)]
                self.assertEqual(cell.bytes, sum(alike))
        self.assertGreater(seen, 2)

    def parts(self, map_rows):
        """(file, first, count, offset, length) of each row of a shard map."""
        out = []
        for file, _record, elements, places in map_rows:
            numbers = [int(n.replace(",", "")) for cell in (elements, places)
                       for n in re.fullmatch(r"([\d,]+) \+ ([\d,]+)", cell.text()).groups()]
            out.append((file.text(), *numbers))
        return out

    def test_bytes_at_the_places_of_the_shard_map_are_the_tensor(self):
        for name in CASES:
            with self.subTest(case=name):
                case = case_named(name)
                truth = truth_of(case)
                chosen = sorted((n for n in truth if truth[n].numel()), key=lambda n: -truth[n].numel())[:2]
                page = self.page(case.load_dir, *(a for n in chosen for a in ("--param", n)))
                section = page.section("shards")
                self.assertEqual([h.text() for h in section.all("h3")], chosen)
                for tensor, table, bar in zip(chosen, section.all("table"), section.all("svg", "bar")):
                    parts = self.parts(rows_of(table))
                    data, at = b"", 0
                    for file, first, count, offset, length in parts:
                        self.assertEqual(first, at)
                        at += count
                        with open(case.tag_folder / file, "rb") as shard:
                            shard.seek(offset)
                            data += shard.read(length)
                    self.assertEqual(data, truth[tensor].tobytes())
                    rects = bar.all("rect")
                    self.assertEqual(len(rects), len(parts))
                    for rect, (_, first, count, *_) in zip(rects, parts):
                        self.assertAlmostEqual(float(rect["x"][:-1]) / 100, first / at, delta=1e-6)
                        self.assertAlmostEqual(float(rect["width"][:-1]) / 100, count / at, delta=1e-6)

    def test_largest_tensor_is_the_default_of_the_shard_map(self):
        case = case_named("z2_fp32_large_param_w8")
        truth = truth_of(case)
        shown = self.page(case.load_dir).section("shards").one("h3").text()
        self.assertEqual(truth[shown].nbytes, max(t.nbytes for t in truth.values()))

    def test_parts_in_turns_are_above_each_other(self):
        """Ranks that share a matrix by columns: the bar shows them as rows of a picture that has no gaps."""
        case = case_named("autotp2_dp1_z1_bf16")
        listed = self.json_lines(self.tool("ckpt-inspect", "list", case.load_dir, "--json").stdout)[0]["data"]["tensors"]
        turns = 0
        for tensor in listed:
            if len(tensor["shape"]) != 2 or "alias_of" in tensor:
                continue
            section = self.page(case.load_dir, "--param", tensor["name"]).section("shards")
            if "every" not in section.one("table").text():
                continue
            turns += 1
            rects = section.one("svg", "bar").all("rect")
            tall = float(section.one("svg", "bar")["height"])
            covered = sum(float(r["width"][:-1]) / 100 * float(r["height"]) for r in rects)
            self.assertAlmostEqual(covered, tall, delta=0.05)
            self.assertGreater(len({r["y"] for r in rects}), 1)
        self.assertGreater(turns, 0)

    def test_values_are_those_of_numpy(self):
        case = case_named("z2_bf16_full_w8")
        truth = truth_of(case)
        page = self.page(case.load_dir, "--values")
        rows = rows_of(page.section("values").one("table"))
        self.assertEqual({row[0].text().removesuffix(type_of(row)) for row in rows}, set(truth))
        for row in rows:
            name = row[0].text().removesuffix(type_of(row))
            value = truth[name].values.astype("f8").flatten()
            if value.size < 2:
                continue
            found = [float(cell.text()) for cell in row[2:7]]
            wanted = [value.min(), value.max(), value.mean(), value.std(ddof=1), numpy.linalg.norm(value)]
            for a, b in zip(found, wanted):
                self.assertAlmostEqual(a, float(b), delta=1e-5 * max(abs(float(b)), 1e-9) + 1e-9, msg=name)
            self.assertEqual([cell.text() for cell in row[8:]], ["0", "0"])

    def test_histogram_has_the_octaves_of_the_weights(self):
        case = case_named("z2_fp32_full_w3")
        page = self.page(case.load_dir, "--values")
        section = page.section("values")
        self.assertEqual([h.text() for h in section.all("h3")], ["weights", "exp_avg", "exp_avg_sq"])
        path = section.all("path")[0]["d"]
        bars = {int(x): float(tall) for x, tall in re.findall(r"M(\d+) 120v-([\d.]+)", path)}
        values = numpy.concatenate([t.values.astype("f8").flatten() for t in truth_of(case).values()])
        octave = numpy.frexp(values[values != 0])[1] - 1
        first = max(int(octave.min()), int(octave.max()) - 47)
        n = int(octave.max()) - first + 1
        wanted = {}
        for value in values.tolist():
            exponent = math.frexp(value)[1] - 1 - first
            x = n if value == 0 or exponent < 0 else n + 1 + exponent if value > 0 else n - 1 - exponent
            wanted[x] = wanted.get(x, 0) + 1
        self.assertEqual(set(bars), set(wanted))
        for x, count in wanted.items():
            self.assertAlmostEqual(bars[x], max(count / max(wanted.values()) * 120, 0.5), delta=0.06)

    def test_values_that_are_no_numbers_stand_out(self):
        source = self.new_path("weights")
        torch_files.save({"good": torch_files.ones(3), "bad": torch_files.tensor([1.0, float("nan"), float("inf"), -float("inf")])},
                   source)
        rows = rows_of(self.page(source, "--values").section("values").one("table"))
        counts = {row[0].text().split("float32")[0]: [cell.text() for cell in row[8:]] for row in rows}
        self.assertEqual(counts, {"good": ["0", "0"], "bad": ["1", "2"]})
        bad, = (row for row in rows if row[0].text().startswith("bad"))
        self.assertTrue(all("bad" in cell.classes() for cell in bad[8:]))

    def test_names_from_files_are_text_and_nothing_else(self):
        source = self.new_path("<b>weights &quot;")
        torch_files.save({name: torch_files.zeros(50 + i) for i, name in enumerate(HOSTILE)}, source)
        for options in ([], ["--values"]):
            text = self.report(source, *options).decode()  # strict: valid UTF-8
            page = Page(text)
            self.assert_asks_for_nothing(page, text)
            self.assertNotRegex(text, "[\u202a-\u202e\u2066-\u2069]")
            self.assertLess(len(text), 200_000)
            self.assertIn(source.name, page.root.one("h1").text())
            everything = page.root.text()
            for shown in ("<script>alert(1)</script>.weight", "\"onload=\"x.'y'&amp;", r"a\x00b\x1b[31m\n\tc", "]]><!--.x",
                          r"\u{202e}right-to-left", r"\u{0085}\u{fffe}", "bad\ufffd", "x…x", "<svg/onload=1>.<b>"):
                self.assertIn(shown, everything)

    def test_of_a_damaged_checkpoint_it_says_so_and_what_is_lost(self):
        scratch = self.scratch("z3_bf16_full_w6")
        gone = scratch.optim(4).name
        scratch.optim(4).unlink()
        path = self.new_path("report")
        done = self.tool("ckpt-inspect", scratch.folder, "--html", path)
        self.assertEqual(done.returncode, 1, done.stderr)
        page = Page(path.read_text())
        self.assertEqual(page.root.one("header").one("p").text(), "zero-3 checkpoint, damaged")
        notes = page.section("facts").one("ul", "notes").text()
        for words in ("damaged: ", f"lost: {scratch.tag.name}/{gone}: is missing", "lost in part: ",
                      f"ckpt-inspect verify {scratch.folder}", "--allow-missing"):
            self.assertIn(words, notes)
        self.assertNotIn("\\n", notes)

    def test_the_same_checkpoint_gives_the_same_bytes(self):
        case = case_named("z3_bf16_full_w6")
        plain = self.report(case.load_dir)
        self.assertEqual(plain, self.report(case.load_dir))
        values = self.report(case.load_dir, "--values")
        self.assertEqual(values, self.report(case.load_dir, "--values"))
        self.assertGreater(len(values), len(plain))

    def test_no_file_is_replaced_or_left_half_written(self):
        case = case_named("z2_fp32_full_w3")
        folder = self.new_path("reports")
        folder.mkdir()
        path = folder / "report.html"
        path.write_text("mine")
        done = self.tool("ckpt-inspect", case.load_dir, "--html", path, "--json")
        self.assertEqual(self.error_of(done, 2)["hint"], "--force replaces it")
        self.assertEqual(path.read_text(), "mine")
        self.assertEqual(self.tool("ckpt-inspect", case.load_dir, "--html", path, "--force").returncode, 0)
        Page(path.read_text())
        self.assertEqual(os.listdir(folder), ["report.html"])

    def test_what_cannot_be_done_is_refused_before_anything_is_written(self):
        case = case_named("z2_fp32_full_w3")
        path = self.new_path()
        for arguments in (["--html", path, "--param", "no.such"], ["--html", self.root], ["--values"],
                          ["--param", "x"], ["--force"]):
            done = self.tool("ckpt-inspect", case.load_dir, "--json", *arguments)
            self.error_of(done, 2)
        done = self.tool("ckpt-inspect", case.load_dir, "--json", "--html", self.root / "no" / "folder")
        self.error_of(done, 4)
        self.assertFalse(path.exists())


def type_of(row):
    """"float32 [131, 11]", the end of a row's first cell."""
    return row[0].all("span")[-1].text()


if __name__ == "__main__":
    cli_common.main()
