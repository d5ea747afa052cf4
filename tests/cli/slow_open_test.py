"""The messages of the tools while a checkpoint takes long to open. One of their reads takes a second, by
support/fail_call.cpp."""
import json

import cli_common
from terminal_test import TerminalTest, plain


class SlowOpenTest(TerminalTest):

    def slow_to_open(self, tool, *arguments):
        """The display of a tool on a terminal while one of its reads takes a second."""
        slow = self.with_fault(call="read", at=9, errno=-3)
        return self.on_terminal(tool, *arguments, width=100, descriptors=(2,), **slow)

    def test_files_are_counted_while_a_slow_checkpoint_is_opened(self):
        folder = self.case.load_dir
        checkpoint = {"zero-to-fp32": [folder, self.new_path()], "reshard": [folder, self.new_path(), "--dp=1"],
                      "to-universal": [folder, self.new_path()],
                      "ckpt-pack": ["strip", folder, self.new_path(), "--keep=weights"]}
        for tool, arguments in checkpoint.items():
            with self.subTest(tool=tool):
                shown = self.slow_to_open(tool, *arguments)
                self.assertRegex(shown, r"\A\r\[[#.]+\] \d of [3-9] files opened")
                # The line has gone when the first note or the summary comes.
                self.assertRegex(plain(shown), rf"\r +\r{tool}: (note: )?\w")
        inspect = [["list", folder], ["tree", folder], [folder], ["where", folder, "transformer.wte.weight"],
                   ["scan", folder], ["diff", folder, folder], ["verify", folder]]
        for arguments in inspect:
            with self.subTest(arguments=arguments):
                self.assertIn("files opened", self.slow_to_open("ckpt-inspect", *arguments))
        self.assertIn("files opened", self.slow_to_open("ckpt-pack", "pack", folder, self.new_path()))

    def test_opening_has_json_lines_too(self):
        done = self.tool("zero-to-fp32", self.case.load_dir, self.new_path(), "--progress=json",
                         env=self.with_fault(call="read", at=9, errno=-3))
        lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        opening = [line["data"] for line in lines if line["type"] == "opening"]
        self.assertTrue(opening)
        for data in opening:
            self.assertLessEqual(data["files_done"], data["files_total"])
            self.assertGreaterEqual(data["seconds_left"], 0)
        self.assertEqual({line["type"] for line in lines}, {"opening", "progress"})


if __name__ == "__main__":
    cli_common.main()
