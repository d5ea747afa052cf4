"""--help, and what the tools say to those who mistype."""
import os
import pathlib

import cli_common
import tools
from cli_common import CliTest
from pseudo_terminal import Terminal

SUBCOMMANDS = {
    "ckpt-inspect": ["browse", "tree", "list", "where", "print", "raw", "stats", "verify", "diff", "scan"],
    "ckpt-pack": ["pack", "unpack", "strip", "estimate"],
}
TOOLS = ["ckpt-inspect", "ckpt-pack", "reshard", "to-dcp", "to-universal", "zero-to-fp32"]


class HelpTest(CliTest):

    def help(self, tool, *arguments):
        done = self.tool(tool, *arguments, env={k: v for k, v in self.environment.items() if k != "COLUMNS"})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_help_fits_into_eighty_columns_or_a_narrower_terminal(self):
        for tool in TOOLS:
            for sub in [[], *([sub] for sub in SUBCOMMANDS.get(tool, []))]:
                text = self.help(tool, *sub, "--help")
                self.assertLessEqual(max(map(len, text.splitlines())), 80)
                described = text.split("Examples:")[0]
                self.assertNotIn("\n\n\n", text)
                command = [str(pathlib.Path(os.environ["DSCKPT_BIN"]) / tool), *sub, "--help"]
                with Terminal(command, 60, self.environment, [1]) as terminal:
                    narrow = terminal.rest()[0].split("Examples:")[0]
                self.assertLessEqual(max(map(len, narrow.split("Exit status")[0].splitlines())), 60)
                self.assertEqual(narrow.split(), described.split())

    def test_subcommands_are_listed_with_what_they_do(self):
        text = self.help("ckpt-inspect", "--help")
        self.assertRegex(text, r"\n\nSubcommands:\n(  .*\n)*  list {3,}One line a tensor")
        self.assertEqual(self.help("ckpt-inspect", "-h"), text)
        self.assertEqual(self.help("ckpt-inspect", "help"), text)
        one = self.help("ckpt-inspect", "list", "--help")
        self.assertIn("Usage: ckpt-inspect list [OPTIONS] path\n", one)
        self.assertIn("--match REGEX", one)
        self.assertEqual(self.help("ckpt-inspect", "help", "list"), one)

    def test_a_tool_of_subcommands_without_arguments_shows_its_help_as_an_error(self):
        done = self.tool("ckpt-inspect")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr, self.help("ckpt-inspect", "--help"))
        self.assertEqual(self.error_of(self.tool("ckpt-inspect", "--json"), 2)["kind"], "usage")


class SlipTest(CliTest):

    def test_what_was_meant_is_guessed(self):
        for tool, arguments, expected in [
            ("zero-to-fp32", ["a", "b", "--dtpye", "bf16"], "'--dtype'"),
            ("zero-to-fp32", ["a", "b", "--saef-serialization"], "'--safe-serialization'"),
            ("zero-to-fp32", ["a", "b", "--sfe"], "'--safe-serialization'"),
            ("zero-to-fp32", ["a", "b", "--max_shard_sise=5GB"], "'--max-shard-size'"),
            ("zero-to-fp32", ["a", "b", "--ex"], "'--exclude-frozen-parameters' or '--exclude'"),
            ("to-universal", ["--input-fodler=a", "--output-folder=b"], "'--input-folder'"),
            ("reshard", ["a", "b", "--dp=2", "--stgae", "1"], "'--stage'"),
            ("ckpt-inspect", ["lsit", "a"], "'list'"),
            ("ckpt-inspect", ["lis", "a"], "'list'"),
            ("ckpt-inspect", ["verfy"], "'verify'"),
            ("ckpt-inspect", ["list", "a", "--srot=name"], "'--sort'"),
            ("ckpt-inspect", ["--jsno"], "'--json'"),
        ]:
            with self.subTest(tool=tool, arguments=arguments):
                done = self.tool(tool, *arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(f"hint: did you mean {expected}?", done.stderr)

    def test_nothing_is_guessed_where_nothing_is_alike(self):
        for tool, arguments in [("zero-to-fp32", ["a", "b", "--nonsense"]), ("zero-to-fp32", ["a"]),
                                ("zero-to-fp32", ["a", "b", "--", "--dtpye"]), ("ckpt-inspect", ["list", "a", "lsit"]),
                                ("ckpt-inspect", ["zzzzzz", "a"]), ("reshard", ["a", "b", "--dp", "many"]),
                                ("reshard", ["a", "b", "--dp=2", "--gen"])]:
            done = self.tool(tool, *arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertNotIn("did you mean", done.stderr)

    def test_spellings_are_understood_in_subcommands_too(self):
        case = tools.case_named("z2_bf16_w2")
        tag = case.facts["tag"]
        expected = self.tool("ckpt-inspect", "list", case.load_dir, "--sort", "size", "--match", "weight", "--tag", tag)
        self.assertEqual(expected.returncode, 0)
        self.assertTrue(expected.stdout)
        for arguments in [["--so", "size", "--mat=weight", "--ta", tag, case.load_dir],
                          ["--sort=size", case.load_dir, "--mat", "weight", f"-t{tag}", "-q", "--color=never"]]:
            done = self.tool("ckpt-inspect", "list", *arguments)
            self.assertEqual((done.returncode, done.stdout), (0, expected.stdout), done.stderr)
        done = self.tool("ckpt-inspect", "list", case.load_dir, "--s=size")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean '--states' or '--sort'?", done.stderr)


if __name__ == "__main__":
    cli_common.main()
