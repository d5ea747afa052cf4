"""Random folders of every kind of saved state. Each tool takes the state that the path means, lists the answers where
there are several, or names a damaged file. Each hint works.

SCENES=500 makes that many folders in place of some, SEED other ones, and SCENE=NAME only those of one kind.
OPEN=all asks for known defects, too, which are not yet mended.
"""
import os
import pathlib
import re
import shlex
import shutil

import cli_common
import random_folders
import torch_files
from cli_common import CliTest
from random_folders import DAMAGED, LISTED, TAKEN

BIN = "pytorch_model.bin"


def same(found, values):
    return set(found) == set(values) and all(torch_files.same_bits(found[name], values[name]) for name in values)


def mean(pieces):
    """The average as double precision has it, rounded once; buffers are the newest's."""
    first, *others = pieces
    values = {}
    for name, value in first.values.items():
        if name in first.buffers:
            values[name] = others[-1].values[name]
            continue
        total = value.values.astype("float64") + sum(other.values[name].values for other in others)
        values[name] = torch_files.tensor((total / len(pieces)).astype("float32"))
    return values


class RandomFoldersTest(CliTest):

    def weights_of(self, path, *options):
        """The messages of zero-to-fp32 and the values that it writes."""
        out = self.new_path()
        done = self.tool("zero-to-fp32", path, out, *options)
        if done.returncode not in (0, 1):
            self.assertFalse(out.exists(), "an output is left")
            return done, None
        self.assertEqual(done.returncode, 0, done.stderr)
        return done, torch_files.load(out / BIN)

    def assert_values(self, found, piece, scene, said):
        if not same(found, piece.values):
            taken = [each.path for each in scene.pieces if same(found, each.values)]
            self.fail(f"took {taken}, not {piece.path}: {said}")

    def assert_is_one(self, found, pieces, said):
        self.assertTrue(any(same(found, piece.values) for piece in pieces), said)

    def check_main(self, scene):
        done, found = self.weights_of(scene.folder, *scene.arguments)
        if scene.truth == TAKEN:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_values(found, scene.right, scene, done.stderr)
        elif scene.truth == LISTED:
            self.assertIn(done.returncode, scene.status, done.stderr)
            for piece in scene.pieces:
                self.assertIn(piece.name(), done.stderr)
            self.assertIn("hint:", done.stderr)
        elif found is not None:
            if any(piece.has_weights and same(found, piece.values) for piece in scene.pieces):
                return done
            self.assertTrue(scene.right, f"a damaged state was read: {done.stderr}")
            self.assert_values(found, scene.right, scene, done.stderr)
        else:
            self.assertIn(done.returncode, (3, 4), done.stderr)
        for text in scene.says:
            self.assertIn(text, done.stderr)
        return done

    def check_hint(self, scene, said):
        """Follows each form of a hint that is a command."""
        hint = re.search("hint: (.*)", said)
        if not hint:
            return
        hint = hint[1]
        whole = [piece for piece in scene.pieces if not piece.damaged or piece.has_weights]
        if named := re.match(r"--model (\S+) reads", hint):
            name, = shlex.split(named[1])
            done, found = self.weights_of(scene.folder, "--model", name)
            self.assertEqual(done.returncode, 0, (hint, done.stderr))
            if scene.models:
                self.assertIn(name, scene.models, "a model that is none")
                self.assert_values(found, scene.models[name], scene, done.stderr)
            self.assert_is_one(found, whole, hint)
        elif named := re.match(r"--model (\S+)", hint):
            name, = shlex.split(named[1].rstrip(",;:"))
            done, found = self.weights_of(scene.folder, "--model", name)
            self.assertEqual(done.returncode, 0, (hint, done.stderr))
            self.assert_is_one(found, whole, hint)
        elif named := re.match(r"give (?:the (?:file|folder) of one|one of them): (.*)", hint):
            for path in shlex.split(re.sub(", | or (?=[/'])", " ", named[1])):
                done, found = self.weights_of(path)
                self.assertEqual(done.returncode, 0, (hint, done.stderr))
                self.assert_is_one(found, whole, hint)
        elif named := re.match(r"give (.*?) instead", hint):
            done, found = self.weights_of(shlex.split(named[1])[0])
            self.assertEqual(done.returncode, 0, (hint, done.stderr))
            self.assert_is_one(found, whole, hint)
        elif named := re.match(r"the tags there, for --tag: (.*)", hint):
            for tag in named[1].split(", "):
                done, found = self.weights_of(scene.folder, "--tag", tag)
                self.assertEqual(done.returncode, 0, (hint, done.stderr))
                self.assert_is_one(found, whole, hint)
        for command in re.findall("`(.*?)`", hint):
            words = shlex.split(command)
            words = [str(self.new_path()) if word == "OUT" else word for word in words]
            done = self.tool(*words)
            self.assertIn(done.returncode, (0, 1, 3), (command, done.stderr))
        if others := re.search("other checkpoints there: (.*?)(;|$)", hint):
            for path in shlex.split(others[1].replace(", ", " ")):
                if path == "...":
                    continue
                done, found = self.weights_of(path)
                self.assertEqual(done.returncode, 0, (hint, done.stderr))
                self.assert_is_one(found, whole, hint)

    def check_inspect(self, scene):
        for command in ((), ("list", ), ("verify", )):
            done = self.tool("ckpt-inspect", *command, scene.folder, *scene.arguments)
            said = done.stdout + done.stderr
            if command == ("verify", ) and scene.verify:
                self.assertIn(done.returncode, scene.verify, said)
            elif scene.truth == TAKEN:
                self.assertEqual(done.returncode, 0, (command, said))
            elif scene.truth == LISTED:
                self.assertIn(done.returncode, scene.status, (command, said))
                for piece in scene.pieces:
                    self.assertIn(piece.name(), said, command)
            if scene.truth == DAMAGED and command == ("verify", ):
                for text in scene.says:
                    self.assertIn(text, said, command)

    def check_other_tool(self, scene, tool):
        out = self.new_path() / "u"
        out.parent.mkdir()
        ranks = ("--dp", "1") if tool != "to-universal" else ()
        done = self.tool(tool, scene.folder, out, *ranks, *scene.param_names, *scene.arguments)
        if scene.truth == TAKEN:
            self.assertEqual(done.returncode, 0, (tool, done.stderr))
        if scene.truth == LISTED:
            self.assertIn(done.returncode, scene.status, (tool, done.stderr))
            for piece in scene.pieces:
                self.assertIn(piece.name(), done.stderr, tool)
        for text in scene.says:
            self.assertIn(text, done.stderr, tool)
        if done.returncode:
            self.assertFalse(out.exists(), f"{tool} has left an output")
            return
        self.assertTrue(scene.right, f"{tool} has read a damaged state: {done.stderr}")
        again, found = self.weights_of(out)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assert_values(found, scene.right, scene, (tool, done.stderr))

    def check_alone(self, scene, piece):
        """Each state is read when it is given alone."""
        options = ("--model", piece.model) if sum(each.path == piece.path for each in scene.pieces) > 1 else ()
        done, found = self.weights_of(scene.folder / piece.path, *options)
        if piece.damaged and done.returncode:
            return
        self.assertEqual(done.returncode, 0, (piece.path, done.stderr))
        self.assert_values(found, piece, scene, done.stderr)

    def check_tag(self, scene, piece):
        """A name that only one state has chooses it."""
        tag = pathlib.Path(piece.path).name
        tag = tag if (scene.folder / piece.path).is_dir() else tag.rpartition(".")[0]
        is_weights = piece.path.endswith((".safetensors", ".bin", ".json"))
        named = [path for path in scene.folder.rglob("*") if path.name.startswith(tag)]
        if piece.damaged or piece.said or is_weights or len(named) != 1:
            return
        done, found = self.weights_of(scene.folder, "--tag", tag)
        self.assertEqual(done.returncode, 0, (tag, done.stderr))
        self.assert_values(found, piece, scene, done.stderr)

    def check_relative(self, scene):
        """The same path, relative or with a slash, means the same."""
        out = self.new_path()
        for path, folder in ((".", scene.folder), (f"{scene.folder.name}/", scene.folder.parent)):
            done = self.tool("zero-to-fp32", path, out, "--force", *scene.arguments, cwd=folder)
            self.assertEqual(done.returncode, 0, (path, done.stderr))
            self.assert_values(torch_files.load(out / BIN), scene.right, scene, (path, done.stderr))

    def check_table(self, scene):
        """The table of candidates says which one is read."""
        done = self.tool("ckpt-inspect", scene.folder, "--json", *scene.arguments)
        line, = self.json_lines(done.stdout)
        rows = line["data"].get("candidates", [])
        read = [row["path"] for row in rows if row["read"]]
        if rows and sum(each.path == scene.right.path for each in scene.pieces) == 1 and not scene.right.said:
            right = scene.folder / scene.right.path
            same_file = [path for path in read if f"{path}/".startswith(f"{scene.right.path}/") or
                         ((scene.folder / path).exists() and
                          (right.samefile(scene.folder / path) or right.samefile((scene.folder / path).parent)))]
            self.assertTrue(same_file or ", copy" in scene.what or "notes" in scene.what, (read, scene.right.path))
            self.assertTrue(len(read) == 1 or "two of them read" in random_folders.OPEN, rows)

    def check_models(self, scene):
        for name, piece in scene.models.items():
            done, found = self.weights_of(scene.folder, "--model", name)
            self.assertEqual(done.returncode, 0, (name, done.stderr))
            self.assert_values(found, piece, scene, done.stderr)
        if scene.models:
            done = self.tool("zero-to-fp32", scene.folder, self.new_path(), "--model", "NONSENSE")
            self.assertIn(done.returncode, (2, 3), done.stderr)  # 3: it may be in files, which are several

    def check_all(self, scene):
        out = self.new_path()
        done = self.tool("zero-to-fp32", scene.folder, out, "--tag", "all", *scene.ages_arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = [torch_files.load(path) for path in sorted(out.rglob(BIN))]
        for each in found:
            self.assert_is_one(each, scene.ages, done.stderr)
        for piece in scene.ages:
            self.assertTrue(any(same(each, piece.values) for each in found), (piece.path, done.stderr))
        verified = self.tool("ckpt-inspect", "verify", scene.folder, "--tag", "all", *scene.ages_arguments)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)

    def check_average(self, scene):
        last = min(2, len(scene.ages))
        out = self.new_path()
        done = self.tool("zero-to-fp32", "--average", scene.folder, out, "--last", str(last), *scene.ages_arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(same(torch_files.load(out / BIN), mean(scene.ages[-last:])), done.stderr)

    def check(self, scene, chance):
        before = cli_common.snapshot(scene.folder)
        done = self.check_main(scene)
        if done.returncode:
            self.check_hint(scene, done.stderr)
        self.check_inspect(scene)
        if scene.tools:
            self.check_other_tool(scene, chance.choice(scene.tools))
        if scene.pieces:
            self.check_alone(scene, chance.choice(scene.pieces))
            self.check_tag(scene, chance.choice(scene.pieces))
        if scene.truth == TAKEN:
            self.check_relative(scene)
            self.check_table(scene)
        self.check_models(scene)
        if scene.ages:
            self.check_all(scene)
        if scene.ages and len(scene.ages) > 1:
            self.check_average(scene)
        if scene.truth == LISTED:
            average = self.tool("zero-to-fp32", "--average", scene.folder, self.new_path(), "--last", "2")
            self.assertNotEqual(average.returncode, 0, average.stderr)
        self.assertEqual(cli_common.snapshot(scene.folder), before)

    def test_the_state_that_the_path_means_or_none(self):
        scratch = self.new_path("scenes")
        maker = random_folders.Maker(scratch, int(os.environ.get("SEED", "1")))
        for number in range(int(os.environ.get("SCENES", "110"))):
            scene = maker.make(number, os.environ.get("SCENE"))
            with self.subTest(seed=maker.seed, number=number, what=scene.what, arguments=scene.arguments):
                self.check(scene, maker.random)
            shutil.rmtree(scene.folder.parent)


if __name__ == "__main__":
    cli_common.main()
