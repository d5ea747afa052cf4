"""dsckpt, the program that all tools are: by links, by its first argument, and what it says of itself."""
import os
import pathlib
import re
import subprocess

import cli_common
import tools
from cli_common import CliTest
from pseudo_terminal import Terminal

BIN = pathlib.Path(os.environ["DSCKPT_BIN"])
TOOLS = ["zero-to-fp32", "to-universal", "reshard", "to-dcp", "ckpt-inspect", "ckpt-pack"]


class SuiteTest(CliTest):

    def test_tools_are_links_to_it(self):
        for tool in TOOLS:
            self.assertEqual(os.readlink(BIN / tool), "dsckpt")
        link = self.root / "elsewhere" / "reshard"
        link.parent.mkdir()
        link.symlink_to(BIN / "dsckpt")
        done = subprocess.run([link, "--help"], capture_output=True, text=True)
        self.assertEqual(done.stdout, self.tool("reshard", "--help").stdout)

    def test_its_first_argument_names_the_tool(self):
        folder = tools.case_named("z2_bf16_w2").load_dir
        expected = self.tool("ckpt-inspect", "list", folder).stdout
        for name in ("ckpt-inspect", "ckpt_inspect", "inspect"):
            done = self.tool("dsckpt", name, "list", folder)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, expected, ""))
        output = self.new_path()
        done = self.tool("dsckpt", "zero_to_fp32", folder, output)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"\Azero-to-fp32: ")
        self.assertTrue(cli_common.tree(output) == cli_common.tree(self.convert(folder)))

    def test_errors_and_statuses_are_the_tools(self):
        for arguments in (["reshard"], ["ckpt-pack"], ["verfy"], ["inspect", "verify", self.root / "nothing"],
                          ["zero-to-fp32", "--safe-serialisation"]):
            tool = {"inspect": "ckpt-inspect"}.get(arguments[0], arguments[0])
            suite = self.tool("dsckpt", *arguments)
            if tool in TOOLS:
                alone = self.tool(tool, *arguments[1:])
                self.assertEqual((suite.returncode, suite.stdout, suite.stderr),
                                 (alone.returncode, alone.stdout, alone.stderr))
            else:
                self.assertEqual((suite.returncode, suite.stdout), (2, ""))

    def test_commands_may_be_called_without_their_tool(self):
        folder = tools.case_named("z2_bf16_w2").load_dir
        for tool in ("ckpt-inspect", "ckpt-pack"):
            words = re.findall(r"(?m)^  ([a-z]+) ", self.tool(tool, "--help").stdout.partition("Subcommands:")[2])
            self.assertGreater(len(words), 2)
            for command in set(words) - {"pack", "estimate"}:  # `dsckpt pack` is ckpt-pack
                for ask in ([command, "--help"], ["help", command]):
                    self.assertEqual(self.tool("dsckpt", *ask).stdout, self.tool(tool, command, "--help").stdout, ask)
        for words in (["verify", folder], ["--color=never", "list", folder, "--match=gain"], ["verify", "nowhere"],
                      ["scan", folder, folder, "--json"]):
            short, command = self.tool("dsckpt", *words), next(word for word in words if word in ("verify", "list", "scan"))
            rest = [word for word in words if word != command]
            whole = self.tool("ckpt-inspect", command, *rest)
            self.assertEqual((short.returncode, short.stdout, short.stderr),
                             (whole.returncode, whole.stdout, whole.stderr))
        output = self.new_path()
        self.assertEqual(self.tool("dsckpt", "convert", folder, output).returncode, 0)
        self.assertTrue(cli_common.tree(output) == cli_common.tree(self.convert(folder)))
        self.assertEqual(self.tool("dsckpt", "help", "convert").stdout, self.tool("zero-to-fp32", "--help").stdout)
        self.assertIn("did you mean 'verify'?", self.tool("dsckpt", "verfy", folder).stderr)

    def test_help_names_every_tool(self):
        text = self.tool("dsckpt", "--help").stdout
        for tool in TOOLS:
            self.assertRegex(text, rf"(?m)^  {tool} ")
            for ask in (["help", tool], [tool, "--help"], [tool.removeprefix("ckpt-"), "-h"]):
                self.assertEqual(self.tool("dsckpt", *ask).stdout, self.tool(tool, "--help").stdout)
        for same in (["-h"], ["help"]):
            self.assertEqual(self.tool("dsckpt", *same).stdout, text)
        self.assertLessEqual(max(map(len, text.splitlines())), 80)
        alone = self.tool("dsckpt")
        self.assertEqual((alone.returncode, alone.stdout, alone.stderr), (2, "", text))

    def test_a_slip_gets_a_suggestion(self):
        done = self.tool("dsckpt", "zero-to-fp23", "x")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("did you mean 'zero-to-fp32'?", done.stderr)

    def test_the_version_says_what_this_build_has(self):
        for name in ("dsckpt", "reshard"):
            self.assertRegex(self.tool(name, "--version").stdout, rf"\A{name} \d.*\nfeatures: (static|shared libraries)")

    def generated(self, name, shell):
        path = self.root / f"{'_' if shell == 'zsh' else ''}{name}{'' if shell == 'zsh' else '.' + shell}"
        path.write_text(self.tool(name, "--generate", shell).stdout)
        return path

    def test_bash_completes_tools_and_what_is_theirs(self):
        scripts = [self.generated(name, "bash") for name in ("dsckpt", "ckpt-inspect")]
        program = ('for script in "$1" "$2"; do source "$script"; done; shift 2\n'
                   'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dsckpt\n'
                   'for word in "${COMPREPLY[@]}"; do printf "%s\\n" "$word"; done')
        for words, expected in [(["re"], ["reshard"]), (["ckpt-inspect", "ver"], ["verify"]),
                                (["ckpt-inspect", "list", "--sort", "n"], ["name"]), (["--vers"], ["--version"]),
                                (["conv"], ["convert"]), (["list", "--sort", "n"], ["name"]),
                                (["--color", "never", "list", "--sort", "n"], ["name"])]:
            done = subprocess.run(["bash", "--norc", "-euc", program, "bash", *scripts, "dsckpt", *words],
                                  capture_output=True, text=True, cwd=self.root)
            self.assertEqual((done.stdout.split(), done.stderr), (expected, ""), words)

    def test_zsh_completes_tools_and_what_is_theirs(self):
        for name in ("dsckpt", "ckpt-inspect"):
            self.generated(name, "zsh")
        (self.root / ".zshrc").write_text(
            f"PS1=; fpath=({self.root} $fpath); autoload -Uz compinit; compinit -D -u\n"
            "show() { print -r -- \"<$BUFFER>\"; BUFFER=; }; zle -N show; bindkey '^X' show\nprint ready\n")
        environment = {**self.environment, "TERM": "dumb", "ZDOTDIR": str(self.root), "HOME": str(self.root),
                       "PATH": f"{BIN}:{os.environ['PATH']}"}
        with Terminal(["zsh", "-d", "-i"], 200, environment, cwd=self.root) as shell:
            shell.wait_for("ready\r\n")
            for line, expected in [("dsckpt resh", "dsckpt reshard "),
                                   ("dsckpt ckpt-inspect veri", "dsckpt ckpt-inspect verify "),
                                   ("dsckpt ckpt-inspect list --sort=na", "dsckpt ckpt-inspect list --sort=name "),
                                   ("dsckpt conv", "dsckpt convert "),
                                   ("dsckpt list --sort=na", "dsckpt list --sort=name ")]:
                shell.type(f"{line}\t\x18")
                shell.wait_for("<")
                self.assertEqual(shell.wait_for(">")[:-1], expected)

    def test_fish_completes_tools_and_what_is_theirs(self):
        scripts = [self.generated(name, "fish") for name in ("dsckpt", "ckpt-inspect")]
        for line, expected in [("dsckpt resh", ["reshard"]), ("dsckpt ckpt-inspect veri", ["verify"]),
                               ("dsckpt ckpt-inspect list --sort n", ["name"]), ("dsckpt conv", ["convert"]),
                               ("dsckpt list --sort n", ["name"])]:
            done = subprocess.run(["fish", "--no-config", "-c",
                                   "for script in $argv[1..-2]; source $script; end; complete -C $argv[-1]", *scripts, line],
                                  capture_output=True, text=True, cwd=self.root, env=self.environment)
            self.assertEqual([entry.split("\t")[0] for entry in done.stdout.splitlines()], expected, done.stderr)

    def test_its_page_names_the_tools(self):
        page = self.tool("dsckpt", "--generate", "man").stdout.replace("\\-", "-")
        for tool in TOOLS:
            self.assertRegex(page, rf"(?m)^\\fBdsckpt {tool}\\fR")
            self.assertIn(f"\\fB{tool}\\fR(1)", page)
        self.assertTrue(re.search(r"(?m)^\.SH SUBCOMMANDS$", page))


if __name__ == "__main__":
    cli_common.main()
