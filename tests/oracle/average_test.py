"""zero-to-fp32 --average against torch: sums in float64, rounded once, of what each checkpoint gives by itself."""

import itertools
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

BIN = Path(os.environ["DSCKPT_BIN"])
CHECKPOINTS = Path(os.environ["DSCKPT_TESTDATA"]) / "checkpoints"
OUTPUT = "model.safetensors"


def run(*args):
    return subprocess.run([BIN / "zero-to-fp32", *map(str, args)], capture_output=True, text=True)


def tensors(folder):
    return load_file(folder / OUTPUT)


def rounded_once(value, dtype):
    """float64 to `dtype`, to nearest even, by integers: torch goes to 16 bit through float32 and rounds twice."""
    if dtype in (torch.float32, torch.float64):
        return value.to(dtype)
    # The candidates around torch's result; the nearest, and of two as near the even one.
    guess = value.to(dtype)
    bits = guess.view(torch.int16)
    best, distance = guess.clone(), (guess.double() - value).abs()
    for step in (-1, 1):
        other = (bits + step).view(dtype)
        away = (other.double() - value).abs()
        even = (bits + step) % 2 == 0
        better = (away < distance) | ((away == distance) & even)
        best, distance = torch.where(better, other, best), torch.where(better, away, distance)
    return torch.where(torch.isfinite(value) & (guess != 0), best, guess)


def expected(parts, weights, dtype):
    total = torch.zeros_like(parts[0], dtype=torch.float64)
    for part, weight in zip(parts, weights):
        total = total + part.double() * weight
    return rounded_once(total / sum(weights), dtype)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


class Averages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.root = Path(cls.scratch.name)
        cls.alone, cls.facts, cls.buffers = {}, {}, {}
        groups = defaultdict(list)
        for folder in sorted(CHECKPOINTS.iterdir()):
            plan = run(folder / "ckpt", "unused", "--dry-run", "--json", "--dtype", "keep")
            if plan.returncode != 0:
                continue
            out = cls.root / "alone" / folder.name
            run(folder / "ckpt", out, "--dtype", "keep", "--safe-serialization", "--max-shard-size", "none")
            if not (out / OUTPUT).exists():
                continue
            facts = json.loads(plan.stdout)
            cls.facts[folder.name] = facts["checkpoint"] if "checkpoint" in facts else facts["data"]["checkpoint"]
            values = tensors(out)
            cls.alone[folder.name] = values
            shard = sorted((folder / "ckpt").rglob("*model_states.pt"))[0]
            cls.buffers[folder.name] = set(torch.load(shard, map_location="cpu", weights_only=False).get("buffer_names") or ())
            with safe_open(out / OUTPUT, "pt") as opened:
                ties = tuple(sorted((opened.metadata() or {}).items()))
            groups[tuple((n, tuple(t.shape), str(t.dtype)) for n, t in sorted(values.items())), ties].append(folder.name)
        cls.groups = [names for names in groups.values() if len(names) > 1]

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def in_order(self, names):
        return sorted(names, key=lambda name: self.facts[name]["global_steps"])

    def check(self, names, weights, *options, dtype=torch.float32):
        with tempfile.TemporaryDirectory(dir=self.root) as out:
            weighted = ["--weights", ",".join(map(repr, weights))] if weights else []
            done = run(*(CHECKPOINTS / n / "ckpt" for n in names), out, "--average", "--safe-serialization",
                       "--max-shard-size", "none", *weighted, *options)
            self.assertEqual(done.returncode, 0, (names, done.stderr))
            got = tensors(Path(out))
        by_name = dict(zip(names, weights or [1.0] * len(names)))
        ordered = self.in_order(names)
        averaged = 0
        for name, value in got.items():
            parts = [self.alone[n][name] for n in ordered]
            newest = parts[-1]
            if name in self.buffers[ordered[-1]] or not newest.is_floating_point():
                want = newest.to(dtype) if newest.is_floating_point() else newest
            else:
                want = expected(parts, [by_name[n] for n in ordered], dtype)
                averaged += 1
            self.assertEqual(value.dtype, want.dtype, (ordered, name))
            self.assertTrue(torch.equal(bits(value), bits(want)), (ordered, name))
        self.assertGreater(averaged, 0)
        return got


class AverageTest(Averages):

    def test_all_pairs_that_fit(self):
        stages = set()
        for names in self.groups:
            for pair in itertools.islice(itertools.combinations(names, 2), 12):
                with self.subTest(pair=pair):
                    self.check(list(pair), None)
                    stages.update(self.facts[n]["zero_stage"] for n in pair)
        self.assertEqual(stages, {0, 1, 2, 3})

    def test_five_and_twenty_with_weights_and_types(self):
        largest = max(self.groups, key=len)
        for count in (5, 20):
            names = largest[:count]
            self.assertEqual(len(names), count)
            for dtype, name in ((torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")):
                weights = [0.1 + 0.37 * i for i in range(count)]
                with self.subTest(count=count, dtype=name):
                    self.check(names, weights, "--dtype", name, dtype=dtype)

    def test_threads_do_not_matter(self):
        names = max(self.groups, key=len)[:5]
        written = set()
        for threads in (1, 2, 7):
            out = self.root / f"threads{threads}"
            done = run(*(CHECKPOINTS / n / "ckpt" for n in names), out, "--average", "--safe-serialization",
                       "--max-shard-size", "none", "--threads", threads)
            self.assertEqual(done.returncode, 0, done.stderr)
            written.add((out / OUTPUT).read_bytes())
        self.assertEqual(len(written), 1)


class OptionsTest(Averages):
    """Steps, --last, --ema, files that torch.save writes, and what is refused."""

    CASE = "z3_fp32_w3"

    def steps(self, count):
        """A folder with as many tags of one model, of rising steps, whose masters differ; and their weights alone."""
        folder = Path(tempfile.mkdtemp(dir=self.root))
        source = CHECKPOINTS / self.CASE / "ckpt"
        tag, = (path for path in source.iterdir() if path.is_dir())
        alone = []
        # Written last to first, so that neither names nor times are in the order of the steps.
        for step in reversed(range(1, count + 1)):
            target = folder / f"tag{(step * 7) % (count + 1)}"
            shutil.copytree(tag, target)
            for path in target.glob("*.pt"):
                shard = torch.load(path, weights_only=False)
                if path.name.endswith("model_states.pt"):
                    shard["global_steps"] = step
                else:
                    optimizer = shard["optimizer_state_dict"]
                    for flat in optimizer["fp32_flat_groups"]:
                        flat.data.mul_(1 + step / 7)
                    for state in optimizer["optimizer_state_dict"]["state"].values():
                        state["step"].fill_(step)
                torch.save(shard, path)
            (folder / "latest").write_text(target.name)
            out = Path(tempfile.mkdtemp(dir=self.root))
            done = run(folder, out, "--safe-serialization", "--max-shard-size", "none", "--tag", target.name)
            self.assertEqual(done.returncode, 0, done.stderr)
            alone.append(tensors(out))
        return folder, alone[::-1]

    def averaged(self, *arguments, status=0):
        out = Path(tempfile.mkdtemp(dir=self.root))
        done = run(*arguments, out, "--average", "--safe-serialization", "--max-shard-size", "none")
        self.assertEqual(done.returncode, status, done.stderr)
        return tensors(out) if status == 0 else done.stderr

    def assert_mean(self, got, parts, weights):
        for name, value in got.items():
            if name in self.buffers[self.CASE]:
                continue
            self.assertTrue(torch.equal(bits(value), bits(expected([p[name] for p in parts], weights, torch.float32))),
                            name)

    def test_last_takes_the_newest_by_their_steps(self):
        folder, alone = self.steps(5)
        self.assert_mean(self.averaged(folder, "--last", 3), alone[-3:], [1.0] * 3)
        self.assert_mean(self.averaged(folder, "--last", 2, "--weights", "0.25,3"), alone[-2:], [0.25, 3.0])
        self.assertIn("has 5 complete tags", self.averaged(folder, "--last", 6, status=2))

    def test_a_tag_that_is_not_complete_does_not_count(self):
        folder, alone = self.steps(3)
        newest = max(folder.glob("tag*"), key=lambda tag: torch.load(next(tag.glob("*model_states.pt")),
                                                                    weights_only=False)["global_steps"])
        next(newest.glob("*optim_states.pt")).unlink()
        self.assert_mean(self.averaged(folder, "--last", 2), alone[:2], [1.0] * 2)

    def test_the_moving_average_is_torchs_in_double_precision(self):
        folder, alone = self.steps(4)
        decay = 0.75  # its powers are exact, so that the order of the operations does not matter
        got = self.averaged(folder, "--last", 4, "--ema", decay)
        for name, value in got.items():
            if name in self.buffers[self.CASE]:
                continue
            average = alone[0][name].double()
            for part in alone[1:]:
                average = decay * average + (1 - decay) * part[name].double()
            torch.testing.assert_close(value, average.float(), rtol=2e-7, atol=0, msg=name)
        weights = [decay ** 3, *(0.25 * decay ** (3 - i) for i in (1, 2, 3))]
        self.assert_mean(got, alone, weights)

    def test_files_of_torch_hold_the_same(self):
        folder, _ = self.steps(2)
        want = self.averaged(folder, "--last", 2)
        out = Path(tempfile.mkdtemp(dir=self.root))
        self.assertEqual(run(folder, out, "--average", "--last", 2).returncode, 0)
        got = torch.load(out / "pytorch_model.bin", weights_only=True)
        self.assertEqual(set(got) - set(want), set())
        for name, value in want.items():
            self.assertTrue(torch.equal(bits(got[name]), bits(value)), name)

    def test_what_does_not_fit_is_refused(self):
        one, other = CHECKPOINTS / self.CASE / "ckpt", CHECKPOINTS / "hf_trainer_gpt2_z2_bf16_w2/ckpt"
        with self.subTest("names"):
            self.assertRegex(self.averaged(one, other, status=3), "(?s)lacks .* tensors? of|that .* does not have")
        with self.subTest("shapes"):
            folder, _ = self.steps(1)
            out = Path(tempfile.mkdtemp(dir=self.root))
            values = {name: value.clone() for name, value in self.alone[self.CASE].items()}
            name = max(values, key=lambda each: values[each].dim())
            values[name] = values[name][:-1].clone()
            save_file(values, out / OUTPUT)
            message = self.averaged(folder, out, status=3)
            self.assertIn(name, message)
            self.assertIn("shape", message)
        for arguments, message in [((one, one), "given twice"), ((one, other, "--weights", "1"), "1 weight for 2"),
                                   ((one, other, "--weights", "1,0"), "above 0"), ((one, "--ema", "1"), "below 1"),
                                   ((one, other, "--weights", "1,2", "--ema", "0.5"), "both given"),
                                   ((one, other, "--last", "2"), "one folder"), ((one, "--states"), "--states")]:
            with self.subTest(message):
                self.assertIn(message, self.averaged(*arguments, status=2))
        done = run(one, other, self.root / "never", "--safe-serialization")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--average takes several", done.stderr)
        self.assertFalse((self.root / "never").exists())

    def test_a_flipped_bit_of_any_of_them_is_refused(self):
        folder, _ = self.steps(3)
        tag = sorted(folder.glob("tag*"))[0]
        path = sorted(tag.glob("*optim_states.pt"))[0]
        flat = torch.load(path, weights_only=False)["optimizer_state_dict"]["fp32_flat_groups"][0]
        content = path.read_bytes()
        at = content.index(flat.detach().numpy().tobytes()) + 9
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1:])
        message = self.averaged(folder, "--last", 3, status=3)
        self.assertIn("CRC32", message)
        self.assertIn(path.name, message)


if __name__ == "__main__":
    unittest.main()
