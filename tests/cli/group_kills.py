#!/usr/bin/env python3
"""Ranks are killed, ended and stopped at random moments under every launcher: what is there then is right.

    tests/support/slurm_cluster.py scripts/python tests/cli/group_kills.py --runs 200

After a signal to a rank other than 0 the others do its work, unless their launcher ends them. After one to rank
0 all processes end in the time that apps/NODES.md promises, with one message that names it and its node.
Nothing is under a final name, or everything is. The input has not changed. The same command with --resume,
every second time on another number of ranks, leaves the output of one process, and nothing else.

A run is made of the seed, the launcher and its number, so that `--only NUMBER` makes it once more.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import sys
import tempfile
import time
import types

import large_checkpoint
import ranks
import tools
from cli_common import snapshot, tree
from rank_jobs import Job, is_alive, state_of

ELEMENTS = 6 << 20
RANK_TIMEOUT = 5
# For all processes, after the signal; after RANK_TIMEOUT for one that is stopped.
LONGEST_END = 10
# The time that the ranks wait for each other at the start; nobody knows of a rank that is lost before.
GATHERING = 30
NOT_JOINED = re.compile(r"has not found rank 0 within")
# These end all ranks when one has ended by a signal.
ENDS_ALL = ("Open MPI", "torchrun", "MPICH")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
# The actions of support/fail_call.cpp in place of a call.
AT_CALL = {signal.SIGKILL: -1, signal.SIGSTOP: -2}
CALLS = ("open", "write", "fallocate", "fsync", "rename", "link", "close", "unlink", "mkdir")


class Command:
    """One that takes one or two seconds, with IN and OUT; `rate` is for the run that is disturbed."""

    def __init__(self, source, rate, *words):
        self.source, self.rate, self.words = source, rate, words
        self.tool = words[0]

    def filled(self, output):
        return tools.filled(self.words, self.source, output)

    def alone(self, folder):
        """The results of one process: the output, and the names beside it."""
        place = folder / "alone"
        place.mkdir()
        done = tools.run_tool(*self.filled(place / "out"))
        assert done.returncode == 0, done.stderr
        written = tree(place / "out"), sorted(path.name for path in place.iterdir())
        shutil.rmtree(place)
        return written


def commands(folder):
    large = folder / "large"
    large_checkpoint.write_one(large, ELEMENTS)
    small = tools.case_named("z3_fp32_full_w8").load_dir
    return [Command(large, "16MB", "zero-to-fp32", "IN", "OUT"),
            Command(small, "80KB", "zero-to-fp32", "IN", "OUT", "--safe-serialization", "--max-shard-size", "20KB"),
            Command(small, "150KB", "to-universal", "IN", "OUT"),
            Command(small, "60KB", "reshard", "IN", "OUT", "--dp", "3"),
            Command(small, "150KB", "ckpt-pack", "pack", "IN", "OUT")]


def errors_in(said):
    """[(rank, its message)] of all that the ranks have printed."""
    return [(rank, line) for rank, (_, errors) in said.items() for line in errors.splitlines()
            if re.match(r"(zero-to-fp32|to-universal|reshard|ckpt-pack): error: ", line)]


class Campaign:

    def __init__(self, folder, seed):
        self.folder, self.seed = folder, seed
        self.commands = commands(folder)
        self.expected, self.names = zip(*(command.alone(folder) for command in self.commands))
        self.sources = [snapshot(command.source) for command in self.commands]
        self.calls = [self.count_calls(command) for command in self.commands]
        self.seconds = {}  # (launcher, command) -> of an undisturbed run, as its first rank sees it

    def shim(self, **settings):
        library = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "lib" / "libfail_call.so"
        return " ".join(["export", f"LD_PRELOAD={library}", *(f"FAIL_{key.upper()}={value}"
                                                              for key, value in settings.items())])

    def place(self):
        return pathlib.Path(tempfile.mkdtemp(dir=self.folder))

    def slow(self, command, home, *options):
        (home / "place").mkdir()
        return [*command.filled(home / "place" / "out"), "--limit-rate", command.rate, "--rank-timeout",
                str(RANK_TIMEOUT), *options]

    def count_calls(self, command):
        """How often each kind of call is made by rank 0, and by another."""
        counts = []
        for rank in (0, 1):
            home = self.place()
            job = Job("by hand", 2, [*command.filled(home / "out"), "--resume", "--save-every", "0"], home, rank,
                      self.shim(counts=home / "counts"))
            job.wait(60)
            assert job.end()[0] == [0, 0]
            counts.append({kind: int(count) for kind, count in
                           map(str.split, (home / "counts").read_text().splitlines())})
            shutil.rmtree(home)
        return counts

    def seconds_of(self, launcher, index):
        if (launcher, index) not in self.seconds:
            home = self.place()
            job = Job(launcher, 3, self.slow(self.commands[index], home, "--resume", "--save-every", "0"), home)
            job.process_of(0)
            seconds = job.wait(60)
            job.end()
            assert seconds and tree(home / "place" / "out") == self.expected[index], (launcher, index)
            self.seconds[launcher, index] = seconds
            shutil.rmtree(home)
        return self.seconds[launcher, index]

    def plan(self, launcher, number):
        """The kind of run `number`; the same each time."""
        choose = random.Random(f"{self.seed} {launcher} {number}")
        run = types.SimpleNamespace(launcher=launcher, number=number, signal=SIGNALS[number % 3])
        run.index = choose.randrange(len(self.commands))
        run.size = choose.choice((2, 3, 4))
        run.next_size = choose.choice([n for n in (1, 2, 3, 4) if n != run.size]) if number // 3 % 2 else run.size
        run.victim = choose.randrange(run.size)
        run.resume = ["--resume", "--save-every", "0"] if choose.random() < 0.7 else []
        run.moment, run.call = None, None
        if run.signal in AT_CALL and choose.random() < 0.3:
            counts = self.calls[run.index][min(run.victim, 1)]
            kind = choose.choice([kind for kind in CALLS if counts.get(kind)])
            run.call = kind, choose.randint(1, counts[kind])
        else:
            run.moment = choose.random() * choose.choice((0.1, 1.05, 1.05))  # of the time of an undisturbed run
        return run

    def strike(self, job, run):
        """Lets the signal come: when it did, or None if the job was over before."""
        pid = job.process_of(run.victim)
        if pid is None:
            return time.monotonic() if run.call else None
        if run.call:
            while state_of(pid) not in ("T", "t", "Z", "X", ""):
                time.sleep(0.002)
            return time.monotonic()
        time.sleep(run.moment * self.seconds_of(run.launcher, run.index))
        job.look()
        if state_of(pid) in ("Z", "X", "") or job.is_over():
            return None
        struck = time.monotonic()
        try:
            os.kill(pid, run.signal)
        except ProcessLookupError:
            return None
        return struck

    def one(self, launcher, number):
        run = self.plan(launcher, number)
        command, expected = self.commands[run.index], self.expected[run.index]
        self.seconds_of(launcher, run.index)
        home = self.place()
        first = ":"
        if run.call:
            first = self.shim(call=run.call[0], at=run.call[1], errno=AT_CALL[run.signal])
        job = Job(launcher, run.size, self.slow(command, home, *run.resume), home, run.victim, first)
        struck = self.strike(job, run)
        without = [run.victim] if run.signal == signal.SIGSTOP and launcher == "by hand" else []
        longest = LONGEST_END + (RANK_TIMEOUT if run.signal == signal.SIGSTOP else 0)
        ended = job.wait(longest, without)
        # One that is stopped when all is done keeps nobody from anything but its launcher from ending.
        is_left = run.signal == signal.SIGSTOP and (home / "place" / "out").exists() and job.is_left_to(run.victim)
        if ended is None and not is_left:
            ended = job.wait(GATHERING, without)
        run.seconds = None if struck is None or ended is None else time.monotonic() - struck
        run.wrong = []
        out = home / "place" / "out"
        run.committed = out.exists()
        if ended is None and not is_left:
            alive = sorted(rank for rank, pid in job.look().items() if is_alive(pid))
            run.wrong.append(f"ranks {alive} have not ended" if alive else "the launcher has not ended")
        run.statuses, run.said = job.end()
        run.errors = errors_in(run.said)
        if run.call and not any(run.statuses):
            struck = None  # the call was never made
        if run.committed and tree(out) != expected:
            run.wrong.append("what is under the final name is not whole")
        if struck is None:
            run.outcome = "over before"
            if not run.committed or any(run.statuses):
                run.wrong.append("failed without a signal")
        else:
            self.judge(run, longest)
        self.go_on(run, home, command, expected)
        if snapshot(command.source) != self.sources[run.index]:
            run.wrong.append("the input is not what it was")
        shutil.rmtree(home)
        return run

    def judge(self, run, longest):
        late = run.seconds is not None and run.seconds > longest
        if any(NOT_JOINED.search(message) for _, message in run.errors) or late and run.seconds < longest + GATHERING:
            run.outcome = "before all were there"
            late = False
        else:
            run.outcome = "committed" if run.committed else "nothing there"
        if late:
            run.wrong.append(f"took {run.seconds:.1f} s to end")
        if run.committed:
            return  # what came after concerns nobody
        messages = [message for _, message in run.errors]
        if run.victim > 0 and run.launcher not in ENDS_ALL:
            run.wrong.append("the others have not done its work")
        elif run.outcome == "before all were there" and run.victim == 0:
            return  # there was nobody who could have spoken for all
        # A launcher that ends all ranks wakes rank 0 for it, which then says so.
        elif len(messages) > 1 and not (run.signal == signal.SIGSTOP and run.launcher in ENDS_ALL):
            run.wrong.append(f"{len(messages)} messages")
        # A loss of rank 0 stops the run, as of one process.
        elif messages and (re.search(rf"rank {run.victim} on \S+", messages[0]) or "interrupted" in messages[0]):
            return
        elif any(re.search(pattern, run.said.get("launcher", ("", ""))[1], re.MULTILINE) for pattern in (
                rf"noticed that process rank {run.victim} with", rf"Process name: \[\[\d+,1\],{run.victim}\]",
                rf"^srun: error: \w+: task {run.victim}: ", r"torch.distributed.elastic")):
            run.named_by_launcher = True  # which was faster
        else:
            run.wrong.append("no message names the rank")

    def go_on(self, run, home, command, expected):
        """The next start completes, whatever was left."""
        words = [*command.filled(home / "place" / "out"), "--resume", *(["--force"] if run.committed else [])]
        if run.next_size == 1:
            done = tools.run_tool(*words)
            statuses, said = [done.returncode], {"0": (done.stdout, done.stderr)}
        else:
            job = Job(run.launcher, run.next_size, words, home)
            if job.wait(60) is None:
                run.wrong.append("the next start does not end")
            statuses, said = job.end()
        if any(statuses):
            run.wrong.append(f"the next start failed: {statuses}, {errors_in(said) or said}")
            return
        run.went_on = any("by the previous run" in errors for _, errors in said.values())
        left = sorted(path.name for path in (home / "place").iterdir())
        if left != self.names[run.index]:
            run.wrong.append(f"left after the next start: {left}")
        if tree(home / "place" / "out") != expected:
            run.wrong.append("the next start has written something else")
        run.litter = sorted(path.name for path in home.iterdir() if path.name != "place")

    def all_of(self, launcher, numbers, report):
        done = []
        for number in numbers:
            try:
                run = self.one(launcher, number)
            except Exception as error:  # of one run; the others go on
                report(f"{launcher} {number}: {type(error).__name__}: {error}")
                run = self.plan(launcher, number)
                run.wrong, run.outcome, run.seconds = [str(error)], "no result", None
            done.append(run)
            if run.wrong:
                report(describe(run))
        return done


def describe(run):
    moment = f"call {run.call[1]} of {run.call[0]}" if run.call else f"{run.moment:.3f} of the run"
    lines = [f"{run.launcher}, run {run.number}: {'; '.join(run.wrong)}",
             f"    command {run.index}, {signal.Signals(run.signal).name} to rank {run.victim} of {run.size} at {moment}, "
             f"{'with' if run.resume else 'without'} --resume, then {run.next_size}; {run.outcome}, {run.seconds} s"]
    for rank, (_, errors) in getattr(run, "said", {}).items():
        lines += [f"    {rank}: {line}" for line in errors.splitlines() if line.strip("-") and ": note: " not in line]
    return "\n".join([*lines, f"    statuses {getattr(run, 'statuses', None)}"])


def table(runs):
    """Rows of Markdown: what came of the runs, by launcher and signal."""
    lines = ["| launcher | signal | runs | early | nothing | all | over | seconds | went on | launcher's word | wrong |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for launcher in dict.fromkeys(run.launcher for run in runs):
        for number in SIGNALS:
            mine = [run for run in runs if (run.launcher, run.signal) == (launcher, number)]
            outcomes = collections.Counter(run.outcome for run in mine)
            # Those that all had come for.
            seconds = [run.seconds for run in mine
                       if run.seconds is not None and run.outcome in ("nothing there", "committed")] or [0]
            lines.append(f"| {launcher} | {signal.Signals(number).name} | {len(mine)} | "
                         f"{outcomes['before all were there']} | {outcomes['nothing there']} | {outcomes['committed']} | "
                         f"{outcomes['over before']} | {statistics.median(seconds):.1f}, {max(seconds):.1f} | "
                         f"{sum(getattr(run, 'went_on', False) for run in mine)} | "
                         f"{sum(getattr(run, 'named_by_launcher', False) for run in mine)} | "
                         f"{sum(bool(run.wrong) for run in mine)} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="for each launcher")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this run alone")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time of each launcher")
    parser.add_argument("--launchers", nargs="+", choices=list(ranks.launchers()), default=list(ranks.launchers()))
    options = parser.parse_args()
    numbers = range(options.runs) if options.only is None else [options.only]

    def report(text):
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="group-kills-") as folder:
        campaign = Campaign(pathlib.Path(folder), options.seed)
        parts = [(launcher, numbers[job::options.jobs]) for launcher in options.launchers for job in range(options.jobs)]
        with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:
            runs = sum(pool.map(lambda part: campaign.all_of(*part, report), parts), [])
    print("\n".join(table(runs)))
    sys.exit(1 if any(run.wrong for run in runs) else 0)


if __name__ == "__main__":
    main()
