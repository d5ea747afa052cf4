"""DeepSpeed, the Trainer and Accelerate go on training from what reshard writes, at other numbers of ranks.

The quick part of resume_check.py --reshard --matrix; DSCKPT_CASES restricts it to some cases.
"""
import os
import pathlib
import tempfile
import unittest

import torch

import resume_check


class ReshardResumeTest(unittest.TestCase):

    def test_engines_of_other_sizes_hold_all_that_was_saved_and_take_the_same_losses(self):
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            entries = resume_check.run_reshard_matrix(True, os.environ.get("DSCKPT_CASES", ""), scratch / "work",
                                                      scratch / "cases")
        if not entries and os.environ.get("DSCKPT_CASES"):
            self.skipTest("no case of the quick part selected")
        self.assertTrue(entries, "no case was resumed")
        for entry in entries:
            with self.subTest(case=entry["case"], to=entry["to"]):
                self.assertEqual(entry["wrong"], [])

    def test_each_kind_of_change_is_noticed(self):
        resume = resume_check.Resume(resume_check.case_folder("z2_bf16_full_b120_w3"), {"world": 1},
                                     compare_files=True)
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            done = resume_check.reshard(resume, scratch / "out")
            self.assertEqual(done.returncode, 0, done.stderr)
            tag = resume.facts["tag"]
            self.change_optimizer(scratch / "out" / tag / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
            self.change_model(scratch / "out" / tag / "mp_rank_00_model_states.pt")
            result = resume_check.run_resume(resume, scratch / "out", tag, False, scratch / "logs")
        self.assertEqual([key.split("|")[1] for key in result["states"]["different"]], ["exp_avg"])
        said = "\n".join(result["unlike"])
        for what in ("state['step']", "group['weight_decay']", "loss scaler['cur_scale']", "global_samples",
                     "module: stats.freq_table", "module: head.weight"):
            self.assertIn(what, said)

    @staticmethod
    def change_optimizer(path):
        file = torch.load(path, weights_only=False)
        optim = file["optimizer_state_dict"]
        base = optim["base_optimizer_state"]
        base["state"][0]["exp_avg"][0] += 1
        base["state"][1]["step"] += 1
        base["param_groups"][1]["weight_decay"] = 0.01
        optim["loss_scaler"].cur_scale = 2.0
        torch.save(file, path)

    @staticmethod
    def change_model(path):
        file = torch.load(path, weights_only=False)
        file["global_samples"] += 1
        file["module"]["stats.freq_table"][0] += 1
        file["module"]["head.weight"][0, 0] += 1
        torch.save(file, path)


if __name__ == "__main__":
    unittest.main()
