"""Folders whose states are files, or have several models: Lightning's, whole trainings of several steps, folders of
weights, tags that name models. Every tool takes the newest of one model, or lists what is there.
"""
import json
import shutil

import cli_common
import tools
import torch_files
import training_folders
from cli_common import CliTest

BIN = "pytorch_model.bin"


class FolderTest(CliTest):

    def setUp(self):
        super().setUp()
        self.folder = self.new_path("run")
        self.folder.mkdir()

    def each_tool(self, *options, path=None):
        path = path or self.folder
        for words in (["zero-to-fp32", path, self.new_path()], ["to-universal", path, self.new_path() / "u"],
                      ["to-dcp", path, self.new_path(), "--dp", "1"], ["ckpt-inspect", path],
                      ["ckpt-inspect", "list", path], ["ckpt-inspect", "verify", path]):
            yield self.tool(*words, *options), words

    def assert_taken(self, values, *options, said=""):
        for done, words in self.each_tool(*options):
            self.assertEqual(done.returncode, 0, (words, done.stdout, done.stderr))
            if said and words[:2] != ["ckpt-inspect", "verify"]:
                self.assertIn(said, done.stderr, words)
        out = self.new_path()
        self.assertEqual(self.tool("zero-to-fp32", self.folder, out, *options).returncode, 0)
        self.assert_values(out, values)

    def assert_values(self, out, values):
        found = torch_files.load(out / BIN)
        self.assertEqual(set(found), set(values))
        for name, value in values.items():
            self.assertTrue(torch_files.same_bits(found[name], value), name)

    def assert_listed(self, *said, options=(), status=3):
        for done, words in self.each_tool(*options):
            self.assertEqual(done.returncode, status, (words, done.stderr))
            for text in said:
                self.assertIn(text, done.stderr, words)


class WholeTrainingsTest(FolderTest):

    def save(self, name, step, make=training_folders.lightning_file):
        values = training_folders.small_values(step)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch_files.save(make(values, step), path)
        return values

    def test_the_only_file_of_lightning(self):
        values = self.save("version_0/checkpoints/epoch=0-step=3.ckpt", 3)
        self.assert_taken(values, said="version_0/checkpoints/epoch=0-step=3.ckpt, the only checkpoint")

    def test_the_highest_step_that_files_of_lightning_hold(self):
        self.save("version_0/checkpoints/epoch=9-step=900.ckpt", 3)
        values = self.save("version_0/checkpoints/epoch=0-step=1.ckpt", 7)
        self.save("version_0/checkpoints/epoch=5-step=5.ckpt", 5)
        self.assert_taken(values, said="epoch=0-step=1.ckpt, the newest of 3 checkpoints")
        shutil.copy(self.folder / "version_0/checkpoints/epoch=0-step=1.ckpt",
                    self.folder / "version_0/checkpoints/last.ckpt")
        self.assert_taken(values, said="epoch=0-step=1.ckpt, the newest")

    def test_the_last_file_of_lightning_with_other_notes_is_the_same(self):
        values = self.save("checkpoints/epoch=1-step=6.ckpt", 6)
        self.save("checkpoints/epoch=0-step=3.ckpt", 3)
        last = training_folders.lightning_file(values, 6) | {"callbacks": {"ModelCheckpoint": {"last": "last.ckpt"}}}
        torch_files.save(last, self.folder / "checkpoints/last.ckpt")
        self.assert_taken(values, said="epoch=1-step=6.ckpt")

    def test_two_files_of_one_step_are_two_answers(self):
        self.save("a/step=6.ckpt", 6)
        other = training_folders.small_values(77)
        torch_files.save(training_folders.lightning_file(other, 6), self.folder / "a/last.ckpt")
        self.assert_listed("a/step=6.ckpt", "a/last.ckpt", "step 6")

    def test_files_of_torchs_tutorials_by_the_optimizers_step(self):
        make = training_folders.tutorial_file
        self.save("step100.pt", 9, make)
        values = self.save("step2.pt", 12, make)
        self.assert_taken(values, said="step2.pt, the newest of 2 checkpoints")
        self.save("step3.pt", 15,
                  lambda values, step: {"model": values, "optimizer": {"state": {}, "param_groups": []}})
        self.assert_listed("step100.pt", "step 9", "step2.pt", "step 12", "step3.pt", "of no known step",
                           "give the file of one")

    def test_a_search_without_an_end_is_an_error(self):
        self.save("step3.pt", 3, training_folders.tutorial_file)
        for number in range(4097):
            (self.folder / f"a{number}.pt").write_bytes(b"x")
        done = self.tool("zero-to-fp32", self.folder, self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("after 4096 files that may be checkpoints", done.stderr)
        self.folder = self.new_path("many")
        self.save("a/step3.pt", 3, training_folders.tutorial_file)
        for number in range(20000):
            (self.folder / f"b{number}").mkdir()
        done = self.tool("zero-to-fp32", self.folder, self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("after 20000 folders", done.stderr)

    def test_a_file_that_was_cut_off_is_named_and_the_newest_whole_one_taken(self):
        values = self.save("step=3.ckpt", 3)
        self.save("step=9.ckpt", 9)
        content = (self.folder / "step=9.ckpt").read_bytes()
        (self.folder / "step=9.ckpt").write_bytes(content[:len(content) // 2])
        done = self.tool("zero-to-fp32", self.folder, self.new_path("out"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step=9.ckpt", done.stderr)

    def test_models_in_files_are_named(self):
        for step in (4, 8):
            values = training_folders.small_values(step)
            both = {"generator": values, "ema": training_folders.small_values(step + 50), "step": step,
                    "optimizer": training_folders.adam(values, step)}
            torch_files.save(both, self.folder / f"step{step}.pt")
        done = self.tool("zero-to-fp32", self.folder, self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("'generator', 'ema'", done.stderr)
        out = self.new_path()
        done = self.tool("zero-to-fp32", self.folder, out, "--model", "ema")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_values(out, training_folders.small_values(58))

    def test_models_in_names_of_files(self):
        values = {}
        for step in (4, 8):
            for number, model in enumerate(("unet", "vae")):
                values[model] = self.save(f"{model}-step={step}.ckpt", step + number)
        self.assert_listed("unet-step=4.ckpt", "vae-step=8.ckpt", "--model unet reads the newest")
        self.assert_taken(values["unet"], "--model", "unet")
        self.assert_taken(values["vae"], "--model", "vae")

    def test_the_table_of_them(self):
        self.save("step=3.ckpt", 3)
        self.save("step=9.ckpt", 9)
        done = self.tool("ckpt-inspect", self.folder)
        self.assertRegex(done.stdout, r"step=3.ckpt\tweights and optimizer\t3\t\n")
        self.assertRegex(done.stdout, r"step=9.ckpt\tweights and optimizer\t9\tread here")
        found = json.loads(self.tool("ckpt-inspect", self.folder, "--json").stdout)["data"]["candidates"]
        self.assertEqual([(each["path"], each["step"], each["read"]) for each in found],
                         [("step=3.ckpt", 3, False), ("step=9.ckpt", 9, True)])

    def test_all_of_them(self):
        values = {name: self.save(f"a/{name}.ckpt", step) for name, step in (("step=3", 3), ("step=9", 9))}
        out = self.new_path()
        done = self.tool("zero-to-fp32", self.folder, out, "-t", "all")
        self.assertEqual(done.returncode, 0, done.stderr)
        for name, own in values.items():
            self.assert_values(out / name, own)
        averaged = self.tool("zero-to-fp32", "--average", self.folder, "--last", "2", self.new_path())
        self.assertEqual(averaged.returncode, 0, averaged.stderr)
        one = self.new_path()
        self.assertEqual(self.tool("zero-to-fp32", self.folder, one, "-t", "step=3").returncode, 0)
        self.assert_values(one, values["step=3"])

    def test_weights_beside_whole_trainings_are_two_answers(self):
        self.save("last.ckpt", 3)
        torch_files.save_file(training_folders.small_values(1), self.folder / "model.safetensors")
        self.assert_listed("model.safetensors", "last.ckpt", "give one of them")

    def test_files_beside_a_folder_with_states(self):
        """A deeper file may be newer than one above it."""
        self.save("last.pt", 3, training_folders.tutorial_file)
        values = self.save("checkpoints/step9.pt", 9, training_folders.tutorial_file)
        done = self.tool("zero-to-fp32", self.folder, self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("checkpoints/step9.pt", done.stderr)
        self.folder = self.folder / "checkpoints"
        self.assert_taken(values)


class FoldersOfWeightsTest(FolderTest):

    def save(self, folder, first, name="model.safetensors", step=None):
        values = training_folders.small_values(first)
        (self.folder / folder).mkdir(parents=True, exist_ok=True)
        torch_files.save_file(values, self.folder / folder / name)
        if step is not None:
            (self.folder / folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        return values

    def test_the_only_one_is_taken(self):
        values = self.save("checkpoint-5", 5)
        (self.folder / "checkpoint-5" / "config.json").write_text('{"model_type": "llama"}')
        self.assert_taken(values, said="reading checkpoint-5, the only checkpoint")
        out = self.new_path()
        self.assertEqual(self.tool("zero-to-fp32", self.folder, out).returncode, 0)
        self.assertTrue((out / "config.json").exists())

    def test_of_unknown_steps_they_are_listed(self):
        self.save("checkpoint-5", 5)
        values = self.save("checkpoint-9", 9)
        self.assert_listed("checkpoint-5  weights, of no known step", "checkpoint-9  weights", "give the folder of one")
        self.assert_taken(values, "-t", "checkpoint-9")

    def test_one_without_its_second_file_is_damaged(self):
        values = self.save("checkpoint-5", 5, step=5)
        self.save("checkpoint-9", 9, name="model-00001-of-00002.safetensors", step=9)
        out = self.new_path()
        done = self.tool("zero-to-fp32", self.folder, out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("model-00002-of-00002.safetensors: is missing", done.stderr)
        self.assert_values(out, values)

    def test_of_known_steps_the_newest_is_taken(self):
        self.save("checkpoint-9", 5, step=2)
        values = self.save("checkpoint-5", 9, step=3)
        # The training's own is that of none of them.
        (self.folder / "trainer_state.json").write_text('{"global_step": 77}')
        self.assert_taken(values, said="reading checkpoint-5, the newest of 2")
        self.save("checkpoint-7", 1)
        self.assert_listed("checkpoint-9  weights, step 2", "checkpoint-7  weights, of no known step")

    def test_parts_of_a_pipeline_of_diffusers(self):
        name = "diffusion_pytorch_model.safetensors"
        values = {part: self.save(part, 10 * number, name) for number, part in enumerate(("unet", "vae"))}
        (self.folder / "model_index.json").write_text("{}")
        self.assert_listed("unet  weights", "vae   weights", "hint: --model unet")
        for part, own in values.items():
            self.assert_taken(own, "--model", part)
        self.assert_listed("called 'text_encoder'", "unet", options=("--model", "text_encoder"), status=2)

    def test_shards_are_preferred_to_weights_in_other_folders(self):
        shutil.copytree(tools.case_named("z2_bf16_w2").tag_folder, self.folder / "global_step3")
        self.save("export", 1)
        done = self.tool("zero-to-fp32", self.folder, self.new_path())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("reading global_step3", done.stderr)

    def test_other_roots_are_refused(self):
        self.save("checkpoint-5", 5)
        other = self.new_path()
        other.mkdir()
        for path in (self.folder, self.folder / "checkpoint-5", self.folder / "checkpoint-5/model.safetensors"):
            for done, words in self.each_tool("--root", other, path=path):
                self.assertEqual(done.returncode, 2, (words, done.stderr))
                self.assertIn("leave out --root", done.stderr)


class ModelsInTagsTest(FolderTest):
    """Names of tags may have the model: the newest of each, by --model."""
    STATES = {"actor": [("z2_bf16_w2", 7), ("z1_bf16_w2", 9)],
              "critic": [("z2_fp32_full_w3", 8), ("z3_fp32_full_w2", 10)]}

    def make(self, name):
        for model, states in self.STATES.items():
            for case, step in states:
                path = self.folder / name.format(model=model, step=step)
                shutil.copytree(tools.case_named(case).tag_folder, path)
                cli_common.set_step(path, step)

    def assert_models(self):
        self.assert_listed("step 7", "step 9", "step 8", "step 10", "hint: --model actor reads the newest")
        for model, states in self.STATES.items():
            self.assert_taken(tools.case_named(states[-1][0]).truth(), "--model", model)
        # The list is the same where a name fails.
        self.assert_listed("called 'reward'", "ZeRO, step 7", "ZeRO, step 10", options=("--model", "reward"), status=2)
        out = self.new_path()
        done = self.tool("zero-to-fp32", self.folder, out, "-t", "all", "--model", "actor")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(list(out.iterdir())), 2)
        verified = self.tool("ckpt-inspect", "verify", self.folder, "-t", "all", "--model", "actor")
        self.assertEqual(verified.returncode, 0, verified.stderr)
        averaged = self.tool("zero-to-fp32", "--average", self.folder, "--last", "2", "--model", "critic",
                             self.new_path())
        self.assertEqual(averaged.returncode, 0, averaged.stderr)

    def test_before_the_step(self):
        self.make("{model}_global_step{step}")
        self.assert_models()

    def test_behind_the_step(self):
        self.make("global_step{step}-{model}")
        self.assert_models()

    def test_in_folders(self):
        self.make("step_{step}/{model}")
        self.assert_models()

    def test_numbers_of_models_are_no_steps(self):
        for case, name, step in (("z2_bf16_w2", "run1_step7", 7), ("z1_bf16_w2", "run2_step9", 9)):
            shutil.copytree(tools.case_named(case).tag_folder, self.folder / name)
            cli_common.set_step(self.folder / name, step)
        self.assert_listed("run1_step7", "run2_step9", "--model run1")
        self.assert_taken(tools.case_named("z2_bf16_w2").truth(), "--model", "run1")


if __name__ == "__main__":
    cli_common.main()
