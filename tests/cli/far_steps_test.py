"""Several processes read checkpoints in stores and on web servers, in steps and as ranks.

They make the bytes and reports of one process, and one of them lists the objects.

BUCKETS=all takes every checkpoint of testdata and every command; without it, some take turns.
"""
import json
import time
import unittest

import large_checkpoint
import object_server
import tools
from bucket_case import BucketCase
from bucket_input_test import ALL, CONVERSIONS, TESTDATA, inputs
from cli_common import STAGING, tree
from ranks import Ranks
from step_processes import StepProcesses
from tools import filled
from web_server import Site
from web_server import serving as serving_web

REPORTS = [["ckpt-inspect", "verify", "IN", "--json", "--finite"], ["ckpt-inspect", "stats", "IN", "--json"],
           ["ckpt-inspect", "diff", "IN", "IN", "--json", "--states"]]

setUpModule = tools.skip_without_object_stores


def listings(store):
    return [path for _, path, _ in store.requests if "list-type=2" in path]


class FarStepsTest(StepProcesses, BucketCase):

    def finish(self, process, statuses=(0,)):
        done = super().finish(process, statuses)
        for secret in (object_server.KEY, object_server.SECRET, "dsckpt-bucket"):
            self.assertNotIn(secret, done.stdout + done.stderr)
        return done

    def work(self, folder, workers, at_once):
        words = ["dsckpt", "work", folder, *([] if at_once else ["--only-share"]), "--share"]
        if at_once:
            for process in [self.start(*words, f"{number}/{workers}") for number in range(workers)]:
                self.finish(process)
        for number in range(0 if at_once else workers):
            self.finish(self.start(*words, f"{number}/{workers}"))

    def alone(self, command, source):
        out = self.new_path("alone") / "out"
        out.parent.mkdir()
        done = self.tool(*filled(command, source, out))
        return done.returncode, tree(out.parent)

    def assert_steps(self, store, command, source, url, workers, at_once):
        """Returns whether the tool takes the input at all."""
        status, expected = self.alone(command, source)
        place = self.new_path("place")
        place.mkdir()
        planned = self.tool(*filled(command, url, place / "out"), "--emit-plan", "--portions", "7")
        if not expected:
            self.assertEqual(planned.returncode, status, planned.stderr)
            return False
        self.assertEqual(planned.returncode, 0, planned.stderr)
        listed = listings(store) if store else []
        self.work(place / "out", workers, at_once)
        if store:
            self.assertEqual(listings(store), listed)
        self.assertEqual(self.state(place / "out")["state"], "complete")
        self.run_step("commit", place / "out", status=status)
        self.assertTrue(tree(place) == expected, "other bytes")
        return True

    def cases(self):
        """[(number, path, command)]: in turn."""
        every = inputs()
        return [(number + index, path, command) for number, path in enumerate(every)
                for index, command in enumerate(CONVERSIONS) if ALL or (number + 3 * index) % 40 == 0]

    def test_steps_make_the_bytes_of_one_process(self):
        taken = 0
        with self.serve(TESTDATA.parent) as store:
            for number, path, command in self.cases():
                with self.subTest(path=path, command=command):
                    taken += self.assert_steps(store, command, TESTDATA / path, f"s3://{TESTDATA.name}/{path}",
                                               1 + number % 3, number % 2 == 0)
        self.assertGreater(taken, 8)

    def test_packed_files(self):
        packed = self.new_path("packed")
        source = tools.case_named("z3_bf16_full_subgroups_w4").load_dir
        self.assertEqual(self.tool("ckpt-pack", "pack", source, packed / "bucket" / "run").returncode, 0)
        with self.serve(packed) as store:
            self.assertTrue(self.assert_steps(store, CONVERSIONS[0], source, "s3://bucket/run", 2, True))

    def test_a_web_server(self):
        source = tools.case_named("z2_bf16_w2").load_dir
        for etags in ("strong", "weak", None):
            with self.subTest(etags=etags), serving_web(Site(source, etags=etags)) as url:
                self.assertTrue(self.assert_steps(None, CONVERSIONS[0], source, url, 2, True))

    def test_reports_in_steps(self):
        with self.serve(TESTDATA.parent) as store:
            for number, case in enumerate(tools.all_cases()[::16]):
                for command in REPORTS[number % 3:number % 3 + 1]:
                    url = f"s3://{TESTDATA.name}/{case.load_dir.resolve().relative_to(TESTDATA)}"
                    with self.subTest(case=case.name, command=command):
                        alone = self.tool(*filled(command, url, ""))
                        folder = self.new_path("steps")
                        planned = self.tool(*filled(command, url, ""), "--emit-plan", folder)
                        self.assertEqual(planned.returncode, 0, planned.stderr)
                        listed = listings(store)
                        self.work(folder, 2, True)
                        self.assertEqual(listings(store), listed)
                        done = self.tool("dsckpt", "commit", folder, "--json")
                        self.assertEqual(done.returncode, alone.returncode, done.stderr)
                        ours, theirs = json.loads(done.stdout), json.loads(alone.stdout)
                        del ours["object_store"], theirs["object_store"]
                        self.assertEqual(ours, theirs)

    def run_ranks(self, size, *words, status=0):
        results = Ranks(size, words, self.root, self.environment).wait()
        self.assertEqual([each for each, _, _ in results], [status] * size, results)
        self.assertEqual([(out, errors) for _, out, errors in results[1:]], [("", "")] * (size - 1))

    def test_ranks(self):
        with self.serve(TESTDATA.parent) as store:
            for number, path, command in self.cases()[::3]:
                with self.subTest(path=path, command=command):
                    status, expected = self.alone(command, TESTDATA / path)
                    if not expected:
                        continue
                    url = f"s3://{TESTDATA.name}/{path}"
                    out = self.new_path("alone") / "out"
                    before = len(listings(store))
                    self.assertEqual(self.tool(*filled(command, url, out)).returncode, status)
                    between = len(listings(store))
                    place = self.new_path("place")
                    place.mkdir()
                    self.run_ranks(3, *filled(command, url, place / "out"), status=status)
                    self.assertTrue(tree(place) == expected, "other bytes")
                    self.assertEqual(len(listings(store)) - between, between - before)

    def run_shares(self, size, *words):
        """Every share of one command; returns what the first prints. The others wait for its plan."""
        later = [self.start(*words, "--share", f"{number}/{size}") for number in range(1, size)]
        time.sleep(0.3)
        done = self.finish(self.start(*words, "--share", f"0/{size}"))
        for each in later:
            self.finish(each)
        return done.stdout

    def test_shares_of_one_command_list_once(self):
        source = tools.case_named("z3_bf16_full_subgroups_w4").load_dir
        url = f"s3://{TESTDATA.name}/{source.resolve().relative_to(TESTDATA)}"
        with self.serve(TESTDATA.parent) as store:
            for command in (*CONVERSIONS[:1], *CONVERSIONS[4:5], REPORTS[0]):
                with self.subTest(command=command):
                    alone, place = self.new_path("alone"), self.new_path("place")
                    self.assertEqual(self.tool(*filled(command, url, alone)).returncode, 0)
                    before = len(listings(store))
                    store.requests.clear()
                    steps = ["--emit-plan", place] if command in REPORTS else []
                    self.run_shares(3, *filled(command, url, place), *steps)
                    self.assertEqual(len(listings(store)), before)
                    store.requests.clear()
                    if command not in REPORTS:
                        self.assertTrue(tree(place) == tree(alone), "other bytes")

    def large_in(self, stores):
        source = stores / "models" / "ckpt"
        large_checkpoint.write_one(source, 8 << 20)
        return source

    def test_from_a_store_into_a_store(self):
        stores = self.new_path("stores")
        source = self.large_in(stores)
        _, expected = self.alone(CONVERSIONS[0], source)
        with self.serve(stores) as store:
            for name in ("steps", "ranks"):
                url = f"s3://models/{name}/out"
                if name == "ranks":
                    self.run_ranks(3, "zero-to-fp32", "s3://models/ckpt", url)
                else:
                    folder = self.new_path("plan")
                    done = self.tool("zero-to-fp32", "s3://models/ckpt", url, "--emit-plan", "--plan-in", folder)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    listed = listings(store)
                    self.work(folder, 2, True)
                    self.assertEqual(listings(store), listed)
                    self.run_step("commit", folder)
                files = {path: data for path, data in tree(stores / "models" / name).items() if data is not None}
                self.assertTrue(files == {path: data for path, data in expected.items() if data is not None})
                self.assertEqual(store.uploads, {})

    def test_every_byte_is_read_about_once(self):
        stores = self.new_path("stores")
        source = self.large_in(stores)
        size = sum(path.stat().st_size for path in source.rglob("*optim_states.pt"))
        with self.serve(stores) as store:
            out = self.new_path("place") / "out"
            out.parent.mkdir()
            done = self.tool("zero-to-fp32", "s3://models/ckpt", out, "--emit-plan", "--portions", "4")
            self.assertEqual(done.returncode, 0, done.stderr)
            requests, sent = len(store.requests), store.sent
            self.work(out, 2, False)
            self.assertLess(store.sent - sent, size * 1.05)
            self.assertLess(len(store.requests) - requests, 40)

    def test_an_object_that_was_replaced_is_refused(self):
        stores = self.new_path("stores")
        shard = next(self.large_in(stores).rglob("*optim_states.pt"))
        with self.serve(stores) as store:
            place = self.new_path("place")
            place.mkdir()
            done = self.tool("zero-to-fp32", "s3://models/ckpt", place / "out", "--emit-plan")
            self.assertEqual(done.returncode, 0, done.stderr)
            store.changes[shard] = 1  # the same size and time
            done = self.run_step("work", place / "out", status=4)
            self.assertRegex(done.stderr, f"{shard.name}: .*changed while it was being read")
            self.run_step("abandon", place / "out")
            self.assertEqual(list(place.iterdir()), [])

    def test_a_worker_without_credentials_says_so_and_another_goes_on(self):
        stores = self.new_path("stores")
        self.large_in(stores)
        with self.serve(stores):
            place = self.new_path("place")
            place.mkdir()
            done = self.tool("zero-to-fp32", "s3://models/ckpt", place / "out", "--emit-plan")
            self.assertEqual(done.returncode, 0, done.stderr)
            kept, self.environment = self.environment, {
                name: value for name, value in self.environment.items() if name != "AWS_SECRET_ACCESS_KEY"}
            self.run_step("work", place / "out", status=4)
            self.environment = kept
            self.assertRegex(" ".join(path.name for path in place.iterdir()), STAGING)
            self.work(place / "out", 1, True)
            self.run_step("commit", place / "out")
        self.assertEqual([path.name for path in place.iterdir()], ["out"])


if __name__ == "__main__":
    unittest.main()
