"""What torch.distributed.checkpoint of other releases writes into `.metadata`: TensorProperties of five and six
members are read; what a release adds that is not known is not supported, and all else is still shown.

The pickles are those of testdata/dcp, edited: classes of torch are stood in for, so torch need not be there.
"""
import copyreg
import pathlib
import pickle
import shutil
import sys
import types

import cli_common
from cli_common import CliTest

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"


class _Member:
    """A member of an enumeration, which Python 3.11 pickles by getattr."""

    def __init__(self, *place):
        self.place = place

    def __reduce_ex__(self, protocol):
        return getattr, self.place


class _Class(type):

    def __getattr__(cls, name):
        if not name.startswith("TORCH_"):
            raise AttributeError(name)
        return _Member(cls, name)


class _Object(metaclass=_Class):
    """An object of a class of torch that is not here: as NEWOBJ and BUILD make it, or as a call."""

    def __new__(cls, *arguments):
        made = object.__new__(cls)
        made.arguments, made.called = arguments, False
        return made

    def __init__(self, *arguments):
        self.called = True

    def __setstate__(self, state):
        self.state = state

    def __reduce_ex__(self, protocol):
        if self.called:
            return type(self), self.arguments
        return copyreg.__newobj__, (type(self), *self.arguments), getattr(self, "state", None)


def torch_class(module, name):
    """The stand-in, which pickle finds where it looks for the class."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        home = sys.modules.setdefault(".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    if not hasattr(home, name):
        setattr(home, name, _Class(name, (_Object,), {"__module__": module, "__qualname__": name}))
    return getattr(home, name)


class _Unpickler(pickle.Unpickler):

    def find_class(self, module, name):
        return torch_class(module, name) if module.split(".")[0] == "torch" else super().find_class(module, name)


class NewerTorchTest(CliTest):

    def setUp(self):
        super().setUp()
        self.source = pathlib.Path(cli_common.os.environ["DSCKPT_TESTDATA"]) / "dcp" / "nested"

    def edited(self, edit):
        """A copy of the folder whose `.metadata` is what `edit` makes of the attributes of Metadata."""
        folder = self.new_path("dcp")
        shutil.copytree(self.source, folder)
        path = folder / ".metadata"
        path.chmod(0o644)
        with open(path, "rb") as file:
            root = _Unpickler(file).load()
        edit(root.state)
        path.write_bytes(pickle.dumps(root, 2))
        return folder

    def all_tensors(self, state):
        return [value.state for value in state["state_dict_metadata"].values() if hasattr(value, "state")]

    def bytes_of(self, folder):
        return (self.convert(folder, "--safe-serialization") / "model.safetensors").read_bytes()

    def test_strides_of_torch_2_15_change_nothing(self):
        """As a tuple, or None where there are none."""
        expected = self.bytes_of(self.source)

        def add(of_tensor):

            def edit(state):
                for tensor in self.all_tensors(state):
                    properties = tensor["properties"]
                    properties.state = (*properties.state[:5], of_tensor(tensor["size"].arguments[0]))

            return edit

        for of_tensor in (lambda size: tuple(range(len(size), 0, -1)), lambda size: None):
            folder = self.edited(add(of_tensor))
            self.assertEqual(self.bytes_of(folder), expected)
            done = self.tool("ckpt-inspect", "verify", folder)
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_strides_that_are_none_are_damage(self):

        def edit(state):
            tensor = state["state_dict_metadata"]["model.weight"].state
            tensor["properties"].state = (*tensor["properties"].state[:5], (3, 1, 1))

        error = self.assert_refused(self.edited(edit), 3, r"model\.weight: tuple where strides of shape \[5, 3\]",
                                    inspect=False)
        self.assertEqual(error["kind"], "corrupt")

    # What a release might add, to one value of the model: the edit, and how the message names it.
    ADDED = {
        "a member": (lambda state: _append(state["state_dict_metadata"]["model.weight"].state["properties"], "new", 7),
                     r"its TensorProperties has 7 members, and 6 are known"),
        "two members": (lambda state: _append(state["state_dict_metadata"]["model.weight"].state["properties"], 0, 8),
                        r"its TensorProperties has 8 members, and 6 are known"),
        "an attribute of a tensor":
            (lambda state: state["state_dict_metadata"]["model.weight"].state.update(packing=4),
             r"its TensorStorageMetadata has 'packing'"),
        "an attribute of a chunk":
            (lambda state: state["state_dict_metadata"]["model.weight"].state["chunks"][1].state.update(stride=2),
             r"its ChunkStorageMetadata has 'stride'"),
        "an attribute of a place":
            (lambda state: _place(state, "model.weight").state.update(checksum="crc32"), r"its _StorageInfo has 'checksum'"),
        "an attribute of an index":
            (lambda state: _index(state, "model.weight").state.update(part=1), r"its MetadataIndex has 'part'"),
        "a class": (lambda state: _other_class(state, "model.weight"), r"a value of its class RaggedStorageMetadata"),
    }

    def test_what_a_newer_torch_adds_to_a_value_is_not_supported(self):
        for what, (edit, text) in self.ADDED.items():
            with self.subTest(what):
                folder = self.edited(edit)
                self.assert_names_newer(folder, r"\.metadata: model\.weight: written by a newer torch: " + text)
                listed = self.tool("ckpt-inspect", "list", folder)
                self.assertEqual(listed.returncode, 1, listed.stderr)
                self.assertNotIn("weight", listed.stdout)
                self.assertIn("bias\ttrainable\tfloat32\t[5]", listed.stdout)
                self.assertRegex(listed.stderr, "not supported: .*model.weight")
                summary = self.tool("ckpt-inspect", folder)
                self.assertEqual(summary.returncode, 1, summary.stderr)
                self.assertNotIn("damaged", summary.stdout + summary.stderr)

    def test_weights_do_not_wait_for_states_that_are_not_supported(self):

        def edit(state):
            _append(state["state_dict_metadata"]["optim.state.weight.exp_avg"].state["properties"], 1, 7)

        folder = self.edited(edit)
        self.assertEqual(self.bytes_of(folder), self.bytes_of(self.source))
        done = self.zero_to_fp32(folder, self.new_path(), "--states")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("optim.state.weight.exp_avg: written by a newer torch", done.stderr)

    def test_what_a_newer_torch_says_of_all_values_is_not_supported(self):
        folder = self.edited(lambda state: state.update(encryption="aes"))
        self.assert_names_newer(folder, r"\.metadata: written by a newer torch: its Metadata has 'encryption'")
        summary = self.tool("ckpt-inspect", folder)
        self.assertEqual(summary.returncode, 3)
        self.assertIn("not read: it is not supported", summary.stdout)
        self.assertRegex(summary.stdout, r"__0_0\.distcp\t[\d.]+ KB\topens")
        self.assertEqual(self.tool("ckpt-inspect", "raw", folder / ".metadata").returncode, 0)

    def test_an_attribute_that_is_none_changes_nothing(self):

        def edit(state):
            state["encryption"] = None
            _place(state, "model.weight").state["checksum"] = None

        self.assertEqual(self.bytes_of(self.edited(edit)), self.bytes_of(self.source))

    def assert_names_newer(self, folder, pattern):
        error = self.assert_refused(folder, 3, pattern, inspect=False)
        self.assertEqual(error["kind"], "unsupported")
        for arguments in (["reshard", folder, self.new_path(), "--dp", "2"],
                          ["to-universal", "--input_folder", folder, "--output_folder", self.new_path()],
                          ["to-dcp", folder, self.new_path(), "--dp", "2"]):
            done = self.tool(*arguments)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertRegex(done.stderr, pattern)
        verified = self.tool("ckpt-inspect", "verify", folder)
        self.assertEqual(verified.returncode, 0, verified.stdout)  # nothing is damaged
        self.assertRegex(verified.stderr, "not checked: .*" + pattern)


def _append(properties, member, members):
    properties.state = (*properties.state[:5], *[None] * (members - 6), member)
    while len(properties.state) < members:
        properties.state += (member,)


def _index(state, name):
    return next(index for index in state["storage_data"] if index.state["fqn"] == name)


def _place(state, name):
    return state["storage_data"][_index(state, name)]


def _other_class(state, name):
    value = state["state_dict_metadata"][name]
    of = torch_class(METADATA, "RaggedStorageMetadata")
    made = of.__new__(of)
    made.state = value.state
    state["state_dict_metadata"][name] = made


if __name__ == "__main__":
    cli_common.main()
