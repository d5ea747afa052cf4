"""Tests object_server.py with an independent client, botocore's: the store's tests depend on it."""
import hashlib
import pathlib
import random
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import boto3
import botocore.exceptions
from botocore.config import Config
from botocore.credentials import InstanceMetadataProvider
from botocore.utils import ContainerMetadataFetcher, InstanceMetadataFetcher

import object_server
from object_server import CredentialEndpoints, Store, serving

KEYS = ["a/one", "a/two", "b", "b c+d&é%20'(1)=~", "b/x<y>", "ü/" + "k" * 100]


class ObjectServerTest(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="object-server-")
        self.addCleanup(holder.cleanup)
        self.root = pathlib.Path(holder.name)
        self.data = random.Random(1).randbytes(3 << 20)
        for key in KEYS:
            path = self.root / "models" / key
            if key != "b":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.data)

    def client(self, endpoint, secret=object_server.SECRET, region=object_server.REGION, token=None):
        client = boto3.client("s3", endpoint_url=endpoint, region_name=region, aws_access_key_id=object_server.KEY,
                            aws_secret_access_key=secret, aws_session_token=token,
                            config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 0}, read_timeout=2))
        self.addCleanup(client.close)
        return client

    def assert_error(self, code, call, **arguments):
        with self.assertRaises(botocore.exceptions.ClientError) as caught:
            call(Bucket="models", **arguments)
        self.assertEqual(caught.exception.response["Error"]["Code"], code)

    def test_listings(self):
        keys = sorted(key for key in KEYS if key != "b")
        for page in (1, 2, 1000):
            with self.subTest(page), serving(Store(self.root, page=page)) as endpoint:
                client = self.client(endpoint)
                pages = list(client.get_paginator("list_objects_v2").paginate(Bucket="models"))
                found = [entry for each in pages for entry in each.get("Contents", [])]
                self.assertEqual([entry["Key"] for entry in found], keys)
                self.assertEqual({entry["Size"] for entry in found}, {len(self.data)})
                pages = list(client.get_paginator("list_objects_v2").paginate(Bucket="models", Delimiter="/"))
                self.assertEqual([entry["Prefix"] for each in pages for entry in each.get("CommonPrefixes", [])],
                                 ["a/", "b/", "ü/"])
                only = client.list_objects_v2(Bucket="models", Prefix="a/t")["Contents"]
                self.assertEqual([entry["Key"] for entry in only], ["a/two"])

    def test_objects(self):
        with serving(Store(self.root)) as endpoint:
            client = self.client(endpoint, token=object_server.TOKEN)
            for key in KEYS:
                if key == "b":
                    continue
                head = client.head_object(Bucket="models", Key=key)
                self.assertEqual(head["ContentLength"], len(self.data))
                got = client.get_object(Bucket="models", Key=key, Range="bytes=1000-1999", IfMatch=head["ETag"])
                self.assertEqual(got["Body"].read(), self.data[1000:2000])
                self.assertEqual(got["ContentRange"], f"bytes 1000-1999/{len(self.data)}")
                self.assertEqual(got["ResponseMetadata"]["HTTPStatusCode"], 206)
            self.assertEqual(client.get_object(Bucket="models", Key="a/one", Range="bytes=-7")["Body"].read(),
                             self.data[-7:])
            self.assertEqual(client.get_object(Bucket="models", Key="a/one")["Body"].read(), self.data)
            self.assert_error("PreconditionFailed", client.get_object, Key="a/one", IfMatch='"another"')
            self.assert_error("NoSuchKey", client.get_object, Key="none")
            self.assert_error("InvalidRange", client.get_object, Key="a/one", Range="bytes=99999999-")

    def test_signatures(self):
        with serving(Store(self.root)) as endpoint:
            for code, arguments in (("SignatureDoesNotMatch", {"secret": "another"}), ("InvalidToken", {"token": "x"}),
                                    ("AuthorizationHeaderMalformed", {"region": "us-east-1"})):
                self.assert_error(code, self.client(endpoint, **arguments).list_objects_v2)
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{endpoint}/models/a/one")
            self.assertEqual(caught.exception.code, 403)
            caught.exception.close()
        with serving(Store(self.root, signed=False)) as endpoint:
            with urllib.request.urlopen(f"{endpoint}/models/a/one") as reply:
                self.assertEqual(reply.read(), self.data)

    def test_faults(self):
        store = Store(self.root, stall_seconds=4)
        with serving(store) as endpoint:
            client = self.client(endpoint)

            def get():
                return client.get_object(Bucket="models", Key="a/one", Range="bytes=0-99999")["Body"].read()

            for fault in (500, 503, 429, 403, 412, "drop", "reset", "cut", "stall"):
                with self.subTest(fault):
                    store.fault = lambda number, path, fault=fault: fault
                    with self.assertRaises((botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)):
                        get()
            store.fault = lambda number, path: "longer"
            self.assertEqual(get(), self.data[:100000] + b"more")
            store.fault = lambda number, path: "shorter"
            self.assertEqual(get(), self.data[:99999])
            etag = client.head_object(Bucket="models", Key="a/one")["ETag"]
            store.fault = lambda number, path: "changed" if number % 2 else None
            store.requests.clear()
            self.assert_error("PreconditionFailed", client.get_object, Key="a/one", IfMatch=etag)
            store.fault = lambda number, path: None
            self.assertEqual(get(), bytes(byte ^ 0x55 for byte in self.data[:100000]))

    def test_delay_rate_and_counts(self):
        store = Store(self.root, delay=0.2, rate=3 << 20)
        with serving(store) as endpoint:
            begin = time.monotonic()
            body = self.client(endpoint).get_object(Bucket="models", Key="a/one")["Body"].read()
            self.assertEqual(hashlib.sha256(body).digest(), hashlib.sha256(self.data).digest())
            self.assertGreater(time.monotonic() - begin, 1.15)
        self.assertEqual((len(store.requests), store.sent, store.most_at_once), (1, len(self.data), 1))

    def test_credential_endpoints(self):
        endpoints = CredentialEndpoints()
        with serving(endpoints) as url:
            found = ContainerMetadataFetcher().retrieve_full_uri(f"{url}/container",
                                                                 {"Authorization": endpoints.authorization})
            self.assertEqual(found["SecretAccessKey"], object_server.SECRET)
            provider = InstanceMetadataProvider(InstanceMetadataFetcher(timeout=5, num_attempts=1, base_url=url))
            loaded = provider.load().get_frozen_credentials()
            self.assertEqual((loaded.access_key, loaded.secret_key, loaded.token),
                             (object_server.KEY, object_server.SECRET, object_server.TOKEN))
        self.assertEqual({status for _, _, status in endpoints.asked}, {200})


if __name__ == "__main__":
    unittest.main()
