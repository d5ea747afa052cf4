"""Several processes run one conversion: the bytes of one process, one message, and one end.

RANKS=all takes every checkpoint, more numbers of ranks and every launcher that is there. RANKS=turns takes the
same, the launchers and numbers in turn. RANKS="Open MPI:2,7; srun:4" takes every checkpoint with these. Without
it, some.
"""
import collections
import concurrent.futures
import errno
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

import large_checkpoint
import ranks
import tools
from cli_common import STAGING, CliTest, tree
from rank_jobs import Job
from ranks import Ranks
from tools import filled

RANKS = os.environ.get("RANKS")
ALL = bool(RANKS)  # cases and commands
# Each with IN for the input and OUT for the output.
COMMANDS = [
    ["zero-to-fp32", "IN", "OUT"],
    ["zero-to-fp32", "IN", "OUT", "--safe-serialization", "--max-shard-size", "20KB", "--dtype", "bf16"],
    ["zero-to-fp32", "IN", "OUT", "--zstd", "--max-shard-size", "20KB", "--verify-output"],
    ["to-universal", "IN", "OUT"],
    ["to-universal", "IN", "OUT", "--resume", "--verify"],
    ["reshard", "IN", "OUT", "--dp", "3"],
    ["to-dcp", "IN", "OUT", "--dp", "3"],
    ["ckpt-pack", "pack", "IN", "OUT", "--sha256"],
    ["ckpt-pack", "strip", "IN", "OUT", "--keep", "weights", "--fsync"],
]
# The tools that only read: their report is one process's.
LOOKS = [
    ["ckpt-inspect", "verify", "IN", "--json", "--finite"],
    ["ckpt-inspect", "verify", "IN", "--json", "--write-manifest", "OUT"],
    ["ckpt-inspect", "stats", "IN", "--json", "--states"],
    ["ckpt-inspect", "diff", "IN", "IN", "--json", "--states", "--all"],
]


def ways(number):
    """[(launcher, ranks)] of a run."""
    if not ALL:
        return [("by hand", 3)]
    if ":" in RANKS:
        return [(name.strip(), int(size)) for name, sizes in (part.split(":") for part in RANKS.split(";"))
                for size in sizes.split(",")]
    every = [(launcher, size) for size in (2, 3, 4, 7) for launcher in ranks.launchers()]
    return every if RANKS == "all" else [every[number % len(every)]]


class GroupTest(CliTest):

    def large(self, elements=6 << 20):
        folder = self.new_path("ckpt")
        large_checkpoint.write_one(folder, elements)
        return folder

    def assert_same(self, command, source, alone, size, launcher):
        out = self.new_path("out")
        done = ranks.launchers()[launcher](size, filled(command, source, out), self.root)
        several = (done.returncode, tree(out) if out.exists() else None)
        # Not assertEqual, which shows all bytes.
        self.assertTrue(several == alone, f"{size} ranks by {launcher}, status {done.returncode}: {done.stderr}")

    def test_the_bytes_are_those_of_one_process(self):
        cases = [*tools.all_cases(), *tools.model_parallel_cases()]
        compared = 0
        for number, case in enumerate(cases if ALL else cases[::16]):
            for index, command in enumerate(COMMANDS):
                if not ALL and (number + index) % 3:
                    continue
                with self.subTest(case=case.name, command=command):
                    out = self.new_path("alone")
                    done = tools.run_tool(*filled(command, case.load_dir, out))
                    alone = (done.returncode, tree(out) if out.exists() else None)
                    compared += done.returncode == 0
                    for launcher, size in ways(number * len(COMMANDS) + index):
                        self.assert_same(command, case.load_dir, alone, size, launcher)
            if ALL:
                print(case.name, file=sys.stderr)
        self.assertGreater(compared, 0)

    def assert_reports_the_same(self, command, source, size, launcher):
        results = []
        for run in [lambda words: tools.run_tool(*words),
                    lambda words: ranks.launchers()[launcher](size, words, self.root)]:
            out = self.new_path("out")
            done = run(filled(command, source, out))
            results.append((done.returncode, done.stdout, out.read_bytes() if out.is_file() else None))
        self.assertEqual(results[1], results[0], f"{size} ranks by {launcher}: {done.stderr}")
        return results[0][0]

    def test_the_reports_are_those_of_one_process(self):
        cases = [*tools.all_cases(), *tools.model_parallel_cases()]
        for number, case in enumerate(cases if ALL else cases[::16]):
            for index, command in enumerate(LOOKS):
                if not ALL and (number + index) % 2:
                    continue
                with self.subTest(case=case.name, command=command):
                    for launcher, size in ways(number * len(LOOKS) + index):
                        status = self.assert_reports_the_same(command, case.load_dir, size, launcher)
                        self.assertIn(status, (0, 1))

    def test_what_is_wrong_is_reported_whoever_reads_it(self):
        source = self.large()
        shard = next(source.rglob("*optim_states.pt"))
        content = bytearray(shard.read_bytes())
        for at in range(1 << 20, len(content), 5 << 20):
            content[at:at + 4] = b"\0\0\xc0\x7f"  # NaN
        shard.write_bytes(content)
        for command in LOOKS:
            with self.subTest(command=command):
                status = self.assert_reports_the_same(command, source, 3, "by hand")
                self.assertEqual(status, 0 if command[1] == "diff" else 1)

    def test_two_that_differ_are_compared_by_several(self):
        source = self.large()
        other = self.new_path("other")
        done = tools.run_tool("zero-to-fp32", source, other, "--dtype", "bf16", "--safe-serialization")
        self.assertEqual(done.returncode, 0, done.stderr)
        for options in [[], ["--as", "bfloat16"], ["--as", "float16", "--rtol", "1e-3"]]:
            command = ["ckpt-inspect", "diff", source, other, "--json", *options]
            self.assert_reports_the_same(command, source, 3, "by hand")

    def test_packed_files_are_unpacked_as_by_one_process(self):
        cases = [*tools.all_cases(), *tools.model_parallel_cases()]
        for number, case in enumerate(cases if ALL else [tools.case_named("z2_bf16_w2")]):
            with self.subTest(case=case.name):
                packed, out = self.new_path("packed"), self.new_path("alone")
                self.assertEqual(tools.run_tool("ckpt-pack", "pack", case.load_dir, packed).returncode, 0)
                command = ["ckpt-pack", "unpack", "IN", "OUT"]
                done = tools.run_tool(*filled(command, packed, out))
                self.assertEqual(done.returncode, 0, done.stderr)
                for launcher, size in ways(number):
                    self.assert_same(command, packed, (0, tree(out)), size, launcher)

    def test_one_file_is_written_by_all(self):
        source = self.large()
        alone = self.new_path("alone")
        self.assertEqual(tools.run_tool("zero-to-fp32", source, alone).returncode, 0)
        for launcher, run in ranks.launchers().items():
            out = self.new_path("out")
            done = run(4, ["zero-to-fp32", source, out, "--json", "--verify-output"], self.root)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(tree(out), tree(alone), launcher)
            report = json.loads(done.stdout)["data"]
            self.assertEqual(report["bytes_verified"], sum(len(content) for content in tree(out).values()))
            self.assertGreater(report["records_checked"], 0)
            self.assertEqual(sum(rank["bytes_read"] for rank in report["ranks"]), report["bytes_read"])
            self.assertEqual(len(report["ranks"]), 4)
            self.assertGreaterEqual(sum(rank["bytes_done"] for rank in report["ranks"]), report["bytes_written"])

    def test_a_damaged_record_is_refused_whoever_reads_it(self):
        source = self.large()
        shard = next(source.rglob("*optim_states.pt"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        out = self.new_path("out")
        done = ranks.run_by_hand(3, ["zero-to-fp32", source, out], self.root)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("CRC32 mismatch", done.stderr)
        self.assertFalse(out.exists())

    def begun(self, size, *options, rate="2MB", **more):
        """Ranks in the middle of a slow run, of 24 MB at `rate`, and the folder of its output."""
        place = self.new_path("place")
        place.mkdir()
        group = Ranks(size, ["zero-to-fp32", self.source, place / "out", "--limit-rate", rate, *options], self.root,
                      **more)
        deadline = time.monotonic() + 60
        begun = {str(rank) for rank in range(size)} if size > 1 else set()
        while time.monotonic() < deadline and not (any(path.stat().st_blocks for path in place.rglob("*.bin")) and
                                                   self.workers(place) >= begun):
            time.sleep(0.02)
        return group, place

    @staticmethod
    def workers(place):
        """The ranks that have begun a portion."""
        try:
            return {path.read_text() for path in place.rglob("taken/*")}
        except FileNotFoundError:  # all is over
            return set()

    def assert_reads_its_own_disks(self, command, case, size):
        """Each rank has a part of the files at the same path, as use_node_local_storage leaves them."""
        alone, out = self.new_path("alone"), self.new_path("out")
        done = tools.run_tool(*filled(command, case.load_dir, alone))
        node = self.new_path("node")
        node.mkdir()
        disks = {rank: lambda rank=rank: ranks.mount_own_disk(node, case.load_dir, rank, size)
                 for rank in range(size)}
        results = Ranks(size, filled(command, node, out), self.root, limits=disks).wait()
        self.assertEqual({result[0] for result in results}, {done.returncode}, (done.stderr, results))
        self.assertEqual(sum(bool(result[2]) for result in results), 1 if done.stderr else 0, results)
        if done.returncode == 0:
            self.assertEqual(tree(out) if out.exists() else None, tree(alone) if alone.exists() else None)
        self.assertEqual(list(node.iterdir()), [])
        return done.returncode

    @unittest.skipUnless(ranks.can_mount(), "needs the right to mount")
    def test_every_node_reads_its_own_disk(self):
        cases = [*tools.all_cases(), *tools.model_parallel_cases()]
        commands = [command for command in COMMANDS if "pack" not in command] + [LOOKS[2]]
        done = set()
        for number, case in enumerate(cases if ALL else cases[3::16]):
            for index, command in enumerate(commands):
                if not ALL and (number + index) % 4:
                    continue
                with self.subTest(case=case.name, command=command):
                    for size in [2, 3, 4] if ALL else [3]:
                        done.add((command[0], self.assert_reads_its_own_disks(command, case, size)))
        self.assertIn(("zero-to-fp32", 0), done)

    @unittest.skipUnless(ranks.can_mount(), "needs the right to mount")
    def test_a_node_that_is_lost_takes_its_files_along(self):
        self.source = self.large()
        node = self.new_path("node")
        node.mkdir()
        source, self.source = self.source, node
        # The one data-parallel rank's files are on the second node.
        disks = {rank: lambda rank=rank: ranks.mount_own_disk(node, source, 1 - rank, 2) for rank in range(2)}
        group, place = self.begun(2, limits=disks)
        group.processes[1].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        (status, _, errors), _ = group.wait()
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(status, 4, errors)
        self.assertRegex(errors, "error: .*rank 1 on ")
        self.assertEqual(list(place.iterdir()), [])
        self.assertTrue(source.exists())

    def test_the_slowest_rank_is_named(self):
        self.source = self.large()
        group, _ = self.begun(3, "--progress", "json", rate="6MB")
        group.processes[2].send_signal(signal.SIGSTOP)
        # Until it is named; the others never end without it.
        for line in group.processes[0].stderr:
            if json.loads(line)["data"].get("slowest_rank", {}).get("rank") == 2:
                break
        else:
            self.fail("not named")
        group.processes[2].send_signal(signal.SIGCONT)
        status, _, errors = group.wait()[0]
        self.assertEqual(status, 0, errors)
        last = json.loads([line for line in errors.splitlines() if line.startswith("{")][-1])["data"]
        self.assertEqual(last["bytes_done"], last["bytes_total"])

    def assert_whole(self, place):
        self.assertTrue(tree(place / "out") == self.expected)
        self.assertEqual([path.name for path in place.iterdir()], ["out"])

    def test_a_killed_rank_costs_its_portions_and_not_the_run(self):
        self.prepare()
        for victim in (1, 2):
            group, place = self.begun(3, rate="6MB")
            group.processes[victim].send_signal(signal.SIGKILL)
            results = group.wait()
            self.assertEqual([status for rank, (status, _, _) in enumerate(results) if rank != victim], [0, 0], results)
            self.assertEqual([errors for _, _, errors in results[1:]], ["", ""])
            self.assert_whole(place)

    def test_all_end_where_rank_0_is_lost(self):
        self.prepare()
        group, place = self.begun(3)
        begin = time.monotonic()
        group.processes[0].send_signal(signal.SIGKILL)
        results = group.wait()
        self.assertLess(time.monotonic() - begin, 10)
        self.assertRegex(results[1][2], r"error: rank 0 on \S+ is gone: it was killed, or its node is lost")
        self.assertEqual([results[1][0], results[2]], [4, (4, "", "")], results)
        self.assertFalse((place / "out").exists())
        # It was by the one that could have removed it; the next run does.
        self.assertRegex(" ".join(path.name for path in place.iterdir()), rf"^{STAGING}\w+$")
        done = ranks.run_by_hand(2, ["zero-to-fp32", self.source, place / "out"], self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_whole(place)

    def test_what_a_killed_run_has_left_where_ranks_meet_is_not_obeyed(self):
        self.prepare()
        group, place = self.begun(2, "--resume")
        for process in reversed(group.processes):
            process.kill()
            process.communicate()
        again = Ranks(2, ["zero-to-fp32", self.source, place / "out", "--resume"], self.root, meet_in=group.place)
        # The other one is there first.
        self.assertEqual([result[0] for result in again.wait()], [0, 0])
        self.assert_whole(place)

    def test_a_signal_to_rank_0_ends_all_and_to_another_that_one(self):
        self.prepare()
        for victim in range(3):
            group, place = self.begun(3, rate="6MB")
            group.processes[victim].send_signal(signal.SIGTERM)
            results = group.wait()
            if victim == 0:
                self.assertEqual([status for status, _, _ in results], [130] * 3, results)
                self.assertEqual(list(place.iterdir()), [])
                self.assertIn("interrupted", results[0][2])
            else:
                self.assertEqual([status for status, _, _ in results],
                                 [130 if rank == victim else 0 for rank in range(3)], results)
                self.assert_whole(place)

    def test_a_silent_rank_is_given_up(self):
        self.prepare()
        runs = []
        for victim in (0, 2):
            runs.append((victim, *self.begun(3, "--rank-timeout", "4", rate="6MB")))
            runs[-1][1].processes[victim].send_signal(signal.SIGSTOP)
        for victim, group, place in runs:
            results = group.wait(without=[victim])
            if victim == 0:
                self.assertRegex(results[1][2], r"rank 0 on \S+ has been silent for \d+ s")
                self.assertEqual([results[1][0], results[2]], [4, (4, "", "")], results)
                self.assertFalse((place / "out").exists())
            else:
                self.assertEqual([result[0] for result in results if result], [0, 0], results)
                self.assert_whole(place)

    def test_what_fails_on_one_rank_is_said_once(self):
        self.source = self.large()
        group, place = self.begun(3, "--json")
        # Not before it writes: a rank that comes late finds no portion left, and nothing fails.
        resource.prlimit(group.processes[2].pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        results = group.wait()
        self.assertEqual([status for status, _, _ in results], [4] * 3, results)
        self.assertRegex(results[0][2], r"pytorch_model.bin: .*rank 2 on \S+: cannot \w+.*: File too large")
        self.assertEqual([out + errors for _, out, errors in results[1:]], ["", ""])
        self.assertEqual(json.loads(results[0][1])["data"]["errno"], 27)
        self.assertEqual(list(place.iterdir()), [])

    def fault_on(self, rank, *options, **more):
        """The results of three ranks of which one first does something of its own: (statuses, {rank: (stdout,
        stderr)}).

        Rank None: none does, and `more` has what is wrong with all of them.
        """
        home = self.new_path("home")
        (home / "place").mkdir(parents=True)
        job = Job("by hand", 3, ["zero-to-fp32", self.source, home / "place" / "out", *options], home, rank, **more)
        self.assertIsNotNone(job.wait(60), "has not ended")
        statuses, said = job.end()
        if any(statuses):
            self.assertEqual(list((home / "place").iterdir()), [], said)
        else:
            self.assertEqual(tree(home / "place" / "out"), self.expected)
        return statuses, said

    def assert_said_once(self, result, status, pattern):
        statuses, said = result
        self.assertEqual(statuses, [status] * 3, said)
        self.assertRegex(said["0"][1], pattern)
        self.assertEqual([said["1"], said["2"]], [("", "")] * 2, said)

    def prepare(self):
        self.source = self.large()
        alone = self.new_path("alone")
        self.assertEqual(tools.run_tool("zero-to-fp32", self.source, alone).returncode, 0)
        self.expected = tree(alone)

    def test_a_call_that_fails_on_one_rank_ends_all(self):
        self.prepare()
        shim = os.path.join(os.path.dirname(os.environ["DSCKPT_BIN"]), "lib", "libfail_call.so")
        if not os.path.exists(shim):
            self.skipTest("this build has no shim")

        def fault(victim, kind, reason, at, options):
            # Slow enough for each rank to have a share, also one that is late.
            return self.fault_on(victim, "--limit-rate", "6MB", *options, first=(
                f"export LD_PRELOAD={shim} FAIL_CALL={kind} FAIL_AT={at} FAIL_ERRNO={reason}"))

        with concurrent.futures.ThreadPoolExecutor(8) as runs:  # each sleeps most of its time
            for kind, reason, said, options in (
                    ("write", errno.ENOSPC, "cannot write.*: No space left", []),
                    ("write", errno.EIO, "cannot write.*: Input/output error", []),
                    ("read", errno.EIO, "cannot read.*: Input/output error", []),
                    ("fsync", errno.EIO, "cannot .*: Input/output error", ["--fsync"])):
                # Some of the first calls are of the notes, without which the others go on.
                places = (5, 8, 12, 16) if kind in ("read", "write") else (1,)
                found = {(victim, at): runs.submit(fault, victim, kind, reason, at, options)
                         for victim in (0, 2) for at in places}
                failed = collections.Counter()
                for (victim, at), result in found.items():
                    with self.subTest(kind=kind, reason=errno.errorcode[reason], victim=victim, at=at):
                        if any(result.result()[0]):
                            failed[victim] += 1
                            self.assert_said_once(result.result(), 4, (f"rank {victim} on .*" if victim else "") + said)
                self.assertTrue(failed[0] and failed[2], kind)
        # Whichever rank writes to a file first reserves its bytes.
        result = self.fault_on(None, LD_PRELOAD=shim, FAIL_CALL="fallocate", FAIL_AT="1",
                               FAIL_ERRNO=str(errno.ENOSPC))
        self.assert_said_once(result, 4, "cannot reserve .*: No space left")

    @unittest.skipUnless(os.geteuid() == 0, "needs root, to mount")
    def test_another_view_of_the_input_is_refused(self):
        self.prepare()
        shard = next(self.source.rglob("*optim_states.pt"))
        other = self.new_path("other")
        for size, said in ((shard.stat().st_size, "written at another time"), (1 << 20, "1048576 bytes instead of")):
            content = shard.read_bytes()[:size]
            other.write_bytes(content)
            # Slow enough for rank 2 to have a share, even if it is late.
            result = self.fault_on(2, "--limit-rate", "3MB",
                                   before=lambda rank: ["unshare", "--mount"] if rank == 2 else [],
                                   first=f"mount --bind {other} {shard}")
            self.assert_said_once(result, 4, f"{shard.name}: rank 2 on \\S+: is not the same file here as on rank 0: .*{said}")

    def test_another_program_is_refused(self):
        self.prepare()
        tool = self.new_path("another") / "zero-to-fp32"
        tool.parent.mkdir()
        content = pathlib.Path(ranks.binary("dsckpt")).read_bytes()
        commit = subprocess.run([ranks.binary("dsckpt"), "--version"], capture_output=True).stdout.split(b"(")[1].split(b",")[0]
        self.assertIn(b"\0" + commit + b"\0", content)
        tool.write_bytes(content.replace(b"\0" + commit + b"\0", b"\0" + b"x" * len(commit) + b"\0"))
        tool.chmod(0o755)
        result = self.fault_on(2, first=f'shift; set -- {tool} "$@"')
        self.assert_said_once(result, 2, r"rank 2 on \S+ runs dsckpt \S+ \(x+\), and rank 0 on \S+ runs dsckpt")

    def test_goes_on_with_any_number_of_ranks(self):
        self.prepare()
        for first, second in ((3, 2), (2, 1), (1, 3)):
            with self.subTest(first=first, second=second):
                self.go_on(first, second)

    def go_on(self, first, second):
        options = ["--resume", "--save-every", "0"]
        group, place = self.begun(first, *options)
        staging = place / f"{STAGING}resume-out"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if any((staging / "results").iterdir()) if first > 1 else (staging / "journal").exists():
                break
            time.sleep(0.02)
        group.processes[0].send_signal(signal.SIGKILL if first > 1 else signal.SIGTERM)
        group.wait()
        done = ranks.run_by_hand(second, ["zero-to-fp32", self.source, place / "out", *options, "--json"], self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["data"]["bytes_kept"], 0)
        self.assert_whole(place)

    def test_the_steps_of_a_run_whose_rank_0_was_killed_go_on(self):
        self.prepare()
        group, place = self.begun(2, "--resume", rate="10MB")
        group.processes[0].kill()
        group.wait()
        for command in (["work"], ["commit"]):
            done = tools.run_tool("dsckpt", *command, place / "out")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_whole(place)

    def test_errors_before_the_run_are_said_once(self):
        empty = self.new_path("empty")
        empty.mkdir()
        for command, status in ((["zero-to-fp32", empty, "/tmp/nothing"], 3),
                                (["zero-to-fp32", "/no/such/folder", "/tmp/nothing"], 2),
                                (["reshard", tools.all_cases()[0].load_dir, self.root, "--dp", "2"], 2)):
            results = Ranks(3, command, self.root).wait()
            self.assertEqual([result[0] for result in results], [status] * 3, results)
            self.assertEqual([bool(errors) for _, _, errors in results], [True, False, False], results)

    def test_a_dry_run_is_shown_once(self):
        done = ranks.run_by_hand(2, ["zero-to-fp32", tools.all_cases()[0].load_dir, self.new_path("out"), "--dry-run"],
                                self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        alone = tools.run_tool("zero-to-fp32", tools.all_cases()[0].load_dir, self.new_path("out"), "--dry-run")
        self.assertEqual(done.stdout, alone.stdout)

    def test_every_tag_is_converted_by_all(self):
        source = self.new_path("tags")
        source.mkdir()
        case = tools.case_named("z2_bf16_w2")
        for tag in ("global_step1", "global_step2"):
            (source / tag).symlink_to(case.tag_folder)
        alone = self.new_path("alone")
        self.assertEqual(tools.run_tool("zero-to-fp32", source, alone, "--tag", "all").returncode, 0)
        out = self.new_path("out")
        done = ranks.run_by_hand(3, ["zero-to-fp32", source, out, "--tag", "all"], self.root)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(tree(out), tree(alone))

    def test_none_is_for_what_one_rank_starts(self):
        case = tools.all_cases()[0]
        environment = dict(os.environ, OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="8")
        out = self.new_path("out")
        done = tools.run_tool("zero-to-fp32", case.load_dir, out, "--group", "none", env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(out.exists())

    def test_a_group_that_cannot_be_is_refused_before_anything_is_read(self):
        environment = dict(os.environ, DSCKPT_GROUP_RANK="9", DSCKPT_GROUP_SIZE="3")
        done = tools.run_tool("zero-to-fp32", "/no/such/folder", "/tmp/nothing", env=environment)
        self.assertEqual(done.returncode, 2)
        self.assertIn("rank '9' of '3' makes no sense", done.stderr)


if __name__ == "__main__":
    unittest.main()
