"""https://: folders of web servers as inputs; and what lies between us and servers: certificates, proxies, names.

A tool must print and write the same as for that folder on a disk. BUCKETS=all takes every checkpoint of
testdata; without it, a sixth of them.
"""
import shutil
import urllib.parse


import cli_common
import object_server
import tools
import torch_files
import web_server
from bucket_case import BucketCase
from bucket_input_test import ALL, COMMANDS, TESTDATA, inputs
from object_server import Store
from web_server import FORMS, Site, make_certificate, serving

CASE = "z3_bf16_full_subgroups_w4"

setUpModule = tools.skip_without_object_stores


class WebCase(BucketCase):

    def setUp(self):
        super().setUp()
        self.home = self.new_path("home")
        self.home.mkdir()
        kept = {name: value for name, value in self.environment.items()
                if not name.startswith("AWS_") and not name.lower().endswith("_proxy")
                and name not in ("CURL_CA_BUNDLE", "SSL_CERT_FILE")}
        self.environment = {**kept, "HOME": str(self.home), "no_proxy": "127.0.0.1,localhost"}
        self.source = tools.case_named(CASE).load_dir

    def assert_reads(self, url, source=None, command=("ckpt-inspect", "list", "IN"), **variables):
        self.environment.update(variables)
        there, here = self.outcome(list(command), url), self.outcome(list(command), source or self.source)
        self.assertEqual(there[:2], here[:2])
        self.assertTrue(there[2] == here[2], "other bytes")

    def assert_refused(self, words, *command, status=4):
        done = self.tool(*command)
        self.assertEqual(done.returncode, status, done.stderr)
        for word in (words, "hint: "):
            self.assertIn(word, done.stderr)
        return done


class FolderTest(WebCase):

    def test_all_of_testdata_in_turns(self):
        """Each with another command, of a server of another kind."""
        every = inputs()
        for index, form in enumerate(FORMS):
            etags = ("strong", "weak", None)[index % 3]
            with serving(Site(TESTDATA.parent, form=form, etags=etags)) as url:
                for number, path in list(enumerate(every))[index::len(FORMS) * (1 if ALL else 6)]:
                    command = COMMANDS[(number // len(FORMS)) % len(COMMANDS)]
                    with self.subTest(path=path, form=form, command=command):
                        there = self.outcome(command, f"{url}/{TESTDATA.name}/{urllib.parse.quote(path)}")
                        here = self.outcome(command, TESTDATA / path)
                        self.assertEqual(there[:2], here[:2])
                        self.assertTrue(there[2] == here[2], "other bytes")

    def test_odd_names(self):
        """Those of the folder are typed as they are, or encoded."""
        name = "run 7 +&é#%41's"
        root = self.new_path("root")
        shutil.copytree(self.source, root / name)
        for form in FORMS:
            with self.subTest(form), serving(Site(root, form=form)) as url:
                self.assert_reads(f"{url}/{urllib.parse.quote(name)}", root / name)
                self.assert_reads(f"{url}/{urllib.parse.quote(name)}/", root / name)

    def test_a_file(self):
        weights = self.new_path("weights")
        self.tool("zero-to-fp32", self.source, weights, "--safe-serialization")
        for form, etags in (("nginx", "strong"), ("nginx", None), (None, "strong")):
            with self.subTest(form=form, etags=etags), serving(Site(weights, form=form, etags=etags)) as url:
                self.assert_reads(f"{url}/model.safetensors", weights / "model.safetensors")

    def test_what_is_not_there(self):
        with serving(Site(self.source)) as url:
            self.assert_refused("none-such", "ckpt-inspect", "list", f"{url}/none-such", status=2)
        self.assert_refused("cannot be fetched", "ckpt-inspect", "list", "http://127.0.0.1:1/a")

    def test_what_cannot_be_read_of(self):
        with serving(Site(self.source, form=None)) as url:
            self.assert_refused("403", "ckpt-inspect", "list", url)
        large = self.new_path("large")
        large.mkdir()
        torch_files.save_file({"a": torch_files.zeros(1 << 20)}, large / "model.safetensors")
        with serving(Site(large, ranges=False)) as url:
            self.assert_refused("does not honour ranges", "zero-to-fp32", url, self.new_path("out"))

    def test_only_what_is_needed_is_read(self):
        large = self.new_path("large")
        large.mkdir()
        torch_files.save_file({"a": torch_files.zeros(1 << 20)}, large / "model.safetensors")
        site = Site(large)
        with serving(site) as url:
            done = self.tool("ckpt-inspect", "list", url, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
        read = [asked.removeprefix("bytes=").split("-") for _, _, asked in site.requests if asked]
        self.assertLess(sum(int(last) + 1 - int(first) for first, last in read), 100_000)

    def test_files_that_change_are_refused(self):
        for etags in ("strong", "weak", None):
            site = Site(self.source, etags=etags)
            with self.subTest(etags), serving(site) as url:
                output = self.new_path("out")
                site.changed = _ChangedOnceRead(site)
                self.assert_refused("changed while it was being read", "zero-to-fp32", url, output)
                self.assertFalse(output.exists())

    def test_passwords(self):
        site = Site(self.source, password="ann:SECRET77")
        with serving(site) as url:
            done = self.assert_refused("401", "ckpt-inspect", "list", url)
            self.assertIn("~/.netrc", done.stderr)
            (self.home / ".netrc").write_text("machine 127.0.0.1 login ann password SECRET77\n")
            self.assert_reads(url)
            done = self.assert_refused("name or password", "ckpt-inspect", "list",
                                       url.replace("://", "://ann:SECRET77@"), status=2)
            self.assertNotIn("SECRET77", done.stdout + done.stderr)

    def test_what_is_no_folders_url(self):
        for url in ("https://", "https:///a", "https://h/a?b=c", "https://h/a#b", "https://h/../a", "https://h/a%zz",
                    "https://a b/c", "https://h:port/a", "ftp://h/a"):
            with self.subTest(url):
                self.assert_refused("", "ckpt-inspect", "list", url, status=2)

    def test_an_output_goes_elsewhere(self):
        with serving(Site(self.source)) as url:
            for command in ("zero-to-fp32", "to-universal"):
                for options in ([], ["--dry-run"]):
                    done = self.assert_refused("cannot be written to", command, self.source, f"{url}/out", *options,
                                               status=2)
                    self.assertIn("s3://BUCKET/PREFIX", done.stderr)

    def test_pages_that_lead_elsewhere(self):
        """Links out of the folder, into its folders' folders, and to nothing are not what is in it."""
        root = self.new_path("root")
        shutil.copytree(self.source, root / "ckpt")
        (root / "secret").mkdir()
        (root / "secret" / "latest").write_text("x")
        page = ('<html><a>no link</a><a name=x>x</a><a href=latest>1</a><a href="/ckpt/global_step3/">2</a>'
                '<a href="../secret/latest">3</a><a href="%2e%2e/secret/">4</a><a href="/secret/">5</a>'
                '<a href="//elsewhere/latest">6</a><a href="https://elsewhere/ckpt/x">7</a><a href="mailto:a@b">8</a>'
                '<a href="?C=M">9</a><a href="gone">10</a><a href="a/b">11</a><a href="%00">12</a><a href="%zz">13</a>')
        tags = [entry.name for entry in self.source.iterdir() if entry.is_dir()]
        page = page.replace("global_step3", tags[0])
        site = Site(root, form="nginx")
        index = web_server._index
        try:
            web_server._index = lambda form, path, entries: (
                ("text/html", page) if path == "/ckpt/" else index(form, path, entries))
            with serving(site) as url:
                self.assert_reads(f"{url}/ckpt")
        finally:
            web_server._index = index
        self.assertEqual([path for _, path, _ in site.requests if "secret" in path and path != "/secret/"], [])


class _ChangedOnceRead:
    """Files are another version once a range of them was read."""

    def __init__(self, site):
        self.site = site

    def __contains__(self, name):
        ranges = [path for method, path, asked in self.site.requests if method == "GET" and asked]
        return len(ranges) > 3


class NetworkTest(WebCase):

    def setUp(self):
        super().setUp()
        # OpenSSL frees what it keeps for a thread when that ends, and threads of oneTBB do not before the process.
        known = self.root / "known_leaks"
        known.write_text("leak:libcrypto\n")
        self.environment["LSAN_OPTIONS"] = f"suppressions={known}:print_suppressions=0"

    def stored(self):
        buckets = self.new_path("buckets")
        shutil.copytree(self.source, buckets / "models")
        return Store(buckets)

    def test_certificates(self):
        certificate = make_certificate(self.root)
        with serving(Site(self.source), certificate) as url:
            done = self.assert_refused("cannot be fetched", "ckpt-inspect", "list", url)
            self.assertIn("AWS_CA_BUNDLE", done.stderr)
            for name in ("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
                with self.subTest(name):
                    done = self.tool("ckpt-inspect", "list", url, env={**self.environment, name: str(certificate)})
                    self.assertEqual(done.returncode, 0, done.stderr)
            # A certificate of another name.
            done = self.tool("ckpt-inspect", "list", url.replace("localhost", "127.0.0.1"),
                             env={**self.environment, "AWS_CA_BUNDLE": str(certificate)})
            self.assertEqual(done.returncode, 4, done.stderr)

    def test_names_that_do_not_resolve(self):
        """After the tries; the second has failed once for a reason of its own."""
        self.environment.update(object_server.environment("http://store.invalid:99"))
        for url, name in (("https://nosuch.invalid/x", "nosuch.invalid"), ("s3://models/x", "store.invalid")):
            with self.subTest(url):
                self.assert_refused(f"{url}: cannot resolve {name}, tried 6 times", "ckpt-inspect", "list", url)
        self.environment["https_proxy"] = "http://proxy.invalid:99"
        done = self.assert_refused("proxy: proxy.invalid", "ckpt-inspect", "list", "https://nosuch.invalid/x")
        self.assertIn("tried 6 times", done.stderr)
        self.assertIn("https_proxy", done.stderr)

    def test_a_proxy(self):
        store = self.stored()
        with object_server.serving(store) as endpoint, web_server.proxy() as (proxy, seen):
            self.environment.update(object_server.environment(endpoint))
            del self.environment["no_proxy"]
            self.assert_reads("s3://models")
            self.assertEqual(seen, [])
            self.environment["http_proxy"] = proxy
            done = self.tool("zero-to-fp32", "s3://models", "s3://models/weights", "--safe-serialization")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLessEqual({"GET", "PUT", "DELETE"}, {method for method, _ in seen})
            self.assertTrue(all(url.startswith(endpoint) for _, url in seen))
            count = len(seen)
            self.environment["no_proxy"] = "127.0.0.1"
            self.assertEqual(self.tool("ckpt-inspect", "list", "s3://models").returncode, 0)
            self.assertEqual(len(seen), count)
            self.environment.update(http_proxy="http://127.0.0.1:1", no_proxy="")
            self.assert_refused("cannot be fetched", "ckpt-inspect", "list", "s3://models")

    def test_a_proxy_for_tls(self):
        certificate = make_certificate(self.root)
        with serving(Site(self.source), certificate) as url, web_server.proxy() as (proxy, seen):
            self.environment.update(https_proxy=proxy, no_proxy="", AWS_CA_BUNDLE=str(certificate))
            done = self.tool("ckpt-inspect", "list", url)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(set(seen), {("CONNECT", url.removeprefix("https://"))})

    def test_buckets_in_the_hosts_name(self):
        store = self.stored()
        store.buckets_in_hosts = True
        with object_server.serving(store) as endpoint:
            port = endpoint.rpartition(":")[2]
            self.environment.update(object_server.environment(f"http://localhost:{port}"))
            words = ("ckpt-inspect", "list", "s3://models", "--s3-path-style", "off")
            done, here = self.tool(*words), self.tool("ckpt-inspect", "list", self.source)
            self.assertEqual((done.returncode, done.stdout), (0, here.stdout), done.stderr)
            self.assertEqual(store.hosts, {f"models.localhost:{port}"})


if __name__ == "__main__":
    cli_common.main()
