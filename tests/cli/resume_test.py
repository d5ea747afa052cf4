"""A run with --resume that stops for whatever reason is resumed by the same command: the same bytes.

support/fail_call.cpp kills a run at a call of the system. KILLS=all does so at every one of them, which
takes long; else at some.
"""
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import zlib

import cli_common
import large_checkpoint
import stored_forms
import torch_files
from cli_common import STAGING, CliTest, fill_place, snapshot, tree

KINDS = ["write", "fsync", "rename", "open", "mkdir", "link", "unlink", "close", "fallocate"]


class ResumeTest(CliTest):

    def setUp(self):
        super().setUp()
        self.bin = pathlib.Path(os.environ["DSCKPT_BIN"])
        self.lose_power = self.bin.parent / "lib" / "liblose_power.so"
        self.counts = self.root / "counts"
        self.all = os.environ.get("KILLS") == "all"

    def say(self, command, what):
        if self.all:
            print(" ".join(command), what, sep=": ", file=sys.stderr)

    def call(self, folder, command, **fault):
        tool, *arguments = command
        return subprocess.run([self.bin / tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
                              env=self.with_fault(**fault) if fault else self.environment)

    def large(self, elements=6 << 20):
        folder = self.new_path("ckpt")
        large_checkpoint.write_one(folder, elements)
        return folder

    def small(self, name="z2_bf16_w2"):
        return self.scratch(name).folder

    def staging(self, folder):
        return [path for path in folder.rglob(STAGING + "*")]

    def fresh(self, source, before):
        return fill_place(self.new_path("work"), source, before)


class KilledTest(ResumeTest):

    def indices(self, count):
        if self.all or count <= 3:
            return range(1, count + 1)
        return [1, count // 2, count]

    def check(self, source, before, command):
        command = [*command, "--resume", "--save-every=0", "--threads=1"]
        clean = self.fresh(source, before)
        done = self.call(clean, command, counts=self.counts)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = tree(clean / "place")
        self.assertEqual(self.staging(clean), [])
        counts = self.calls_made(self.counts)
        kills = goes_on = 0
        for kind in KINDS:
            for at in self.indices(counts[kind]):
                with self.subTest(command=command, kind=kind, at=at):
                    folder = self.fresh(source, before)
                    if self.call(folder, command, call=kind, at=at, errno=-1).returncode != -signal.SIGKILL:
                        continue  # how often it saves depends on the time
                    kills += 1
                    # Killed once more, early or late.
                    done = self.call(folder, command, call=kind, at=max(1, at // 2), errno=-1)
                    if done.returncode != 0:
                        done = self.call(folder, command)
                    now = tree(folder / "place")
                    # Killed when all was over but for the removal of an empty folder.
                    if done.returncode == 2 and "exists already" in done.stderr:
                        left = [path for path in now if STAGING in path]
                        self.assertLessEqual(len(left), 1)
                        now = {path: content for path, content in now.items() if path not in left}
                    else:
                        self.assertEqual(done.returncode, 0, done.stderr)
                    goes_on += "by the previous run" in done.stderr
                    self.assertEqual(set(now) ^ set(expected), set(), done.stderr)
                    self.assertTrue(now == expected)
                    shutil.rmtree(folder)
        self.assertGreater(kills, 10)
        self.say(command, f"{kills} kills, {goes_on} went on")
        return goes_on

    def test_weights_in_a_new_folder(self):
        self.assertGreater(self.check(self.large(), {}, ["zero-to-fp32", "in", "place/out"]), 0)

    def test_weights_file_by_file(self):
        command = ["zero-to-fp32", "in", "place", "--max-shard-size=5KB", "--safe-serialization"]
        self.check(self.small(), {"mine.txt": "mine"}, [*command, "--fsync"])
        names = ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "mine.txt"]
        self.check(self.small(), {name: "old" for name in names}, [*command, "--force"])

    def test_universal(self):
        source = self.small()
        command = ["to-universal", "--input-folder", "in", "--output-folder", "place/universal"]
        self.check(source, {}, command)
        old = self.fresh(source, {})
        self.assertEqual(self.call(old, command).returncode, 0)
        before = {path: "old" for path, content in tree(old / "place").items() if content is not None}
        self.check(source, before, [*command, "--force"])

    def test_shards(self):
        self.check(self.small("z3_bf16_hpz_w4"), {}, ["reshard", "in", "place/out", "--dp=3"])

    def test_dcp(self):
        self.check(self.small("z3_bf16_hpz_w4"), {}, ["to-dcp", "in", "place/out", "--dp=3", "--preset=accelerate"])

    def test_packed(self):
        self.assertGreater(self.check(self.large(), {}, ["ckpt-pack", "pack", "in", "place/out"]), 0)
        self.check(self.large(), {}, ["zero-to-fp32", "in", "place/out", "--zstd", "--max-shard-size=20MB"])

    def test_packed_with_hashes(self):
        self.assertGreater(self.check(self.large(2 << 20), {}, ["ckpt-pack", "pack", "in", "place/out", "--sha256"]), 0)

    def reads_when_killed(self, source, *options):
        """The output of an undisturbed run, and of those that go on after a kill at each rename but the
        commit's."""
        command = ["ckpt-pack", "pack", "in", "place/out", "--resume", "--save-every=0", "--threads=1", *options]
        self.assertEqual(self.call(self.fresh(source, {}), command, counts=self.counts).returncode, 0)
        clean = self.calls_made(self.counts)
        reads = [clean["read"]]
        for at in range(1, clean["rename"]):
            folder = self.fresh(source, {})
            self.assertEqual(self.call(folder, command, call="rename", at=at, errno=-1).returncode, -signal.SIGKILL)
            self.assertEqual(self.call(folder, command, counts=self.counts).returncode, 0)
            reads.append(self.calls_made(self.counts)["read"])
        return reads

    def test_what_is_packed_already_is_not_hashed_again(self):
        source = self.new_path("two")
        source.mkdir()
        for name in ("a", "b"):
            torch_files.save_file({"w": torch_files.zeros(8 << 20, dtype="uint8")}, source / f"{name}.safetensors")
        pairs = zip(self.reads_when_killed(source, "--sha256"), self.reads_when_killed(source), strict=True)
        whole, *gone_on = [hashed - plain for hashed, plain in pairs]
        self.assertGreaterEqual(whole, 16)  # of a MiB each
        self.assertEqual((max(gone_on), min(gone_on)), (whole, whole // 2))

    def test_unpacked_and_stripped(self):
        packed = stored_forms.pack(self.large(), self.new_path())
        self.check(packed, {}, ["ckpt-pack", "unpack", "in", "place/out"])
        packed = stored_forms.pack(self.small(), self.new_path(), "--sha256")
        self.check(packed, {}, ["ckpt-pack", "unpack", "in", "place/out", "--sha256"])
        self.check(self.small(), {}, ["ckpt-pack", "strip", "in", "place/out", "--keep=weights"])


class PowerCase(ResumeTest):
    """support/lose_power.cpp drops what was not synced."""

    def setUp(self):
        super().setUp()
        if "DSCKPT_SANITIZED" in os.environ:
            self.skipTest("a sanitizer comes before every library")

    def lose(self, folder, command, keeps="nothing", **power):
        backup = self.root / "backup"
        shutil.rmtree(backup, ignore_errors=True)
        backup.mkdir()
        power = {f"POWER_{key.upper()}": str(value) for key, value in {**power, "keeps": keeps, "backup": backup}.items()}
        tool, *arguments = command
        return subprocess.run([self.bin / tool, *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
                              env={**self.environment, **power, "LD_PRELOAD": str(self.lose_power)})

    def check(self, source, before, command, judge):
        """`judge` is given the folder after the loss, what was there before the run, and what should be."""
        clean = self.fresh(source, before)
        old = tree(clean / "place")
        done = self.lose(clean, command, count=self.counts)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = tree(clean / "place")
        count = int(self.counts.read_text())
        losses = 0
        for keeps in ("nothing", "names"):
            for at in range(1, count + 1, 1 if self.all else max(1, count // 8)):
                with self.subTest(command=command, keeps=keeps, at=at):
                    folder = self.fresh(source, before)
                    if self.lose(folder, command, keeps, at=at).returncode != -signal.SIGKILL:
                        continue
                    losses += 1
                    judge(folder, old, expected)
                    shutil.rmtree(folder)
        self.assertGreater(losses, 10)
        self.say(command, f"{losses} losses of power")

    def check_going_on(self, source, before, command):
        command = [*command, "--resume", "--save-every=0", "--threads=1"]

        def judge(folder, old, expected):
            done = self.call(folder, command)
            now = tree(folder / "place")
            if done.returncode == 2 and "exists already" in done.stderr:
                now = {path: content for path, content in now.items() if STAGING not in path}
            else:
                self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(set(now) ^ set(expected), set(), done.stderr)
            self.assertTrue(now == expected)

        self.check(source, before, command, judge)


class DirectPowerTest(PowerCase):
    on_disk = True

    def test_what_goes_on_after_a_loss_of_power_is_right(self):
        self.check_going_on(self.large(), {}, ["zero-to-fp32", "in", "place/out", "--io=direct"])


class PowerTest(PowerCase):

    def test_what_goes_on_after_a_loss_of_power_is_right(self):
        self.check_going_on(self.large(), {}, ["zero-to-fp32", "in", "place/out"])
        self.check_going_on(self.large(), {}, ["ckpt-pack", "pack", "in", "place/out"])
        names = ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "mine.txt"]
        self.check_going_on(self.small(), {name: "old" for name in names},
                            ["zero-to-fp32", "in", "place", "--max-shard-size=5KB", "--safe-serialization", "--force"])
        self.check_going_on(self.small(), {},
                            ["to-universal", "--input-folder", "in", "--output-folder", "place/universal"])

    def test_fsync_shows_nothing_that_is_not_whole(self):
        def judge(folder, old, expected):
            now = {path: content for path, content in tree(folder / "place").items() if STAGING not in path}
            self.assertTrue(now in (old, expected), sorted(set(now) ^ set(expected)))

        self.check(self.large(), {}, ["zero-to-fp32", "in", "place/out", "--fsync", "--threads=1"], judge)
        self.check(self.small(), {}, ["reshard", "in", "place/out", "--dp=3", "--fsync", "--threads=1"], judge)


class StoppedTest(ResumeTest):

    def stopped(self, folder, command, signal_=signal.SIGINT):
        """The status and the messages of a run that is stopped when a part of the output is written and
        saved."""
        run = subprocess.Popen([self.bin / command[0], *command[1:], "--resume", "--save-every=0", "--limit-rate=8MB"],
                               cwd=folder, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 60
        while not list(folder.rglob("journal")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        run.send_signal(signal_)
        _, said = run.communicate(timeout=60)
        return run.returncode, said

    def test_an_interrupted_run_says_where_it_goes_on_and_does(self):
        source = self.large()
        before = snapshot(source)
        folder = self.fresh(source, {})
        command = ["zero-to-fp32", "in", "place/out"]
        code, said = self.stopped(folder, command)
        self.assertEqual(code, 130, said)
        (staging,) = self.staging(folder)
        self.assertIn(str(staging.relative_to(folder)), said)
        self.assertIn("the same command resumes it", said)
        self.assertFalse((folder / "place" / "out").exists())

        # Without the option nothing is touched, and it is named.
        done = self.call(folder, ["zero-to-fp32", "in", "place/other"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--resume", done.stderr)
        self.assertTrue(staging.exists())

        done = self.call(folder, [*command, "--resume", "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["data"]["bytes_kept"], 0)
        self.assertEqual(self.staging(folder), [])
        self.assertEqual(tree(folder / "place" / "out"), tree(folder / "place" / "other"))
        self.assertEqual(snapshot(source), before)

    def test_a_running_one_is_left_alone(self):
        folder = self.fresh(self.large(), {})
        command = ["zero-to-fp32", "in", "place/out", "--resume"]
        run = subprocess.Popen([self.bin / command[0], *command[1:], "--limit-rate=4MB"], cwd=folder)
        while not list(folder.rglob("owner")):
            time.sleep(0.02)
        time.sleep(0.2)
        done = self.call(folder, command)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"is being written by process \d+")
        run.kill()
        run.wait()
        self.assertEqual(self.call(folder, command).returncode, 0)

    def test_another_plan_or_changed_input_is_refused_with_the_difference(self):
        source = self.large()
        folder = self.fresh(source, {})
        command = ["zero-to-fp32", "in", "place/out"]
        self.stopped(folder, command, signal.SIGKILL)
        (staging,) = self.staging(folder)
        seen = tree(staging)
        for options, difference in [(["--dtype=bf16"], r"pytorch_model.bin has \d+ bytes, and not \d+"),
                                    (["--safe-serialization"], "it makes model.safetensors, and not pytorch_model.bin"),
                                    (["--verify"], "its options are '--verify', and not ''")]:
            done = self.call(folder, [*command, "--resume", *options])
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, difference)
            self.assertIn("hint:", done.stderr)
        packing = self.fresh(source, {})
        self.stopped(packing, ["ckpt-pack", "pack", "in", "place/out", "--sha256"], signal.SIGKILL)
        done = self.call(packing, ["ckpt-pack", "pack", "in", "place/out", "--resume"])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("its options are 'packed, level 1', and not 'packed, level 1, --sha256'", done.stderr)
        shard = next(source.rglob("*optim_states.pt"))
        times = shard.stat()
        os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
        done = self.call(folder, [*command, "--resume"])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertRegex(done.stderr, shard.name + " was written to since")
        seen.pop("owner", None)
        self.assertEqual({path: text for path, text in tree(staging).items() if path != "owner"}, seen)
        os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertEqual(self.call(folder, [*command, "--resume"]).returncode, 0)

    def test_what_the_disk_lost_is_found(self):
        folder = self.fresh(self.large(), {})
        command = ["zero-to-fp32", "in", "place/out"]
        self.stopped(folder, command, signal.SIGKILL)
        (written,) = folder.rglob("pytorch_model.bin")
        cli_common.flip(written, 1 << 17)
        done = self.call(folder, [*command, "--resume"])
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertRegex(done.stderr, "the disk does not give back")
        self.assertNotIn("the same command resumes it", done.stderr)

    def test_a_journal_of_units_that_no_run_has_is_refused(self):
        folder = self.fresh(self.large(), {})
        command = ["zero-to-fp32", "in", "place/out"]
        self.stopped(folder, command, signal.SIGKILL)
        (journal,) = folder.rglob("journal")
        body = journal.read_bytes()[4:]
        units = re.compile(rb"junit_bytes\x1a(....)", re.DOTALL)  # CBOR: a text of ten bytes, a number of four
        self.assertEqual(units.search(body)[1], (256 << 10).to_bytes(4, "big"))
        for unit in 0, 1, 3000, (256 << 10) + 1, 1 << 31:
            changed = units.sub(lambda _: b"junit_bytes\x1a" + unit.to_bytes(4, "big"), body)
            journal.write_bytes(zlib.crc32(changed).to_bytes(4, "little") + changed)
            done = self.call(folder, [*command, "--resume"])
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertRegex(done.stderr, f"started in units of {unit} bytes?; to start again, remove ")
            self.assertNotIn("the same command resumes it", done.stderr)
        journal.write_bytes(b"x" + body)
        done = self.call(folder, [*command, "--resume"])
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertRegex(done.stderr, "journal: is damaged and cannot be resumed; remove the folder")
        self.assertNotIn("the same command resumes it", done.stderr)

    def test_a_full_disk_keeps_what_is_done(self):
        folder = self.fresh(self.large(), {})
        command = [self.bin / "zero-to-fp32", "in", "place/out", "--resume", "--save-every=0"]
        limit = 10 << 20

        def small_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        # Where space cannot be reserved, a full disk shows in the middle.
        full = subprocess.run(command, cwd=folder, capture_output=True, text=True, preexec_fn=small_files)
        self.assertEqual(full.returncode, 4, full.stderr)
        self.assertIn("the same command resumes it", full.stderr)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.staging(folder), [])

    def test_damaged_input_leaves_nothing_to_go_on_with(self):
        source = self.large()
        shard = next(source.rglob("*optim_states.pt"))
        cli_common.flip(shard, shard.stat().st_size // 2)
        folder = self.fresh(source, {})
        done = self.call(folder, ["zero-to-fp32", "in", "place/out", "--resume"])
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(self.staging(folder), [])

    def test_save_every_wants_resume(self):
        done = self.call(self.root, ["zero-to-fp32", self.small(), "out", "--save-every=3"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("--resume", done.stderr)


class ChangedInputTest(ResumeTest):

    def test_an_input_that_changes_while_it_is_read_is_refused(self):
        for change in ("touch", "append", "replace", "truncate"):
            with self.subTest(change):
                source = self.large()
                shard = next(source.rglob("*optim_states.pt"))
                folder = self.fresh(source, {})
                run = subprocess.Popen([self.bin / "zero-to-fp32", "in", "place/out", "--limit-rate=16MB"], cwd=folder,
                                       stderr=subprocess.PIPE, text=True)
                while not list(folder.rglob("owner")):
                    time.sleep(0.02)
                time.sleep(0.2)
                if change == "touch":
                    shard.touch()
                elif change == "append":
                    with open(shard, "ab") as file:
                        file.write(b"x")
                elif change == "replace":
                    shutil.copy(shard, self.root / "copy")
                    os.rename(self.root / "copy", shard)
                else:
                    os.truncate(shard, shard.stat().st_size - 1)
                _, said = run.communicate(timeout=60)
                self.assertIn(run.returncode, (3, 4), said)
                self.assertIn(shard.name, said)
                self.assertEqual(tree(folder / "place"), {})


if __name__ == "__main__":
    cli_common.main()
