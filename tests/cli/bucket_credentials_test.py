"""s3://: keys from each of the places where AWS's own programs look, and in their order."""
import contextlib
import os
import pathlib
import signal
import subprocess
import time

import cli_common
import tools
from cli_common import CliTest
from object_server import KEY, REGION, SECRET, TOKEN, CredentialEndpoints, Store, serving

CASE = "z2_fp32_full_w3"

setUpModule = tools.skip_without_object_stores


class CredentialsTest(CliTest):

    def setUp(self):
        super().setUp()
        buckets = self.new_path("buckets")
        buckets.mkdir()
        (buckets / "models").symlink_to(tools.case_named(CASE).load_dir)
        self.store = Store(buckets)
        endpoint = self.enterContext(serving(self.store))
        home = self.new_path("home")
        (home / ".aws").mkdir(parents=True)
        self.aws = home / ".aws"
        self.environment = {**{name: value for name, value in self.environment.items() if not name.startswith("AWS_")},
                            "HOME": str(home), "AWS_ENDPOINT_URL_S3": endpoint, "AWS_EC2_METADATA_DISABLED": "true",
                            "no_proxy": "127.0.0.1"}
        self.endpoint = endpoint

    def run_with(self, **variables):
        return self.tool("ckpt-inspect", "list", "s3://models", env={**self.environment, **variables})

    def assert_reads(self, **variables):
        done = self.run_with(**variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        here = self.tool("ckpt-inspect", "list", tools.case_named(CASE).load_dir)
        self.assertEqual(done.stdout, here.stdout)

    def assert_refused(self, word, **variables):
        done = self.run_with(**variables)
        self.assertIn(done.returncode, (2, 4), done.stderr)
        self.assertIn(word, done.stderr)
        self.assertIn("hint: ", done.stderr)
        for secret in (KEY, SECRET, TOKEN, CredentialEndpoints.IMDS_TOKEN, CredentialEndpoints.WEB_TOKEN,
                       "CONTAINER-TOKEN-789"):
            self.assertNotIn(secret, done.stdout + done.stderr)

    def test_environment(self):
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        self.assert_reads(**keys, AWS_REGION=REGION)
        self.assert_reads(**keys, AWS_DEFAULT_REGION=REGION)
        self.assert_reads(**keys, AWS_REGION=REGION, AWS_SESSION_TOKEN=TOKEN)
        self.assert_refused("403", **keys, AWS_REGION=REGION, AWS_SESSION_TOKEN="another")
        self.assert_refused(f"--s3-region {REGION}", **keys, AWS_REGION="us-west-2")

    def test_options_come_before_the_environment(self):
        options = ["--s3-region", REGION, "--s3-endpoint", self.endpoint]
        done = self.tool("ckpt-inspect", "list", "s3://models", *options, env={
            **self.environment, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-west-2",
            "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1"})
        self.assertEqual(done.returncode, 0, done.stderr)

    def write_shared(self):
        (self.aws / "credentials").write_text(
            f"# ours\n[default]\naws_access_key_id={KEY}\naws_secret_access_key = {SECRET}\n\n"
            f"[lab]\naws_access_key_id = {KEY}\naws_secret_access_key = another\n"
            f"[token]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\naws_session_token = {TOKEN}\n")
        (self.aws / "config").write_text(
            f"[default]\nregion = {REGION}\n[profile lab]\nregion = {REGION}\n"
            f"[profile token]\nregion = {REGION}\nendpoint_url = {self.endpoint}\n")

    def test_shared_files(self):
        self.write_shared()
        self.assert_reads()
        self.assert_reads(AWS_PROFILE="default")
        self.assert_refused("403", AWS_PROFILE="lab")
        self.assert_reads(AWS_PROFILE="token", AWS_ENDPOINT_URL_S3="")
        self.assert_refused("none-such", AWS_PROFILE="none-such")
        # The environment comes before them.
        self.assert_reads(AWS_PROFILE="lab", AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
        moved = {}
        for name in ("credentials", "config"):
            to = self.root / f"moved-{name}"
            (self.aws / name).rename(to)
            moved["AWS_SHARED_CREDENTIALS_FILE" if name == "credentials" else "AWS_CONFIG_FILE"] = str(to)
        self.assert_reads(**moved)

    @contextlib.contextmanager
    def endpoints(self, **options):
        endpoints = CredentialEndpoints(**options)
        with serving(endpoints) as url:
            yield endpoints, url

    def test_container(self):
        with self.endpoints() as (endpoints, url):
            place = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/container", "AWS_REGION": REGION}
            self.assert_reads(**place, AWS_CONTAINER_AUTHORIZATION_TOKEN=endpoints.authorization)
            self.assertEqual(endpoints.asked, [("GET", "/container", 200)])
            file = self.root / "token"
            file.write_text(endpoints.authorization)
            self.assert_reads(**place, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(file))
            self.assert_refused("401", **place, AWS_CONTAINER_AUTHORIZATION_TOKEN="another")
            file.write_text("\n")
            self.assert_refused("holds no token", **place, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(file))
            # Shared files come before it.
            self.write_shared()
            endpoints.asked.clear()
            self.assert_reads(**place)
            self.assertEqual(endpoints.asked, [])

    def test_web_identity(self):
        with self.endpoints() as (endpoints, url):
            file = self.root / "web-token"
            file.write_text(endpoints.WEB_TOKEN + "\n")
            place = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(file), "AWS_ROLE_ARN": endpoints.ROLE_ARN,
                     "AWS_REGION": REGION, "AWS_ENDPOINT_URL_STS": url}
            self.assert_reads(**place)
            self.assertEqual(endpoints.asked, [("POST", "/", 200)])
            self.assert_reads(**place, AWS_ROLE_SESSION_NAME="night run")
            self.assertEqual(endpoints.sessions[1], "night run")
            self.assertRegex(endpoints.sessions[0], r"^dsckpt-\d+$")
            # Where all services are at one place.
            self.assert_reads(**{**place, "AWS_ENDPOINT_URL_STS": "", "AWS_ENDPOINT_URL": url})
            # The environment's comes before the shared files, and keys before it.
            self.write_shared()
            endpoints.asked.clear()
            self.assert_reads(**place)
            self.assertEqual(len(endpoints.asked), 1)
            self.assert_reads(**place, AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
            self.assertEqual(len(endpoints.asked), 1)
            self.assert_refused("InvalidIdentityToken", **{**place, "AWS_ROLE_ARN": "arn:aws:iam::1:role/another"})
            self.assert_refused("AWS_ROLE_ARN", **{**place, "AWS_ROLE_ARN": ""})
            (self.root / "empty").touch()
            for name in ("empty", "none-such"):
                self.assert_refused(name, **{**place, "AWS_WEB_IDENTITY_TOKEN_FILE": str(self.root / name)})
            endpoints.role_answer = lambda request, body: (200, "<html/>")
            self.assert_refused("does not answer with credentials", **place)

    def test_web_identity_of_a_profile(self):
        with self.endpoints() as (endpoints, url):
            file = self.root / "web-token"
            file.write_text(endpoints.WEB_TOKEN)
            (self.aws / "config").write_text(
                f"[profile pods]\nregion = {REGION}\nrole_arn = {endpoints.ROLE_ARN}\n"
                f"web_identity_token_file = {file}\nrole_session_name = ours\n")
            self.assert_reads(AWS_PROFILE="pods", AWS_ENDPOINT_URL_STS=url)
            self.assertEqual(endpoints.sessions, ["ours"])

    def test_a_token_service_that_is_not_there(self):
        file = self.root / "web-token"
        file.write_text(CredentialEndpoints.WEB_TOKEN)
        self.assert_refused("the token service http://127.0.0.1:1", AWS_WEB_IDENTITY_TOKEN_FILE=str(file),
                            AWS_ROLE_ARN="arn:aws:iam::1:role/a", AWS_ENDPOINT_URL_STS="http://127.0.0.1:1")

    def test_credentials_that_end_are_fetched_again(self):
        with self.endpoints(lives=1) as (endpoints, url):
            self.assert_reads(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{url}/container", AWS_REGION=REGION,
                              AWS_CONTAINER_AUTHORIZATION_TOKEN=endpoints.authorization)
            self.assertGreater(len(endpoints.asked), 1)

    def container(self, endpoints, url):
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/container", "AWS_REGION": REGION,
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": endpoints.authorization}

    def test_credentials_that_soon_end_hold_until_there_are_others(self):
        with self.endpoints(lives=240) as (endpoints, url):
            answer = endpoints.answer
            endpoints.answer = lambda request, body: (503, "") if endpoints.asked else answer(request, body)
            self.assert_reads(**self.container(endpoints, url))
            # Not for every request.
            self.assertEqual([status for _, _, status in endpoints.asked], [200, 503])

    def test_what_an_interrupted_run_has_made_is_removed_with_credentials_that_soon_end(self):
        (self.store.root / "out").mkdir()
        self.store.delay = 0.1
        with self.endpoints(lives=240) as (endpoints, url):
            run = subprocess.Popen(
                [pathlib.Path(os.environ["DSCKPT_BIN"]) / "to-universal", tools.case_named(CASE).load_dir,
                 "s3://out/universal"], env={**self.environment, **self.container(endpoints, url)},
                stderr=subprocess.PIPE, text=True)
            while run.poll() is None and sum(method == "PUT" for method, _ in self.store.writes) < 20:
                time.sleep(0.01)
            run.send_signal(signal.SIGINT)
            stderr = run.communicate()[1]
        self.assertEqual(run.returncode, 130, stderr)
        self.assertEqual([path for path in (self.store.root / "out").rglob("*") if path.is_file()], [])

    def test_instance(self):
        with self.endpoints() as (endpoints, url):
            place = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url, "AWS_EC2_METADATA_DISABLED": "", "AWS_REGION": REGION}
            self.assert_reads(**place)
            roles = "/latest/meta-data/iam/security-credentials/"
            self.assertEqual(endpoints.asked, [("PUT", "/latest/api/token", 200), ("GET", roles, 200),
                                               ("GET", roles + endpoints.ROLE, 200)])
            endpoints.asked.clear()
            self.assert_refused("no credentials", **{**place, "AWS_EC2_METADATA_DISABLED": "true"})
            self.assertEqual(endpoints.asked, [])
        with self.endpoints(has_role=False) as (_, url):
            self.assert_refused("no credentials", **{**place, "AWS_EC2_METADATA_SERVICE_ENDPOINT": url})
        self.assert_refused("no credentials", **{**place, "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:1"})

    def test_a_wrong_secret_of_the_instance(self):
        with self.endpoints(secret="another") as (_, url):
            self.assert_refused("403", AWS_EC2_METADATA_SERVICE_ENDPOINT=url, AWS_EC2_METADATA_DISABLED="",
                                AWS_REGION=REGION)

    def test_answers_that_are_none(self):
        for text in ("", "{}", "[1]", '{"AccessKeyId": 1, "SecretAccessKey": null}', "{" * 100000):
            with self.subTest(text[:20]), self.endpoints() as (endpoints, url):
                endpoints.document = lambda text=text: text
                done = self.run_with(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{url}/container", AWS_REGION=REGION,
                                     AWS_CONTAINER_AUTHORIZATION_TOKEN=endpoints.authorization)
                self.assertEqual(done.returncode, 4, done.stderr)


if __name__ == "__main__":
    cli_common.main()
