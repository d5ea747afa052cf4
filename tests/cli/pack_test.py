"""ckpt-pack, --zstd, and what the tools say of packed files that are damaged or there twice."""
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import time

import cli_common
import common
import numpy
import stored_forms
import torch
from cli_common import CliTest, flip, snapshot
from safetensors.torch import save_file
from stored_forms import contents

STAGE_2 = "z2_fp32_full_w3"
STAGE_3 = "z3_bf16_full_subgroups_w4"
NVME = "z3_bf16_nvme_w2"
# One for each kind of file and layout; all cases are packed_test.py's.
CASES = [STAGE_2, STAGE_3, NVME, "z2_bf16_legacyserial_w2", "z0_bf16_w2", "hf_trainer_llama_z1_bf16_w3", "moe_ep2_dp2_z1_bf16",
         "pp2_tp2_dp1_z1_bf16", "autotp2_dp2_z3_nvme"]
PACKED = ("packed", ".dspack"), ("zstd", ".zst")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class PackCliTest(CliTest):

    def pack(self, source, *options, code=0):
        """The output folder, if that is to be."""
        return self.ckpt_pack("pack", source, *options, code=code)

    def unpack(self, source, *options, code=0):
        return self.ckpt_pack("unpack", source, *options, code=code)

    def ckpt_pack(self, command, source, *options, code=0, output=None):
        output = output or self.new_path()
        done = self.tool("ckpt-pack", command, source, output, *options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.said = done
        return output

    def stored(self, name, form, zstd_form=None):
        """A scratch copy of a case whose files of tensors are packed, or of the zstd command."""
        scratch = self.scratch(name)
        plain = scratch.folder.rename(self.new_path("plain"))
        if form == "packed":
            stored_forms.pack(plain, scratch.folder)
        else:
            stored_forms.zstd_copy(plain, scratch.folder, zstd_form)
        return scratch

    def refusal(self, code, tool, *arguments):
        done = self.tool(tool, *arguments, "--json")
        self.assertEqual(done.returncode, code, done.stderr)
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["type"], "error")
        return line["data"], done.stderr

    def tensors_file(self, elements=6 << 20, name="weights.pt"):
        """A file of normally distributed values, as trained weights are."""
        folder = self.new_path("large")
        folder.mkdir()
        values = torch.from_numpy(numpy.random.default_rng(7).standard_normal(elements, numpy.float32) * 0.02)
        torch.save({"master": values, "weight": values[:elements // 2].bfloat16(), "step": 3}, folder / name)
        return folder


class RoundTripTest(PackCliTest):

    def test_unpacking_gives_every_file_back(self):
        cases = {case.name: case for case in [*common.all_cases(), *common.model_parallel_cases()]}
        for name in CASES:
            expected = contents(cases[name].load_dir)
            packed = self.pack(cases[name].load_dir)
            self.assertEqual({path.removesuffix(".dspack") for path in contents(packed)}, set(expected))
            self.assertEqual(contents(self.unpack(packed)), expected)
            compressed = stored_forms.zstd_copy(cases[name].load_dir, self.new_path())
            self.assertEqual(contents(self.unpack(compressed)), expected)

    def test_all_of_the_test_data_comes_back(self):
        """Whatever lies in a folder: pickles that torch would not load, text, damaged files."""
        root = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
        for name in ["formats", "malicious", "peft"]:
            self.assertEqual(contents(self.unpack(self.pack(root / name))), contents(root / name))

    def test_each_form_of_the_zstd_command_comes_back(self):
        source = self.tensors_file(1 << 18)
        for form in stored_forms.ZSTD_FORMS:
            compressed = stored_forms.zstd_copy(source, self.new_path(), form)
            self.assertEqual(contents(self.unpack(compressed)), contents(source))

    def test_safetensors_are_packed_by_their_types(self):
        folder = self.new_path()
        folder.mkdir()
        generator = torch.Generator().manual_seed(1)
        tensors = {f"layer{i}": torch.randn(300, 100, generator=generator, dtype=torch.float32) for i in range(40)}
        save_file({**tensors, "half": torch.randn(30000, generator=generator).bfloat16()}, folder / "model.safetensors")
        packed = self.pack(folder)
        self.assertEqual(contents(self.unpack(packed)), contents(folder))
        # As bytes of no type they stay at 0.93 of their size.
        self.assertLess((packed / "model.safetensors.dspack").stat().st_size,
                        0.88 * (folder / "model.safetensors").stat().st_size)

    def test_a_single_file_is_packed_into_the_folder(self):
        source = self.scratch(STAGE_2).model()
        packed = self.pack(source)
        self.assertEqual([path.name for path in packed.iterdir()], [source.name + ".dspack"])
        for path in packed, packed / (source.name + ".dspack"):
            self.assertEqual(contents(self.unpack(path)), {source.name: source.read_bytes()})

    def test_empty_files_and_odd_names_come_back(self):
        folder = self.new_path()
        (folder / "a b" / "ü").mkdir(parents=True)
        for name in ["empty.pt", "one.bin", "latest", "note.txt", "a b/ü/x\ny.pt", "model.pt.orig", ".hidden.safetensors"]:
            (folder / name).write_bytes(b"" if name == "empty.pt" else b"\x80" + name.encode())
        packed = self.pack(folder)
        self.assertEqual({path.removesuffix(".dspack") for path in contents(packed)}, set(contents(folder)))
        self.assertEqual(contents(self.unpack(packed)), contents(folder))

    def test_what_is_no_archive_is_packed_as_bytes_with_a_note(self):
        scratch = self.scratch(STAGE_2)
        whole = scratch.optim(1).read_bytes()
        scratch.optim(1).write_bytes(whole[:-100])
        packed = self.pack(scratch.folder)
        self.assertRegex(self.said.stderr, f"note: .*{scratch.optim(1).name} is packed as plain bytes: .+")
        self.assertEqual(contents(self.unpack(packed)), contents(scratch.folder))

    def test_packed_bytes_do_not_depend_on_threads(self):
        source = self.tensors_file()
        first = contents(self.pack(source))
        for threads in (1, 2, 8):
            self.assertEqual(contents(self.pack(source, "--threads", threads)), first, threads)
        for mode in ("buffered", "direct"):
            self.assertEqual(contents(self.pack(source, "--io", mode)), first, mode)
            self.assertEqual(contents(self.unpack(self.pack(source), "--io", mode)), contents(source))

    def test_every_level_gives_the_bytes_back(self):
        source = self.scratch(STAGE_2).folder
        sizes = []
        for level in (1, 9, 19):
            packed = self.pack(source, "--level", level)
            sizes.append(sum(map(len, contents(packed).values())))
            self.assertEqual(contents(self.unpack(packed)), contents(source))
        self.assertGreater(sizes[0], sizes[2])
        for level in ("0", "20", "-1", "x"):
            error, _ = self.refusal(2, "ckpt-pack", "pack", source, self.new_path(), f"--level={level}")
            self.assertIn("--level", error["message"])


class PlacesTest(PackCliTest):

    def test_a_dry_run_writes_nothing_and_says_what_would_be(self):
        scratch = self.scratch(STAGE_2)
        before = snapshot(self.root)
        for command in ("pack", "unpack"):
            done = self.tool("ckpt-pack", command, scratch.folder, self.root / "new", "--dry-run", "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            line, = self.json_lines(done.stdout)
            self.assertEqual(line["type"], "plan")
            files = contents(scratch.folder)
            self.assertEqual({file["path"]: file["bytes"] for file in line["data"]["files"]},
                             {name: len(data) for name, data in files.items()})
            self.assertEqual(line["data"]["bytes"], sum(map(len, files.values())))
            self.assertTrue(all(file["packed"] == file["path"].endswith(".pt") for file in line["data"]["files"]))
            text = self.tool("ckpt-pack", command, scratch.folder, self.root / "new", "--dry-run").stdout
            for name in files:
                self.assertIn(name, text)
        self.assertEqual(snapshot(self.root), before)

    def test_json_has_the_bytes_of_both_forms(self):
        scratch = self.scratch(STAGE_2)
        output = self.pack(scratch.folder, "--json")
        line, = self.json_lines(self.said.stdout)
        self.assertEqual(line["type"], "done")
        data = line["data"]
        self.assertEqual(data["output"], str(output))
        self.assertEqual(data["bytes"], sum(map(len, contents(scratch.folder).values())))
        self.assertEqual(data["bytes_stored"], sum(map(len, contents(output).values())))
        self.assertLess(data["bytes_stored"], data["bytes"])
        self.ckpt_pack("unpack", output, "--json", output=self.root / "again")
        data = self.json_lines(self.said.stdout)[0]["data"]
        self.assertEqual(data["bytes_stored"], data["bytes"])

    def test_an_output_that_is_there_is_replaced_only_with_force_and_as_a_whole(self):
        scratch = self.scratch(STAGE_2)
        output = self.pack(scratch.folder)
        (output / "stranger").write_text("x")
        before = snapshot(output)
        self.pack(scratch.folder)
        error, _ = self.refusal(2, "ckpt-pack", "pack", scratch.folder, output)
        self.assertIn("exist", error["message"])
        self.assertEqual(snapshot(output), before)
        self.ckpt_pack("pack", scratch.folder, "--force", output=output)
        self.assertEqual({path.removesuffix(".dspack") for path in contents(output)}, set(contents(scratch.folder)))
        self.ckpt_pack("unpack", output, output=self.root / "again")
        self.assertEqual(contents(self.root / "again"), contents(scratch.folder))

    def test_output_and_input_may_not_lie_in_one_another(self):
        scratch = self.scratch(STAGE_2)
        before = snapshot(self.root)
        link = self.root / "link"
        link.symlink_to(scratch.folder)
        for output in [scratch.folder, scratch.folder / "new", scratch.tag / "a" / "b", link / "new", self.root,
                       scratch.folder / ".." / scratch.folder.name]:
            for command in ("pack", "unpack"):
                for options in ([], ["--force"], ["--dry-run"]):
                    error, _ = self.refusal(2, "ckpt-pack", command, scratch.folder, output, *options)
                    self.assertRegex(error["message"], "lies in the input|holds the input")
        link.unlink()
        self.assertEqual({k: v[3] for k, v in snapshot(self.root).items()}, {k: v[3] for k, v in before.items()})

    def test_no_input_is_a_usage_error(self):
        empty = self.new_path()
        empty.mkdir()
        for source in (self.root / "nowhere", empty):
            for command in ("pack", "unpack"):
                self.refusal(2, "ckpt-pack", command, source, self.new_path())
            self.refusal(2, "ckpt-pack", "estimate", source)

    def test_links_and_special_files_are_noted(self):
        scratch = self.scratch(STAGE_2)
        target = scratch.tag / "target.pt"
        scratch.model().rename(target)
        scratch.tag.joinpath("mp_rank_00_model_states.pt").symlink_to("target.pt")
        scratch.folder.joinpath("broken").symlink_to("nowhere")
        scratch.folder.joinpath("folder").symlink_to(self.tmp)
        os.mkfifo(scratch.folder / "pipe")
        (scratch.folder / ".dsckpt-staging-1").mkdir()
        (scratch.folder / ".dsckpt-staging-1" / "x.pt").write_text("x")
        packed = self.pack(scratch.folder)
        for pattern in ["broken is a broken link", "folder is a link to a folder", "pipe is neither file nor folder",
                        ".dsckpt-staging-1 is unfinished"]:
            self.assertRegex(self.said.stderr, f"note: {re.escape(pattern)} and is left out")
        files = contents(self.unpack(packed))
        self.assertEqual(files[f"{scratch.tag.name}/mp_rank_00_model_states.pt"], target.read_bytes())
        self.assertEqual(files[f"{scratch.tag.name}/target.pt"], target.read_bytes())
        self.assertFalse([name for name in files if "broken" in name or "pipe" in name or "staging" in name])

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
            self.assertIn(f"is there as {names[0]} and as {names[1]}", stderr)


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
                    self.assertEqual((got.returncode, got.stdout), (expected.returncode, expected.stdout), name)

    def test_like_may_be_packed(self):
        like, source = self.scratch("hf_trainer_llama_z3_bf16_w2"), self.scratch("hf_trainer_llama_z3_bf16_w2")
        weights = self.convert(source.folder, "--safe-serialization")
        made = []
        for folder, values in ((like.folder, weights), (self.pack(like.folder), self.pack(weights))):
            made.append(self.new_path() / "x")
            done = self.tool("reshard", values, made[-1], "--dp", "2", "--like", folder)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(contents(made[0]), contents(made[1]))


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
        import struct

        import xxhash
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
        self.assertIn(sha256(scratch.optim(1).read_bytes()), stderr)
        self.assertFalse(output.exists())

    def test_verify_names_the_records_that_packing_finds_damaged(self):
        scratch = self.scratch(STAGE_2)
        offset, _ = cli_common.record_extent(scratch.optim(0), "data/0")
        flip(scratch.optim(0), offset)
        error, stderr = self.refusal(3, "ckpt-pack", "pack", scratch.folder, self.new_path(), "--verify")
        self.assertIn("data/0", stderr)
        self.assertIn(scratch.optim(0).name, error["file"])


class WritersTest(PackCliTest):
    """--zstd of the tools that write."""

    def made_by(self, scratch, tool, output, *options):
        places = {"to-universal": ["--input-folder", scratch.tag, "--output-folder", output / "universal"],
                  "reshard": [scratch.folder, output, "--dp", "3"]}.get(tool, [scratch.folder, output])
        done = self.tool(tool, *places, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def test_packed_output_unpacks_to_the_plain_output(self):
        for name in (STAGE_2, STAGE_3, "hf_trainer_llama_z1_bf16_w3"):
            scratch = self.scratch(name)
            for tool, *options in [["zero-to-fp32", "--max-shard-size=9KB", "--states"],
                                   ["zero-to-fp32", "--safe-serialization", "--dtype=bf16", "--max-shard-size=9KB"],
                                   ["to-universal"], ["reshard"]]:
                plain = contents(self.made_by(scratch, tool, self.new_path(), *options))
                for level in ("--zstd", "--zstd=19"):
                    output = self.made_by(scratch, tool, self.new_path(), *options, level)
                    packed = contents(output)
                    self.assertEqual({path.removesuffix(".dspack") for path in packed}, set(plain))
                    for path, data in packed.items():
                        tensors = stored_forms.is_of_tensors(pathlib.Path(path.removesuffix(".dspack")))
                        self.assertEqual(path.endswith(".dspack"), tensors, path)
                        if not tensors:
                            self.assertEqual(data, plain[path], path)
                    unpacked = contents(self.unpack(output))
                    self.assertEqual(sorted(unpacked), sorted(plain))
                    for path, data in plain.items():
                        self.assertTrue(unpacked[path] == data, (tool, level, path))

    def test_packed_output_is_read_as_the_plain_one(self):
        scratch = self.scratch(STAGE_2)
        for tool in ("zero-to-fp32", "to-universal", "reshard"):
            plain, packed = (self.made_by(scratch, tool, self.new_path(), *options) for options in ([], ["--zstd"]))
            self.assertEqual(self.tool("ckpt-inspect", "diff", plain, packed).returncode, 0)
            self.assertEqual(self.tool("ckpt-inspect", "verify", packed).returncode, 0)
            if tool != "zero-to-fp32":
                self.assertEqual(contents(self.convert(packed)), contents(self.convert(plain)))

    def test_one_form_takes_the_place_of_the_other(self):
        scratch = self.scratch(STAGE_2)
        for tool in ("zero-to-fp32", "to-universal", "reshard"):
            for first, second in (([], ["--zstd"]), (["--zstd"], [])):
                output, expected = self.new_path(), self.new_path()
                self.made_by(scratch, tool, output, *first)
                place = {"to-universal": ["--input-folder", scratch.tag, "--output-folder", output / "universal"],
                         "reshard": [scratch.folder, output, "--dp", "3"]}.get(tool, [scratch.folder, output])
                before = snapshot(output)
                self.assertEqual(self.tool(tool, *place, *second).returncode, 2)
                self.assertEqual(snapshot(output), before)
                self.made_by(scratch, tool, output, "--force", *second)
                self.assertEqual(contents(output), contents(self.made_by(scratch, tool, expected, *second)))

    def test_levels_that_are_none_are_usage_errors(self):
        scratch = self.scratch(STAGE_2)
        for level in ("0", "20", "-3", "fast", "1.5"):
            for tool, *place in [["zero-to-fp32", scratch.folder, self.new_path()],
                                 ["to-universal", "--input-folder", scratch.tag, "--output-folder", self.new_path()],
                                 ["reshard", scratch.folder, self.new_path(), "--dp", "2"]]:
                error, _ = self.refusal(2, tool, *place, f"--zstd={level}")
                self.assertIn("--zstd", error["message"])

    def test_packed_bytes_do_not_depend_on_threads(self):
        scratch = self.scratch(STAGE_3)
        for tool in ("zero-to-fp32", "to-universal", "reshard"):
            first = contents(self.made_by(scratch, tool, self.new_path() / "x", "--zstd"))
            for threads in (1, 8):
                self.assertEqual(contents(self.made_by(scratch, tool, self.new_path() / "x", "--zstd", "--threads", threads)),
                                 first)


class EstimateTest(PackCliTest):

    def test_the_estimate_is_within_two_percent(self):
        source = self.tensors_file(10 << 20)
        actual = (self.pack(source) / "weights.pt.dspack").stat().st_size
        done = self.tool("ckpt-pack", "estimate", source, "--sample=8MB", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        line, = self.json_lines(done.stdout)
        data = line["data"]
        self.assertEqual((line["type"], data["files"], data["bytes"]),
                         ("estimate", 1, (source / "weights.pt").stat().st_size))
        self.assertLess(abs(data["bytes_stored"] / actual - 1), 0.02)
        kinds = {kind["kind"]: kind for kind in data["kinds"]}
        self.assertEqual(sum(kind["bytes"] for kind in kinds.values()), data["bytes"])
        self.assertEqual(kinds["float32"]["bytes"], 40 << 20)
        self.assertEqual(kinds["bfloat16"]["bytes"], 10 << 20)
        self.assertLess(sum(kind["bytes_sampled"] for kind in kinds.values()), 16 << 20)
        # The exponents of normal values have about 2.6 bits of entropy, mantissas and signs all of theirs.
        self.assertAlmostEqual(kinds["float32"]["ratio"], (24 + 2.6) / 32, delta=0.02)
        self.assertAlmostEqual(kinds["bfloat16"]["ratio"], (8 + 2.6) / 16, delta=0.02)
        self.assertGreater(data["seconds"], 0)
        text = self.tool("ckpt-pack", "estimate", source).stdout
        self.assertRegex(text, r"(?m)^float32\t")
        self.assertIn("1 file", text)

    def test_a_small_file_is_estimated_to_the_byte_of_its_frames(self):
        scratch = self.scratch(STAGE_2)
        packed = self.pack(scratch.folder)
        actual = sum(path.stat().st_size for path in packed.rglob("*.dspack"))
        done = self.tool("ckpt-pack", "estimate", scratch.folder, "--json")
        data = self.json_lines(done.stdout)[0]["data"]
        index = sum(16 + 40 + 32 + 32 * path_frames(path) for path in packed.rglob("*.dspack"))
        self.assertEqual(round(data["bytes_stored"]) + index, actual)


def path_frames(path):
    data = path.read_bytes()
    return int.from_bytes(data[int.from_bytes(data[-32:-24], "little"):][:8], "little")


class FaultTest(PackCliTest):

    def test_a_full_disk_is_an_io_error_and_leaves_nothing(self):
        source = self.tensors_file(1 << 20)
        scratch = self.scratch(STAGE_2)

        def limit(size):
            return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        packed = self.pack(source)
        for arguments, size in [(["pack", source], 1 << 20), (["pack", source], 0), (["unpack", packed], 1 << 20)]:
            before = snapshot(self.root)
            done = self.tool("ckpt-pack", *arguments, self.root / "full", "--json", preexec_fn=limit(size))
            self.assertEqual(done.returncode, 4, done.stderr)
            self.assertIn("File too large", done.stderr)
            self.assertEqual({k: v[3] for k, v in snapshot(self.root).items()}, {k: v[3] for k, v in before.items()})
        output = self.new_path()
        done = self.zero_to_fp32(scratch.folder, output, "--zstd", preexec_fn=limit(500))
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn(".dspack", done.stderr)
        self.assertFalse(output.exists())

    def test_a_small_file_system_is_an_io_error_and_leaves_nothing(self):
        folder = self.new_path("mount")
        folder.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True).returncode:
            self.skipTest("cannot mount a small file system here")
        try:
            source = self.tensors_file(1 << 20)
            for arguments in (["pack", source], ["unpack", self.pack(source)]):
                done = self.tool("ckpt-pack", *arguments, folder / "out")
                self.assertEqual(done.returncode, 4, done.stderr)
                self.assertIn("No space left", done.stderr)
                self.assertEqual(list(folder.iterdir()), [])
        finally:
            subprocess.run(["umount", folder], check=True)

    def test_interrupting_leaves_nothing(self):
        source = self.tensors_file(24 << 20)
        packed = self.pack(source)
        for command, source in (("pack", source), ("unpack", packed)):
            output = self.new_path() / "new"
            run = self.caught_midway(command, source, output)
            run.send_signal(signal.SIGINT)
            run.send_signal(signal.SIGCONT)
            stdout, stderr = run.communicate(timeout=60)
            self.assertEqual(run.returncode, 130, stderr)
            self.assertEqual(json.loads(stdout)["data"]["kind"], "interrupted")
            self.assertFalse(output.parent.exists())

    def caught_midway(self, command, source, output):
        binary = str(pathlib.Path(os.environ["DSCKPT_BIN"]) / "ckpt-pack")
        for _ in range(5):
            run = subprocess.Popen([binary, command, str(source), str(output), "--json", "--threads=1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.addCleanup(run.communicate)
            self.addCleanup(run.kill)
            while run.poll() is None and not any(output.parent.glob(".dsckpt-staging-*/files/*")):
                time.sleep(0.0002)
            if run.poll() is None:
                run.send_signal(signal.SIGSTOP)
                return run
            shutil.rmtree(output)
        self.fail("every run was over before it could be caught")


class HelpTest(PackCliTest):

    def test_help_lists_every_subcommand_and_option(self):
        text = self.tool("ckpt-pack", "--help").stdout
        for name in ("pack", "unpack", "estimate"):
            self.assertRegex(text, rf"(?m)^  {name} {{3,}}\S")
            self.assertEqual(self.tool("ckpt-pack", "help", name).stdout, self.tool("ckpt-pack", name, "--help").stdout)
        for name, options in (("pack", ["--level", "--sha256", "--dry-run", "--force", "--threads", "--json"]),
                              ("unpack", ["--sha256", "--dry-run", "--force", "--threads", "--json"]),
                              ("estimate", ["--level", "--sample", "--threads", "--json"])):
            text = self.tool("ckpt-pack", name, "--help").stdout
            for option in options:
                self.assertIn(f" {option}", text)
        done = self.tool("ckpt-pack")
        self.assertEqual((done.returncode, done.stdout), (2, ""))

    def test_a_slip_is_a_usage_error(self):
        for arguments in (["pack", "a"], ["pack"], ["unpack", "a"], ["estimate"], ["pakc", "a", "b"], ["pack", "a", "b", "--lvel=2"]):
            self.refusal(2, "ckpt-pack", *arguments)


if __name__ == "__main__":
    cli_common.main()
