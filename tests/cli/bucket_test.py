"""s3://: inputs in object stores give what the same inputs on a disk give, whatever the network does.

The store is object_server's, which checks signatures and misbehaves as it is told.
"""
import filecmp
import itertools
import json
import os
import pathlib
import signal
import shutil
import subprocess
import time
import unittest.mock

import cli_common
import object_server
import tools
from bucket_case import BucketCase

CASES = ["z2_fp32_full_w3", "z3_fp32_full_w2", "hf_trainer_llama_z3_bf16_w2"]

setUpModule = tools.skip_without_object_stores


def differences(a, b):
    """Paths of files that are not the same in both folders."""
    files = [{str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (a, b)]
    same = {name for name in files[0] & files[1] if filecmp.cmp(a / name, b / name, shallow=False)}
    return (files[0] | files[1]) - same


class BucketTest(BucketCase):

    def setUp(self):
        super().setUp()
        self.stores = self.new_path("stores")
        self.bucket = self.stores / "models"
        self.bucket.mkdir(parents=True)

    def upload(self, name):
        """A case's load folder as s3://models/runs/NAME: (where it lies, its URL)."""
        where = self.bucket / "runs" / name
        shutil.copytree(tools.case_named(name).load_dir, where)
        return where, f"s3://models/runs/{name}"

    def store(self, **options):
        return self.serve(self.stores, **options)

    def assert_same_output(self, tool, local, remote, *options):
        outputs = [self.new_path() / "out", self.new_path() / "out"]  # one name: torch.save writes it
        for source, output in zip((local, remote), outputs):
            done = self.tool(tool, source, output, *options)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(differences(*outputs), set(), f"{tool} of {remote}")

    def assert_refused(self, done, status, *words):
        self.assertEqual(done.returncode, status, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        for secret in (object_server.SECRET, object_server.TOKEN, "dsckpt-bucket"):
            self.assertNotIn(secret, done.stdout + done.stderr)

    def test_every_tool_gives_what_it_gives_of_a_disk(self):
        with self.store():
            for name in CASES:
                where, url = self.upload(name)
                self.assert_same_output("zero-to-fp32", where, url)
                self.assert_same_output("zero-to-fp32", where, url, "--safe-serialization", "--dtype", "bf16")
                self.assert_same_output("to-universal", where, url)
                self.assert_same_output("reshard", where, url, "--dp", "4")
                self.assert_same_output("to-dcp", where, url, "--dp", "2")
            for command in (["pack"], ["strip", "--keep", "weights"]):
                outputs = [self.new_path(), self.new_path()]
                for source, output in zip((where, url), outputs):
                    done = self.tool("ckpt-pack", *command, source, output)
                    self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(differences(*outputs), set(), command)

    def test_inspection_says_the_same(self):
        with self.store():
            for name in CASES:
                where, url = self.upload(name)
                for command in (["tree"], ["list"], ["stats"], ["verify"], ["scan"]):
                    texts = []
                    for source in (where, url):
                        done = self.tool("ckpt-inspect", *command, source)
                        self.assertEqual(done.returncode, 0, done.stderr)
                        texts.append(done.stdout.replace(url, str(where)))
                        self.assertNotIn("dsckpt-bucket", done.stdout)
                    self.assertEqual(*texts, command)
                done = self.tool("ckpt-inspect", "diff", where, url)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_tags_folder_and_what_lies_beside_it(self):
        with self.store():
            where, url = self.upload("hf_trainer_llama_z3_bf16_w2")
            tag = tools.case_named("hf_trainer_llama_z3_bf16_w2").facts["tag"]
            self.assert_same_output("zero-to-fp32", where / tag, f"{url}/{tag}", "--safe-serialization")

    def test_listings_of_many_pages(self):
        with self.store(page=2) as store:
            where, url = self.upload("z2_fp32_full_w3")
            self.assert_same_output("zero-to-fp32", where, url)
            self.assertGreater(sum("list-type=2" in path for _, path, _ in store.requests), 3)

    def test_a_listing_that_only_goes_on_is_given_up(self):
        tokens = itertools.cycle("ab")

        def listing(connection, bucket, query):
            return ("<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>"
                    f"{next(tokens)}</NextContinuationToken></ListBucketResult>").encode()

        with self.store(), unittest.mock.patch.object(object_server._Connection, "listing", listing):
            done = self.tool("ckpt-inspect", "list", "s3://models/any")
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("the listing does not belong to the request", done.stderr)

    def test_odd_names_are_asked_for_as_they_are(self):
        with self.store():
            where, _ = self.upload("z2_fp32_full_w3")
            odd = where.rename(where.with_name("a b+c=d&é%20'(1)"))
            self.assert_same_output("zero-to-fp32", odd, f"s3://models/runs/{odd.name}")

    def test_roots_and_packed_files(self):
        with self.store():
            where, url = self.upload("z2_fp32_full_w3")
            packed = self.bucket / "packed"
            done = self.tool("ckpt-pack", "pack", where, packed)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_same_output("zero-to-fp32", where, "s3://models/packed")
            tag = tools.case_named("z2_fp32_full_w3").facts["tag"]
            other = self.bucket / "other" / tag
            other.mkdir(parents=True)
            whole = self.new_path()
            shutil.copytree(where, whole)
            for path in (where / tag).glob("*pp_rank_1*"):
                path.rename(other / path.name)
            self.assert_same_output("zero-to-fp32", whole, url, "--root", "s3://models/other")

    def test_a_token_goes_along_and_a_wrong_secret_is_refused(self):
        with self.store():
            where, url = self.upload("z2_fp32_full_w3")
            self.environment["AWS_SESSION_TOKEN"] = object_server.TOKEN
            self.assert_same_output("zero-to-fp32", where, url)
            self.environment["AWS_SECRET_ACCESS_KEY"] = "another"
            self.assert_refused(self.zero_to_fp32(url, self.new_path()), 4, "403", "SignatureDoesNotMatch",
                                "hint: these credentials may not do that")

    def test_credentials_of_a_profile(self):
        with self.store():
            where, url = self.upload("z2_fp32_full_w3")
            endpoint = self.environment.pop("AWS_ENDPOINT_URL_S3")
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
                del self.environment[name]
            keys, config = self.new_path("credentials"), self.new_path("config")
            keys.write_text(f"[default]\naws_access_key_id = x\naws_secret_access_key = y\n[lab]\n"
                            f"aws_access_key_id = {object_server.KEY}\n"
                            f"aws_secret_access_key={object_server.SECRET}\n")
            config.write_text(f"[profile lab]\nregion = {object_server.REGION}\nendpoint_url = {endpoint}\n"
                              "s3 =\n  region = elsewhere\n")
            self.environment.update(AWS_SHARED_CREDENTIALS_FILE=str(keys), AWS_CONFIG_FILE=str(config), AWS_PROFILE="lab")
            self.assert_same_output("zero-to-fp32", where, url)
            self.environment["AWS_PROFILE"] = "none"
            self.assert_refused(self.zero_to_fp32(url, self.new_path()), 2, "no profile 'none'")

    def test_what_is_public_needs_no_credentials(self):
        with self.store(signed=False):
            where, url = self.upload("z2_fp32_full_w3")
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                del self.environment[name]
            self.assert_refused(self.zero_to_fp32(url, self.new_path()), 4, "no credentials", "--s3-unsigned")
            self.assert_same_output("zero-to-fp32", where, url, "--s3-unsigned")

    def test_what_is_not_there(self):
        with self.store():
            self.upload("z2_fp32_full_w3")
            self.assert_refused(self.zero_to_fp32("s3://models/runs/none", self.new_path()), 2,
                                "s3://models/runs/none: there is no such folder", "in s3://models/runs: z2_fp32")
            self.assert_refused(self.zero_to_fp32("s3://nothing/runs", self.new_path()), 4, "404", "NoSuchBucket")

    def test_urls_that_are_none(self):
        for url in ("s3://", "s3://b/../c", "s3://b//c", "https://us er/folder", "gs://b/c"):
            self.assertEqual(self.zero_to_fp32(url, self.new_path()).returncode, 2, url)
            self.assertEqual(self.zero_to_fp32(tools.case_named("z2_bf16_w2").load_dir, url).returncode, 2, url)
        self.assertFalse(pathlib.Path("s3:").exists())

    def test_a_few_faults_change_nothing(self):
        faults = [503, 500, 429, "drop", "cut"]

        def fault(number, path):
            return faults[number // 3 % len(faults)] if number % 3 == 1 else None

        with self.store(fault=fault):
            where, url = self.upload("z3_fp32_full_w2")
            self.assert_same_output("zero-to-fp32", where, url)
            done = self.zero_to_fp32(url, self.new_path())
            self.assertIn("sent again", done.stderr)

    def test_what_comes_behind_a_chunked_body_is_none_of_its_head(self):
        with self.store(fault=lambda number, path: "trailers"):
            where, url = self.upload("z3_fp32_full_w2")
            self.assert_same_output("zero-to-fp32", where, url)

    def test_a_store_that_only_fails_is_given_up(self):
        for word, text in ((503, "503"), ("drop", "6 times")):
            with self.subTest(word), self.store(fault=lambda number, path, word=word: word) as store:
                begin = time.monotonic()
                self.assert_refused(self.zero_to_fp32("s3://models/x", self.new_path()), 4, text)
                self.assertLess(time.monotonic() - begin, 20)
                self.assertEqual(len(store.requests), 6)

    def test_lies_about_bytes_are_refused(self):
        for word, text in (("longer", "more than was asked for"), ("shorter", "were asked for"),
                           ("shifted", "of another range")):
            def fault(number, path, word=word):
                return word if path.endswith(".pt") else None

            with self.subTest(word), self.store(fault=fault):
                _, url = self.upload("z2_fp32_full_w3") if word == "longer" else (None, "s3://models/runs/z2_fp32_full_w3")
                output = self.new_path()
                self.assert_refused(self.zero_to_fp32(url, output), 4, text, ".pt")
                self.assertFalse(output.exists())

    def test_an_object_that_changes_is_refused(self):
        for minds_match in (True, False):
            with self.subTest(minds_match), self.store(minds_match=minds_match) as store:
                where, url = self.upload("z2_fp32_full_w3")
                shard = next(where.rglob("*optim_states.pt"))

                def fault(number, path, shard=shard):
                    if "list-type" not in path and path.endswith(".pt"):
                        os.utime(shard, (number, number))

                store.fault = fault
                output = self.new_path()
                self.assert_refused(self.zero_to_fp32(url, output), 4, "changed while it was being read")
                self.assertFalse(output.exists())
                shutil.rmtree(where)

    def test_a_server_that_answers_200(self):
        with self.store(answers_200=True):
            where, url = self.upload("z2_fp32_full_w3")
            self.assert_same_output("zero-to-fp32", where, url)

    def test_without_a_folder_for_temporary_files(self):
        done = tools.run_tool("ckpt-inspect", "s3://models/x", env={**os.environ, "TMPDIR": "/dev/null/none"})
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("no folder for temporary files", done.stderr)
        self.assertIn("TMPDIR", done.stderr)

    def test_a_run_goes_on_after_a_stop(self):
        where, url = self.upload("z3_fp32_full_w2")
        alone, out = self.new_path("alone"), self.new_path("out")
        self.assertEqual(tools.run_tool("to-universal", where, alone).returncode, 0)
        command = ["to-universal", url, out, "--resume", "--save-every=0"]
        with self.store():
            first = subprocess.Popen([pathlib.Path(os.environ["DSCKPT_BIN"]) / command[0], *map(str, command[1:]),
                                      "--limit-rate=1KB"], env=self.environment, stderr=subprocess.PIPE, text=True)
            kept = out.parent / f".dsckpt-staging-resume-{out.name}"
            while not kept.exists() and first.poll() is None:
                time.sleep(0.01)
            first.send_signal(signal.SIGTERM)
            self.assertIn("the same command resumes it", first.communicate(timeout=60)[1])
            done = self.tool(*command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(differences(alone, out), set())

    def test_requests_are_counted(self):
        with self.store() as store:
            _, url = self.upload("z3_fp32_full_w2")
            done = self.zero_to_fp32(url, self.new_path(), "--dry-run", "--json")
            data = json.loads(done.stdout)["object_store"]
            self.assertEqual(data["requests"], len(store.requests))
            self.assertGreaterEqual(data["bytes"], store.sent)

    def test_one_request_at_a_time(self):
        with self.store() as store:
            where, url = self.upload("z3_fp32_full_w2")
            self.assert_same_output("zero-to-fp32", where, url, "--s3-requests", "1")
            self.assertEqual(store.most_at_once, 1)

    def test_a_signal_is_heard_while_the_store_is_silent(self):
        for name in (signal.SIGINT, signal.SIGKILL):
            def fault(number, path):
                return "stall" if path.endswith("optim_states.pt") else None

            with self.subTest(name), self.store(fault=fault) as store:
                where, url = (self.upload("z2_fp32_full_w3") if name == signal.SIGINT else
                              (None, "s3://models/runs/z2_fp32_full_w3"))
                output = self.new_path()
                program = pathlib.Path(os.environ["DSCKPT_BIN"]) / "zero-to-fp32"
                process = subprocess.Popen([program, url, output], env=self.environment, stderr=subprocess.PIPE)
                while not any(path.endswith("optim_states.pt") for _, path, _ in store.requests):
                    time.sleep(0.02)
                process.send_signal(name)
                begin = time.monotonic()
                process.communicate()
                self.assertLess(time.monotonic() - begin, 5)
                self.assertEqual(process.returncode, 130 if name == signal.SIGINT else -9)
                while list(self.tmp.iterdir()) and time.monotonic() - begin < 5:
                    time.sleep(0.05)
                self.assertEqual(list(self.tmp.iterdir()), [])
                self.assertFalse(output.exists())


if __name__ == "__main__":
    cli_common.main()
