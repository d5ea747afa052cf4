"""The common part of the tests of packed files: folders in each form, and the runs of ckpt-pack."""
import numpy
import stored_forms
import torch_files
from cli_common import CliTest

STAGE_2 = "z2_fp32_full_w3"
STAGE_3 = "z3_bf16_full_subgroups_w4"
NVME = "z3_bf16_nvme_w2"
PACKED = ("packed", ".dspack"), ("zstd", ".zst")


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
        values = torch_files.tensor(numpy.random.default_rng(7).standard_normal(elements, numpy.float32) * 0.02)
        torch_files.save({"master": values, "weight": values[:elements // 2].to("bfloat16"), "step": 3}, folder / name)
        return folder
