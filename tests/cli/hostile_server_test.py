"""A server that means harm cannot make the tools print a secret, keep a listing without end, or do anything
else for it."""
import http.server
import socketserver
import threading
import unittest
import urllib.parse

from cli_common import CliTest, memory_limit

KEY, SECRET, TOKEN = "AKIDOFTHETEST1234567", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "FwoGZXIvYXdzEJr//token/of+a/session=="


def listing(keys, more=None, prefixes=()):
    entries = "".join(f"<Contents><Key>{key}</Key><Size>5</Size><ETag>\"e\"</ETag></Contents>" for key in keys)
    entries += "".join(f"<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>" for prefix in prefixes)
    token = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{entries}<IsTruncated>{str(bool(more)).lower()}</IsTruncated>{token}</ListBucketResult>"


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


class HostileServerTest(CliTest):

    def serve(self, answer):
        """The endpoint of a server that answers with what `answer(query, headers)` gives: status, text, headers."""
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)
                status, text, headers = answer(query, self.headers)
                body = text.encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": len(body)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_PUT = do_POST = do_GET

            def log_message(self, *_):
                pass

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def ask(self, answer, *options):
        environment = {**self.environment, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
                       "AWS_SESSION_TOKEN": TOKEN, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(self.root),
                       "no_proxy": "*"}
        return self.tool("zero-to-fp32", "s3://bucket/ck", self.new_path(), "--s3-endpoint", self.serve(answer), *options,
                         env=environment)

    def assert_no_secret(self, text):
        for secret in (KEY, SECRET, TOKEN):
            for at in range(len(secret) - 8):
                self.assertNotIn(secret[at:at + 8].lower(), text.lower())

    def test_our_secrets_are_not_in_messages(self):
        def all_of_it(headers):
            return f"{headers['Authorization']} {headers['x-amz-security-token']} {KEY} {SECRET}"

        for change in (str, str.upper, str.lower, lambda text: text[:len(text) - 5], lambda text: text[30:],
                       lambda text: "x" * 280 + text, lambda text: text.replace(" ", "")):
            for status in (400, 403, 404):
                done = self.ask(lambda query, headers: (status, "<Error><Code>Refused</Code><Message>" + change(
                    all_of_it(headers)).replace("<", "") + "</Message></Error>", {}))
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn(f"the server answers {status} (", done.stderr)
                self.assert_no_secret(done.stderr)

    def test_a_name_with_our_secrets_is_refused(self):
        for secret in (KEY, TOKEN):
            done = self.ask(lambda query, headers: (200, listing([f"ck/{secret}/latest"]), {}))
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("has a name with the request's credentials", done.stderr)
            self.assert_no_secret(done.stderr)

    def test_what_it_says_is_cut_and_printable(self):
        done = self.ask(lambda query, headers: (403, "<Error><Code>A\x9b31m\u202e</Code><Message>&#27;]0;x&#7;" +
                                                "y" * 5000 + "</Message></Error>", {}))
        self.assertEqual(done.returncode, 4)
        self.assertTrue(all(c == "\n" or " " <= c < "\x7f" for c in done.stderr), ascii(done.stderr))
        self.assertLess(len(done.stderr), 1000)

    def test_a_region_that_is_none_is_no_hint(self):
        body = "<Error><Code>PermanentRedirect</Code></Error>"
        done = self.ask(lambda query, headers: (301, body, {"x-amz-bucket-region": "eu-central-1"}))
        self.assertIn("hint: --s3-region eu-central-1", done.stderr)
        for region in ("127.0.0.1:9/?", "x; rm -rf .", "EU", "a" * 41, "--s3-endpoint=x y", "$(id)"):
            done = self.ask(lambda query, headers: (301, body, {"x-amz-bucket-region": region}))
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertNotIn(region, done.stderr)
            self.assertNotIn("another region", done.stderr)

    def test_a_listing_without_end(self):
        pages = iter(range(10**9))

        def endless(query, headers):
            page = next(pages)
            # As long as replies may be.
            return 200, listing([f"ck/global_step1/f{page}_{i}{'x' * 7900}" for i in range(900)], f"t{page}"), {}

        done = self.ask(endless, *memory_limit("1GB"))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("has names of more than 256.00 MB in all", done.stderr)
        self.assertLess(next(pages), 50)

    def test_a_folder_with_a_name_without_end(self):
        done = self.ask(lambda query, headers: (200, listing([], None, ["ck/" + "x" * 8192 + "/"]), {}))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has a folder whose name is too long", done.stderr)


if __name__ == "__main__":
    unittest.main()
