"""A small object store on the loopback: the reading and writing parts of S3's protocol, with checks of signatures and
checksums, and with faults. Also the endpoints that give containers and instances their credentials.

Written from Amazon's documents: "ListObjectsV2", "GetObject", "HeadObject", "PutObject",
"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload" and "AbortMultipartUpload". Also
"ListMultipartUploads", "DeleteObject", "Signature Version 4 signing process", "Container credential provider"
and "Use the Instance Metadata Service" (version 2). Objects are the files of a folder, whose first level has
the buckets.
"""
import asyncio
import base64
import contextlib
import datetime
import email.utils
import hashlib
import hmac
import json
import os
import pathlib
import re
import socket
import struct
import threading
import urllib.parse
import xml.etree.ElementTree
from xml.sax.saxutils import escape

KEY, SECRET, TOKEN, REGION = "ACCESSKEY123", "SECRETKEY123456", "SESSION/TOKEN+123", "eu-central-1"
_CHUNK = 128 << 10
_UNRESERVED = "-_.~"
_PAGE = b"<!DOCTYPE html><html><body>Please log in<br></body></html>"
_REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 400: "Bad Request", 401: "Unauthorized",
            403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict", 412: "Precondition Failed",
            416: "Range Not Satisfiable", 429: "Too Many Requests", 500: "Internal Server Error",
            503: "Service Unavailable"}


class Store:
    """The content of a server, and its behaviour.

    `fault(request number, path)` returns None, a status, or a word:
    * "drop": nothing comes. "reset": half of the body, and a reset. "cut": half of it, and an end. "stall": half of
      it, and nothing for `stall_seconds`. "delay": it comes a second later.
    * "changed": from now on there is another object.
    * Replies that look complete: "longer", "shorter" and "shifted" (bodies of other lengths, or with another stated
      range), and "other bytes" (under the same ETag).
    * For a listing or an error, "reset" and "stall" act like "cut", and the others have no effect.

    For writes:
    * "lost": it is done, but no reply comes.
    * "error in 200": a completion is not done, and the successful reply has an error in it. "done, error in 200": it
      is done, with such a reply.
    * 409: it is not done, and the upload is gone.
    * For requests with a body, "reset" and "stall" take half of it, and do nothing.
    * "wrong form": it is done, and the successful reply has a page for people, also for listings; a HEAD's reply is
      empty.

    `minds_match`: whether conditions of reads and writes are honoured.

    `delay`: seconds before each reply. `rate`: bytes a second for each connection.

    `buckets_in_hosts`: "BUCKET.HOST" serves the bucket too.
    """

    def __init__(self, root, signed=True, page=1000, fault=None, answers_200=False, minds_match=True, delay=0.0,
                 rate=0, stall_seconds=60):
        self.root = pathlib.Path(root)
        self.signed, self.page, self.fault = signed, page, fault or (lambda number, path: None)
        self.answers_200, self.minds_match = answers_200, minds_match
        self.delay, self.rate, self.stall_seconds = delay, rate, stall_seconds
        self.buckets_in_hosts, self.hosts = False, set()
        self.lock = threading.Lock()
        self.requests = []  # (method, path, range)
        self.sent = 0  # bytes of objects that were sent
        self.at_once = self.most_at_once = 0
        self.changes = {}  # path -> number of times it became another object
        self.writes = []  # (method, path) of completed writes, in order
        self.received = 0  # bytes of objects and parts
        self.uploads = {}  # id -> Upload
        self.runs = {}  # path -> x-amz-meta-dsckpt-run
        self.smallest_part = 5 << 20  # of all parts but the last

    def etag(self, path):
        stat = path.stat()
        changes = self.changes.get(path, 0)
        version = hashlib.md5(f"{path} {stat.st_size} {stat.st_mtime_ns} {changes}".encode()).hexdigest()
        return f"{version}-1"  # as after an upload in parts: not the digest of the content


class Upload:
    count = 0

    def __init__(self, key_path, name, run):
        Upload.count += 1
        self.id = f"upload+{Upload.count}/="
        self.path, self.name, self.run = key_path, name, run
        self.begun = datetime.datetime.now(datetime.timezone.utc)
        self.parts = {}  # number -> (MD5, bytes)


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _signature(secret, day, region, service, text):
    key = _hmac(_hmac(_hmac(_hmac(b"AWS4" + secret.encode(), day), region), service), "aws4_request")
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _error(status, code):
    return status, f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>", {}


class _Request:

    def __init__(self, head):
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = {}
        for line in filter(None, lines):
            name, value = line.split(":", 1)
            self.headers[name.strip().lower()] = value.strip()
        self.path, _, self.query_text = self.target.partition("?")
        self.query = dict(urllib.parse.parse_qsl(self.query_text, keep_blank_values=True))

    def problem_with_signature(self):
        """The code of an error, or None if the Authorization fits the canonical request."""
        given = self.headers.get("authorization", "")
        if not given:
            return "AccessDenied"
        found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^,]+),\s*SignedHeaders=([^,]+),\s*"
                             r"Signature=([0-9a-f]{64})", given)
        if not found:
            return "AuthorizationHeaderMalformed"
        credential, signed, signature = found.groups()
        key, day, region, service, end = credential.rsplit("/", 4)
        stamp = self.headers.get("x-amz-date", "")
        names = signed.split(";")
        # A request must sign its host, and every header of Amazon's own.
        must = {"host", *(name for name in self.headers if name.startswith("x-amz-"))}
        if names != sorted(names) or not must <= set(names) or not stamp.startswith(day) or end != "aws4_request":
            return "AuthorizationHeaderMalformed"
        if key != KEY:
            return "InvalidAccessKeyId"
        if self.headers.get("x-amz-security-token", TOKEN) != TOKEN:
            return "InvalidToken"
        if (region, service) != (REGION, "s3"):
            return "AuthorizationHeaderMalformed"
        at = datetime.datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs((datetime.datetime.now(datetime.timezone.utc) - at).total_seconds()) > 900:
            return "RequestTimeTooSkewed"
        payload = self.headers.get("x-amz-content-sha256")
        if payload not in ("UNSIGNED-PAYLOAD", hashlib.sha256(b"").hexdigest()):
            return "XAmzContentSHA256Mismatch"
        pairs = sorted((urllib.parse.quote(name, safe=_UNRESERVED), urllib.parse.quote(value, safe=_UNRESERVED))
                       for name, value in urllib.parse.parse_qsl(self.query_text, keep_blank_values=True))
        canonical = "\n".join([
            self.method,
            urllib.parse.quote(urllib.parse.unquote(self.path), safe="/" + _UNRESERVED),  # S3: encoded once
            "&".join(f"{name}={value}" for name, value in pairs),
            *(f"{name}:{' '.join(self.headers.get(name, '').split())}" for name in names),
            "", signed, payload])
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, f"{day}/{region}/{service}/{end}",
                          hashlib.sha256(canonical.encode()).hexdigest()])
        wanted = _signature(SECRET, day, region, service, text)
        return None if hmac.compare_digest(wanted, signature) else "SignatureDoesNotMatch"


class _Connection:

    def __init__(self, store, reader, writer):
        self.store, self.reader, self.writer = store, reader, writer

    async def run(self):
        store = self.store
        # RuntimeError: sendfile() to a client that has disconnected.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError, RuntimeError):
            while True:
                request = _Request((await self.reader.readuntil(b"\r\n\r\n"))[:-4])
                with store.lock:
                    store.requests.append((request.method, request.target, request.headers.get("range")))
                    number = len(store.requests)
                fault = store.fault(number, urllib.parse.unquote(request.path))
                request.body = await self.body_of(request, fault)
                if request.body is None:
                    break
                with store.lock:
                    store.at_once += 1
                    store.most_at_once = max(store.most_at_once, store.at_once)
                try:
                    if store.delay:
                        await asyncio.sleep(store.delay)
                    goes_on = await self.serve(request, fault)
                finally:
                    with store.lock:
                        store.at_once -= 1
                if not goes_on:
                    break

    async def body_of(self, request, fault):
        """Returns None unless the whole body is taken."""
        size = int(request.headers.get("content-length", "0"))
        if size and fault in ("reset", "stall"):
            await self.reader.readexactly(size // 2)
            if fault == "reset":
                self.reset()
            else:
                await asyncio.sleep(self.store.stall_seconds)
            return None
        rate = self.store.rate
        if not rate or size <= _CHUNK:
            return await self.reader.readexactly(size)
        loop, chunks, begun = asyncio.get_running_loop(), [], asyncio.get_running_loop().time()
        for at in range(0, size, _CHUNK):
            chunks.append(await self.reader.readexactly(min(_CHUNK, size - at)))
            await asyncio.sleep(max(0.0, begun + at / rate - loop.time()))
        return b"".join(chunks)

    async def head(self, status, length, headers):
        """`length`: None for a body in chunks."""
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        lines = [f"HTTP/1.1 {status} {_REASONS[status]}", framing,
                 *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode())
        await self.writer.drain()

    def reset(self):
        at_once = struct.pack("ii", 1, 0)
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)

    async def answer(self, request, status, body, fault=None, **headers):
        if fault == "wrong form":
            status, body, headers = 200, _PAGE, {"Content-Type": "text/html"}
        if fault == "cut" and not body:
            self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
            await self.writer.drain()
            return False
        await self.head(status, len(body), headers)
        if request.method != "HEAD":
            is_cut = fault in ("cut", "reset", "stall")
            self.writer.write(body[:len(body) // 2] if is_cut else body)
            await self.writer.drain()
            return not is_cut
        return True

    async def problem(self, request, status, code, fault=None, **headers):
        body = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()
        return await self.answer(request, status, body, fault, **headers)

    async def serve(self, request, fault):
        """Returns whether the connection stays open."""
        store = self.store
        path = urllib.parse.unquote(request.path)
        if fault == "drop":
            return False
        if fault == "delay":
            await asyncio.sleep(1)
        if isinstance(fault, int) and fault != 409:
            code = {400: "RequestTimeout", 403: "AccessDenied", 404: "NoSuchKey",
                    412: "PreconditionFailed"}.get(fault, "SlowDown")
            return await self.problem(request, fault, code)
        if store.signed and (code := request.problem_with_signature()):
            return await self.problem(request, 400 if code == "AuthorizationHeaderMalformed" else 403, code, fault,
                                      **({"x-amz-bucket-region": REGION} if code.endswith("Malformed") else {}))
        host = request.headers.get("host", "")
        store.hosts.add(host)
        if store.buckets_in_hosts and not host.startswith(("127.", "localhost")):
            path = f"/{host.partition('.')[0]}{path}"
        bucket, _, key = path[1:].partition("/")
        if not bucket or ".." in path.split("/") or not (store.root / bucket).is_dir():
            return await self.problem(request, 404, "NoSuchBucket", fault)
        file = store.root / bucket / key
        if request.method in ("PUT", "POST", "DELETE"):
            status, text, headers = self.write(request, file, f"/{bucket}/{key}", fault)
            if fault == "lost":
                return False
            return await self.answer(request, status, text.encode(), fault, **headers)
        if not key and "uploads" in request.query:
            return await self.answer(request, 200, self.list_of_uploads(bucket, request.query), fault)
        if not key:
            return await self.answer(request, 200, self.listing(bucket, request.query), fault,
                                     **{"Content-Type": "application/xml"})
        if not file.is_file():
            return await self.problem(request, 404, "NoSuchKey", fault)
        if fault == "wrong form" and request.method == "HEAD":
            return await self.answer(request, 200, b"", fault)
        if fault == "changed":
            store.changes[file] = store.changes.get(file, 0) + 1
        return await self.get(request, file, fault)

    def refusal(self, request, file):
        """The refusal of a condition, or None."""
        if not self.store.minds_match:
            return None
        etag = f'"{self.store.etag(file)}"' if file.is_file() else None
        if request.headers.get("if-none-match") == "*" and etag:
            return _error(412, "PreconditionFailed")
        match = request.headers.get("if-match")
        if match and etag is None:
            return _error(404, "NoSuchKey")
        return _error(412, "PreconditionFailed") if match and match != etag else None

    def make(self, file, parts, run):
        file.parent.mkdir(parents=True, exist_ok=True)
        made = file.with_name(f".{file.name}.made")
        with made.open("wb") as stream:
            stream.writelines(parts)
        made.replace(file)
        self.store.runs[file] = run
        self.store.changes[file] = self.store.changes.get(file, 0) + 2  # another ETag, the same bytes

    def write(self, request, file, name, fault):
        """status, text, headers"""
        store, query = self.store, request.query
        digest = request.headers.get("content-md5")
        found = hashlib.md5(request.body)
        if digest and base64.b64decode(digest) != found.digest():
            return _error(400, "BadDigest")
        if request.method == "PUT" and not digest:
            return _error(400, "InvalidDigest")
        with store.lock:
            store.writes.append((request.method, request.target))
            store.received += len(request.body) if request.method == "PUT" else 0
        run = request.headers.get("x-amz-meta-dsckpt-run")
        if request.method == "POST" and "uploads" in query:
            upload = Upload(file, name, run)
            store.uploads[upload.id] = upload
            return 200, (f"<InitiateMultipartUploadResult><UploadId>{escape(upload.id)}</UploadId>"
                         "</InitiateMultipartUploadResult>"), {}
        upload = store.uploads.get(query.get("uploadId"))
        if "uploadId" in query and (upload is None or upload.path != file):
            return _error(404, "NoSuchUpload")
        if request.method == "DELETE" and upload:
            del store.uploads[upload.id]
            return 204, "", {}
        if request.method == "DELETE":
            file.unlink(missing_ok=True)
            return 204, "", {}
        if request.method == "PUT" and upload:
            upload.parts[int(query["partNumber"])] = found.hexdigest(), request.body
            return 200, "", {"ETag": f'"{found.hexdigest()}"'}
        if fault == "error in 200" and upload:
            return 200, "<?xml version='1.0'?>\n  <Error><Code>InternalError</Code></Error>", {}
        if problem := self.refusal(request, file):
            return problem
        if fault == 409:
            store.uploads.pop(query.get("uploadId"), None)
            return _error(409, "ConditionalRequestConflict")
        if request.method == "PUT":
            self.make(file, [request.body], run)
            return 200, "", {"ETag": f'"{store.etag(file)}"'}
        if problem := self.check_parts(upload, request.body):
            return problem
        self.make(file, (data for _, (_, data) in sorted(upload.parts.items())), upload.run)
        del store.uploads[upload.id]
        if fault == "done, error in 200":
            return 200, "<Error><Code>InternalError</Code></Error>", {}
        return 200, (f"<CompleteMultipartUploadResult><ETag>&quot;{store.etag(file)}&quot;</ETag>"
                     "</CompleteMultipartUploadResult>"), {}

    def check_parts(self, upload, body):
        given = []
        for part in xml.etree.ElementTree.fromstring(body):
            fields = {field.tag.rpartition("}")[2]: field.text for field in part}
            given.append((int(fields["PartNumber"]), fields["ETag"].strip('"')))
        there = [(number, digest) for number, (digest, _) in sorted(upload.parts.items())]
        if given != there or not there or there[-1][0] > 10000:
            return _error(400, "InvalidPart")
        if any(len(upload.parts[number][1]) < self.store.smallest_part for number, _ in there[:-1]):
            return _error(400, "EntityTooSmall")
        return None

    def list_of_uploads(self, bucket, query):
        known = sorted((upload.name.partition(f"/{bucket}/")[2], upload.id, upload.begun)
                       for upload in self.store.uploads.values() if upload.name.startswith(f"/{bucket}/"))
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        rest = [one for one in known if one[0].startswith(query.get("prefix", "")) and one[:2] > after]
        page = rest[:min(self.store.page, int(query.get("max-uploads", "1000")))]

        def text(key):
            return urllib.parse.quote_plus(key, safe="/") if query.get("encoding-type") == "url" else escape(key)

        parts = ["<ListMultipartUploadsResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>",
                 "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else "",
                 f"<IsTruncated>{str(len(rest) > len(page)).lower()}</IsTruncated>"]
        if page:
            parts.append(f"<NextKeyMarker>{text(page[-1][0])}</NextKeyMarker>"
                         f"<NextUploadIdMarker>{escape(page[-1][1])}</NextUploadIdMarker>")
        parts += [f"<Upload><Key>{text(key)}</Key><UploadId>{escape(upload)}</UploadId>"
                  f"<Initiated>{begun:%Y-%m-%dT%H:%M:%S}.000Z</Initiated></Upload>" for key, upload, begun in page]
        return "".join([*parts, "</ListMultipartUploadsResult>"]).encode()

    def listing(self, bucket, query):
        store = self.store
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        top = store.root / bucket
        keys = []
        for folder, _, names in os.walk(top / prefix.rpartition("/")[0]):
            keys += [os.path.relpath(os.path.join(folder, name), top) for name in names]
        entries = {}  # keys, or their beginnings: whether it is a beginning
        for key in sorted(keys, key=os.fsencode):
            if key.startswith(prefix):
                end = key.find(delimiter, len(prefix)) if delimiter else -1
                entries[key if end < 0 else key[:end + len(delimiter)]] = end >= 0
        after = urllib.parse.unquote(query.get("continuation-token", "")[len("token/+"):])
        rest = [entry for entry in entries.items() if entry[0] > after]
        size = min(store.page, int(query.get("max-keys", "1000")))
        encoded = query.get("encoding-type") == "url"

        def text(key):
            return urllib.parse.quote_plus(key, safe="/") if encoded else escape(key)

        parts = ["<?xml version='1.0' encoding='UTF-8'?>",
                 "<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>",
                 f"<Name>{bucket}</Name><Prefix>{text(prefix)}</Prefix><MaxKeys>{size}</MaxKeys>",
                 "<EncodingType>url</EncodingType>" if encoded else "",
                 f"<KeyCount>{len(rest[:size])}</KeyCount><IsTruncated>{str(len(rest) > size).lower()}</IsTruncated>"]
        if len(rest) > size:
            token = "token/+" + urllib.parse.quote(rest[size - 1][0])
            parts.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
        for key, is_prefix in rest[:size]:
            if is_prefix:
                parts.append(f"<CommonPrefixes><Prefix>{text(key)}</Prefix></CommonPrefixes>")
                continue
            stat = (top / key).stat()
            when = datetime.datetime.fromtimestamp(int(stat.st_mtime), datetime.timezone.utc)
            parts.append(f"<Contents><Key>{text(key)}</Key><LastModified>{when:%Y-%m-%dT%H:%M:%S}.000Z</LastModified>"
                         f"<ETag>&quot;{store.etag(top / key)}&quot;</ETag><Size>{stat.st_size}</Size>"
                         "<StorageClass>STANDARD</StorageClass></Contents>")
        return "".join([*parts, "</ListBucketResult>"]).encode()

    async def get(self, request, path, fault):
        store = self.store
        etag, size = store.etag(path), path.stat().st_size
        match = request.headers.get("if-match")
        if store.minds_match and match not in (None, "*", f'"{etag}"'):
            return await self.problem(request, 412, "PreconditionFailed")
        begin, end = 0, size
        found = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if found:
            first, last = found.groups()
            begin = int(first) if first else max(0, size - int(last))
            end = min(int(last) + 1, size) if first and last else size
            if begin >= size or begin >= end:
                return await self.problem(request, 416, "InvalidRange", **{"Content-Range": f"bytes */{size}"})
        run = {"x-amz-meta-dsckpt-run": store.runs[path]} if store.runs.get(path) else {}
        modified = email.utils.formatdate(int(path.stat().st_mtime), usegmt=True)
        headers = {**run, "ETag": f'"{etag}"', "Accept-Ranges": "bytes", "Content-Type": "binary/octet-stream",
                   "Last-Modified": modified}
        is_ranged = found and not store.answers_200
        if is_ranged:
            shift = 1 if fault == "shifted" else 0
            headers["Content-Range"] = f"bytes {begin + shift}-{end - 1 + shift}/{size}"
        more = b"more" if fault == "longer" else b""
        if fault == "shorter" and end > begin:
            end -= 1
        is_chunked = fault == "trailers" and request.method == "GET"
        await self.head(206 if is_ranged else 200, None if is_chunked else end - begin + len(more), headers)
        if request.method == "HEAD":
            return True
        if is_chunked:
            self.writer.write(b"%x\r\n" % (end - begin))
            more = (b"\r\n0\r\nETag: \"another\"\r\nContent-Range: bytes 1-2/3\r\nContent-Length: 1\r\n"
                    b"Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n")
        stop = begin + (end - begin) // 2 if fault in ("cut", "stall", "reset") else end
        await self.body(path, begin, stop, fault == "other bytes")
        if fault == "stall":
            await asyncio.sleep(store.stall_seconds)
        if fault == "reset":
            self.reset()
        self.writer.write(more)
        await self.writer.drain()
        return fault not in ("cut", "stall", "reset")

    async def body(self, path, begin, end, is_other):
        store, loop = self.store, asyncio.get_running_loop()
        started, first = loop.time(), begin
        is_changed = is_other or store.changes.get(path, 0) % 2 == 1
        with path.open("rb") as file:
            while begin < end:
                size = min(_CHUNK, end - begin) if store.rate or is_changed else end - begin
                with store.lock:  # before the receiver of the last bytes can ask
                    store.sent += size
                if is_changed:
                    file.seek(begin)
                    self.writer.write(bytes(byte ^ 0x55 for byte in file.read(size)))
                    await self.writer.drain()
                else:
                    await loop.sendfile(self.writer.transport, file, begin, size)
                begin += size
                if store.rate:
                    await asyncio.sleep(max(0.0, started + (begin - first) / store.rate - loop.time()))


class CredentialEndpoints:
    """The endpoints for credentials of containers and instances are /container and /latest/... The token
    service (AWS Security Token Service API Reference, AssumeRoleWithWebIdentity) takes a POST to /.

    `authorization` is the value that the container must send. The instance's endpoint needs version 2: first a token,
    which a PUT returns.
    """

    ROLE, IMDS_TOKEN = "the-role", "IMDS-TOKEN-456"
    ROLE_ARN, WEB_TOKEN = "arn:aws:iam::123456789012:role/reads+writes", "eyJhbGciOi.J9/WEB+TOKEN=.xyz"

    def __init__(self, secret=SECRET, authorization="CONTAINER-TOKEN-789", lives=3600, has_role=True):
        self.secret, self.authorization, self.lives, self.has_role = secret, authorization, lives, has_role
        self.asked = []  # (method, path, status)
        self.sessions = []  # RoleSessionName of each

    def role_answer(self, request, body):
        form = urllib.parse.parse_qs(body.decode(), strict_parsing=True)
        asked = (request.headers.get("content-type"), form.get("Action"), form.get("Version"))
        if asked != ("application/x-www-form-urlencoded", ["AssumeRoleWithWebIdentity"], ["2011-06-15"]):
            return 400, self.role_error("InvalidAction", repr(asked))
        self.sessions += form["RoleSessionName"]
        if form["RoleArn"] != [self.ROLE_ARN] or form["WebIdentityToken"] != [self.WEB_TOKEN]:
            return 400, self.role_error("InvalidIdentityToken", "No OpenIDConnect provider found")
        found = json.loads(self.document())
        keys = "".join(f"<{name}>{escape(found[of])}</{name}>" for name, of in (
            ("AccessKeyId", "AccessKeyId"), ("SecretAccessKey", "SecretAccessKey"), ("SessionToken", "Token"),
            ("Expiration", "Expiration")))
        return 200, ('<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                     f"<AssumeRoleWithWebIdentityResult><Credentials>{keys}</Credentials>"
                     "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")

    def role_error(self, code, message):
        return (f'<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
                f"<Code>{code}</Code><Message>{escape(message)}</Message></Error></ErrorResponse>")

    def answer(self, request, body):
        """status, text"""
        if (request.method, request.path) == ("PUT", "/latest/api/token"):
            ttl = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
            return (200, self.IMDS_TOKEN) if ttl.isdigit() and 1 <= int(ttl) <= 21600 else (400, "")
        if (request.method, request.path) == ("POST", "/"):
            return self.role_answer(request, body)
        if request.method != "GET":
            return 405, ""
        if request.path == "/container":
            return (200, self.document()) if request.headers.get("authorization") == self.authorization else (401, "")
        roles = "/latest/meta-data/iam/security-credentials/"
        if request.headers.get("x-aws-ec2-metadata-token") != self.IMDS_TOKEN:
            return 401, ""
        if self.has_role and request.path == roles:
            return 200, self.ROLE
        if self.has_role and request.path == roles + self.ROLE:
            return 200, self.document()
        return 404, ""

    def document(self):
        ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=self.lives)
        return json.dumps({"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": KEY, "SecretAccessKey": self.secret,
                           "Token": TOKEN, "Expiration": f"{ends:%Y-%m-%dT%H:%M:%SZ}"})

    async def run(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                request = _Request((await reader.readuntil(b"\r\n\r\n"))[:-4])
                body = await reader.readexactly(int(request.headers.get("content-length", "0")))
                status, text = self.answer(request, body)
                self.asked.append((request.method, request.path, status))
                head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {len(text)}\r\n\r\n"
                writer.write((head + text).encode())
                await writer.drain()


@contextlib.contextmanager
def serving(what):
    """Serves a Store or CredentialEndpoints. Yields its URL, and stops at the end of the block."""
    loop = asyncio.new_event_loop()

    async def connected(reader, writer):
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
            await (what.run(reader, writer) if isinstance(what, CredentialEndpoints) else
                   _Connection(what, reader, writer).run())

    async def start():
        return await asyncio.start_server(connected, "127.0.0.1", 0, backlog=512)

    server = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def stop():
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close one turn later

    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def environment(endpoint, **more):
    """Variables for a program that must read only from this store."""
    return {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": REGION, "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "AWS_EC2_METADATA_DISABLED": "true", "no_proxy": "127.0.0.1", **more}
