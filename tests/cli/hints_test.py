"""A hint works as it is printed: its paths, which are to be given, and its commands."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

BIN = pathlib.Path(os.environ["DSCKPT_BIN"])
CASE = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "checkpoints" / "z2_bf16_w2" / "ckpt"
TAG = "global_step3"
GIVE = re.compile(r"hint: give (\S+|'.*') instead: the newest that is there")


class HintsTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-hints-")
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name).resolve()
        # Neighbours of the checkpoint have tags, too: none of them is what is meant.
        for name in ("a run/ckpt", "a run/global_step9", "global_step8"):
            (self.root / name).parent.mkdir(exist_ok=True)
            shutil.copytree(CASE if name.endswith("ckpt") else CASE / TAG, self.root / name)
        shutil.copytree(CASE / TAG, self.root / "a run" / "ckpt" / "global_step2")
        shutil.copytree(CASE, self.root / "whole")
        (self.root / "made").mkdir()
        self.made = 0

    def run_tool(self, *words):
        return subprocess.run([BIN / words[0], *map(str, words[1:])], cwd=self.root, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", timeout=120)

    def out(self):
        self.made += 1
        return f"made/out{self.made}"

    def given(self, done):
        """The path of the hint of a run that failed: a checkpoint in the folder that was asked for."""
        self.assertEqual(done.returncode, 3, done.stderr)
        hint = GIVE.search(done.stderr)
        self.assertTrue(hint, done.stderr)
        path, = shlex.split(hint[1])
        self.assertEqual(path, f"a run/ckpt/{TAG}")
        return path

    def test_a_tag_that_is_not_there(self):
        for tag in ("global_step7", "../..", "../nothing", "..", "a/b", str(self.root / "nowhere")):
            for words in (["zero-to-fp32", "IN", "OUT"], ["to-universal", "IN", "OUT"],
                          ["reshard", "IN", "OUT", "--dp", "2"], ["to-dcp", "IN", "OUT", "--dp", "2"],
                          ["ckpt-inspect", "list", "IN"], ["ckpt-pack", "strip", "IN", "OUT", "--keep", "weights"]):
                with self.subTest(tag=tag, words=words):
                    def filled(path):
                        return [{"IN": path, "OUT": self.out()}.get(word, word) for word in words]
                    path = self.given(self.run_tool(*filled("a run/ckpt"), "--tag", tag))
                    done = self.run_tool(*filled(path))
                    self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_latest_names_is_not_there(self):
        (self.root / "a run" / "ckpt" / "latest").write_text("global_step7")
        for words in (["zero-to-fp32", "IN", "OUT"], ["ckpt-inspect", "diff", "IN", "whole"],
                      ["ckpt-inspect", "diff", "whole", "IN"], ["reshard", "whole", "OUT", "--dp", "2", "--like", "IN"],
                      ["zero-to-fp32", "--average", "whole", "IN", "OUT"]):
            with self.subTest(words):
                def filled(path):
                    return [{"IN": path, "OUT": self.out()}.get(word, word) for word in words]
                path = self.given(self.run_tool(*filled("a run/ckpt")))
                done = self.run_tool(*filled(path))
                self.assertIn(done.returncode, (0, 1), done.stderr)
                self.assertNotIn("hint:", done.stderr)

    def test_the_others_of_a_damaged_one(self):
        os.truncate(min((self.root / "a run" / "ckpt" / TAG).glob("*optim_states.pt")), 1000)
        for words in (["zero-to-fp32", "IN", "OUT"], ["ckpt-inspect", "diff", "IN", "whole"],
                      ["reshard", "IN", "OUT", "--dp", "2"]):
            with self.subTest(words):
                done = self.run_tool(*[{"IN": "a run/ckpt", "OUT": self.out()}.get(word, word) for word in words])
                self.assertEqual(done.returncode, 3, done.stderr)
                others = re.search(r"other checkpoints there: (.*?)(?:;|$)", done.stderr, re.MULTILINE)
                self.assertTrue(others, done.stderr)
                paths = shlex.split(others[1].replace(", ", " "))
                self.assertEqual(paths, ["a run/ckpt/global_step2"])
                for path in paths:
                    again = self.run_tool(*[{"IN": path, "OUT": self.out()}.get(word, word) for word in words])
                    self.assertEqual(again.returncode, 0, again.stderr)
                for command in re.findall(r"`([^`]*)`", done.stderr):
                    again = self.run_tool(*shlex.split(command.replace("OUT", self.out())))
                    self.assertIn(again.returncode, (0, 1), (command, again.stderr))


if __name__ == "__main__":
    unittest.main()
