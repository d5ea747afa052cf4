"""torch reads what to-dcp writes: whole, key by key, and as FSDP2 on several ranks, which then goes on training.

By default some cases; DSCKPT_CASES, a regular expression, chooses others, and an empty one takes all.
"""
import json
import math
import os
import pathlib
import pickle
import re
import unittest

import fsdp2_worker
import make_checkpoints
import model_parallel_truth
import torch
import torch.distributed.checkpoint as dcp
from native_checkpoint import NativeCheckpoint, differences
from oracle import OracleTest, all_cases, bits, case_named, model_parallel_cases, same_bits
from tools import run_tool
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

SAMPLE = {"z0_fp32_w2", "z0_bf16_fusedadam_w2", "z1_fp32_full_w4", "z1_fp32_zerodim_w2", "z1_bf16opt_full_w3",
          "z2_bf16_muon_w2", "z2_fp32_amsgrad_w2", "z2_fp32_emptyparam_w2", "z2_fp32_oddbuffers_w2",
          "z2_fp32_radam_w2", "z3_bf16_nvme_w2", "z3_fp16_full_b120_w3", "z3_fp32_full_b120_w2", "z3_fp32_sgd_w2",
          "hf_trainer_llama_z3_bf16_w2"}
# Cases of Adam, in every stage, with the number of ranks and the way of loading.
RESUMED = {"z0_fp32_w2": [(2, "nested")], "z1_fp32_full_b120_w3": [(2, "flattened")],
           "z2_fp32_full_w3": [(1, "flattened")], "z2_bf16_full_b120_w3": [(2, "nested")],
           "z3_fp32_full_b120_w2": [(3, "nested"), (2, "accelerate"), (2, "lightning")]}
ADAM_OPTIONS = {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "capturable", "differentiable",
                "fused", "decoupled_weight_decay", "initial_lr"}
LEAST_CHUNK = 512  # bytes
# DeepSpeed itself cannot load these again.
NOT_LOADED = {"z1_fp32_elastic_torchadam_w2", "z3_fp32_adagrad_w2"}


def chosen(names):
    every = all_cases()
    return every if "DSCKPT_CASES" in os.environ else [case for case in every if case.name in names]


def metadata_of(folder):
    return pickle.loads((pathlib.Path(folder) / ".metadata").read_bytes())


def states_of(case):
    """(name, state) -> tensor of the live engine."""
    return {tuple(key.split("|")): value for key, value in case.expected("master").items()
            if not key.endswith("|fp32")}


def steps_of(case):
    """FP16_Optimizer makes a step of zeros first."""
    first = case.stage == 0 and case.facts["precision"] != "fp32"
    return make_checkpoints.STEPS_BEFORE - case.facts.get("skipped_steps", 0) + first


class ToDcp(OracleTest):

    def to_dcp(self, case, output, *options):
        return self.run_well("to-dcp", output, case.load_dir, output, "-t", case.facts["tag"], *options)

    def test_torch_puts_together_what_the_engine_held(self):
        compared = 0
        for number, case in enumerate(chosen(SAMPLE)):
            with self.each_case(case) as scratch:
                folder = self.to_dcp(case, scratch / "dcp", "--dp", 1 + number % 4)
                self.assertEqual(run_tool("ckpt-inspect", "scan", folder).returncode, 0)
                dcp_to_torch_save(folder, scratch / "whole.pt")
                state = torch.load(scratch / "whole.pt", weights_only=False)
                self.assert_same_tensors(state["model"], case.truth())
                states = {(name, key): value for name, of_name in state["optim"]["state"].items()
                          for key, value in of_name.items()}
                expected = states_of(case)
                unknown = {"momentum_buffer"} if "muon" in case.name else set()  # which the live engine did not show
                self.assertEqual({key for key, value in states.items()
                                  if key[1] != "step" and (key in expected or key[1] not in unknown)},
                                 set(expected))
                for key, value in expected.items():
                    got = states[key].float() if key[1] in unknown else states[key]
                    self.assertTrue(same_bits(got, value), key)
                for (name, key), value in states.items():
                    if key == "step":
                        self.assertEqual((value.dtype, value.shape), (torch.float32, ()))
                        if case.facts["kind"] == "plain":
                            self.assertEqual(value.item(), steps_of(case), name)
                self.check_options(case, state["optim"])
                compared += 1
        self.require(compared, "cases")

    def check_options(self, case, optim, check_names=True):
        groups = optim["param_groups"]
        if case.facts["kind"] == "plain":
            named = case.facts["param_groups"]
            if len(groups) == len(named):  # Muon's are split by DeepSpeed
                # DeepSpeed counts what has no elements among the frozen ones.
                owned = [[name for name in group["names"] if name not in case.frozen] for group in named]
                if check_names:
                    self.assertEqual([group["params"] for group in groups], owned)
                lrs = case.facts["lr_at_save"]
                if "elastic" not in case.name:
                    self.assertEqual([group["lr"] for group in groups], lrs)
                    if "scheduler" in case.facts["ds_config"]:
                        first = case.facts["ds_config"]["optimizer"]["params"]["lr"]
                        self.assertEqual([group["initial_lr"] for group in groups], [first] * len(groups))
                    for group, options in zip(groups, named):
                        for key in {"weight_decay"} & set(options):
                            self.assertEqual(group[key], options[key])
        for group in groups:
            if {"exp_avg", "exp_avg_sq"} <= set(optim["state"][group["params"][0]]) and "elastic" not in case.name:
                self.assertLessEqual(ADAM_OPTIONS, set(group))
                self.assertIs(type(group["betas"]), tuple)
        # The flattened form says the same.
        for group in groups:
            for name in group["params"]:
                for key in set(group) - {"params"}:
                    self.assertEqual(optim[f"param_groups.{name}.{key}"], group[key])

    def test_there_and_back_again_nothing_has_changed(self):
        """To DCP, and from that to as many ranks as there were: what torch reads from the files of both."""
        compared = 0
        for number, case in enumerate(chosen(SAMPLE)):
            with self.each_case(case) as scratch:
                folder = self.to_dcp(case, scratch / "dcp", "--dp", 1 + number % 4, "--dtype", "keep")
                before = NativeCheckpoint(case.load_dir / case.facts["tag"], case.facts.get("param_groups", ()))
                command = ["reshard", folder, scratch / "back", "--like", case.load_dir, "--dp", before.world]
                if case.name in NOT_LOADED:
                    self.assertRegex(run_tool(*command).stderr, "DeepSpeed does not load")
                    continue
                self.run_well(command[0], scratch / "back", *command[1:])
                tag, = (path for path in (scratch / "back").iterdir() if path.is_dir())
                after = NativeCheckpoint(tag, case.facts.get("param_groups", ()))
                for of_rank in range(before.world if before.stage else 1):
                    self.assertEqual(differences(after.scalars(of_rank), before.scalars(of_rank)), [])
                self.assertEqual(differences(after.tensors(), before.tensors()), [])
                self.assertEqual(differences(after.model["module"], before.model["module"]), [])
                # torch's betas are a tuple.
                hyper = {name: {key: tuple(value) if key == "betas" else value for key, value in options.items()}
                         for name, options in (before.hyper() or {}).items()}
                self.assertEqual(differences(after.hyper() or {}, hyper), [])
                compared += 1
        self.require(compared, "cases")

    def test_one_tensor_can_be_asked_for(self):
        with self.each_case(case_named("z3_fp32_full_b120_w2")) as scratch:
            folder = self.to_dcp(case_named("z3_fp32_full_b120_w2"), scratch / "dcp", "--dp", "3")
            expected = case_named("z3_fp32_full_b120_w2").truth()["wide.weight"]
            state = {"model": {"wide.weight": torch.zeros_like(expected)},
                     "deepspeed": {"global_steps": 0, "skipped_steps": 7}}
            dcp.load(state, checkpoint_id=str(folder), no_dist=True)
            self.assertTrue(same_bits(state["model"]["wide.weight"], expected))
            self.assertEqual(state["deepspeed"], {"global_steps": 3, "skipped_steps": 0})

    def test_what_has_several_names_is_there_once(self):
        with self.each_case(case_named("z3_fp32_full_b120_w2")) as scratch:
            folder = self.to_dcp(case_named("z3_fp32_full_b120_w2"), scratch / "dcp", "--dp", "2")
            metadata = metadata_of(folder)
            places = {(index.fqn, index.offset): vars(place) for index, place in metadata.storage_data.items()}
            for (name, offset), place in places.items():
                if name == "model.head.weight":
                    self.assertEqual(place, places["model.tok_emb.weight", offset])
            self.assertEqual(places["optim.param_groups.0.lr", None],
                             places["optim.param_groups.tok_emb.weight.lr", None])
            self.assertNotIn("optim.param_groups", metadata.state_dict_metadata)
            ends = {}
            for place in {(p["relative_path"], p["offset"], p["length"]) for p in places.values()}:
                ends.setdefault(place[0], []).append(place[1:])
            for name, ranges in ends.items():
                at = 0
                for offset, length in sorted(ranges):
                    self.assertEqual(offset, at)
                    at += length
                self.assertEqual((folder / name).stat().st_size, at)

    def test_types_of_the_weights(self):
        case = case_named("z2_bf16_w2")
        for option, dtype in (("bf16", "bfloat16"), ("fp16", "float16")):
            with self.each_case(case) as scratch:
                folder = self.to_dcp(case, scratch / "dcp", "--dp", "2", "--dtype", option, "--weights-only")
                dcp_to_torch_save(folder, scratch / "whole.pt")
                state = torch.load(scratch / "whole.pt", weights_only=False)
                self.assertEqual(list(state), ["model"])
                self.assert_same_tensors(state["model"], case.truth(dtype=dtype))

    def test_other_inputs(self):
        """A universal checkpoint has all of it; a file of weights, the weights."""
        case = case_named("z3_fp32_full_b120_w2")
        with self.each_case(case) as scratch:
            self.convert_to_universal(case.load_dir, scratch / "ckpt/universal")
            self.convert(case.load_dir, scratch / "weights", "--safe-serialization")
            for source, keys in (("ckpt", {"model", "optim", "deepspeed"}), ("weights", {"model"})):
                folder = self.run_well("to-dcp", scratch / f"{source}_dcp", scratch / source, scratch / f"{source}_dcp",
                                       "--dp", "3")
                dcp_to_torch_save(folder, scratch / "whole.pt")
                state = torch.load(scratch / "whole.pt", weights_only=False)
                self.assertEqual(set(state), keys)
                self.assert_same_tensors(state["model"], case.truth() if source == "ckpt" else
                                         case.without_aliases(case.truth()))
                if source == "ckpt":
                    for (name, key), value in states_of(case).items():
                        if name not in case.tied:
                            self.assertTrue(same_bits(state["optim"]["state"][name][key], value), (name, key))
                    self.check_options(case, state["optim"])

    def test_names_by_rules(self):
        case = case_named("z3_fp32_full_b120_w2")
        with self.each_case(case) as scratch:
            (scratch / "rules").write_text("^blocks\\.(\\d+) => layers.{\\1+1}\n^nothing => else\n")
            folder = self.to_dcp(case, scratch / "dcp", "--dp", "2", "--key-map", scratch / "rules")
            dcp_to_torch_save(folder, scratch / "whole.pt")
            state = torch.load(scratch / "whole.pt", weights_only=False)

            def renamed(name):
                return re.sub(r"^blocks\.(\d+)", lambda found: f"layers.{int(found[1]) + 1}", name)
            self.assert_same_tensors(state["model"], {renamed(name): value for name, value in case.truth().items()})
            trained = [[renamed(name) for name in group["names"]] for group in case.facts["param_groups"]]
            self.assertEqual([group["params"] for group in state["optim"]["param_groups"]], trained)
            self.assertEqual(set(state["optim"]["state"]), {name for names in trained for name in names})
            self.check_options(case, state["optim"], check_names=False)
            (scratch / "rules").write_text("weight => bias\n")
            done = run_tool("to-dcp", case.load_dir, scratch / "other", "--dp", "2", "--key-map", scratch / "rules")
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("of another tensor by --key-map", done.stderr)

    def test_presets(self):
        case = case_named("z3_fp32_full_b120_w2")
        name = "blocks.0.ln_1.weight"
        nested = {f"optimizer.state.{name}.exp_avg", "optimizer.param_groups.0.lr",
                  f"optimizer.param_groups.{name}.lr"}
        expected = {"accelerate": {"pytorch_model_fsdp_0": {f"model.{name}"}, "optimizer_0": nested},
                    "torchtitan": {"": {name, *nested}}, "lightning": {"": {f"model.{name}", *nested}}}
        for preset, folders in expected.items():
            with self.each_case(case) as scratch:
                folder = self.to_dcp(case, scratch / "dcp", "--dp", "2", "--preset", preset)
                self.assertEqual((folder / "meta.pt").exists(), preset == "lightning")
                for below, keys in folders.items():
                    metadata = metadata_of(folder / below)
                    self.assertLessEqual(keys, set(metadata.state_dict_metadata))
                    wanted = {key: torch.zeros_like(case.truth()[name]) for key in keys if not key.endswith(".lr")}
                    dcp.load(wanted, checkpoint_id=str(folder / below), no_dist=True)
                    for key, value in wanted.items():
                        truth = states_of(case)[name, "exp_avg"] if key.endswith("exp_avg") else case.truth()[name]
                        self.assertTrue(same_bits(value, truth), (preset, key))

    def test_the_trainers_files_come_along(self):
        """Its checkpoint is whole, and without a schedule it would load no optimizer."""
        case = case_named("hf_trainer_llama_z3_bf16_w2")
        with self.each_case(case) as scratch:
            given = pathlib.Path(case.load_dir)
            folder = pathlib.Path(self.run_well("to-dcp", scratch / "to", given, scratch / "to", "--dp", "3",
                                                "--preset", "trainer"))
            for name in ("trainer_state.json", "config.json", "rng_state_0.pth", "rng_state_1.pth"):
                self.assertEqual((folder / name).read_bytes(), (given / name).read_bytes())
            self.assertFalse((folder / "latest").exists())
            step = json.loads((given / "trainer_state.json").read_text())["global_step"]
            state = torch.load(folder / "scheduler.pt", weights_only=True)
            dcp_to_torch_save(folder / "optimizer_0", scratch / "optimizer.pt")
            optim = torch.load(scratch / "optimizer.pt", weights_only=False)["optimizer"]
            group = optim["param_groups"][0]
            optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)], lr=1.0)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 ** epoch)
            schedule.load_state_dict(state)
            self.assertEqual((schedule.last_epoch, schedule.base_lrs, schedule.get_last_lr()),
                             (step, [group["initial_lr"]], [group["lr"]]))
            optimizer.step()
            schedule.step()
            self.assertEqual(schedule.get_last_lr(), [group["initial_lr"] * 0.5 ** (step + 1)])
            # And back: the files are those of the run, whichever framework's the checkpoint is.
            config = scratch / "ds.json"
            config.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
            back = pathlib.Path(self.run_well("reshard", scratch / "back", folder, scratch / "back", "--dp", "1",
                                              "--ds-config", config))
            for name in ("trainer_state.json", "config.json", "scheduler.pt"):
                self.assertEqual((back / name).read_bytes(), (folder / name).read_bytes())
            self.assertFalse((back / "optimizer_0").exists())

    def test_another_programs_run_is_none_of_the_trainer(self):
        ran = run_tool("to-dcp", case_named("z2_bf16_w2").load_dir, "out", "--dp", "2", "--preset", "trainer")
        self.assertEqual(ran.returncode, 2, ran.stderr)
        self.assertIn("trainer_state.json", ran.stderr)
        self.assertIn("--preset accelerate", ran.stderr)

    def test_a_model_that_is_split_becomes_whole_with_its_optimizer(self):
        """Slices, stages, experts and groups of all ranks are joined: what the live engines held."""
        joined = []
        for case in model_parallel_cases():
            with self.each_case(case) as scratch:
                folder = self.to_dcp(case, scratch / "dcp", "--dp", "2")
                dcp_to_torch_save(folder, scratch / "whole.pt")
                state = torch.load(scratch / "whole.pt", weights_only=False)
                self.assert_same_tensors(state["model"], model_parallel_truth.weights(case))
                optim = state["optim"]
                expected = {key: value for key, (value, _) in model_parallel_truth.model_parallel_truth(case).items()
                            if key[1] != "fp32"}
                held = {(name, key): value for name, states in optim["state"].items()
                        for key, value in states.items() if key != "step"}
                self.assertEqual(set(held), set(expected))
                for key, value in expected.items():
                    self.assertTrue(same_bits(held[key], value), key)
                steps = {states["step"].item() for states in optim["state"].values()}
                self.assertEqual(steps, {case.facts["optimizer_step"]})
                groups = optim["param_groups"]
                self.assertEqual([group["lr"] for group in groups], case.facts["lr_at_save"])
                names = [name for group in groups for name in group["params"]]
                self.assertEqual(sorted(names), sorted(optim["state"]))
                self.check_options(case, optim)
                joined.append(case.name)
        self.require(len(joined), "models whose groups are joined")
        for kind in ("pp2_dp1_z0", "autotp2_dp1_z0", "moe_ep2_dp2_z0", "autoep2_dp2_z0", "pp2_tp2", "autoep4"):
            self.assertTrue(any(name.startswith(kind) for name in joined), kind)


class Resume(OracleTest):

    def resume(self, case, world, how):
        with self.each_case(case) as scratch:
            folder = self.run_well("to-dcp", scratch / "dcp", case.load_dir, scratch / "dcp", "-t",
                                   case.facts["tag"], "--dp", world, "--preset",
                                   how if how in fsdp2_worker.OTHER_LOADERS else "torch")
            port, out = make_checkpoints.free_port(), scratch / "held.pt"
            failed = make_checkpoints.run_forked(fsdp2_worker.work, scratch / "logs", [
                (rank, world, port, case.name, os.environ["DSCKPT_TESTDATA"], folder, how, out)
                for rank in range(world)])
            self.assertIsNone(failed, failed)
            held = torch.load(out, weights_only=False)
            self.check_held(case, held["held"])
            self.check_options(case, held["options"])
            if held["losses"]:
                for mine, theirs in zip(held["losses"], case.facts["losses_after_save"], strict=True):
                    self.assertAlmostEqual(mine, theirs, delta=1e-5)
            if how == "nested":
                self.check_chunks(metadata_of(folder), metadata_of(str(out) + "_own"))

    def check_held(self, case, held):
        expected = {f"model|{name}": value for name, value in case.truth().items()}
        expected |= {f"{state}|{name}": value for (name, state), value in states_of(case).items()
                     if name not in case.tied}
        for key, value in expected.items():
            self.assertTrue(same_bits(held[key], value), key)
        for key, value in held.items():
            if key.startswith("step|"):
                self.assertEqual(value.item(), steps_of(case), key)

    def check_options(self, case, options):
        params = case.facts["ds_config"]["optimizer"]["params"]
        for mine, group, lr in zip(options, case.facts["param_groups"], case.facts["lr_at_save"], strict=True):
            self.assertEqual(mine["lr"], lr)
            self.assertEqual(mine["weight_decay"], group.get("weight_decay", params["weight_decay"]))
            self.assertEqual((tuple(mine["betas"]), mine["eps"]), (tuple(params["betas"]), params["eps"]))
            self.assertTrue(mine["decoupled_weight_decay"])

    def check_chunks(self, ours, theirs):
        """A chunk is what a rank of FSDP2 saves, unless that is small."""
        compared = 0
        for key, mine in ours.state_dict_metadata.items():
            other = theirs.state_dict_metadata.get(key)
            if not hasattr(other, "chunks"):
                continue
            self.assertEqual((mine.size, mine.properties.dtype), (other.size, other.properties.dtype), key)
            boxes = [(chunk.offsets, chunk.sizes) for chunk in other.chunks if math.prod(chunk.sizes)]
            if boxes and math.prod(boxes[0][1]) * 4 >= LEAST_CHUNK:
                self.assertEqual([(chunk.offsets, chunk.sizes) for chunk in mine.chunks], boxes, key)
                compared += len(boxes) > 1
        self.assertTrue(compared or len({p.relative_path for p in theirs.storage_data.values()}) == 1)

    def test_fsdp2_goes_on(self):
        resumed = 0
        for case in chosen(RESUMED):
            if "DSCKPT_CASES" in os.environ and not self.can_be_resumed(case):
                continue
            for world, how in self.sizes(case):
                self.resume(case, world, how)
                resumed += 1
        self.require(resumed, "cases that FSDP2 can continue")

    @staticmethod
    def sizes(case):
        if "DSCKPT_CASES" not in os.environ:
            return RESUMED[case.name]
        return [(1, "nested"), (2, "flattened"), (3, "nested"), (4, "flattened"), (2, "accelerate"), (2, "lightning")]

    @staticmethod
    def can_be_resumed(case):
        """Adam's, with all parameters: FSDP2 shards none without dimensions, and wants states of empty ones."""
        facts = case.facts
        states = {state for _, state in states_of(case)}
        return (facts["kind"] == "plain" and states == {"exp_avg", "exp_avg_sq"}
                and "optimizer" in facts["ds_config"] and not facts["exclude_frozen_parameters"]
                and not re.search("elastic|zerodim|emptyparam|oddbuffers|muon", case.name)
                and all(math.prod(shape) for shape in facts["param_shapes"].values())
                and all(facts["param_shapes"][name] for group in facts["param_groups"] for name in group["names"]))


if __name__ == "__main__":
    unittest.main()
