"""The output's bytes depend on the input and the options alone."""
import hashlib

import oracle
import tools

OPTIONS = (("--safe_serialization", ), (), ("--safe_serialization", "--max_shard_size", "5KB"),
           ("--max_shard_size", "5KB", "--dtype", "bf16"))


def digests(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.rglob("*") if path.is_file()}


class DeterminismTest(oracle.OracleTest):

    def test_bytes_do_not_depend_on_threads_io_or_the_run(self):
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                for number, options in enumerate(OPTIONS):
                    first = digests(self.convert(case.load_dir, folder / f"{number}", *options))
                    self.assertTrue(first)
                    for threads in (1, 2, 8):
                        out = folder / f"{number}-{threads}"
                        self.convert(case.load_dir, out, *options, "--threads", threads)
                        self.assertEqual(digests(out), first, f"{options} --threads {threads}")
                    for mode in ("buffered", "direct"):
                        out = folder / f"{number}-{mode}"
                        self.convert(case.load_dir, out, *options, "--io", mode)
                        self.assertEqual(digests(out), first, f"{options} --io {mode}")

    def test_universal_bytes_do_not_depend_on_threads_or_on_the_run(self):
        compared = 0
        for case in [*oracle.all_cases(), *oracle.model_parallel_cases()]:
            with self.each_case(case) as folder:
                place = ["--input_folder", case.tag_folder, "--output_folder", folder / "first"]
                if tools.run_tool("to-universal", *place).returncode == 3:
                    continue  # what is refused, and why, is universal_test.py's
                compared += 1
                first = digests(folder / "first")
                self.assertTrue(first)
                for threads in (1, 2, 8):
                    out = self.convert_to_universal(case.tag_folder, folder / f"{threads}", "--threads", threads)
                    self.assertEqual(digests(out), first, f"--threads {threads}")
        self.require(compared, "convertible case")

    def test_the_input_is_left_as_it_was(self):
        for case in oracle.all_cases()[::7]:
            with self.each_case(case) as folder:
                def state():
                    return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
                            for path in case.folder.rglob("*") if path.is_file()}
                before = state()
                self.convert(case.load_dir, folder / "out")
                self.convert_to_universal(case.tag_folder, folder / "universal")
                self.assertEqual(state(), before)


if __name__ == "__main__":
    tools.main()
