"""apps/guides/NVME_AND_NAS.md: its job runs as it stands there, beside a training that saves by copying. The guides
with real trainings are tests/oracle/guides_test.py's."""
import os
import subprocess

import cli_common
from guides_blocks import blocks
from keep_test import RECORD, KeepCase, files


class NvmeAndNasTest(KeepCase):

    def job(self, steps, run, status=0):
        """The job of the page, whose training expects what `latest` names to be there, and saves those steps."""
        commands = self.new_path("bin")
        commands.mkdir()
        saves = "".join(f"cp -r {self.template(step)} $2/ && printf global_step{step} > $2/latest\n" for step in steps)
        (commands / "python").write_text(
            "#!/bin/bash\nmkdir -p $2\n[ ! -e $2/latest ] || [ -d $2/$(cat $2/latest) ] || exit 9\n"
            f"{saves}exit {status}\n")
        (commands / "python").chmod(0o755)
        (self.root / "job.sh").write_text(blocks("NVME_AND_NAS.md")[0])
        environment = {**self.environment, "RUN": str(run), "PLACE": str(self.place),
                       "PATH": f"{commands}:{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", self.root / "job.sh"], env=environment, capture_output=True, text=True,
                              timeout=120)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done, environment

    def test_the_job_begins_goes_on_and_moves_to_another_machine(self):
        self.job((10, 20, 30), self.run_folder)
        self.assertEqual(self.names(self.run_folder), ["global_step20", "global_step30"])
        self.assertEqual(self.names(self.place), ["global_step10", "global_step20", "global_step30"])
        self.job((40,), self.run_folder, status=5)
        self.assertEqual(self.names(self.run_folder), ["global_step30", "global_step40"])
        other = self.new_path("other")
        done, environment = self.job((50,), other)
        self.assertIn("global_step40: restored", done.stdout)
        self.assertEqual(self.names(other), ["global_step40", "global_step50"])
        self.assertTrue(files(other / "global_step40") == files(self.template(40)))
        self.assertEqual(self.names(self.place), [f"global_step{step}" for step in (10, 20, 30, 40, 50)])
        for name in self.names(self.place):
            self.assertTrue((self.place / name / RECORD).exists())
        looks, = blocks("NVME_AND_NAS.md", "What is where")
        for command in looks.splitlines():
            done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, command + done.stdout + done.stderr)


if __name__ == "__main__":
    cli_common.main()
