"""Checks that a packaged zero-to-fp32 reads object stores and web servers with only itself and certificates.

far_input.py CHECKPOINT EXPECTED [--root FOLDER] -- COMMAND...: COMMAND runs zero-to-fp32 in an empty environment. EXPECTED
is what it makes of CHECKPOINT on a disk. FOLDER is the root that COMMAND changes to. There certificates are
found where distributions have them, and names are looked up by files and, for root, by a name server. Without
it they are the machine's own.
"""
import argparse
import contextlib
import itertools
import os
import pathlib
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "support"))

import object_server  # noqa: E402
import web_server  # noqa: E402

# The paths of Debian, Fedora, openSUSE and Alpine.
CERTIFICATES = ["etc/ssl/certs/ca-certificates.crt", "etc/pki/tls/certs/ca-bundle.crt", "etc/ssl/ca-bundle.pem",
                "etc/ssl/cert.pem"]
NAME_SERVER = "127.0.0.77"


@contextlib.contextmanager
def name_server(names):
    """A server for the addresses of `names` (RFC 1035): A records are 127.0.0.1, and there are no others."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((NAME_SERVER, 53))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                asked, client = server.recvfrom(512)
                if not asked:
                    return
                at, labels = 12, []
                while asked[at]:
                    labels.append(asked[at + 1:at + 1 + asked[at]].decode().lower())
                    at += 1 + asked[at]
                kind, = struct.unpack(">H", asked[at + 1:at + 3])
                is_known = ".".join(labels) in names
                answer = struct.pack(">HHHIH4s", 0xC00C, 1, 1, 60, 4, bytes([127, 0, 0, 1])) if is_known and kind == 1 else b""
                head = asked[:2] + struct.pack(">HHHHH", 0x8180 if is_known else 0x8183, 1, bool(answer), 0, 0)
                server.sendto(head + asked[12:at + 5] + answer, client)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        server.sendto(b"", (NAME_SERVER, 53))
        thread.join()
        server.close()


def make_certificate(folder):
    """A key and a certificate that it signs itself, of names and of an address."""
    file = folder / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-keyout", folder / "key.pem", "-out", file, "-addext",
                    "subjectAltName=DNS:localhost,DNS:files.test,DNS:dns.test,IP:127.0.0.1"],
                   check=True, capture_output=True)
    file.write_text(file.read_text() + (folder / "key.pem").read_text())
    return file


class Check:

    def __init__(self, options, work):
        self.command, self.checkpoint = options.command, options.checkpoint
        self.expected = (options.expected / "model.safetensors").read_bytes()
        self.root = options.root
        self.place = options.root or work
        self.outputs = (self.place / f"output{number}" for number in itertools.count())

    def seen(self, path):
        return f"/{path.relative_to(self.root)}" if self.root else str(path)

    def run(self, url, variables):
        output = next(self.outputs)
        done = subprocess.run([*self.command, url, self.seen(output), "--safe-serialization", "--quiet"], env=variables,
                              cwd="/", capture_output=True, text=True, timeout=120)
        return done, output

    def reads(self, what, url, **variables):
        done, output = self.run(url, variables)
        assert done.returncode == 0, f"{what}: exit {done.returncode}: {done.stderr}"
        assert (output / "model.safetensors").read_bytes() == self.expected, f"{what}: other weights"

    def refuses(self, words, url, **variables):
        done, output = self.run(url, variables)
        assert done.returncode == 4 and words in done.stderr and not output.exists(), f"{words}: {done}"

    def store(self, work):
        shutil.copytree(self.checkpoint, work / "buckets" / "models" / "run")
        with object_server.serving(object_server.Store(work / "buckets")) as endpoint:
            self.reads("an object store", "s3://models/run", **object_server.environment(endpoint))
            by_name = object_server.environment(endpoint.replace("127.0.0.1", "localhost"), no_proxy="localhost")
            self.reads("an object store by its name", "s3://models/run", **by_name)

    def web(self, work):
        certificate = make_certificate(work)
        trusted = self.place / "trusted.pem"
        shutil.copy(certificate, trusted)
        site = web_server.Site(self.checkpoint)
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            with web_server.serving(site, certificate, version) as url:
                for name in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE"):
                    self.reads(f"{version.name}, {name}", url, **{name: self.seen(trusted)})
                self.reads("an address", url.replace("localhost", "127.0.0.1"), SSL_CERT_FILE=self.seen(trusted))
                self.refuses("cannot be fetched from the server", url, SSL_CERT_FILE=self.seen(self.other(work)))
        with web_server.serving(site, certificate) as url:
            if self.root:
                self.refuses("cannot be fetched from the server", url)
                self.places(url, certificate)
                self.names(url, SSL_CERT_FILE=self.seen(trusted))

    def other(self, work):
        """A certificate that nobody here has."""
        (work / "other").mkdir(exist_ok=True)
        return pathlib.Path(shutil.copy(make_certificate(work / "other"), self.place / "other.pem"))

    def places(self, url, certificate):
        for name in CERTIFICATES:
            file = self.root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(certificate, file)
            self.reads(f"certificates in /{name}", url)
            file.unlink()

    def names(self, url, **variables):
        (self.root / "etc").mkdir(exist_ok=True)
        (self.root / "etc" / "hosts").write_text("127.0.0.1 files.test\n")
        self.reads("a name of /etc/hosts", url.replace("localhost", "files.test"), **variables)
        if os.geteuid() == 0:
            (self.root / "etc" / "resolv.conf").write_text(f"nameserver {NAME_SERVER}\n")
            with name_server({"dns.test"}):
                self.reads("a name of a name server", url.replace("localhost", "dns.test"), **variables)
                self.refuses("cannot resolve nosuch.test, tried 6 times", url.replace("localhost", "nosuch.test"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("expected", type=pathlib.Path)
    parser.add_argument("--root", type=pathlib.Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            del os.environ[name]
    with tempfile.TemporaryDirectory() as folder:
        check = Check(options, pathlib.Path(folder))
        check.store(pathlib.Path(folder))
        check.web(pathlib.Path(folder))


if __name__ == "__main__":
    main()
