"""Memory is bounded by what the user allows, and by what the input's size on the disk justifies."""
import json
import shutil
import struct
import subprocess
import zipfile

import cli_common
from cli_common import CliTest, tree


class MemoryTest(CliTest):

    def test_a_pickle_that_only_compression_makes_small_is_refused_before_it_takes_memory(self):
        bomb = self.bomb(300)
        self.assertLess(bomb.stat().st_size, 1 << 20)
        # mimalloc takes 32 MiB for each thread.
        for command in (["raw"], ["list"], ["verify", "--threads=2"], ["scan"]):
            done = self.tool("ckpt-inspect", *command, bomb, "--max-memory=150MB")
            self.assertIn(done.returncode, (1, 3), done.stderr)
            self.assertNotIn("memory", done.stderr)

    def test_where_memory_ends_a_tool_says_so(self):
        # Wherever it ends: in zstd, in a thread of oneTBB's, for the stack of one.
        bomb = self.bomb(100)
        scratch = self.scratch("z2_bf16_w2")
        output, expected = self.new_path(), self.new_path()
        self.assertEqual(self.tool("ckpt-pack", "pack", scratch.folder, expected).returncode, 0)
        commands = [
            ("ckpt-inspect", "verify", bomb),
            ("ckpt-inspect", "verify", scratch.folder),
            ("ckpt-pack", "pack", scratch.folder, output),
        ]
        ends = set()
        for megabytes in [*range(4, 40, 6), *range(40, 160, 5)]:
            for command in commands:
                done = self.tool(*command, f"--max-memory={megabytes}MB")
                with self.subTest(command=command, megabytes=megabytes):
                    self.assertIn(done.returncode, (0, 1, 4), done.stderr)
                    if done.returncode == 4:
                        self.assertRegex(done.stderr, "more memory is needed than --max-memory allows|cannot start")
                    # Not taken for a damaged frame, nor for one that does not become smaller.
                    self.assertNotIn("not enough memory", done.stdout)
                    if done.returncode == 0 and output.exists():
                        self.assertTrue(tree(output) == tree(expected))
                    ends.add(done.returncode)
                shutil.rmtree(output, ignore_errors=True)
        self.assertEqual(ends, {0, 1, 4})

    def test_threads_that_cannot_be_had_are_an_error(self):
        scratch = self.scratch("z2_bf16_w2")
        done = self.tool("ckpt-inspect", "verify", scratch.folder, "--threads=1000", "--max-memory=1GB", "--json")
        self.assertIn("cannot start 1000 threads", self.error_of(done, 4)["message"])

    def test_many_compressed_files_that_are_open_take_little(self):
        folder, nbytes, count = self.new_path("model"), 4 << 20, 400
        folder.mkdir()
        files = {f"t{i}": f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)}
        for name, file in files.items():
            header = {name: {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [0, nbytes]}}
            text = json.dumps(header).encode().ljust(96)
            (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + bytes(nbytes))
        index = {"metadata": {"total_size": count * nbytes}, "weight_map": files}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        subprocess.run(["zstd", "-q", "--rm", *(folder / file for file in files.values())], check=True)
        done = self.tool("ckpt-inspect", "list", folder, "--max-memory=500MB")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(done.stdout.splitlines()), count)

    def bomb(self, megabytes):
        path = self.new_path("bomb.pt")
        with zipfile.ZipFile(path, "w") as archive:
            with archive.open("bomb/data.pkl", "w", force_zip64=True) as record:
                for _ in range(megabytes):
                    record.write(bytes(1 << 20))
            archive.writestr("bomb/version", "3\n")
        subprocess.run(["zstd", "-q", "--rm", path], check=True)
        return path.with_name(path.name + ".zst")

    def test_no_more_memory_is_taken_than_is_allowed(self):
        scratch = self.scratch("z2_bf16_w2")
        self.assertEqual(self.zero_to_fp32(scratch.folder, self.new_path(), "--max-memory=4GB").returncode, 0)
        output = self.new_path()
        done = self.zero_to_fp32(scratch.folder, output, "--json", "--max-memory=6MB")
        self.assertNotIn("errno", self.error_of(done, 4))
        self.assertRegex(done.stderr, "more memory is needed than --max-memory allows")
        self.assertFalse(output.exists())
        self.error_of(self.zero_to_fp32(scratch.folder, self.new_path(), "--json", "--max-memory=much"), 2)


if __name__ == "__main__":
    cli_common.main()
