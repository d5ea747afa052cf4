"""The output's bytes depend on the input and the options alone."""
import hashlib

import common

OPTIONS = (("--safe_serialization", ), (), ("--safe_serialization", "--max_shard_size", "5KB"),
           ("--max_shard_size", "5KB", "--dtype", "bf16"))


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


class DeterminismTest(common.OracleTest):

    def test_bytes_do_not_depend_on_threads_or_on_the_run(self):
        for case in common.all_cases():
            with self.each_case(case) as folder:
                for number, options in enumerate(OPTIONS):
                    first = digests(self.convert(case.load_dir, folder / f"{number}", *options))
                    self.assertTrue(first)
                    for threads in (1, 2, 8):
                        out = folder / f"{number}-{threads}"
                        self.convert(case.load_dir, out, *options, "--threads", threads)
                        self.assertEqual(digests(out), first, f"{options} --threads {threads}")

    def test_the_input_is_left_as_it_was(self):
        for case in common.all_cases()[::7]:
            with self.each_case(case) as folder:
                def state():
                    return {str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
                            for path in case.folder.rglob("*") if path.is_file()}
                before = state()
                self.convert(case.load_dir, folder / "out")
                self.assertEqual(state(), before)


if __name__ == "__main__":
    common.main()
