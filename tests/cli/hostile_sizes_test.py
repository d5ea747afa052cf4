"""Inputs that are small, and were once the end of a tool: by its stack, its memory, or a state nobody thought of."""
import json
import resource
import struct

import numpy

import cli_common
import tools
import torch_files
from hostile_sizes_inspect_test import Storage, archive, tensor
from cli_common import CliTest
from edits import Reduced, edited, fake_tensor, load_shard
from torch_files import named

MOST_DIMS = 64


def colliding_names(count):
    """So many names of 16 characters with one value of std::hash<std::string>. In libstdc++ that is
    MurmurHash64A with a known seed; the second half of a name takes back the effect of the first."""
    factor, bits = 0xc6a4a7935bd1e995, (1 << 64) - 1
    mixed, unmixed = numpy.uint64(factor), numpy.uint64(pow(factor, -1, 1 << 64))

    def mix(block, factor):
        block = block * factor
        return (block ^ (block >> numpy.uint64(47))) * factor

    start = numpy.uint64((0xc70f6907 ^ (16 * factor)) & bits)
    names, numbers = [], numpy.arange(1 << 20, dtype=numpy.uint64)
    while len(names) < count:
        letters = [numpy.uint64(ord("a")) + ((numbers >> numpy.uint64(4 * i)) & numpy.uint64(15)) for i in range(8)]
        first = sum(letter << numpy.uint64(8 * i) for i, letter in enumerate(letters))
        second = mix((start ^ mix(first, mixed)) * mixed, unmixed)
        both = numpy.stack([first, second], axis=1).view(numpy.uint8)
        names += [bytes(name).decode() for name in both[((both > 0) & (both < 0x80)).all(axis=1)]]
        numbers += numpy.uint64(len(numbers))
    return names[:count]


def small_stack():
    resource.setrlimit(resource.RLIMIT_STACK, (128 << 10, 128 << 10))


class HostileSizesTest(CliTest):

    def weights(self, save, name):
        folder = self.new_path("weights")
        folder.mkdir()
        save(folder / name)
        return folder

    def refused(self, code, pattern, tool, *arguments, **options):
        done = self.tool(tool, *arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr or "no message")
        self.assertRegex(done.stderr, pattern)

    def ok(self, tool, *arguments, **options):
        done = self.tool(tool, *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def safetensors(self, path, dims, chunks=False):
        header = {"a": {"dtype": "F32", "shape": [1] * dims, "data_offsets": [0, 4]}}
        if chunks:
            header["__metadata__"] = {"DCP_SHARDING_INFO": json.dumps({"a": {"saved_offsets": [0] * dims}})}
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<f", 3))

    def test_many_dimensions(self):
        for chunks in False, True:
            def save(path, dims=MOST_DIMS):
                self.safetensors(path, dims, chunks)
            folder = self.weights(save, "model.safetensors")
            self.ok("ckpt-inspect", "list", folder)
            self.ok("ckpt-inspect", "print", folder, "a")
            for dims in MOST_DIMS + 1, 20_000:
                save(folder / "model.safetensors", dims)
                self.refused(3, "model.safetensors.*more than 64 dimensions", "ckpt-inspect", "list", folder)
                verified = self.tool("ckpt-inspect", "verify", folder)
                self.assertEqual(verified.returncode, 1, verified.stderr)
                self.assertRegex(verified.stdout, "model.safetensors.*more than 64 dimensions")
        for dims, code in (MOST_DIMS, 0), (MOST_DIMS + 1, 3), (5_000, 3):
            path = self.new_path() / "a.bin"
            path.parent.mkdir()
            torch_files.save({"a": fake_tensor(torch_files.zeros(1).storage, 0, (1, ) * dims, (1, ) * dims)}, path)
            done = self.tool("ckpt-inspect", "list", path)
            self.assertEqual(done.returncode, code, done.stderr)
            if code == 3:
                self.assertRegex(done.stderr, f"a shape of {dims} dimensions; tensors have 64 at most")

    def test_parameters_across_many_sub_groups(self):
        scratch = self.scratch("z3_fp32_small_subgroups_w2")
        for rank in range(2):
            with scratch.optimizer(rank) as optimizer:
                inner = optimizer["optimizer_state_dict"]
                groups = optimizer["fp32_flat_groups"]
                states = inner["state"]
                keys = ["exp_avg", "exp_avg_sq"]
                flat = {key: torch_files.cat([states[i][key] for i in range(len(groups))]) for key in keys}
                whole = torch_files.cat(groups)
                split = {key: [value[i:i + 1] for i in range(value.numel())]
                         for key, value in {"masters": whole, **flat}.items()}
                optimizer["fp32_flat_groups"] = split["masters"]
                inner["state"] = {i: {"step": states[0]["step"], **{key: split[key][i] for key in keys}}
                                  for i in range(whole.numel())}
                inner["param_groups"][0]["params"] = list(range(whole.numel()))
        expected, found = self.new_path(), self.new_path()
        self.ok("to-universal", "--input_folder", scratch.case.load_dir, "--output_folder", expected)
        self.ok("to-universal", "--input_folder", scratch.folder, "--output_folder", found, preexec_fn=small_stack)
        for path in sorted(expected.rglob("fp32.pt")) + sorted(expected.rglob("exp_avg*.pt")):
            one, other = (load_shard(each) for each in (path, found / path.relative_to(expected)))
            self.assertEqual(isinstance(one, dict), isinstance(other, dict))
            self.assertTrue(torch_files.equal(one["param"], other["param"]) if isinstance(one, dict) else
                            torch_files.equal(one, other), path)

    def test_a_folder_of_states_without_weights(self):
        universal = self.new_path()
        source = tools.case_named("z1_fp32_w2")
        self.ok("to-universal", "--input_folder", source.load_dir, "--output_folder", universal)
        model, = universal.rglob("mp_rank_00_model_states.pt")
        frozen = universal / "zero" / "more.weight"
        frozen.mkdir()
        name = next(path for path in (universal / "zero").iterdir() if (path / "exp_avg.pt").exists())
        (frozen / "exp_avg.pt").write_bytes((name / "exp_avg.pt").read_bytes())
        with edited(model) as state:
            state["module"]["more.weight"] = torch_files.zeros(2)
        second = model.with_name("mp_rank_01_model_states.pt")
        second.write_bytes(model.read_bytes())
        for path in model, second:
            with edited(path) as state:
                state["mp_world_size"] = 2
                del state["checkpoint_parallel_dimensions"]
        for command in ["ckpt-inspect", "list"], ["ckpt-inspect", "verify"], ["zero-to-fp32"]:
            output = [self.new_path()] if command[0] == "zero-to-fp32" else []
            done = self.tool(*command, universal, *output)
            self.assertIn(done.returncode, (1, 3), done.stderr)
            self.assertRegex(done.stderr + done.stdout, "more.weight.*no fp32.pt")

    def test_a_parameter_made_of_an_optimizer_s_tensor(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            inner = state["optimizer"]["state"][0]
            name = next(name for name, value in state["module"].items() if value.shape == inner["exp_avg"].shape)
            state["module"][name] = Reduced(
                named("torch._utils", "_rebuild_parameter"), inner["exp_avg"], True, {})
        output = self.new_path()
        self.ok("ckpt-pack", "strip", scratch.folder, output, "--keep", "weights")
        self.assertTrue(torch_files.equal(self.assert_converts(output)[name], self.assert_converts(scratch.folder)[name]))

    def test_what_is_tied_to_a_part_of_a_base_weight(self):
        scratches = [self.scratch("z0_fp32_w2") for _ in range(2)]
        for scratch in scratches:
            with edited(scratch.model()) as state:
                state["module"].update({"x.weight": torch_files.ones(4), "x.lora_weight_1.weight": torch_files.ones(2, 3),
                                        "x.lora_weight_2.weight": torch_files.ones(3, 2), "y": torch_files.ones(4)})
                state["shared_params"] = {"y": "x.weight"}
        folders = [scratch.folder for scratch in scratches]
        for sources in ["--average", *folders], folders[:1]:
            output = self.new_path()
            done = self.tool("zero-to-fp32", *sources, output)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("left out; likewise 'y'", done.stderr)
            names = torch_files.load(output / "pytorch_model.bin")
            self.assertNotIn("y", names)
            self.assertNotIn("x.weight", names)
            self.assertIn("x.lora_weight_1.weight", names)

    def test_two_tensors_of_one_name_and_one_tied_to_the_second(self):
        x, y = torch_files.ones(3), torch_files.zeros(3)
        path = self.new_path("weights")
        path.mkdir()
        torch_files.save({"a": {"b": x}, "a.b": y, "c": y}, path / "pytorch_model.bin")
        self.refused(3, "'?a.b'?.* is the name of two tensors", "zero-to-fp32", path, self.new_path())

    def test_a_folder_in_the_place_of_an_interrupted_run_s_files(self):
        place = self.new_path("place")
        staging = place / f"{cli_common.STAGING}resume-out"
        staging.mkdir(mode=0o700, parents=True)
        (staging / "job").mkdir(mode=0o700)
        self.refused(2, "job: is a folder of user .*, not a regular file", "zero-to-fp32",
                     tools.case_named("z1_fp32_w2").load_dir, place / "out", "--resume")

    def test_a_long_name_that_all_tensors_share(self):
        long, value = "n" * 40_000, torch_files.zeros(1)
        path = self.new_path() / "a.bin"
        path.parent.mkdir()
        torch_files.save({long: {str(i): value for i in range(20_000)}}, path)
        self.refused(3, "the names of its tensors are too long: 'nnn.* has 40.00 KB", "ckpt-inspect", "list", path)
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            state["module"][long] = {str(i): value for i in range(20_000)}
        self.assert_refused(scratch.folder, 3, "the names of its tensors are too long: 'nnn.* has 40.00 KB")

    def test_a_circle_of_tied_names(self):
        scratch = self.scratch("z1_fp32_w2")
        names = [f"tied{i}" for i in range(5_000)]
        with edited(scratch.model()) as state:
            state["module"].update({name: torch_files.ones(1) for name in names})
            state["shared_params"] = dict(zip(names, [*names[1:], names[0]]))
        self.tool("ckpt-pack", "strip", scratch.folder, self.new_path(), "--keep", "weights")

    def test_many_adapters_of_peft(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            state["module"] = {f"base_model.model.l.{half}.a{i}.weight": torch_files.ones(shape)
                               for i in range(6_000) for half, shape in (("lora_A", (2, 3)), ("lora_B", (3, 2)))}
        output = self.new_path()
        self.ok("zero-to-fp32", scratch.folder, "--peft", output, "--lora-alpha=2", "--dry-run")

    def test_names_that_one_hash_puts_into_one_place(self):
        header = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in colliding_names(100_000)}
        text = json.dumps(header).encode()
        folder = self.weights(lambda path: path.write_bytes(struct.pack("<Q", len(text)) + text), "model.safetensors")
        self.ok("zero-to-fp32", folder, self.new_path(), "--dry-run", "--quiet")

    def repeated(self, tensors, rows):
        """Weights that each repeat the same two rows of two elements, in runs of one element."""
        folder = self.new_path("weights")
        folder.mkdir()
        value = {f"w{i}": tensor(Storage("0", 8), (rows - i, 2, 2), (0, 3, 1)) for i in range(tensors)}
        (folder / "pytorch_model.bin").write_bytes(archive(value, [struct.pack("<8f", *range(8))]))
        return folder

    def test_tensors_that_repeat_themselves_in_pieces(self):
        self.refused(3, "data/0: repeats its elements in 16777216 pieces", "zero-to-fp32", self.repeated(1, 1 << 24),
                     self.new_path(), "--dry-run", *cli_common.memory_limit("1GB"))
        self.refused(3, "the tensors lie in too many pieces of the same bytes", "zero-to-fp32",
                     self.repeated(200, 1 << 17), self.new_path(), "--dry-run", *cli_common.memory_limit("1GB"))
        found = torch_files.load(self.convert(self.repeated(1, 1000)) / "pytorch_model.bin")
        self.assertTrue(numpy.array_equal(found["w0"].values, numpy.broadcast_to([[0, 1], [3, 4]], (1000, 2, 2))))

    def test_many_options_of_many_parameters(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            inner = state["optimizer"]
            names = [f"w{i}" for i in range(2000)]
            state["module"] = {name: torch_files.ones(2000)[:i + 1] for i, name in enumerate(names)}
            state["shared_params"] = {}
            inner["state"] = {i: {**inner["state"][0], "exp_avg": value, "exp_avg_sq": value}
                              for i, value in enumerate(state["module"].values())}
            group = {**inner["param_groups"][0], "params": list(range(len(names)))}
            inner["param_groups"] = [{**group, **{f"option{i}": 0 for i in range(2000)}}]
        self.refused(3, "the keys and values of the folder take more than 134.22 MB(.|\n)*--weights-only",
                     "to-dcp", scratch.folder, self.new_path(), "--dp=2", "--dry-run", *cli_common.memory_limit("1GB"))

    def test_many_options_that_are_left_out(self):
        scratch = self.scratch("z0_fp32_w2")
        with edited(scratch.model()) as state:
            group = state["optimizer"]["param_groups"][0]
            group.update((f"option{i}", Reduced(set, (0, ))) for i in range(400_000))
        self.ok("to-dcp", scratch.folder, self.new_path(), "--dp=2", "--dry-run", "--quiet")


if __name__ == "__main__":
    cli_common.main()
