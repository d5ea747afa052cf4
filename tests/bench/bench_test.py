"""The benchmark measures what it claims to, of the programs that it says, and keeps it."""
import json
import math
import mmap
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import bench
import bench_checkpoint
import bench_files
import bench_suite
import measure

ROOT = pathlib.Path(os.environ["DSCKPT_SOURCE"])
BIN = pathlib.Path(os.environ["DSCKPT_BIN"])
MIB = 1 << 20
# Where no sync waits for what others write.
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Folder(unittest.TestCase):
    """With a folder of its own."""
    where = None

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(dir=self.where)
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def require_disk(self):
        if measure.file_system(self.folder) == "tmpfs":
            self.skipTest("files in memory have no page cache to be dropped from, and no blocks")


class Measure(Folder):
    def python(self, code, **settings):
        return measure.measure([sys.executable, "-c", code], **settings)

    def test_memory_of_processes_that_a_program_starts_counts(self):
        child = "import time; block = bytearray(b'1') * (100 << 20); time.sleep(0.5)"
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)"
        peak = self.python(parent, memory=True)["peak_anonymous_rss"]
        self.assertGreater(peak, 100 * MIB)
        self.assertLess(peak, 150 * MIB)

    def test_each_page_touched_first_is_a_page_fault(self):
        pages = 5000
        code = ("import mmap; block = mmap.mmap(-1, {} * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS);"
                "block.madvise(mmap.MADV_NOHUGEPAGE)\nfor i in range({}): block[i * mmap.PAGESIZE] = 1")
        touched = self.python(code.format(pages, pages))["minor_faults"]
        untouched = self.python(code.format(pages, 0))["minor_faults"]
        self.assertAlmostEqual(touched - untouched, pages, delta=200)

    def test_waiting_is_a_voluntary_switch_and_takes_time(self):
        result = self.python("import time\nfor i in range(50): time.sleep(0.002)")
        self.assertGreaterEqual(result["voluntary_switches"], 50)
        self.assertGreater(result["seconds"], 0.1)
        self.assertLess(result["user_seconds"] + result["system_seconds"], result["seconds"])

    def test_blocks_are_counted_in_bytes(self):
        self.require_disk()
        path = self.folder / "file"
        result = self.python(f"import os; f = open({str(path)!r}, 'wb'); f.write(b'x' * (8 << 20)); f.flush();"
                             "os.fsync(f.fileno())")
        self.assertGreaterEqual(result["block_output_bytes"], 8 * MIB)
        self.assertLess(result["block_output_bytes"], 9 * MIB)
        bench_files.make_cold([path])
        result = self.python(f"open({str(path)!r}, 'rb').read()")
        self.assertGreaterEqual(result["block_input_bytes"], 8 * MIB)

    def test_what_the_whole_machine_did_is_counted(self):
        result = self.python("import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass")
        self.assertGreater(result["machine_busy_seconds"], 0.15)

    def test_a_program_that_fails_says_why(self):
        with self.assertRaisesRegex(measure.BenchError, "ended with 3:\nno such luck"):
            measure.measure(["sh", "-c", "echo no such luck >&2; exit 3"])


class Cache(Folder):
    def setUp(self):
        super().setUp()
        self.require_disk()
        self.path = self.folder / "file"
        self.path.write_bytes(b"x" * (10 * MIB + 1))
        bench_files.sync(self.folder)

    def test_pages_are_dropped_and_read_again(self):
        pages = 10 * MIB // mmap.PAGESIZE + 1
        self.assertEqual(bench_files.cached_pages(self.path), (pages, pages))
        self.assertEqual(bench_files.make_cold([self.path]), 0)
        self.assertEqual(bench_files.cached_pages(self.path), (0, pages))
        self.assertEqual(bench_files.make_warm([self.path]), 1)
        self.assertEqual(bench_files.cached_pages(self.path), (pages, pages))

    def test_some_pages_are_a_part_of_the_files(self):
        bench_files.make_cold([self.path])
        with open(self.path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for page in range(0, 100, 2):
                file.seek(page * mmap.PAGESIZE)
                file.read(1)
        self.assertEqual(bench_files.cached_pages(self.path)[0], 50)
        if shutil.which("fincore"):
            counted = subprocess.check_output(["fincore", "-n", "-o", "PAGES", self.path], text=True)
            self.assertEqual(int(counted), 50)
        empty = self.folder / "empty"
        empty.touch()
        self.assertAlmostEqual(bench_files.cached_fraction([self.path, empty]), 50 / 2561)

    def test_pages_that_stay_are_an_error(self):
        with open(self.path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            self.assertEqual(mapped.find(b"y"), -1)
            with self.assertRaisesRegex(measure.BenchError, "cannot be dropped"):
                bench_files.make_cold([self.path])


def shapes_size(dtype_bytes=4):
    return dtype_bytes * sum(map(math.prod, bench_checkpoint.decoder_shapes(200_000).values()))


class Comparison(Folder):
    """200,000 parameters on 3 ranks; the checkpoint is there already."""

    def write_checkpoint(self, stage):
        path = self.folder / f"work/checkpoint_stage{stage}_200k_w3"
        bench_checkpoint.Writer(path, bench_checkpoint.decoder_shapes(200_000), stage, 3).write()

    def bench(self, *arguments, stage=2, binaries=BIN, environment=None):
        if not (self.folder / "work").exists():
            self.write_checkpoint(stage)
        done = subprocess.run(
            [sys.executable, ROOT / "tests/bench/bench.py", "--params", "200k", "--ranks", "3", "--stage", str(stage),
             "--runs", "2", "--bin", binaries, "--work", self.folder / "work", "--out", self.folder / "kept",
             *map(str, arguments)], capture_output=True, text=True, env=os.environ | (environment or {}))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list((self.folder / "work").iterdir()), [])
        self.stdout = done.stdout
        return json.loads((self.folder / "kept/results.json").read_text())

    def assert_programs(self, results, *names):
        self.assertEqual({name: len(program["runs"]) for name, program in results["programs"].items()},
                         dict.fromkeys(names, 2))
        self.assertIn(f"ratio_to_{names[0]}", results["programs"][names[1]])


class Cold(Comparison):
    def test_inputs_are_dropped_before_each_run(self):
        self.require_disk()
        results = self.bench("--cache", "cold")
        self.assertEqual(results["cache"], "cold")
        for program in results["programs"].values():
            for run in program["runs"]:
                self.assertLessEqual(run["input_in_cache"], 0.01)
                self.assertGreaterEqual(run["block_input_bytes"], shapes_size())


class Warm(Comparison):
    where = IN_MEMORY

    def test_a_universal_checkpoint_is_compared_with_a_copy_of_it(self):
        results = self.bench("--tool", "to-universal", "--check")
        shapes = bench_checkpoint.decoder_shapes(200_000)
        # fp32, exp_avg, exp_avg_sq and step; model states and optimizer_state.pt.
        self.assertEqual(results["output_files"], 4 * len(shapes) + 2)
        self.assertGreater(results["output_bytes"], shapes_size(14))
        self.assert_programs(results, "cp", "to-universal")

    def test_a_resharded_checkpoint_is_compared_with_a_copy_of_it(self):
        results = self.bench("--tool", "reshard", "--to", "5", "--check", stage=3)
        # Shards and `latest`; stage 3 has a model file a rank.
        self.assertEqual(results["output_files"], 11)
        self.assertEqual(results["to_ranks"], 5)
        self.assert_programs(results, "cp", "reshard")

    def test_a_merged_model_is_compared_with_a_copy_of_it(self):
        (self.folder / "work").mkdir()  # without a checkpoint, and it is not one
        results = self.bench("--tool", "merge", "--dtype", "bfloat16", "--check")
        self.assertEqual(results["stage"], None)
        self.assertGreater(results["output_bytes"], shapes_size(2))
        self.assertLess(results["output_bytes"], 1.1 * shapes_size(2))
        self.assert_programs(results, "cp", "merge")

    def test_readers_are_compared_with_cat_of_what_they_read(self):
        results = self.bench("--tool", "stats")
        # fp32, exp_avg and exp_avg_sq.
        self.assertGreater(results["read_bytes"], shapes_size(12))
        self.assertLess(results["read_bytes"], 1.1 * shapes_size(12))
        self.assert_programs(results, "cat", "stats")
        self.write_checkpoint(2)
        results = self.bench("--tool", "verify")
        self.assertGreater(results["read_bytes"], shapes_size(14))
        self.assert_programs(results, "cat", "verify")

    def test_results_are_kept_and_name_no_folder(self):
        (self.folder / "work").mkdir()  # without a checkpoint
        results = self.bench("--format", "safetensors", "--dtype", "bfloat16", "--check", stage=3)
        text = (self.folder / "kept/results.json").read_text()
        self.assertNotIn(str(self.folder), text)
        self.assertNotIn(str(ROOT), text)
        self.assertLess(results["output_bytes"] - shapes_size(2), 10_000)
        self.assertGreaterEqual(results["output_bytes"], shapes_size(2))
        self.assert_programs(results, "cp", "zero-to-fp32")
        self.assertIn(self.stdout, (self.folder / "kept/README.md").read_text())
        self.assertEqual(results["command"], "scripts/bench --tool zero-to-fp32 --params 200k --ranks 3 --stage 3 "
                         "--cache warm --runs 2 --format safetensors --dtype bfloat16 --check")

    def test_ratios_are_of_the_same_round(self):
        results = self.bench()
        tool, cp = (results["programs"][name] for name in ("zero-to-fp32", "cp"))
        ratios = [a["seconds"] / b["seconds"] for a, b in zip(tool["runs"], cp["runs"])]
        self.assertEqual([tool["min_ratio_to_cp"], tool["max_ratio_to_cp"]], sorted(ratios))
        self.assertAlmostEqual(tool["ratio_to_cp"], sum(ratios) / 2)
        self.assertEqual(cp["ratio_to_cp"], 1)
        self.assertEqual({run["input_in_cache"] for run in tool["runs"] + cp["runs"]}, {1})
        for field in ("minor_faults", "major_faults", "voluntary_switches", "block_input_bytes"):
            self.assertTrue(all(field in run for run in tool["runs"] + cp["runs"]), field)

    def fake(self, name, script):
        """A program that writes its arguments to `log`."""
        path = self.folder / "fakes" / name
        path.parent.mkdir(exist_ok=True)
        log = shlex.quote(str(self.folder / "log"))
        path.write_text(f'#!/bin/sh\nprintf "%s\\n" {name} "$@" >> {log}\n{script}\n')
        path.chmod(0o755)
        return path.parent

    def log(self):
        return (self.folder / "log").read_text().split("\n")

    def assert_durable(self, how):
        # A tool that writes two files, whatever it is asked for.
        fakes = self.fake("zero-to-fp32", 'test "$1" = --version || { mkdir -p "$2/in"; echo 1 > "$2/a"; '
                                          'echo 1 > "$2/in/b"; }')
        self.fake("sync", "")
        results = self.bench("--durable", *how, binaries=fakes, environment={"PATH": f"{fakes}:{os.environ['PATH']}"})
        self.assertIn(f"--durable {results['durable']}", results["command"])
        # Two rounds, and once before them for the memory.
        self.assertEqual(self.log().count("--fsync"), 3)
        self.assertEqual(self.log().count("sync"), 3)
        return results["durable"]

    def test_durable_waits_for_the_disk_in_all_programs(self):
        self.assertEqual(self.assert_durable([]), "filesystem")
        self.assertIn(f"sync\n-f\n{self.folder}/work/fresh\n", "\n".join(self.log()))

    def test_durable_can_wait_for_all_files_instead(self):
        self.assertEqual(self.assert_durable(["files"]), "files")
        written = self.folder / "work/fresh"
        for path in (written / "a", written / "in", written / "in/b"):
            self.assertEqual(self.log().count(str(path)), 3, path)
        self.assertEqual(self.log().count(str(written)), 3 + 2)  # the tool was called with it, too

    def test_programs_take_turns_in_changing_order(self):
        fakes = self.fake("zero-to-fp32", f'exec {shlex.quote(str(BIN))}/zero-to-fp32 "$@"')
        self.fake("cp", f'exec {shutil.which("cp")} "$@"')
        self.bench("--runs", "3", binaries=fakes, environment={"PATH": f"{fakes}:{os.environ['PATH']}"})
        names = [word for word in self.log() if word in ("cp", "zero-to-fp32")]
        tool, cp = "zero-to-fp32", "cp"
        self.assertEqual(names[:8], [tool, cp, cp, tool, tool, cp, cp, tool])

    def test_without_durable_nothing_waits(self):
        fakes = self.fake("zero-to-fp32", f'exec {shlex.quote(str(BIN))}/zero-to-fp32 "$@"')
        self.fake("sync", "")
        results = self.bench(binaries=fakes, environment={"PATH": f"{fakes}:{os.environ['PATH']}"})
        self.assertIsNone(results["durable"])
        self.assertFalse({"sync", "--fsync"} & set(self.log()))

    def test_the_way_of_writing_is_the_tools_and_is_recorded(self):
        drop_io = ('for argument; do shift; if [ "$drop" ]; then drop=; elif [ "$argument" = --io ]; then drop=1; '
                   'else set -- "$@" "$argument"; fi; done\n')
        fakes = self.fake("zero-to-fp32", drop_io + f'exec {shlex.quote(str(BIN))}/zero-to-fp32 "$@"')
        results = self.bench("--io", "some-mode", binaries=fakes)
        self.assertEqual(results["io"], "some-mode")
        self.assertIn("--io some-mode", results["command"])
        asked = [self.log()[i + 1] for i, word in enumerate(self.log()) if word == "--io"]
        self.assertEqual(asked, ["some-mode"] * 3)

    def test_memory_is_measured_on_sparse_checkpoints(self):
        (self.folder / "work").mkdir()
        small, large = self.bench("--memory-at", "200k", "5M")["memory"]
        self.assertEqual((small["params"], large["params"]), ("200k", "5M"))
        self.assertGreater(large["output_bytes"], 19_000_000)
        self.assertGreater(large["input_bytes"], 66_000_000)
        self.assertLess(large["input_bytes_on_disk"], 500_000)
        self.assertIn("peak_anonymous_rss", large["run"])


class Suite(Folder):
    where = IN_MEMORY

    def suite(self, *arguments, binaries=BIN):
        return subprocess.run(
            [sys.executable, ROOT / "tests/bench/bench.py", "suite", "--quick", "--bin", binaries, "--work",
             self.folder / "work", "--out", self.folder / "out", *arguments], capture_output=True, text=True)

    def write_checkpoint(self, params):
        shapes = bench_checkpoint.decoder_shapes({"100k": 100_000, "400k": 400_000}[params])
        bench_checkpoint.Writer(self.folder / f"work/checkpoint_stage3_{params}_w4", shapes, 3, 4).write()

    def kept(self):
        return {row["name"]: row for row in json.loads((self.folder / "out/results.json").read_text())["rows"]}

    def test_rows_are_what_their_commands_say(self):
        rows = bench_suite.matrix()
        names = [row.name for row in rows]
        self.assertEqual(len(set(names)), 30)
        self.assertEqual(len(names), 30)
        self.assertIn("warm-merge-bfloat16-400M", names)
        for stage in (2, 3):
            for name in ("warm-weights-bin-float32-400M", "warm-weights-safetensors-bfloat16-400M",
                         "warm-universal-100M", "warm-reshard-100M", "warm-verify-400M", "durable-universal-400M",
                         "durable-reshard-400M", "durable-weights-bin-float32-1B", "cold-weights-bin-float32-400M",
                         "cold-universal-100M", "cold-reshard-100M", "cold-verify-400M"):
                self.assertIn(f"{name}-stage{stage}", names)
        for row in rows:
            with self.subTest(row=row.name):
                options = bench.parse_options([*row.arguments, "--bin", str(BIN)])
                self.assertEqual(row.name.startswith("cold-"), options.cache == "cold")
                self.assertEqual(row.name.startswith("durable-"), options.durable == "filesystem")
                stage = "" if options.tool == "merge" else f"-stage{options.stage}"
                self.assertTrue(row.name.endswith(f"-{options.params}{stage}"))
                self.assertEqual(options.ranks, 4)

    def test_chosen_rows_are_measured_and_kept_in_the_order_of_the_matrix(self):
        self.write_checkpoint("100k")
        self.write_checkpoint("400k")
        done = self.suite("--rows", "(warm-verify|warm-reshard|durable-reshard).*stage3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("writing a checkpoint", done.stderr)  # those that were there have served all rows
        kept = self.kept()
        self.assertEqual(list(kept), ["warm-reshard-100k-stage3", "warm-verify-400k-stage3",
                                      "durable-reshard-400k-stage3"])
        self.assertEqual([row["tool"] for row in kept.values()], ["reshard", "verify", "reshard"])
        self.assertEqual([row["durable"] for row in kept.values()], [None, None, "filesystem"])
        table = (self.folder / "out/README.md").read_text()
        for row in kept.values():
            self.assertEqual(table.count(f"`{row['command']}`"), 1)
            self.assertIn(row["machine"]["kernel"], table)
        self.assertNotIn(str(self.folder), table + (self.folder / "out/results.json").read_text())
        self.assertEqual(list((self.folder / "work").iterdir()), [])

    def test_a_row_that_fails_leaves_the_others_and_can_be_run_again(self):
        broken = self.folder / "bin"
        broken.mkdir()
        (broken / "reshard").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
        (broken / "reshard").chmod(0o755)
        (broken / "to-universal").symlink_to(BIN / "to-universal")
        self.write_checkpoint("100k")
        done = self.suite("--rows", "warm-(reshard|universal)-100k-stage3", binaries=broken)
        self.assertEqual(done.returncode, 1)
        self.assertIn("warm-reshard-100k-stage3: error: ", done.stderr)
        self.assertIn("broken", done.stderr)
        first = self.kept()
        self.assertEqual(list(first), ["warm-universal-100k-stage3"])
        self.write_checkpoint("100k")
        self.assertEqual(self.suite("--rows", "warm-reshard-100k-stage3", "--runs", "1").returncode, 0)
        kept = self.kept()
        self.assertEqual(set(kept), {"warm-reshard-100k-stage3", "warm-universal-100k-stage3"})
        self.assertEqual(kept["warm-universal-100k-stage3"], first["warm-universal-100k-stage3"])
        self.assertEqual(len(kept["warm-reshard-100k-stage3"]["programs"]["cp"]["runs"]), 1)


class Pairs(Folder):
    where = IN_MEMORY

    def test_two_builds_take_turns(self):
        slower = self.folder / "bin"
        slower.mkdir()
        for tool in ("zero-to-fp32", "ckpt-inspect"):
            (slower / tool).write_text(f"#!/bin/sh\nsleep 0.3\nexec {shlex.quote(str(BIN / tool))} \"$@\"\n")
            (slower / tool).chmod(0o755)
        done = subprocess.run([sys.executable, ROOT / "tests/bench/bench.py", "pairs", "--against", slower, "--bin", BIN,
                               "--quick", "--runs", "2", "--work", self.folder / "work", "--out", self.folder / "out",
                               "--rows", "^(warm-verify-400k-stage3|plan-weights)"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads((self.folder / "out/results.json").read_text())
        self.assertEqual([row["name"] for row in report["rows"]], ["warm-verify-400k-stage3", "plan-weights"])
        for row in report["rows"]:
            self.assertEqual([len(runs) for runs in row["runs"].values()], [2, 2])
            for ratio in row["seconds_ratios"]:
                self.assertLess(ratio, 0.9)
            for memory in row["memory_runs"].values():
                self.assertGreater(memory["peak_anonymous_rss"], 0)
        self.assertNotIn(str(self.folder), (self.folder / "out/README.md").read_text())
        self.assertEqual(list((self.folder / "work").iterdir()), [])

    def test_one_build_with_an_option_and_without(self):
        with_option = self.folder / "bin"
        with_option.mkdir()
        (with_option / "zero-to-fp32").write_text(
            '#!/bin/sh\ncase "$*" in *--resume*) sleep 0.3 ;; esac\n'
            f'exec {shlex.quote(str(BIN / "zero-to-fp32"))} "$@"\n')
        (with_option / "zero-to-fp32").chmod(0o755)
        done = subprocess.run([sys.executable, ROOT / "tests/bench/bench.py", "pairs", "--with=--resume", "--bin",
                               with_option, "--quick", "--runs", "2", "--work", self.folder / "work", "--out",
                               self.folder / "out", "--rows", "^warm-weights-bin-float32-400k-stage3"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        row, = json.loads((self.folder / "out/results.json").read_text())["rows"]
        for ratio in row["seconds_ratios"]:
            self.assertGreater(ratio, 1.1)
        self.assertIn("with --resume. Before: ", (self.folder / "out/README.md").read_text())


if __name__ == "__main__":
    unittest.main()
