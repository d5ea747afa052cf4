"""scripts/draw_layers.py draws what is included, the same each time, and refuses includes out of order."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "draw_layers.py"
SVG = "{http://www.w3.org/2000/svg}"
SOURCES = {
    "lib/base/error.h": "\n" * 100,
    "lib/io/file.h": '#include "base/error.h"\n',
    "lib/format/zip.cpp": '#include "io/file.h"\n#include "base/error.h"\n#include <vector>\n' + "\n" * 2997,
    "lib/format/parts/pickle.h": '#include "format/zip.h"\n',
    "lib/format/zip.h": "",
    "apps/cli/cli.h": "",
    "apps/tool/main.cpp": '#include "cli/cli.h"\n#include "format/parts/pickle.h"\n#include "io/file.h"\n',
}


class Library(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)
        self.write(SOURCES)

    def write(self, files):
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    def run_script(self, *arguments, seed="0"):
        return subprocess.run([sys.executable, SCRIPT, "--root", self.root, *arguments], capture_output=True, text=True,
                              env={**os.environ, "PYTHONHASHSEED": seed})

    def picture(self, seed="0"):
        done = self.run_script(seed=seed)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return (self.root / "lib/layers.svg").read_text()

    def refused(self, files, pattern):
        self.write(files)
        for arguments in ([], ["--check"]):
            done = self.run_script(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, pattern)
        self.assertFalse((self.root / "lib/layers.svg").exists())

    def test_modules_stand_above_what_they_include(self):
        tree = xml.etree.ElementTree.fromstring(self.picture())
        modules = [node for node in tree.iter(f"{SVG}rect") if node.get("class", "").startswith("module")]
        names = [node.text for node in tree.iter(f"{SVG}text") if node.get("class") is None]
        self.assertEqual(names, ["apps", "base", "format", "io"])
        found = {name: module.get("class").split()[1] for name, module in zip(names, modules)}
        self.assertEqual(found, {"base": "f0", "io": "f1", "format": "f2", "apps": "f3"})
        height = {name: float(module.get("y")) for name, module in zip(names, modules)}
        self.assertEqual(sorted(names, key=height.get), ["apps", "format", "io", "base"])
        width = {name: int(module.get("width")) for name, module in zip(names, modules)}
        self.assertGreater(width["format"], width["base"])

    def test_only_arrows_that_do_not_follow_from_others_are_drawn(self):
        # apps -> format -> io -> base; apps -> io and format -> base follow.
        tree = xml.etree.ElementTree.fromstring(self.picture())
        self.assertEqual(sum(node.get("class") == "arrow" for node in tree.iter(f"{SVG}path")), 3)

    def test_the_same_sources_give_the_same_picture(self):
        self.assertEqual(self.picture(seed="1"), self.picture(seed="2"))

    def test_nothing_of_the_machine_is_in_it(self):
        self.assertNotIn(str(self.root), self.picture())

    def test_a_picture_that_is_not_current_fails_the_check(self):
        self.assertEqual(self.run_script("--check").returncode, 1)
        self.picture()
        self.assertEqual(self.run_script("--check").returncode, 0)
        self.write({"lib/io/other.h": ""})
        self.assertEqual(self.run_script("--check").returncode, 0)
        self.write({"lib/codec/frame.h": '#include "base/error.h"\n'})
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("not current", done.stderr)
        self.picture()
        self.assertEqual(self.run_script("--check").returncode, 0)

    def test_a_circle_of_modules_is_refused(self):
        self.refused({"lib/base/bad.h": '#include "io/file.h"\n'}, "a circle: .*base.* -> ")

    def test_a_circle_of_modules_through_several_folders_is_refused(self):
        # No two folders include each other in a circle, but the modules do.
        self.refused({"lib/base/parts/bad.h": '#include "format/zip.h"\n'}, "a circle: ")

    def test_a_circle_within_a_module_is_refused(self):
        self.refused({"lib/format/bad.h": '#include "format/parts/pickle.h"\n'}, "a circle: .*lib/format/parts")

    def test_an_arrow_up_is_refused(self):
        self.refused({"lib/io/bad.h": '#include "../apps/cli/cli.h"\n'}, "an arrow up: lib/io/bad.h includes")

    def test_too_many_modules_are_refused(self):
        self.refused({f"lib/module{i}/a.h": "" for i in range(20)}, "23 modules in lib/; 22 are allowed")

    def test_twenty_one_modules_are_not(self):
        self.write({f"lib/module{i}/a.h": "" for i in range(18)})
        self.assertEqual(self.run_script().returncode, 0)

    def test_modules_of_a_layer_have_room(self):
        self.write({f"lib/module{i}/a.h": "\n" * 500 * i for i in range(16)})
        tree = xml.etree.ElementTree.fromstring(self.picture())
        places = {}
        for node in tree.iter(f"{SVG}rect"):
            if node.get("class", "").startswith("module"):
                places.setdefault(node.get("y"), []).append((int(node.get("x")), int(node.get("width"))))
        self.assertEqual(max(map(len, places.values())), 17)
        for layer in places.values():
            layer.sort()
            self.assertGreater(layer[0][0], 0)
            self.assertLess(sum(layer[-1]), int(tree.get("width")))
            for (x, width), (next_x, _) in zip(layer, layer[1:]):
                self.assertLess(x + width, next_x)

    def test_too_many_layers_are_refused(self):
        self.refused({f"lib/r{i}/a.h": f'#include "r{i - 1}/a.h"\n' if i else "" for i in range(11)},
                     "11 layers; 10 are allowed")


if __name__ == "__main__":
    unittest.main()
