#!/usr/bin/env python3
"""A node is lost, the network is cut, a rank never comes: the others say so in time, and the next start goes on.

    sudo tests/support/slurm_cluster.py scripts/python tests/cli/group_losses.py
"""
import os
import pathlib
import re
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
BRIDGE = "dsckpt-br"


def ip(*words, check=True):
    return subprocess.run(["ip", *map(str, words)], check=check, capture_output=True, text=True).returncode == 0


class Network:
    """Ranks in network namespaces of their own, each on a cable to one bridge."""

    def __init__(self, size):
        self.size = size
        ip("link", "add", BRIDGE, "type", "bridge")
        ip("link", "set", BRIDGE, "up")
        for rank in range(size):
            ip("netns", "add", f"dsckpt-{rank}")
            ip("link", "add", f"dsckpt-v{rank}", "type", "veth", "peer", "name", "eth0", "netns", f"dsckpt-{rank}")
            ip("link", "set", f"dsckpt-v{rank}", "master", BRIDGE, "up")
            ip("-n", f"dsckpt-{rank}", "address", "add", f"10.213.77.{rank + 1}/24", "dev", "eth0")
            ip("-n", f"dsckpt-{rank}", "link", "set", "eth0", "up")
            ip("-n", f"dsckpt-{rank}", "link", "set", "lo", "up")

    def cut(self, rank):
        ip("link", "set", f"dsckpt-v{rank}", "down")

    def close(self):
        for rank in range(self.size):
            ip("netns", "delete", f"dsckpt-{rank}", check=False)
            ip("link", "delete", f"dsckpt-v{rank}", check=False)
        ip("link", "delete", BRIDGE, check=False)


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

    def assert_ends(self, job, home, seconds, without=()):
        """All ranks but some, which are killed then: their messages."""
        begin = time.monotonic()
        while any(is_alive(pid) for rank, pid in job.look().items() if rank not in without):
            self.assertLess(time.monotonic() - begin, seconds, "ranks have not ended")
            time.sleep(0.02)
        took = time.monotonic() - begin
        self.assertFalse((home / "place" / "out").exists())
        return took

    def assert_goes_on(self, home, launcher, size, options=()):
        job = Job(launcher, size, ["zero-to-fp32", self.source, home / "place" / "out", "--resume"], home, options=options)
        self.assertIsNotNone(job.wait(60))
        statuses, said = job.end()
        self.assertFalse(any(statuses), said)
        self.assertEqual(tree(home / "place" / "out"), self.expected)
        self.assertEqual([path.name for path in (home / "place").iterdir()], ["out"])

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
                took = self.assert_ends(job, home, 10)
                launcher_took = job.wait(120)
                statuses, said = job.end()
                try:
                    messages = group_kills.errors_in(said)
                    self.assertEqual(len(messages), 1, said)
                    self.assertRegex(messages[0][1], rf"rank {victim} on \S+ is gone")
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

    @unittest.skipUnless(ranks.has_open_mpi(), "needs Open MPI and the plug-in")
    def test_the_launcher_is_lost(self):
        job, home = self.begun("Open MPI", 3)
        os.kill(job.processes["launcher"].pid, signal.SIGKILL)
        took = self.assert_ends(job, home, 10)
        job.end()
        self.assert_goes_on(home, "Open MPI", 2)
        print(f"mpirun: ranks ended after {took:.1f} s")

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_the_network_is_cut(self):
        for victim in range(3):
            with self.subTest(victim=victim):
                network = Network(3)
                try:
                    job, home = self.begun(
                        "tcp", 3, before=lambda rank: ["ip", "netns", "exec", f"dsckpt-{rank}", "unshare", "--uts", "sh",
                                                       "-c", f'hostname n{rank}; exec "$@"', "sh"],
                        DSCKPT_GROUP_ADDRESS="10.213.77.1:45700", DSCKPT_GROUP_TOKEN="a secret of the test")
                    network.cut(victim)
                    took = self.assert_ends(job, home, RANK_TIMEOUT + 10)
                    _, said = job.end()
                finally:
                    network.close()
                # Both sides of the cut speak where rank 1 is on another one than rank 0.
                messages = dict(group_kills.errors_in(said))
                self.assertEqual(set(messages), {"0"} if victim == 2 else {"0", "1"}, said)
                if victim:
                    self.assertRegex(messages["0"], rf"rank {victim} on n{victim} has been silent for \d+ s")
                else:
                    self.assertRegex(messages["1"], r"rank 0 on n0 has been silent for \d+ s")
                self.assert_goes_on(home, "tcp", 2)
                print(f"rank {victim} cut off: ranks ended after {took:.1f} s")

    def absent(self, launcher, **more):
        home = self.new_path("home")
        (home / "place").mkdir(parents=True)
        begin = time.monotonic()
        job = Job(launcher, 3, ["zero-to-fp32", self.source, home / "place" / "out"], home, **more)
        return job, home, begin

    def assert_gives_up(self, job, home, begin, victim):
        """In 30 seconds, and what is longer than that for launchers to start, and to end what is left."""
        while job.wait(0, [victim]) is None and not (job.look() and job.is_left_to(victim)):
            self.assertLess(time.monotonic() - begin, 45)
            time.sleep(0.1)
        took = time.monotonic() - begin
        _, said = job.end()
        self.assertEqual(list((home / "place").iterdir()), [])
        messages = group_kills.errors_in(said)
        print(f"{job.launcher}: without rank {victim} given up after {took:.1f} s: {messages}")
        self.assertGreater(took, 25)
        return messages

    def test_a_rank_never_starts(self):
        for victim in (0, 2):
            with self.subTest(victim=victim):
                messages = self.assert_gives_up(*self.absent("tcp", absent=[victim]), victim)
                if victim:
                    self.assertEqual([rank for rank, _ in messages], ["0"])
                    self.assertRegex(messages[0][1], rf"of 3 ranks .* 2 have come within 30 s; rank {victim} has not")
                else:  # there is nobody who could speak for all
                    self.assertEqual({rank for rank, _ in messages}, {"1", "2"})
                    self.assertRegex(messages[0][1], r"has not found rank 0 within 30 s")

    def test_a_rank_is_stopped_before_it_joins(self):
        for launcher in ranks.launchers():
            with self.subTest(launcher=launcher):
                messages = self.assert_gives_up(*self.absent(launcher, victim=2, first="kill -STOP $$"), 2)
                self.assertTrue(messages)
                self.assertTrue(all(re.search(r"within \d+ s", text) for _, text in messages), messages)


if __name__ == "__main__":
    unittest.main()
