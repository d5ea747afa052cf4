"""Users who can write or rename beside an output cannot change a file of the tools' user through the tools.

Root plays all parts: VICTIM runs the tools, and OTHER plants links, hard links, FIFOs, devices, files and folders where
they look. Without root these tests are skipped.

    PLANTINGS=1000 scripts/python tests/cli/planted_test.py RandomTest
"""
import json
import os
import pathlib
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
import unittest

import tools
from cli_common import STAGING, CliTest, snapshot, tree

VICTIM, OTHER = 61001, 61002
RESUME = STAGING + "resume"
SHIMS = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "lib"


@unittest.skipIf(os.geteuid() != 0, "only root has several users")
class PlantedCase(CliTest):

    def setUp(self):
        super().setUp()
        # Where everybody can go: the tools, a checkpoint, a folder that all share, and what the victim would lose.
        self.root.chmod(0o755)
        self.tmp.chmod(0o1777)
        self.bin = self.root / "bin"
        self.bin.mkdir()
        program = pathlib.Path(os.environ["DSCKPT_BIN"]).resolve() / "dsckpt"
        shutil.copy(program, self.bin / "dsckpt")
        for name in ("libfail_call.so", "libsquash_root.so"):
            if (SHIMS / name).exists():
                shutil.copy(SHIMS / name, self.bin / name)
        self.checkpoint = self.scratch("z2_bf16_w2").folder
        for path in [self.checkpoint, *self.checkpoint.rglob("*"), *self.bin.iterdir()]:
            path.chmod(0o755)
        self.expected = {}
        self.renew()

    def renew(self, mode=0o1777):
        for name in ("shared", "home"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir()
        self.shared, self.home = self.root / "shared", self.root / "home"
        self.shared.chmod(mode)
        (self.home / "folder").mkdir()
        for path in ("precious", "key", "folder/precious", "folder/pytorch_model.bin", "folder/owner"):
            (self.home / path).write_text(f"precious {path}")
            (self.home / path).chmod(0o600)
        self.give(self.home, VICTIM)
        self.home.chmod(0o700)

    def give(self, path, user):
        for each in [path, *(path.rglob("*") if path.is_dir() and not path.is_symlink() else [])]:
            os.chown(each, user, user, follow_symlinks=False)

    def command(self, tool, *arguments):
        return [self.bin / "dsckpt", tool, *arguments]

    def start(self, command, user=VICTIM, shim=None, **fault):
        environment = {key: value for key, value in self.environment.items() if not key.startswith("DSCKPT_")}
        if shim or fault:
            shim = self.bin / (shim or "libfail_call.so")
            if not shim.exists():
                self.skipTest(f"this build has no {shim.name}")
            environment["LD_PRELOAD"] = str(shim)
        environment.update({f"FAIL_{key.upper()}": str(value) for key, value in fault.items()})
        return subprocess.Popen(command, cwd="/", user=user, group=user, extra_groups=[], umask=0o022, env=environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def call(self, command, **options):
        run = self.start(command, **options)
        run.stdout_text, run.stderr_text = run.communicate(timeout=60)
        self.assertNotIn("internal error", run.stderr_text)
        return run

    def stop(self, command, at=8, **options):
        """A run of the victim that is killed while it writes."""
        self.call(command, call="write", at=at, errno=-1, **options)

    def output_of(self, *command):
        """The command's output if nobody interferes."""
        if command not in self.expected:
            place = self.new_path("undisturbed")
            place.mkdir()
            self.give(place, VICTIM)
            out = place / "out"
            words = [out if word == "OUT" else word for word in command]
            done = self.call(self.command(*words))
            self.assertEqual(done.returncode, 0, done.stderr_text)
            self.expected[command] = tree(out)
        return self.expected[command]

    def refused(self, command, message):
        before = snapshot(self.home)
        done = self.call(command)
        self.assertEqual(done.returncode, 2, done.stderr_text)
        self.assertIn(message, done.stderr_text)
        self.assertEqual(snapshot(self.home), before)
        return done


class StagingTest(PlantedCase):

    def setUp(self):
        super().setUp()
        self.out = self.shared / "out"
        self.staging = self.shared / f"{RESUME}-out"
        self.zero = self.command("zero-to-fp32", "--resume", "--save-every=0", "--threads=1", "--max-shard-size=5KB", self.checkpoint,
                                 self.out)

    def test_a_folder_of_another_user(self):
        for mode in (0o777, 0o700, 0o755):
            self.renew()
            self.staging.mkdir()
            self.staging.chmod(mode)
            (self.staging / "owner").symlink_to(self.home / "precious")
            self.give(self.staging, OTHER)
            self.refused(self.zero, f"{self.staging.name}: belongs to user {OTHER}")

    def test_a_link_a_file_and_a_fifo_in_its_place(self):
        for plant, kind in ((lambda: self.staging.symlink_to(self.home / "folder"), "a link"),
                            (lambda: self.staging.write_text(""), "a file"),
                            (lambda: os.mkfifo(self.staging), "a FIFO")):
            self.renew()
            plant()
            self.give(self.staging, OTHER)
            self.refused(self.zero, f"{self.staging.name}: is {kind} of user {OTHER}, not a folder")

    def test_a_run_of_another_user_that_would_go_on(self):
        for wide in (False, True):
            self.renew()
            self.stop(self.zero, user=OTHER)
            self.assertTrue((self.staging / "job").exists())
            if wide:
                for path in [self.staging, *self.staging.rglob("*")]:
                    path.chmod(0o777)
            self.refused(self.zero, f"{self.staging.name}: belongs to user {OTHER}")
            self.assertFalse(self.out.exists())

    def test_a_folder_that_others_may_enter(self):
        self.stop(self.zero)
        for mode in (0o701, 0o710, 0o770, 0o777):
            self.staging.chmod(mode)
            self.refused(self.zero, f"others may enter it (mode {mode:04o}, and not 0700)")
        self.staging.chmod(0o700)
        self.assertEqual(self.call(self.zero).returncode, 0)

    def test_files_in_it_that_are_not_of_this_user_alone(self):
        self.stop(self.zero)
        (files,) = self.staging.glob("files*")
        model = sorted(files.iterdir())[0]
        self.assertTrue((self.staging / "journal").exists())
        kept = self.root / "kept"
        shutil.copytree(self.staging, kept)
        for name in ("owner", "job", "journal", f"{files.name}/{model.name}", f"{files.name}/planted", "planted"):
            path = self.staging / name
            for what, plant in (("is a link of user", lambda: path.symlink_to(self.home / "precious")),
                                ("has 2 names", lambda: os.link(self.home / "precious", path)),
                                ("is a FIFO of user", lambda: os.mkfifo(path)),
                                ("is a device of user", lambda: os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))),
                                ("belongs to user", lambda: shutil.copy(kept / name if (kept / name).exists() else
                                                                        kept / "job", path))):
                with self.subTest(name=name, what=what):
                    path.unlink(missing_ok=True)
                    plant()
                    if what != "has 2 names":
                        os.chown(path, OTHER, OTHER, follow_symlinks=False)
                    self.refused(self.zero, f"{path}: {what}")
                    path.unlink()
                    if (kept / name).exists():
                        shutil.copy(kept / name, path)
                        os.chown(path, VICTIM, VICTIM)
        self.assertEqual(self.call(self.zero).returncode, 0)
        self.assertEqual(tree(self.out), self.output_of("zero-to-fp32", "--max-shard-size=5KB", self.checkpoint, "OUT"))

    def test_another_folder_of_the_user_under_its_name(self):
        # A user who may rename beside the output moves a private folder there.
        self.renew(0o777)
        private = self.shared / "private"
        private.mkdir(0o700)
        (private / "thesis").write_text("precious")
        self.give(private, VICTIM)
        private.rename(self.staging)
        self.refused(self.zero, "has the name of a staging folder, and no run has signed it")
        self.assertEqual((self.staging / "thesis").read_text(), "precious")

    def test_a_journal_from_another_folder(self):
        self.stop(self.zero)
        copy = self.shared / f"{RESUME}-other"
        shutil.copytree(self.staging, copy)
        self.give(copy, VICTIM)
        self.refused([*self.zero[:-1], self.shared / "other"], "it was started in another folder")

    def test_left_overs(self):
        """Left-overs of a dead run are removed, if they have its signature; no others are."""
        run = self.command("zero-to-fp32", self.checkpoint, self.out)
        for plant in ("own", "others", "wide", "copied"):
            with self.subTest(plant):
                self.renew()
                self.stop(run, at=2)
                (left,) = self.shared.glob(STAGING + "*")
                if plant == "others":
                    self.give(left, OTHER)
                elif plant == "wide":
                    left.chmod(0o777)
                elif plant == "copied":
                    shutil.copytree(left, left.with_name(STAGING + "copied"))
                    shutil.rmtree(left)
                    left = left.with_name(STAGING + "copied")
                    self.give(left, VICTIM)
                os.utime(left, (time.time() - 1000,) * 2)
                before = tree(left)
                done = self.call(self.command("zero-to-fp32", self.checkpoint, self.out))
                self.assertEqual(done.returncode, 0, done.stderr_text)
                if plant == "own":
                    self.assertFalse(left.exists())
                else:
                    self.assertEqual(tree(left), before)
                    self.assertIn(str(left), done.stderr_text)

    def test_default_acls(self):
        """The staging folder does not inherit the shared folder's access for others."""
        # acl(5), in the kernel's form: tag, permissions, id.
        entries = [(0x01, 7, 0xFFFFFFFF), (0x02, 7, OTHER), (0x04, 7, 0xFFFFFFFF), (0x10, 7, 0xFFFFFFFF),
                   (0x20, 7, 0xFFFFFFFF)]
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        try:
            os.setxattr(self.shared, "system.posix_acl_default", acl)
        except OSError as error:
            self.skipTest(f"no ACLs here: {error}")
        self.stop(self.zero)
        self.assertEqual(stat.S_IMODE(self.staging.stat().st_mode), 0o700)
        listed = subprocess.run(["ls", self.staging], user=OTHER, group=OTHER, extra_groups=[], capture_output=True)
        self.assertNotEqual(listed.returncode, 0)
        self.assertEqual(self.call(self.zero).returncode, 0)
        # An entry of the folder's own shows in its mode.
        shutil.rmtree(self.out)
        self.stop(self.zero)
        os.setxattr(self.staging, "system.posix_acl_access", acl)
        self.refused(self.zero, "others may enter it")

    def test_root_is_no_exception(self):
        self.stop(self.zero)
        done = self.call(self.zero, user=0)
        self.assertEqual(done.returncode, 2, done.stderr_text)
        self.assertIn(f"belongs to user {VICTIM}, and not to user 0", done.stderr_text)

    def test_a_server_that_squashes_root(self):
        """Without --resume nothing changes; with it the owner is not this user, which is said before anything is done."""
        plain = [word for word in self.zero if word not in ("--resume", "--save-every=0")]
        done = self.call(plain, user=0, shim="libsquash_root.so")
        self.assertEqual(done.returncode, 0, done.stderr_text)
        self.assertEqual(tree(self.out), self.output_of("zero-to-fp32", "--max-shard-size=5KB", self.checkpoint, "OUT"))
        shutil.rmtree(self.out)
        done = self.call(self.zero, user=0, shim="libsquash_root.so")
        self.assertEqual(done.returncode, 2, done.stderr_text)
        self.assertIn("the file system gives what user 0 makes to user 65534", done.stderr_text)
        self.assertEqual(list(self.shared.iterdir()), [])

    def test_a_user_namespace(self):
        """In the namespace, files of unmapped users, root among them, belong to nobody."""
        os.symlink(self.shared, self.root / "way")  # root's, in a folder where nobody else writes
        unshare = ["unshare", "--user", "--map-current-user"]
        if subprocess.run([*unshare, "true"], user=VICTIM, group=VICTIM, extra_groups=[], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no user namespaces here")
        way = [*self.zero[:-1], self.root / "way" / "out"]
        done = self.call([*unshare, *way])
        self.assertEqual(done.returncode, 0, done.stderr_text)
        shutil.rmtree(self.out)
        os.symlink(self.home, self.shared / "trap")
        self.give(self.shared / "trap", OTHER)
        done = self.call([*unshare, *self.zero[:-1], self.shared / "trap" / "out"])
        self.assertEqual(done.returncode, 2, done.stderr_text)
        self.assertIn("is a link that user 65534 has made", done.stderr_text)


class WayTest(PlantedCase):

    def test_links_on_the_way_to_an_output(self):
        trap = self.shared / "trap"
        trap.symlink_to(self.home / "folder")
        for tool in (["zero-to-fp32"], ["zero-to-fp32", "--force"], ["to-universal"], ["ckpt-pack", "pack"]):
            for output in (trap, trap / "out"):
                self.give(trap, OTHER)
                self.refused(self.command(*tool, self.checkpoint, output), f"is a link that user {OTHER} has made")
        # The user's own are followed.
        self.give(trap, VICTIM)
        done = self.call(self.command("to-universal", self.checkpoint, trap / "out"))
        self.assertEqual(done.returncode, 0, done.stderr_text)
        self.assertTrue((self.home / "folder" / "out").is_dir())

    def test_links_in_an_output_that_is_there(self):
        out = self.shared / "out"
        out.mkdir()
        (out / "optimizer_states").symlink_to(self.home / "folder")
        self.give(out, VICTIM)
        os.chown(out / "optimizer_states", OTHER, OTHER, follow_symlinks=False)
        run = self.command("zero-to-fp32", "--safe-serialization", "--states", self.checkpoint, out)
        self.refused(run, "is a link; an output is not written through links in it")
        self.refused([*run, "--dry-run"], "is a link; an output is not written through links in it")

    def test_the_file_beside_a_pointer(self):
        out = self.shared / "uni"
        for name in ("latest_universal.dsckpt-uni", "latest_universal"):
            for resume in ([], ["--resume"]):
                self.renew(0o777)
                (self.shared / name).symlink_to(self.home / "key")
                self.give(self.shared / name, OTHER)
                before = snapshot(self.home)
                done = self.call(self.command("to-universal", *resume, self.checkpoint, out))
                self.assertEqual(done.returncode, 0, done.stderr_text)
                self.assertEqual(snapshot(self.home), before)
                self.assertEqual((self.shared / "latest_universal").read_text(), "uni")
                self.assertFalse((self.shared / "latest_universal").is_symlink())

    def test_reports_and_manifests(self):
        for command in (["ckpt-inspect", "--html", "FILE", "--force", self.checkpoint],
                        ["ckpt-inspect", "verify", "--write-manifest", "FILE", "--force", self.checkpoint]):
            self.renew(0o777)
            (self.shared / "file").symlink_to(self.home / "key")
            (self.shared / "trap").symlink_to(self.home)
            for path in self.shared.iterdir():
                self.give(path, OTHER)
            before = snapshot(self.home)
            done = self.call(self.command(*[self.shared / "file" if word == "FILE" else word for word in command]))
            self.assertEqual(done.returncode, 0, done.stderr_text)
            self.assertEqual(snapshot(self.home), before)
            self.assertFalse((self.shared / "file").is_symlink())
            self.refused(self.command(*[self.shared / "trap/file" if word == "FILE" else word for word in command]),
                         "is a link that user")

    def test_a_folder_for_temporary_files_in_which_others_rename(self):
        self.tmp.chmod(0o777)
        done = self.call([*self.command("zero-to-fp32", "s3://bucket/ck", self.shared / "out"),
                          "--s3-endpoint", "http://127.0.0.1:9"])
        self.assertEqual(done.returncode, 2, done.stderr_text)
        self.assertIn("others may rename its entries", done.stderr_text)


class RandomTest(PlantedCase):
    """Plants at random, before a run and while it is stopped in the middle; what the victim has stays as it is."""

    def plants(self, rng, path, fake):
        """Puts something in the place of `path`. `fake`: a folder with what a run leaves."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        home = self.home
        kind = rng.choice(["file link", "folder link", "dangling link", "hard link", "FIFO", "socket", "device", "file",
                           "folder", "fake", "wide fake"])
        if kind.endswith("link") and kind != "hard link":
            path.symlink_to({"file link": home / rng.choice(["precious", "key"]), "folder link": home / "folder",
                             "dangling link": home / "new"}[kind])
        elif kind == "hard link":
            os.link(home / "precious", path)
            return kind
        elif kind == "FIFO":
            os.mkfifo(path, 0o666)
        elif kind == "socket":
            os.mknod(path, stat.S_IFSOCK | 0o777)
        elif kind == "device":
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, rng.choice([3, 5, 7])))
        elif kind == "file":
            path.write_text(rng.choice(["", "{}", "theirs"]))
        elif kind == "folder":
            path.mkdir()
            (path / rng.choice(["owner", "job", "files", "journal"])).symlink_to(home / rng.choice(["key", "folder"]))
        else:
            shutil.copytree(fake, path, symlinks=True)
            if kind == "wide fake":
                for each in [path, *path.rglob("*")]:
                    each.chmod(0o777)
        self.give(path, OTHER)
        return kind

    def inside(self, rng, staging):
        """Names in a staging folder of the victim's that a run looks at."""
        names = ["owner", "job", "journal", "files", "attempts", "old", *(p.name for p in staging.glob("files*"))]
        names += [str(p.relative_to(staging)) for p in staging.glob("files*/*")]
        return staging / rng.choice(names)

    def swap(self, rng, fake):
        """While the run is stopped: what only they can do who may rename in the shared folder."""
        names = [path for path in self.shared.iterdir() if path.name.startswith(STAGING) or path.name == "out"]
        if not names:
            return "nothing"
        path = rng.choice(names)
        path.rename(self.shared / f"away-{rng.random()}")
        return f"{path.name} -> {self.plants(rng, path, fake)}"

    def one(self, rng, fake):
        self.renew(rng.choice([0o1777, 0o777]))
        out = self.shared / "out"
        tool = rng.choice([["zero-to-fp32"], ["zero-to-fp32", "--max-shard-size=5KB", "--safe-serialization"],
                           ["to-universal"], ["reshard", "--dp=3"], ["ckpt-pack", "pack"]])
        words = [*tool, self.checkpoint, "OUT"]
        options = ["--threads=1"] + rng.choice([[], ["--resume", "--save-every=0"], ["--resume", "--save-every=0"]])
        options += rng.choice([[], ["--force"], ["--fsync"], ["--verify-output"]])
        user = rng.choice([VICTIM, VICTIM, VICTIM, 0])
        command = self.command(*[out if word == "OUT" else word for word in words], *options)
        said = [" ".join(map(str, command[1:])), f"user {user}", f"mode {self.shared.stat().st_mode:o}"]
        if rng.random() < 0.3:
            out.mkdir()
            self.give(out, user)
        if rng.random() < 0.4:
            self.stop(command, at=rng.randint(1, 12), user=user)
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            staged = [p for p in (*self.shared.glob(RESUME + "*"), *out.glob(RESUME + "*")) if p.is_dir()]
            if staged and rng.random() < 0.6:
                path = self.inside(rng, rng.choice(staged))
                if not path.parent.is_dir() or path.parent.is_symlink():
                    continue
            else:
                places = [self.shared / name for name in (f"{RESUME}-out", "out", "latest_universal",
                                                          "latest_universal.dsckpt-out", STAGING + "abc")]
                if out.is_dir() and not out.is_symlink():
                    places += [out / name for name in (RESUME, "optimizer_states", "zero", "global_step1",
                                                       "pytorch_model.bin", "model.safetensors.index.json")]
                path = rng.choice(places)
            said.append(f"{path.relative_to(self.shared)}: {self.plants(rng, path, fake)}")
        before = snapshot(self.home)
        swaps = rng.random() < 0.5 and stat.S_IMODE(self.shared.stat().st_mode) == 0o777
        fault = {"call": rng.choice(["open", "mkdir", "write", "rename", "unlink", "fsync"]), "at": rng.randint(1, 40),
                 "errno": -2} if swaps else {}
        run = self.start(command, user=user, **fault)
        if swaps:
            _, status = os.waitpid(run.pid, os.WUNTRACED)
            if os.WIFSTOPPED(status):
                said.append(f"at {fault['call']} {fault['at']}: {self.swap(rng, fake)}")
                os.kill(run.pid, signal.SIGCONT)
            else:
                run.returncode = os.waitstatus_to_exitcode(status)
        _, text = run.communicate(timeout=60)
        said += [f"status {run.returncode}", text]
        said = "\n".join(said)
        self.assertIn(run.returncode, (0, 2, 4), said)
        self.assertNotIn("internal error", text, said)
        after = snapshot(self.home)
        # A hard link to a file changes its count of names, and nothing else.
        self.assertEqual(after, before, said)
        if run.returncode == 0 and not swaps:
            made = out.resolve()
            self.assertEqual(made, out, said)
            expected = self.output_of(*words)
            self.assertEqual({path: content for path, content in tree(out).items() if path in expected}, expected, said)
            for path in expected:
                found = (out / path).lstat()
                self.assertEqual(found.st_uid, user, said)
                if stat.S_ISREG(found.st_mode):
                    self.assertEqual(found.st_nlink, 1, said)
        return run.returncode, swaps

    def test_no_file_but_the_run_s_own_changes(self):
        count = int(os.environ.get("PLANTINGS", "40"))
        seed = int(os.environ.get("SEED", "1"))
        # The left-overs of another user's run.
        self.stop(self.command("zero-to-fp32", "--resume", "--save-every=0", "--threads=1", "--max-shard-size=5KB",
                               self.checkpoint, self.shared / "out"), user=OTHER)
        fake = self.root / "fake"
        shutil.move(self.shared / f"{RESUME}-out", fake)
        results = {}
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            with self.subTest(seed=seed, number=number):
                result = self.one(rng, fake)
                results[result] = results.get(result, 0) + 1
        if count > 40:
            print(", ".join(f"exit {code}{', swapped' * swaps}: {number}" for (code, swaps), number in
                            sorted(results.items())), file=sys.stderr)
        self.assertTrue({code for code, _ in results} >= {0, 2}, results)


if __name__ == "__main__":
    unittest.main()
