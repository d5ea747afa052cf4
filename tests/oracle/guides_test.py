"""apps/guides/OTHER_GPUS.md and SHORT_OF_RAM.md as they stand there. torchrun runs their training on gloo. It
goes on from the results of their commands, with the losses of the run that was never interrupted."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from guides_blocks import blocks

PAGES = {"gpus": "OTHER_GPUS.md", "ram": "SHORT_OF_RAM.md"}
STEPS, ALL_STEPS = 5, 8


def losses(said):
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", said, re.MULTILINE)}


class GuidesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-guides-")
        cls.addClassCleanup(holder.cleanup)
        cls.root = pathlib.Path(holder.name)
        source = pathlib.Path(os.environ["DSCKPT_SOURCE"])
        python = pathlib.Path(sys.executable).parent
        path = [os.environ.get("DSCKPT_NATIVE", ""), str(source / "lib/python"), os.environ.get("PYTHONPATH", "")]
        cls.environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1",
                           "PATH": f"{os.environ['DSCKPT_BIN']}:{python}:{os.environ['PATH']}",
                           "PYTHONPATH": ":".join(filter(None, path))}
        cls.program, = (block for block in blocks(PAGES["gpus"]) if "engine.backward" in block)
        cls.configuration, = (block for block in blocks(PAGES["gpus"]) if "train_batch_size" in block)
        cls.save, = (block for block in blocks(PAGES["gpus"]) if block.startswith("torchrun --nproc_per_node 3"))
        cls.patch, = blocks(PAGES["gpus"], "Without files")[:1]
        whole = cls.folder("whole")
        cls.whole = losses(cls.bash(whole, cls.save.replace(f"train.py {STEPS}", f"train.py {ALL_STEPS}")))
        cls.saved = cls.folder("saved")
        cls.bash(cls.saved, cls.save)

    @classmethod
    def folder(cls, name):
        folder = cls.root / name
        folder.mkdir()
        (folder / "train.py").write_text(cls.program)
        (folder / "ds_config.json").write_text(cls.configuration)
        return folder

    @classmethod
    def bash(cls, folder, text):
        # DeepSpeed's files in /dev/shm for each rank on the CPU go with the run.
        before = set(os.listdir("/dev/shm"))
        done = subprocess.run(["bash", "-e", "-c", text], cwd=folder, env=cls.environment, capture_output=True,
                              text=True, timeout=600)
        for name in set(os.listdir("/dev/shm")) - before:
            if name.startswith("deepspeed"):
                pathlib.Path("/dev/shm", name).unlink(missing_ok=True)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr[-3000:]}"
        return done.stdout

    def place(self):
        """A folder with the checkpoint of 3 ranks, as the guides have it."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.root)) / "place"
        shutil.copytree(self.saved, folder)
        return folder

    def assert_goes_on(self, said):
        found = losses(said)
        self.assertEqual(sorted(found), list(range(STEPS + 1, ALL_STEPS + 1)))
        for step, loss in found.items():
            self.assertAlmostEqual(loss, self.whole[step], delta=1e-5)

    def test_with_files(self):
        folder = self.place()
        dry, = [block for block in blocks(PAGES["gpus"], "With files") if "--dry-run" in block]
        self.bash(folder, dry)
        self.assertFalse((folder / "run_on_2").exists())
        commands, = [block for block in blocks(PAGES["gpus"], "With files") if "--dry-run" not in block]
        self.assert_goes_on(self.bash(folder, commands))

    def test_without_files(self):
        folder = self.place()
        (folder / "train.py").write_text(self.patch + self.program)
        _, command = blocks(PAGES["gpus"], "Without files")
        self.assert_goes_on(self.bash(folder, command))

    def test_the_states_are_equal(self):
        folder = self.place()
        self.bash(folder, "reshard run run_on_2 --dp 2")
        commands, = blocks(PAGES["gpus"], "Is it the same training?")
        self.bash(folder, commands)

    def test_a_rank_reads_its_own_part(self):
        if "DSCKPT_NATIVE" not in os.environ:
            self.skipTest("the compiled module is not built")
        install, patch, commands = blocks(PAGES["ram"], "A rank reads its own part")
        self.assertEqual(install, "pip install dsckpt[native]\n")
        for command in commands.splitlines():
            with self.subTest(command):
                folder = self.place()
                (folder / "train.py").write_text(patch + self.program)
                self.assert_goes_on(self.bash(folder, command))

    def test_tools_in_little_memory(self):
        folder = self.place()
        for heading in ("Files made in little memory", "Before the job starts",
                        "Where even the optimizer does not fit"):
            for block in blocks(PAGES["ram"], heading):
                said = self.bash(folder, block)
                if "--json" in block:
                    self.assertIn('"memory"', said)
        for name in ("run_on_2", "weights", "run_weights"):
            self.assertTrue((folder / name).is_dir(), name)


if __name__ == "__main__":
    unittest.main()
