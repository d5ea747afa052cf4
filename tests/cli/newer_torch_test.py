"""The `.metadata` of torch.distributed.checkpoint of other releases. TensorProperties of five and six members
are read. An unknown addition of a release is not supported, and all else is still shown.

The pickles are those of testdata/dcp, edited: classes of torch are stood in for, so torch need not be there.
"""
import os
import pathlib
import shutil

import cli_common
import torch_files
from cli_common import CliTest

METADATA = "torch.distributed.checkpoint.metadata"


def _append(properties, member, members):
    properties.state = (*properties.state[:5], *[member] * (members - 5))


def _weight(metadata):
    return metadata.state_dict_metadata["model.weight"]


def _index(metadata):
    return next(index for index in metadata.storage_data if index.fqn == "model.weight")


def _place(metadata):
    return metadata.storage_data[_index(metadata)]


def _give_index_a_part(metadata):
    index = _index(metadata)
    place = metadata.storage_data.pop(index)  # by its attributes
    index.part = 1
    metadata.storage_data[index] = place


def _give_another_class(metadata):
    made = torch_files.new(torch_files.named(METADATA, "RaggedStorageMetadata"), **vars(_weight(metadata)))
    metadata.state_dict_metadata["model.weight"] = made


class NewerTorchTest(CliTest):

    def setUp(self):
        super().setUp()
        self.source = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "dcp" / "nested"

    def edited(self, edit):
        """A copy of the folder whose `.metadata` is what `edit` makes of it."""
        folder = self.new_path("dcp")
        shutil.copytree(self.source, folder)
        path = folder / ".metadata"
        path.chmod(0o644)
        metadata = torch_files.loads(path.read_bytes())
        edit(metadata)
        path.write_bytes(torch_files.dumps(metadata, 2))
        return folder

    def bytes_of(self, folder):
        return (self.convert(folder, "--safe-serialization") / "model.safetensors").read_bytes()

    def test_strides_of_torch_2_15_change_nothing(self):
        """As a tuple, or None where there are none."""
        expected = self.bytes_of(self.source)

        def add(of_tensor):

            def edit(metadata):
                for value in metadata.state_dict_metadata.values():
                    if hasattr(value, "properties"):
                        properties = value.properties
                        properties.state = (*properties.state[:5], of_tensor(value.size))

            return edit

        for of_tensor in (lambda size: tuple(range(len(size), 0, -1)), lambda size: None):
            folder = self.edited(add(of_tensor))
            self.assertEqual(self.bytes_of(folder), expected)
            done = self.tool("ckpt-inspect", "verify", folder)
            self.assertEqual(done.returncode, 0, done.stdout)

    def test_strides_that_are_none_are_damage(self):

        def edit(metadata):
            properties = metadata.state_dict_metadata["model.weight"].properties
            properties.state = (*properties.state[:5], (3, 1, 1))

        error = self.assert_refused(self.edited(edit), 3, r"model\.weight: tuple where strides of shape \[5, 3\]",
                                    inspect=False)
        self.assertEqual(error["kind"], "corrupt")

    # A possible addition of a release to one value of the model: the edit, and its name in the message.
    ADDED = {
        "a member": (lambda metadata: _append(_weight(metadata).properties, "new", 7),
                     r"its TensorProperties has 7 members, and 6 are known"),
        "two members": (lambda metadata: _append(_weight(metadata).properties, 0, 8),
                        r"its TensorProperties has 8 members, and 6 are known"),
        "an attribute of a tensor":
            (lambda metadata: setattr(_weight(metadata), "packing", 4),
             r"its TensorStorageMetadata has 'packing'"),
        "an attribute of a chunk":
            (lambda metadata: setattr(_weight(metadata).chunks[1], "stride", 2),
             r"its ChunkStorageMetadata has 'stride'"),
        "an attribute of a place":
            (lambda metadata: setattr(_place(metadata), "checksum", "crc32"), r"its _StorageInfo has 'checksum'"),
        "an attribute of an index":
            (_give_index_a_part, r"its MetadataIndex has 'part'"),
        "a class": (_give_another_class, r"a value of its class RaggedStorageMetadata"),
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

        def edit(metadata):
            _append(metadata.state_dict_metadata["optim.state.weight.exp_avg"].properties, 1, 7)

        folder = self.edited(edit)
        self.assertEqual(self.bytes_of(folder), self.bytes_of(self.source))
        done = self.zero_to_fp32(folder, self.new_path(), "--states")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("optim.state.weight.exp_avg: written by a newer torch", done.stderr)

    def test_what_a_newer_torch_says_of_all_values_is_not_supported(self):
        folder = self.edited(lambda metadata: setattr(metadata, "encryption", "aes"))
        self.assert_names_newer(folder, r"\.metadata: written by a newer torch: its Metadata has 'encryption'")
        summary = self.tool("ckpt-inspect", folder)
        self.assertEqual(summary.returncode, 3)
        self.assertIn("not read: it is not supported", summary.stdout)
        self.assertRegex(summary.stdout, r"__0_0\.distcp\t[\d.]+ KB\topens")
        self.assertEqual(self.tool("ckpt-inspect", "raw", folder / ".metadata").returncode, 0)

    def test_an_attribute_that_is_none_changes_nothing(self):

        def edit(metadata):
            metadata.encryption = None
            _place(metadata).checksum = None

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


if __name__ == "__main__":
    cli_common.main()
