"""Completions, in real shells, and man pages of all tools: they offer what --help shows, no more and no less."""
import os
import pathlib
import re
import shutil
import subprocess

import cli_common
import torch_files
from cli_common import CliTest
from pseudo_terminal import Terminal

TOOLS = ["ckpt-inspect", "ckpt-pack", "reshard", "to-dcp", "to-universal", "zero-to-fp32"]
BIN = pathlib.Path(os.environ["DSCKPT_BIN"])
FILES = {"man": "man/man1/{}.1", "bash": "bash-completion/completions/{}", "zsh": "zsh/site-functions/_{}",
         "fish": "fish/vendor_completions.d/{}.fish"}


class ManualTest(CliTest):

    def setUp(self):
        super().setUp()
        self.environment["PATH"] = f"{BIN}:{os.environ['PATH']}"

    def output(self, *command):
        done = subprocess.run([str(c) for c in command], env=self.environment, cwd=self.root, capture_output=True,
                              text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""), command)
        return done.stdout

    def generated(self, tool, what):
        return self.output(tool, "--generate", what)

    def helps(self, tool):
        """(subcommand or None, its --help), ..."""
        helps = [(None, self.output(tool, "--help"))]
        section = re.search(r"(?s)\nSubcommands:\n(.*?)\n\n", helps[0][1])
        for name in re.findall(r"(?m)^  (\S+)", section.group(1) if section else ""):
            helps.append((name, self.output(tool, name, "--help")))
        return helps

    def options(self, help_text):
        """The names of the options in a --help."""
        names = set()
        for line in re.findall(r"(?m)^  (?:    )?(-\S+)", help_text):
            names.update(line.split(","))
        return names

    def shown(self):
        """(tool, subcommand or None, names of options) of everything that has a --help."""
        found = [(tool, sub, self.options(text)) for tool in TOOLS for sub, text in self.helps(tool)]
        self.assertIn(("ckpt-inspect", "list"), [entry[:2] for entry in found])
        for tool, sub, names in found:
            self.assertLessEqual({"--json", "--quiet", "-q", "--color", "--help", "-h"}, names)
        return found

    def script(self, tool, shell):
        path = self.root / f"{tool}.{shell}"
        path.write_text(self.generated(tool, shell))
        return path


class GeneratedTest(ManualTest):

    def test_files_of_the_build_are_what_the_tools_print_anywhere(self):
        for tool in [*TOOLS, "dsckpt"]:
            for what, path in FILES.items():
                built = (BIN.parent / "share" / path.format(tool)).read_text()
                self.environment.update(COLUMNS="37", LC_ALL="C", TERM="dumb", HOME=str(self.root))
                self.assertEqual(self.generated(tool, what), built)
                self.assertTrue(built.isascii())

    def test_an_unknown_kind_is_a_usage_error(self):
        done = self.tool("reshard", "--generate", "tcsh")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("tcsh", done.stderr)

    def test_generate_is_shown_with_what_it_takes(self):
        for tool in TOOLS:
            self.assertRegex(self.tool(tool, "--help").stdout, r"--generate WHAT +Print the completion")
            done = self.tool(tool, "--generate", "foo")
            self.assertEqual(done.returncode, 2)
            self.assertIn("--generate: foo not in {bash,zsh,fish,man,json}", done.stderr)


class ManPageTest(ManualTest):

    def test_pages_have_their_sections_and_no_warnings(self):
        for tool in TOOLS:
            page = self.root / "page"
            page.write_text(self.generated(tool, "man"))
            text = self.output("groff", "-man", "-ww", "-Tascii", "-P-cbou", page)
            headings = re.findall(r"(?m)^[A-Z][A-Z ]+$", text)
            expected = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SUBCOMMANDS", "EXIT STATUS", "EXAMPLES",
                        "ENVIRONMENT", "SEE ALSO"]
            self.assertEqual(headings, [h for h in expected if h != "SUBCOMMANDS" or tool.startswith("ckpt-")])
            self.assertRegex(text, rf"NAME\n +{tool} +- ")
            self.assertEqual(re.findall(r"(\S+)\(1\)", "".join(text.split("SEE ALSO")[1].splitlines()[1:3])),
                             [other for other in sorted([*TOOLS, "dsckpt"]) if other != tool])
            self.assertRegex(text, r"(?s)EXIT STATUS\n.* 0 .* 1 .* 2 .* 3 .* 4 .* 70 .* 130 ")
            version = self.output(tool, "--version")
            self.assertIn(f"dsckpt {version.split()[1]}", text.splitlines()[-1])

    def test_options_are_those_of_help(self):
        for tool, sub, names in self.shown():
            with self.subTest(tool=tool, sub=sub):
                page = self.generated(tool, "man").replace("\\-", "-")
                chapters = dict(re.findall(r"(?sm)^\.S[HS] ([^\n]+)\n(.*?)(?=^\.S[HS] |\Z)", page))
                chapter = chapters[sub or "OPTIONS"]
                entries = " ".join(re.findall(r"(?m)^\.TP\n(.*)$", chapter))
                shared = re.search(r"(?s)\nAlso (.*),\s+as\s+above", chapter)
                found = set(re.findall(r"\\fB(-[^\\]+)\\fR", entries + (shared.group(1) if shared else "")))
                # Those that are explained above are named by their long names only.
                self.assertEqual(found | ({"-q", "-h", "-t"} & names if shared else set()), names)

    def test_examples_are_those_of_help(self):
        for tool in TOOLS:
            text = self.helps(tool)[0][1].split("Examples:\n")[1]
            page = self.root / "page"
            page.write_text(self.generated(tool, "man"))
            rendered = self.output("groff", "-man", "-Tascii", "-P-cbou", "-rLL=200n", page)
            for line in re.findall(r"(?m)^  (.*)$", text):
                self.assertIn(f"       {line}\n", rendered)


def checkpoint_to_complete(test):
    """A folder with tags and other folders, with a tensor whose name a shell would run; and its tags."""
    ckpt = test.scratch("z2_fp32_full_w3").folder
    tag = next(path.name for path in ckpt.iterdir() if path.is_dir())
    shutil.copytree(ckpt / tag, ckpt / "global_step99")
    (ckpt / "global_notes").mkdir()
    ckpt = ckpt.rename(test.root / "ckpt")
    return ckpt, {tag, "global_step99"}


class BashTest(ManualTest):

    def complete(self, tool, *words, breaks="="):
        """The completions that bash offers for the last of the words."""
        split = []
        for word in words:
            name, equals, value = word.partition("=")
            if equals and breaks and word.startswith("--"):
                split += [name, "="] + ([value] if value else [])
            else:
                split.append(word)
        program = ('source "$1"; shift; tool=$1; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
                   'spec=$(complete -p "$tool"); [[ $spec =~ -F\\ ([^ ]+) ]] && "${BASH_REMATCH[1]}"\n'
                   'for word in "${COMPREPLY[@]}"; do printf "%s\\n" "$word"; done')
        shown = self.output("bash", "--norc", "-euc", program, "bash", self.script(tool, "bash"), tool, *split)
        return shown.splitlines()

    def test_options_are_those_of_help(self):
        for tool, sub, names in self.shown():
            words = [sub] if sub else []
            self.assertEqual(set(self.complete(tool, *words, "--")), {n for n in names if n.startswith("--")})
            self.assertEqual(set(self.complete(tool, *words, "-")), names)

    def test_values_follow_their_options(self):
        sort = ["order", "name", "kind", "type", "shape", "size"]
        for words, expected in [
            (["list", "--sort", ""], sort),
            (["list", "x", "--sort", "n"], ["name"]),
            (["list", "--sort="], sort),
            (["list", "--sort=si"], ["size"]),
            (["list", "--match", ""], []),
            (["list", "--match", "--"], []),
            (["--color", ""], ["auto", "always", "never"]),
            (["list", "--color=ne"], ["never"]),
            (["list", "--col"], ["--color"]),
            (["l"], ["list"]),
            (["--color", "always", "lis"], ["list"]),
            (["list", "--", "--s"], []),
        ]:
            self.assertEqual(self.complete("ckpt-inspect", *words), expected, words)
        self.assertEqual(self.complete("ckpt-inspect", "list", "--sort=na", breaks=""), ["--sort=name"])
        self.assertEqual(self.complete("zero-to-fp32", "--dtype=b"), ["bfloat16", "bf16"])
        self.assertEqual(self.complete("zero-to-fp32", "--max_sh"), ["--max-shard-size"])
        self.assertEqual(self.complete("zero-to-fp32", "--progress", "j"), ["json"])

    def test_tags_and_tensors_of_the_checkpoint_that_is_named(self):
        ckpt, tags = checkpoint_to_complete(self)
        for tool, words in [("zero-to-fp32", ["ckpt", "out", "--tag", ""]), ("zero-to-fp32", ["ckpt", "-t", "glob"]),
                            ("ckpt-inspect", ["list", "ckpt", "--tag=g"]), ("ckpt-inspect", ["ckpt", "-t", ""]),
                            ("reshard", ["--dp", "2", str(ckpt), "--tag", "global_"])]:
            self.assertEqual(set(self.complete(tool, *words)), tags, words)
        self.assertEqual(self.complete("zero-to-fp32", "ckpt", "--tag", "global_step9"), ["global_step99"])
        self.assertEqual(self.complete("zero-to-fp32", "nowhere", "--tag", ""), [])
        names = {line.split("\t")[0] for line in self.output("ckpt-inspect", "list", ckpt).splitlines()}
        self.assertGreater(len(names), 9)
        for command in ("where", "print"):
            self.assertEqual(set(self.complete("ckpt-inspect", command, "ckpt", "")), names)
            self.assertEqual(set(self.complete("ckpt-inspect", command, "ckpt", "tok")),
                             {name for name in names if name.startswith("tok")})
            self.assertIn("ckpt", self.complete("ckpt-inspect", command, "ckp"))
        self.assertEqual(self.complete("ckpt-inspect", "list", "ckpt", "tok"), [])

    def test_no_name_in_a_file_is_run_by_the_shell(self):
        bad = self.root / "bad.safetensors"
        torch_files.save_file({name: torch_files.zeros(1) for name in ("good", "g$(touch ran)", "g`touch ran`", "g;touch ran", "g a")}, bad)
        self.assertEqual(self.complete("ckpt-inspect", "where", bad.name, "g"), ["good"])
        for name in ("$(touch ran)", "a b"):
            (self.root / name).mkdir()
            (self.root / name / "mp_rank_00_model_states.pt").write_text("")
        self.assertEqual(self.complete("ckpt-inspect", "list", ".", "--tag", ""), [])
        self.assertFalse((self.root / "ran").exists())

    def test_paths_are_completed_where_paths_belong(self):
        (self.root / "folder one").mkdir()
        (self.root / "file").write_text("")
        both = {"folder one", "file"}
        self.assertEqual(set(self.complete("ckpt-inspect", "list", "f")), both)
        self.assertEqual(set(self.complete("ckpt-inspect", "list", "--json", "f")), both)
        self.assertEqual(set(self.complete("reshard", "a", "f")), both)
        self.assertEqual(set(self.complete("reshard", "--ds-config=f")), both)
        self.assertEqual(set(self.complete("reshard", "--like", "f")), {"folder one"})
        self.assertEqual(set(self.complete("to-universal", "--input_folder", "f")), {"folder one"})
        self.assertEqual(self.complete("reshard", "--dp", "f"), [])

    def test_the_line_is_completed_when_tab_is_pressed(self):
        environment = {**self.environment, "PS1": "> ", "TERM": "dumb", "INPUTRC": "/dev/null"}
        with Terminal(["bash", "--norc", "--noprofile", "-i"], 200, environment, cwd=self.root) as shell:
            shell.type(f"source {self.script('ckpt-inspect', 'bash')}; ckpt-inspect() {{ echo \"<$*>\"; }}\n")
            for typed, completed in [("li\t--sor\tna\tx", "list --sort name x"), ("list --sort=si\t", "list --sort=size"),
                                     ("list --mat\t'a b'", "list --match a b")]:
                shell.type(f"ckpt-inspect {typed}\n")
                self.assertTrue(shell.wait_for(">\r\n").endswith(f"<{completed}>\r\n"), typed)


class ZshTest(ManualTest):

    def shell(self):
        for tool in TOOLS:
            self.script(tool, "zsh").rename(self.root / f"_{tool}")
        # ^X prints the line as it is.
        (self.root / ".zshrc").write_text(
            f"PS1=; fpath=({self.root} $fpath); autoload -Uz compinit; compinit -D -u\n"
            "zstyle ':completion:*' verbose no\n"
            "show() { print -r -- \"<$BUFFER>\"; BUFFER=; }; zle -N show; bindkey '^X' show\nprint ready\n")
        environment = {**self.environment, "TERM": "dumb", "ZDOTDIR": str(self.root), "HOME": str(self.root)}
        shell = Terminal(["zsh", "-d", "-i"], 200, environment, cwd=self.root)
        shell.wait_for("ready\r\n")
        return shell

    def complete(self, shell, line):
        """The listed candidates, and the line as it is then."""
        shell.type(f"{line}\t\x18")
        shell.wait_for("<")
        return shell.wait_for(">")[:-1]

    def test_lines_are_completed_when_tab_is_pressed(self):
        (self.root / "folder").mkdir()
        (self.root / "folk").write_text("")
        with self.shell() as shell:
            for line, expected in [
                ("ckpt-inspect lis", "ckpt-inspect list "),
                ("ckpt-inspect list --sor", "ckpt-inspect list --sort="),
                ("ckpt-inspect list --sort=na", "ckpt-inspect list --sort=name "),
                ("ckpt-inspect list --sort si", "ckpt-inspect list --sort size "),
                ("ckpt-inspect list --color=al", "ckpt-inspect list --color=always "),
                ("ckpt-inspect list fold", "ckpt-inspect list folder/"),
                ("reshard a b --plan-b", "reshard a b --plan-batch "),
                ("reshard --like fol", "reshard --like folder/"),
                ("reshard --progress=j", "reshard --progress=json "),
            ]:
                self.assertEqual(self.complete(shell, line), expected)

    def test_tags_and_tensors_of_the_checkpoint_that_is_named(self):
        ckpt, tags = checkpoint_to_complete(self)
        other = next(tag for tag in tags if tag != "global_step99")
        with self.shell() as shell:
            for line, expected in [
                ("zero-to-fp32 ckpt out --tag global_step9", "zero-to-fp32 ckpt out --tag global_step99 "),
                (f"ckpt-inspect list ckpt --tag={other}", f"ckpt-inspect list ckpt --tag={other} "),
                ("ckpt-inspect where ckpt tok_emb", "ckpt-inspect where ckpt tok_emb.weight "),
                (f"ckpt-inspect print {ckpt} tok_emb", f"ckpt-inspect print {ckpt} tok_emb.weight "),
                ("reshard --tag glob", "reshard --tag glob"),
            ]:
                self.assertEqual(self.complete(shell, line), expected)

    def test_options_are_those_of_help(self):
        with self.shell() as shell:
            for tool, sub, names in self.shown():
                shell.type(f"{tool} {sub or ''} --\t\x18")
                listed = shell.wait_for("<").split("--\r\n")[-1]
                shell.wait_for(">")
                self.assertEqual(set(re.findall(r"--[a-z][\w-]*", listed)),
                                 {n for n in names if n.startswith("--")}, (tool, sub))


class FishTest(ManualTest):

    def complete(self, tool, line):
        shown = self.output("fish", "--no-config", "-c", 'source $argv[1]; complete -C $argv[2]',
                            self.script(tool, "fish"), line)
        return [entry.split("\t")[0] for entry in shown.splitlines()]

    def test_options_are_those_of_help(self):
        for tool, sub, names in self.shown():
            offered = self.complete(tool, f"{tool} {sub or ''} --")
            self.assertEqual(set(offered), {n for n in names if n.startswith("--")}, (tool, sub))

    def test_tags_and_tensors_of_the_checkpoint_that_is_named(self):
        ckpt, tags = checkpoint_to_complete(self)
        self.assertEqual(set(self.complete("zero-to-fp32", "zero-to-fp32 ckpt --tag ")), tags)
        self.assertEqual(self.complete("ckpt-inspect", "ckpt-inspect list ckpt -t global_step9"), ["global_step99"])
        self.assertEqual(self.complete("ckpt-inspect", "ckpt-inspect where ckpt tok_emb"), ["tok_emb.weight"])
        self.assertEqual(self.complete("ckpt-inspect", f"ckpt-inspect print {ckpt} tok_emb"), ["tok_emb.weight"])

    def test_subcommands_and_values(self):
        (self.root / "folder").mkdir()
        (self.root / "file").write_text("")
        for line, expected in [
            ("ckpt-inspect lis", ["list"]),
            ("ckpt-inspect list --sort ", ["kind", "name", "order", "shape", "size", "type"]),
            ("ckpt-inspect list --sort=n", ["--sort=name"]),
            ("ckpt-inspect list f", ["file", "folder/"]),
            ("zero-to-fp32 --progress j", ["json"]),
            ("zero-to-fp32 --hf-config f", ["folder/"]),
            ("reshard --dp f", []),
        ]:
            self.assertEqual(sorted(self.complete(line.split()[0], line)), expected, line)


if __name__ == "__main__":
    cli_common.main()
