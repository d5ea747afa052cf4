"""The Python package's stubs against its functions, by mypy: stubtest over all of it, and calls that both take or
refuse."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

import dsckpt

SOURCE = pathlib.Path(os.environ["DSCKPT_SOURCE"])
TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
PACKAGE = SOURCE / "lib" / "python"
os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"

# torch's own types take mypy a minute.
SETTINGS = """
[mypy]
strict = true
ignore_missing_imports = true
[mypy-torch.*]
follow_imports = skip
"""

# The documented examples: right for mypy, and they run. `a` and `b` are checkpoints, `new` makes a path for an
# output.
TAKEN = [
    "dsckpt.convert(a, new(), safe_serialization=True, dtype='bf16', tag='global_step3', max_shard_size='2GB')",
    "dsckpt.convert(pathlib.Path(a), pathlib.Path(new()), include=['norm', 'ln'], force=True, dry_run=True)",
    "dsckpt.convert([a, b], new(), average=True)",
    "dsckpt.convert((a, pathlib.Path(b)), new(), average=True, weights=[0.25, 0.75])",
    "dsckpt.convert((path for path in (a, b)), new(), average=True)",
    "dsckpt.convert(a, new(), include={'norm', 'ln'}, progress=True)",
    "dsckpt.convert(a, new(), progress=False)",
    "dsckpt.convert(a, new(), progress=lambda done, total: None)",
    "dsckpt.to_universal(a, new(), progress=True)",
    "dsckpt.to_dcp(a, new(), dp=2, preset='accelerate', weights_only=True, progress=True)",
    "dsckpt.reshard(a, new(), dp=3, stage=2, progress=True)",
    "dsckpt.pack(a, new(), progress=True)",
    "dsckpt.strip(a, new(), keep='weights', progress=True)",
    "dsckpt.inspect(a, gpus=64)",
    "dsckpt.list_tensors(a, match='norm', states=True)",
    "dsckpt.stats(a, progress=True)",
    "dsckpt.verify(a, progress=True)['findings']",
    "dsckpt.verify(a, progress=None)",
    "dsckpt.diff(a, b, as_='float32', progress=True)['same']",
    "dsckpt.verify(a, b)[1]['ok']",
    "dsckpt.verify([a, b], finite=True)[1]['checks'][0]['done']",
    "dsckpt.verify(a, tag='all')[0]['notes']",
    "dsckpt.scan(a)['class']",
    "dsckpt.scan(a, pathlib.Path(b), allow='x')[1]['findings']",
    "dsckpt.scan([a, b])[1]['pickles'] + 1",
    "dsckpt.average([a, b], new(), weights=[1, 3])['files'][0]['path'].upper()",
    "dsckpt.convert(a, new(), dry_run=True)['notes']",
    "dsckpt.html(a, new(), values=True)['form']",
    "dsckpt.tree(a)['children'][0]['tensors'] + 1",
    "dsckpt.where(a, 'gain', state='exp_avg')['extents'][0]['offset'] + 1",
    "dsckpt.print(a, 'gain', '[0]')['values']",
    "found: dsckpt.results.Verification = dsckpt.verify(a)",
    "warnings.simplefilter('ignore', dsckpt.DsckptWarning)",
    "dsckpt.open(a)['gain'].files",
    "dsckpt.open(a, tag=None, roots=[], framework='np', check='later')['gain'].numpy()",
    "dsckpt.open(a, framework='np', mmap=True).state_dict(['gain'], progress=True)",
    "dsckpt.open(a, framework='np').state_dict(progress=lambda done, total: None)",
    "dsckpt.open(a, framework='np').state_dict(states=True)['gain']['exp_avg']",
    "next(dsckpt.open(a, framework='np', dtype='fp16').iter_batches(bytes=1000, dtype='fp32'))",
    "(dsckpt.open(a).step or 0) + (dsckpt.open(a).stage or 0) + (dsckpt.open(a).ranks or 0)",
    "(dsckpt.open(a).tag or '').upper() + str(dsckpt.open(a).metadata['mesh']['dp'])",
    "dsckpt.open(a, device='cpu')['gain'].ndim + 1",
]

# Arguments that neither takes: an error of mypy in each line, and one of these when it runs.
REFUSED = [
    ("dsckpt.convert(a)", TypeError),
    ("dsckpt.convert(a, new(), progress='bar')", ValueError),
    ("dsckpt.convert(a, new(), safe_serialisation=True)", ValueError),
    ("dsckpt.convert(a, new(), dtype='float8')", ValueError),
    ("dsckpt.reshard(a, new(), dp='two')", ValueError),
    ("dsckpt.verify(a)['healthy']", KeyError),
    ("dsckpt.open(a, dtype='int8')", ValueError),
    ("dsckpt.scan()", TypeError),
    ("dsckpt.strip(a, new())", TypeError),
    ("dsckpt.open(a, framework='tf')", ValueError),
    ("dsckpt.open(a, check='never')", ValueError),
    ("dsckpt.open(a, mapped=True)", TypeError),
    ("dsckpt.open(a).state_dict(progress=1.5)", ValueError),
    ("dsckpt.no_such_function(a)", AttributeError),
]

HEAD = """
import pathlib
import warnings
import dsckpt
a = "z1"
b = "z2"
def new() -> str: return ""
"""


class TypesTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.settings = self.folder / "mypy.ini"
        self.settings.write_text(SETTINGS)

    def run_mypy(self, *arguments):
        done = subprocess.run([sys.executable, "-m", *map(str, arguments)], cwd=self.folder, capture_output=True,
                              text=True, env={**os.environ, "MYPYPATH": str(PACKAGE), "PYTHONPATH": str(PACKAGE)})
        return done.returncode, done.stdout + done.stderr

    def problems(self, text):
        """Messages of mypy by line, of a program that has `text`."""
        program = self.folder / "program.py"
        program.write_text(text)
        _, said = self.run_mypy("mypy", "--config-file", self.settings, "--no-error-summary", program)
        found = {}
        for line in said.splitlines():
            place = re.fullmatch(r"program\.py:(\d+): (?:error|note): (.*)", line)
            self.assertTrue(place, said)
            found.setdefault(int(place[1]), []).append(place[2])
        return found

    def test_stubs_are_what_runs(self):
        status, said = self.run_mypy("mypy.stubtest", "dsckpt", "--mypy-config-file", self.settings)
        self.assertEqual(status, 0, said)

    def test_documents_are_right(self):
        for path in (SOURCE / "README.md", PACKAGE / "README.md"):
            blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
            self.assertTrue(blocks)
            with self.subTest(path.name):
                self.assertEqual(self.problems("import dsckpt\n" + "".join(blocks)), {})

    def test_what_is_taken(self):
        self.assertEqual(self.problems(HEAD + "\n".join(TAKEN)), {})
        for call in TAKEN:
            with self.subTest(call):
                self.run_call(call)

    def test_what_is_refused(self):
        before = HEAD.count("\n") + 1
        found = self.problems(HEAD + "\n".join(call for call, _ in REFUSED))
        self.assertEqual(sorted(found), list(range(before, before + len(REFUSED))), found)
        for call, kind in REFUSED:
            with self.subTest(call), self.assertRaises(kind):
                self.run_call(call)

    def run_call(self, call):
        def new():
            new.count += 1
            return str(self.folder / f"{abs(hash(call))}.{new.count}")

        new.count = 0
        names = {"dsckpt": dsckpt, "pathlib": pathlib, "warnings": warnings, "new": new}
        for name, case in (("a", "z1_fp32_w2"), ("b", "z2_bf16_w2")):
            names[name] = str(TESTDATA / "checkpoints" / case / "ckpt")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dsckpt.DsckptWarning)
            exec(call, names)


if __name__ == "__main__":
    unittest.main()
