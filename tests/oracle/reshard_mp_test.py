"""reshard's output for pipeline-, tensor- and expert-parallel checkpoints, against an independent rebuild.

The live engines' tensors (expected/live.safetensors) are cut here by DeepSpeed's rules, with torch alone, and
compared bit for bit with the shards. Files that do not depend on the number of ranks must be the input's.
reshard_mp_resume_test.py checks that engines load the files.
"""
import dataclasses
import os
import pathlib
import re
import tempfile
import unittest

import torch

import make_model_parallel
import oracle
import resume_check
import tools
from native_checkpoint import differences

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "model_parallel"
EXPERT = re.compile(r"(.*deepspeed_experts\.)(\d+)(\..*)")
DP = (1, 2, 3, 4)


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def cases():
    wanted = os.environ.get("DSCKPT_CASES", "")
    found = [oracle.Case(path.parent) for path in sorted(TESTDATA.glob("*/case.json"))]
    folded = "autoep2_autotp2"
    return [case for case in found
            if case.stage and not case.name.startswith(folded) and re.search(wanted, case.name)]


def degrees(case):
    """The (dp, ep) to try: ep as it was and others that divide the experts and dp."""
    old = case.facts["topology"]["ep"]
    experts = case.facts["num_experts"]
    for dp in DP:
        for ep in ((1, 2, 4) if experts else (old, )):
            if dp % ep == 0:
                yield dp, ep


class Expected:
    """The live tensors of one case, as any number of expert-parallel ranks has them."""

    def __init__(self, case):
        self.live = case.expected("live")
        self.old_ep = case.facts["topology"]["ep"]
        self.experts = {name for rank in case.facts["ranks"] for name in rank["experts"]}
        self.total = case.facts["num_experts"]

    def names(self, names, ep):
        """The local names of an expert group at another degree, in the model's order."""
        layers = {}
        for name in names:
            match = EXPERT.fullmatch(name)
            if not match:
                return names  # AutoEP's keep their names
            layers.setdefault(match[1], []).append(match[3]) if match[2] == "0" else None
        return [f"{prefix}{number}{suffix}" for prefix, suffixes in layers.items()
                for number in range(self.total // ep) for suffix in suffixes]

    def tensor(self, name, state, pp, tp, ep_rank, ep):
        place = f"{state}|pp{pp}|tp{tp}"
        if not self.is_expert(name):
            return self.live[f"{name}|{place}|ep0"]
        count, old = self.total // ep, self.total // self.old_ep
        match = EXPERT.fullmatch(name)
        if match:
            number = ep_rank * count + int(match[2])
            return self.live[f"{match[1]}{number % old}{match[3]}|{place}|ep{number // old}"]
        whole = torch.cat([self.live[f"{name}|{place}|ep{rank}"] for rank in range(self.old_ep)])
        return whole[ep_rank * count:(ep_rank + 1) * count]

    def is_expert(self, name):
        match = EXPERT.fullmatch(name)
        return name in self.experts or bool(match and f"{match[1]}0{match[3]}" in self.experts)

    def states(self, name, pp, tp):
        match = EXPERT.fullmatch(name)
        first = f"{match[1]}0{match[3]}" if match and self.is_expert(name) else name
        return sorted(key.split("|")[1] for key in self.live if key.startswith(f"{first}|")
                      and key.endswith(f"|pp{pp}|tp{tp}|ep0"))


def flat_file_name(case, dp_rank, mp_rank, kind="optim"):
    prefix = "bf16_" if kind == "optim" and case.facts["precision"] == "bf16" else ""
    return f"{prefix}zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_{kind}_states.pt"


class ReshardTest(unittest.TestCase):

    def reshard(self, case, dp, ep, folder):
        options = ["--ep", ep] if ep != case.facts["topology"]["ep"] else []
        done = tools.run_tool("reshard", case.load_dir, folder / "out", "--dp", dp, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder / "out" / case.facts["tag"]

    def test_every_shard_holds_the_live_engines_values_as_deepspeed_cuts_them(self):
        for case in cases():
            expected = Expected(case)
            for dp, ep in degrees(case):
                with self.subTest(case=case.name, dp=dp, ep=ep), tempfile.TemporaryDirectory() as scratch:
                    new = self.reshard(case, dp, ep, pathlib.Path(scratch))
                    self.check_files(case, new, dp)
                    topology = case.facts["topology"]
                    for pp in range(topology["pp"]):
                        for tp in range(topology["tp"]):
                            check = self.check_stage3 if case.stage == 3 else self.check_flat
                            check(case, expected, new, dp, ep, pp, tp)

    def test_experts_without_zero_come_back_as_deepspeed_wrote_them(self):
        for name in ("moe_ep2_dp2_z0_fp32", "autoep2_dp2_z0_fp32"):
            case = oracle.Case(TESTDATA / name)
            old_dp, old_ep = (case.facts["topology"][axis] for axis in ("dp", "ep"))
            for dp, ep in ((2, 2), (1, 1), (4, 4)):
                with self.subTest(case=name, dp=dp, ep=ep), tempfile.TemporaryDirectory() as scratch:
                    there = self.reshard(case, dp, ep, pathlib.Path(scratch))
                    files = {path.name for path in case.tag_folder.iterdir()}
                    optimizers = {f"expp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(ep)}
                    dense = {each for each in files if not each.startswith("expp_")}
                    self.assertEqual({path.name for path in there.iterdir()}, dense | optimizers)
                    back = there
                    if (dp, ep) != (old_dp, old_ep):
                        done = tools.run_tool("reshard", there.parent, pathlib.Path(scratch, "back"), "--dp", old_dp,
                                              "--ep", old_ep)
                        self.assertEqual(done.returncode, 0, done.stderr)
                        back = pathlib.Path(scratch, "back", case.facts["tag"])
                    for each in sorted(files):
                        self.assertEqual(differences(load(back / each), load(case.tag_folder / each)), [], each)

    def test_experts_that_no_group_is_marked_for_stay_at_stage_0(self):
        with tempfile.TemporaryDirectory() as scratch:
            saved = oracle.Case(TESTDATA / "moe_ep2_dp2_z0_fp32").load_dir
            out = pathlib.Path(scratch, "out")
            done = tools.run_tool("reshard", saved, out, "--dp", 4, "--stage", 1)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("not marked as theirs", done.stderr)
            self.assertFalse(out.exists())
            like = oracle.Case(TESTDATA / "moe_ep2_dp4_z1_fp32")
            done = tools.run_tool("reshard", saved, out, "--dp", 4, "--like", like.load_dir)
            self.assertEqual(done.returncode, 0, done.stderr)
            new, wanted = (load(folder / "mp_rank_00_model_states.pt")["param_shapes"]
                           for folder in (out / like.facts["tag"], like.tag_folder))
            self.assertEqual([list(group) for group in new], [list(group) for group in wanted])

    def test_marked_groups_tell_experts_from_parameters_like_them(self):
        case = dataclasses.replace(next(case for case in make_model_parallel.CASES if case.kind == "tensor_moe"),
                                   name="moe_ep2_tp2_dp2_z0_fp32", stage=0, dtype="fp32")
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            saved = resume_check.saved_now(dataclasses.replace(case, model="marked"), scratch / case.name)
            done = tools.run_tool("reshard", saved.load_dir, scratch / "out", "--dp", 2)
            self.assertEqual(done.returncode, 0, done.stderr)
            new = scratch / "out" / saved.facts["tag"]
            self.assertEqual({path.name for path in new.iterdir()}, {path.name for path in saved.tag_folder.iterdir()})
            for path in saved.tag_folder.iterdir():
                self.assertEqual(differences(load(new / path.name), load(path)), [], path.name)

    def test_experts_of_deepspeeds_own_layers_do_not_go_to_stage_3(self):
        with tempfile.TemporaryDirectory() as scratch:
            done = tools.run_tool("reshard", oracle.Case(TESTDATA / "moe_ep2_dp4_z1_fp32").load_dir,
                                  pathlib.Path(scratch, "out"), "--dp", 4, "--stage", 3)
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("which it does not train at stage 3", done.stderr)
            self.assertFalse(pathlib.Path(scratch, "out").exists())

    def check_files(self, case, new, dp):
        """The names, and that layers and experts are the input's."""
        topology = case.facts["topology"]
        worlds = topology["pp"] * topology["tp"]
        names = {flat_file_name(case, rank, mp) for rank in range(dp) for mp in range(worlds)}
        if case.stage == 3:
            names |= {flat_file_name(case, rank, mp, "model") for rank in range(dp) for mp in range(worlds)}
        else:
            names |= {f"mp_rank_{mp:02d}_model_states.pt" for mp in range(worlds)}
        copied = {path.name for path in case.tag_folder.glob("layer_*")}
        self.assertEqual({path.name for path in new.iterdir()}, names | copied)
        for name in copied:
            self.assertEqual((new / name).read_bytes(), (case.tag_folder / name).read_bytes(), name)

    def group_names(self, case, expected, world, ep):
        """Names by group as an engine of this degree has them, from the input's own model file."""
        name = flat_file_name(case, 0, world, "model") if case.stage == 3 else f"mp_rank_{world:02d}_model_states.pt"
        saved = load(case.tag_folder / name)["param_shapes"]
        return [expected.names(list(group), ep) if expected.is_expert(next(iter(group))) else list(group)
                for group in saved]

    def places(self, case, dp, ep, rank, is_expert):
        """Which expert-parallel rank, which part, of how many parts."""
        if not is_expert:
            return 0, rank, dp
        edp = dp // ep
        if case.facts["ds_config"].get("use_data_before_expert_parallelism"):
            return rank // edp, rank % edp, edp
        return rank % ep, rank // ep, edp

    def check_flat(self, case, expected, new, dp, ep, pp, tp):
        topology = case.facts["topology"]
        world = pp * topology["tp"] + tp
        groups = self.group_names(case, expected, world, ep)
        model = load(new / f"mp_rank_{world:02d}_model_states.pt")
        self.assertEqual(model["dp_world_size"], dp)
        self.assertEqual([list(group) for group in model["param_shapes"]], groups)
        for rank in range(dp):
            shard = load(new / flat_file_name(case, rank, world))["optimizer_state_dict"]
            kept = "zero_stage" not in shard  # BF16_Optimizer keeps the padding, and books all on the last rank
            counts = []
            for g, names in enumerate(groups):
                is_expert = expected.is_expert(names[0])
                ep_rank, part, parts = self.places(case, dp, ep, rank, is_expert)
                counts.append(parts)
                of = lambda state: [expected.tensor(name, state, pp, tp, ep_rank, ep) for name in names]  # noqa
                sizes = [tensor.numel() for tensor in of("fp32")]
                self.assertEqual([tuple(shape) for shape in model["param_shapes"][g].values()],
                                 [tuple(tensor.shape) for tensor in of("fp32")])
                used = sum(sizes)
                length = -(-used // (2 * parts)) * 2
                real = min(max(used - part * length, 0), length)
                for state in expected.states(names[0], pp, tp):
                    flat = torch.cat([tensor.reshape(-1).float() for tensor in of(state)]
                                     + [torch.zeros(length * parts - used)])
                    mine = flat[part * length:(part + 1) * length]
                    if state == "fp32":
                        saved = shard["single_partition_of_fp32_groups"][g]
                        mine = mine if kept else mine[:real]
                    else:
                        saved = shard["base_optimizer_state"]["state"][g][state]
                    self.assertTrue(torch.equal(saved, mine), f"group {g}, {state}, rank {rank}, world {world}")
                tail = length * parts - used
                padding = (tail if part == parts - 1 else 0) if kept else length - real
                self.assertEqual(shard["group_paddings"][g], padding)
                self.check_mapping(shard["param_slice_mappings"][g], names, sizes, part * length, length)
                name = shard["base_optimizer_state"]["param_groups"][g].get("name", "")
                if name.startswith("ep_size_"):
                    self.assertEqual(name, f"ep_size_{ep}")
            self.assertEqual(shard["partition_count"], counts)

    def check_mapping(self, mapping, names, sizes, begin, length):
        at, expected = 0, {}
        for name, size in zip(names, sizes):
            first, last = max(at, begin), min(at + size, begin + length)
            if first < last:
                expected[name] = (first - begin, last - first)
            at += size
        self.assertEqual({name: (where.start, where.numel) for name, where in mapping.items()}, expected)

    def check_stage3(self, case, expected, new, dp, ep, pp, tp):
        world = pp * case.facts["topology"]["tp"] + tp
        for rank in range(dp):
            model = load(new / flat_file_name(case, rank, world, "model"))
            shard = load(new / flat_file_name(case, rank, world))["optimizer_state_dict"]
            self.assertEqual((model["dp_world_size"], shard["partition_count"]), (dp, dp))
            seen = []
            for g, shapes in enumerate(model["param_shapes"]):
                names = list(shapes)
                seen += names
                ep_rank, part, parts = self.places(case, dp, ep, rank, expected.is_expert(names[0]))
                for state in expected.states(names[0], pp, tp):
                    pieces = []
                    for name in names:
                        tensor = expected.tensor(name, state, pp, tp, ep_rank, ep)
                        self.assertEqual(tuple(tensor.shape), tuple(shapes[name]))
                        per = -(-tensor.numel() // parts)
                        padded = torch.cat([tensor.reshape(-1).float(), torch.zeros(per * parts - tensor.numel())])
                        pieces.append(padded[part * per:(part + 1) * per])
                    saved = (shard["fp32_flat_groups"][g] if state == "fp32" else
                             shard["optimizer_state_dict"]["state"][g][state])
                    self.assertTrue(torch.equal(saved, torch.cat(pieces)), f"sub-group {g}, {state}, rank {rank}")
            saved = [name for group in self.group_names(case, expected, world, ep) for name in group]
            self.assertEqual(seen, saved)
            for g, group in enumerate(shard.get("ds_zero_partition_groups", ())):
                is_expert = expected.is_expert(next(iter(model["param_shapes"][g])))
                _, part, parts = self.places(case, dp, ep, rank, is_expert)
                self.assertEqual((group["sub_group"], group["partition_rank"], group["partition_count"],
                                  group["group_names"]),
                                 (g, part, parts, [f"ep_size_{ep}" if is_expert else "replicated"]))
                sharers = [other for other in range(dp) if not is_expert or
                           self.places(case, dp, ep, other, True)[0] == self.places(case, dp, ep, rank, True)[0]]
                self.assertEqual(group["partition_ranks"], sharers)

    def test_the_same_degrees_give_back_every_value_of_every_file(self):
        for case in cases():
            if "_nvme" in case.name:
                continue  # becomes an ordinary checkpoint
            topology = case.facts["topology"]
            with self.subTest(case=case.name), tempfile.TemporaryDirectory() as scratch:
                new = self.reshard(case, topology["dp"], topology["ep"], pathlib.Path(scratch))
                self.assertEqual({path.name for path in new.iterdir()},
                                 {path.name for path in case.tag_folder.iterdir()})
                # DeepSpeed leaves what happens to be in memory in stage 3's padding; the test above has the values.
                ignore = ("fp32_flat_groups", "exp_avg", "exp_avg_sq") if case.stage == 3 else ()
                for path in sorted(new.iterdir()):
                    if path.name != "latest":
                        found = differences(load(path), load(case.tag_folder / path.name), ignore=ignore)
                        self.assertEqual(found, [], path.name)

    def test_the_description_of_the_experts_is_that_of_a_run_at_the_new_degree(self):
        """autoep4_dp4_z2_fp32 was saved by an engine at the degree that autoep2_dp4_z2_fp32 is taken to."""
        case, real = [oracle.Case(TESTDATA / name) for name in ("autoep2_dp4_z2_fp32", "autoep4_dp4_z2_fp32")]
        with tempfile.TemporaryDirectory() as scratch:
            new = self.reshard(case, 4, 4, pathlib.Path(scratch))
            ours, theirs = [load(folder / "mp_rank_00_model_states.pt") for folder in (new, real.tag_folder)]
            self.assertEqual(differences(ours, theirs, ignore=("module", )), [])
            for rank in range(4):
                ours, theirs = [load(folder / flat_file_name(case, rank, 0)) for folder in (new, real.tag_folder)]
                values = ("single_partition_of_fp32_groups", "exp_avg", "exp_avg_sq")
                self.assertEqual(differences(ours, theirs, ignore=values), [])


if __name__ == "__main__":
    unittest.main()
