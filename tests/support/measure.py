"""Measures a program: time, memory, page faults and block I/O; and describes the machine that it runs on."""
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
POLL_SECONDS = 0.005
BLOCK_BYTES = 512  # the unit of ru_inblock and ru_oublock


class BenchError(Exception):
    """The reason why there is no result, as a text for the user."""


def say(message):
    print(f"bench.py: {message}", file=sys.stderr)


def in_turn(names, rounds, run, about=""):
    """Runs the programs in turn, every second round backwards. Returns name -> what run(name) has returned."""
    results = {name: [] for name in names}
    for i in range(rounds):
        for name in results if i % 2 == 0 else reversed(results):
            results[name].append(run(name))
        say(f"{about}round {i + 1}: " + ", ".join(f"{name} {of[i]['seconds']:.3f} s" for name, of in results.items()))
    return results


def anonymous_memory(pid):
    """RssAnon of a process and its children, in bytes."""
    total = 0
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        anonymous = re.search(r"^RssAnon:\s*(\d+) kB$", status, re.MULTILINE)
        if anonymous:  # an ended process has none
            total = int(anonymous[1]) * 1024
        for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(map(anonymous_memory, children.read_text().split()))
    except OSError:  # it has ended
        pass
    return total


def watch_memory(pid, peak, stop):
    """Keeps the largest anonymous_memory in peak[0]."""
    while True:
        peak[0] = max(peak[0], anonymous_memory(pid))
        if stop.wait(POLL_SECONDS):
            return


def busy_seconds():
    """CPU time of all cores and processes since the machine started, and the time stolen from it."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, pathlib.Path("/proc/stat").read_text().split(None, 9)[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def measure(command, *, memory=False):
    """Runs a program to its end. Returns seconds, bytes and counts. `memory` also polls its anonymous memory."""
    with tempfile.TemporaryFile() as log:
        environment = os.environ | {"DS_ACCELERATOR": "cpu"}
        peak, stop, watcher = [0], threading.Event(), None
        busy = busy_seconds()
        begin = time.perf_counter()
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, env=environment)
        if memory:
            watcher = threading.Thread(target=watch_memory, args=(process.pid, peak, stop))
            watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        busy = busy_seconds() - busy
        process.returncode = os.waitstatus_to_exitcode(status)
        if watcher:
            stop.set()
            watcher.join()
        if process.returncode != 0:
            log.seek(0)
            raise BenchError(f"{command[0]} ended with {process.returncode}:\n"
                             f"{log.read().decode(errors='replace')[-4000:]}")
    result = {"seconds": seconds, "user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime,
              "machine_busy_seconds": busy, "peak_rss": usage.ru_maxrss * 1024,
              "minor_faults": usage.ru_minflt, "major_faults": usage.ru_majflt,
              "voluntary_switches": usage.ru_nvcsw, "involuntary_switches": usage.ru_nivcsw,
              "block_input_bytes": usage.ru_inblock * BLOCK_BYTES,
              "block_output_bytes": usage.ru_oublock * BLOCK_BYTES}
    if memory:
        result["peak_anonymous_rss"] = peak[0]
    return result


def output_of(command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def file_system(folder):
    folder, best, kind = folder.resolve(), -1, "unknown"
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        mount = mount.encode().decode("unicode_escape")
        if folder.is_relative_to(mount) and len(mount) >= best:
            best, kind = len(mount), found
    return kind


def memory_info(name):
    """A value of /proc/meminfo in bytes: MemTotal, MemAvailable."""
    found = re.search(rf"^{name}:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024


def setting(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None


def machine(work):
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {"cpu": model[1] if model else platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": memory_info("MemTotal"), "kernel": re.match(r"[\d.]*\d", platform.release())[0],
            "file_system": file_system(work),
            "transparent_hugepages": setting("/sys/kernel/mm/transparent_hugepage/enabled"),
            "dirty_ratio": setting("/proc/sys/vm/dirty_ratio"),
            "dirty_background_ratio": setting("/proc/sys/vm/dirty_background_ratio"), "cp": output_of(["cp", "--version"]).splitlines()[0]}


def git_commit():
    """The short hash of HEAD, with a + if tracked files differ from it; None outside a repository."""
    try:
        commit = output_of(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"]).strip()
        return commit + ("+" if output_of(["git", "-C", ROOT, "status", "--porcelain", "-uno"]).strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return None
