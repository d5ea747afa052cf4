"""The Python package finds the program that was installed with it, wherever pip puts both.

The wheel is one of this source and of the built program, as scripts/package makes one of the static program.
pip installs it, and it is used from an empty environment.
"""
import base64
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import unittest
import zipapp
import zipfile

SOURCE = pathlib.Path(os.environ["DSCKPT_SOURCE"])
PACKAGE = SOURCE / "lib" / "python" / "dsckpt"
PROGRAM = pathlib.Path(os.environ["DSCKPT_BIN"]) / "dsckpt"
CHECKPOINT = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "checkpoints" / "z1_fp32_w2" / "ckpt"

# Prints where the program is, after using it.
USE = f"import dsckpt, dsckpt._tool; assert dsckpt.verify({str(CHECKPOINT)!r})['ok']; print(dsckpt._tool.program())"


def make_wheel(folder):
    """As PEP 427 has it: scripts are in NAME-VERSION.data/scripts."""
    wheel = folder / "dsckpt-0.0.1-py3-none-any.whl"
    entries = {f"dsckpt/{path.name}": path.read_bytes() for path in PACKAGE.iterdir() if path.is_file()}
    entries["dsckpt-0.0.1.data/scripts/dsckpt"] = PROGRAM.read_bytes()
    entries["dsckpt-0.0.1.dist-info/METADATA"] = b"Metadata-Version: 2.1\nName: dsckpt\nVersion: 0.0.1\n"
    entries["dsckpt-0.0.1.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n"
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in entries.items())
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(info, data)
        archive.writestr("dsckpt-0.0.1.dist-info/RECORD", record + "dsckpt-0.0.1.dist-info/RECORD,,\n")
    return wheel


class PlaceTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.wheel = make_wheel(pathlib.Path(folder.name))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(os.path.realpath(folder.name))

    def pip(self, *arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([sys.executable, "-m", "pip", *arguments, "-q", "--disable-pip-version-check"],
                       check=True, capture_output=True, env={**environment, **variables})

    def install(self, *arguments, python=None, **variables):
        options = ["--python", str(python)] if python else []
        self.pip(*options, "install", "--no-index", "--no-deps", *map(str, arguments), str(self.wheel), **variables)

    def venv(self, name="venv"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.root / name], check=True)
        return self.root / name / "bin" / "python"

    def found(self, python=sys.executable, program=("-c", USE), **variables):
        done = subprocess.run([python, *program], capture_output=True, text=True, cwd="/",
                              env={"TMPDIR": str(self.root), **variables})
        self.assertEqual(done.returncode, 0, done.stderr)
        return pathlib.Path(done.stdout.strip())

    def refusal(self, **variables):
        done = subprocess.run([sys.executable, "-c", USE], capture_output=True, text=True, cwd="/",
                              env={"PATH": "/usr/bin:/bin", **variables})
        self.assertEqual(done.returncode, 1, done.stdout)
        return done.stderr

    def test_a_virtual_environment(self):
        python = self.venv()
        self.install(python=python)
        self.assertEqual(self.found(python), self.root / "venv" / "bin" / "dsckpt")
        linked = self.root / "linked"
        linked.symlink_to("venv")
        self.assertEqual(self.found(linked / "bin" / "python"), self.root / "venv" / "bin" / "dsckpt")
        shutil.rmtree(next(self.root.glob("venv/lib/*/site-packages/dsckpt-*.dist-info")))
        self.assertEqual(self.found(python), self.root / "venv" / "bin" / "dsckpt")

    def test_a_link_to_a_virtual_environments_python(self):
        self.install(python=self.venv())
        (self.root / "python").symlink_to(self.root / "venv" / "bin" / "python")
        packages, = self.root.glob("venv/lib/*/site-packages")
        self.assertEqual(self.found(self.root / "python", PYTHONPATH=str(packages)),
                         self.root / "venv" / "bin" / "dsckpt")

    def test_a_target(self):
        self.install("--target", self.root / "target")
        self.assertEqual(self.found(PYTHONPATH=str(self.root / "target")), self.root / "target" / "bin" / "dsckpt")
        self.install("--target", self.root / "target", "--upgrade")
        linked = self.root / "linked"
        linked.symlink_to("target")
        self.assertEqual(self.found(PYTHONPATH=str(linked)), self.root / "target" / "bin" / "dsckpt")

    def test_a_prefix(self):
        self.install("--prefix", self.root / "prefix")
        packages, = (path.parent for path in (self.root / "prefix").rglob("dsckpt/__init__.py"))
        program, = (path for path in (self.root / "prefix").rglob("bin/dsckpt"))
        self.assertEqual(self.found(PYTHONPATH=str(packages.parent)), program)

    def test_a_user(self):
        # The base Python, which has no virtual environment.
        python = os.path.join(sys.base_prefix, "bin", f"python{sysconfig.get_python_version()}")
        self.install("--user", "--break-system-packages", python=python, PYTHONUSERBASE=str(self.root / "user"))
        self.assertEqual(self.found(python, PYTHONUSERBASE=str(self.root / "user")), self.root / "user" / "bin" / "dsckpt")

    def test_a_source_that_is_edited(self):
        """As editable installations are: the record and the program are installed, and a .pth names the source."""
        python = self.venv()
        self.install(python=python)
        packages, = self.root.glob("venv/lib/*/site-packages")
        shutil.rmtree(packages / "dsckpt")
        (packages / "dsckpt.pth").write_text(f"{PACKAGE.parent}\n")
        self.assertEqual(self.found(python), self.root / "venv" / "bin" / "dsckpt")

    def test_an_archive(self):
        self.install("--target", self.root / "target")
        (self.root / "target" / "__main__.py").write_text(USE + "\n")
        zipapp.create_archive(self.root / "target", self.root / "app.pyz")
        shutil.rmtree(self.root / "target")
        program = self.found(program=[self.root / "app.pyz"])
        self.assertEqual(program.parent.parent, self.root)
        self.assertEqual([path.name for path in self.root.iterdir()], ["app.pyz"])  # it has gone with the process

    def test_each_package_has_its_own(self):
        for name in ("a", "b"):
            self.install("--target", self.root / name)
        for first, second in (("a", "b"), ("b", "a")):
            path = f"{self.root / first}:{self.root / second}"
            self.assertEqual(self.found(PYTHONPATH=path), self.root / first / "bin" / "dsckpt")
            path = f"{PACKAGE.parent}:{self.root / second}"  # a source has none of its own
            self.assertEqual(self.found(PYTHONPATH=path), self.root / second / "bin" / "dsckpt")

    def test_path_comes_last(self):
        self.assertEqual(self.found(PYTHONPATH=str(PACKAGE.parent), PATH=str(PROGRAM.parent)), PROGRAM)
        self.install("--target", self.root / "target")
        self.assertEqual(self.found(PYTHONPATH=str(self.root / "target"), PATH=str(PROGRAM.parent)),
                         self.root / "target" / "bin" / "dsckpt")

    def test_what_is_missing_is_said(self):
        self.assertIn("neither beside this package nor in PATH", self.refusal(PYTHONPATH=str(PACKAGE.parent)))
        self.install("--target", self.root / "target")
        program = self.root / "target" / "bin" / "dsckpt"
        program.chmod(0o644)
        self.assertIn(f"{program}: may not be executed", self.refusal(PYTHONPATH=str(self.root / "target")))
        program.unlink()
        self.assertIn("neither beside", self.refusal(PYTHONPATH=str(self.root / "target")))


if __name__ == "__main__":
    unittest.main()
