#!/usr/bin/env python3
"""A Slurm cluster of virtual nodes on this machine, for as long as a command runs.

    slurm_cluster.py [--nodes 4] COMMAND ARGUMENTS...

Needs root, and the distribution's slurmctld, slurmd, slurm-client and munge. COMMAND finds the cluster by SLURM_CONF.
Everything is in a temporary folder, and ends with it.
"""
import argparse
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

CONF = """\
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge/socket
CryptoType=crypto/munge
SlurmctldPort={port}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd-%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=15
KillWait=5
ReturnToService=2
SwitchType=switch/none
TmpFS={home}/tmp/%n
MailProg=/bin/true
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 Boards=1 \
SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
PORT = 26817


def start_munge(home):
    munge = home / "munge"
    munge.mkdir(mode=0o755)
    key = munge / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    for path in (munge, key):
        shutil.chown(path, "munge", "munge")
    subprocess.run(["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", f"--key-file={key}",
                    f"--socket={munge}/socket", f"--pid-file={munge}/pid", f"--log-file={munge}/log",
                    f"--seed-file={munge}/seed", "--force"], check=True, capture_output=True)
    return munge / "pid"


def start(home, nodes):
    """Starts the daemons. Returns the files with their process numbers."""
    home.chmod(0o755)
    host = socket.gethostname()
    for name in ("state", "spool", "tmp"):
        (home / name).mkdir()
    conf = home / "slurm.conf"
    conf.write_text(CONF.format(host=host, home=home, port=PORT, nodes=nodes, first=PORT + 4, last=PORT + 3 + nodes))
    os.environ["SLURM_CONF"] = str(conf)
    pids = [start_munge(home)]
    subprocess.run(["slurmctld", "-f", conf], check=True)
    pids.append(home / "slurmctld.pid")
    for node in range(1, nodes + 1):
        for name in ("spool", "tmp"):
            (home / name / f"n{node}").mkdir()
        subprocess.run(["slurmd", "-N", f"n{node}", "-f", conf], check=True)
        pids.append(home / f"slurmd-n{node}.pid")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        states = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], capture_output=True, text=True).stdout.split()
        if states == ["idle"] * nodes:
            return pids
        time.sleep(0.5)
    raise SystemExit(f"the nodes are not idle: {states}")


def stop(pids):
    for path in reversed(pids):
        try:
            os.kill(int(path.read_text()), signal.SIGTERM)
        except (OSError, ValueError):
            pass
    time.sleep(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    home = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
    pids = []
    try:
        pids = start(home, arguments.nodes)
        status = subprocess.run(arguments.command).returncode
    finally:
        stop(pids or [home / "munge" / "pid", *home.glob("*.pid")])
        shutil.rmtree(home, ignore_errors=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
