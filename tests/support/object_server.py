"""A small object store on the loopback: what of S3's protocol reads, with signatures checked, and faults.

Written from Amazon's documents: "ListObjectsV2", "GetObject", and "Signature Version 4 signing process". Objects are
the files of a folder, whose first level are the buckets.
"""
import contextlib
import hashlib
import hmac
import http.server
import pathlib
import threading
import time
import urllib.parse
from xml.sax.saxutils import escape

KEY, SECRET, TOKEN, REGION = "ACCESSKEY123", "SECRETKEY123456", "SESSION/TOKEN+123", "eu-central-1"


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Store:
    """What a server has, and what it is to do. `fault(request number, path)` returns None, a status, or a word:
    "drop" (nothing comes), "cut" (half of the body), "stall" (half of it, and then nothing for a while),
    "longer", "shorter" and "shifted" (bodies of other lengths, or of other bytes, that look complete)."""

    def __init__(self, root, signed=True, page=1000, fault=None, answers_200=False, minds_match=True):
        self.root = pathlib.Path(root)
        self.signed, self.page, self.fault = signed, page, fault or (lambda number, path: None)
        self.answers_200, self.minds_match = answers_200, minds_match
        self.lock = threading.Lock()
        self.requests = []  # (method, path, range)
        self.sent = 0  # bytes of objects
        self.at_once = self.most_at_once = 0
        self.delay = 0.0

    def etag(self, path):
        stat = path.stat()
        return hashlib.md5(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store = None

    def log_message(self, *arguments):
        pass

    def problem(self, status, code, message="as asked", **headers):
        self.answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode(), **headers)

    def answer(self, status, body, length=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def is_signed(self, url):
        """Whether the Authorization is the one of the canonical request."""
        given = self.headers.get("Authorization", "")
        if not given.startswith("AWS4-HMAC-SHA256 "):
            return False
        parts = dict(item.strip().split("=", 1) for item in given.split(" ", 1)[1].split(","))
        names = parts["SignedHeaders"].split(";")
        if "host" not in names or (self.headers.get("x-amz-security-token") or TOKEN) != TOKEN:
            return False
        headers = "".join(f"{name}:{' '.join(self.headers.get(name, '').split())}\n" for name in names)
        query = "&".join(sorted(f"{urllib.parse.quote(k, safe='-_.~')}={urllib.parse.quote(v, safe='-_.~')}"
                                for k, v in urllib.parse.parse_qsl(url.query, keep_blank_values=True)))
        canonical = "\n".join([self.command, urllib.parse.quote(urllib.parse.unquote(url.path), safe="/-_.~"), query,
                               headers, parts["SignedHeaders"], self.headers.get("x-amz-content-sha256", "")])
        key, day, region, service, end = parts["Credential"].split("/")
        stamp = self.headers["x-amz-date"]
        scope = f"{day}/{region}/{service}/{end}"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        secret = _hmac(_hmac(_hmac(_hmac(b"AWS4" + SECRET.encode(), day), region), service), end)
        signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
        return (key, region, service) == (KEY, REGION, "s3") and signature == parts["Signature"]

    def do_GET(self):
        store = self.store
        with store.lock:
            store.requests.append((self.command, self.path, self.headers.get("Range")))
            number = len(store.requests)
            store.at_once += 1
            store.most_at_once = max(store.most_at_once, store.at_once)
        try:
            if store.delay:
                time.sleep(store.delay)
            self.serve(number)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with store.lock:
                store.at_once -= 1

    def serve(self, number):
        store = self.store
        url = urllib.parse.urlsplit(self.path)
        fault = store.fault(number, urllib.parse.unquote(url.path))
        if fault == "drop":
            self.close_connection = True
            return None
        if isinstance(fault, int):
            return self.problem(fault, "SlowDown")
        if store.signed and not self.is_signed(url):
            return self.problem(403, "SignatureDoesNotMatch", "another signature was expected")
        _, bucket, *rest = urllib.parse.unquote(url.path).split("/", 2)
        key = rest[0] if rest else ""
        if not bucket or not (store.root / bucket).is_dir():
            return self.problem(404, "NoSuchBucket")
        if not key:
            return self.list(bucket, dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True)))
        path = store.root / bucket / key
        if not path.is_file():
            return self.problem(404, "NoSuchKey")
        return self.get(path, fault)

    def list(self, bucket, query):
        store = self.store
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found = store.root / bucket
        keys = sorted(str(path.relative_to(found)) for path in found.rglob("*") if path.is_file())
        entries = []  # keys, and what they begin with
        for key in keys:
            if key.startswith(prefix):
                end = key.find(delimiter, len(prefix)) if delimiter else -1
                entry = (key[:end + 1], True) if end >= 0 else (key, False)
                if entry not in entries[-1:]:
                    entries.append(entry)
        begin = int(query.get("continuation-token", "token/0+").strip("token/+"))
        size = min(store.page, int(query.get("max-keys", "1000")))
        shown = entries[begin:begin + size]
        encoded = query.get("encoding-type") == "url"

        def text(key):
            return urllib.parse.quote_plus(key, safe="/") if encoded else escape(key)

        body = "<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
        if encoded:
            body += "<EncodingType>url</EncodingType>"
        more = begin + size < len(entries)
        body += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        if more:
            body += f"<NextContinuationToken>token/{begin + size}+</NextContinuationToken>"
        for key, is_prefix in shown:
            if is_prefix:
                body += f"<CommonPrefixes><Prefix>{text(key)}</Prefix></CommonPrefixes>"
                continue
            stat = (found / key).stat()
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
            body += (f"<Contents><Key>{text(key)}</Key><LastModified>{when}</LastModified>"
                     f"<ETag>&quot;{store.etag(found / key)}&quot;</ETag><Size>{stat.st_size}</Size></Contents>")
        self.answer(200, (body + "</ListBucketResult>").encode(), Content_Type="application/xml")

    def get(self, path, fault):
        store = self.store
        etag, size = store.etag(path), path.stat().st_size
        match = self.headers.get("If-Match")
        if store.minds_match and match is not None and match.strip('"') != etag:
            return self.problem(412, "PreconditionFailed")
        begin, end = 0, size - 1
        if (wanted := self.headers.get("Range")) is not None:
            begin, end = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
            if begin >= size:
                return self.problem(416, "InvalidRange")
            end = min(end, size - 1)
        with path.open("rb") as file:
            file.seek(begin)
            body = file.read(end + 1 - begin)
        with store.lock:
            store.sent += len(body)
        headers = {"ETag": f'"{etag}"'}
        if not store.answers_200:
            headers["Content_Range"] = f"bytes {begin}-{end}/{size}"
        status = 200 if store.answers_200 else 206
        if fault in ("cut", "stall"):
            self.answer(status, body[:len(body) // 2], len(body), **headers)
            self.wfile.flush()
            if fault == "stall":
                time.sleep(60)
            self.close_connection = True
            return None
        if fault == "longer":
            body += b"more"
        elif fault == "shorter":
            body = body[:-1]
        elif fault == "shifted":
            headers["Content_Range"] = f"bytes {begin + 1}-{end + 1}/{size}"
        return self.answer(status, body, **headers)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        pass


@contextlib.contextmanager
def serving(store):
    """Gives the endpoint's URL; the server stops at the end of the block."""
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(endpoint, **more):
    """Variables for a program that is to read from it, and from nowhere else."""
    return {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION, "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "AWS_EC2_METADATA_DISABLED": "true", "no_proxy": "127.0.0.1", **more}
