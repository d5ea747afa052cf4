"""s3:// against two servers that others have written: rclone's, which checks signatures, answers ranges with 200 and
knows no conditions, and moto's, which checks no signatures and honours conditions.
"""
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import boto3
import common
import object_server
from botocore.config import Config

sys.path[:0] = [str(pathlib.Path(os.environ["DSCKPT_SOURCE"]) / "tests" / "cli")]

import cli_common
from cli_common import CliTest, tree

CASES = ["z0_fp16_w2", "z2_fp32_full_w3", "z3_fp32_full_w2", "pp2_tp2_dp2_z1_fp32", "hf_trainer_llama_z3_bf16_w2"]
# Each with IN for the input and OUT for the output.
CONVERSIONS = [["zero-to-fp32", "IN", "OUT", "--safe-serialization"], ["to-universal", "IN", "OUT"],
               ["reshard", "IN", "OUT", "--dp", "2"], ["to-dcp", "IN", "OUT", "--dp", "2"],
               ["ckpt-pack", "pack", "IN", "OUT"]]
LOOKS = [["ckpt-inspect", command, "IN"] for command in ("list", "verify", "stats", "scan")]
PROGRAMS = pathlib.Path(sys.executable).parent

setUpModule = common.skip_without_object_stores


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ServersTest(CliTest):

    def setUp(self):
        super().setUp()
        self.buckets = self.new_path("buckets")
        for name in CASES:
            shutil.copytree(common.case_named(name).load_dir, self.buckets / "models" / "runs" / f"{name} +&é")

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
        tool, *words = common.filled(command, source, place / "out")
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

    def test_rclone(self):
        with self.server(PROGRAMS / "rclone", "serve", "s3", "--auth-key",
                         f"{object_server.KEY},{object_server.SECRET}", "--addr", "127.0.0.1:{port}", self.buckets):
            self.check()
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


if __name__ == "__main__":
    cli_common.main()
