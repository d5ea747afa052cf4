"""scripts/package_index.py writes what pip installs from, with the files' SHA-256."""
import hashlib
import importlib.util
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def write_wheel(folder, name, version):
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                                             "Requires-Python: >=3.6\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


class PackageIndexTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-index-")
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name).resolve()
        self.files = self.root / "files"
        self.files.mkdir()

    def index(self):
        return subprocess.run([sys.executable, ROOT / "scripts/package_index.py", self.files, self.files.as_uri(), self.root],
                              capture_output=True, text=True)

    def test_each_wheel_has_a_link_with_its_digest(self):
        wheels = [write_wheel(self.files, "dsckpt", "0.1.0"), write_wheel(self.files, "dsckpt_native", "0.1.0")]
        self.assertEqual(self.index().returncode, 0)
        names = re.findall(r'<a href="([^"/]+)/">', (self.root / "simple/index.html").read_text())
        self.assertEqual(names, ["dsckpt", "dsckpt-native"])
        for name, wheel in zip(names, wheels):
            page = (self.root / "simple" / name / "index.html").read_text()
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            self.assertIn(f'href="{wheel.as_uri()}#sha256={digest}" data-requires-python="&gt;=3.6"', page)

    @unittest.skipIf(importlib.util.find_spec("pip") is None, "needs pip")
    def test_pip_installs_from_it_and_refuses_another_file(self):
        wheel = write_wheel(self.files, "dsckpt", "0.1.0")
        self.assertEqual(self.index().returncode, 0)
        command = [sys.executable, "-m", "pip", "install", "--isolated", "--no-cache-dir", "--no-deps", "--index-url",
                   (self.root / "simple").as_uri(), "dsckpt", "--target"]
        done = subprocess.run([*command, self.root / "installed"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.root / "installed/dsckpt.py").exists())
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("more.py", "")
        self.assertNotEqual(subprocess.run([*command, self.root / "other"], capture_output=True).returncode, 0)

    def test_a_folder_without_wheels_is_an_error(self):
        done = self.index()
        self.assertEqual((done.returncode, done.stderr), (1, f"{self.files}: has no wheels\n"))


if __name__ == "__main__":
    unittest.main()
