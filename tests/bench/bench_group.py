#!/usr/bin/env python3
"""How several ranks of one conversion scale, and what they cost.

    sudo scripts/python tests/bench/bench_group.py --out tests/bench/runs/NAME

scaling: every rank reads and writes at most 10 MB/s, 720 MB of weights from a cold cache. Each is in a cgroup
of its own (blkio of version 1, which limits writes past the page cache, so --io=direct; root only). overhead:
two ranks against one process in turn, from and into the page cache. The launcher's time for an empty program is
subtracted from both.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import torch

import bench_report
import ranks
from bench_checkpoint import Writer, decoder_shapes
from bench_count import parse_count, positive
from bench_files import files_of, make_cold, make_warm, remove, size_of
from measure import BenchError, say

BLKIO = pathlib.Path("/sys/fs/cgroup/blkio")
RATE = 10_000_000
PARTS = ("scaling", "overhead")
# The wrapper of a rank first moves into the rank's cgroup.
ENTER = ('rank=${DSCKPT_GROUP_RANK-${OMPI_COMM_WORLD_RANK-${SLURM_PROCID-0}}}; '
         'echo $$ > "$DSCKPT_BENCH_CGROUP/$rank/cgroup.procs" && exec "$@"')


class Launcher:
    """Starts a command as several ranks; one of them alone, and without a launcher, is a single process."""

    def __init__(self, name, work):
        self.name, self.work = name, work

    def seconds(self, size, command, **variables):
        """Until all have ended, and what rank 0 has printed."""
        environment = {**os.environ, **variables}
        command = [str(word) for word in command]
        place = pathlib.Path(tempfile.mkdtemp(dir=self.work))
        with open(place / "out", "w+") as out, open(place / "errors", "w+") as errors:
            begin = time.perf_counter()
            if size == 1:
                started = [subprocess.Popen(command, env=environment, stdout=out, stderr=errors)]
            elif self.name == "by hand":
                started = [subprocess.Popen(command, env={
                    **environment, "DSCKPT_GROUP_RANK": str(rank), "DSCKPT_GROUP_SIZE": str(size),
                    "DSCKPT_GROUP_DIR": str(place)}, stdout=out, stderr=errors) for rank in range(size)]
            else:
                words, more = ranks.programs()[self.name](size, place)
                started = [subprocess.Popen([*words, *command], env={**environment, **more}, stdin=subprocess.DEVNULL,
                                            stdout=out, stderr=errors)]
            statuses = [process.wait() for process in started]
            seconds = time.perf_counter() - begin
            out.seek(0)
            errors.seek(0)
            if any(statuses):
                raise BenchError(f"{size} ranks by {self.name} ended with {statuses}:\n{errors.read()[-4000:]}")
            text = out.read()
        shutil.rmtree(place)
        return seconds, text

    def start(self, size, runs, command=("true",)):
        """The time of an empty program."""
        return statistics.median(self.seconds(size, command)[0] for _ in range(runs))


@contextlib.contextmanager
def cgroups(size, folder):
    """One for each rank, in which the disk of `folder` gives RATE each way."""
    if not BLKIO.is_dir():
        raise BenchError(f"{BLKIO} is not there: scaling needs the blkio controller of cgroups, version 1")
    device = os.stat(folder).st_dev
    top = BLKIO / f"dsckpt-bench-{os.getpid()}"
    top.mkdir()
    try:
        for rank in range(size):
            (top / str(rank)).mkdir()
            for way in ("read", "write"):
                (top / str(rank) / f"blkio.throttle.{way}_bps_device").write_text(
                    f"{os.major(device)}:{os.minor(device)} {RATE}")
        yield top
    finally:
        for rank in range(size):
            (top / str(rank)).rmdir()
        top.rmdir()


def checkpoint(work, params, stage, count):
    folder = work / f"checkpoint-{params}"
    torch.set_num_threads(1)
    Writer(folder, decoder_shapes(params), stage, count, None, False).write()
    return folder


class Bench:
    def __init__(self, options, work):
        self.options, self.work = options, work
        self.tool = options.bin.resolve() / "zero-to-fp32"
        os.environ["DSCKPT_BIN"] = str(options.bin.resolve())  # for ranks.py
        self.launchers = [Launcher(name, work) for name in ranks.launchers()
                          if not options.launchers or name in options.launchers]
        self.output = work / "output"

    def command(self, source, *more):
        return [self.tool, source, self.output / "weights", "--safe-serialization", "--max-shard-size", "none", "--json",
                *more]

    def check(self, expected):
        """The bytes are those of the first run."""
        now = subprocess.run(["sha256sum", *files_of(self.output / "weights")], capture_output=True, text=True, check=True)
        digests = [line.split()[0] for line in now.stdout.splitlines()]
        if expected and digests != expected:
            raise BenchError("the output is not that of the first run")
        return digests

    def scaling(self):
        source = checkpoint(self.work, self.options.params, 3, 4)
        expected, runs = None, []
        for launcher in self.launchers:
            starts = {size: 0.0 if size == 1 else launcher.start(size, 5) for size in self.options.sizes}
            for size in self.options.sizes:
                times = []
                for _ in range(self.options.scaling_runs):
                    subprocess.run(["sync", "-f", self.work], check=True)
                    make_cold(files_of(source))
                    self.output.mkdir()
                    with cgroups(size, self.work) as top:
                        seconds, text = launcher.seconds(
                            size, ["sh", "-c", ENTER, "sh", *self.command(source, "--io", "direct")],
                            DSCKPT_BENCH_CGROUP=str(top))
                    expected = self.check(expected)
                    remove(self.output)
                    times.append(seconds)
                    say(f"scaling, {launcher.name}, {size} ranks: {seconds:.2f} s, of which {starts[size]:.2f} s to start")
                data = json.loads(text.splitlines()[-1])["data"]
                runs.append({"launcher": launcher.name, "ranks": size, "seconds": times, "start_seconds": starts[size],
                             "bytes_read": data["bytes_read"], "bytes_written": data["bytes_stored"],
                             "of_ranks": data.get("ranks", [])})
        remove(source)
        return runs

    def overhead(self):
        source = checkpoint(self.work, self.options.overhead_params, 2, 4)
        runs = []
        for launcher in self.launchers:
            mine = [{"launcher": launcher.name, "start": launcher.seconds(2, ["true"])[0]}
                    for _ in range(self.options.runs)]
            # Right after each other: memory that has been free for a while is slower where a host takes it back.
            for number, run in enumerate(mine):
                for name, size in (("alone", 1), ("two", 2)) if number % 2 == 0 else (("two", 2), ("alone", 1)):
                    make_warm(files_of(source))
                    self.output.mkdir()
                    run[name], _ = launcher.seconds(size, self.command(source))
                    remove(self.output)
                say(f"overhead, {launcher.name}: " +
                    ", ".join(f"{name} {run[name]:.3f} s" for name in ("alone", "two", "start")))
            runs += mine
        remove(source)
        return runs


def scaling_rows(runs):
    firsts = {run["launcher"]: statistics.median(run["seconds"]) for run in runs if run["ranks"] == 1}
    for run in runs:
        seconds = [value - run["start_seconds"] for value in run["seconds"]]
        ratio = statistics.median(seconds) / firsts[run["launcher"]] if run["launcher"] in firsts else float("nan")
        done = [rank["bytes_done"] for rank in run["of_ranks"]]
        yield (run["launcher"], run["ranks"], bench_report.median_range(seconds), f"{run['start_seconds']:.2f}",
               f"{ratio:.3f}", f"{ratio * run['ranks']:.2f}",
               f"{min(done) / 1e6:.1f}..{max(done) / 1e6:.1f}" if done else "")


def overhead_rows(runs):
    for launcher in dict.fromkeys(run["launcher"] for run in runs):
        mine = [run for run in runs if run["launcher"] == launcher]
        row = [launcher, *(bench_report.median_range([run[name] for run in mine]) for name in ("alone", "two", "start"))]
        row.append(bench_report.median_range([run["two"] - run["alone"] - run["start"] for run in mine]))
        yield row


def report_text(report):
    lines = ["`tests/bench/bench_group.py`", "", bench_report.host(report), ""]
    runs = report["runs"]
    if "scaling" in runs:
        first = runs["scaling"][0]
        lines += [f"Each rank reads and writes at most {RATE / 1e6:.0f} MB/s: {bench_report.gigabytes(first['bytes_read'])} "
                  f"read, {bench_report.gigabytes(first['bytes_written'])} written, cold, without the launcher's start.", "",
                  *bench_report.table(["launcher", "ranks N", "median s (min..max)", "start s", "T(N) / T(1)", "of 1 / N",
                                       "MB done by a rank"], scaling_rows(runs["scaling"])), ""]
    if "overhead" in runs:
        lines += ["Two ranks against one process, in turn, from and into the page cache, seconds. `more`: the "
                  "difference in each round, without the start of `true`.", "",
                  *bench_report.table(["launcher", "one process", "two ranks", "start", "more"],
                                      overhead_rows(runs["overhead"])), ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--launchers", nargs="+")
    parser.add_argument("--sizes", type=positive, nargs="+", default=[1, 2, 4, 8], help="ranks of scaling")
    parser.add_argument("--params", type=parse_count, default=180_000_000, help="of scaling: 4 bytes each")
    parser.add_argument("--scaling-runs", type=positive, default=1)
    parser.add_argument("--overhead-params", type=parse_count, default=400_000_000)
    parser.add_argument("--runs", type=positive, default=9, help="of overhead")
    bench_report.add_places(parser)
    options = parser.parse_args()

    def measure_all(folder):
        bench = Bench(options, folder)
        return {"runs": {part: getattr(bench, part)() for part in PARTS if part in options.parts}}

    bench_report.run("group", options, measure_all, report_text)


if __name__ == "__main__":
    main()
