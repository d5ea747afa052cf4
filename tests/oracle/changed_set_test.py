"""Another set of parameters against DeepSpeed. The engine of the new model loads reshard's output from the old
one's checkpoint. Every weight, master and state is where it belongs, and its next step is AdamW's.
"""
import pathlib
import tempfile
import unittest

import start_test

WORKER = pathlib.Path(__file__).with_name("changed_set_worker.py")
ALL = ["unfreeze", "freeze", "add", "drop"]


def case(stage, *changes, bf16=False, groups=2, like=False, **zero):
    return {"stage": stage, "changes": changes, "bf16": bf16, "groups": groups, "like": like, "zero": zero}


class ChangedSetTest(unittest.TestCase):

    def check(self, world, *cases):
        with tempfile.TemporaryDirectory() as folder:
            all_found = start_test.run(pathlib.Path(folder), world, WORKER, cases=cases)
        self.assertEqual(len(all_found), len(cases))
        for options, found in zip(cases, all_found):
            with self.subTest(world=world, **options):
                self.assertEqual(found["wrong"], [])
                self.assertEqual("fc.lora_a.weight" in found["held"], "add" in options["changes"])

    def test_alone(self):
        self.check(1, *(case(stage, *ALL, "mean") for stage in range(4)),
                   *(case(stage, "fewer", bf16=True) for stage in (1, 3)))

    def test_on_two_ranks(self):
        self.check(2, *(case(stage, *ALL, "mean") for stage in range(4)),
                   *(case(stage, change, bf16=True) for stage, change in
                     ((1, "unfreeze"), (2, "freeze"), (3, "add"), (3, "drop"), (2, "rows"), (3, "freeze"))),
                   *(case(3, *ALL, "zero", groups=1, sub_group_size=size) for size in (100, 1)),
                   case(2, *ALL, "rows", like=True), case(3, *ALL, "rows", like=True))


if __name__ == "__main__":
    unittest.main()
