"""s3:// as the place of an output: the bytes that a disk gets, in order, and nothing of a run that fails.

BUCKETS=all writes every checkpoint of testdata by every command; without it, they take turns.
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

import cli_common
import large_checkpoint
import object_server
import tools
import torch_files
from bucket_case import BucketCase, masked
from bucket_input_test import ALL, CONVERSIONS, TESTDATA, inputs
from cli_common import tree as whole_tree
from tools import filled

CASE = "z3_bf16_full_subgroups_w4"
SHARDED = ("--safe-serialization", "--max-shard-size", "4KB")
INDEX = "model.safetensors.index.json"
COMMANDS = [*CONVERSIONS, ["zero-to-fp32", "IN", "OUT", "--states", "--max-shard-size", "20KB"],
            ["zero-to-fp32", "IN", "OUT", "--dtype", "bf16", "--verify-output"]]

setUpModule = tools.skip_without_object_stores


def tree(folder):
    """path -> bytes: stores have no folders."""
    return {path: data for path, data in whole_tree(folder).items() if data is not None}


class BucketOutputTest(BucketCase):

    def setUp(self):
        super().setUp()
        self.stores = self.new_path("stores")
        self.bucket = self.stores / "models"
        self.bucket.mkdir(parents=True)
        self.source = tools.case_named(CASE).load_dir

    def store(self, **options):
        return self.serve(self.stores, **options)

    def written_here(self, *options, tool="zero-to-fp32"):
        output = self.new_path() / "out"
        done = self.tool(tool, self.source, output, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return tree(output.parent)

    def assert_nothing_there(self, store, folder="new"):
        self.assertEqual(store.uploads, {})
        self.assertEqual(tree(self.bucket / folder) if (self.bucket / folder).exists() else {}, {})

    def assert_failed(self, done, store, status, *words):
        self.assertEqual(done.returncode, status, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        for secret in (object_server.KEY, object_server.SECRET, "dsckpt-bucket"):
            self.assertNotIn(secret, done.stdout + done.stderr)
        self.assertEqual(store.uploads, {})

    def started(self, *arguments):
        program = pathlib.Path(os.environ["DSCKPT_BIN"]) / "zero-to-fp32"
        return subprocess.Popen([program, *arguments], env=self.environment, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)


class SameTest(BucketOutputTest):

    def outcome_in(self, command, source, output, place, shown):
        """Status, what was said, and what lies in `place`."""
        tool, *words = filled(command, source, output)
        done = self.tool(tool, *words)
        # No program loads a checkpoint from a store, so nothing is said of what comes next.
        said = [re.sub(r"(?m)^\S+: next: .*\n", "", masked(text)).replace(shown, "PLACE").replace(str(place), "PLACE")
                for text in (done.stdout, done.stderr)]
        return done.returncode, said, tree(place)

    def test_all_of_testdata(self):
        compared = succeeded = 0
        with self.store(page=7) as store:
            for number, path in enumerate(inputs(1)):
                for command in COMMANDS if ALL else [COMMANDS[number % len(COMMANDS)]]:
                    with self.subTest(path=path, command=command):
                        here, there = self.new_path("here"), self.bucket / str(compared)
                        here.mkdir()
                        there.mkdir()
                        url = f"s3://models/{compared}"
                        ours = self.outcome_in(command, TESTDATA / path, f"{url}/out", there, url)
                        local = self.outcome_in(command, TESTDATA / path, here / "out", here, str(here))
                        self.assertEqual(ours[:2], local[:2])
                        self.assertEqual(set(ours[2]) ^ set(local[2]), set())
                        self.assertTrue(ours[2] == local[2], "other bytes")
                        self.assertEqual(store.uploads, {})
                        compared += 1
                        succeeded += local[0] == 0
        self.assertGreater(succeeded, compared // 2)

    def test_unpack(self):
        packed = self.new_path("packed")
        self.assertEqual(self.tool("ckpt-pack", "pack", self.source, packed).returncode, 0)
        with self.store():
            done = self.tool("ckpt-pack", "unpack", packed, "s3://models/new")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(tree(self.bucket / "new") == tree(self.source))

    def test_from_a_bucket_to_a_bucket(self):
        with self.store():
            self.assertEqual(self.tool("ckpt-pack", "pack", self.source, "s3://models/packed").returncode, 0)
            done = self.tool("reshard", "s3://models/packed", "s3://models/new", "--dp", "2", "--verify-output")
            self.assertEqual(done.returncode, 0, done.stderr)
        expected = self.written_here("--dp", "2", tool="reshard")
        self.assertTrue(tree(self.bucket / "new") == {path.removeprefix("out/"): data
                                                      for path, data in expected.items()})

    def test_libraries_load_what_is_there(self):
        case = tools.case_named(CASE)
        with self.store():
            for folder, *options in (["bin"], ["safetensors", "--safe-serialization"]):
                done = self.zero_to_fp32(self.source, f"s3://models/{folder}", *options)
                self.assertEqual(done.returncode, 0, done.stderr)
        loaded = torch_files.load(self.bucket / "bin" / "pytorch_model.bin")
        whole = torch_files.load_file(self.bucket / "safetensors" / "model.safetensors")
        for tensors, expected in ((loaded, case.truth()), (whole, case.without_aliases(case.truth()))):
            self.assertEqual(set(tensors), set(expected))
            for name, value in expected.items():
                self.assertTrue(torch_files.same_bits(tensors[name], value), name)

    def test_one_folder_a_tag(self):
        source = tools.case_named("hf_trainer_llama_z3_bf16_w2").load_dir
        with self.store():
            done = self.zero_to_fp32(source, "s3://models/new", "--tag", "all", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            written = [json.loads(line) for line in done.stdout.splitlines()]
        here = self.new_path()
        self.assertEqual(self.zero_to_fp32(source, here, "--tag", "all").returncode, 0)
        self.assertTrue(tree(self.bucket / "new") == tree(here))
        self.assertTrue(any("s3://models/new" in json.dumps(line) for line in written))


class PartsTest(BucketOutputTest):

    def setUp(self):
        super().setUp()
        self.large = self.new_path("large")
        large_checkpoint.write(self.large, large_checkpoint.decoder(20_000_000), 3, 2)

    def test_outputs_of_many_parts(self):
        for options in (("--safe-serialization",), ("--dtype", "bf16", "--verify-output"),
                        ("--max-shard-size", "30MB", "--s3-requests", "1")):
            here = self.new_path()
            self.assertEqual(self.zero_to_fp32(self.large, here, *options[:2]).returncode, 0)
            shutil.rmtree(self.bucket / "new", ignore_errors=True)
            with self.subTest(options=options), self.store() as store:
                done = self.zero_to_fp32(self.large, "s3://models/new", *options)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(tree(self.bucket / "new") == tree(here), "other bytes")
                parts = [target for method, target in store.writes if "partNumber=" in target]
                self.assertGreater(len(parts), 4)
                self.assertEqual(len(parts), len(set(parts)), "a part was sent twice")
                self.assertEqual(store.uploads, {})

    def test_an_upload_that_must_be_sent_anew(self):
        refused = []

        def fault(number, path):
            # The third POST of it would complete it.
            if path.endswith("pytorch_model.bin"):
                asked = [target for method, target in self.now.writes if method == "POST" and "uploadId" not in target]
                if len(asked) == 1 and sum("partNumber" in target for _, target in self.now.writes) > 9:
                    if self.now.requests[-1][0] == "POST" and not refused:
                        refused.append(number)
                        return 409
            return None

        here = self.new_path()
        self.assertEqual(self.zero_to_fp32(self.large, here).returncode, 0)
        with self.store(fault=fault) as store:
            self.now = store
            done = self.zero_to_fp32(self.large, "s3://models/new", "--s3-requests", "2")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(refused), 1)
            self.assertEqual(sum(method == "POST" and "uploads=" in target for method, target in store.writes), 2)
            self.assertEqual(store.uploads, {})
        self.assertTrue(tree(self.bucket / "new") == tree(here), "other bytes")

    def test_stopped_in_the_middle(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number), self.store(rate=4_000_000) as store:
                process = self.started(self.large, "s3://models/new", "--s3-requests", "2")
                end = time.monotonic() + 20
                while not any("partNumber" in target for _, target in store.writes) and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertEqual(len(store.uploads), 1)
                process.send_signal(number)
                said = process.communicate(timeout=20)
                self.assertEqual(process.returncode, 130, said)
                self.assertIn("interrupted", said[1])
                self.assertNotIn("stay", said[1])
                self.assert_nothing_there(store)

    def killed(self, store):
        """The name of the marker that a run has left in s3://models/new."""
        process = self.started(self.large, "s3://models/new", "--s3-requests", "2")
        while not any("partNumber" in target for _, target in store.writes) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        self.assertEqual(len(store.uploads), 1)
        marker, = tree(self.bucket / "new")
        self.assertTrue(marker.startswith(".dsckpt-staging-"), marker)
        return marker

    def test_what_a_killed_run_has_left_is_in_no_ones_way(self):
        """Also not where a folder is made as a whole."""
        with self.store(rate=4_000_000) as store:
            marker = self.killed(store)
            store.rate = 0
            done = self.tool("reshard", self.source, "s3://models/new", "--dp", "2")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"removed s3://models/new/{marker} and 1 unfinished upload", done.stderr)
            self.assertEqual(store.uploads, {})

    def test_what_a_killed_run_has_left_is_swept(self):
        with self.store(rate=4_000_000) as store:
            marker = self.killed(store)
            # Somebody else's are left alone: of another name, and of an older one.
            upload, = store.uploads.values()
            other = object_server.Upload(self.bucket / "new" / "other.bin", "/models/new/other.bin", None)
            older = object_server.Upload(upload.path, upload.name, None)
            older.begun -= older.begun - older.begun.replace(year=2020)
            store.uploads.update({other.id: other, older.id: older})
            store.rate = 0
            done = self.zero_to_fp32(self.source, "s3://models/new")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"removed s3://models/new/{marker} and 1 unfinished upload", done.stderr)
            self.assertEqual(list(store.uploads), [other.id, older.id])
            self.assertEqual(list(tree(self.bucket / "new")), ["pytorch_model.bin"])


class OrderTest(BucketOutputTest):

    def test_the_index_comes_last_and_goes_first(self):
        with self.store() as store:
            for force in ([], ["--force"]):
                store.writes.clear()
                done = self.zero_to_fp32(self.source, "s3://models/new", *SHARDED, *force)
                self.assertEqual(done.returncode, 0, done.stderr)
                names = [(method, target.rpartition("/")[2].partition("?")[0]) for method, target in store.writes
                         if ".dsckpt-staging" not in target]
                self.assertEqual(names[-1], ("PUT", INDEX))
                self.assertEqual([name for name in names[:-1] if name[1] == INDEX],
                                 [("DELETE", INDEX)] if force else [])
                if force:
                    self.assertEqual(names[0], ("DELETE", INDEX))

    def test_the_pointer_comes_last(self):
        with self.store() as store:
            done = self.tool("to-universal", self.source, "s3://models/run/universal")
            self.assertEqual(done.returncode, 0, done.stderr)
            writes = [target for _, target in store.writes if ".dsckpt-staging" not in target]
            self.assertEqual(writes[-1], "/models/run/latest_universal")
            self.assertEqual((self.bucket / "run" / "latest_universal").read_text(), "universal")
            refused = self.tool("to-universal", self.source, "s3://models")
            self.assertEqual(refused.returncode, 2, refused.stderr)

    def test_what_is_there_is_refused_and_replaced(self):
        with self.store() as store:
            self.assertEqual(self.zero_to_fp32(self.source, "s3://models/new").returncode, 0)
            before = tree(self.bucket)
            store.writes.clear()
            for options in ([], ["--dry-run"], ["--dtype", "bf16"]):
                self.assert_failed(self.zero_to_fp32(self.source, "s3://models/new", *options), store, 2,
                                   "s3://models/new/pytorch_model.bin: exists already", "--force")
            self.assertEqual(store.writes, [])
            self.assertTrue(tree(self.bucket) == before)
            done = self.zero_to_fp32(self.source, "s3://models/new", "--dtype", "bf16", "--force")
            self.assertEqual(done.returncode, 0, done.stderr)
        expected = self.written_here("--dtype", "bf16")
        self.assertEqual(tree(self.bucket / "new")["pytorch_model.bin"], expected["out/pytorch_model.bin"])

    def test_a_folder_is_replaced_as_a_whole(self):
        with self.store() as store:
            for dp, force in (("4", []), ("2", ["--force"])):
                done = self.tool("reshard", self.source, "s3://models/new", "--dp", dp, *force)
                self.assertEqual(done.returncode, 0, done.stderr)
            expected = self.written_here("--dp", "2", tool="reshard")
            self.assertTrue(tree(self.bucket / "new") == {path.removeprefix("out/"): data
                                                          for path, data in expected.items()})
            (self.bucket / "new" / "notes.txt").write_text("mine")
            self.assert_failed(self.tool("reshard", self.source, "s3://models/new", "--dp", "2", "--force"), store, 2,
                               "notes.txt")

    def test_a_dry_run_sends_nothing(self):
        with self.store() as store:
            done = self.zero_to_fp32(self.source, "s3://models/new", "--dry-run")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("requests", done.stderr)
            self.assertEqual(store.writes, [])

    def test_options_that_folders_have(self):
        with self.store() as store:
            for option in ("--resume", "--stripe=4"):  # --resume lacks --plan-in
                self.assert_failed(self.zero_to_fp32(self.source, "s3://models/new", option), store, 2,
                                   "s3://models/new")
            self.assert_nothing_there(store)


class FaultTest(BucketOutputTest):

    def run_with(self, fault, *options, **of_store):
        with self.store(fault=fault, **of_store) as store:
            self.now = store
            return self.zero_to_fp32(self.source, "s3://models/new", *SHARDED, *options), store

    def is_write_of(self, name, method):
        return lambda path: path.endswith(name) and self.now.requests[-1][0] == method

    def once(self, word, name, method):
        wanted, met = self.is_write_of(name, method), []

        def fault(number, path):
            if met or not wanted(path):
                return None
            met.append(number)
            return word

        self.met = met
        return fault

    def always(self, word, name, method):
        wanted = self.is_write_of(name, method)
        return lambda number, path: word if wanted(path) else None

    def test_what_passes_is_sent_again(self):
        expected = self.written_here(*SHARDED)
        for word in (503, 500, 429, 400, "drop", "lost", "cut"):
            for name in (INDEX, "00002-of-00005.safetensors", ".safetensors"):
                with self.subTest(word=word, name=name):
                    done, store = self.run_with(self.once(word, name, "PUT"), "--force")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(store.uploads, {})
                    self.assertTrue({f"out/{path}": data for path, data in tree(self.bucket / "new").items()} ==
                                    expected)
        self.assertTrue(self.met)

    def test_replies_of_the_wrong_form(self):
        expected = self.written_here(*SHARDED)
        for name in (INDEX, ".safetensors"):
            done, store = self.run_with(self.always("wrong form", name, "PUT"), "--force")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue({f"out/{path}": data for path, data in tree(self.bucket / "new").items()} == expected)
        shutil.rmtree(self.bucket / "new")
        for nth in range(1, 5):
            lists = []

            def fault(number, path):
                method, target, _ = self.now.requests[number - 1]
                if method == "GET" and "list-type" in target:
                    lists.append(number)
                return "wrong form" if len(lists) == nth and lists[-1] == number else None

            done, store = self.run_with(fault)
            self.assert_failed(done, store, 4, "s3://models/new", "listing")
            self.assert_nothing_there(store)

    def test_a_refusal_leaves_nothing(self):
        for name in (INDEX, ".safetensors"):
            for word in (403, 404, 412):
                with self.subTest(word=word, name=name):
                    done, store = self.run_with(self.always(word, name, "PUT"))
                    self.assert_failed(done, store, 2 if word == 412 else 4, "s3://models/new")
                    self.assert_nothing_there(store)

    def test_what_was_replaced_is_named(self):
        done, _ = self.run_with(None)
        self.assertEqual(done.returncode, 0, done.stderr)
        done, store = self.run_with(self.always(403, INDEX, "PUT"), "--force")
        self.assert_failed(done, store, 4, "cannot be brought back", f"s3://models/new/{INDEX} is gone",
                           "s3://models/new/model-00001-of-00005.safetensors is the new one")

    def test_a_store_that_does_not_say_what_is_there(self):
        failed = []

        def fault(number, path):
            method = self.now.requests[number - 1][0]
            if method == "PUT" and path.endswith(INDEX):
                failed.append(number)
                return 403
            return "wrong form" if failed and method == "HEAD" else None

        done, store = self.run_with(fault)
        self.assert_failed(done, store, 4, "403")
        left = tree(self.bucket / "new")
        self.assertEqual(len(left), 5)
        for path in left:
            self.assertIn(f"s3://models/new/{path} may be the new one", done.stderr)

    def test_somebody_else_writes_there(self):
        def fault(number, path):
            if path.endswith(INDEX) and self.now.requests[-1][0] == "PUT":
                (self.bucket / "new" / INDEX).write_text("another's")
            return None

        done, store = self.run_with(fault)
        self.assert_failed(done, store, 2, f"s3://models/new/{INDEX}: exists already")
        self.assertEqual(list(tree(self.bucket / "new")), [INDEX])
        self.assertEqual((self.bucket / "new" / INDEX).read_text(), "another's")

    def test_stopped_when_it_was_done_and_nobody_had_heard_of_it(self):
        for name in (INDEX, "00002-of-00005.safetensors"):
            started, met = threading.Event(), []

            def fault(number, path):
                if not path.endswith(name) or self.now.requests[-1][0] != "PUT":
                    return None
                started.wait()
                if not met:
                    self.process.send_signal(signal.SIGINT)
                met.append(path)
                return "lost"

            with self.subTest(name), self.store(fault=fault) as store:
                self.now = store
                self.process = self.started(self.source, "s3://models/new", *SHARDED)
                started.set()
                said = self.process.communicate(timeout=20)
                self.assertEqual(self.process.returncode, 130, said)
                self.assertIn("interrupted", said[1])
                self.assertIn(("PUT", f"/models/new/{met[0].rpartition('/')[2]}"), store.writes)
                self.assert_nothing_there(store)

    def test_stopped_while_the_store_makes_an_object(self):
        for name in (INDEX, "00002-of-00005.safetensors"):
            started = threading.Event()

            def fault(number, path):
                if not path.endswith(name) or self.now.requests[-1][0] != "PUT":
                    return None
                started.wait()
                self.process.send_signal(signal.SIGINT)
                return "delay"

            with self.subTest(name), self.store(fault=fault) as store:
                self.now = store
                self.process = self.started(self.source, "s3://models/new", *SHARDED)
                started.set()
                said = self.process.communicate(timeout=20)
                self.assertEqual(store.at_once, 0, "the store still does what it was asked for")
                if name == INDEX:  # with that, all is done
                    self.assertEqual(self.process.returncode, 0, said)
                    self.assertEqual(len(tree(self.bucket / "new")), 6)
                    shutil.rmtree(self.bucket / "new")
                else:
                    self.assertEqual(self.process.returncode, 130, said)
                    self.assert_nothing_there(store)

    def test_a_store_that_gives_back_other_bytes(self):
        for name in (INDEX, ".safetensors"):
            done, store = self.run_with(self.always("other bytes", name, "GET"), "--verify-output")
            self.assert_failed(done, store, 4, "the store does not give back")
            self.assert_nothing_there(store)

    def test_nobody_may_write_there(self):
        done, store = self.run_with(self.always(403, "", "PUT"))
        self.assert_failed(done, store, 4, "403", "s3:PutObject")
        self.assert_nothing_there(store)


class UploadFaultTest(BucketOutputTest):
    """For an output that is too large for one request."""

    def setUp(self):
        super().setUp()
        self.large = self.new_path("large")
        large_checkpoint.write(self.large, large_checkpoint.decoder(3_000_000), 2, 1)
        self.expected = self.new_path("expected")
        self.assertEqual(self.zero_to_fp32(self.large, self.expected).returncode, 0)

    def run_with(self, words, *options):
        """`words`: by the number of the request that has one, which makes the output."""
        asked = []

        def fault(number, path):
            if not path.endswith(".bin") or self.now.requests[-1][0] == "HEAD":
                return None
            asked.append(number)
            return words.get(len(asked))

        with self.store(fault=fault) as store:
            self.now, self.asked = store, asked
            return self.zero_to_fp32(self.large, "s3://models/new", "--s3-requests", "1", *options), store

    def test_stopped_while_the_store_begins_or_completes_an_upload(self):
        for wanted in ("uploads=", "uploadId="):
            started = threading.Event()

            def fault(number, path):
                method, target, _ = self.now.requests[-1]
                if method != "POST" or wanted not in target:
                    return None
                started.wait()
                self.process.send_signal(signal.SIGINT)
                return "delay"

            with self.subTest(wanted), self.store(fault=fault) as store:
                self.now = store
                self.process = self.started(self.large, "s3://models/new")
                started.set()
                said = self.process.communicate(timeout=20)
                self.assertEqual(store.at_once, 0, "the store still does what it was asked for")
                if wanted == "uploadId=":  # with that, all is done
                    self.assertEqual(self.process.returncode, 0, said)
                    self.assertTrue(tree(self.bucket / "new") == tree(self.expected), "other bytes")
                else:
                    self.assertEqual(self.process.returncode, 130, said)
                    self.assert_nothing_there(store)

    def test_replies_that_are_lost_or_lie(self):
        done, store = self.run_with({})
        self.assertEqual(done.returncode, 0, done.stderr)
        for at in range(1, len(self.asked) + 1):
            for word in ("lost", "drop", 503, "cut", "error in 200", "done, error in 200", "reset"):
                with self.subTest(at=at, word=word):
                    shutil.rmtree(self.bucket / "new")
                    done, store = self.run_with({at: word})
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(store.uploads, {}, "an upload is left")
                    self.assertTrue(tree(self.bucket / "new") == tree(self.expected), "other bytes")

    def test_replies_of_the_wrong_form(self):
        done, store = self.run_with({})
        last = len(self.asked)
        for at in range(1, last + 1):
            with self.subTest(at=at):
                shutil.rmtree(self.bucket / "new", ignore_errors=True)
                done, store = self.run_with({at: "wrong form"})
                if at == last:  # it is completed, as the store says when it is asked
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertTrue(tree(self.bucket / "new") == tree(self.expected), "other bytes")
                else:
                    self.assert_failed(done, store, 4, "s3://models/new/pytorch_model.bin: the server")
                    self.assert_nothing_there(store)


if __name__ == "__main__":
    cli_common.main()
