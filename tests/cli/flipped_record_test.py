"""One flipped bit in a checkpoint: a tool that writes refuses it by its name, or does not need it.

The output is then byte for byte the one without the flip. Deterministic: the places are drawn by a seed.
DSCKPT_CASES, a regular expression, restricts it to some cases. support/flip_bits.cpp does the same with the
library, without starting tools. FLIPS=random has it flip 20,000 bytes of all checkpoints, and FLIPS=all also
each byte of the five smallest.
"""
import concurrent.futures
import io
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import zipfile

import tools
import torch_files
from cli_common import CliTest

DATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
# Steps in records of their own, partitions of stage 3, a model that is split over ranks.
CASES = ["checkpoints/z1_fp32_w2", "checkpoints/z3_bf16_w2", "model_parallel/autotp2_dp1_z1_bf16"]


def records_in(content):
    """(name, begin, size) of each record of a zip that has any bytes."""
    with zipfile.ZipFile(io.BytesIO(content)) as zipped:
        for info in zipped.infolist():
            lengths = content[info.header_offset + 26:info.header_offset + 30]
            begin = info.header_offset + 30 + sum(int.from_bytes(lengths[i:i + 2], "little") for i in (0, 2))
            if info.file_size:
                yield info.filename, begin, info.file_size


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class FlippedRecordTest(CliTest):

    def commands(self, folder, tag, ranks, out):
        yield "weights", ["zero-to-fp32", folder, out, "--safe-serialization", "--states"]
        yield "bin", ["zero-to-fp32", folder, out]
        yield "universal", ["to-universal", "--input_folder", folder / tag, "--output_folder", out / "universal"]
        yield "reshard", ["reshard", folder, out, "--dp", ranks + 1]
        # It takes the weights alone of models that are split over ranks.
        is_split = any("mp_rank_01" in path.name for path in (folder / tag).iterdir())
        yield "dcp", ["to-dcp", folder, out, "--dp", ranks + 1, *["--weights-only"] * is_split]
        yield "strip", ["ckpt-pack", "strip", folder, out, "--keep", "resume"]
        yield "strip to weights", ["ckpt-pack", "strip", folder, out, "--keep", "weights"]
        # All readable parts are checked; a note says that the rest is packed as it is.
        yield "pack", ["ckpt-pack", "pack", folder, out]

    def written(self, command):
        """Exit status, what was said, and what is in the folder `out` then."""
        done = self.tool(*command)
        written = contents(self.root / "out") if done.returncode == 0 else None
        shutil.rmtree(self.root / "out", ignore_errors=True)
        return done.returncode, done.stderr, written

    def results(self, folder, tag, ranks):
        return {name: self.written(command)
                for name, command in self.commands(folder, tag, ranks, self.root / "out")}

    def check(self, case):
        facts = json.loads((DATA / case / "case.json").read_text())
        folder, tag = self.root / "ckpt", facts["tag"]
        shutil.copytree(DATA / case / facts["load_dir"], folder)
        ranks = len(list((folder / tag).glob("*zero_pp_rank_*_mp_rank_00_optim_states.pt")))
        clean = self.results(folder, tag, ranks)
        for name, (code, errors, _) in clean.items():
            self.assertEqual(code, 0, f"{name}: {errors}")
        rng = random.Random(case)
        flips = 0
        for path in sorted((folder / tag).rglob("*.pt")):
            whole = path.read_bytes()
            path.chmod(0o644)
            for record, begin, size in records_in(whole):
                damaged = bytearray(whole)
                at = begin + rng.randrange(size)
                damaged[at] ^= 1 << rng.randrange(8)
                path.write_bytes(damaged)
                flips += 1
                for name, (code, errors, written) in self.results(folder, tag, ranks).items():
                    with self.subTest(name, file=path.name, record=record, byte=at):
                        if code == 0 and f"{path.name} is packed as plain bytes" not in errors:
                            self.assertEqual(written.keys(), clean[name][2].keys())
                            wrong = [file for file in written if written[file] != clean[name][2][file]]
                            self.assertEqual(wrong, [])
                        elif code != 0:
                            self.assertEqual(code, 3, errors)
                            # Values that ranks should have in common are compared before checksums are
                            # complete.
                            if "are not the same" not in errors:
                                self.assertIn(path.name, errors)
                                self.assertIn(record, errors)
            path.write_bytes(whole)
        self.assertGreater(flips, 20)


    def test_torch_distributed_checkpoint(self):
        """One byte of each record of its archives, which lie one behind the other in its files."""
        folder = self.root / "ckpt"
        shutil.copytree(DATA / "dcp" / "nested", folder)
        config = self.root / "config.json"
        config.write_text(json.dumps({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}))
        out = self.root / "out"
        commands = {"weights": ["zero-to-fp32", folder, out, "--safe-serialization", "--states"],
                    "universal": ["to-universal", "--input_folder", folder, "--output_folder", out / "universal"],
                    "reshard": ["reshard", folder, out, "--dp=2", f"--ds-config={config}"],
                    "dcp": ["to-dcp", folder, out, "--dp=3"]}
        places = torch_files.loads((folder / ".metadata").read_bytes()).storage_data.values()
        rng = random.Random(1)
        clean = {name: self.written(command) for name, command in commands.items()}
        for name, (code, errors, _) in clean.items():
            self.assertEqual(code, 0, f"{name}: {errors}")
        flips = refused = 0
        for info in sorted(places, key=lambda info: (info.relative_path, info.offset)):
            path = folder / info.relative_path
            whole = path.read_bytes()
            path.chmod(0o644)
            for record, begin, size in records_in(whole[info.offset:info.offset + info.length]):
                damaged = bytearray(whole)
                damaged[info.offset + begin + rng.randrange(size)] ^= 1 << rng.randrange(8)
                path.write_bytes(damaged)
                flips += 1
                for name, command in commands.items():
                    code, errors, written = self.written(command)
                    with self.subTest(name, file=path.name, record=record, archive=info.offset):
                        if code == 0:
                            self.assertEqual(written, clean[name][2])
                        else:
                            refused += 1
                            self.assertEqual(code, 3, errors)
                            self.assertIn(path.name, errors)
                            self.assertIn(record, errors)
            path.write_bytes(whole)
        self.assertGreater(flips, 100)
        self.assertGreater(refused, flips)

    def test_any_byte_of_any_zip(self):
        """Also those around the records: headers, paddings, directories."""
        cases = [*tools.all_cases(), *tools.model_parallel_cases()]
        cases.sort(key=lambda case: sum(path.stat().st_size for path in case.load_dir.rglob("*") if path.is_file()))
        wanted, shares = os.environ.get("FLIPS"), 100
        runs = [(case, 20000 // len(cases) + 1 if wanted else 3, 0, 0) for case in cases]
        if wanted == "all":
            runs += [(case, 0, part, shares) for case in cases[:5] for part in range(shares)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda run: (run, self.flip_bits(*run)), runs))
        counts = [0] * 5
        for (case, *_), done in results:
            with self.subTest(case=case.name):
                self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr)
                summary = done.stdout.splitlines()[-1]
                if summary == "no zips, and no checksums":
                    self.assertRegex(case.name, "legacyserial|writer_python")
                    continue
                numbers = [int(number) for number in re.findall(r"\b\d+\b", summary)]
                counts = [a + b for a, b in zip(counts, numbers[:1] + numbers[2:])]
        print(f"{counts[0]:,} flips: {counts[1]:,} times refused, {counts[2]:,} times without effect, "
              f"{counts[3]:,} times passed on in unused bytes", file=sys.stderr)
        self.assertGreater(counts[1], 0)

    def flip_bits(self, case, count, first, step):
        program = pathlib.Path(os.environ["DSCKPT_BIN"]).parent / "tests" / "flip_bits"
        command = [program, case.load_dir, case.facts["tag"], 1, count, first, step]
        memory = pathlib.Path("/dev/shm")
        environment = {**self.environment, "TMPDIR": str(memory if memory.is_dir() else self.tmp)}
        return subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True)


for case in CASES:
    if re.search(os.environ.get("DSCKPT_CASES", ""), case):
        setattr(FlippedRecordTest, f"test_{pathlib.Path(case).name}", lambda self, case=case: self.check(case))

if __name__ == "__main__":
    tools.main()
