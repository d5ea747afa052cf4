"""The files of reshard for other numbers of tensor-parallel ranks and pipeline stages.

The parameters of both have to make the same universal checkpoint, byte for byte. Back on the grid of the input every
rank must have what its live engine held.
regrid_resume_test.py checks that engines load the files. DSCKPT_CASES, a regular expression, restricts it to
some cases.
"""
import json
import os
import pathlib
import pickle
import re
import shutil
import tempfile
import types
import unittest

import torch

import model_parallel_truth as mp
import oracle
import reshard_mp_test
import tools
from megatron_test import NEOX_RULES

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"])
VOCABULARY = 37  # rows of the model-parallel cases' vocabularies that are used

# Case, its grids (tensor-parallel ranks, pipeline stages), data-parallel ranks, and what has to be said besides.
ROWS = [
    ("model_parallel/autotp2_dp1_z1_bf16", [(1, 1), (4, 1)], 2, []),
    ("model_parallel/autotp2_dp2_z1_fp32", [(1, 1), (4, 1)], 1, []),
    ("model_parallel/autotp2_dp2_z2_bf16", [(1, 1), (4, 1)], 3, []),
    ("model_parallel/autotp2_dp2_z3_bf16", [(1, 1), (4, 1)], 1, []),
    ("model_parallel/autotp2_dp3_z3_fp32", [(1, 1), (8, 1)], 2, []),
    ("model_parallel/autotp2_dp2_z2_fused", [(4, 1)], 1, []),
    ("model_parallel/autotp2_dp2_z3_fused", [(4, 1)], 1, []),
    ("model_parallel/autotp2_dp1_z1_uneven", [(1, 1)], 1, []),
    ("model_parallel/autotp2_dp1_z1_bigcode", [(1, 1), (4, 1)], 2, []),
    ("model_parallel/mpu_tp2_dp1_z1_bf16", [(1, 1)], 2, []),
    ("model_parallel/mpu_tp2_dp2_z2_bf16", [(1, 1), (4, 1)], 1, []),
    ("model_parallel/mpu_tp3_dp1_z1_fp32", [(2, 1), (4, 1)], 1, []),
    ("model_parallel/pp2_dp1_z1_bf16", [(1, 1), (1, 3)], 1, ["--stages", "uniform"]),
    ("model_parallel/pp2_dp1_z1_fp16", [(1, 1), (1, 4)], 2, ["--stages", "uniform"]),
    ("model_parallel/pp2_dp2_z1_bf16opt", [(1, 3)], 1, ["--stages", "uniform"]),
    ("model_parallel/pp2_dp2_parwrite_z1_fp32", [(1, 1), (1, 3)], 1, ["--stages", "uniform"]),
    ("model_parallel/pp3_dp1_z1_fp32", [(1, 1), (1, 2)], 1, ["--stages", "uniform"]),
    ("model_parallel/pp2_tp2_dp1_z1_bf16", [(1, 1), (1, 2), (2, 1)], 2, ["--stages", "uniform"]),
    ("model_parallel/pp2_tp2_dp2_z1_fp32", [(1, 1), (1, 4), (2, 3)], 1, ["--stages", "uniform"]),
    ("model_parallel/moe_ep2_tp2_dp2_z2_bf16", [(1, 1), (4, 1)], 2, []),
    ("model_parallel/moe_ep2_tp2_dp2_z2_bf16", [(1, 1)], 1, ["--ep", 1]),
    ("megatron/megatron_gpt_pp2_tp2_dp1_z1_bf16", [(1, 1), (4, 1), (1, 2), (2, 1)], 2, []),
    ("megatron/megatron_gpt_tp2_dp2_z2_fp16", [(4, 1)], 1, []),
    ("megatron/megatron_swiglu_tp2_dp2_z1_fp32", [(1, 1), (4, 1), (2, 2)], 1,
     ["--tp-rule", r".*position_embeddings\.weight=replicated"]),
    ("megatron/neox_pp2_tp1_dp2_z1_bf16", [(1, 1)], 1, []),
    # Each rank adds a bias of its own, and such a sum can be divided in any way: so not (4, 1).
    ("megatron/neox_pp1_tp2_dp1_z1_fp16", [(2, 2)], 2, [word for rule in NEOX_RULES for word in ("--tp-rule", rule)]),
]


# Split checkpoints that are not cut for other ranks, and what is said of them.
UNCUT = {"autoep2_autotp2_z1_fp32": "AutoEP is folded with tensor parallelism",
         "megatron_gpt_pp2_tp2_dp1_z1_weights": "has only the 16-bit weights"}


def words(case, tp, pp, dp, more):
    """The options for a grid; the model-parallel cases' programs pad to a multiple that no file has."""
    options = ["--tp", tp, "--pp", pp, "--dp", dp, *more]
    if case.folder.parent.name == "model_parallel" and case.facts["kind"].startswith("megatron"):
        multiple = (32 if "tp3" in case.name else 8) * tp
        options += ["--padded-vocab-size", -(-VOCABULARY // multiple) * multiple]
    if pp == 1 and "--stages" in options:
        del options[options.index("--stages"):options.index("--stages") + 2]
    return options


def is_stale(name):
    """Copies that the last stage of a pipeline does not use."""
    return name.endswith("position_embeddings.weight")


def used_rows(case, name, value, key, tp):
    """The rows of a rank's part of a vocabulary that are not padding: other grids may have had less of it."""
    if name not in case.facts["rules"].get("vocabulary", ()):
        return value.shape[0] if value.dim() else None
    rank = int(key.split("|")[3][2:])
    used = (mp.universal_info(case).get("original_vocab_size") or value.shape[0] * tp) - rank * value.shape[0]
    return min(max(used, 0), value.shape[0])


class Unpickler(pickle.Unpickler):
    """Nothing of a program's classes is looked at."""

    def find_class(self, module, name):
        if (module, name) in (("__builtin__", "getattr"), ("builtins", "getattr")):
            return lambda *_: None  # a member of an enum
        if module.split(".")[0] == "megatron":
            return type(name, (), {"__init__": lambda self, *_: None})
        return super().find_class(module, name)


def load(path):
    module = types.SimpleNamespace(Unpickler=Unpickler, load=pickle.load, __name__="pickle")
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)


def held_by(folder, case, mp_rank):
    """"name|state" -> what the ranks of an mp rank have of a parameter, put together."""
    files = sorted(folder.glob(f"*zero_pp_rank_*_mp_rank_{mp_rank:02d}_optim_states.pt"), key=mp.natural)
    shards = [load(path)["optimizer_state_dict"] for path in files]
    if case.stage == 3:
        shapes = load(folder / f"zero_pp_rank_0_mp_rank_{mp_rank:02d}_model_states.pt")["param_shapes"]
    else:
        shapes = load(folder / f"mp_rank_{mp_rank:02d}_model_states.pt")["param_shapes"]
    result = {}
    for g, group in enumerate(shapes):
        flats = {"fp32": [shard["fp32_flat_groups" if case.stage == 3 else "single_partition_of_fp32_groups"][g]
                          for shard in shards]}
        states = [shard["optimizer_state_dict" if case.stage == 3 else "base_optimizer_state"]["state"][g]
                  for shard in shards]
        for state, value in states[0].items():
            if torch.is_tensor(value) and value.dim() > 0:
                flats[state] = [each[state] for each in states]
        for state, parts in flats.items():
            at, whole = 0, torch.cat(parts)
            for name, shape in group.items():
                size = shape.numel()
                if case.stage == 3:
                    piece = -(-size // len(parts))
                    value = torch.cat([part[at:at + piece] for part in parts])[:size]
                    at += piece
                else:
                    value = whole[at:at + size]
                    at += size
                result[f"{name}|{state}"] = value.reshape(shape).float()
    return result


def value_in(path):
    value = load(path)
    return torch.as_tensor(value["param"] if isinstance(value, dict) else value).reshape(-1)


def files_below(folder):
    return {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}


class RegridTest(unittest.TestCase):

    def run_tool(self, *words):
        done = tools.run_tool(*words)
        self.assertEqual(done.returncode, 0, done.stderr)

    def each_grid(self, check):
        for name, grids, dp, more in ROWS:
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            case = oracle.Case(TESTDATA / name)
            for tp, pp in grids:
                with self.subTest(case=case.name, tp=tp, pp=pp), tempfile.TemporaryDirectory() as scratch:
                    folder = pathlib.Path(scratch)
                    self.run_tool("reshard", case.load_dir, folder / "new", *words(case, tp, pp, dp, more))
                    check(case, more, folder, tp)

    def test_the_universal_checkpoint_of_the_new_grid_is_that_of_the_input(self):
        self.each_grid(self.compare_universal)

    def compare_universal(self, case, more, folder, tp):
        if "--tp-rule" in more:  # which to-universal does not take, since DeepSpeed's loader has no such rules
            return self.compare_weights(case, more, folder, tp)
        for source, output in ((case.load_dir, "of_input"), (folder / "new", "of_new")):
            self.run_tool("to-universal", source, folder / output)
        expected, found = (files_below(next((folder / name).rglob("zero"))) for name in ("of_input", "of_new"))
        self.assertEqual(set(found), set(expected))
        for path in expected:
            if path.name == "optimizer_state.pt":  # what a rank's optimizer has besides, paddings and all
                continue
            # Without tensor parallelism there are no rules at stage 0, nor at stage 3, whose loader uses none.
            if case.stage in (0, 3) and tp == 1:
                self.assertTrue(torch.equal(value_in(found[path]), value_in(expected[path])), path)
            else:
                self.assertEqual(found[path].read_bytes(), expected[path].read_bytes(), path)

    def test_so_are_those_of_all_other_split_checkpoints_or_they_are_refused(self):
        rows = {name.split("/")[1] for name, *_ in ROWS}
        compared = 0
        for case in [*oracle.model_parallel_cases(), *oracle.cases_in("megatron")]:
            grid = case.facts["topology"]
            if case.name in rows or grid["tp"] * grid["pp"] == 1:
                continue
            if case.stage == 0 and grid["pp"] > 1:  # whose files do not tell which layer is tied
                continue
            with self.subTest(case=case.name), tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch)
                done = tools.run_tool("reshard", case.load_dir, folder / "new", "--dp", grid["dp"], "--tp", 1, "--pp", 1)
                if case.name in UNCUT:
                    self.assertEqual(done.returncode, 3, done.stderr)
                    self.assertIn(UNCUT[case.name], done.stderr)
                    continue
                self.assertEqual(done.returncode, 0, done.stderr)
                self.compare_universal(case, [], folder, 1)
                compared += 1
        self.assertTrue(compared)

    def test_a_whole_model_is_cut_by_the_users_rules(self):
        rules = [r".*up_proj\..*=cat:0", r".*1x1\.weight=cat:1",
                 r"(temperature|gain|frozen|tok_emb|conv|.*ln_|wide|narrow|head).*=replicated"]
        words = [word for rule in rules for word in ("--tp-rule", rule)]
        for name, tp in (("z1_fp32_full_w4", 5), ("z2_fp32_full_w3", 5), ("z3_fp32_full_w2", 5),
                         ("z2_bf16_roundrobin_full_w3", 7)):
            case = oracle.Case(TESTDATA / "checkpoints" / name)
            with self.subTest(case=name), tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch)
                self.run_tool("reshard", case.load_dir, folder / "new", "--tp", tp, "--dp", 2, *words)
                files = mp.model_files(folder / "new" / case.facts["tag"])
                rows, columns = case.facts["param_shapes"]["blocks.0.mlp.1x1.weight"]
                self.assertEqual(load(files[3])["module"]["blocks.0.mlp.1x1.weight"].numel(),
                                 0 if case.stage == 3 else rows * columns // tp)
                self.compare_weights(case, words, folder, tp)

    def compare_weights(self, case, rules, folder, tp):
        is_split = case.facts.get("topology", {"tp": 1})["tp"] > 1
        self.run_tool("zero-to-fp32", case.load_dir, folder / "of_input", "--states", "--safe-serialization",
                      *(rules if is_split else []))
        self.run_tool("zero-to-fp32", folder / "new", folder / "of_new", "--states", "--safe-serialization",
                      *(rules if tp > 1 else []))
        files = [pathlib.Path("model.safetensors")]
        files += [path.relative_to(folder / "of_input")
                  for path in (folder / "of_input" / "optimizer_states").glob("*.safetensors")]
        self.assertEqual(len(files), 3)
        for path in files:
            expected, found = oracle.load_file(folder / "of_input" / path), oracle.load_file(folder / "of_new" / path)
            self.assertEqual(set(found), set(expected))
            for name, value in expected.items():
                self.assertTrue(torch.equal(found[name], value), f"{path}: {name}")

    def test_experts_need_rules_of_their_own(self):
        """DeepSpeed's default, a cut along dimension 0, would be wrong for half of their weights."""
        case = oracle.Case(TESTDATA / "model_parallel" / "moe_ep2_tp2_dp2_z2_bf16")
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            shutil.copytree(case.load_dir, folder / "ckpt")
            for path in mp.model_files(folder / "ckpt" / case.facts["tag"]):
                state = torch.load(path, weights_only=False)
                del state["universal_checkpoint_info"]["parameter_with_row_parallelism_patterns"]
                torch.save(state, path)
            done = tools.run_tool("zero-to-fp32", folder / "ckpt", folder / "out", "--safe-serialization")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertRegex(done.stderr, r"deepspeed_experts\.\d\.dense_4h_to_h\.weight")
            self.assertIn("nothing says how they go together", done.stderr)
            self.run_tool("zero-to-fp32", folder / "ckpt", folder / "out", "--safe-serialization", "--tp-rule",
                          r".*dense_4h_to_h\.weight=cat:1")
            found = oracle.load_file(folder / "out" / "model.safetensors")
            for (name, state), (value, _) in mp.model_parallel_truth(case).items():
                if state == "fp32":
                    self.assertTrue(torch.equal(found[name], value), name)

    def test_stages_are_those_of_deepspeeds_methods(self):
        from deepspeed.runtime.utils import partition_balanced, partition_uniform
        case = oracle.Case(TESTDATA / "model_parallel" / "pp2_dp1_z1_bf16")
        embedding, block, norm = 37 * 16, 32 + 17 * 21 + 21 * 16, 32
        parameters = [embedding, block, block, 0, block, norm, embedding]
        blocks = [0, 1, 1, 0, 1, 0, 0]
        for pp in range(2, 6):
            for method, expected in (("uniform", partition_uniform(len(parameters), pp)),
                                     ("parameters", partition_balanced(parameters, pp)),
                                     ("blocks", partition_balanced(blocks, pp))):
                with self.subTest(pp=pp, method=method), tempfile.TemporaryDirectory() as scratch:
                    done = tools.run_tool("reshard", case.load_dir, pathlib.Path(scratch) / "out", "--dp", 1,
                                          "--pp", pp, "--stages", method, "--dry-run", "--json")
                    if done.returncode:  # a stage that would have nothing to train
                        self.assertRegex(done.stderr, "would have no layers")
                        self.assertIn(True, [sum(parameters[first:last]) == 0
                                             for first, last in zip(expected, expected[1:])])
                        continue
                    self.assertEqual(json.loads(done.stdout)["data"]["stages"], [int(n) for n in expected[:-1]])

    def test_the_ranks_of_the_input_come_back_from_every_grid(self):
        self.each_grid(self.compare_with_live)

    def compare_with_live(self, case, more, folder, _):
        grid = case.facts["topology"]
        more = ["--ep", grid["ep"]] if "--ep" in more else more
        self.run_tool("reshard", folder / "new", folder / "back",
                      *words(case, grid["tp"], grid["pp"], grid["dp"], more))
        if case.facts["num_experts"]:
            for tp in range(grid["tp"]):
                reshard_mp_test.ReshardTest("check_flat").check_flat(
                    case, reshard_mp_test.Expected(case), folder / "back" / case.facts["tag"], grid["dp"], grid["ep"], 0, tp)
            return
        live = case.expected("live")
        inexact = set(case.facts["rules"].get("average", ()))
        found = {}
        for pp in range(grid["pp"]):
            for tp in range(grid["tp"]):
                held = held_by(folder / "back" / case.facts["tag"], case, pp * grid["tp"] + tp)
                found |= {f"{key}|pp{pp}|tp{tp}|ep0": value for key, value in held.items()}
        self.assertEqual(set(found), set(live))
        for key, value in found.items():
            parameter, _, stage, _, _ = key.split("|")
            if parameter in inexact or (is_stale(parameter) and stage != "pp0"):
                continue
            rows = used_rows(case, parameter, value, key, grid["tp"])
            self.assertTrue(torch.equal(value[:rows], live[key][:rows]), key)


if __name__ == "__main__":
    unittest.main()
