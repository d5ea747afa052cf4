"""scripts/check_includes.py sees each kind of broken rule, and only those."""

import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "check_includes.py")

CLEAN = {
    "lib/base/error.h": "#include <string>\n",
    "lib/io/input_file.h": '#include "base/error.h"\n',
    "lib/plan/copy_plan.h": '#include "base/error.h"\n',
    "lib/format/zip.h": '#include "io/input_file.h"\n#include "plan/copy_plan.h"\n',
    "lib/checkpoint/checkpoint.h": '#include "format/zip.h"\n',
    "lib/job/run.h": '#include "format/zip.h"\n',
    "lib/reshard/target.h": '#include "job/run.h"\n',
    "lib/dsckpt/job.h": "#include <string>\n",
    "lib/exec/executor.h": '#include "plan/copy_plan.h"\n#include "io/input_file.h"\n',
    "lib/job/job.h": '#include "checkpoint/checkpoint.h"\n#include "exec/executor.h"\n',
    "lib/dsckpt/torch.h": "#include <ATen/core/TensorBody.h>\n",
    "apps/cli/cli.cpp": '#include "job/job.h"\nvoid quit() { std::exit(1); }\n',
    "apps/cli/cli.h": "",
    "apps/tool.cpp": '#include "cli/cli.h"\nint main() {}\n',
}


def check(**changes):
    """Runs the script on CLEAN with some files replaced or added; returns (exit code, output)."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**CLEAN, **changes.get("files", {})}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        run = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr


class CheckIncludes(unittest.TestCase):
    def refused(self, path, text, complaint):
        code, output = check(files={path: text})
        self.assertEqual(code, 1, output)
        self.assertIn(complaint, output)
        self.assertEqual(len(output.splitlines()), 1, output)

    def accepted(self, path, text):
        self.assertEqual(check(files={path: text}), (0, ""))

    def test_clean_tree(self):
        self.assertEqual(check(), (0, ""))

    def test_upward(self):
        self.refused("lib/base/x.h", '\n#include "io/input_file.h"\n',
                     "lib/base/x.h:2: base/ may not include io/")

    def test_siblings(self):
        self.refused("lib/exec/x.h", '#include "checkpoint/checkpoint.h"\n',
                     "exec/ may not include checkpoint/")
        self.refused("lib/weights/x.h", '#include "reshard/target.h"\n',
                     "weights/ may not include reshard/")

    def test_public_headers(self):
        self.refused("lib/dsckpt/x.h", '#include "base/error.h"\n',
                     "dsckpt/ may not include base/")
        self.accepted("lib/base/x.h", '#include "dsckpt/job.h"\n')
        self.refused("lib/libtorch/x.h", '#include "io/input_file.h"\n',
                     "libtorch/ may not include io/")

    def test_exec_knows_no_format(self):
        self.refused("lib/exec/x.h", '#include "format/zip.h"\n', "exec/ may not include format/")

    def test_layer_includes_use_case(self):
        self.refused("lib/exec/x.cpp", '#include "job/run.h"\n', "exec/ may not include job/")

    def test_pairs_of_header_and_source(self):
        files = {"lib/io/a.h": "", "lib/io/b.h": '#include "io/a.h"\n', "lib/io/a.cpp": '#include "io/a.h"\n#include "io/b.h"\n'}
        code, output = check(files=files)
        self.assertEqual(code, 1)
        self.assertEqual(output.strip(), "lib/io/a: needs itself, with header and source: lib/io/a -> lib/io/b -> lib/io/a")
        self.assertEqual(check(files={**files, "lib/io/a.cpp": '#include "io/a.h"\n'}), (0, ""))
        # The tests and the tools are not a library.
        files = {path.replace("lib/io", "tests"): text.replace("io/", "") for path, text in files.items()}
        self.assertEqual(check(files=files), (0, ""))

    def test_opens_for_writing(self):
        for text in ("int fd = ::open(path, O_WRONLY | O_CREAT, 0666);", "int fd = ::openat(at, path, O_RDWR);",
                     "std::ofstream file(path);", "std::fstream file(path);", "FILE* file = fopen(path, mode);",
                     "int fd = ::mkostemp(name, O_CLOEXEC);", "mkdtemp(name);", "::mkstemp(name);",
                     "fs::copy_file(a, b);", "std::filesystem::create_symlink(a, b);", "::creat(path, 0666);",
                     "::truncate(path, 0);", "::fchmod(fd, 0644);"):
            for path in ("lib/exec/x.cpp", "lib/io/x.cpp", "apps/x.cpp"):
                with self.subTest(text=text, path=path):
                    self.refused(path, text + "\n", f"{path}:1: only lib/io/folder.cpp opens files for writing")
            self.accepted("lib/io/folder.cpp", text + "\n")
            self.accepted("tests/x.cpp", text + "\n")
        for text in ("int fd = ::open(path, O_RDONLY | O_CLOEXEC);", "std::ifstream file(path);", "// O_CREAT\n",
                     "#include <fstream>\n", "Checkpoint::open(path);", "file.truncate(3);"):
            self.accepted("lib/exec/x.cpp", text + "\n")

    def test_missing_file(self):
        self.refused("lib/io/x.h", '#include "input_file.h"\n', "does not exist")

    def test_unknown_folder(self):
        self.refused("lib/misc/x.h", "\n", "lib/misc/ is not a layer")

    def test_circle(self):
        code, output = check(files={"lib/base/a.h": '#include "base/b.h"\n',
                                    "lib/base/b.h": '#include "base/a.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn("lib/base/a.h -> lib/base/b.h -> lib/base/a.h", output)

    def test_libtorch(self):
        self.refused("lib/format/x.cpp", "#include <torch/torch.h>\n", "may include LibTorch")
        self.refused("apps/x.cpp", '#include "dsckpt/torch.h"\n', "may include dsckpt/torch.h")
        self.accepted("tests/oracle/x.cpp", "#include <ATen/ATen.h>\n")

    def test_printing(self):
        for text in ("std::cout << 1;", "std::cerr << 1;", "std::printf(\"\");", "printf (\"\");",
                     "std::fputs(s, stdout);", "fprintf(stderr, s);"):
            self.refused("lib/io/x.cpp", f"void f() {{ {text} }}\n", "lib/ may not print")

    def test_ending_the_process(self):
        for text in ("exit(1);", "std::exit(1);", "std::abort();", "::_exit(1);",
                     "std::terminate();"):
            self.refused("lib/io/x.cpp", f"void f() {{ {text} }}\n", "may end the process")
        self.refused("apps/x.cpp", "int main() { exit(1); }\n", "may end the process")

    def test_tables_by_texts(self):
        for text in ("std::unordered_map<std::string, int> a;", "std::unordered_set<std::string_view> a;",
                     "std::unordered_multimap<\n    const std::string, int> a;"):
            self.refused("lib/io/x.cpp", text + "\n", "KeyedMap and KeyedSet are for texts")
            self.refused("apps/x.cpp", text + "\n", "KeyedMap and KeyedSet are for texts")
        self.accepted("lib/io/x.cpp", "std::unordered_map<const void*, std::string> a;\n")
        self.accepted("lib/io/x.cpp", "KeyedMap<std::string, int> a;\nstd::map<std::string, int> b;\n")

    def test_what_only_looks_like_it(self):
        self.accepted("lib/io/x.cpp", "// std::cout, exit(1)\n/* abort() */\n"
                      'const char* s = "printf(\\"stdout\\")";\nchar c = \'"\'; int n = 1\'000;\n'
                      "// it's\nconst char* r = R\"(exit(1) \" std::cerr)\";\n"
                      "void f(char* b) { std::snprintf(b, 1, \"\"); x.exit(); on_exit(1); }\n")
        self.accepted("lib/base/x.h", '// #include "io/input_file.h"\n')


if __name__ == "__main__":
    unittest.main()
