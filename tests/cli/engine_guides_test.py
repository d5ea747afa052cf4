"""The scripts to paste of apps/ENGINES.md run as they stand there, as far as they can here. The shell plays the
engines; Ray and Dask are used where they are installed."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import unittest

import tools
from cli_common import STAGING, CliTest, tree

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "apps/ENGINES.md").read_text()
# Runs the script, or what --wrap says, for each index of an array, as a job that has ended when this returns.
SBATCH = r"""#!/bin/bash
indices=none
for word; do case $word in
  --array=0-*) indices=$(seq 0 "${word#--array=0-}") last=${word#--array=0-};;
  --dependency=afterany:17) after=yes;;
  --parsable) echo 17;;
  --wrap) ;;
  *) script=$word;;
esac; done
exec >&2
case $script in *.sh) run=(bash "$script");; *) run=(sh -c "$script"); [ "$after" ] || exit 9;; esac
for index in $indices; do
  SLURM_ARRAY_TASK_ID=$index SLURM_ARRAY_TASK_COUNT=$((last + 1)) "${run[@]}" || exit
done
"""
QSUB = r"""#!/bin/bash
export PBS_O_WORKDIR=$PWD
if [ "$1" = -J ]; then
  echo '17[].server'
  for index in $(seq 0 "${2#0-}"); do (cd / && PBS_ARRAY_INDEX=$index bash "$PBS_O_WORKDIR/$3" >&2) || exit; done
else
  [ "$2" = 'depend=afterany:17[].server' ] || exit 9
  cd / && sh -s >&2
fi
"""


def blocks(heading):
    """The code of a section, block by block."""
    section = re.search(rf"(?ms)^## {re.escape(heading)}.*?(?=^## |\Z)", PAGE)[0]
    return re.findall(r"(?ms)^```\w*\n(.*?)^```", section)


class GuidesTest(CliTest):

    def setUp(self):
        super().setUp()
        self.place = self.new_path("place")
        self.place.mkdir()
        shutil.copytree(tools.case_named("z3_bf16_full_subgroups_w4").load_dir, self.place / "checkpoint-500")
        commands = self.new_path("bin")
        commands.mkdir()
        for name, text in {"sbatch": SBATCH, "qsub": QSUB}.items():
            (commands / name).write_text(text)
            (commands / name).chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{commands}:{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}",
                            "PYTHONPATH": f"{ROOT / 'lib/python'}:{os.environ.get('PYTHONPATH', '')}"}

    def bash(self, text, **variables):
        done = subprocess.run(["bash", "-e", "-c", text], cwd=self.place, capture_output=True, text=True, timeout=120,
                              env={**self.environment, **variables})
        self.assertEqual(done.returncode, 0, done.stderr)

    def assert_converted(self):
        alone = self.new_path("alone")
        done = tools.run_tool("zero-to-fp32", self.place / "checkpoint-500", alone, "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(tree(self.place / "weights") == tree(alone))
        self.assertEqual([path for path in self.place.rglob(STAGING + "*")], [])

    def test_by_hand(self):
        commands, = blocks("By hand")
        self.bash(commands)
        self.assert_converted()

    def test_slurm(self):
        script, commands = blocks("Slurm")
        (self.place / "convert.sh").write_text(script)
        self.bash(commands)
        self.assert_converted()

    def test_pbs(self):
        script, commands = blocks("PBS")
        (self.place / "convert.pbs").write_text(script)
        self.bash(commands)
        self.assert_converted()

    def test_kubernetes(self):
        job, = blocks("Kubernetes")
        count = int(re.search(r"completions: (\d+)", job)[1])
        command = re.search(r'args: \["(.*)"\]', job)[1]
        self.assertIn(f"/{count}", command)
        try:
            import yaml
        except ImportError:
            pass
        else:
            spec = yaml.safe_load(job)["spec"]
            self.assertEqual(spec["template"]["spec"]["containers"][0]["args"], [command])
        pods = [subprocess.Popen(["sh", "-c", command], cwd=self.place, stderr=subprocess.PIPE, text=True,
                                 env={**self.environment, "JOB_COMPLETION_INDEX": str(index)})
                for index in reversed(range(count))]
        for pod in pods:
            _, said = pod.communicate(timeout=120)
            self.assertEqual(pod.returncode, 0, said)
        self.assert_converted()

    def python(self, text):
        done = subprocess.run([sys.executable, "-c", text], cwd=self.place, capture_output=True, text=True, timeout=180,
                              env={**self.environment, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_python(self):
        text, = blocks("Any executor")
        (self.place / "convert.py").write_text(text)
        self.bash(f"{sys.executable} convert.py")
        self.assert_converted()

    def test_ray(self):
        self.skip_without("ray")
        text, = blocks("Ray")
        start = "import ray\nray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)\n"
        self.python(start + text)
        self.assert_converted()

    def test_dask(self):
        self.skip_without("distributed")
        text, = blocks("Dask")
        for what, options in (("scheduler", ["--port", "0"]), ("worker", ["--no-nanny"])):
            process = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + what, "--no-dashboard", "--host", "127.0.0.1",
                 "--scheduler-file", "scheduler.json", *options], cwd=self.place, env=self.environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
        wait = textwrap.dedent("""
            import pathlib, time
            while not pathlib.Path("scheduler.json").exists():
                time.sleep(0.1)
        """)
        self.python(wait + text)
        self.assert_converted()

    def skip_without(self, package):
        import importlib.util
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"{package} is not installed")


if __name__ == "__main__":
    unittest.main()
