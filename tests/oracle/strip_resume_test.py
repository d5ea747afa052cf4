"""DeepSpeed goes on training from the output of ckpt-pack strip, bit for bit as from the folder that was
stripped. It refuses one that has the weights alone.
"""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import torch

import resume_check

# A case of each layout that keeps its tensors elsewhere.
CASES = ["z0_bf16_w2", "z1_bf16opt_full_w3", "z2_bf16_full_b120_w3", "z3_fp32_full_w2"]


def bloat(value):
    """The same object, but that every tensor is a part of a much larger one, which is saved whole."""
    if isinstance(value, torch.Tensor):
        large = torch.full((value.numel() + 3000,), 7, dtype=value.dtype)
        part = large[1000:1000 + value.numel()].view(value.shape)
        part.copy_(value.detach())
        if isinstance(value, torch.nn.Parameter):
            part = torch.nn.Parameter(part, value.requires_grad)
        part.requires_grad_(value.requires_grad)
        part.__dict__.update(value.__dict__)
        return part
    if isinstance(value, dict):
        for key in value:
            value[key] = bloat(value[key])
    elif isinstance(value, list):
        value[:] = [bloat(item) for item in value]
    return value


class StripResumeTest(unittest.TestCase):

    def each_case(self, check):
        chosen = [name for name in CASES if re.search(os.environ.get("DSCKPT_CASES", ""), name)]
        if not chosen:
            self.skipTest("no case selected")
        for name in chosen:
            with self.subTest(case=name), tempfile.TemporaryDirectory() as scratch:
                check(resume_check.Resume(resume_check.case_folder(name), {}, compare_files=True),
                      pathlib.Path(scratch))

    def strip(self, resume, source, output, keep):
        done = subprocess.run(
            [resume_check.tool_folder() / "ckpt-pack", "strip", source, output, "--keep", keep, "--tag",
             resume.facts["tag"]], capture_output=True, text=True, timeout=resume_check.TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_training_goes_on_as_from_the_bloated_folder_and_the_original(self):
        self.each_case(self.check_training)

    def check_training(self, resume, scratch):
        saved, tag = resume.folder / resume.facts["load_dir"], resume.facts["tag"]
        shutil.copytree(saved, scratch / "bloated")
        for path in (scratch / "bloated").rglob("*.pt"):
            path.chmod(0o644)
            torch.save(bloat(torch.load(path, weights_only=False)), path)
        self.strip(resume, scratch / "bloated", scratch / "stripped", "resume")
        sizes = {name: sum(path.stat().st_size for path in folder.rglob("*.pt"))
                 for name, folder in [("saved", saved), ("bloated", scratch / "bloated"),
                                      ("stripped", scratch / "stripped")]}
        self.assertGreater(sizes["bloated"], 2 * sizes["saved"], sizes)
        # Tensors that shared one storage have now their own, each with a header.
        self.assertLess(sizes["stripped"], 1.25 * sizes["saved"], sizes)
        results = {name: resume_check.run_resume(resume, folder, tag, False, scratch / "logs" / name)
                   for name, folder in [("saved", saved), ("stripped", scratch / "stripped")]}
        self.assertNotIn("error", results["saved"])
        self.assertEqual(results["saved"]["unlike"], [])
        self.assertEqual(results["stripped"], results["saved"])

    def test_deepspeed_does_not_take_weights_for_a_whole_checkpoint(self):
        self.each_case(self.check_weights)

    def check_weights(self, resume, scratch):
        self.strip(resume, resume.folder / resume.facts["load_dir"], scratch / "stripped", "weights")
        result = resume_check.run_resume(resume, scratch / "stripped", resume.facts["tag"], False, scratch / "logs")
        self.assertRegex(result.get("error", "nothing was wrong"), "(?i)meta")


if __name__ == "__main__":
    unittest.main()
