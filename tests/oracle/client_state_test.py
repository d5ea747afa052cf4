"""The values that a program saves beside DeepSpeed's own state come along, and torch loads them as they were
saved. Tensors of kinds that no tool reads are among them."""
import numpy
import tools
import torch
from cli_common import CliTest


class ClientStateTest(CliTest):

    def with_client_state(self, name, **state):
        scratch = self.scratch(name)
        torch.save({**torch.load(scratch.model(), weights_only=False), **state}, scratch.model())
        return scratch

    def run_tool(self, tool, *arguments):
        output = self.new_path() / "out"
        output.parent.mkdir()
        done = self.tool(tool, *arguments, output)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def test_quantised_tensors_are_not_stripped(self):
        codes = torch.quantize_per_tensor(torch.arange(900.0), 0.1, 3, torch.quint8)[100:200]
        scratch = self.with_client_state("z2_bf16_w2", codes=codes)
        for keep in ("weights", "resume"):
            output = self.run_tool("ckpt-pack", "strip", "--keep", keep, scratch.folder)
            kept = torch.load(output / "global_step3" / scratch.model().name, weights_only=False)["codes"]
            self.assertTrue(torch.equal(kept.int_repr(), codes.int_repr()))
            self.assertEqual((kept.q_scale(), kept.q_zero_point()), (codes.q_scale(), codes.q_zero_point()))

    def test_whatever_the_program_saves_at_stage_0_is_in_the_universal_checkpoint(self):
        mine = {"parameter": torch.nn.Parameter(torch.ones(3)), "turned": torch.arange(6).reshape(2, 3).t(),
                "part": torch.arange(10)[3:5], "array": numpy.arange(3), "rng": torch.get_rng_state(),
                torch.zeros(2): "a tensor for a key", "sparse": torch.eye(3).to_sparse()}
        mine["again"] = mine["part"]
        mine["self"] = mine
        scratch = self.with_client_state("z0_fp32_w2", mine=mine)
        output = self.run_tool("to-universal", scratch.folder)
        found = torch.load(output / scratch.model().name, weights_only=False)["mine"]
        self.assertIs(found["self"], found)
        self.assertIs(found["again"], found["part"])
        self.assertIsInstance(found["parameter"], torch.nn.Parameter)
        self.assertTrue(numpy.array_equal(found["array"], mine["array"]))
        self.assertTrue(torch.equal(found["sparse"].to_dense(), torch.eye(3)))
        self.assertEqual(found["turned"].stride(), (1, 3))
        for key in ["parameter", "turned", "part", "rng"]:
            self.assertTrue(torch.equal(found[key], mine[key]), key)
        tensor_key, = (key for key in found if isinstance(key, torch.Tensor))
        self.assertTrue(torch.equal(tensor_key, torch.zeros(2)))


if __name__ == "__main__":
    tools.main()
