"""Web servers on the loopback: one with folders and several servers' forms of indexes, over TLS too, and a proxy.

The forms of indexes are those of Python's http.server (its own code) and of nginx (ngx_http_autoindex_module,
html and json). Apache's (mod_autoindex, FancyIndexing) and Caddy's (file_server browse, JSON) are there, too.
"""
import base64
import contextlib
import hashlib
import html
import http.client
import http.server
import io
import json
import os
import pathlib
import select
import socket
import ssl
import subprocess
import threading
import urllib.parse

FORMS = ("python", "nginx", "nginx-json", "apache", "caddy-json")


class Site:
    """The content of a server, and its behaviour.

    `form`: the form of indexes, or None for no indexes. `etags`: "strong", "weak" or None. `ranges`: whether ranges
    are honoured. `password`: for HTTP's basic authentication, "name:password". `changed`: paths that have another
    version from now on.
    """

    def __init__(self, root, form="python", etags="strong", ranges=True, password=None):
        self.root = pathlib.Path(root)
        self.form, self.etags, self.ranges, self.password = form, etags, ranges, password
        self.requests = []  # (method, path, range)
        self.changed = set()


def _index(form, url_path, entries):
    """The page of a folder: (content type, text). `entries`: (name, whether it is a folder, size) in order."""
    quoted = [(urllib.parse.quote(name) + "/" * is_folder, name + "/" * is_folder, size)
              for name, is_folder, size in entries]
    if form == "nginx":
        lines = [f'<a href="{link}">{html.escape(shown)}</a>   24-Nov-2026 10:00   {size}\r\n' for link, shown, size in quoted]
        return "text/html", (f"<html>\r\n<head><title>Index of {html.escape(url_path)}</title></head>\r\n<body>\r\n"
                             f"<h1>Index of {html.escape(url_path)}</h1><hr><pre><a href=\"../\">../</a>\r\n"
                             + "".join(lines) + "</pre><hr></body>\r\n</html>\r\n")
    if form == "apache":
        rows = [f'<tr><td valign="top"><img src="/icons/unknown.gif" alt="[   ]"></td><td><a href="{html.escape(link)}">'
                f"{html.escape(shown)}</a></td><td align=\"right\">2026-11-24 10:00  </td></tr>\n" for link, shown, _ in quoted]
        sorts = "".join(f'<th><a href="?C={column};O=D">{column}</a></th>' for column in "NMSD")
        parent = html.escape(url_path.rstrip("/").rpartition("/")[0] + "/")
        return "text/html;charset=UTF-8", (
            '<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">\n<html><head><title>Index of</title></head><body>\n'
            f"<table><tr>{sorts}</tr><tr><td><A HREF='{parent}'>Parent Directory</A></td></tr>\n" + "".join(rows)
            + '</table><address>Apache/2.4 <a href="https://httpd.apache.org/docs/">docs</a></address></body></html>\n')
    if form == "nginx-json":
        return "application/json", json.dumps([
            {"name": name, "type": "directory" if is_folder else "file", "mtime": "Tue, 24 Nov 2026 10:00:00 GMT",
             **({} if is_folder else {"size": size})} for name, is_folder, size in entries], indent=0)
    return "application/json", json.dumps([
        {"name": name + "/" * is_folder, "size": size, "url": "./" + urllib.parse.quote(name), "is_dir": is_folder,
         "mod_time": "2026-11-24T10:00:00Z", "mode": 420, "is_symlink": False} for name, is_folder, size in entries])


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args, site, **kwargs):
        self.site = site
        super().__init__(*args, directory=str(site.root), **kwargs)

    def log_message(self, *args):
        pass

    def is_allowed(self):
        wanted = self.site.password
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        return wanted is None or base64.b64decode(given).decode() == wanted

    def send_head(self):
        self.site.requests.append((self.command, self.path, self.headers.get("Range")))
        if not self.is_allowed():
            self.send_error(401)
            return None
        path = pathlib.Path(self.translate_path(self.path))
        if path.is_dir() and not self.path.endswith("/"):
            self.send_response(301)
            self.send_header("Location", self.path + "/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        if path.is_dir():
            return self.index(path)
        if not path.is_file() or self.path.endswith("/") and self.site.etags == "strong":  # some other servers do not
            self.send_error(404)
            return None
        return self.file(path)

    def index(self, path):
        if self.site.form is None:
            self.send_error(403)
            return None
        if self.site.form == "python":
            return self.list_directory(path)
        entries = sorted((entry.name, entry.is_dir(), entry.stat().st_size) for entry in path.iterdir())
        kind, text = _index(self.site.form, urllib.parse.unquote(self.path), entries)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        return io.BytesIO(text.encode())

    def file(self, path):
        data = path.read_bytes()
        version = f"{path} {len(data)} {path.name in self.site.changed}"
        tag = '"' + hashlib.md5(version.encode()).hexdigest() + '"'
        wanted = self.headers.get("If-Match")
        if self.site.etags and wanted not in (None, tag if self.site.etags == "strong" else ""):
            self.send_error(412)
            return None
        begin, end = 0, len(data)
        asked = self.headers.get("Range")
        if asked and self.site.ranges:
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last) + 1, len(data))
        self.send_response(206 if asked and self.site.ranges else 200)
        if asked and self.site.ranges:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - begin))
        day = 25 if path.name in self.site.changed else 24
        self.send_header("Last-Modified", f"Tue, {day} Nov 2026 10:00:00 GMT")
        if self.site.etags:
            self.send_header("ETag", ("W/" if self.site.etags == "weak" else "") + tag)
        self.end_headers()
        return io.BytesIO(data[begin:end])


class _Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args, seen, **kwargs):
        self.seen = seen
        super().__init__(*args, **kwargs)

    def log_message(self, *args):
        pass

    def do_CONNECT(self):
        self.seen.append((self.command, self.path))
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as other:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: other, other: self.connection}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        self.close_connection = True
                        return
                    ends[end].sendall(data)

    def forward(self):
        self.seen.append((self.command, self.path))
        url = urllib.parse.urlsplit(self.path)
        other = http.client.HTTPConnection(url.netloc)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith("proxy-")}
        other.request(self.command, urllib.parse.urlunsplit(("", "", *url[2:])), body or None, headers)
        reply = other.getresponse()
        data = reply.read()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        other.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args):
        """Clients may disconnect at any time."""


@contextlib.contextmanager
def _running(handler, context=None):
    server = _Server(("127.0.0.1", 0), handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def serving(site, certificate=None, version=None):
    """Serves a Site. Yields its URL. `certificate`: a file with a certificate and its key, for https://; `version`:
    the only version of TLS."""
    context = None
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if version:
            context.minimum_version = context.maximum_version = version
    with _running(lambda *args: _Handler(*args, site=site), context) as port:
        yield f"https://localhost:{port}" if certificate else f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def proxy():
    """Yields the proxy's URL, and a list of its requests."""
    seen = []
    with _running(lambda *args: _Proxy(*args, seen=seen)) as port:
        yield f"http://127.0.0.1:{port}", seen


def make_certificate(folder, name="localhost"):
    """A self-signed certificate and its key in one file, for a server, and to be trusted.

    It is for a name, not for an address: mbedTLS does not compare addresses.
    """
    file, key = (pathlib.Path(folder) / name for name in ("certificate.pem", "key.pem"))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc",
                    "-days", "1", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}",
                    "-keyout", key, "-out", file], check=True, capture_output=True)
    with open(file, "ab") as both:
        both.write(key.read_bytes())
    os.chmod(file, 0o600)
    return file
