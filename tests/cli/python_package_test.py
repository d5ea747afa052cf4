"""The Python package: options as keywords, results, errors, progress, and being interrupted."""
import doctest
import inspect
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from unittest import mock

import cli_common
import dsckpt
import dsckpt._arrays
import dsckpt._tool
import large_checkpoint
import tools
from cli_common import CliTest

os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"
STAGE_2 = "z2_bf16_w2"


class PackageTest(CliTest):

    def setUp(self):
        super().setUp()
        self.checkpoint = tools.case_named(STAGE_2).load_dir

    def raised(self, kind, function, *arguments, **options):
        with self.assertRaises(kind) as caught:
            function(*arguments, **options)
        return caught.exception


class ImportTest(PackageTest):

    def test_importing_it_imports_nothing_that_takes_time(self):
        program = ("import sys; before = set(sys.modules); import dsckpt; "
                   "print(*sorted(m for m in set(sys.modules) - before if not m.startswith('dsckpt')))")
        done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split(), [])

    def test_everything_that_is_named_is_there_and_described(self):
        self.assertLessEqual(set(dsckpt.__all__), set(dir(dsckpt)))
        for name in set(dsckpt.__all__) - {"load_checkpoint", "patch_deepspeed"}:  # which import torch
            self.assertTrue(inspect.getdoc(getattr(dsckpt, name)), name)
        with self.assertRaises(AttributeError):
            dsckpt.no_such_thing

    def test_what_is_an_example_is_so(self):
        for module in (dsckpt, dsckpt._arrays, dsckpt._tool):
            failed, _ = doctest.testmod(module)
            self.assertEqual(failed, 0)

    def test_a_function_has_its_options_by_name(self):
        for name in sorted(dsckpt.__all__):
            if name.islower() and name not in ("load_checkpoint", "open", "patch_deepspeed"):
                parameters = inspect.signature(getattr(dsckpt, name)).parameters
                self.assertIn("max_memory", parameters, name)
                self.assertFalse([each for each in parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD])


class CommandsTest(PackageTest):

    def test_keywords_are_options(self):
        output = self.new_path()
        done = dsckpt.convert(self.checkpoint, output, safe_serialization=True, dtype="bf16", exclude=["^0", "bias"],
                              max_shard_size="3KB", tag=None, force=False)
        self.assertTrue(cli_common.tree(output) == cli_common.tree(
            self.convert(self.checkpoint, "--safe-serialization", "--dtype=bf16", "--exclude=^0", "--exclude=bias",
                         "--max-shard-size=3KB")))
        self.assertEqual({file["path"] for file in done["files"]}, {path.name for path in output.iterdir()})

    def test_every_function_does_what_its_command_does(self):
        paths = {name: self.new_path(name) for name in ("weights", "universal", "on3", "packed", "unpacked", "stripped")}
        dsckpt.convert(str(self.checkpoint), str(paths["weights"]))
        dsckpt.to_universal(self.checkpoint, paths["universal"])
        dsckpt.reshard(self.checkpoint, paths["on3"], dp=3)
        dcp = self.new_path("dcp")
        self.assertEqual({file["path"] for file in dsckpt.to_dcp(self.checkpoint, dcp, dp=2)["files"]},
                         {path.name for path in dcp.iterdir()})
        dsckpt.pack(self.checkpoint, paths["packed"])
        dsckpt.unpack(paths["packed"], paths["unpacked"])
        dsckpt.strip(self.checkpoint, paths["stripped"], keep="weights")
        run, place = self.new_path("run"), self.new_path("place")
        shutil.copytree(self.checkpoint, run / "checkpoint-1")
        unfinished, _ = dsckpt.keep(run, to=place, interval=0.05)
        self.assertEqual((unfinished["name"], unfinished["why"]), ("checkpoint-1", "it has no trainer_state.json yet"))
        (run / "checkpoint-1").rename(run / "save")
        time.sleep(0.1)
        self.assertEqual([each["event"] for each in dsckpt.keep(run, to=place, interval=0.05)], ["kept", "looked"])
        dsckpt.keep(run, to=place, restore="save", into=paths["unpacked"].parent / "back")
        self.assertEqual(cli_common.tree(paths["unpacked"].parent / "back" / "save"), cli_common.tree(self.checkpoint))
        self.assertEqual(cli_common.tree(paths["unpacked"]), cli_common.tree(self.checkpoint))
        for path in paths.values():
            self.assertTrue(dsckpt.verify(path)["ok"], path)
        self.assertEqual(dsckpt.inspect(paths["on3"])["checkpoint"]["mesh"]["dp"], 3)
        tensors = dsckpt.list_tensors(self.checkpoint)["tensors"]
        self.assertEqual(len(dsckpt.stats(self.checkpoint)["tensors"]), len(tensors))
        self.assertEqual(dsckpt.scan(self.checkpoint)["class"], "harmless")
        self.assertTrue(dsckpt.diff(paths["weights"], paths["stripped"])["same"])

    def test_a_check_that_answers_no_is_a_result(self):
        scratch = self.scratch(STAGE_2)
        data = bytearray(scratch.optim(1).read_bytes())
        data[len(data) // 2] ^= 1
        scratch.optim(1).write_bytes(data)
        found = dsckpt.verify(scratch.folder)
        self.assertFalse(found["ok"])
        self.assertIn(scratch.optim(1).name, found["findings"][0]["file"])

    def test_a_path_that_begins_with_a_hyphen_is_a_path(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(self.root)
        dsckpt.convert(self.checkpoint.resolve(), "-out")
        self.assertTrue(pathlib.Path(self.root, "-out", "pytorch_model.bin").exists())


class ErrorsTest(PackageTest):

    def test_damage_is_an_exception_that_knows_its_place(self):
        scratch = self.scratch(STAGE_2)
        data = bytearray(scratch.optim(1).read_bytes())
        data[len(data) // 2] ^= 1
        scratch.optim(1).write_bytes(data)
        error = self.raised(dsckpt.CorruptError, dsckpt.convert, scratch.folder, self.new_path(), verify=True)
        self.assertIn(scratch.optim(1).name, error.file)
        self.assertRegex(error.member, r"/data/\d+$")
        self.assertGreater(error.offset, 0)
        self.assertIn("CRC32", str(error))
        scratch.optim(1).unlink()
        error = self.raised(dsckpt.InconsistentError, dsckpt.convert, scratch.folder, self.new_path())
        self.assertIsInstance(error, dsckpt.Error)

    def test_hints_are_of_the_command_line_but_for_names_of_options(self):
        output = self.new_path()
        dsckpt.convert(self.checkpoint, output)
        error = self.raised(dsckpt.UsageError, dsckpt.convert, self.checkpoint, output)
        self.assertIsInstance(error, ValueError)
        self.assertIn("--force", error.hint)
        self.assertIn(error.hint, str(error))
        error = self.raised(dsckpt.UsageError, dsckpt.convert, self.checkpoint, self.new_path(), safe_serialisation=True)
        self.assertEqual(error.hint, "safe_serialization is one")

    def test_a_refusal_of_the_system_is_an_oserror(self):
        if os.geteuid() == 0:
            output = pathlib.Path("/proc/out")
        else:
            output = self.new_path() / "out"
            output.parent.mkdir(mode=0o500)
        error = self.raised(dsckpt.IoError, dsckpt.convert, self.checkpoint, output)
        self.assertIsInstance(error, OSError)
        self.assertTrue(error.errno)

    def test_a_program_that_is_not_there_is_named(self):
        program = "import dsckpt\ntry:\n  dsckpt.inspect('x')\nexcept dsckpt.Error as error:\n  print(error)\n"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                              env={**os.environ, "PATH": "/nowhere"})
        self.assertIn("'dsckpt' is neither", done.stdout)


class ProgressTest(PackageTest):

    def test_it_is_told_how_far_it_is(self):
        seen = []
        dsckpt.convert(self.checkpoint, self.new_path(), debug=True,
                       progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(seen[-1][0], seen[-1][1])
        self.assertGreater(seen[-1][1], 0)

    def test_what_a_callback_raises_stops_the_tool(self):
        class Enough(Exception):
            pass

        def stop(done, total):
            raise Enough

        # Slow enough to be told of before it is done.
        place = self.new_path()
        place.mkdir()
        self.raised(Enough, dsckpt.convert, self.large(), place / "out", progress=stop, limit_rate="2MB")
        self.assertEqual(list(place.iterdir()), [])

    def large(self):
        folder = self.new_path("ckpt")
        large_checkpoint.write_one(folder, 6 << 20)
        return folder

    def test_an_interrupt_leaves_nothing_behind(self):
        """To the process alone, as Jupyter interrupts a kernel, and to its group, as a terminal does."""
        self.interrupted(lambda process: process.send_signal(signal.SIGINT))
        self.interrupted(lambda process: os.killpg(process.pid, signal.SIGINT))

    def interrupted(self, interrupt):
        place = self.new_path()
        place.mkdir()
        program = f"import dsckpt\ndsckpt.convert({str(self.large())!r}, {str(place / 'out')!r}, limit_rate='2MB')\n"
        process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True,
                                   start_new_session=True)
        for _ in range(600):
            if list(place.rglob("*")):
                break
            time.sleep(0.05)
        interrupt(process)
        _, said = process.communicate(timeout=60)
        self.assertIn("KeyboardInterrupt", said)
        self.assertEqual(list(place.iterdir()), [])


class BarTest(PackageTest):
    """The bar of tqdm, for which a module stands in that says what it is told."""

    def shown(self, call):
        """The output of the stand-in in a process whose stderr is not a terminal."""
        stands_in = self.new_path("modules") / "tqdm"
        stands_in.mkdir(parents=True, exist_ok=True)
        (stands_in / "__init__.py").write_text("")
        (stands_in / "auto.py").write_text("class tqdm:\n"
                                           "    n = 0\n"
                                           "    def __init__(self, **options): print('bar of', options['desc'])\n"
                                           "    def update(self, more): self.n += more\n"
                                           "    def close(self): print(self.n, 'of', self.total)\n")
        path = f"{stands_in.parent}:{pathlib.Path(dsckpt.__file__).parents[1]}"
        program = f"import dsckpt, sys; checkpoint, output = sys.argv[1:]; {call}"
        done = subprocess.run([sys.executable, "-c", program, self.checkpoint, self.new_path()], text=True,
                              capture_output=True, check=True, env={**os.environ, "PYTHONPATH": path})
        return done.stdout.split("\n")[:-1]

    def test_it_is_shown_where_it_is_wanted(self):
        for call in ("convert(checkpoint, output", "to_universal(checkpoint, output", "stats(checkpoint",
                     "verify(checkpoint", "diff(checkpoint, checkpoint",
                     "open(checkpoint, framework='np').state_dict(['gain']"):
            with self.subTest(call):
                begin, end = self.shown(f"dsckpt.{call}, progress=True)")
                self.assertTrue(begin.startswith("bar of "))
                done, _, total = end.partition(" of ")
                self.assertEqual(done, total)
                for progress in ("None", "False"):
                    self.assertEqual(self.shown(f"dsckpt.{call}, progress={progress})"), [])

    def test_it_needs_tqdm(self):
        with mock.patch.dict(sys.modules, {"tqdm": None, "tqdm.auto": None}):
            error = self.raised(dsckpt.UsageError, dsckpt.verify, self.checkpoint, progress=True)
            self.assertIn("pip install tqdm", error.hint)
            self.assertTrue(dsckpt.verify(self.checkpoint, progress=None)["ok"])

    def test_what_is_no_progress_and_no_result(self):
        for progress in ("bar", 1.5, 7):
            error = self.raised(dsckpt.UsageError, dsckpt.convert, self.checkpoint, self.new_path(), progress=progress)
            self.assertIn(repr(progress), str(error))
        for option in ("help", "version"):
            error = self.raised(dsckpt.UsageError, dsckpt.convert, self.checkpoint, self.new_path(), **{option: True})
            self.assertIn(f"convert() has no option '{option}'", str(error))


if __name__ == "__main__":
    cli_common.main()
