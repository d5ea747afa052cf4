"""ckpt-inspect scan of files that no writer writes. A pickle, a zip or an array can lead a loader to something
else than it seems. Every such way is refused, in each of its spellings. The same pieces pass as writers put
them."""
import random

import cli_common
import hostile_loads
from hostile_pickles import Grammar, attacks, harmless
from scan_case import ScanCase

GENERATED = 1500


class ScanAttacksTest(ScanCase):

    def written_all(self, files):
        folder = self.new_path("files")
        folder.mkdir()
        for file, content in files:
            path = folder / file
            self.assertFalse(path.exists(), file)
            path.write_bytes(content)
        return folder

    def classes_of(self, folder):
        """The worst class of each file, as one scan of the folder says it."""
        data = self.scanned(folder)
        order = ["harmless", "allowed", "unknown", "dangerous"]
        classes = {path.name: "harmless" for path in folder.iterdir()}
        for part in data["findings"] + data["unreadable"]:
            classes[part["file"]] = max(classes[part["file"]], part["class"], key=order.index)
        return classes

    def test_no_attack_is_harmless(self):
        classes = self.classes_of(self.written_all(attacks()))
        self.assertGreater(len(classes), 400)
        self.assertEqual([file for file, found in classes.items() if found == "harmless"], [])

    def test_each_attack_alone_fails(self):
        """Files beside it change nothing."""
        dice = random.Random(4)
        for file, content in dice.sample(list(attacks()), 60):
            with self.subTest(file=file):
                self.scanned(self.written(content, file), code=1)

    def test_what_writers_make_of_the_same_pieces_passes(self):
        folder = self.written_all(harmless())
        self.assertEqual({file for file, found in self.classes_of(folder).items() if found != "harmless"}, set())

    def test_what_is_refused_says_where_and_why(self):
        for file, content in attacks():
            if file not in ("memo-put-1_0.pkl", "numpy-scalar-int64-plain.pkl", "zip-method-8-local-0.pt",
                            "state-twice.pkl"):
                continue
            with self.subTest(file=file):
                data = self.scanned(self.written(content, file), code=1)
                reasons = [part["reason"] for part in data["findings"] + data["unreadable"] if "reason" in part]
                self.assertTrue(any(reason.startswith(("at ", "a broken zip: ")) for reason in reasons), data)

    def test_nothing_that_does_something_is_harmless(self):
        """A part of oracle/scan_campaign.py, with the loaders that need no torch."""
        dice = random.Random(20261127)
        grammar = Grammar(dice, with_torch=False)
        folder = self.written_all((f"{number}{ending}", content) for number, (ending, content) in
                                  enumerate(grammar.file() for _ in range(GENERATED)))
        paths = sorted(folder.iterdir())
        found = self.classes_of(folder)
        done = hostile_loads.what_they_do([str(path) for path in paths])
        self.assertGreater(sum(what & hostile_loads.RUNS for what in done), 50)
        self.assertGreater(sum(kind == "harmless" for kind in found.values()), 50)
        missed = [(path.name, what) for path, what in zip(paths, done) if what and found[path.name] == "harmless"]
        self.assertEqual(missed, [])


if __name__ == "__main__":
    cli_common.main()
