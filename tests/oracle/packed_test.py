"""Packed checkpoints and those of the zstd command. Unpacked they are the originals, and every tool gives the
same result as for the plain one, byte for byte.

The other tests check that the results for the plain one are right. DSCKPT_ALL=1 has every tool read every case.
"""
import json
import os
import pathlib
import re
import shutil

import oracle
import stored_forms
import tools
from stored_forms import contents

FORMS = ("plain", "packed", "zstd")
ALL = bool(os.environ.get("DSCKPT_ALL"))


def all_cases():
    return [*oracle.all_cases(), *oracle.model_parallel_cases()]


def some_cases(half):
    return all_cases() if ALL else all_cases()[half::2]


def commands(case):
    """The commands for each folder, in which the case's files are in ckpt/."""
    tag = pathlib.Path("ckpt") / case.facts["tag"]
    old = case.facts.get("world_size") or case.facts["topology"]["dp"]
    yield "zero-to-fp32", "ckpt", "bin", "--states", "--verify"
    yield "zero-to-fp32", "ckpt", "safetensors", "--safe-serialization", "--dtype=bf16"
    yield "to-universal", "--input-folder", tag, "--output-folder", "made/universal"
    yield "reshard", "ckpt", "resharded", "--dp", old + 1
    yield "reshard", tag, "resharded-tag", "--dp", 2 * old
    for command in ("list --states", "stats --states", "tree", "verify --finite", "scan"):
        yield "ckpt-inspect", *command.split(), "ckpt", "--json"


class PackedTest(oracle.OracleTest):

    def stored(self, case, folder):
        """form -> a folder with the case's files in ckpt/."""
        places = {form: folder / form for form in FORMS}
        for place in places.values():
            place.mkdir()
        shutil.copytree(case.load_dir, places["plain"] / "ckpt")
        stored_forms.pack(case.load_dir, places["packed"] / "ckpt")
        stored_forms.zstd_copy(case.load_dir, places["zstd"] / "ckpt")
        return places

    def answers(self, places, *command):
        """By form, what can be seen of a run, without the name of its folder."""
        seen = {}
        for form, place in places.items():
            done = tools.run_tool(*command, cwd=place)
            said = re.sub(r", [\d.]+ m?s, ", ", ", done.stderr)  # how long it took
            # Packed files have checksums, even of files that have none.
            if "the input has no checksums" in seen.get("plain", [0, "", ""])[2]:
                said = re.sub(r"(\d+|the packed input's) checksums verified", "the input has no checksums", said)
            said = re.sub(r", [\d.]+ [KM]?B without any", "", said)
            seen[form] = [done.returncode, *(text.replace(str(place), "") for text in (done.stdout, said))]
        return seen

    def assert_same_answers(self, places, *command):
        """The exit code."""
        seen = self.answers(places, *command)
        for form in FORMS[1:]:
            self.assertEqual(seen[form], seen["plain"], f"{form}: {command}")
        return seen["plain"][0]

    def test_unpacking_gives_every_file_back(self):
        for case in all_cases():
            with self.each_case(case) as folder:
                places = self.stored(case, folder)
                expected = contents(case.load_dir)
                self.assertTrue(any(stored_forms.is_of_tensors(pathlib.Path(name)) for name in expected))
                for form, suffix in (("packed", ".dspack"), ("zstd", ".zst")):
                    self.assertEqual(set(contents(places[form] / "ckpt")),
                                     {name + suffix * stored_forms.is_of_tensors(pathlib.Path(name)) for name in expected})
                    out = folder / f"{form}-unpacked"
                    self.run_well("ckpt-pack", out, "unpack", places[form] / "ckpt", out)
                    self.assertEqual(contents(out), expected)

    def test_what_is_packed_of_zstd_files_is_what_is_packed_of_plain_ones(self):
        for case in all_cases()[::5]:
            with self.each_case(case) as folder:
                places = self.stored(case, folder)
                repacked = stored_forms.pack(places["zstd"] / "ckpt", folder / "repacked")
                self.assertEqual(contents(repacked), contents(places["packed"] / "ckpt"))
                repacked = stored_forms.pack(places["packed"] / "ckpt", folder / "again")
                self.assertEqual(contents(repacked), contents(places["packed"] / "ckpt"))

    def test_every_tool_answers_the_same(self):
        done = set()
        for case in some_cases(0):
            with self.each_case(case) as folder:
                places = self.stored(case, folder)
                for command in commands(case):
                    if self.assert_same_answers(places, *command) == 0:
                        done.add(command[0])
                self.check_one_tensor(places)
                for form in FORMS[1:]:
                    found = tools.run_tool("ckpt-inspect", "diff", "plain/ckpt", f"{form}/ckpt", "--states", "--json",
                                            cwd=folder)
                    self.assertEqual(found.returncode, 0, found.stdout + found.stderr)
                for place in places.values():
                    shutil.rmtree(place / "ckpt")
                made = {form: contents(place) for form, place in places.items()}
                self.assertTrue(made["plain"])
                for form in FORMS[1:]:
                    self.assertEqual(sorted(made[form]), sorted(made["plain"]))
                    for name, data in made["plain"].items():
                        self.assertTrue(made[form][name] == data, f"{form}: {name}")
        self.assertEqual(done, {"zero-to-fp32", "to-universal", "reshard", "ckpt-inspect"})

    def check_one_tensor(self, places):
        listed = json.loads(tools.run_tool("ckpt-inspect", "list", places["plain"] / "ckpt", "--json").stdout)
        largest = max(listed["data"]["tensors"], key=lambda tensor: tensor["bytes"])["name"]
        for command in ("where", "print"):
            self.assertEqual(
                self.assert_same_answers(places, "ckpt-inspect", command, "ckpt", largest, "--json"), 0)

    def test_universal_input_answers_the_same(self):
        compared = 0
        for case in some_cases(1):
            with self.each_case(case) as folder:
                universal = folder / "universal"
                made = tools.run_tool("to-universal", "--input-folder", case.tag_folder, "--output-folder", universal)
                if made.returncode:
                    continue  # what is refused, and why, is universal_test.py's
                compared += 1
                places = {form: folder / form for form in FORMS}
                for place in places.values():
                    place.mkdir()
                shutil.copytree(universal, places["plain"] / "ckpt")
                stored_forms.pack(universal, places["packed"] / "ckpt")
                stored_forms.zstd_copy(universal, places["zstd"] / "ckpt")
                for command in (["zero-to-fp32", "ckpt", "out", "--states", "--safe-serialization"],
                                ["reshard", "ckpt", "resharded", "--dp", "3"],
                                ["ckpt-inspect", "list", "ckpt", "--states", "--json"],
                                ["ckpt-inspect", "verify", "ckpt", "--json"],
                                ["ckpt-inspect", "stats", "ckpt", "--states", "--json"]):
                    self.assert_same_answers(places, *command)
                for place in places.values():
                    shutil.rmtree(place / "ckpt")
                made = {form: contents(place) for form, place in places.items()}
                self.assertTrue(made["plain"])
                for form in FORMS[1:]:
                    self.assertTrue(made[form] == made["plain"], form)
        self.require(compared, "case that becomes universal")


if __name__ == "__main__":
    tools.main()
