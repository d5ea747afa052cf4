"""--zstd of the tools that write: packed output is the plain one in fewer bytes."""
import pathlib

import cli_common
import stored_forms
from cli_common import snapshot
from pack_cli import STAGE_2, STAGE_3, PackCliTest
from stored_forms import contents


class WritersTest(PackCliTest):

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


if __name__ == "__main__":
    cli_common.main()
