"""Conversions as tasks of an engine, by the Python package: the files of one process, whoever is lost or stops it."""
import concurrent.futures
import importlib.util
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import unittest

import dsckpt
import large_checkpoint
import tools
from cli_common import STAGING, CliTest, tree

os.environ["PATH"] = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"
SPAWN = multiprocessing.get_context("spawn")


def is_there(package):
    return importlib.util.find_spec(package) is not None


class Lossy:
    """An executor of threads, of whose tasks some are lost, as machines are: before they begin, or when they are done."""

    def __init__(self, lost):
        self.lost, self.count = lost, 0
        self.threads = concurrent.futures.ThreadPoolExecutor(2)
        self._max_workers = 2

    def submit(self, function, *arguments):
        self.count += 1
        return self.threads.submit(self.run, self.lost.get(self.count), function, arguments)

    def run(self, when, function, arguments):
        if when == "before":
            raise ConnectionError("a machine is lost")
        result = function(*arguments)
        if when == "after":
            raise ConnectionError("a machine is lost")
        return result


class EnginesTest(CliTest):

    def setUp(self):
        super().setUp()
        self.source = self.new_path("ckpt")
        large_checkpoint.write_one(self.source, 6 << 20)

    def assert_same(self, convert, **options):
        alone, out = self.new_path("alone"), self.new_path("out")
        one = getattr(dsckpt, convert)(self.source, alone, **options)
        several = self.by_engine(convert, out, **options)
        self.assertTrue(tree(out) == tree(alone))
        self.assertEqual(several["files"], one["files"])
        self.assertEqual([path for path in self.root.rglob(STAGING + "*")], [])

    def by_engine(self, convert, out, **options):
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=SPAWN) as executor:
            return getattr(dsckpt, convert)(self.source, out, executor=executor, **options)


class ExecutorTest(EnginesTest):

    def test_processes_write_the_files_of_one(self):
        self.assert_same("convert", safe_serialization=True, max_shard_size="1MB")
        self.assert_same("to_universal")
        self.assert_same("to_dcp", dp=3)

    def test_paths_are_those_of_the_caller(self):
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=SPAWN) as executor:
            executor.submit(os.getpid).result()  # it has this folder
            before = os.getcwd()
            os.chdir(self.root)
            self.addCleanup(os.chdir, before)
            dsckpt.convert(self.source.name, "here", executor=executor)
        self.assertTrue((self.root / "here" / "pytorch_model.bin").exists())

    def test_processes_make_the_report_of_one(self):
        before = os.getcwd()
        os.chdir(self.root)
        self.addCleanup(os.chdir, before)
        other = self.new_path("other")
        dsckpt.convert(self.source, other, dtype="bf16")
        shard = next(self.source.rglob("*optim_states.pt"))
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
        calls = [lambda **on: dsckpt.verify(self.source, finite=True, **on),
                 lambda **on: dsckpt.verify(self.source, other, **on),
                 lambda **on: dsckpt.stats(self.source, states=True, **on).result,
                 lambda **on: dsckpt.diff(self.source, other, as_="bfloat16", **on)]
        for call in calls:
            alone = call()
            with concurrent.futures.ProcessPoolExecutor(2, mp_context=SPAWN) as executor:
                self.assertEqual(call(executor=executor), alone)
            lossy = Lossy({1: "after", 2: "before", 4: "before"})
            self.assertEqual(call(executor=lossy), alone)
            self.assertGreater(lossy.count, 5)
        with self.assertRaises(ConnectionError):
            calls[0](executor=Lossy(dict.fromkeys(range(2, 99), "before")))
        with self.assertRaises(dsckpt.UsageError) as caught:
            dsckpt.verify(self.source, "missing", executor=Lossy({}))
        self.assertEqual(caught.exception.results, [dsckpt.verify(self.source)])
        self.assertEqual(list(self.root.glob(".dsckpt-*")), [])

    def test_progress_is_told(self):
        told = []
        self.by_engine("convert", self.new_path("out"), progress=lambda done, total: told.append((done, total)))
        self.assertEqual(told[-1][0], told[-1][1])

    def test_a_lost_task_is_begun_again(self):
        alone = self.new_path("alone")
        dsckpt.convert(self.source, alone)
        for lost in ({1: "before"}, {1: "after"}, {2: "before", 3: "after"}, {2: "after", 4: "before"}):
            with self.subTest(lost=lost):
                out = self.new_path("out")
                executor = Lossy(lost)
                dsckpt.convert(self.source, out, executor=executor)
                self.assertGreater(executor.count, 3)
                self.assertTrue(tree(out) == tree(alone))

    def test_an_engine_that_loses_all_leaves_nothing(self):
        with self.assertRaises(ConnectionError):
            dsckpt.convert(self.source, self.new_path("out"), executor=Lossy(dict.fromkeys(range(2, 99), "before")))
        self.assertEqual([path for path in self.root.rglob(STAGING + "*")], [])

    def test_what_was_done_is_kept_where_that_is_asked_for(self):
        out = self.new_path("out")
        with self.assertRaises(ConnectionError):
            dsckpt.convert(self.source, out, executor=Lossy(dict.fromkeys(range(2, 99), "before")), resume=True)
        self.assertEqual(len([path for path in self.root.rglob(STAGING + "*")]), 1)
        self.by_engine("convert", out)
        self.assertTrue(out.exists())

    def test_what_is_raised_stops_it_and_leaves_nothing(self):

        class Enough(Exception):
            pass

        def stop(done, total):
            raise Enough

        with self.assertRaises(Enough):
            self.by_engine("convert", self.new_path("out"), progress=stop)
        self.assertEqual([path for path in self.root.rglob(STAGING + "*")], [])

    def test_an_error_of_the_tool_is_one_here(self):
        out = self.new_path("out")
        out.mkdir()
        (out / "model.safetensors").write_text("")
        with self.assertRaises(dsckpt.UsageError) as caught:
            self.by_engine("convert", out, safe_serialization=True)
        self.assertIn("--force", str(caught.exception))
        for wrong in ({"executor": 3}, {"engine": "slurm"}, {"engine_options": {}},
                      {"engine": "ray", "executor": Lossy({})}):
            with self.assertRaises(dsckpt.UsageError):
                dsckpt.convert(self.source, self.new_path("out"), **wrong)


@unittest.skipUnless(is_there("distributed"), "Dask is not installed")
class DaskTest(EnginesTest):

    def setUp(self):
        super().setUp()
        self.scheduler = self.root / "scheduler.json"
        self.start("scheduler", "--no-dashboard", "--port", "0", "--host", "127.0.0.1")
        for _ in range(2):
            self.start("worker", "--no-dashboard", "--no-nanny", "--nthreads", "1", "--host", "127.0.0.1")

    def start(self, what, *options):
        process = subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_" + what, "--scheduler-file",
                                    str(self.scheduler), *options], cwd=self.root, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

    def by_engine(self, convert, out, **options):
        from distributed import Client
        with Client(scheduler_file=str(self.scheduler), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
            return getattr(dsckpt, convert)(self.source, out, executor=client.get_executor(), **options)

    def test_workers_write_the_files_of_one_process(self):
        self.assert_same("convert", safe_serialization=True)


@unittest.skipUnless(is_there("ray"), "Ray is not installed")
class RayTest(EnginesTest):

    def by_engine(self, convert, out, **options):
        return getattr(dsckpt, convert)(self.source, out, engine="ray", engine_options={"num_cpus": 1}, **options)

    def test_tasks_write_the_files_of_one_process(self):
        import ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
        self.addCleanup(ray.shutdown)
        self.assert_same("convert", safe_serialization=True)


if __name__ == "__main__":
    unittest.main()
