"""ckpt-pack: what is packed comes back byte for byte, and nothing is left or lost where a run fails."""
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
import stored_forms
import tools
import torch_files
from cli_common import snapshot
from pack_cli import NVME, STAGE_2, STAGE_3, PackCliTest
from stored_forms import contents

# One for each kind of file and layout; all cases are packed_test.py's.
CASES = [STAGE_2, STAGE_3, NVME, "z2_bf16_legacyserial_w2", "z0_bf16_w2", "hf_trainer_llama_z1_bf16_w3", "moe_ep2_dp2_z1_bf16",
         "pp2_tp2_dp1_z1_bf16", "autotp2_dp2_z3_nvme"]


def frames_of(path):
    """How many a packed file has, by its index."""
    data = path.read_bytes()
    index = int.from_bytes(data[-32:-24], "little")
    return int.from_bytes(data[index:index + 8], "little")


class RoundTripTest(PackCliTest):

    def test_what_torch_distributed_checkpoint_wrote_is_copied_and_nothing_is_said_against_it(self):
        scratch, folder, packed = self.scratch(STAGE_3), self.new_path(), self.new_path()
        self.assertEqual(self.tool("to-dcp", scratch.folder, folder, "--dp=2").returncode, 0)
        done = self.tool("ckpt-pack", "pack", folder, packed)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("bytes are missing", done.stderr)
        self.assertEqual(contents(packed), contents(folder))
        (folder / ".metadata").unlink()
        for tool, *arguments in (("zero-to-fp32", folder, self.new_path()), ("ckpt-inspect", "verify", folder)):
            done = self.tool(tool, *arguments)
            self.assertEqual(done.returncode, 3)
            self.assertIn("no .metadata, which is written last", done.stderr)
        self.assertEqual(self.tool("to-dcp", scratch.folder, self.new_path(), "--dp=2", "--zstd").returncode, 2)

    def test_the_file_latest_is_no_checkpoint_to_pack(self):
        done = self.tool("ckpt-pack", "pack", self.scratch(STAGE_3).folder / "latest", self.new_path())
        self.assertEqual(done.returncode, 2)
        self.assertIn("give the folder that it is in", done.stderr)

    def test_unpacking_gives_every_file_back(self):
        cases = {case.name: case for case in [*tools.all_cases(), *tools.model_parallel_cases()]}
        for name in CASES:
            expected = contents(cases[name].load_dir)
            packed = self.pack(cases[name].load_dir)
            self.assertEqual({path.removesuffix(".dspack") for path in contents(packed)}, set(expected))
            self.assertEqual(contents(self.unpack(packed)), expected)
            compressed = stored_forms.zstd_copy(cases[name].load_dir, self.new_path())
            self.assertEqual(contents(self.unpack(compressed)), expected)

    def test_all_of_the_test_data_comes_back(self):
        """Any files of a folder: pickles that torch would not load, text, damaged files."""
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
        tensors = {f"layer{i}": torch_files.randn(300, 100) for i in range(40)}
        half = torch_files.randn(30000, dtype="bfloat16")
        torch_files.save_file({**tensors, "half": half}, folder / "model.safetensors")
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


class RequestsTest(PackCliTest):
    on_disk = True

    def test_packed_bytes_do_not_depend_on_how_requests_are_made(self):
        source = self.tensors_file()
        first = contents(self.pack(source))
        for mode in ("buffered", "direct"):
            self.assertEqual(contents(self.pack(source, "--io", mode)), first, mode)
            self.assertEqual(contents(self.unpack(self.pack(source), "--io", mode)), contents(source))


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
        # `latest` has none.
        self.assertRegex(self.said.stderr, r"\Ackpt-pack: \d+ files of .+ checksums verified, 12 B without any\n\Z")
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
                    self.assertRegex(error["message"], "(is|lies inside|holds) the input folder")
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
        (scratch.tag / "above").symlink_to(scratch.folder)
        os.mkfifo(scratch.folder / "pipe")
        (scratch.folder / ".dsckpt-staging-1").mkdir()
        (scratch.folder / ".dsckpt-staging-1" / "x.pt").write_text("x")
        packed = self.pack(scratch.folder)
        for pattern in ["broken is a broken link", f"{scratch.tag.name}/above is a link to a folder that it is in",
                        "pipe is neither file nor folder",
                        ".dsckpt-staging-1 is unfinished"]:
            self.assertRegex(self.said.stderr, f"(?m)^ckpt-pack: note: {re.escape(pattern)} and is left out")
        files = contents(self.unpack(packed))
        self.assertEqual(files[f"{scratch.tag.name}/mp_rank_00_model_states.pt"], target.read_bytes())
        self.assertEqual(files[f"{scratch.tag.name}/target.pt"], target.read_bytes())
        self.assertFalse([name for name in files if "broken" in name or "pipe" in name or "staging" in name])

    def test_a_tag_that_is_a_link_is_packed(self):
        scratch = self.scratch(STAGE_2)
        real = scratch.tag.rename(scratch.folder / "real")
        scratch.tag.symlink_to("real")
        inside = contents(self.unpack(self.pack(scratch.folder)))
        for file in real.iterdir():
            self.assertEqual(inside[f"{scratch.tag.name}/{file.name}"], file.read_bytes())
        # A link out of the folder could be to any folder of this machine.
        scratch.tag.unlink()
        elsewhere = real.rename(self.new_path("elsewhere"))
        scratch.tag.symlink_to(elsewhere)
        data, _ = self.refusal(2, "ckpt-pack", "pack", scratch.folder, self.new_path())
        self.assertIn("is a link out of the folder", data["message"])
        followed = contents(self.unpack(self.pack(scratch.folder, "--follow-links")))
        self.assertEqual({name for name in followed if name.startswith(scratch.tag.name)},
                         {f"{scratch.tag.name}/{file.name}" for file in elsewhere.iterdir()})


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
        index = sum(16 + 40 + 32 + 32 * frames_of(path) for path in packed.rglob("*.dspack"))
        self.assertEqual(round(data["bytes_stored"]) + index, actual)


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
            # Slowly, so that it is caught on a busy machine too.
            run = subprocess.Popen([binary, command, str(source), str(output), "--json", "--threads=1", "--limit-rate=16MB"],
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
        for name in ("pack", "unpack", "strip", "estimate"):
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
