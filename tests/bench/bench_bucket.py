#!/usr/bin/env python3
"""How fast weights come out of a bucket far away, against a download of everything and a run after it, and a mount.

    scripts/python tests/bench/bench_bucket.py --params 400M --out tests/bench/runs/NAME

The store is tests/support/object_server.py on the loopback, which waits before each reply and gives each connection
so many bytes a second. The server counts the bytes that zero-to-fp32 moves, and their rate is given beside
connections x limit; memory is of the program alone. One run writes to the disk, another one into the store,
over connections as slow. The download takes as many connections, in ranges of 8 MiB, and writes to the same
disk. The mount is rclone's with its cache on that disk, which starts empty: without a cache it is many times
slower. A message tells if there is no fusermount3 or /dev/fuse, and the mount is left out. The programs take
turns; what they write is compared.
"""
import filecmp
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

import torch

import bench_report
import object_server
from bench_checkpoint import Writer, decoder_shapes
from bench_files import files_of, make_warm, remove, size_of
from measure import BenchError, in_turn, measure, say
from object_server import Store, serving

OUTPUT = "model.safetensors"
# Arguments: the endpoint, how many at once, where to, and what comes after.
DOWNLOAD = """
import concurrent.futures, http.client, os, pathlib, subprocess, sys, threading, urllib.parse
import xml.etree.ElementTree as xml
host, jobs, folder, command = urllib.parse.urlsplit(sys.argv[1]).netloc, int(sys.argv[2]), sys.argv[3], sys.argv[4:]
kept = threading.local()
def get(path, **headers):
    if not hasattr(kept, "connection"):
        kept.connection = http.client.HTTPConnection(host)
    kept.connection.request("GET", path, headers=headers)
    reply = kept.connection.getresponse()
    body = reply.read()
    assert reply.status in (200, 206), reply.status
    return body
name = "{http://s3.amazonaws.com/doc/2006-03-01/}"
pieces, entries, more = [], [], "/models?list-type=2&prefix=large/"
while more:
    listed = xml.fromstring(get(more))
    entries += listed.iter(name + "Contents")
    token = listed.findtext(name + "NextContinuationToken")
    more = token and "/models?list-type=2&prefix=large/&continuation-token=" + urllib.parse.quote(token, safe="")
for entry in entries:
    key, size = entry.find(name + "Key").text, int(entry.find(name + "Size").text)
    path = pathlib.Path(folder, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    pieces += [(key, path, begin, min(begin + (8 << 20), size)) for begin in range(0, size, 8 << 20)]
def one(piece):
    key, path, begin, end = piece
    body = get("/models/" + urllib.parse.quote(key), Range=f"bytes={begin}-{end - 1}")
    assert len(body) == end - begin
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, body, begin)
    os.close(file)
with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
    list(pool.map(one, pieces))
sys.exit(subprocess.run(command).returncode)
"""
# Arguments: rclone's program, the endpoint, where to, and what comes after.
MOUNT = """
import pathlib, subprocess, sys, time
rclone, endpoint, folder, command = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
pathlib.Path(folder).mkdir()
remote = f":s3,provider=Other,endpoint='{endpoint}',access_key_id=a,secret_access_key=b:models"
mount = subprocess.Popen([rclone, "mount", remote, folder, "--read-only", "--vfs-cache-mode", "full", "--cache-dir",
                          folder + ".cache", "--use-server-modtime", "--config", "", "--log-level", "ERROR"])
try:
    while not pathlib.Path(folder, "large").exists():
        time.sleep(0.05)
        assert mount.poll() is None
    status = subprocess.run(command).returncode
finally:
    subprocess.run(["fusermount3", "-u", folder])
    mount.wait()
sys.exit(status)
"""
BUCKET, DOWNLOADED, MOUNTED = "zero-to-fp32 s3://", "download, zero-to-fp32", "rclone mount, zero-to-fp32"
INTO_BUCKET = "zero-to-fp32 s3:// s3://"
ON_DISK = "zero-to-fp32 of the disk"
RCLONE = pathlib.Path(sys.executable).parent / "rclone"


def programs():
    """Those that there are here."""
    can_mount = RCLONE.exists() and shutil.which("fusermount3") and os.access("/dev/fuse", os.W_OK)
    if not can_mount:
        say("without a mount: there is no rclone, no fusermount3 or no /dev/fuse")
    return [BUCKET, INTO_BUCKET, DOWNLOADED, *[MOUNTED] * bool(can_mount), ON_DISK]


class Programs:
    def __init__(self, options, work):
        self.options, self.work = options, work
        buckets = work / "buckets"
        self.checkpoint = buckets / "models" / "large"
        self.written = buckets / "models" / "written"
        self.checkpoint.parent.mkdir(parents=True)
        torch.set_num_threads(1)
        Writer(self.checkpoint, decoder_shapes(options.params), 3, options.ranks, None, False).write()
        self.output, self.kept = work / "output", work / "kept"
        self.store = Store(buckets, signed=False, delay=options.delay / 1000, rate=options.rate * 1e6)
        self.program = options.bin.resolve() / "zero-to-fp32"

    def command(self, name, endpoint):
        options = ["--safe-serialization", "--max-shard-size", "none", "-q"]
        weights = [self.output / "weights", *options]
        if name in (BUCKET, INTO_BUCKET):
            output = "s3://models/written" if name == INTO_BUCKET else self.output / "weights"
            return [self.program, "s3://models/large", output, *options, "--s3-endpoint", endpoint, "--s3-unsigned",
                    "--s3-requests", self.options.connections]
        if name == MOUNTED:
            mount = self.output / "mount"
            return [sys.executable, "-c", MOUNT, RCLONE, endpoint, mount, self.program, mount / "large", *weights]
        if name == DOWNLOADED:
            copy = self.output / "copy"
            return [sys.executable, "-c", DOWNLOAD, endpoint, self.options.connections, copy, self.program,
                    copy / "large", *weights]
        return [self.program, self.checkpoint, *weights]

    def run(self, name, endpoint):
        self.output.mkdir()
        make_warm(files_of(self.checkpoint))
        self.store.requests.clear()
        self.store.sent = self.store.received = 0
        result = measure(self.command(name, endpoint), memory=True)
        result.update(moved=self.store.sent, written=self.store.received, requests=len(self.store.requests))
        weights = self.written if name == INTO_BUCKET else self.output / "weights"
        if not self.kept.exists():
            weights.rename(self.kept)
        elif not filecmp.cmp(weights / OUTPUT, self.kept / OUTPUT, shallow=False):
            raise BenchError(f"{name} has written other weights")
        remove(self.written)
        remove(self.output)
        return result

    def compare(self, rounds):
        os.environ.update(object_server.environment("http://127.0.0.1:1"))
        with serving(self.store) as endpoint:
            return in_turn(programs(), rounds, lambda name: self.run(name, endpoint))


def report_text(report):
    runs = report["runs"]
    bucket = runs[BUCKET]
    limit = report["connections"] * report["rate"] * 1e6
    shares = [run["moved"] / run["seconds"] / limit for run in bucket]
    moved = {name: statistics.median(run["moved"] for run in of_name) for name, of_name in runs.items()}
    requests = {name: statistics.median(run["requests"] for run in of_name) for name, of_name in runs.items()}
    written = statistics.median(run["written"] for run in runs[INTO_BUCKET])
    both = [(run["moved"] + run["written"]) / run["seconds"] / limit for run in runs[INTO_BUCKET]]

    def gains(name):
        return bench_report.median_range([other["seconds"] / run["seconds"] for other, run in zip(runs[name], bucket)])

    mounted = (f" Through the mount {bench_report.gigabytes(moved[MOUNTED])} were moved, in {gains(MOUNTED)} times the "
               "time." if MOUNTED in runs else "")
    return "\n".join([f"`tests/bench/bench_bucket.py` {report['parameters']}; {report['delay']} ms before each reply, "
                      f"{report['connections']} connections of {report['rate']:g} MB/s.", "",
                      bench_report.host(report), "", *bench_report.programs(runs), "",
                      f"From the bucket {bench_report.gigabytes(moved[BUCKET])} in {requests[BUCKET]:.0f} "
                      f"requests, at {bench_report.median_range(shares)} of connections x limit; downloaded "
                      f"{bench_report.gigabytes(moved[DOWNLOADED])}, which takes {gains(DOWNLOADED)} times as "
                      f"long.{mounted} Into the bucket {bench_report.gigabytes(written)}, with "
                      f"{requests[INTO_BUCKET]:.0f} requests for both, at {bench_report.median_range(both)} of the "
                      "same."]) + "\n"


def main():
    parser = bench_report.parser(__doc__.splitlines()[0], 400_000_000)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--delay", type=float, default=20, help="ms before each reply")
    parser.add_argument("--rate", type=float, default=5, help="MB/s of a connection")
    options = parser.parse_args()
    version = subprocess.run([options.bin / "zero-to-fp32", "--version"], capture_output=True, text=True).stdout
    if " s3" not in version:
        sys.exit("bench_bucket.py: this build reads no object stores")

    def measure_all(folder):
        programs = Programs(options, folder)
        size = bench_report.gigabytes(size_of(files_of(programs.checkpoint)))
        return {"parameters": f"of {size} of stage 3 on {options.ranks} ranks", "connections": options.connections,
                "delay": options.delay, "rate": options.rate, "runs": programs.compare(options.runs)}

    bench_report.run("bucket", options, measure_all, report_text)


if __name__ == "__main__":
    main()
