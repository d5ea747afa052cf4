"""Packed files and those of the zstd command as input: found wherever plain ones are, named where damaged."""
import hashlib
import json
import os
import pathlib
import re
import shutil
import struct

import cli_common
import stored_forms
import xxhash
from cli_common import flip
from pack_cli import NVME, PACKED, STAGE_2, STAGE_3, PackCliTest
from stored_forms import contents


class ReadersTest(PackCliTest):
    """Defects that were found by packing: each tool has to look for files under the names they may have."""

    def test_swap_files_that_are_packed_are_referred_to(self):
        for form, _ in PACKED:
            scratch = self.stored(NVME, form)
            done = self.tool("ckpt-inspect", "verify", scratch.folder)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertNotIn("left out", self.zero_to_fp32(scratch.folder, self.new_path()).stderr)

    def test_a_packed_swap_file_of_no_tensor_is_noted(self):
        scratch = self.scratch(NVME)
        stray = scratch.tag / "offloaded_tensors" / "rank00" / "9_9.tensor.swp"
        stray.write_bytes(bytes(64))
        packed = self.pack(scratch.folder)
        done = self.tool("ckpt-inspect", "verify", packed, "--json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("9_9.tensor.swp.dspack", done.stdout)

    def test_what_zstd_has_made_of_a_whole_folder_is_read(self):
        """`zstd -r --rm` leaves no file as it was: latest, index and configuration are compressed, too."""
        scratch = self.scratch("hf_trainer_llama_z1_bf16_w3")
        expected = self.convert(scratch.folder, "--max-shard-size=5KB", "--safe-serialization", "--hf-config", scratch.folder)
        resharded = self.new_path()
        self.assertEqual(self.tool("reshard", scratch.folder, resharded, "--dp", "2").returncode, 0)
        for path in [path for path in scratch.folder.rglob("*") if path.is_file()]:
            path.with_name(path.name + ".zst").write_bytes(stored_forms.one_frame(path.read_bytes()))
            path.unlink()
        got = self.convert(scratch.folder, "--max-shard-size=5KB", "--safe-serialization", "--hf-config", scratch.folder)
        self.assertEqual(contents(got), contents(expected))
        again = self.new_path()
        self.assertEqual(self.tool("reshard", scratch.folder, again, "--dp", "2").returncode, 0)
        self.assertEqual(contents(again), contents(resharded))
        for path in [path for path in got.rglob("*") if path.is_file()]:
            path.with_name(path.name + ".zst").write_bytes(stored_forms.many_frames(path.read_bytes()))
            path.unlink()
        for command in ("verify", "list"):
            seen = [self.tool("ckpt-inspect", command, ".", "--json", cwd=folder).stdout for folder in (expected, got)]
            self.assertEqual(seen[0], seen[1])
        self.assertEqual(self.tool("ckpt-inspect", "diff", expected, got).returncode, 0)

    def test_the_configuration_of_an_adapter_may_be_compressed(self):
        case = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "peft" / "z2_modules_to_save_w2"
        folder = self.new_path()
        shutil.copytree(case / "ckpt", folder)
        config = json.loads((case / "expected" / "adapter" / "adapter_config.json").read_text())
        text = json.dumps({**config, "lora_alpha": 7654}).encode()
        (folder / "adapter_config.json").write_bytes(text)
        expected = contents(self.peft(folder))
        self.assertIn(b"7654", expected["adapter_config.json"])
        (folder / "adapter_config.json").unlink()
        (folder / "adapter_config.json.zst").write_bytes(stored_forms.one_frame(text))
        self.assertEqual(contents(self.peft(folder)), expected)

    def peft(self, folder):
        output = self.new_path()
        done = self.zero_to_fp32(folder, "--peft", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def test_roots_are_read_in_any_form(self):
        scratch = self.scratch("z3_fp32_full_w2")
        expected = contents(self.convert(scratch.folder))
        for form, suffix in PACKED:
            here, there = self.stored("z3_fp32_full_w2", form), self.stored("z3_fp32_full_w2", form)
            for rank, folder in ((1, here.tag), (0, there.tag)):
                for path in folder.glob(f"*zero_pp_rank_{rank}_*{suffix}"):
                    path.unlink()
            self.assertEqual(contents(self.convert(here.folder, "--root", there.folder)), expected)

    def test_a_manifest_of_the_plain_checkpoint_verifies_the_packed_one(self):
        for name in (STAGE_2, NVME, "hf_trainer_llama_z1_bf16_w3"):
            plain = self.scratch(name)
            manifest = self.new_path("manifest")
            done = self.tool("ckpt-inspect", "verify", plain.folder, "--write-manifest", manifest)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            for form, _ in PACKED:
                scratch = self.stored(name, form)
                done = self.tool("ckpt-inspect", "verify", scratch.folder, "--manifest", manifest)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                # And it was compared.
                other = self.new_path("manifest")
                other.write_text(re.sub(r'("sha256": ?")[0-9a-f]{8}', r"\g<1>00000000", manifest.read_text()))
                done = self.tool("ckpt-inspect", "verify", scratch.folder, "--manifest", other)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)

    def test_single_packed_files_are_read(self):
        shard = self.scratch(STAGE_2).optim(0)
        for command in (["raw"], ["list"], ["scan"]):
            expected = self.tool("ckpt-inspect", *command, shard.name, "--json", cwd=shard.parent)
            for form, suffix in PACKED:
                folder = self.stored(STAGE_2, form).tag
                for name in (shard.name, shard.name + suffix):
                    if command == ["scan"] and name == shard.name:
                        continue  # what is scanned is the file of that name
                    got = self.tool("ckpt-inspect", *command, name, "--json", cwd=folder)
                    said = got.stdout.replace(f'"path":"{name}"', f'"path":"{shard.name}"')
                    self.assertEqual((got.returncode, said), (expected.returncode, expected.stdout), name)

    def test_like_may_be_packed(self):
        like, source = self.scratch("hf_trainer_llama_z3_bf16_w2"), self.scratch("hf_trainer_llama_z3_bf16_w2")
        weights = self.convert(source.folder, "--safe-serialization")
        made = []
        for folder, values in ((like.folder, weights), (self.pack(like.folder), self.pack(weights))):
            made.append(self.new_path() / "x")
            done = self.tool("reshard", values, made[-1], "--dp", "2", "--like", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(contents(made[0]), contents(made[1]))


class TwoFormsTest(PackCliTest):

    def test_a_file_in_two_forms_is_refused_by_name(self):
        for form, suffix in PACKED:
            scratch = self.stored(STAGE_2, form)
            plain = scratch.tag / "mp_rank_00_model_states.pt"
            plain.write_bytes(scratch.case.tag_folder.joinpath(plain.name).read_bytes())
            for tool, *arguments in [["ckpt-pack", "pack", scratch.folder, self.new_path()],
                                     ["ckpt-pack", "unpack", scratch.folder, self.new_path()],
                                     ["ckpt-pack", "estimate", scratch.folder],
                                     ["zero-to-fp32", scratch.folder, self.new_path()],
                                     ["reshard", scratch.folder, self.new_path(), "--dp", "2"],
                                     ["ckpt-inspect", "list", scratch.folder], ["ckpt-inspect", "verify", scratch.folder]]:
                error, stderr = self.refusal(3, tool, *arguments)
                self.assertEqual(error["kind"], "inconsistent")
                self.assertIn(plain.name + suffix, stderr)

    def test_weights_universal_files_and_neighbours_in_two_forms_are_refused(self):
        weights = self.convert(self.scratch(STAGE_2).folder, "--safe-serialization")
        shutil.copytree(weights, self.root / "packed-weights")
        shutil.copy(self.pack(weights) / "model.safetensors.dspack", self.root / "packed-weights")
        universal = self.new_path("universal")
        self.assertEqual(self.tool("to-universal", "--input-folder", self.scratch(STAGE_2).tag, "--output-folder",
                                   universal).returncode, 0)
        twice = next(universal.rglob("exp_avg.pt"))
        twice.with_name("exp_avg.pt.zst").write_bytes(stored_forms.one_frame(twice.read_bytes()))
        swapped = self.stored(NVME, "packed")
        swap = next(path for path in sorted(swapped.tag.rglob("*.tensor.swp.dspack")))
        swap.with_name(swap.name.removesuffix(".dspack") + ".zst").write_bytes(stored_forms.one_frame(b"12345678"))
        beside = self.scratch("hf_trainer_llama_z1_bf16_w3")
        state = next(path for path in beside.folder.iterdir() if path.suffix == ".pth" or path.name == "scheduler.pt")
        state.with_name(state.name + ".zst").write_bytes(stored_forms.one_frame(state.read_bytes()))
        for names, arguments in [
            (["model.safetensors", "model.safetensors.dspack"], ["ckpt-inspect", "list", self.root / "packed-weights"]),
            (["model.safetensors", "model.safetensors.dspack"], ["ckpt-inspect", "verify", self.root / "packed-weights"]),
            (["exp_avg.pt", "exp_avg.pt.zst"], ["zero-to-fp32", universal, self.new_path()]),
            (["exp_avg.pt", "exp_avg.pt.zst"], ["ckpt-inspect", "verify", universal]),
            ([swap.name, swap.name.replace(".dspack", ".zst")], ["zero-to-fp32", swapped.folder, self.new_path()]),
            ([state.name, state.name + ".zst"], ["reshard", beside.folder, self.new_path(), "--dp", "2"]),
        ]:
            _, stderr = self.refusal(3, *arguments)
            self.assertIn(f"exists as {names[0]} and as {names[1]}", stderr)


class DamageTest(PackCliTest):

    def stored_shard(self, scratch, pattern="*rank_1_*optim_states.pt.*"):
        path, = scratch.tag.glob(pattern)
        return path

    def test_damage_is_named_with_the_stored_file_and_the_place(self):
        for form, suffix in PACKED:
            for where in (2, 0.2, 0.4, 0.6, 0.8, -3):
                scratch = self.stored(STAGE_2, form, stored_forms.one_frame)
                path = self.stored_shard(scratch)
                size = path.stat().st_size
                flip(path, int(where * size) if isinstance(where, float) else where % size)
                for tool, *arguments in [["zero-to-fp32", scratch.folder, self.new_path(), "--states", "--verify"],
                                         ["ckpt-pack", "unpack", scratch.folder, self.new_path()],
                                         ["ckpt-pack", "pack", scratch.folder, self.new_path()]]:
                    error, stderr = self.refusal(3, tool, *arguments)
                    self.assertTrue(error["file"].endswith(path.name), (form, where, tool, stderr))
                    self.assertIn("offset", error, (form, where, tool, stderr))
                done = self.tool("ckpt-inspect", "verify", scratch.folder)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"(in {path.name})", done.stdout)

    def test_a_packed_file_that_is_cut_anywhere_is_refused_by_all(self):
        for form, suffix in PACKED:
            scratch = self.stored(STAGE_2, form)
            path = self.stored_shard(scratch)
            whole = path.read_bytes()
            for size in [0, 1, 7, 15, 16, 17, 47, len(whole) // 2, len(whole) - 33, len(whole) - 1]:
                path.write_bytes(whole[:size])
                for tool, *arguments in [["zero-to-fp32", scratch.folder, self.new_path()],
                                         ["ckpt-pack", "unpack", scratch.folder, self.new_path()]]:
                    error, _ = self.refusal(3, tool, *arguments)
                    self.assertTrue(error["file"].endswith(path.name), error)
                done = self.tool("ckpt-inspect", "verify", scratch.folder, "--json")
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"(in {path.name})", done.stdout)

    def test_allow_missing_treats_a_damaged_packed_shard_as_a_lost_one(self):
        for name in (STAGE_2, STAGE_3):
            plain = self.scratch(name)
            lost = plain.optim(1)
            lost.unlink()
            expected = self.salvaged(plain)
            for form, suffix in PACKED:
                for damage in (lambda path: path.write_bytes(path.read_bytes()[:100]), lambda path: path.write_bytes(b""),
                               lambda path: path.write_bytes(b"x" * 5000)):
                    scratch = self.stored(name, form)
                    damage(scratch.tag / (lost.name + suffix))
                    self.assertEqual(self.salvaged(scratch), expected, (name, form))
                scratch = self.stored(name, form)
                (scratch.tag / (lost.name + suffix)).unlink()
                self.assertEqual(self.salvaged(scratch), expected, (name, form))

    def salvaged(self, scratch):
        output = self.new_path()
        done = self.zero_to_fp32(scratch.folder, output, "--safe-serialization", "--allow-missing")
        self.assertEqual(done.returncode, 1, done.stderr)
        return contents(output)

    def test_sha256_is_kept_and_compared(self):
        scratch = self.scratch(STAGE_2)
        packed = self.pack(scratch.folder, "--sha256")
        for path in scratch.tag.glob("*.pt"):
            data = (packed / scratch.tag.name / (path.name + ".dspack")).read_bytes()
            self.assertIn(hashlib.sha256(path.read_bytes()).digest(), data[-4096:])
        self.assertEqual(contents(self.unpack(packed, "--sha256")), contents(scratch.folder))
        without = self.pack(scratch.folder)
        self.assertEqual(contents(self.unpack(without)), contents(scratch.folder))
        error, _ = self.refusal(2, "ckpt-pack", "unpack", without, self.new_path(), "--sha256")
        self.assertIn("--sha256", error["message"])

    def test_a_wrong_sha256_is_a_bad_checkpoint(self):
        """With a footer that is right again: whoever wrote it wrote another file's digest."""
        scratch = self.scratch(STAGE_2)
        packed = self.pack(scratch.folder, "--sha256")
        path = packed / scratch.tag.name / (scratch.optim(1).name + ".dspack")
        data = bytearray(path.read_bytes())
        begin, size = struct.unpack("<QQ", data[-32:-16])
        data[begin + 8] ^= 1
        data[-16:-8] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(data[begin:begin + size] + data[-32:-16])))
        path.write_bytes(data)
        self.assertEqual(contents(self.unpack(packed)), contents(scratch.folder))
        output = self.new_path()
        error, stderr = self.refusal(3, "ckpt-pack", "unpack", packed, output, "--sha256")
        self.assertIn(scratch.optim(1).name, error["file"])
        self.assertIn(hashlib.sha256(scratch.optim(1).read_bytes()).hexdigest(), stderr)
        self.assertFalse(output.exists())

    def test_verify_names_the_records_that_packing_finds_damaged(self):
        scratch = self.scratch(STAGE_2)
        offset, _ = cli_common.record_extent(scratch.optim(0), "data/0")
        flip(scratch.optim(0), offset)
        error, stderr = self.refusal(3, "ckpt-pack", "pack", scratch.folder, self.new_path(), "--verify")
        self.assertIn("data/0", stderr)
        self.assertIn(scratch.optim(0).name, error["file"])


if __name__ == "__main__":
    cli_common.main()
