"""`ckpt-inspect verify` finds nothing wrong with what DeepSpeed saved, nor with what the tools make of it; and
manifests are those of hashlib."""
import hashlib
import json
import pathlib
import zipfile

import cli_common
import tools
from cli_common import CliTest, record_extent

# Cases that the tools convert; one of each family.
CONVERTED = ["z0_bf16_w2", "z1_bf16opt_full_w3", "z2_bf16_roundrobin_full_w3", "z2_fp32_full_w3", "z2_bf16_paramalign_w2",
             "z3_bf16_full_subgroups_w4"]
MODEL_PARALLEL = ["autotp2_dp2_z1_fp32", "pp2_tp2_dp2_z1_fp32", "autotp2_dp2_z3_bf16"]


class VerifyHealthyTest(CliTest):

    def verified(self, source, *arguments):
        """The report's data; nothing may have been found."""
        done = self.tool("ckpt-inspect", "verify", source, "--json", "--finite", *arguments)
        line, = self.json_lines(done.stdout)
        self.assertEqual((done.returncode, line["data"].get("findings")), (0, []), source)
        return line["data"]

    def run_tool(self, tool, *arguments):
        done = self.tool(tool, *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_deepspeed_saved_is_whole(self):
        for case in [*tools.all_cases(), *tools.model_parallel_cases()]:
            with self.subTest(case=case.name):
                data = self.verified(case.load_dir)
                tag = case.load_dir / case.facts["tag"]
                shards = [*(p for p in tag.iterdir() if p.suffix == ".pt"), *tag.glob("offloaded_tensors/*/*.swp")]
                self.assertEqual(data["files"], len(shards))
                self.assertEqual(data["bytes"], sum(p.stat().st_size for p in shards))
                zips = [p for p in shards if zipfile.is_zipfile(p)]
                self.assertEqual(data["records"], sum(len(zipfile.ZipFile(p).namelist()) for p in zips))

    def test_conversions_are_whole(self):
        for case in tools.all_cases():
            if case.name not in CONVERTED:
                continue
            with self.subTest(case=case.name):
                universal, resharded = self.new_path("universal"), self.new_path("resharded")
                self.run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder", universal)
                self.assertEqual(self.verified(universal)["form"], "universal")
                self.run_tool("reshard", case.load_dir, resharded, "--dp", "3")
                self.assertEqual(self.verified(resharded)["form"], "zero")
                for arguments in [["--safe-serialization", "--max-shard-size=5KB"], ["--max-shard-size=5KB"]]:
                    self.assertEqual(self.verified(self.convert(case.load_dir, *arguments))["form"], "weights")

    def test_universal_checkpoints_of_weights_are_whole(self):
        """They are for any stage, with model files of both kinds."""
        case = tools.case_named("z2_bf16_w2")
        weights, universal = self.convert(case.load_dir), self.new_path("universal")
        self.run_tool("to-universal", weights, universal)
        self.assertEqual(self.verified(universal)["form"], "universal")
        # Without the one that has the tensors it is not whole.
        (universal / "mp_rank_00_model_states.pt").unlink()
        done = self.tool("ckpt-inspect", "verify", universal)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("is in param_shapes, but not in `module`", done.stdout)

    def test_universal_checkpoints_of_split_models_are_whole(self):
        for case in tools.model_parallel_cases():
            if case.name in MODEL_PARALLEL:
                with self.subTest(case=case.name):
                    universal = self.new_path("universal")
                    self.run_tool("to-universal", "--input_folder", case.load_dir, "--output_folder", universal)
                    self.verified(universal)

    def test_a_manifest_has_the_hashes_of_the_bytes(self):
        case = tools.case_named("z2_bf16_w2")
        path = self.new_path("manifest")
        self.verified(case.load_dir, "--write-manifest", path)
        manifest = json.loads(path.read_text())
        self.assertEqual((manifest["schema"], manifest["type"], manifest["hash"]), (1, "manifest", "sha256"))
        tag = case.load_dir / case.facts["tag"]
        self.assertEqual([f["path"] for f in manifest["files"]], sorted(p.name for p in tag.iterdir()))
        for entry in manifest["files"]:
            content = (tag / entry["path"]).read_bytes()
            self.assertEqual((entry["size"], entry["sha256"]), (len(content), hashlib.sha256(content).hexdigest()))
            with zipfile.ZipFile(tag / entry["path"]) as archive:
                self.assertEqual({r["name"]: r["sha256"] for r in entry["records"]},
                                 {n: hashlib.sha256(archive.read(n)).hexdigest() for n in archive.namelist()})
            for record in entry["records"]:
                extent = record_extent(tag / entry["path"], record["name"].split("/", 1)[1])
                self.assertEqual((record["offset"], record["size"]), extent)

    def test_a_manifest_is_the_same_every_time_and_is_not_replaced_unasked(self):
        case = tools.case_named("z3_fp32_w3")
        path, again = self.new_path("manifest"), self.new_path("manifest")
        self.verified(case.load_dir, "--write-manifest", path, "--threads=1")
        self.verified(case.load_dir, "--write-manifest", again, "--threads=2", "--manifest", path)
        self.assertEqual(path.read_bytes(), again.read_bytes())
        path.write_text("mine")
        done = self.tool("ckpt-inspect", "verify", case.load_dir, "--write-manifest", path)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(path.read_text(), "mine")
        self.verified(case.load_dir, "--write-manifest", path, "--force")
        self.assertEqual(path.read_bytes(), again.read_bytes())
        self.assertEqual([p for p in pathlib.Path(self.root).iterdir() if ".tmp" in p.name], [])

    def test_what_is_not_there_and_what_is_no_manifest_are_errors(self):
        case = tools.case_named("z3_fp32_w3")
        self.assertEqual(self.tool("ckpt-inspect", "verify", self.root / "nowhere").returncode, 2)
        self.assertEqual(self.tool("ckpt-inspect", "verify", self.tmp).returncode, 3)
        bad = self.new_path("bad")
        for text in ["", "[]", '{"type": "manifest"}', '{"type": "manifest", "schema": 1, "hash": "sha256", "files": 3}',
                     '{"type": %s}' % ("[" * 1_000_000 + "]" * 1_000_000)]:
            bad.write_text(text)
            self.assertEqual(self.tool("ckpt-inspect", "verify", case.load_dir, "--manifest", bad).returncode, 3, text)


if __name__ == "__main__":
    cli_common.main()
