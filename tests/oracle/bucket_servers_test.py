"""s3:// against two servers that others have written. rclone's checks signatures, answers ranges with 200 and
knows no conditions. moto's checks no signatures and honours conditions. boto3, a third program, asks them for
their contents.
"""
import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import boto3
import cli_common
import large_checkpoint
import object_server
import tools
from botocore.config import Config
from cli_common import CliTest, tree

CASES = ["z0_fp16_w2", "z2_fp32_full_w3", "z3_fp32_full_w2", "pp2_tp2_dp2_z1_fp32", "hf_trainer_llama_z3_bf16_w2"]
# Each with IN for the input and OUT for the output.
CONVERSIONS = [["zero-to-fp32", "IN", "OUT", "--safe-serialization"], ["to-universal", "IN", "OUT"],
               ["reshard", "IN", "OUT", "--dp", "2"], ["to-dcp", "IN", "OUT", "--dp", "2"],
               ["ckpt-pack", "pack", "IN", "OUT"]]
LOOKS = [["ckpt-inspect", command, "IN"] for command in ("list", "verify", "stats", "scan")]
# For outputs that take several parts each, or one.
LARGE = [["zero-to-fp32", "IN", "OUT"], ["to-universal", "IN", "OUT"], ["ckpt-pack", "pack", "IN", "OUT"],
         ["zero-to-fp32", "IN", "OUT", "--safe-serialization", "--max-shard-size", "9MB", "--verify-output"]]
INDEX = "model.safetensors.index.json"
PROGRAMS = pathlib.Path(sys.executable).parent

setUpModule = tools.skip_without_object_stores


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def losing(endpoint, method, word):
    """A proxy of a server that loses its first reply to a request with this in its target. It gives its
    endpoint, and a list of the targets that met it.
    """
    met = []
    port = int(endpoint.rpartition(":")[2])

    def copy(source, target, is_client, lost):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                line = data.split(b"\r\n", 1)[0].decode("latin-1") if is_client else ""
                if not met and line.startswith(f"{method} ") and word in line:
                    met.append(line)
                    lost.set()
                if not is_client and lost.is_set():
                    break  # it is done, and nobody hears of it
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server, lost = socket.create_connection(("127.0.0.1", port)), threading.Event()
                pairs = ((client, server, True, lost), (server, client, False, lost))
                threads.extend(threading.Thread(target=copy, args=pair, daemon=True) for pair in pairs)
                sockets.extend((client, server))
                for thread in threads[-2:]:
                    thread.start()

    sockets, threads = [], []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=serve, args=(listener,), daemon=True)
        accepting.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", met
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join(10)
            for thread in threads:
                thread.join(10)
            for one in sockets:
                one.close()


class UploadsLeft(AssertionError):
    pass


class ServersTest(CliTest):

    def setUp(self):
        super().setUp()
        self.buckets = self.new_path("buckets")
        for name in CASES:
            shutil.copytree(tools.case_named(name).load_dir, self.buckets / "models" / "runs" / f"{name} +&é")

    @contextlib.contextmanager
    def server(self, *command):
        """Starts it; `{port}` in its words is a free one. Gives the endpoint."""
        port = free_port()
        log = self.root / "server.log"
        with log.open("wb") as file:
            process = subprocess.Popen([str(word).format(port=port) for word in command], stdout=file, stderr=file,
                                       cwd=self.root, env={**self.environment, "HOME": str(self.root)})
        try:
            endpoint = f"http://127.0.0.1:{port}"
            end = time.monotonic() + 60
            while True:
                self.assertIsNone(process.poll(), log.read_text())
                self.assertLess(time.monotonic(), end, log.read_text())
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    try:
                        urllib.request.urlopen(endpoint, timeout=5).close()
                    except urllib.error.HTTPError as error:
                        error.close()
                    break
                time.sleep(0.1)
            self.environment.update(object_server.environment(endpoint))
            yield endpoint
        finally:
            process.terminate()
            process.wait(20)

    def client(self, endpoint):
        client = boto3.client("s3", endpoint_url=endpoint, region_name=object_server.REGION,
                              aws_access_key_id=object_server.KEY, aws_secret_access_key=object_server.SECRET,
                              config=Config(s3={"addressing_style": "path"}))
        self.addCleanup(client.close)
        return client

    def outcome(self, command, source):
        place = self.new_path("place")
        place.mkdir()
        tool, *words = tools.filled(command, source, place / "out")
        done = self.tool(tool, *words)
        said = done.stdout.replace(str(source), "IN").replace(str(place), "PLACE")
        return (done.returncode, said), tree(place)

    def check(self):
        """Every case by every command, and what there is not."""
        for name in CASES:
            here = self.buckets / "models" / "runs" / f"{name} +&é"
            for command in CONVERSIONS + LOOKS:
                with self.subTest(case=name, command=command):
                    said, written = self.outcome(command, f"s3://models/runs/{here.name}")
                    local_said, local_written = self.outcome(command, here)
                    self.assertEqual(said, local_said)
                    self.assertTrue(written == local_written, set(written) ^ set(local_written))
        output = self.new_path()
        for url, status in (("s3://models/runs/none", 2), ("s3://nothing-there/runs", 4)):
            done = self.zero_to_fp32(url, output)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertFalse(output.exists())

    def stored(self, client, front):
        """path -> bytes of what lies below it."""
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="models", Prefix=front)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return {key.removeprefix(front): client.get_object(Bucket="models", Key=key)["Body"].read() for key in keys}

    def uploads(self, client):
        try:
            return client.list_multipart_uploads(Bucket="models").get("Uploads", [])
        except client.exceptions.NoSuchUpload:  # as rclone has it
            return []

    def written_here(self, command, source):
        (status, _), written = self.outcome(command, source)
        self.assertEqual(status, 0)
        return {path: data for path, data in written.items() if data is not None}

    def assert_written(self, client, folder, command, source, *options):
        tool, *words = tools.filled(command, source, f"s3://models/{folder}/out")
        done = self.tool(tool, *words, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(self.stored(client, f"{folder}/") == self.written_here(command, source), "other bytes")
        if uploads := self.uploads(client):
            raise UploadsLeft(uploads)
        return done

    def check_outputs(self, client, minds_conditions):
        """Every command, what is there already, and runs that do not end."""
        self.large = self.new_path("large")
        large_checkpoint.write(self.large, large_checkpoint.decoder(5_000_000), 3, 2)
        self.small = self.buckets / "models" / "runs" / f"{CASES[-1]} +&é"
        for number, (command, source) in enumerate([(command, self.small) for command in CONVERSIONS] +
                                                   [(command, self.large) for command in LARGE]):
            # rclone 1.75 fails where several files make new folders at the same time, sometimes six times in a row.
            one = ("--s3-requests", "1") if not minds_conditions and "to-universal" in command else ()
            with self.subTest(command=command, source=source.name):
                self.assert_written(client, f"outputs/{number} +&é", command, source, *one)
        self.check_replacing(client)
        self.check_lost_replies(client)
        self.check_somebody_else(client, minds_conditions)
        for number in (signal.SIGINT, signal.SIGKILL):
            with self.subTest(number):
                self.check_stopping(client, number)

    def check_replacing(self, client):
        sharded = [*CONVERSIONS[0], "--max-shard-size", "4KB"]
        self.assert_written(client, "again", sharded, self.small)
        before = self.stored(client, "again/")
        self.assertIn(f"out/{INDEX}", before)
        done = self.tool(*tools.filled(sharded, self.small, "s3://models/again/out"))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("exists already", done.stderr)
        self.assertTrue(self.stored(client, "again/") == before)
        # As on a disk, shards of other names stay.
        halves = [*sharded, "--dtype", "fp16"]
        done = self.tool(*tools.filled(halves, self.small, "s3://models/again/out"), "--force")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(self.stored(client, "again/") == {**before, **self.written_here(halves, self.small)})
        for dp, options in (("4", []), ("2", ["--force"])):
            self.assert_written(client, "resharded", ["reshard", "IN", "OUT", "--dp", dp], self.small, *options)

    def check_lost_replies(self, client):
        shard = "model-00001-of-00003.safetensors"
        kept = self.environment
        for number, (method, word) in enumerate((("POST", f"{shard}?uploads="), ("PUT", f"{shard}?partNumber="),
                                                 ("POST", f"{shard}?uploadId="), ("PUT", INDEX))):
            with self.subTest(lost=f"{method} {word}"), \
                    losing(kept["AWS_ENDPOINT_URL_S3"], method, word) as (endpoint, met):
                self.environment = {**kept, "AWS_ENDPOINT_URL_S3": endpoint}
                try:
                    self.assert_written(client, f"lost{number}", LARGE[-1], self.large)
                except UploadsLeft:
                    # The one that nobody was told of: to moto it is of 2010, and so not this run's.
                    upload, = self.uploads(client)
                    self.assertEqual((number, upload["Initiated"].year), (0, 2010))
                    client.abort_multipart_upload(Bucket="models", Key=upload["Key"], UploadId=upload["UploadId"])
                finally:
                    self.environment = kept
                self.assertEqual(len(met), 1)

    @contextlib.contextmanager
    def under_way(self, client, key):
        """A run that writes the object, slowly."""
        program = pathlib.Path(os.environ["DSCKPT_BIN"]) / "zero-to-fp32"
        url = f"s3://models/{key.rpartition('/')[0]}"
        process = subprocess.Popen([program, self.large, url, "--limit-rate", "8MB"],
                                   env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            end = time.monotonic() + 30
            while not any(upload["Key"] == key for upload in self.uploads(client)):
                self.assertIsNone(process.poll(), "has ended already")
                self.assertLess(time.monotonic(), end)
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.communicate()

    def check_somebody_else(self, client, minds_conditions):
        key = "both/pytorch_model.bin"
        with self.under_way(client, key) as process:
            client.put_object(Bucket="models", Key=key, Body=b"another's")
            _, said = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 2 if minds_conditions else 0, said)
        expected = {"pytorch_model.bin": b"another's"} if minds_conditions else self.written_here(
            ["zero-to-fp32", "IN", "OUT"], self.large)
        self.assertTrue(self.stored(client, "both/") == {path.removeprefix("out/"): data
                                                         for path, data in expected.items()})
        self.assertEqual(self.uploads(client), [])

    def check_stopping(self, client, number):
        key = f"stopped{number:d}/out/pytorch_model.bin"
        with self.under_way(client, key) as process:
            process.send_signal(number)
            process.communicate(timeout=60)
        left = self.stored(client, f"stopped{number:d}/")
        if number == signal.SIGINT:
            self.assertEqual((self.uploads(client), left), ([], {}))
            return
        self.assertEqual(len(self.uploads(client)), 1)
        marker, = left
        self.assertTrue(marker.startswith("out/.dsckpt-staging-"), marker)
        # To moto all uploads are of 2010, and so not that run's.
        upload, = self.uploads(client)
        is_dated = upload["Initiated"].year > 2010
        if not is_dated:
            client.abort_multipart_upload(Bucket="models", Key=key, UploadId=upload["UploadId"])
        done = self.assert_written(client, f"stopped{number:d}", ["zero-to-fp32", "IN", "OUT"], self.large)
        self.assertIn(f"{marker} and {is_dated:d} unfinished upload", done.stderr)

    def test_rclone(self):
        key = f"{object_server.KEY},{object_server.SECRET}"
        with self.server(PROGRAMS / "rclone", "serve", "s3", "--auth-key", key, "--addr", "127.0.0.1:{port}",
                         self.buckets) as endpoint:
            self.check()
            self.check_outputs(self.client(endpoint), minds_conditions=False)
            self.environment["AWS_SECRET_ACCESS_KEY"] = "ANOTHERSECRET999"
            done = self.zero_to_fp32(f"s3://models/runs/{CASES[1]} +&é", self.new_path())
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("403", done.stderr)
            self.assertNotIn("999", done.stderr)

    def test_moto(self):
        with self.server(PROGRAMS / "moto_server", "-H", "127.0.0.1", "-p", "{port}") as endpoint:
            client = self.client(endpoint)
            client.create_bucket(Bucket="models",
                                 CreateBucketConfiguration={"LocationConstraint": object_server.REGION})
            for path in self.buckets.rglob("*"):
                if path.is_file():
                    client.put_object(Bucket="models", Key=str(path.relative_to(self.buckets / "models")),
                                      Body=path.read_bytes())
            self.check()
            self.check_outputs(client, minds_conditions=True)
            self.check_web_identity(endpoint)

    def check_web_identity(self, endpoint):
        """Keys of moto's token service, by the same endpoint."""
        token = self.new_path("token")
        token.write_text("eyJ.a.token")
        known = {name: value for name, value in self.environment.items() if not name.startswith("AWS_")}
        done = self.tool("ckpt-inspect", "verify", f"s3://models/runs/{CASES[0]} +&é", env={
            **known, "HOME": str(self.root), "AWS_ENDPOINT_URL": endpoint, "AWS_REGION": object_server.REGION,
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/reads"})
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    cli_common.main()
