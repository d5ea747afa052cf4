"""DeepSpeed itself goes on training from what to-universal writes, at other numbers of ranks.

The quick part of resume_check.py --matrix; DSCKPT_CASES restricts it to some cases.
"""
import json
import os
import pathlib
import tempfile
import unittest

import torch

import resume_check


class ResumeTest(unittest.TestCase):

    def test_engines_of_other_sizes_hold_the_same_states_and_take_the_same_losses(self):
        with tempfile.TemporaryDirectory() as scratch:
            entries = resume_check.run_matrix(quick=True, only=os.environ.get("DSCKPT_CASES", ""),
                                              scratch=pathlib.Path(scratch))
        if not entries and os.environ.get("DSCKPT_CASES"):
            self.skipTest("no case of the quick part selected")
        self.assertTrue(entries, "no case was resumed")
        for entry in entries:
            with self.subTest(case=entry["case"], size=entry["size"]):
                self.assertEqual(entry["wrong"], [])

    def test_a_changed_optimizer_state_is_noticed(self):
        folder = resume_check.case_folder("z1_fp32_w2")
        facts = json.loads((folder / "case.json").read_text())
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            self.assertIsNone(resume_check.convert(facts, folder, scratch / "universal"))
            path = scratch / "universal" / "zero" / "wide.weight" / "exp_avg.pt"
            state = torch.load(path, weights_only=True)
            state["param"][-1] += 1
            torch.save(state, path)
            result = resume_check.run_resume(resume_check.Resume(folder, {"world": 1}), scratch, "universal", True,
                                             scratch / "logs")
        self.assertEqual(result["states"]["different"], ["wide.weight|exp_avg"])
        self.assertGreater(result["largest_difference"], resume_check.TOLERANCE["fp32"])


if __name__ == "__main__":
    unittest.main()
