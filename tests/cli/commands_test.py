"""Names of tools and commands: those that there are, behind whatever options, and those that there are not."""
import os
import pathlib
import subprocess
import tempfile
import unittest

from cli_common import memory_limit

BIN = pathlib.Path(os.environ["DSCKPT_BIN"])
CHECKPOINT = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "checkpoints" / "z2_bf16_w2" / "ckpt"


class CommandsTest(unittest.TestCase):

    def run_program(self, *words):
        with tempfile.TemporaryDirectory(prefix="dsckpt-commands-") as folder:
            return subprocess.run([BIN / words[0], *map(str, words[1:])], cwd=folder, stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, errors="replace", timeout=60)

    def results(self, *words):
        done = self.run_program(*words)
        return done.returncode, done.stdout, done.stderr

    def test_a_command_that_is_none_is_named(self):
        for words in (["dsckpt", "foo"], ["dsckpt", "foo", "bar"], ["dsckpt", "foo", "--help"], ["dsckpt", "help", "foo"],
                      ["dsckpt", "-q", "foo"], ["dsckpt", "--color", "never", "foo"], ["dsckpt", "foo", "--version"],
                      ["dsckpt", "help", "ckpt-inspect", "foo"], ["ckpt-inspect", "help", "foo"], ["ckpt-pack", "foo"],
                      ["ckpt-pack", "help", "foo"], ["ckpt-pack", "foo", "--help"], ["ckpt-pack", "-q", "foo"],
                      ["dsckpt", "ckpt-pack", "foo"], ["dsckpt", "pack", "help", "foo"]):
            with self.subTest(words):
                status, printed, said = self.results(*words)
                self.assertEqual((status, printed), (2, ""), said)
                self.assertIn("error: there is no command 'foo'", said)
                self.assertRegex(said, "hint: the commands are '")
        status, printed, said = self.results("dsckpt", "--json", "foo")
        self.assertEqual(status, 2, said)
        self.assertIn("there is no command 'foo'", printed)

    def test_what_was_meant_is_guessed(self):
        for words in (["dsckpt", "reshrad", "a", "b"], ["dsckpt", "help", "reshrad"]):
            status, _, said = self.results(*words)
            self.assertEqual(status, 2)
            self.assertIn("there is no command 'reshrad'\nhint: did you mean 'reshard'?", said)

    def test_help_of_a_command_is_its_page(self):
        for asked, page in ((["dsckpt", "help", "ckpt-inspect", "verify"], ["ckpt-inspect", "verify", "--help"]),
                            (["dsckpt", "help", "inspect", "verify"], ["ckpt-inspect", "verify", "--help"]),
                            (["ckpt-inspect", "help", "verify"], ["ckpt-inspect", "verify", "--help"]),
                            (["ckpt-pack", "help", "strip"], ["ckpt-pack", "strip", "--help"]),
                            (["dsckpt", "help", "reshard"], ["reshard", "--help"]),
                            (["dsckpt", "help", "help"], ["dsckpt", "--help"]),
                            (["dsckpt", "--help", "foo"], ["dsckpt", "--help"])):
            with self.subTest(asked):
                result = self.results(*asked)
                self.assertEqual(result, self.results(*page))
                self.assertEqual(result[0], 0)

    def test_one_command_at_a_time_is_explained(self):
        for words, whose in ((["dsckpt", "help", "reshard", "more"], "reshard"),
                             (["ckpt-inspect", "help", "verify", "more"], "verify")):
            status, printed, said = self.results(*words)
            self.assertEqual((status, printed), (2, ""), words)
            self.assertIn(f"error: {whose} has no command 'more'", said)

    def test_a_tool_may_stand_behind_options_that_all_have(self):
        for options in (["-q"], ["--json"], ["--color", "never"], ["--color=never", "-q"],
                        [*memory_limit("1GB"), "--quiet"]):
            for words in (["ckpt-inspect", "list", CHECKPOINT], ["inspect", "list", CHECKPOINT], ["reshard", "a", "b"],
                          ["to_universal", "nowhere", "out"]):
                tool = {"inspect": "ckpt-inspect", "to_universal": "to-universal"}.get(words[0], words[0])
                with self.subTest(options=options, words=words):
                    result = self.results("dsckpt", *options, *words)
                    self.assertEqual(result, self.results(tool, *options, *words[1:]))
                    self.assertEqual(result[0], 0 if tool == "ckpt-inspect" else 2)
                    self.assertTrue(result[1] + result[2])


if __name__ == "__main__":
    unittest.main()
