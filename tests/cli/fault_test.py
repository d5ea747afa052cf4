"""Faults outside of the checkpoint: no space, no permission, signals, too few descriptors."""
import contextlib
import json
import os
import pathlib
import resource
import signal
import statistics
import struct
import subprocess
import sys
import time

import cli_common
import large_checkpoint
import torch_files
from cli_common import CliTest, snapshot

NOBODY = 65534
# A run that writes this much can be caught in the middle.
ELEMENTS = 8 << 20


class FaultTest(CliTest):

    def binary(self, name="zero-to-fp32"):
        return str(pathlib.Path(os.environ["DSCKPT_BIN"]) / name)

    def assert_io_error(self, output, pattern, *arguments, source=None, **options):
        """Exit 4, and nothing of the output is left."""
        before = self.seen_in(output.parent)
        done = self.zero_to_fp32(source, output, "--json", *arguments, **options)
        error = self.error_of(done, 4)
        self.assertRegex(done.stderr, pattern)
        self.assertEqual(self.seen_in(output.parent), before)
        return error

    def seen_in(self, folder):
        """As snapshot, but without the times of folders: files came and went there."""
        seen = snapshot(folder) if folder.exists() else None
        return seen and {path: entry if entry[3] else entry[0] for path, entry in seen.items()}


class SpaceTest(FaultTest):
    on_disk = True

    def test_a_file_that_may_not_grow_is_an_io_error_and_leaves_nothing(self):
        scratch = self.scratch("z2_fp32_full_w3")
        before = snapshot(scratch.folder)

        def limit(size):
            return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        for size in [0, 1, 4096, 15000]:
            for options in [[], ["--safe"], ["--max-shard-size=9KB"], ["--threads=1"], ["--fsync"], ["--io=direct"]]:
                if size == 15000 and "--max-shard-size=9KB" in options:
                    continue  # every file is smaller
                with self.subTest(size=size, options=options):
                    error = self.assert_io_error(self.new_path() / "out", "File too large", *options,
                                                 source=scratch.folder, preexec_fn=limit(size))
                    self.assertRegex(error["file"], r"\.(bin|safetensors|json)$")
        existing = self.new_path()
        existing.mkdir()
        (existing / "pytorch_model.bin").write_text("mine")
        self.assert_io_error(existing, "File too large", "--force", source=scratch.folder, preexec_fn=limit(4096))
        self.assertEqual((existing / "pytorch_model.bin").read_text(), "mine")
        self.assertEqual(snapshot(scratch.folder), before)

    @contextlib.contextmanager
    def small_file_system(self, size):
        folder = self.new_path("mount")
        folder.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
        if mounted.returncode:
            self.skipTest("cannot mount a small file system here")
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)

    def test_space_is_checked_before_anything_is_written(self):
        scratch = self.scratch("z2_fp32_full_w3")
        with self.small_file_system("16k") as folder:
            error = self.assert_io_error(folder / "out", r"needs [\d.]+ KB, .*No space left", source=scratch.folder)
            self.assertEqual(error["file"], str(folder / "out"))
            self.assertEqual(list(folder.iterdir()), [])


class PermissionTest(FaultTest):

    def setUp(self):
        super().setUp()
        self.as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self.root.chmod(0o755)
        try:
            subprocess.run([self.binary(), "--version"], capture_output=True, check=True, **self.as_user)
        except (PermissionError, subprocess.CalledProcessError):
            self.skipTest("another user cannot run the tool")
        self.ckpt = self.scratch("z2_bf16_w2")
        self.open_folder = self.new_path("open")
        self.open_folder.mkdir()
        self.open_folder.chmod(0o777)

    def test_an_unreadable_shard_is_an_io_error_that_names_it(self):
        for path in [self.ckpt.optim(1), self.ckpt.model(), self.ckpt.folder / "latest"]:
            mode = path.stat().st_mode
            path.chmod(0)
            error = self.assert_io_error(self.open_folder / "out", "Permission denied", source=self.ckpt.folder,
                                         **self.as_user)
            self.assertIn(path.name, error["file"])
            self.assertEqual(error["errno"], 13)
            path.chmod(mode)
        self.assertEqual(self.zero_to_fp32(self.ckpt.folder, self.open_folder / "out", **self.as_user).returncode, 0)

    def test_an_unreadable_folder_is_an_io_error_that_names_it(self):
        for folder in [self.ckpt.tag, self.ckpt.folder]:
            mode = folder.stat().st_mode
            folder.chmod(0)
            error = self.assert_io_error(self.open_folder / "out", "Permission denied", source=self.ckpt.folder,
                                         **self.as_user)
            self.assertIn(str(folder), error["file"])
            folder.chmod(mode)

    def test_a_folder_that_cannot_be_written_is_an_io_error_that_names_it(self):
        locked = self.new_path("locked")
        locked.mkdir()
        locked.chmod(0o555)
        for output in [locked, locked / "out", locked / "a" / "b"]:
            error = self.assert_io_error(output, "Permission denied", source=self.ckpt.folder, **self.as_user)
            self.assertIn(str(locked), error["file"])
        locked.chmod(0o755)

    def test_a_dry_run_says_that_the_folder_cannot_be_written_into(self):
        locked = self.new_path("locked")
        locked.mkdir()
        locked.chmod(0o555)
        for output in (locked, locked / "new"):
            done = self.zero_to_fp32(self.ckpt.folder, output, "--dry-run", **self.as_user)
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn(f"{locked}: cannot write into the folder: Permission denied", done.stderr)
            self.assertIn("writes", done.stdout)
        locked.chmod(0o755)


class InterruptedTest(FaultTest):

    def setUp(self):
        super().setUp()
        self.ckpt = self.root / "large"
        large_checkpoint.write_one(self.ckpt, ELEMENTS)

    @staticmethod
    def is_being_written(output):
        """A folder that is there is staged inside, a new one beside its place."""
        return any(any(folder.glob(".dsckpt-staging-*/files/*")) for folder in (output, output.parent))

    def caught_midway(self, output, *arguments, command=None):
        """A run that was stopped after it had begun to write; it waits for SIGCONT."""
        command = command or [self.binary(), str(self.ckpt), str(output)]
        for _ in range(5):
            # Slowly, so that it is caught on a busy machine too.
            run = subprocess.Popen([*command, "--json", "--threads=1", "--limit-rate=16MB", *arguments],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(run.communicate)
            self.addCleanup(run.kill)
            while run.poll() is None and not self.is_being_written(output):
                time.sleep(0.0002)
            if run.poll() is None:
                run.send_signal(signal.SIGSTOP)
                return run
            subprocess.run(["rm", "-rf", output], check=True)
        self.fail("every run was over before it could be caught")

    def finish(self, run):
        run.send_signal(signal.SIGCONT)
        stdout, stderr = run.communicate(timeout=60)
        return subprocess.CompletedProcess(run.args, run.returncode, stdout, stderr)

    def test_the_checkpoint_converts_when_left_alone(self):
        tensors = self.assert_converts(self.ckpt)
        self.assertTrue(torch_files.equal(tensors["weight"], torch_files.arange(ELEMENTS, dtype="float32")))

    def test_interrupt_and_termination_leave_nothing(self):
        before = snapshot(self.ckpt)
        for which in [signal.SIGINT, signal.SIGTERM]:
            for arguments in [[], ["--safe"]]:
                with self.subTest(signal=which.name, arguments=arguments):
                    output = self.new_path() / "new"
                    run = self.caught_midway(output, *arguments)
                    run.send_signal(which)
                    self.assertEqual(self.error_of(self.finish(run), 130)["kind"], "interrupted")
                    self.assertFalse(output.parent.exists())
        self.assertEqual(snapshot(self.ckpt), before)

    def test_an_interrupted_replacement_leaves_the_old_files(self):
        output = self.new_path()
        output.mkdir()
        (output / "pytorch_model.bin").write_text("mine")
        run = self.caught_midway(output, "--force")
        run.send_signal(signal.SIGTERM)
        self.error_of(self.finish(run), 130)
        self.assertEqual([path.name for path in output.iterdir()], ["pytorch_model.bin"])
        self.assertEqual((output / "pytorch_model.bin").read_text(), "mine")

    def test_an_interrupted_universal_checkpoint_leaves_the_old_one_and_its_name(self):
        tool = str(pathlib.Path(os.environ["DSCKPT_BIN"]) / "to-universal")
        output = self.new_path() / "universal"
        command = [tool, "-q", "--input-folder", str(self.ckpt), "--output-folder", str(output)]
        run = self.caught_midway(output, command=command)
        run.send_signal(signal.SIGINT)
        self.error_of(self.finish(run), 130)
        self.assertFalse(output.parent.exists())
        self.assertEqual(self.tool("to-universal", *command[1:]).returncode, 0)
        before = snapshot(output.parent)
        run = self.caught_midway(output, "--force", command=command)
        run.send_signal(signal.SIGTERM)
        self.error_of(self.finish(run), 130)
        self.assertEqual(snapshot(output.parent), before)

    def test_a_killed_run_leaves_no_file_under_its_final_name(self):
        output = self.new_path() / "new"
        run = self.caught_midway(output)
        run.kill()
        run.communicate()
        self.assertEqual(run.returncode, -signal.SIGKILL)
        self.assertTrue(all(path.name.startswith(".dsckpt-staging-") for path in output.parent.iterdir()))
        # The next one removes it.
        staging, = output.parent.iterdir()
        done = self.zero_to_fp32(self.ckpt, output)
        self.assertEqual(done.returncode, 0)
        self.assertIn(f"note: removed {staging}, which a run that was killed had left", done.stderr)
        self.assertEqual([path.name for path in output.parent.iterdir()], ["new"])
        self.assertTrue((output / "pytorch_model.bin").exists())

    def test_a_run_leaves_alone_what_another_one_writes(self):
        first, second = self.new_path() / "first", self.new_path()
        run = self.caught_midway(first)
        second = first.parent / "second"
        done = self.zero_to_fp32(self.ckpt, second)
        self.assertEqual((done.returncode, "unfinished" in done.stderr, "removed" in done.stderr), (0, False, False))
        self.assertEqual(self.finish(run).returncode, 0)
        self.assertEqual(sorted(path.name for path in first.parent.iterdir()), ["first", "second"])

    def test_a_shard_that_is_cut_while_it_is_read_is_an_io_error(self):
        output = self.new_path() / "new"
        run = self.caught_midway(output)
        shard = self.ckpt / "global_step1" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
        os.truncate(shard, 4096)
        error = self.error_of(self.finish(run), 4)
        self.assertIn(shard.name, error["file"])
        self.assertRegex(error["message"], "ends .* early")
        self.assertFalse(output.parent.exists())


class SharedDiskTest(FaultTest):

    def setUp(self):
        super().setUp()
        self.ckpt = self.root / "large"
        large_checkpoint.write_one(self.ckpt, 1 << 20)

    def test_a_rate_is_not_exceeded(self):
        expected = self.convert(self.ckpt)
        start = time.monotonic()
        output = self.convert(self.ckpt, "--limit-rate=16MB", "--io-class=idle")
        # The last unit need not be waited for.
        self.assertGreater(time.monotonic() - start, ((4 << 20) - (256 << 10)) / 16e6)
        self.assertEqual((output / "pytorch_model.bin").read_bytes(), (expected / "pytorch_model.bin").read_bytes())

    def test_a_run_that_waits_for_its_turn_hears_an_interrupt(self):
        output = self.new_path() / "new"
        run = subprocess.Popen([self.binary(), self.ckpt, output, "--limit-rate=1KB"], stderr=subprocess.PIPE)
        while not any(output.parent.glob(".dsckpt-staging-*/files/*")):
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=30)
        self.assertEqual((run.returncode, output.parent.exists()), (130, False))

    def test_sigusr1_is_answered_by_a_line(self):
        for arguments in [[], ["--progress=never"], ["--quiet"]]:
            output = self.new_path() / "new"
            run = subprocess.Popen([self.binary(), self.ckpt, output, "--limit-rate=1MB", *arguments],
                                   stderr=subprocess.PIPE, text=True)
            while not any(output.parent.glob(".dsckpt-staging-*/files/*")):
                time.sleep(0.01)
            run.send_signal(signal.SIGUSR1)
            self.assertRegex(run.stderr.readline(), r"\d+ %  .* of 4\.\d+ MB .*/s .* s left *\n$")
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=30)
            self.assertEqual(run.returncode, 130)

    def test_rates_and_classes_are_checked(self):
        for option in ["--limit-rate=fast", "--limit-rate=0", "--limit-rate=-1MB", "--io-class=lazy"]:
            self.error_of(self.zero_to_fp32(self.ckpt, self.new_path(), "--json", option), 2)


class ReadBackTest(FaultTest):
    on_disk = True

    def test_everything_that_was_written_is_read_back(self):
        scratch = self.scratch("z3_fp32_full_w2")
        for arguments in [[], ["--safe"], ["--max-shard-size=9KB"], ["--zstd"], ["--states", "--zstd"], ["--io=direct"]]:
            with self.subTest(arguments=arguments):
                plain, checked = self.new_path(), self.new_path()
                self.assertEqual(self.zero_to_fp32(scratch.folder, plain, *arguments).returncode, 0)
                done = self.zero_to_fp32(scratch.folder, checked, *arguments, "--verify-output", "--json")
                data = self.json_lines(done.stdout)[-1]["data"]
                self.assertEqual(data["bytes_verified"], data["bytes_stored"])
                files = {path.relative_to(plain): path.read_bytes() for path in plain.rglob("*") if path.is_file()}
                self.assertEqual({path.relative_to(checked): path.read_bytes() for path in checked.rglob("*")
                                  if path.is_file()}, files)
                if "--zstd" not in arguments:
                    self.assertEqual(data["bytes_verified"], sum(map(len, files.values())))


def write_many_tensors(path, count):
    """Safetensors with `count` tensors without elements: much to open and to plan, and nothing to write."""
    header = json.dumps({f"layers.{i}.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
                         for i in range(count)}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


class HeardTest(FaultTest):
    """An interrupt is heard, whatever the run is at. INTERRUPTS: at how many moments of each command; it is then heard
    within 0.2 s."""

    MOMENTS = int(os.environ.get("INTERRUPTS", 4))

    def check(self, *command):
        """Interrupts the command at moments that are spread over its time."""
        def start():
            out = self.new_path()
            words = [str(out) if word == "OUT" else word for word in command]
            return out, subprocess.Popen([self.binary(words[0]), *words[1:]], stdout=subprocess.DEVNULL,
                                         stderr=subprocess.PIPE, text=True)

        begin = time.monotonic()
        out, run = start()
        run.communicate(timeout=60)
        self.assertIn(run.returncode, (0, 1))
        whole = time.monotonic() - begin
        first = 0.02
        waited = []
        for i in range(20 * self.MOMENTS):
            if i >= self.MOMENTS and waited:
                break
            begin = time.monotonic()
            out, run = start()
            try:
                run.wait(first + max(0, whole - first) * (i % self.MOMENTS) / self.MOMENTS)
            except subprocess.TimeoutExpired:
                pass
            sent = time.monotonic()
            run.send_signal(signal.SIGINT)
            said = run.communicate(timeout=60)[1]
            if run.returncode == 130:
                waited.append(time.monotonic() - sent)
                self.assertIn("interrupted", said)
                self.assertFalse(out.exists())
            elif run.returncode == -signal.SIGINT:  # it had not begun: the machine is busy
                first += 0.01
            else:  # it was over: it takes as long as this at most, whatever the first one took
                self.assertIn(run.returncode, (0, 1), said)
                whole = min(whole, sent - begin)
                first = min(first, whole / 2)
        self.assertTrue(waited, command)
        if "INTERRUPTS" in os.environ:
            print(f"{' '.join(command[:2])}: {len(waited)} interrupts, heard after {statistics.median(waited):.3f} s "
                  f"(median) and {max(waited):.3f} s (most)", file=sys.stderr)
            # Others keep the machine busy at times.
            self.assertLess(statistics.median(waited), 0.2, (command, waited))

    def test_while_it_reads_writes_and_packs(self):
        folder = self.root / "large"
        large_checkpoint.write_one(folder, 3 * ELEMENTS)
        folder = str(folder)
        self.check("zero-to-fp32", folder, "OUT", "--threads=1")
        self.check("zero-to-fp32", folder, "OUT", "--io=buffered", "--verify-output")
        self.check("ckpt-pack", "pack", folder, "OUT", "--sha256")
        self.check("ckpt-inspect", "stats", folder)
        self.check("ckpt-inspect", "verify", folder)

    def test_while_it_opens_and_plans(self):
        path = self.root / "model.safetensors"
        write_many_tensors(path, 100_000)
        self.check("zero-to-fp32", str(path), "OUT")
        self.check("zero-to-fp32", str(path), "OUT", "--dry-run")
        self.check("ckpt-inspect", "list", str(path), "--json")


class OpeningTest(FaultTest):

    @staticmethod
    def opened_by(run):
        names = []
        for link in pathlib.Path(f"/proc/{run.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                names.append(os.readlink(link))
        return names

    def test_an_interrupt_is_heard_while_a_file_is_being_opened(self):
        checkpoint = self.root / "bomb"
        large_checkpoint.write_one(checkpoint, 10)
        path = checkpoint / "global_step1" / "mp_rank_00_model_states.pt"
        with open(path, "wb") as file:
            file.write(b"PK\x03\x04")
            file.truncate(1 << 30)
        subprocess.run(["zstd", "-q", "-1", "--rm", path], check=True)
        for arguments, last in [([], ""), (["--json"], '"kind":"interrupted"')]:
            run = subprocess.Popen([self.binary("to-universal"), "--input_folder", checkpoint, "--output_folder",
                                    self.new_path(), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not any(name.endswith(".pt.zst") for name in self.opened_by(run)):
                time.sleep(0.001)
            run.send_signal(signal.SIGINT)
            stdout, stderr = run.communicate(timeout=30)
            self.assertEqual((run.returncode, stderr), (130, "to-universal: error: interrupted\n"))
            self.assertIn(last, stdout)


class ResourceTest(FaultTest):

    def test_few_descriptors_are_enough_for_many_shards(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))

        for name in ["z2_bf16_full_w8", "z3_fp32_full_w8", "z2_fp32_large_param_w8"]:
            scratch = self.scratch(name)
            expected = self.convert(scratch.folder, "--max-shard-size=1KB")
            self.assertGreater(len(list(expected.iterdir())), 6)
            output = self.convert(scratch.folder, "--max-shard-size=1KB", preexec_fn=few)
            self.assertEqual({p.name: p.read_bytes() for p in output.iterdir()},
                             {p.name: p.read_bytes() for p in expected.iterdir()})


if __name__ == "__main__":
    cli_common.main()
