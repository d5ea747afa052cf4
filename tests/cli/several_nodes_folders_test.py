"""--root: shards that nodes kept on disks of their own, read as one checkpoint."""
import filecmp
import json
import shutil

import cli_common
import tools
from cli_common import CliTest

CASES = ["z2_fp32_full_w3", "z3_fp32_full_w2", "z1_bf16opt_tinygroup_w4", "hf_trainer_llama_z3_bf16_w2"]
EVERY_NODE_HAS = ("mp_rank_00_model_states.pt",)


def differences(a, b):
    """Paths of files that are not the same in both folders."""
    files = [{str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} for root in (a, b)]
    same = {name for name in files[0] & files[1] if filecmp.cmp(a / name, b / name, shallow=False)}
    return (files[0] | files[1]) - same


def rank_of(name):
    return int(name.split("pp_rank_")[1].split("_")[0]) if "pp_rank_" in name else None


class SeveralFoldersTest(CliTest):

    def split(self, name, node_of, nodes=2, with_copies=True):
        """The load folders of the nodes of a case; `node_of` says which node has a rank's files."""
        case = tools.case_named(name)
        roots = []
        for node in range(nodes):
            scratch = self.scratch(name)
            root = scratch.folder.rename(self.new_path(f"node{node}-of-"))
            for path in list((root / case.facts["tag"]).iterdir()):
                rank = rank_of(path.name)
                is_here = node_of(rank) == node if rank is not None else node == 0 or with_copies
                if not is_here:
                    path.unlink()
            roots.append(root)
        return case, roots

    def assert_same_as_whole(self, tool, case, roots, *options):
        whole, merged = self.new_path() / "out", self.new_path() / "out"  # one name: torch.save writes it
        if tool == "to-universal":
            places = [["--input-folder", source, "--output-folder", out]
                      for source, out in ((case.load_dir, whole), (roots[0], merged))]
        else:
            places = [[case.load_dir, whole], [roots[0], merged]]
        extra = [item for root in roots[1:] for item in ("--root", root)]
        for place, more in zip(places, ([], extra)):
            done = self.tool(tool, *place, *options, *more)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(differences(whole, merged), set(), f"{tool} of {case.name}")

    def test_merged_roots_convert_to_the_bytes_of_the_whole(self):
        for name in CASES:
            ways = [(lambda rank: rank % 2, 2, True), (lambda rank: 0 if rank == 0 else 1, 2, False)]
            if name.endswith("w3"):
                ways.append((lambda rank: (rank + 1) % 3, 3, True))
            for node_of, nodes, copies in ways:
                with self.subTest(name, nodes=nodes, copies=copies):
                    case, roots = self.split(name, node_of, nodes, copies)
                    self.assert_same_as_whole("zero-to-fp32", case, roots, "--safe-serialization")
                    self.assert_same_as_whole("to-universal", case, roots)
                    self.assert_same_as_whole("reshard", case, roots, "--dp", "2")

    def test_a_tags_own_folders_are_roots_too(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        tags = [root / case.facts["tag"] for root in roots]
        self.assert_same_as_whole("zero-to-fp32", case, tags)

    def test_inspect_lists_and_verifies_roots(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        whole = json.loads(self.tool("ckpt-inspect", "list", case.load_dir, "--json").stdout)["data"]
        done = self.tool("ckpt-inspect", "list", roots[0], "--root", roots[1], "--json")
        merged = json.loads(done.stdout)["data"]
        names = [[(t["name"], t["dtype"], t["shape"]) for t in data["tensors"]] for data in (whole, merged)]
        self.assertEqual(*names)
        files = {file for tensor in merged["tensors"] for file in tensor["files"]}
        for root in roots:
            self.assertTrue(any(file.startswith(str(root) + "/") for file in files), (root, files))
        done = self.tool("ckpt-inspect", "verify", roots[0], "--root", roots[1])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = self.tool("ckpt-inspect", roots[0], "--root", roots[1], "--json")
        self.assertEqual(done.returncode, 0, done.stderr)

    def refused(self, code, pattern, source, *options):
        done = self.tool("zero-to-fp32", source, self.new_path(), *options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, pattern)

    def test_a_rank_on_no_root_is_named_with_the_folders(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        lost = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        (roots[1] / case.facts["tag"] / lost).unlink()
        self.refused(3, rf"1 of 3 files are missing from .*node0-.* and .*node1-.*:\n +{lost}", roots[0], "--root",
                     roots[1])

    def test_two_different_files_of_a_rank_are_both_named(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        name = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
        other = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        shutil.copy(roots[1] / case.facts["tag"] / other, roots[1] / case.facts["tag"] / name)
        self.refused(3, rf"node1-.*{name}: is not the same as .*node0-.*{name}", roots[0], "--root", roots[1])

    def test_a_model_file_of_another_save_is_refused(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        path = roots[1] / case.facts["tag"] / EVERY_NODE_HAS[0]
        data = bytearray(path.read_bytes())
        at = data.index(b"PK\x01\x02") + 16  # the CRC32 of the directory's first entry
        data[at] ^= 1
        path.write_bytes(data)
        self.refused(3, "is not the same as", roots[0], "--root", roots[1])

    def test_roots_whose_latest_differ_are_refused_unless_told(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        (roots[1] / "latest").write_text("global_step999")
        self.refused(3, "names the tag 'global_step999'", roots[0], "--root", roots[1])
        done = self.tool("zero-to-fp32", roots[0], self.new_path() / "out", "--root", roots[1], "--tag",
                         case.facts["tag"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_bad_roots_are_usage_errors(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        self.refused(2, "is given twice", roots[0], "--root", roots[0])
        self.refused(2, "there is no such folder", roots[0], "--root", self.root / "nowhere")
        empty = self.new_path() / "empty"
        empty.mkdir(parents=True)
        self.refused(3, "has no folder of the tag", roots[0], "--root", empty)

    def test_output_inside_any_root_is_refused(self):
        case, roots = self.split(CASES[0], lambda rank: rank % 2)
        done = self.tool("zero-to-fp32", roots[0], roots[1] / case.facts["tag"] / "out", "--root", roots[1])
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("lies inside the folder of the shards", done.stderr)


if __name__ == "__main__":
    cli_common.main()
