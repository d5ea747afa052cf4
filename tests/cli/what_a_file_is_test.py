"""The kind of a file, by its content where its name can lie. It is weights, a shard under another name, a whole
training, or one of several numbered files.
"""
import json
import shutil

import cli_common
import torch_files
from cli_common import CliTest
from torch_files import arange, full

BIN = "pytorch_model.bin"
PARTS = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"]


def numbers(*shape, first=0):
    count = 1
    for size in shape:
        count *= size
    return torch_files.tensor((arange(count).values + first).astype("float32").reshape(shape))


def adam(shapes, step=4):
    """torch.optim.AdamW.state_dict() of parameters of these shapes."""
    state = {number: {"step": full(value=float(step)), "exp_avg": numbers(*shape, first=100 * (number + 1)),
                      "exp_avg_sq": numbers(*shape, first=200 * (number + 1))} for number, shape in enumerate(shapes)}
    return {"state": state, "param_groups": [{"lr": 0.5, "betas": (0.9, 0.99), "params": list(range(len(shapes)))}]}


class TrainingFileTest(CliTest):

    def setUp(self):
        super().setUp()
        self.folder = self.new_path("files")
        self.folder.mkdir()
        self.model = {"a.weight": numbers(2, 3), "a.bias": numbers(2, first=50), "b.weight": numbers(4, 2, first=9)}
        self.shapes = [(2, 3), (2,), (4, 2)]

    def saved(self, value, name):
        torch_files.save(value, self.folder / name)
        return self.folder / name

    def assert_model(self, path, *options):
        out = self.new_path()
        done = self.tool("zero-to-fp32", path, out, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = torch_files.load(out / BIN)
        self.assertEqual(list(found), list(self.model))
        for name, value in self.model.items():
            self.assertTrue(torch_files.same_bits(found[name], value), name)
        return out

    def assert_refused_with(self, path, *said, tool=("zero-to-fp32",), status=3):
        done = self.tool(*tool, path, self.new_path())
        self.assertEqual(done.returncode, status, done.stderr)
        for text in said:
            self.assertIn(text, done.stderr)

    def test_the_model_and_the_states_of_a_whole_training(self):
        lightning = {"epoch": 1, "global_step": 5, "pytorch-lightning_version": "2.6.6", "state_dict": self.model,
                     "optimizer_states": [adam(self.shapes)], "rng": {"cpu": numbers(8)}}
        torchs = {"model": self.model, "optimizer": adam(self.shapes), "loss": full(value=1.5)}
        for value, name in ((lightning, "last.ckpt"), (lightning, "last.pt"), (torchs, "checkpoint.pth"),
                            (torchs, "checkpoint.bin")):
            with self.subTest(name=name):
                path = self.saved(value, name)
                out = self.assert_model(path, "--states")
                moments = torch_files.load_file(out / "optimizer_states" / "exp_avg.safetensors")
                for number, (key, shape) in enumerate(zip(self.model, self.shapes)):
                    self.assertTrue(torch_files.same_bits(moments[key], numbers(*shape, first=100 * (number + 1))))
                done = self.tool("to-universal", path, self.new_path() / "u")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(self.tool("to-dcp", path, self.new_path(), "--dp", "2").returncode, 0)
                self.assertEqual(self.tool("ckpt-inspect", path).returncode, 0)

    def test_of_two_models_one_is_named(self):
        path = self.saved({"model": self.model, "ema": {name: numbers(*shape, first=7) for name, shape in
                                                        zip(self.model, self.shapes)},
                           "optimizer": adam(self.shapes)}, "both.pt")
        self.assert_refused_with(path, "'model', 'ema'", "--model model")
        self.assert_model(path, "--model", "model")

    def gan(self):
        """As Lightning saves one: a model, and an optimizer of each part."""
        return {"epoch": 1, "global_step": 5, "pytorch-lightning_version": "2.6.6", "state_dict": self.model,
                "optimizer_states": [adam(self.shapes[:2]), adam(self.shapes[2:])]}

    def test_weights_do_not_need_one_of_two_optimizers(self):
        path = self.saved(self.gan(), "gan.ckpt")
        self.assert_model(path)
        self.assert_refused_with(path, "has 2 optimizers", "without --states", tool=("to-dcp", "--dp", "1"))
        done = self.tool("zero-to-fp32", path, self.new_path(), "--states")
        self.assertEqual(done.returncode, 3, done.stderr)

    def test_shapes_tell_which_optimizer_is_the_models(self):
        other = {"c.weight": numbers(5, 2), "c.bias": numbers(5)}
        path = self.saved({"generator": self.model, "discriminator": other, "optimizer_g": adam(self.shapes),
                           "optimizer_d": adam([(5, 2), (5,)])}, "gan.pt")
        self.assert_refused_with(path, "'generator', 'discriminator'")
        out = self.assert_model(path, "--model", "generator", "--states")
        moments = torch_files.load_file(out / "optimizer_states" / "exp_avg.safetensors")
        self.assertTrue(torch_files.same_bits(moments["b.weight"], numbers(4, 2, first=300)))
        done = self.tool("zero-to-fp32", path, self.new_path(), "--model", "discriminator", "--states")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_optimizer_alone_is_no_model(self):
        self.assert_refused_with(self.saved(adam(self.shapes), "optimizer.pt"), "no tensors of a model")

    def test_a_shard_under_another_name_is_refused(self):
        for case in ("z2_bf16_w2", "z3_bf16_w2", "z0_fp32_w2"):
            for shard in sorted(self.scratch(case).tag.glob("*.pt")):
                path = self.folder / "model.bin"
                shutil.copy(shard, path)
                with self.subTest(case=case, shard=shard.name):
                    self.assert_refused_with(path, "a shard of DeepSpeed", "give the folder that has all shards")
                    self.assert_refused_with(path, "a shard of DeepSpeed", tool=("to-universal",))
                folder = self.new_path("hf")
                folder.mkdir()
                shutil.copy(shard, folder / BIN)
                self.assert_refused_with(folder, "a shard of DeepSpeed")
                done = self.tool("ckpt-inspect", "verify", folder)
                self.assertEqual(done.returncode, 1, done.stdout)
                self.assertIn("a shard of DeepSpeed", done.stdout)

    def test_names_that_no_state_dict_has_are_refused(self):
        module = {"_parameters": {"weight": numbers(2)}, "_buffers": {}, "_modules": {}}
        nested = {"_modules": {"a": module}, "_parameters": {}}
        for name, value, said in (("module", module, "a module, saved as a whole"),
                                  ("nested", nested, "a module, saved as a whole"),
                                  ("keys", {"1": numbers(2), 1: numbers(2, first=5)}, "the name of two tensors"),
                                  ("dots", {"a.b": numbers(2), "a": {"b": numbers(3)}}, "the name of two tensors"),
                                  ("bare", numbers(2), "a tensor without a name")):
            with self.subTest(name=name):
                self.assert_refused_with(self.saved(value, BIN), said, "torch.save(model.state_dict(), FILE)")

    def test_an_output_may_lie_beside_the_file_that_has_everything(self):
        path = self.saved({"model": self.model, "optimizer": adam(self.shapes)}, "last.ckpt")
        done = self.tool("zero-to-fp32", path, self.folder / "out")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.tool("zero-to-fp32", path, path).returncode, 2)


class NumberedFilesTest(CliTest):

    def setUp(self):
        super().setUp()
        self.folder = self.new_path("weights")
        self.folder.mkdir()
        self.model = {f"w{number}": numbers(3, first=number) for number in range(3)}
        for (name, value), part in zip(self.model.items(), PARTS):
            torch_files.save_file({name: value}, self.folder / part)

    def assert_incomplete(self, lost):
        tools = (["zero-to-fp32", self.folder, self.new_path()], ["to-universal", self.folder, self.new_path() / "u"],
                 ["to-dcp", self.folder, self.new_path(), "--dp", "1"])
        for words in tools:
            done = self.tool(*words)
            self.assertEqual(done.returncode, 3, (words, done.stderr))
            self.assertIn(lost, done.stderr)
        verified = self.tool("ckpt-inspect", "verify", self.folder)
        self.assertEqual(verified.returncode, 1)
        self.assertIn(lost, verified.stdout)

    def test_all_of_them_are_one_model_with_and_without_an_index(self):
        for given in (self.folder, self.folder / PARTS[1]):
            out = self.new_path()
            done = self.tool("zero-to-fp32", given, out)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = torch_files.load(out / BIN)
            self.assertEqual(set(found), set(self.model))

    def test_one_that_is_missing_is_named_wherever_it_was(self):
        for lost in PARTS:
            with self.subTest(lost=lost):
                content = (self.folder / lost).read_bytes()
                (self.folder / lost).unlink()
                self.assert_incomplete(lost)
                done = self.tool("zero-to-fp32", self.folder, self.new_path(), "--allow-missing")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn(f"missing\t{lost}", done.stdout)
                (self.folder / lost).write_bytes(content)

    def test_files_of_torch_save_without_their_index_count_alike(self):
        for path in self.folder.iterdir():
            path.unlink()
        for number, (name, value) in enumerate(self.model.items(), start=1):
            torch_files.save({name: value}, self.folder / f"pytorch_model-{number:05}-of-00003.bin")
        out = self.new_path()
        self.assertEqual(self.tool("zero-to-fp32", self.folder, out).returncode, 0)
        self.assertEqual(set(torch_files.load(out / BIN)), set(self.model))
        (self.folder / "pytorch_model-00001-of-00003.bin").unlink()
        self.assert_incomplete("pytorch_model-00001-of-00003.bin")


class SeveralWeightsTest(CliTest):
    """Several weights in one folder: every tool lists them, or takes the one that is named."""

    def setUp(self):
        super().setUp()
        self.folder = self.new_path("several")
        self.folder.mkdir()

    def add(self, name, first, count=2):
        values = {f"w{number}": numbers(3, first=first + number) for number in range(count)}
        write = torch_files.save_file if name.endswith(".safetensors") else torch_files.save
        write(values, self.folder / name)
        return values

    def each_tool(self, *options):
        for words in (["zero-to-fp32", self.folder, self.new_path()],
                      ["to-universal", self.folder, self.new_path() / "u"],
                      ["to-dcp", self.folder, self.new_path(), "--dp", "1"],
                      ["ckpt-inspect", self.folder], ["ckpt-inspect", "list", self.folder],
                      ["ckpt-inspect", "verify", self.folder]):
            yield self.tool(*words, *options), words

    def assert_listed(self, *names):
        for done, words in self.each_tool():
            self.assertEqual(done.returncode, 3, (words, done.stderr))
            for text in (*names, "hint:"):
                self.assertIn(text, done.stderr, words)
        for done, words in self.each_tool("--model", "NONSENSE"):
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            for name in names:
                self.assertIn(name, done.stderr, words)

    def assert_read(self, values, *options):
        out = self.new_path()
        done = self.tool("zero-to-fp32", self.folder, out, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = torch_files.load(out / BIN)
        self.assertEqual(set(found), set(values))
        for name, value in values.items():
            self.assertTrue(torch_files.same_bits(found[name], value), name)
        return done.stderr

    def assert_models(self, **files):
        values = {name: self.add(file, 10 * number) for number, (name, file) in enumerate(files.items())}
        self.assert_listed(*files)
        for name, own in values.items():
            self.assert_read(own, "--model", name)

    def test_models_of_accelerate(self):
        self.assert_models(model="model.safetensors", model_1="model_1.safetensors")

    def test_models_of_accelerate_by_torch_save(self):
        self.assert_models(pytorch_model="pytorch_model.bin", pytorch_model_1="pytorch_model_1.bin")

    def test_an_ema_beside_the_model(self):
        self.assert_models(model="model.safetensors", ema="ema.safetensors")

    def test_another_form_of_the_model_is_named(self):
        for one, other, values in (("model.safetensors", BIN, 2), ("model.safetensors", "consolidated.safetensors", 2),
                                   ("diffusion_pytorch_model.safetensors",
                                    "diffusion_pytorch_model.fp16.safetensors", 2)):
            with self.subTest(one=one, other=other):
                own, others = self.add(one, 0, values), self.add(other, 50, values)
                said = self.assert_read(own)
                self.assertIn(other, said)
                self.assert_read(others, "--model", other.rpartition(".")[0])
                for path in self.folder.iterdir():
                    path.unlink()

    def test_a_stale_file_beside_an_index(self):
        parts = {f"w{number}": part for number, part in enumerate(PARTS)}
        values = {}
        for number, part in enumerate(PARTS):
            values |= {f"w{number}": numbers(3, first=number)}
            torch_files.save_file({f"w{number}": numbers(3, first=number)}, self.folder / part)
        (self.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
        self.assert_read(values)
        shutil.copy(self.folder / PARTS[0], self.folder / "model.safetensors")
        self.assert_listed("model.safetensors.index.json")
        self.assert_read(values, "--model", "model.safetensors.index.json")

    def test_a_name_that_no_model_has(self):
        self.add("model.safetensors", 0)
        for done, words in self.each_tool("--model", "NONSENSE"):
            self.assertEqual(done.returncode, 2, (words, done.stderr))
            self.assertIn("NONSENSE", done.stderr)
        done = self.tool("zero-to-fp32", self.folder / "model.safetensors", self.new_path(), "--model", "NONSENSE")
        self.assertEqual(done.returncode, 2, done.stderr)

    def test_a_name_that_no_model_of_dcp_has(self):
        made = self.tool("to-dcp", self.scratch("z1_bf16_w2").tag, self.folder / "actor", "--dp", "1")
        self.assertEqual(made.returncode, 0, made.stderr)
        for path, name, status in ((self.folder / "actor", "NONSENSE", 2), (self.folder, "actor", 0)):
            done = self.tool("zero-to-fp32", path, self.new_path(), "--model", name)
            self.assertEqual(done.returncode, status, done.stderr)

    def test_models_in_a_file_without_an_optimizer(self):
        own = {"w": numbers(3)}
        torch_files.save({"actor": own, "critic": {"w": numbers(3, first=5)}}, self.folder / "both.pt")
        both = self.folder / "both.pt"
        done = self.tool("zero-to-fp32", both, self.new_path())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("'actor', 'critic'", done.stderr)
        self.folder = both
        self.assert_read(own, "--model", "actor")


if __name__ == "__main__":
    cli_common.main()
