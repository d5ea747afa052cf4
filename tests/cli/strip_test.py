"""ckpt-pack strip: its arguments, where it writes, and inputs it must refuse or get through."""
import shutil
import zipfile

import cli_common
import torch_files
from cli_common import CliTest, snapshot
from edits import edited


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class StripTest(CliTest):

    def strip(self, *arguments, code=0):
        done = self.tool("ckpt-pack", "strip", *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def stripped(self, source, keep="weights", *options):
        output = self.new_path()
        self.strip(source, output, "--keep", keep, *options)
        return output

    def weights_of(self, folder):
        return (self.convert(folder, "--safe-serialization") / "model.safetensors").read_bytes()

    def test_keep_is_asked_for_and_takes_two_words(self):
        folder = self.scratch("z2_bf16_w2").folder
        for arguments in [(), ("--keep",), ("--keep", "masters")]:
            self.strip(folder, self.new_path(), *arguments, code=2)
        for keep in ("weights", "resume"):
            line, = self.json_lines(self.strip(folder, self.new_path(), "--keep", keep, "--json").stdout)
            self.assertEqual((line["type"], line["data"]["keep"], line["data"]["tag"]),
                             ("done", keep, "global_step3"))
            self.assertEqual(line["data"]["checkpoint"]["zero_stage"], 2)

    def test_what_is_in_the_way_stays(self):
        scratch = self.scratch("z2_bf16_w2")
        before = snapshot(scratch.folder)
        for output in (scratch.folder, scratch.tag, scratch.tag / "inside"):
            self.strip(scratch.folder, output, "--keep", "weights", "--force", code=2)
        self.assertEqual(snapshot(scratch.folder), before)
        output = self.stripped(scratch.folder, "resume")
        done = self.strip(scratch.folder, output, "--keep", "weights", code=2)
        self.assertIn("--force replaces files that ckpt-pack strip wrote there before", done.stderr)
        self.strip(scratch.folder, output, "--keep", "weights", "--force", "--pack")
        self.strip(scratch.folder, output, "--keep", "resume", "--force")
        (output / "notes.txt").write_text("mine")
        done = self.strip(scratch.folder, output, "--keep", "weights", "--force", code=2)
        self.assertIn("notes.txt, which would be lost", done.stderr)
        self.assertEqual((output / "notes.txt").read_text(), "mine")

    def test_packed_input_and_output_hold_the_same(self):
        for name in ("z2_bf16_w2", "z3_fp32_nvme_full_w3"):
            folder = self.scratch(name).folder
            packed = self.new_path()
            self.assertEqual(self.tool("ckpt-pack", "pack", folder, packed).returncode, 0)
            expected = contents(self.stripped(folder))
            self.assertEqual(contents(self.stripped(packed)), expected)
            small = self.stripped(packed, "weights", "--pack=19")
            self.assertTrue(list(small.rglob("*.dspack")))
            self.assertEqual(self.weights_of(small), self.weights_of(folder))
            unpacked = self.new_path()
            self.assertEqual(self.tool("ckpt-pack", "unpack", small, unpacked).returncode, 0)
            self.assertEqual(contents(unpacked), expected)

    def test_verify_notices_damage_of_what_is_left_out(self):
        scratch = self.scratch("z2_bf16_w2")
        with zipfile.ZipFile(scratch.optim(0)) as archive:
            # The step count comes first, then the moments, then the masters.
            moment = [info for info in archive.infolist() if "/data/" in info.filename][1]
        data = bytearray(scratch.optim(0).read_bytes())
        data[moment.header_offset + 200] ^= 1
        scratch.optim(0).write_bytes(data)
        self.strip(scratch.folder, self.new_path(), "--keep", "weights")
        output = self.new_path()
        done = self.strip(scratch.folder, output, "--keep", "weights", "--verify", code=3)
        self.assertIn(moment.filename, done.stderr)
        self.assertFalse(output.exists())

    def test_what_cannot_be_read_is_not_stripped(self):
        scratch = self.scratch("z2_bf16_w2")
        scratch.optim(1).unlink()
        before = snapshot(scratch.folder)
        for keep in ("weights", "resume"):
            output = self.new_path()
            line, = self.json_lines(self.strip(scratch.folder, output, "--keep", keep, "--json", code=3).stdout)
            self.assertIn("optim_states.pt", line["data"]["message"])
            self.assertFalse(output.exists())
        self.assertEqual(snapshot(scratch.folder), before)

    def test_a_stripped_file_among_whole_ones_makes_the_checkpoint_a_stripped_one(self):
        scratch = self.scratch("z2_bf16_w2")
        output = self.stripped(scratch.folder)
        shutil.copyfile(output / "global_step3" / scratch.model().name, scratch.model())
        done = self.tool("reshard", scratch.folder, self.new_path(), "--dp", 1)
        self.assertEqual(done.returncode, 3)
        self.assertIn("was stripped to its weights by ckpt-pack strip", done.stderr)

    def test_values_that_are_nowhere_any_more_are_missed(self):
        # A parameter that no optimizer owns, without its values: those of a pipeline's layer, say.
        scratch = self.scratch("z2_fp32_full_w3")
        output = self.stripped(scratch.folder)
        model = output / "global_step3" / "mp_rank_00_model_states.pt"
        with edited(model) as state:
            name = next(iter(state["param_shapes"][0]))
            state["param_shapes"][0][name] = torch_files.Size([*state["param_shapes"][0][name], 1])
        done = self.zero_to_fp32(output, self.new_path())
        self.assertEqual(done.returncode, 3)
        self.assertIn("does not have the shape that the tensor in `module` has", done.stderr)

    def test_pickles_with_other_bytes_end_in_a_result_or_a_message(self):
        scratch = self.scratch("z2_bf16_w2")
        stripped = self.stripped(scratch.folder)
        model = stripped / "global_step3" / "mp_rank_00_model_states.pt"
        with zipfile.ZipFile(model) as archive:
            records = {info.filename: archive.read(info) for info in archive.infolist()}
        pickled, = [name for name in records if name.endswith("/data.pkl")]
        whole = records[pickled]
        meta = whole.index(b"_rebuild_meta_tensor_no_storage")
        codes = set()
        for at in [*range(meta - 20, meta + 120, 3), *range(0, len(whole), len(whole) // 40)]:
            changed = bytearray(whole)
            changed[at] ^= 0x15
            with zipfile.ZipFile(model, "w") as archive:
                for name, content in {**records, pickled: bytes(changed)}.items():
                    archive.writestr(name, content)
            for arguments in [("zero-to-fp32", stripped, self.new_path()),
                              ("ckpt-pack", "strip", stripped, self.new_path(), "--keep", "resume")]:
                done = self.tool(*arguments)
                self.assertIn(done.returncode, (0, 3), done.stderr)
                codes.add(done.returncode)
        self.assertEqual(codes, {0, 3})

    def test_the_random_numbers_of_all_ranks_come_along(self):
        scratch = self.scratch("z2_bf16_w2")
        for name in ("rng_state_7.pth", "random_states_0.pkl", "rng_state.pth", "sub/config.json"):
            path = scratch.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(name)
        for keep in ("weights", "resume"):
            output = self.stripped(scratch.folder, keep)
            for name in ("rng_state_7.pth", "random_states_0.pkl", "rng_state.pth", "sub/config.json"):
                self.assertEqual((output / name).read_text(), name)

    def test_the_folder_of_the_tag_alone_is_enough(self):
        scratch = self.scratch("z3_bf16_w2")
        output = self.stripped(scratch.tag)
        self.assertEqual((output / "latest").read_text(), "global_step3")
        self.assertEqual(self.weights_of(output), self.weights_of(scratch.folder))
        text = self.strip(scratch.tag, self.new_path(), "--keep", "weights", "--dry-run").stdout.splitlines()
        self.assertEqual([line.split("\t")[0] for line in text[:-1]],
                         [*(f"global_step3/{path.name}" for path in scratch.shards()), "latest"])


class LinkTest(CliTest):

    def test_a_link_out_of_a_universal_checkpoint_is_left_out_with_a_note(self):
        universal = self.new_path("universal")
        self.assertEqual(self.tool("to-universal", "--input-folder", self.scratch("z2_bf16_w2").folder, "--output-folder",
                                   universal).returncode, 0)
        secret = self.new_path("secret")
        secret.write_text("elsewhere")
        (universal / "zero" / "notes.txt").symlink_to(secret)
        for options, has_it in (([], False), (["--follow-links"], True)):
            output = self.new_path()
            done = self.tool("ckpt-pack", "strip", universal, output, "--keep=resume", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(bool(list(output.rglob("notes.txt"))), has_it)
            self.assertEqual("notes.txt is a link out of the checkpoint" in done.stderr, not has_it, done.stderr)


if __name__ == "__main__":
    cli_common.main()
