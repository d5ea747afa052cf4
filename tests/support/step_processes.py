"""Planners, workers and committers, as processes that a test starts, kills, stops and wakes."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import time

import large_checkpoint
from lost_race import without_lost_race
from rank_jobs import environment_of
from ranks import binary

STEPS = ("work", "commit", "steps", "abandon")
MARK = "DSCKPT_TEST_PROCESS"


def is_tool(process):
    try:
        return os.readlink(process / "exe").endswith("/dsckpt")
    except OSError:
        return False


class StepProcesses:
    """A part of tests that are also a CliTest. `launcher`: words that start a command on some node of a cluster."""
    launcher = []

    def large(self, elements):
        folder = self.new_path("ckpt")
        large_checkpoint.write_one(folder, elements)
        return folder

    def start(self, *words):
        mark = str(next(self.numbers))
        process = subprocess.Popen([*self.launcher, binary(words[0]), *map(str, words[1:])], text=True,
                                   errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env={**self.environment, MARK: mark})
        process.mark = mark
        return process

    def tool_of(self, process):
        """The number of the tool's own process, once its launcher has started it; None if that has ended."""
        while self.launcher and process.poll() is None:
            for path in pathlib.Path("/proc").glob("[0-9]*"):
                if environment_of(path.name).get(MARK) == process.mark and is_tool(path):
                    return int(path.name)
            time.sleep(0.01)
        return process.pid if process.poll() is None else None

    def send(self, process, number):
        if (tool := self.tool_of(process)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(tool, number)

    def finish(self, process, statuses=(0,)):
        out, errors = process.communicate(timeout=120)
        status, errors = without_lost_race(process.returncode, errors)
        self.assertIn(status, statuses, errors)
        return subprocess.CompletedProcess(process.args, status, out, errors)

    def run_step(self, *words, status=0):
        return self.finish(self.start("dsckpt", *words), (status,))

    def state(self, path):
        return json.loads(self.run_step("steps", path, "--json").stdout)["data"]

    # The steps of a campaign. `stopped` has the processes that are stopped (SIGSTOP).

    def end_at_some_time(self, process, generator, stopped, longest):
        """Kills it, stops it for good, or lets it end, after up to `longest` seconds."""
        fate = generator.choice(["kill", "kill", "stop", "end"])
        self.tool_of(process)
        try:
            process.wait(generator.uniform(0.0, longest) if fate != "end" else 60)
        except subprocess.TimeoutExpired:
            self.send(process, signal.SIGSTOP if fate == "stop" else signal.SIGKILL)
            if fate == "stop":
                return stopped.append(process)
        process.communicate()

    def wake(self, stopped, statuses=(0, 2, 4)):
        for each in stopped:
            self.send(each, signal.SIGCONT)
            self.finish(each, statuses)
        stopped.clear()

    def plan_among_losses(self, plan, generator, longest):
        stopped = []
        for _ in range(generator.randrange(3)):
            self.end_at_some_time(self.start(*plan), generator, stopped, longest)
        # A process that was stopped in the middle of a plan still has the folder.
        self.wake(stopped)
        self.finish(self.start(*plan))

    def work_among_losses(self, path, calls, generator, longest, statuses=(0, 2)):
        """So many times a commit, or some workers at once. Then two processes commit, with one of the statuses.
        Returns stopped workers."""
        stopped = []
        for _ in range(calls):
            if generator.random() < 0.35:
                self.end_at_some_time(self.start("dsckpt", "commit", path), generator, stopped, longest)
                continue
            workers = [self.start("dsckpt", "work", path, *generator.choice([[], ["--share", f"{share}/3"]]))
                       for share in range(generator.randrange(1, 4))]
            for worker in workers:
                self.end_at_some_time(worker, generator, stopped, longest)
        # A committer that was stopped has the lock.
        self.wake([each for each in stopped if "commit" in each.args])
        for each in [self.start("dsckpt", "commit", path) for _ in range(2)]:
            self.finish(each, statuses)
        self.run_step("commit", path)
        return [each for each in stopped if "commit" not in each.args]
