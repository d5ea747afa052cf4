"""Output files against the libraries that define them: safetensors, huggingface_hub, DeepSpeed's command."""
import json
import os
import struct

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save

import oracle
import tools

SIZES = ("1KB", "5KB", "20KB", "1MB")
KINDS = {"model.safetensors": ["--safe_serialization"], "pytorch_model.bin": []}


def split_safetensors(data):
    """The header as an ordered list of pairs, and the bytes after it."""
    (length, ) = struct.unpack_from("<Q", data)
    return json.loads(data[8:8 + length], object_pairs_hook=lambda pairs: pairs), data[8 + length:]


def companions(case):
    """The files that come along, and that DeepSpeed leaves to the user to copy."""
    return [name for name in ("config.json", "generation_config.json") if (case.load_dir / name).exists()]


class IdentityTest(oracle.OracleTest):

    def assert_file_equals_save_file(self, case, path, tensors, aliases):
        """The metadata must name `aliases` besides the format. save_file itself writes more than one metadata
        key in random order, so then everything but the metadata is compared."""
        data = path.read_bytes()
        reference = save(tensors, metadata={"format": "pt"})
        if not aliases:
            self.assertTrue(data == reference, f"{case.name}: {path.name} differs from save_file's")
            return
        header, body = split_safetensors(data)
        reference_header, reference_body = split_safetensors(reference)
        self.assertEqual(header[0], ("__metadata__", sorted({"format": "pt", **aliases}.items())))
        self.assertEqual(header[1:], reference_header[1:])
        self.assertTrue(body == reference_body, f"{case.name}: {path.name} holds other data")
        self.assertEqual((len(data) - len(body)) % 8, 0)

    def test_safetensors_file_is_what_save_file_writes(self):
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out", "--safe_serialization")
                self.assert_file_equals_save_file(case, out / "model.safetensors",
                                                  case.without_aliases(case.truth()), case.tied)

    def test_shards_and_index_are_what_huggingface_hub_plans(self):
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                truth = case.truth()
                order = list(oracle.load_bin(self.convert(case.load_dir, folder / "whole") / "pytorch_model.bin"))
                # Empty tensors with the right sharing, as DeepSpeed's command plans with.
                empty = {name: torch.empty(truth[name].shape, dtype=truth[name].dtype) for name in order
                         if name not in case.tied}
                aliases = {name: case.tied[name] for name in order if name in case.tied}
                shared = {name: empty[aliases.get(name, name)] for name in order}
                for weights, options in KINDS.items():
                    plan_from = empty if weights == "model.safetensors" else shared
                    stem, extension = weights.split(".")
                    for size in SIZES:
                        split = split_torch_state_dict_into_shards(
                            plan_from, filename_pattern=f"{stem}{{suffix}}.{extension}", max_shard_size=size)
                        out = self.convert(case.load_dir, folder / f"{weights}-{size}", "--max_shard_size", size,
                                           *options)
                        self.check_folder(case, out, weights, split, truth, aliases)

    def check_folder(self, case, out, weights, split, truth, aliases):
        files = set(split.filename_to_tensors)
        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            self.assertEqual((out / f"{weights}.index.json").read_text(), text)
            files.add(f"{weights}.index.json")
        self.assertEqual({path.name for path in out.iterdir()}, files | set(companions(case)))
        for name, members in split.filename_to_tensors.items():
            tensors = {member: truth[member] for member in members}
            if weights == "model.safetensors":
                self.assert_file_equals_save_file(
                    case, out / name, tensors, {a: owner for a, owner in aliases.items() if owner in tensors})
            else:
                loaded = oracle.load_bin(out / name)
                self.assertEqual(list(loaded), members)
                self.assert_same_tensors(loaded, tensors)

    def test_output_folder_equals_that_of_deepspeeds_command(self):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        try:
            from deepspeed.utils import zero_to_fp32
        except ImportError:
            self.skipTest("deepspeed is not installed")
        zero_to_fp32.tqdm = lambda files, **_: files
        zero_to_fp32.print = lambda *_: None
        names = {"z1_fp32_w2", "z2_bf16_w4", "z2_bf16_paramalign_w2", "z2_fp32_oddbuffers_w2", "z2_fp32_full_w3",
                 "z3_fp32_w3", "z3_fp32_full_w8", "z3_bf16_full_subgroups_w4", "hf_trainer_gpt2_z2_bf16_w2"}
        for case in oracle.all_cases():
            if case.name not in names:
                continue
            for dtype in ("float32", "bfloat16"):
                for weights, options in KINDS.items():
                    safe = weights == "model.safetensors"
                    if safe and case.tied:
                        continue  # DeepSpeed's command cannot write shared tensors as safetensors
                    for size in ("5KB", "5GB"):
                        with self.each_case(case) as folder:
                            zero_to_fp32.convert_zero_checkpoint_to_state_dict(
                                str(case.load_dir), str(folder / "theirs"), dtype=dtype, max_shard_size=size,
                                safe_serialization=safe)
                            self.convert(case.load_dir, folder / "ours", "--dtype", dtype, "--max_shard_size", size,
                                         *options)
                            self.compare_folders(case, folder / "ours", folder / "theirs")

    def compare_folders(self, case, ours, theirs):
        names = sorted(path.name for path in theirs.iterdir())
        self.assertEqual(sorted(path.name for path in ours.iterdir()), sorted(names + companions(case)))
        for name in names:
            if name.endswith(".bin"):
                a, b = oracle.load_bin(ours / name), oracle.load_bin(theirs / name)
                self.assertEqual(list(a), list(b))
                self.assert_same_tensors(a, b)
            else:
                self.assertTrue((ours / name).read_bytes() == (theirs / name).read_bytes(), f"{name} differs")


if __name__ == "__main__":
    tools.main()
