"""Ways to start tools that several processes run together."""
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types

from lost_race import without_lost_race

TIMEOUT = 120


def binary(name):
    return str(pathlib.Path(os.environ["DSCKPT_BIN"]) / name)


class Ranks:
    """Processes started as the ranks of one run, by hand. Each rank first calls its function in `limits`."""

    def __init__(self, size, command, folder, environment=None, limits=None, meet_in=None):
        self.place = meet_in or tempfile.mkdtemp(prefix="group-", dir=folder)
        self.processes = []
        for rank in range(size):
            variables = dict(environment or os.environ, DSCKPT_GROUP_RANK=str(rank), DSCKPT_GROUP_SIZE=str(size),
                             DSCKPT_GROUP_DIR=self.place)
            self.processes.append(subprocess.Popen(
                [binary(command[0]), *map(str, command[1:])], env=variables, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=(limits or {}).get(rank)))

    def wait(self, without=()):
        """[(status, stdout, stderr)] by rank; None for those in `without`."""
        results = []
        try:
            for rank, process in enumerate(self.processes):
                if rank in without:
                    results.append(None)
                    continue
                out, errors = process.communicate(timeout=TIMEOUT)
                status, errors = without_lost_race(process.returncode, errors)
                results.append((status, out, errors))
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
            shutil.rmtree(self.place)
        return results


CLONE_NEWNS = 0x20000
MS_REC_PRIVATE = 0x4000 | 0x40000


def libc_call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        raise OSError(ctypes.get_errno(), name)


def own_mounts():
    """Makes future mounts of this process private."""
    libc_call("unshare", CLONE_NEWNS)
    libc_call("mount", None, b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None)


def can_mount():
    """Returns whether a process here may have private mounts."""
    code = "import ranks; ranks.own_mounts()"
    return subprocess.run([sys.executable, "-c", code], cwd=pathlib.Path(__file__).parent,
                          capture_output=True).returncode == 0


def mount_own_disk(node, source, rank, size):
    """Mounts a disk at `node` that only this process sees, with the files of `source` that one node's ranks wrote.

    The shards of data-parallel rank D are on node D % `size`. Files that belong to no rank are on all nodes, as
    DeepSpeed's local rank 0 of each node writes them.
    """
    own_mounts()
    libc_call("mount", b"disk", os.fsencode(node), b"tmpfs", ctypes.c_ulong(0), b"mode=0755")
    files = sorted(pathlib.Path(source).rglob("*"))
    slices = 1 + max((int(found[1]) for path in files if (found := re.search(r"mp_rank_(\d+)", path.name))), default=0)
    for path in files:
        target = pathlib.Path(node) / path.relative_to(source)
        owner = rank
        if found := re.search(r"zero_pp_rank_(\d+)_|expp_rank_(\d+)_", path.name):
            owner = int(found[1] or found[2]) % size
        elif found := re.search(r"/offloaded_tensors/rank(\d+)/", str(path)):  # numbered over all ranks
            owner = int(found[1]) // slices % size
        if path.is_dir():
            target.mkdir()
        elif owner == rank:
            shutil.copy(path, target)


def run_by_hand(size, command, folder):
    """The result of rank 0, like that of a single process. The other ranks have its status and print nothing."""
    results = Ranks(size, command, folder).wait()
    status, out, errors = results[0]
    for rank, other in enumerate(results[1:], 1):
        if other != (status, "", ""):
            errors += f"\nrank {rank}: {other}"
    return types.SimpleNamespace(returncode=status, stdout=out, stderr=errors)


# How each launcher starts so many ranks: the words before the command, and variables.

def by_mpirun(size, folder):
    del folder
    return ["mpirun.openmpi", "-n", str(size)], {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                                 "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def by_srun(size, folder, *options):
    """One rank for each node as long as there are nodes."""
    words = ["srun", "--overcommit", *options, "-N", str(min(size, 4)), "-n", str(size)]
    return words, {"DSCKPT_GROUP_DIR": str(folder)}


def by_torchrun(size, folder):
    """Its ranks are on this machine, and it starts a program that is not Python."""
    port = 20000 + hash(str(folder)) % 10000
    return ["torchrun", "--no-python", "--nproc-per-node", str(size), "--master-port", str(port)], {}


def by_mpich(size, folder):
    return [os.environ["MPICH_MPIEXEC"], "-n", str(size)], {"DSCKPT_GROUP_DIR": tempfile.mkdtemp(dir=folder)}


def runner(launcher):
    """A function that runs a command with so many ranks."""
    def run(size, command, folder):
        words, variables = launcher(size, folder)
        return subprocess.run([*words, binary(command[0]), *map(str, command[1:])], env={**os.environ, **variables},
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=TIMEOUT)
    return run


def programs():
    """name -> function that starts ranks, such as by_mpirun(), for the launchers that are installed.

    Slurm if SLURM_CONF names a cluster (slurm_cluster.py). MPICH if MPICH_MPIEXEC is its launcher.
    """
    found = {}
    if shutil.which("mpirun.openmpi"):
        found["Open MPI"] = by_mpirun
    if "SLURM_CONF" in os.environ:
        found["srun"] = by_srun
    if shutil.which("torchrun"):
        found["torchrun"] = by_torchrun
    if "MPICH_MPIEXEC" in os.environ:
        found["MPICH"] = by_mpich
    return found


def launchers():
    """name -> function that runs a command with so many ranks. Starting by hand, by the environment, is always there."""
    return {"by hand": run_by_hand, **{name: runner(launcher) for name, launcher in programs().items()}}
