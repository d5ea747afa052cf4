"""Files of weights that hold tensors of kinds that are not read: quantised, sparse, nested, wrapper subclasses, one
rank's DTensor. They are named and left out, never taken apart into tensors of made-up names; all others are right.
"""
import pathlib
import tempfile

import oracle
import tools
import torch
from oracle import OracleTest, load_bin
from tools import run_tool


class Scaled(torch.Tensor):
    """A wrapper subclass, as torchao's are: what it stands for is computed from its pieces."""

    @staticmethod
    def __new__(cls, data, scale):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data, scale):
        self.data_, self.scale = data, scale

    def __tensor_flatten__(self):
        return ["data_", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Scaled(inner["data_"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(function)


def held_by(data):
    return Holder(data)


class Holder:
    """No tensor for torch, but made by a call of one, with another one among its attributes."""

    def __init__(self, data):
        self.data, self.scale = data, torch.ones(2)

    def __reduce__(self):
        return held_by, (self.data,), {"scale": self.scale}


class Plain(torch.Tensor):
    """A subclass whose values are those of its plain tensor."""


def one_ranks_part():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{store.name}")
        try:
            return distribute_tensor(torch.arange(6.0).view(3, 2), init_device_mesh("cpu", (1,)), [Shard(0)])
        finally:
            dist.destroy_process_group()


def unread():
    values = torch.arange(6.0).view(2, 3)
    return {
        "quantised": (torch.quantize_per_tensor(values, 0.1, 3, torch.qint8), "_rebuild_qtensor"),
        "sparse": (torch.eye(3).to_sparse(), "_rebuild_sparse_tensor"),
        "rows": (torch.eye(3).to_sparse_csr(), "_rebuild_sparse"),
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        "meta": (torch.empty(2, 3, device="meta"), "_rebuild_meta_tensor_no_storage"),
        "wrapper": (Scaled(torch.ones(2, 3, dtype=torch.int8), torch.ones(2)), r"\.Scaled"),
        "part": (one_ranks_part(), r"DTensor"),
        "held": (Holder(torch.ones(3)), r"held_by"),
    }


class UnreadTensorsTest(OracleTest):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.read = {"first.weight": torch.arange(4.0), "plain": torch.ones(2, 2).as_subclass(Plain),
                     "parameter": torch.nn.Parameter(torch.full((3,), 0.5)), "last.bias": torch.arange(3)}

    def save(self, tensors, name="model.bin"):
        path = self.folder / name
        first, *rest = self.read.items()
        torch.save({first[0]: first[1], **tensors, **dict(rest)}, path)
        return path

    def test_each_kind_is_named_and_left_out(self):
        for name, (value, kind) in unread().items():
            with self.subTest(name):
                path = self.save({"layer.odd": value}, f"{name}.bin")
                for options in ([], ["-q"]):
                    out = self.folder / f"out-{name}{len(options)}"
                    done = run_tool("zero-to-fp32", path, out, "--dtype", "keep", *options)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertEqual(done.stdout, "no values\tlayer.odd\n")
                    written = load_bin(out / "pytorch_model.bin")
                    self.assert_same_tensors(written, {key: value.detach().as_subclass(torch.Tensor)
                                                       for key, value in self.read.items()})
                summary = run_tool("ckpt-inspect", path)
                self.assertRegex(summary.stderr, rf"'layer.odd' is a tensor of an unsupported kind \(\S*{kind}")
                listed = run_tool("ckpt-inspect", "list", path).stdout
                self.assertEqual([line.split("\t")[0] for line in listed.splitlines()], list(self.read))

    def test_a_run_does_not_start_from_them(self):
        path = self.save({"layer.odd": unread()["sparse"][0]})
        for command in (["to-universal", "--input_folder", path, "--output_folder", self.folder / "u"],
                        ["to-dcp", path, self.folder / "d", "--dp", "2"],
                        ["reshard", oracle.case_named("z2_bf16_w2").load_dir, self.folder / "r", "--dp", "2",
                         "--weights-from", path]):
            done = run_tool(*command)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("layer.odd: is a tensor of an unsupported kind", done.stderr)

    def test_tensors_in_containers_are_read(self):
        """The results of calls on tensors are not read; tensors in plain collections are."""
        import collections
        path = self.folder / "nested.bin"
        torch.save({"a": collections.OrderedDict(b=torch.ones(2)), "c": [torch.zeros(1)],
                    "d": collections.defaultdict(list, e=torch.ones(1))}, path)
        listed = run_tool("ckpt-inspect", "list", path).stdout
        self.assertEqual([line.split("\t")[0] for line in listed.splitlines()], ["a.b", "c.0", "d.e"])


if __name__ == "__main__":
    tools.main()
