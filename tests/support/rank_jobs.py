"""Ranks of one job as processes that can be found and sent signals, with any launcher."""
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import ranks
from lost_race import without_lost_race

MARK = "DSCKPT_TEST_JOB"
# The first of these that is set has the rank of a process.
RANK_VARIABLES = ("DSCKPT_GROUP_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
NUMBERS = itertools.count()
# Runs the rest of its arguments. The rank in DSCKPT_TEST_VICTIM first runs DSCKPT_TEST_FIRST. Output of ranks goes to
# files, since srun drops the last lines of steps that it ends.
WRAPPER = """
rank=${DSCKPT_GROUP_RANK-${OMPI_COMM_WORLD_RANK-${SLURM_PROCID-$PMI_RANK}}}
if [ "$rank" = "$DSCKPT_TEST_VICTIM" ]; then eval "$DSCKPT_TEST_FIRST"; fi
exec "$@" > "$DSCKPT_TEST_LOGS/$rank.out" 2> "$DSCKPT_TEST_LOGS/$rank.err"
"""


def environment_of(pid):
    try:
        entries = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def state_of(pid):
    """The state in Linux: S, R, T, Z...; "" if there is no such process."""
    try:
        return re.search(r"\) (\w) ", pathlib.Path(f"/proc/{pid}/stat").read_text()).group(1)
    except (OSError, AttributeError):
        return ""


def is_alive(pid):
    """Returns whether any thread of it is alive. The first may have ended while others still hold its files."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(state_of(f"{pid}/task/{thread}") not in ("", "Z", "X") for thread in threads)


def parent_of(pid):
    return int(re.search(r"\) \w (\d+)", pathlib.Path(f"/proc/{pid}/stat").read_text()).group(1))


class Job:
    """A command run as `size` ranks by `launcher` (a name of ranks.launchers()), in `place`, the folder of its
    outputs.

    `first`: commands that the shell of the rank `victim` runs before it becomes the tool. `absent`: ranks that are not
    started. `before`: words before the command of a rank (only by TCP).
    """

    def __init__(self, launcher, size, command, place, victim=None, first=":", absent=(),
                 before=lambda rank: [], options=(), **variables):
        self.launcher, self.size, self.victim = launcher, size, victim
        self.mark = f"{os.getpid()}-{next(NUMBERS)}"
        self.logs = place / f"logs-{self.mark}"
        self.logs.mkdir()
        environment = {**os.environ, **variables, MARK: self.mark, "DSCKPT_TEST_LOGS": str(self.logs),
                       "DSCKPT_TEST_VICTIM": str(victim), "DSCKPT_TEST_FIRST": first}
        words = ["sh", "-c", WRAPPER, "sh", ranks.binary(command[0]), *map(str, command[1:])]
        self.seen = {}
        if launcher == "by hand":
            environment = {"DSCKPT_GROUP_DIR": str(place), "DSCKPT_GROUP_SIZE": str(size), **environment}
            self.processes = {rank: self.start([*before(rank), *words], dict(environment, DSCKPT_GROUP_RANK=str(rank)))
                              for rank in range(size) if rank not in absent}
        else:
            (program, *arguments), of_launcher = ranks.programs()[launcher](size, place)
            words = [program, *options, *arguments, *words]
            self.processes = {"launcher": self.start(words, {**environment, **of_launcher})}

    def start(self, words, environment):
        with open(self.logs / "launcher.err", "a") as log:
            return subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    start_new_session=True)

    def look(self):
        """rank -> process number of those that run the tool now. Ranks that were seen are kept."""
        tool = os.path.realpath(ranks.binary("dsckpt"))
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) in self.seen.values():
                continue
            try:
                if os.readlink(f"/proc/{entry}/exe") != tool:
                    continue
            except OSError:
                continue
            environment = environment_of(entry)
            rank = next((environment[name] for name in RANK_VARIABLES if name in environment), None)
            if environment.get(MARK) == self.mark and rank is not None:
                self.seen[int(rank)] = int(entry)
        return self.seen

    def process_of(self, rank, longest=30):
        """The rank's process number, as soon as it runs the tool; None if the job ends before."""
        deadline = time.monotonic() + longest
        while rank not in self.look():
            if time.monotonic() > deadline or all(process.poll() is not None for process in self.processes.values()):
                return None
            time.sleep(0.002)
        return self.seen[rank]

    def is_over(self, without=()):
        """Returns whether the launcher and all ranks have ended, except those in `without`."""
        for rank, process in self.processes.items():
            if rank not in without and process.poll() is None:
                return False
        return not any(is_alive(pid) for rank, pid in self.look().items() if rank not in without)

    def is_left_to(self, victim):
        """Returns whether all other ranks have ended, though the launcher may wait for this one."""
        return not any(is_alive(pid) for rank, pid in self.look().items() if rank != victim)

    def wait(self, seconds, without=()):
        """Seconds until the job was over; None if it is not over after `seconds`."""
        begin = time.monotonic()
        while not self.is_over(without):
            if time.monotonic() - begin > seconds:
                return None
            time.sleep(0.01)
        return time.monotonic() - begin

    def end(self):
        """Kills what still runs. Returns ([status of the launcher or of the ranks], {rank or "launcher": (stdout,
        stderr)})."""
        for pid in [*self.look().values(), *(process.pid for process in self.processes.values())]:
            if is_alive(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        statuses = {str(rank): process.wait() for rank, process in self.processes.items()}
        said = {}
        for errors in sorted(self.logs.glob("*.err")):
            out = errors.with_suffix(".out")
            status, text = without_lost_race(statuses.get(errors.stem), errors.read_text(errors="replace"))
            if errors.stem in statuses:
                statuses[errors.stem] = status
            said[errors.stem] = (out.read_text(errors="replace") if out.exists() else "", text)
        shutil.rmtree(self.logs)
        return list(statuses.values()), said
