"""The paths that zero-to-fp32 accepts as a checkpoint, and its choice among several."""
import errno
import re
import shutil

import cli_common
import torch_files
from cli_common import CliTest, tree

SMALL = "z2_bf16_w2"
BIN = "pytorch_model.bin"


class CheckpointPlaceTest(CliTest):

    def assert_same_weights(self, scratch, *sources, arguments=()):
        expected = torch_files.load(self.convert(scratch.case.load_dir) / BIN)
        for source in sources:
            with self.subTest(source=source):
                tensors = torch_files.load(self.convert(source, *arguments) / BIN)
                self.assertEqual(list(tensors), list(expected))
                for name, value in expected.items():
                    self.assertTrue(torch_files.same_bits(tensors[name], value), name)

    def test_a_folder_with_latest_a_tag_or_the_tag_folder(self):
        for name in [SMALL, "z3_fp32_w3", "z0_bf16_w2"]:
            scratch = self.scratch(name)
            self.assert_same_weights(scratch, scratch.folder, scratch.tag, str(scratch.tag) + "/")
            (scratch.folder / "latest").unlink()
            self.assert_same_weights(scratch, scratch.folder, arguments=["-t", scratch.tag.name])
            self.assert_same_weights(scratch, scratch.tag)

    def test_an_older_tag_can_be_named_beside_latest(self):
        scratch = self.scratch(SMALL)
        old = self.scratch("z2_fp16_w2")
        shutil.copytree(old.tag, scratch.folder / "global_step1")
        self.assert_same_weights(old, scratch.folder, arguments=["--tag=global_step1"])
        self.assert_same_weights(scratch, scratch.folder)

    def test_the_folders_that_accelerate_and_the_trainer_write(self):
        accelerate = self.scratch("hf_accelerate_llama_z3_fp32_w2")
        self.assertEqual(accelerate.tag.name, "pytorch_model")
        self.assert_same_weights(accelerate, accelerate.folder, accelerate.tag)
        trainer = self.scratch("hf_trainer_llama_z3_bf16_w2")
        self.assertRegex(str(trainer.case.load_dir), r"checkpoint-\d+$")
        self.assert_same_weights(trainer, trainer.folder, trainer.tag)

    def test_latest_may_end_in_white_space(self):
        scratch = self.scratch(SMALL)
        for ending in ["\n", "\r\n", " \n\n", "\t"]:
            (scratch.folder / "latest").write_bytes((scratch.tag.name + ending).encode())
            self.assert_same_weights(scratch, scratch.folder)

    def test_a_latest_that_names_no_tag_is_refused_with_what_is_there(self):
        scratch = self.scratch(SMALL)
        tag = scratch.tag.name
        (scratch.folder / "other").mkdir()
        latest = scratch.folder / "latest"
        latest.write_text("global_step9")
        self.assert_refused(scratch.folder, 3, f"global_step9.*{tag}, other", where={"file": "latest"})
        for content in [b"", b"\n", b"\0", b"../" + tag.encode(), b"/etc", b"x" * 5000, b"a\0b"]:
            latest.write_bytes(content)
            self.assert_refused(scratch.folder, 3, "tag", where={"file": "latest"})
        latest.write_text(tag)
        self.assert_refused(scratch.folder, 3, f"no such tag.*{tag}, other", "--tag=nope", inspect=False)
        self.assert_refused(scratch.folder, 3, "holds no DeepSpeed shards", "--tag=other", inspect=False)

    def trainers_output(self, *names):
        """A Trainer's folder with checkpoints of these names."""
        scratch = self.scratch(SMALL)
        output = self.new_path()
        for name in names:
            shutil.copytree(scratch.folder, output / name)
            cli_common.set_step(output / name, int(re.findall(r"\d+", name)[-1]))
        return scratch, output

    def break_one(self, folder):
        sorted(folder.rglob("*optim_states.pt"))[-1].unlink()

    def test_a_damaged_newest_one_that_nothing_names_is_passed_over(self):
        scratch, output = self.trainers_output("checkpoint-1", "checkpoint-2", "checkpoint-3")
        self.break_one(output / "checkpoint-3")
        self.break_one(output / "checkpoint-2")
        done = self.zero_to_fp32(output, self.new_path())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"reading {output}/checkpoint-1, the newest that is whole", done.stderr)
        self.assertIn("checkpoint-3", done.stderr)
        self.break_one(output / "checkpoint-1")
        done = self.zero_to_fp32(output, self.new_path())
        self.assertEqual(done.returncode, 3)
        self.assertIn("checkpoint-3", done.stderr.splitlines()[0])

    def test_a_folder_that_cannot_be_listed_never_makes_an_older_one_the_newest(self):
        scratch, output = self.trainers_output("checkpoint-1", "checkpoint-2")
        tags = self.new_path("tags")
        for step in (1, 2):
            shutil.copytree(scratch.tag, tags / f"global_step{step}")
            cli_common.set_step(tags / f"global_step{step}", step)
        for folder, newest, *options in ((output, "checkpoint-2"), (tags, "global_step2"),
                                         (tags, "global_step2", "--tag", "all")):
            expected = self.new_path()
            whole = self.zero_to_fp32(folder, expected, *options)
            self.assertEqual(whole.returncode, 0, whole.stderr)
            statuses = set()
            for at in range(1, 30):
                made = self.new_path()
                fault = self.with_fault(call="opendir", at=at, errno=errno.EACCES)
                done = self.zero_to_fp32(folder, made, *options, env=fault)
                statuses.add(done.returncode)
                with self.subTest(folder=folder.name, options=options, at=at):
                    if done.returncode == 0:
                        for left in made.glob(".dsckpt-staging-*"):  # the fault met its removal
                            shutil.rmtree(left)
                        self.assertTrue(tree(made) == tree(expected))
                        self.assertIn(newest, done.stderr)
                    else:
                        self.assertEqual(done.returncode, 4, done.stderr)
                        self.assertIn("Permission denied", done.stderr)
            self.assertEqual(statuses, {0, 4})

    def test_what_latest_names_is_never_passed_over_but_the_others_are_listed(self):
        scratch = self.scratch(SMALL)
        for name in ("global_step1", "global_step2"):
            shutil.copytree(scratch.tag, scratch.folder / name)
        self.break_one(scratch.tag)
        done = self.zero_to_fp32(scratch.folder, self.new_path())
        self.assertEqual(done.returncode, 3)
        self.assertIn(f"other checkpoints there: {scratch.folder}/global_step2, {scratch.folder}/global_step1", done.stderr)
        self.assertEqual(self.zero_to_fp32(scratch.folder, self.new_path(), "--tag", "global_step2").returncode, 0)

    def test_a_trainers_folder_stands_for_its_newest_checkpoint(self):
        scratch = self.scratch(SMALL)
        output = self.new_path()
        for name in ("checkpoint-9", "checkpoint-10"):
            shutil.copytree(scratch.folder, output / name)
            cli_common.set_step(output / name, int(name[len("checkpoint-"):]))
            (output / name / "trainer_state.json").write_text("{}")
        (output / "checkpoint-10" / "latest").unlink()
        (output / "checkpoint-10" / "latest").write_text(scratch.tag.name)
        newest = self.new_path()
        done = self.zero_to_fp32(output, newest)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"note: reading checkpoint-10, the newest of 2 checkpoints in {output}", done.stderr)
        self.assertEqual(self.zero_to_fp32("-q", output, self.new_path()).stderr, "")
        done = self.zero_to_fp32(output, self.new_path(), "--tag", "checkpoint-8")
        self.assertEqual(done.returncode, 3)
        self.assertIn(f"hint: give {output}/checkpoint-10 instead: the newest that is there", done.stderr)
        done = self.zero_to_fp32(output / "checkpoint-8", self.new_path())
        self.assertIn(f"hint: folders in {output}: checkpoint-10, checkpoint-9", done.stderr)
        resharded = self.new_path()
        done = self.tool("reshard", output, resharded, "--dp", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((resharded / "trainer_state.json").read_text(), "{}")
        for path in (output / "checkpoint-9" / "latest", next((output / "checkpoint-9").glob("*/*model_states.pt"))):
            done = self.zero_to_fp32(path, self.new_path())
            self.assertEqual((done.returncode, "note: reading" in done.stderr), (0, False), done.stderr)

    def test_words_of_other_programs_and_another_order_are_understood_or_answered(self):
        scratch = self.scratch(SMALL)
        done = self.tool("reshard", scratch.folder, self.new_path(), "--world-size", "6")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no --world-size; did you mean '--dp'?", done.stderr)
        for option in ("--checkpoint_dir", "--output_dir"):
            done = self.zero_to_fp32(option, scratch.folder, self.new_path())
            self.assertEqual(done.returncode, 2)
            self.assertIn("paths are positional arguments: zero-to-fp32 [OPTIONS] checkpoint_dir", done.stderr)
        done = self.tool("reshard", scratch.folder, self.new_path(), "--frobnicate", "6")
        self.assertIn("there is no --frobnicate: reshard [OPTIONS] input output --dp N", done.stderr)
        done = self.tool("ckpt-inspect", "raw", scratch.folder)
        self.assertEqual(done.returncode, 2)
        command = re.search("`([^`]*)`", done.stderr)[1].split()
        self.assertEqual(self.tool(*command).returncode, 0)
        done = self.tool("ckpt-inspect", scratch.folder, "verify")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("whole:", done.stdout + done.stderr)
        for arguments in ([scratch.folder, self.new_path()],
                          [scratch.folder, "--output_folder", self.new_path()],
                          ["--input-folder", scratch.folder, self.new_path()]):
            done = self.tool("to-universal", *arguments)
            self.assertEqual(done.returncode, 0, done.stderr)
        for arguments, words in (([scratch.folder], "--output-folder is required"), ([], "--input-folder is required"),
                                 ([scratch.folder, self.new_path(), "--input-folder", scratch.folder], "one folder too")):
            done = self.tool("to-universal", *arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(words, done.stderr)

    def test_a_file_or_a_folder_without_shards_is_refused(self):
        scratch = self.scratch(SMALL)
        empty = self.new_path()
        empty.mkdir()
        self.assert_refused(empty, 3, "holds no DeepSpeed shards")
        notes = self.new_path()
        notes.write_text("no checkpoint")
        done = self.zero_to_fp32(notes, self.new_path(), "--json")
        self.assertIn("is a file", self.error_of(done, 3)["message"])

    def test_old_file_names_are_read_and_the_records_prefix_still_tells_the_rank(self):
        for name in [SMALL, "z3_bf16_w2"]:
            scratch = self.scratch(name)
            for path in scratch.tag.glob("*_optim_states.pt"):
                path.rename(path.with_name(path.name.replace("_optim_states", "optim_states")))
            self.assert_same_weights(scratch, scratch.folder)
            first, second = sorted(scratch.tag.glob("*optim_states.pt"))
            spare = scratch.tag / "spare"
            first.rename(spare)
            second.rename(first)
            spare.rename(second)
            self.assert_refused(scratch.folder, 3, "file of another rank", where={"file": first.name})

    def test_other_files_in_the_tag_folder_do_not_matter(self):
        scratch = self.scratch(SMALL)
        (scratch.tag / "notes.pt").write_text("mine")
        (scratch.tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt.tmp").write_text("mine")
        (scratch.tag / "sub").mkdir()
        self.assert_same_weights(scratch, scratch.folder)

    def test_shards_behind_links_are_read(self):
        scratch = self.scratch(SMALL)
        blobs = self.new_path("blobs")
        blobs.mkdir()
        for number, path in enumerate(scratch.shards()):
            path.rename(blobs / str(number))
            path.symlink_to(blobs / str(number))
        self.assert_same_weights(scratch, scratch.folder)


if __name__ == "__main__":
    cli_common.main()
