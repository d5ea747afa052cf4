"""Outputs among the inputs, and paths that are empty: every tool says what is true of them, and touches nothing."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["DSCKPT_BIN"])
CASE = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "checkpoints" / "z2_bf16_w2" / "ckpt"
TAG = "global_step3"
# With IN for what is read and OUT for the output.
COMMANDS = {
    "zero-to-fp32": ["zero-to-fp32", "IN", "OUT"],
    "to-universal": ["to-universal", "IN", "OUT"],
    "reshard": ["reshard", "IN", "OUT", "--dp", "3"],
    "to-dcp": ["to-dcp", "IN", "OUT", "--dp", "2"],
    "pack": ["ckpt-pack", "pack", "IN", "OUT"],
    "unpack": ["ckpt-pack", "unpack", "IN", "OUT"],
    "strip": ["ckpt-pack", "strip", "IN", "OUT", "--keep", "weights"],
}
CLAIM = re.compile(r"error: (.+): (is|lies inside|holds) (the .+|where .+)")
# The names of values that are paths; "--key PATH" is one into a pickle.
PATHS = {"DIR", "FILE", "CHECKPOINT", "WEIGHTS", "REPORT"}
SUBCOMMANDS = {"ckpt-inspect": ["", "browse", "tree", "list", "where", "print", "raw", "stats", "verify", "diff",
                                "scan"],
               "ckpt-pack": ["pack", "unpack", "strip", "estimate"]}
TOOLS = ["zero-to-fp32", "to-universal", "reshard", "to-dcp", "ckpt-inspect", "ckpt-pack"]


def run(*words, folder):
    tool, *arguments = map(str, words)
    return subprocess.run([BIN / tool, *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", timeout=120)


def contents(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            for path in folder.rglob("*")}


class WrongPathsTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-paths-")
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name).resolve()
        shutil.copytree(CASE, self.root / "run" / "ckpt")
        for words in (["zero-to-fp32", CASE, self.root / "hf" / "weights", "--safe-serialization"],
                      ["to-universal", CASE, self.root / "of" / "universal"]):
            self.assertEqual(run(*words, folder=self.root).returncode, 0)

    def refused(self, words):
        """The output, what is said of it, and of what; None if the command did it."""
        before = contents(self.root)
        done = run(*words, folder=self.root)
        if done.returncode == 0:
            return None
        self.assertEqual(done.returncode, 2, (words, done.stderr))
        self.assertEqual(contents(self.root), before)
        claim = CLAIM.search(done.stderr)
        self.assertTrue(claim, (words, done.stderr))
        return claim.groups()

    def check_claim(self, output, source, claim):
        """The messages are true of the input, or of the folder with the shards in it."""
        named, relation, what = claim
        self.assertEqual(named, str(output))
        output = (self.root / output).resolve()
        folder = (self.root / source).resolve()
        if "shards" in what and folder.name != TAG:
            folder /= TAG
        is_true = {"is": output == folder, "lies inside": folder in output.parents, "holds": output in folder.parents}
        self.assertTrue(is_true[relation], (output, claim, folder))
        # It is of the kind that it is said to be.
        of_kind = {"shards": any(folder.glob("*_states.pt")), "weights": (folder / "model.safetensors").exists(),
                   "universal": (folder / "zero").is_dir(), "input": True}
        kind, = (kind for kind in of_kind if kind in what)
        self.assertTrue(of_kind[kind], (claim, folder))

    def check_outputs(self, source, outputs, commands=COMMANDS):
        refused = 0
        for name in commands:
            for output in outputs:
                for force in ([], ["--force"]):
                    words = [{"IN": source, "OUT": output}.get(word, word) for word in COMMANDS[name]] + force
                    with self.subTest(" ".join(words)):
                        before = contents(self.root)
                        claim = self.refused(words)
                        if claim is None:  # weights beside a checkpoint
                            self.assertTrue(name == "zero-to-fp32" or output.endswith("/new"), words)
                            now = contents(self.root)
                            self.assertEqual({path: now.get(path) for path in before}, before)
                            self.setUp()
                        else:
                            refused += 1
                            self.check_claim(output, source, claim)
        self.assertGreater(refused, 0)

    def test_of_a_checkpoint(self):
        self.check_outputs("run/ckpt", ["run/ckpt", f"run/ckpt/{TAG}", f"run/ckpt/{TAG}/new", "run/ckpt/new", "run"])

    def test_of_a_tags_own_folder(self):
        self.check_outputs(f"run/ckpt/{TAG}", ["run/ckpt", f"run/ckpt/{TAG}", f"run/ckpt/{TAG}/new", "run"])

    def test_of_weights_and_universal_checkpoints(self):
        self.check_outputs("hf/weights", ["hf/weights", "hf/weights/new"], ["zero-to-fp32", "to-universal", "pack"])
        self.check_outputs("of/universal", ["of/universal", "of/universal/new"], ["zero-to-fp32", "pack", "unpack"])

    def test_of_what_gives_other_values(self):
        like = ["reshard", "run/ckpt", "OUT", "--dp", "3", "--like", "other"]
        shutil.copytree(CASE, self.root / "other")
        for output in (f"other/{TAG}", f"other/{TAG}/new", "other"):
            claim = self.refused([output if word == "OUT" else word for word in [*like, "--force"]])
            self.check_claim(output, "other", claim)
        weights = ["reshard", "run/ckpt", "OUT", "--dp", "3", "--weights-from", "hf/weights", "--force"]
        for output, relation in (("hf/weights", "is"), ("hf/weights/new", "lies inside"), ("hf", "holds")):
            claim = self.refused([output if word == "OUT" else word for word in weights])
            self.assertEqual(claim, (output, relation, "where the other weights are"))

    def options_with_paths(self, *command):
        """(positionals, options) of a command's --help that are paths."""
        text = run(*command, "--help", folder=self.root).stdout
        options = [name for name, value in re.findall(r"^ +(?:-\w,)?(--[a-z-]+) ([A-Z]+)", text, re.MULTILINE)
                   if value in PATHS]
        section = re.search(r"^Positionals:\n((?: .*\n)+)", text, re.MULTILINE)
        positionals = re.findall(r"^  (\w+)", section[1], re.MULTILINE) if section else []
        return [name for name in positionals if name not in ("name", "slice")], options

    def assert_empty(self, words, option):
        before = contents(self.root)
        done = run(*words, folder=self.root)
        self.assertEqual(done.returncode, 2, (words, done.stderr))
        self.assertIn(f"error: {option}: a path cannot be empty", done.stderr)
        self.assertEqual(contents(self.root), before)

    def test_an_empty_path_is_none(self):
        seen = set()
        for tool in TOOLS:
            for sub in SUBCOMMANDS.get(tool, [""]):
                command = [tool, *([sub] if sub else [])]
                positionals, options = self.options_with_paths(*command)
                self.assertTrue(positionals, command)
                for option in options:
                    with self.subTest(command=command, option=option):
                        self.assert_empty([*command, option, ""], option)
                        seen.add(option)
                for at, name in enumerate(positionals[:2]):
                    with self.subTest(command=command, positional=name):
                        self.assert_empty([*command, *["x"] * at, ""], name)
        self.assertLessEqual({"--root", "--like", "--weights-from", "--ds-config", "--key-map", "--hf-config", "--peft",
                              "--peft-config", "--html", "--manifest", "--write-manifest", "--input-folder"}, seen)


if __name__ == "__main__":
    unittest.main()
