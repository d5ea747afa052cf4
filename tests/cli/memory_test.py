"""Memory is bounded by what the user allows, and by what the input's size on the disk justifies."""
import subprocess
import zipfile

import cli_common
from cli_common import CliTest


class MemoryTest(CliTest):

    def test_a_pickle_that_only_compression_makes_small_is_refused_before_it_takes_memory(self):
        path = self.new_path("bomb.pt")
        with zipfile.ZipFile(path, "w") as archive:
            with archive.open("bomb/data.pkl", "w", force_zip64=True) as record:
                for _ in range(300):
                    record.write(bytes(1 << 20))
            archive.writestr("bomb/version", "3\n")
        subprocess.run(["zstd", "-q", "--rm", path], check=True)
        bomb = path.with_name(path.name + ".zst")
        self.assertLess(bomb.stat().st_size, 1 << 20)
        for command in (["raw"], ["list"], ["verify"], ["scan"]):
            done = self.tool("ckpt-inspect", *command, bomb, "--max-memory=150MB")
            self.assertIn(done.returncode, (1, 3), done.stderr)
            self.assertNotIn("memory", done.stderr)

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
