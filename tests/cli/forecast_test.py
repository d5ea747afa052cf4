"""--dry-run --ranks N: what each rank of a group would do."""
import json
import unittest

import ranks
import tools
from cli_common import CliTest


class ForecastTest(CliTest):

    def forecast(self, tool, *arguments):
        done = self.tool(*tool.split(), *arguments, "--dry-run", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)["data"]

    def commands(self):
        source = tools.case_named("z3_bf16_w2").load_dir
        packed = self.new_path("packed")
        self.assertEqual(self.tool("ckpt-pack", "pack", source, packed).returncode, 0)
        return [["zero-to-fp32", source, self.new_path(), "--max-shard-size", "10KB"],
                ["zero-to-fp32", source, self.new_path(), "--zstd"],
                ["to-universal", source, self.new_path(), "--verify"],
                ["reshard", source, self.new_path(), "--dp", "3"],
                ["ckpt-pack pack", source, self.new_path()],
                ["ckpt-pack unpack", packed, self.new_path()],
                ["ckpt-pack strip", source, self.new_path(), "--keep", "weights"]]

    def test_every_tool_says_what_its_ranks_would_do(self):
        for command in self.commands():
            with self.subTest(command=command):
                plan = self.forecast(*command, "--ranks", "3")
                shares = plan["forecast"]["ranks"]
                self.assertEqual(len(shares), 3)
                self.assertGreaterEqual(sum(rank["files"] for rank in shares), len(plan["files"]))
                self.assertNotIn("seconds", plan["forecast"])
                done = ranks.run_by_hand(3, [*command[0].split(), *command[1:], "--json"], self.root)
                self.assertEqual(done.returncode, 0, done.stderr)
                ran = json.loads(done.stdout)["data"]
                for key in {"bytes_written", "bytes_read"} & set(ran):
                    self.assertEqual(sum(rank[key] for rank in shares), ran[key])
                self.assertEqual(sum(rank["bytes_done"] for rank in shares),
                                 sum(rank["bytes_done"] for rank in ran["ranks"]))

    def test_packed_files_are_whole(self):
        source = tools.case_named("z3_bf16_w2").load_dir
        found = self.forecast("zero-to-fp32", source, self.new_path(), "--zstd", "--ranks", "2")["forecast"]
        self.assertEqual(found["shared_files"], 0)

    def test_time_is_what_the_rates_make_of_it(self):
        source = tools.case_named("z3_bf16_w2").load_dir
        found = self.forecast("zero-to-fp32", source, self.new_path(), "--ranks", "2", "--disk-rate",
                              "1KB")["forecast"]
        each = [(rank["bytes_read"] + rank["bytes_written"]) / 1000 for rank in found["ranks"]]
        self.assertEqual([rank["seconds"] for rank in found["ranks"]], each)
        self.assertEqual(found["seconds"], max(each))
        self.assertEqual(found["disk_rate"], 1000)

    def test_of_many_ranks_the_first_are_shown_and_json_has_all(self):
        arguments = ["zero-to-fp32", tools.case_named("z3_bf16_w2").load_dir, self.new_path()]
        for size, rows in ((20, 20), (21, 19), (64, 19)):
            done = self.tool(*arguments, "--dry-run", "--ranks", str(size))
            lines = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
            self.assertEqual(len(lines), rows)
            self.assertEqual(f"ranks 19 to {size - 1} write" in done.stdout, size > 20)
            self.assertEqual(len(self.forecast(*arguments, "--ranks", str(size))["forecast"]["ranks"]), size)

    def test_goes_with_a_dry_run_alone(self):
        arguments = ["zero-to-fp32", tools.case_named("z3_bf16_w2").load_dir, self.new_path()]
        for more, message, hint in ((["--ranks", "4"], "--ranks goes with --dry-run", "mpirun -n 4"),
                                    (["--disk-rate", "1GB", "--dry-run"], "goes with --dry-run --ranks", "--limit-rate"),
                                    (["--ranks", "0", "--dry-run"], "--ranks", "--help")):
            done = self.tool(*arguments, *more)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(message, done.stderr)
            self.assertIn(hint, done.stderr)
            self.assertFalse(arguments[-1].exists())


if __name__ == "__main__":
    unittest.main()
