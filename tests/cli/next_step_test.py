"""The last line of a run says what a user types next, for the program that saved the checkpoint."""
import json

import cli_common
import tools
import torch_files
from cli_common import CliTest

ACCELERATE = "hf_accelerate_gpt2_z2_fp32_w2"
DEEPSPEED = "z2_bf16_w2"
TRAINER = "hf_trainer_gpt2_z2_bf16_w2"


class NextStepTest(CliTest):

    def next_of(self, tool, *arguments, code=0):
        """The line, which comes last; "" if there is none. With --json it is the same, and with -q there is none."""
        done = self.tool(tool, *arguments)
        self.assertEqual(done.returncode, code, done.stderr)
        last = done.stderr.splitlines()[-1]
        start = f"{tool}: next: "
        said = last.removeprefix(start) if last.startswith(start) else ""
        self.assertEqual(done.stderr.count(": next: "), 1 if said else 0, done.stderr)
        return said

    def reshard(self, case, *options):
        out = self.new_path()
        said = self.next_of("reshard", case, out, "--dp=1", *options)
        return said.replace(str(out), "OUT")

    def test_of_native_shards_by_the_program(self):
        self.assertEqual(self.reshard(tools.case_named(DEEPSPEED).load_dir), 'engine.load_checkpoint("OUT")')
        self.assertEqual(self.reshard(tools.case_named(TRAINER).load_dir),
                         'trainer.train(resume_from_checkpoint="OUT")')
        self.assertEqual(self.reshard(tools.case_named(ACCELERATE).load_dir), 'accelerator.load_state("OUT")')
        scratch = self.scratch(DEEPSPEED)
        with torch_files.edited(scratch.model()) as state:
            state["pytorch-lightning_version"] = "2.6"
        self.assertEqual(self.reshard(scratch.folder), 'trainer.fit(model, ckpt_path="OUT")')
        self.assertEqual(self.reshard(tools.case_named(DEEPSPEED).load_dir, "--zstd"), "ckpt-pack unpack OUT FOLDER")

    def test_of_weights_by_what_lies_beside_them(self):
        plain, trainer = tools.case_named(DEEPSPEED).load_dir, tools.case_named(TRAINER).load_dir
        for source, options, expected in [
            (plain, [], 'model.load_state_dict(torch.load("OUT/pytorch_model.bin"))'),
            (plain, ["--safe-serialization"], 'safetensors.torch.load_model(model, "OUT/model.safetensors")'),
            (plain, ["--safe-serialization", "--max-shard-size=1KB"],
             'accelerate.load_checkpoint_in_model(model, "OUT")'),
            (trainer, ["--safe-serialization"], 'GPT2LMHeadModel.from_pretrained("OUT")'),
            (plain, ["--include=gain"], ""),
        ]:
            with self.subTest(options=options):
                out = self.new_path()
                self.assertEqual(self.next_of("zero-to-fp32", source, out, *options).replace(str(out), "OUT"), expected)
        # A configuration that names no class, or something else.
        for text, expected in [('{"model_type": "llama"}', 'AutoModel.from_pretrained("OUT")'),
                               ('{"architectures": ["os.system"]}', 'AutoModel.from_pretrained("OUT")'),
                               ('{"architectures": ["My_Model2"]}', 'My_Model2.from_pretrained("OUT")'),
                               ('{"_class_name": "UNet"}', 'model.load_state_dict(torch.load("OUT/pytorch_model.bin"))'),
                               ("{}", 'model.load_state_dict(torch.load("OUT/pytorch_model.bin"))')]:
            folder = self.new_path("base")
            folder.mkdir()
            (folder / "config.json").write_text(text)
            out = self.new_path()
            said = self.next_of("zero-to-fp32", plain, out, "--hf-config", folder)
            self.assertEqual(said.replace(str(out), "OUT"), expected)

    def test_of_a_name_with_quotation_marks(self):
        out = self.new_path('a "b" c')
        self.assertIn('a \\"b\\" c', self.next_of("reshard", tools.case_named(DEEPSPEED).load_dir, out, "--dp=1"))

    def test_of_universal_and_distributed_checkpoints(self):
        out = self.new_path() / "universal"
        said = self.next_of("to-universal", "--input_folder", tools.case_named(DEEPSPEED).load_dir, "--output_folder", out)
        self.assertEqual(said, f'engine.load_checkpoint("{out.parent}"), with "checkpoint": {{"load_universal": true}} '
                               "in the DeepSpeed configuration")
        for preset, expected in [
            ("torch", 'torch.distributed.checkpoint.load(state_dict, checkpoint_id="OUT")'),
            ("accelerate", 'accelerator.load_state("OUT")'),
            ("torchtitan", "--checkpoint.initial_load_path OUT"),
            ("lightning", 'fabric.load("OUT", state)'),
        ]:
            out = self.new_path()
            said = self.next_of("to-dcp", tools.case_named(DEEPSPEED).load_dir, out, "--dp=2", "--preset", preset)
            self.assertEqual(said.replace(str(out), "OUT"), expected)

    def test_of_packed_and_stripped_files(self):
        source = tools.case_named(DEEPSPEED).load_dir
        packed, unpacked = self.new_path(), self.new_path()
        self.assertEqual(self.next_of("ckpt-pack", "pack", source, packed), f"ckpt-pack unpack {packed} FOLDER")
        self.assertEqual(self.next_of("ckpt-pack", "unpack", packed, unpacked), "")
        out = self.new_path()
        self.assertEqual(self.next_of("ckpt-pack", "strip", source, out, "--keep=resume"),
                         f'engine.load_checkpoint("{out}")')
        out = self.new_path()
        said = self.next_of("ckpt-pack", "strip", source, out, "--keep=weights")
        weights = self.new_path()
        self.next_of("zero-to-fp32", *said.replace("WEIGHTS", str(weights)).split()[1:])
        self.assertTrue((weights / "model.safetensors").exists())

    def test_json_has_it_and_quiet_runs_do_not_say_it(self):
        source = tools.case_named(DEEPSPEED).load_dir
        out = self.new_path()
        done = self.tool("reshard", source, out, "--dp=1", "--json")
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["data"]["next"], f'engine.load_checkpoint({json.dumps(str(out))})')
        self.assertNotIn("next:", done.stderr)
        done = self.tool("reshard", source, self.new_path(), "--dp=1", "--quiet")
        self.assertEqual(done.stderr, "")
        done = self.tool("reshard", source, self.new_path(), "--dp=1", "--dry-run")
        self.assertNotIn("next:", done.stderr)

    def test_what_is_left_of_a_checkpoint_is_nothing_to_load(self):
        scratch = self.scratch("z3_fp32_w3")
        scratch.optim(1).unlink()
        self.assertEqual(self.next_of("zero-to-fp32", scratch.folder, self.new_path(), "--allow-missing", code=1), "")


if __name__ == "__main__":
    cli_common.main()
