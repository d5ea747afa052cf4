"""reshard gives models that are split other weights, another stage or another precision.

The given tensors are cut here by DeepSpeed's rules, with torch and NumPy alone. The shards have to be these bit for bit,
and so have the files of layers and experts. The engines of split_values_resume_test.py load such files.
DSCKPT_CASES, a regular expression, restricts it to some cases.
"""
import json
import os
import re
import unittest

import numpy
import torch
from safetensors.torch import save_file

import megatron_test
import model_parallel_truth as mp
import oracle
import reshard_mp_test
import tools
from native_checkpoint import differences
from regrid_test import files_below, held_by, is_stale, used_rows, words
from reshard_mp_test import EXPERT, Expected, load

SHARED = ("replicated", "average")  # rules of parameters that every rank has whole
NO_RULE = {"autotp2_dp1_z1_codegen"}
# Case; tensor-parallel ranks, pipeline stages and data-parallel ranks of the new run; what has to be said besides.
GRIDS = [("autotp2_dp2_z1_fp32", 4, 1, 1, []), ("autotp2_dp2_z3_bf16", 1, 1, 2, []),
         ("autotp2_dp1_z1_codegen", 1, 1, 2, []), ("mpu_tp2_dp2_z2_bf16", 4, 1, 1, []),
         ("mpu_tp3_dp1_z1_fp32", 1, 1, 2, []), ("pp2_dp1_z1_fp16", 1, 4, 2, ["--stages", "uniform"]),
         ("pp3_dp1_z1_fp32", 1, 1, 1, []), ("pp2_tp2_dp2_z1_fp32", 2, 3, 1, ["--stages", "uniform"]),
         ("pp2_tp2_dp1_z1_bf16", 1, 1, 2, [])]


def other(value, seed):
    """Other numbers, that no 16-bit type has."""
    if not value.is_floating_point():
        return value.flip(0) if value.dim() else value
    noise = torch.rand(value.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return (value.float() * 1.25 + (noise - 0.5) * 1e-2).to(value.dtype)


def chosen(cases):
    return [case for case in cases if re.search(os.environ.get("DSCKPT_CASES", ""), case.name)]


def slices_of(case, name, parts, whole):
    """Cuts `whole` for the ranks; `parts` are the slices of another tensor of the same shape."""
    rules = case.facts["rules"]
    if any(name in rules.get(rule, ()) for rule in SHARED):
        return [whole.clone() for _ in parts]
    arrays = [part.float().numpy().copy() for part in parts]
    if name in rules.get("affine_map", ()):
        entries = mp.universal_info(case)["affine_map"]["params"]
        entry = next(entries[key] for key in entries if re.match(key, name))
        source = whole.float().contiguous().numpy()
        for rank, array in enumerate(arrays):
            for piece in entry["ranks"][rank]["pieces"]:
                mp.block_of(array, piece["shape"], piece["dest"])[...] = \
                    mp.block_of(source, piece["shape"], piece["source"])
        return [torch.from_numpy(array) for array in arrays]
    # Numbered elements are merged, and show where each one goes. Rows that only fill up a vocabulary stay.
    ends = numpy.cumsum([0] + [array.size for array in arrays])
    numbers = [torch.arange(begin, end, dtype=torch.float32).reshape(part.shape)
               for begin, end, part in zip(ends, ends[1:], parts)]
    merged = mp.merge(case, name, numbers)[0].long().flatten()
    flat = torch.cat([part.flatten().float() for part in parts])
    flat[merged] = whole.flatten().float()
    return [flat[begin:end].reshape(part.shape) for begin, end, part in zip(ends, ends[1:], parts)]


def cut(case, given):
    """The live tensors, name|state|pp|tp|ep -> tensor, with the given values: (name, state) -> whole tensor."""
    live = dict(case.expected("live"))
    places, states = {}, {state for _, state in given}
    for key in live:
        name, state, pp, tp, ep = key.split("|")
        if state in states:
            places.setdefault((name, state, pp, ep), []).append(tp)
    count = max(case.facts["num_experts"] // case.facts["topology"]["ep"], 1)
    experts = set(case.facts["rules"].get("experts", ()))
    for (name, state, pp, ep), ranks in places.items():
        keys = [f"{name}|{state}|{pp}|{tp}|{ep}" for tp in sorted(ranks)]
        number = int(ep[2:])
        if name not in experts:
            values = slices_of(case, name, [live[key] for key in keys], given[name, state])
        elif match := EXPERT.fullmatch(name):
            values = [given[f"{match[1]}{number * count + int(match[2])}{match[3]}", state]]
            if len(keys) > 1:
                values = slices_of(case, name, [live[key] for key in keys], values[0])
        else:
            values = [given[name, state][number * count:(number + 1) * count]]
        live |= zip(keys, values)
    return live


def as_masters(weights):
    return {(name, "fp32"): value for name, value in weights.items()}


class Given(Expected):
    """As Expected, with other values."""

    def __init__(self, case, given):
        super().__init__(case)
        self.live = cut(case, given)


def write_weights(case, folder):
    """Other numbers than the checkpoint's, buffers too."""
    weights = mp.weights(case)
    given = {name: other(value, at) for at, (name, value) in enumerate(weights.items())}
    given |= {alias: given[owner].clone() for alias, owner in mp.aliases(case).items()}
    save_file({name: value.contiguous() for name, value in given.items()}, folder / "given.safetensors")
    return given


def cases():
    found = [case for case in oracle.model_parallel_cases() if case.stage and "autoep2_autotp2" not in case.name]
    return [case for case in chosen(found) if case.name not in NO_RULE]


class SplitWeights(oracle.OracleTest):

    def give(self, case, folder, *options):
        topology = case.facts["topology"]
        self.run_well("reshard", folder / "out", case.load_dir, folder / "out", "--dp", topology["dp"], "--weights-from",
                      folder / "given.safetensors", *options)
        return folder / "out" / case.facts["tag"]

    def test_every_rank_and_every_file_has_its_part_of_the_given_weights(self):
        self.require(cases(), "split model")
        for case in cases():
            with self.each_case(case) as folder:
                given = write_weights(case, folder)
                new, topology = self.give(case, folder), case.facts["topology"]
                self.assert_whole_and_harmless(folder / "out")
                self.check_shards(case, Given(case, as_masters(given)), new, topology["dp"], topology["ep"])
                self.check_modules(case, given, new)

    def check_shards(self, case, expected, new, dp, ep):
        checker = reshard_mp_test.ReshardTest("check_flat")
        for pp in range(case.facts["topology"]["pp"]):
            for tp in range(case.facts["topology"]["tp"]):
                check = checker.check_stage3 if case.stage == 3 else checker.check_flat
                check(case, expected, new, dp, ep, pp, tp)

    def check_modules(self, case, given, new):
        """Tensors of the model files, of layers and of experts; each is the master, rounded once."""
        live = cut(case, as_masters(given))
        held = {}
        count = max(case.facts["num_experts"] // case.facts["topology"]["ep"], 1)
        for key, value in live.items():
            name, state, _, tp, ep = key.split("|")
            if match := EXPERT.fullmatch(name):
                name = f"{match[1]}{int(ep[2:]) * count + int(match[2])}{match[3]}"
            elif name in case.facts["rules"].get("experts", ()):
                continue
            if state == "fp32":
                held.setdefault((int(tp[2:]), name), value)
        compared = 0
        for path in sorted(new.glob("*model_states.pt")):
            tp, tensors = self.tensors_of(case, path)
            before = self.tensors_of(case, case.tag_folder / path.name)[1]
            self.assertEqual(list(tensors), list(before), path.name)
            for name, value in tensors.items():
                if (tp, name) in held:
                    wanted = held[tp, name]
                elif name in given and value.shape == given[name].shape:
                    wanted = given[name]
                elif match := re.fullmatch(r"(.*\.w\d)\.(\d+)", name):  # AutoEP's
                    wanted = given[match[1]][int(match[2])]
                else:
                    self.assertEqual((case.stage, value.numel()), (3, 0), f"{path.name} {name}")
                    continue
                if case.stage == 3 and value.numel() == 0:
                    continue
                self.assertTrue(oracle.same_bits(value, wanted.to(value.dtype).reshape(value.shape)),
                                f"{path.name} {name}")
                self.assertEqual(value.dtype, before[name].dtype)
                compared += 1
        self.assertTrue(compared or case.stage == 3)

    def tensors_of(self, case, path):
        """The tensor-parallel rank of a file, and its tensors by the model's names."""
        state = load(path)
        layer = re.fullmatch(r"layer_(\d+)(?:-model_(\d+))?-model_states.pt", path.name)
        if layer:
            names = {key: f"{int(layer[1])}.{key}" for key in state}
            tied = case.facts["rules"].get("on_several_stages", ())
            # A tied module has the number of its first layer.
            names |= {key: name for key in state for name in tied if int(layer[1]) == 0 and name.endswith("." + key)}
            return int(layer[2] or 0), {names[key]: value for key, value in state.items() if torch.is_tensor(value)}
        rank = int(re.search(r"mp_rank_(\d+)", path.name)[1])
        module = state if "_expert_" in path.name else state["module"] or {}
        return rank % case.facts["topology"]["tp"], {k: v for k, v in module.items() if torch.is_tensor(v)}

    def test_from_dcp_and_back_the_engines_values_are_the_same(self):
        """--like has the ranks, the folder of to-dcp the whole model."""
        for case in cases():
            with self.each_case(case) as folder:
                topology = case.facts["topology"]
                self.run_well("to-dcp", folder / "dcp", case.load_dir, folder / "dcp", "--dp", "3")
                self.run_well("reshard", folder / "out", folder / "dcp", folder / "out", "--dp", topology["dp"], "--like",
                              case.load_dir)
                self.assert_whole_and_harmless(folder / "out")
                new = folder / "out" / case.facts["tag"]
                # Parameters that drift apart have become their means, and so have their states.
                held = {key: value for key, (value, _) in mp.model_parallel_truth(case).items()}
                self.check_shards(case, Given(case, held), new, topology["dp"], topology["ep"])
                self.check_modules(case, mp.weights(case), new)

    def test_a_run_may_start_from_weights_like_a_split_one(self):
        for case in cases():
            with self.each_case(case) as folder:
                given, topology = write_weights(case, folder), case.facts["topology"]
                self.run_well("reshard", folder / "out", folder / "given.safetensors", folder / "out", "--dp",
                              topology["dp"], "--like", case.load_dir)
                new = folder / "out" / "global_step0"
                expected = Given(case, as_masters(given))
                expected.live = {key: value for key, value in expected.live.items() if key.split("|")[1] == "fp32"}
                self.check_shards(case, expected, new, topology["dp"], topology["ep"])
                self.check_modules(case, given, new)

    def on_grids(self, rows, check):
        for name, tp, pp, dp, more in rows:
            for case in chosen([oracle.Case(reshard_mp_test.TESTDATA / name)]):
                with self.each_case(case) as folder:
                    check(case, folder, words(case, tp, pp, dp, more))

    def assert_same_files(self, folder, other):
        self.assertEqual(set(files_below(folder)), set(files_below(other)))
        for path in files_below(folder):
            if path.suffix == ".pt":
                self.assertEqual(differences(load(folder / path), load(other / path)), [], path)
            else:
                self.assertEqual((folder / path).read_bytes(), (other / path).read_bytes(), path)

    def test_weights_and_grid_may_change_at_once(self):
        """As one after the other. Back on the first grid every rank has its part of the given weights."""
        self.on_grids(GRIDS, self.check_at_once)

    def check_at_once(self, case, folder, grid):
        given, weights = write_weights(case, folder), ["--weights-from", folder / "given.safetensors"]
        self.run_well("reshard", folder / "new", case.load_dir, folder / "new", *weights, *grid)
        self.assert_whole_and_harmless(folder / "new")
        self.run_well("reshard", folder / "grid", case.load_dir, folder / "grid", *grid)
        dp = grid[grid.index("--dp") + 1]
        self.run_well("reshard", folder / "then", folder / "grid", folder / "then", "--dp", dp, *weights)
        self.assert_same_files(folder / "new", folder / "then")
        if case.name in NO_RULE:
            self.check_whole(case, folder, given)
        else:
            self.check_back(case, folder, given)

    def check_whole(self, case, folder, given):
        held = held_by(folder / "new" / case.facts["tag"], case, 0)
        names = {key.split("|")[0] for key in held}
        self.assertEqual(names, {name for name, _ in mp.model_parallel_truth(case)})
        for name in names:
            self.assertTrue(torch.equal(held[f"{name}|fp32"], given[name].float()), name)

    def check_back(self, case, folder, given):
        grid = case.facts["topology"]
        stages = ["--stages", "uniform"] if grid["pp"] > 1 else []
        self.run_well("reshard", folder / "back", folder / "new", folder / "back",
                      *words(case, grid["tp"], grid["pp"], grid["dp"], stages))
        wanted = cut(case, as_masters(given))
        inexact = set(case.facts["rules"].get("average", ()))
        for rank in range(grid["pp"] * grid["tp"]):
            pp, tp = divmod(rank, grid["tp"])
            for key, value in held_by(folder / "back" / case.facts["tag"], case, rank).items():
                name, state = key.split("|")
                if state != "fp32" and (name in inexact or (is_stale(name) and pp > 0)):
                    continue
                place = f"{key}|pp{pp}|tp{tp}|ep0"
                rows = used_rows(case, name, value, place, grid["tp"])
                self.assertTrue(torch.equal(value[:rows], wanted[place][:rows].float()), place)

    def test_an_example_may_be_of_another_grid_than_the_start_from_values(self):
        rows = [row for row in GRIDS if row[0] in ("autotp2_dp2_z1_fp32", "mpu_tp2_dp2_z2_bf16", "pp2_dp1_z1_fp16")]
        self.on_grids(rows, self.check_start)

    def check_start(self, case, folder, grid):
        write_weights(case, folder)
        self.run_well("to-dcp", folder / "dcp", case.load_dir, folder / "dcp", "--dp", "3")
        for source in ("given.safetensors", "dcp"):
            at = folder / f"from_{source}"
            self.run_well("reshard", at, folder / source, at / "new", "--like", case.load_dir, *grid)
            self.assert_whole_and_harmless(at / "new")
            self.run_well("reshard", at, folder / source, at / "first", "--like", case.load_dir, "--dp", 1)
            self.run_well("reshard", at, at / "first", at / "then", *grid)
            self.assert_same_files(at / "new", at / "then")

    def test_a_universal_start_of_a_split_run_is_refused_with_another_way(self):
        case = oracle.Case(reshard_mp_test.TESTDATA / "mpu_tp2_dp2_z2_bf16")
        with self.each_case(case) as folder:
            given = write_weights(case, folder)
            like = [folder / "given.safetensors", folder / "out", "--like", case.load_dir]
            done = tools.run_tool("to-universal", *like)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("is of a model that is split over ranks", done.stderr)
            self.assertIn("reshard --like makes the files", done.stderr)
            self.assertFalse((folder / "out").exists())
            # As the hint says.
            self.run_well("reshard", folder / "out", *like, "--dp", 1)
            self.convert_to_universal(folder / "out" / "global_step0", folder / "universal")
            for name, _ in mp.model_parallel_truth(case):
                value = load(folder / "universal" / "zero" / name / "fp32.pt")["param"]
                self.assertTrue(torch.equal(value, given[name].float()), name)

    def test_experts_may_go_to_other_ranks_at_once(self):
        case = next((case for case in cases() if case.name == "moe_ep2_dp4_z2_fp32"), None)
        if case is None:
            self.skipTest("not selected")
        with self.each_case(case) as folder:
            given = write_weights(case, folder)
            new = self.give(case, folder, "--ep", 4)
            self.check_shards(case, Given(case, as_masters(given)), new, 4, 4)

    def test_weights_of_another_model_are_refused_by_name(self):
        case = next(case for case in oracle.model_parallel_cases() if case.name == "pp2_tp2_dp1_z1_bf16")
        with self.each_case(case) as folder:
            given = write_weights(case, folder)
            lost = sorted(given)[0]
            save_file({name: value for name, value in given.items() if name != lost}, folder / "less.safetensors")
            done = tools.run_tool("reshard", case.load_dir, folder / "out", "--dp", 1, "--weights-from",
                                  folder / "less.safetensors")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn(lost, done.stderr)

    def test_layers_have_the_masters_where_precision_and_grid_change_together(self):
        case = oracle.Case(reshard_mp_test.TESTDATA / "pp2_tp2_dp1_z1_bf16")
        weights = mp.weights(case)
        with self.each_case(case) as folder:
            config = {key: value for key, value in case.facts["ds_config"].items() if key != "bf16"}
            (folder / "ds.json").write_text(json.dumps(config))
            for tp, pp in ((1, 2), (2, 1)):
                out = folder / f"tp{tp}"
                stages = ["--stages", "uniform"] if pp > 1 else []
                self.run_well("reshard", out, case.load_dir, out, "--ds-config", folder / "ds.json",
                              *words(case, tp, pp, 1, stages))
                live, compared = case.expected("live"), 0
                for path in sorted((out / case.facts["tag"]).glob("layer_*")):
                    rank, tensors = self.tensors_of(case, path)
                    for name, value in tensors.items():
                        self.assertEqual(value.dtype, torch.float32, name)
                        found = [key for key in live if key.startswith(f"{name}|fp32|") and f"|tp{rank}|" in key]
                        if not found:
                            continue
                        wanted = weights[name] if tp == 1 else live[min(found)]
                        self.assertTrue(torch.equal(value[:len(wanted)], wanted), (path.name, name))
                        compared += 1
                self.assertTrue(compared)

    def test_models_of_megatron_and_neox(self):
        for case in chosen(oracle.cases_in("megatron")):
            topology = case.facts["topology"]
            if not case.facts["has_masters"] or topology["pp"] * topology["tp"] == 1 or case.facts["rules"].get("sum"):
                continue
            with self.each_case(case) as folder:
                truth = megatron_test.trained(case)
                given = {name: other(value, at) for at, ((name, state), value) in enumerate(truth.items())
                         if state == "fp32"}
                save_file({name: value.contiguous() for name, value in given.items()}, folder / "given.safetensors")
                rules = megatron_test.POSITIONS if case.name == megatron_test.UNTIED else ()
                new = self.give(case, folder, *(word for rule in rules for word in ("--tp-rule", rule)))
                parts = {}
                for rank in range(topology["pp"] * topology["tp"]):
                    for key, value in held_by(new, case, rank).items():
                        name, state = key.split("|")
                        stages = parts.setdefault((name, state), {})
                        stages.setdefault(rank // topology["tp"], []).append(value.detach())
                self.assertEqual(set(parts), set(truth))
                for (name, state), stages in parts.items():
                    wanted = given[name] if state == "fp32" else truth[name, state]
                    for of_stage in stages.values() if state == "fp32" else [stages[min(stages)]]:
                        self.assertTrue(torch.equal(mp.merge(case, name, of_stage)[0], wanted), (name, state))

    def test_a_sum_of_the_ranks_parts_is_refused(self):
        case = next(case for case in oracle.cases_in("megatron") if case.facts["rules"].get("sum"))
        with self.each_case(case) as folder:
            given = {name: value.contiguous() for (name, state), value in megatron_test.trained(case).items()
                     if state == "fp32"}
            save_file(given, folder / "given.safetensors")
            done = tools.run_tool("reshard", case.load_dir, folder / "out", "--dp", 1, "--weights-from",
                                  folder / "given.safetensors",
                                  *(word for rule in megatron_test.NEOX_RULES for word in ("--tp-rule", rule)))
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("is a sum of the tensor-parallel ranks' parts", done.stderr)
            self.assertIn("--tp 1 makes a checkpoint", done.stderr)

    def test_a_cut_that_no_rule_tells_is_refused(self):
        case = next(case for case in oracle.model_parallel_cases() if case.name in NO_RULE)
        with self.each_case(case) as folder:
            write_weights(case, folder)
            done = tools.run_tool("reshard", case.load_dir, folder / "out", "--dp", 1, "--weights-from",
                                  folder / "given.safetensors")
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("is cut for 2 tensor-parallel ranks by no simple rule", done.stderr)
            self.assertIn("--tp 1 makes a checkpoint", done.stderr)
            # As the hint says.
            self.run_well("reshard", folder / "whole", case.load_dir, folder / "whole", "--dp", 1, "--tp", 1)
            self.run_well("reshard", folder / "out", folder / "whole", folder / "out", "--dp", 1, "--weights-from",
                          folder / "given.safetensors")


if __name__ == "__main__":
    unittest.main()
