#!/usr/bin/env python3
"""A node or a launcher is lost, or a rank never comes. The others do the work, or say so in time and the next
start goes on.

    sudo tests/support/slurm_cluster.py scripts/python tests/cli/group_losses.py
"""
import os
import pathlib
import signal
import subprocess
import time
import unittest

import large_checkpoint
import group_kills
import ranks
import tools
from cli_common import STAGING, CliTest, tree
from rank_jobs import Job, environment_of, is_alive, parent_of

RANK_TIMEOUT = 5


class LossTest(CliTest):

    def setUp(self):
        super().setUp()
        self.source = self.new_path("ckpt")
        large_checkpoint.write_one(self.source, 6 << 20)
        alone = self.new_path("alone")
        self.assertEqual(tools.run_tool("zero-to-fp32", self.source, alone).returncode, 0)
        self.expected = tree(alone)

    def begun(self, launcher, size, **more):
        """A job that has written something, its folder, and that of its output."""
        home = self.new_path("home")
        (home / "place").mkdir(parents=True)
        command = ["zero-to-fp32", self.source, home / "place" / "out", "--limit-rate", "8MB", "--rank-timeout",
                   RANK_TIMEOUT, "--resume", "--save-every", "0"]
        job = Job(launcher, size, command, home, **more)
        deadline = time.monotonic() + 60
        while not any((home / "place").glob(f"{STAGING}*/journal")) and time.monotonic() < deadline:
            time.sleep(0.02)
        job.look()
        return job, home

    def assert_ends(self, job, seconds, without=()):
        """All ranks but some, which are killed then. Returns in how many seconds."""
        begin = time.monotonic()
        while any(is_alive(pid) for rank, pid in job.look().items() if rank not in without):
            self.assertLess(time.monotonic() - begin, seconds, "ranks have not ended")
            time.sleep(0.02)
        return time.monotonic() - begin

    def assert_whole(self, home):
        self.assertEqual(tree(home / "place" / "out"), self.expected)
        self.assertEqual([path.name for path in (home / "place").iterdir()], ["out"])

    def assert_goes_on(self, home, launcher, size, options=()):
        job = Job(launcher, size, ["zero-to-fp32", self.source, home / "place" / "out", "--resume"], home, options=options)
        self.assertIsNotNone(job.wait(60))
        statuses, said = job.end()
        self.assertFalse(any(statuses), said)
        self.assert_whole(home)

    @unittest.skipUnless("SLURM_CONF" in os.environ, "needs slurm_cluster.py")
    def test_a_node_is_lost(self):
        conf = pathlib.Path(os.environ["SLURM_CONF"])
        for victim in range(3):
            with self.subTest(victim=victim):
                job, home = self.begun("srun", 3)
                lost = job.look()[victim]
                node = environment_of(lost)["SLURMD_NODENAME"]
                step = parent_of(lost)
                daemon = int((conf.parent / f"slurmd-{node}.pid").read_text())
                for pid in (daemon, step, lost):
                    os.kill(pid, signal.SIGKILL)
                # The nodes are one machine, so that the loss of a process is seen at once.
                took = self.assert_ends(job, 20)
                launcher_took = job.wait(120)
                statuses, said = job.end()
                try:
                    messages = group_kills.errors_in(said)
                    if victim:
                        self.assertEqual(messages, [])
                        self.assert_whole(home)
                    else:
                        self.assertEqual(len(messages), 1, said)
                        self.assertRegex(messages[0][1], r"rank 0 on \S+ is gone")
                        self.assertTrue(any(statuses))
                        self.assert_goes_on(home, "srun", 2, [f"--exclude={node}"])
                finally:
                    self.restart(node, conf)
                print(f"node of rank {victim}: ranks ended after {took:.1f} s, srun after {launcher_took} s")

    def restart(self, node, conf):
        subprocess.run(["slurmd", "-N", node, "-f", conf], check=True)
        for _ in range(120):
            subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], capture_output=True)
            states = subprocess.run(["sinfo", "-h", "-N", "-n", node, "-o", "%t"], capture_output=True, text=True).stdout
            if states.strip() == "idle":
                return
            time.sleep(0.5)
        self.fail(f"{node} does not come back: {states}")

    @unittest.skipUnless("Open MPI" in ranks.programs(), "needs Open MPI")
    def test_the_launcher_is_lost(self):
        job, home = self.begun("Open MPI", 3)
        os.kill(job.processes["launcher"].pid, signal.SIGKILL)
        self.assert_ends(job, 20)
        job.end()
        self.assert_whole(home)

    def absent(self, launcher, **more):
        home = self.new_path("home")
        (home / "place").mkdir(parents=True)
        begin = time.monotonic()
        job = Job(launcher, 3, ["zero-to-fp32", self.source, home / "place" / "out"], home, **more)
        return job, home, begin

    def test_a_rank_never_starts(self):
        job, home, begin = self.absent("by hand", absent=[2])
        self.assertIsNotNone(job.wait(60))
        self.assertEqual(job.end()[0], [0, 0])
        self.assertGreater(time.monotonic() - begin, 25)
        self.assert_whole(home)

    def test_rank_0_never_starts(self):
        job, home, _ = self.absent("by hand", absent=[0])
        self.assertIsNotNone(job.wait(60))
        statuses, said = job.end()
        self.assertEqual(statuses, [4, 4])
        messages = group_kills.errors_in(said)
        self.assertEqual({rank for rank, _ in messages}, {"1", "2"})
        self.assertRegex(messages[0][1], r"has not found rank 0 within 30 s")
        self.assertEqual(list((home / "place").iterdir()), [])

    def test_a_rank_is_stopped_before_it_comes(self):
        for launcher in ("by hand", *ranks.programs()):
            with self.subTest(launcher=launcher):
                job, home, _ = self.absent(launcher, victim=2, first="kill -STOP $$")
                deadline = time.monotonic() + 60
                while not (home / "place" / "out").exists() and time.monotonic() < deadline:
                    time.sleep(0.1)
                job.end()
                self.assert_whole(home)


if __name__ == "__main__":
    unittest.main()
