"""to-universal against DeepSpeed's own converter, and against what the live engines held.

DeepSpeed's converter is wrong or fails in some layouts. Each such defect has one narrow exception in the comparison
(class EqualsDeepSpeed) and a test of its own against the truth.
"""
import argparse
import contextlib
import functools
import io
import math
import os
import pathlib
import re
import shutil
import tempfile
import types
import unittest
import unittest.mock
from collections import OrderedDict, defaultdict

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import numpy
import torch
from deepspeed.checkpoint import ds_to_universal, universal_checkpoint
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero import stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils.tensor_fragment import fragment_address

import model_parallel_truth as mp
import oracle
import tools
from model_parallel_truth import local_name, model_files, model_parallel_truth, optim_files

OPTIMIZER_STATE = "zero/optimizer_state.pt"
ADAM = ("exp_avg", "exp_avg_sq")

# The errors of DeepSpeed's converter for data-parallel checkpoints that it cannot convert. For the model-parallel ones
# case.json has it.
DEEPSPEED_FAILS = {
    r"^z0_": "can't find *_optim_states.pt",
    r"_(sgd|adagrad|adagrad_offload|muon)_": "exp_avg",
    r"_elastic_": "'list' object has no attribute 'get'",
    r"^z[12]_.*_zerodim_": "zero-dimensional tensor",
    r"^z1_bf16opt_tinygroup_w4$": "narrow(): length must be non-negative",
    r"_nvme": "exceeds dimension size (0)",
}

scratch = None


def setUpModule():
    global scratch
    scratch = tempfile.TemporaryDirectory()


def tearDownModule():
    scratch.cleanup()


def every_case():
    return [*oracle.all_cases(), *oracle.model_parallel_cases()]


def half(case):
    """The 16-bit type of the weights, or None."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.facts["precision"])


@functools.lru_cache(maxsize=8)
def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def merged_truth(case):
    """model_parallel_truth(), with DeepSpeed's class for the form of sub-parameters."""
    return {key: (value, {name: universal_checkpoint.SubparamShape(**item) if name == "sub_param_shape" else item
                          for name, item in extra.items()})
            for key, (value, extra) in model_parallel_truth(case).items()}


def first_shard(case):
    return load(optim_files(case.tag_folder)[0])["optimizer_state_dict"]


def run_deepspeed(source, output, strict=True):
    """Returns the error, or "". Asks for the injection of missing state only where it is needed."""
    for inject in (False, True):
        shutil.rmtree(output, ignore_errors=True)
        arguments = argparse.Namespace(input_folder=str(source), output_folder=str(output), num_extract_workers=1,
                                       num_merge_workers=1, keep_temp_folder=False, strict=strict,
                                       inject_missing_state=inject)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                ds_to_universal.main(arguments)
            return ""
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
    shutil.rmtree(output, ignore_errors=True)
    return answer


@functools.lru_cache(maxsize=None)
def deepspeeds(case):
    """DeepSpeed's output, or None, and its error, or ""."""
    output = pathlib.Path(scratch.name) / case.name / "deepspeeds" / "universal"
    error = run_deepspeed(case.tag_folder, output)
    return (None if error else output), error


@functools.lru_cache(maxsize=None)
def conversion(case):
    """The finished process of to-universal, and its output."""
    output = pathlib.Path(scratch.name) / case.name / "ours" / "universal"
    output.parent.mkdir(parents=True)
    return tools.run_tool("to-universal", "--input_folder", case.tag_folder, "--output_folder", output), output


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def difference(ours, theirs, path=""):
    """Where two objects differ in type or content, or None. The order of keys counts in an OrderedDict, as in ==."""
    if type(ours) is not type(theirs):
        return f"{path}: {type(ours)} is not {type(theirs)}"
    if torch.is_tensor(ours):
        facts, expected = [(value.dtype, tuple(value.shape), value.requires_grad) for value in (ours, theirs)]
        if facts != expected:
            return f"{path}: {facts} is not {expected}"
        return None if oracle.same_bits(ours.detach(), theirs.detach()) else f"{path}: values differ"
    if isinstance(ours, numpy.ndarray):
        same = (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())
        return None if same else f"{path}: {ours!r} is not {theirs!r}"
    if isinstance(ours, dict):
        if ours.keys() != theirs.keys() or isinstance(ours, OrderedDict) and list(ours) != list(theirs):
            return f"{path}: keys {list(ours)} are not {list(theirs)}"
        return first_difference((ours[key], theirs[key], f"{path}[{key!r}]") for key in ours)
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs):
            return f"{path}: length {len(ours)} is not {len(theirs)}"
        return first_difference((a, b, f"{path}[{i}]") for i, (a, b) in enumerate(zip(ours, theirs)))
    if type(ours).__eq__ is object.__eq__ and hasattr(ours, "__dict__") and not isinstance(ours, type):
        return difference(vars(ours), vars(theirs), f"{path}.__dict__")
    return None if ours == theirs or ours != ours and theirs != theirs else f"{path}: {ours!r} is not {theirs!r}"


def first_difference(triples):
    return next(filter(None, (difference(*triple) for triple in triples)), None)


def lean(state):
    """DeepSpeed's stage-3 optimizer_state.pt without rank 0's flat tensors."""
    state = {key: value for key, value in state.items() if key != "fp32_flat_groups"}
    inner = dict(state["optimizer_state_dict"])
    inner["state"] = {number: {key: value for key, value in states.items()
                               if not torch.is_tensor(value) or value.dim() == 0}
                      for number, states in inner["state"].items()}
    state["optimizer_state_dict"] = inner
    return state


def tensors_in(value):
    if torch.is_tensor(value):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def is_round_robin(case):
    return bool(case.facts["ds_config"]["zero_optimization"].get("round_robin_gradients"))


def complex_buffers(case):
    if case in oracle.model_parallel_cases():
        return set()
    return {f"zero/{name}/fp32.pt" for name, value in case.module.items() if value.is_complex()}


def without_values(value):
    return {key: (item.dtype, item.shape, item.requires_grad) if torch.is_tensor(item) else item
            for key, item in value.items()}


# The truth: what the live engines held.

def momentum_of_muon(case):
    """Stages 1 and 2: each rank has the whole momentum of every parameter that its partition has a part of."""
    shapes = load(model_files(case.tag_folder)[0])["param_shapes"]
    result = {}
    for rank, path in enumerate(optim_files(case.tag_folder)):
        state = load(path)["optimizer_state_dict"]
        for group, states in state["base_optimizer_state"]["state"].items():
            if "momentum_buffer" not in states:
                continue
            part = len(first_shard(case)["single_partition_of_fp32_groups"][group]) + \
                first_shard(case)["group_paddings"][group]
            begin, taken = 0, 0
            for name, shape in shapes[group].items():
                numel = math.prod(shape)
                if begin < (rank + 1) * part and begin + numel > rank * part:
                    value = states["momentum_buffer"][taken:taken + numel].reshape(shape)
                    if not oracle.same_bits(value, result.setdefault((name, "momentum_buffer"), value)):
                        raise AssertionError(f"{name}: ranks disagree")
                    taken += numel
                begin += numel
            if taken != len(states["momentum_buffer"]):
                raise AssertionError(f"group {group} of rank {rank}: {taken} elements do not account for all")
    return result


def states_of_stage3(case):
    """Every flat optimizer state: each parameter is cut in equal parts, the last ones padded."""
    shards = [load(path)["optimizer_state_dict"] for path in optim_files(case.tag_folder)]
    result = {}
    for number, group in enumerate(load(model_files(case.tag_folder)[0])["param_shapes"]):
        states = [shard["optimizer_state_dict"]["state"][number] for shard in shards]
        for key in [key for key, value in states[0].items() if torch.is_tensor(value) and value.dim()]:
            begin = 0
            for name, shape in group.items():
                part = -(-math.prod(shape) // len(shards))
                pieces = torch.cat([rank[key][begin:begin + part] for rank in states])
                result[name, key] = pieces[:math.prod(shape)].reshape(shape)
                begin += part
    return result


def data_parallel_truth(case):
    """(name, state) -> tensor of the trained parameters."""
    truth = {tuple(key.rsplit("|", 1)): value for key, value in case.expected("master").items()}
    if case.stage != 3:
        # DeepSpeed's loader cuts along the first dimension also what it does not have to cut.
        truth = {key: value.reshape(value.shape or 1) for key, value in truth.items()}
    if "_muon_" in case.name:  # the engine's own record leaves out what is 16 bits wide, and at stage 3 all states
        truth |= states_of_stage3(case) if case.stage == 3 else momentum_of_muon(case)
    return truth


def widened(value):
    """In fp32. DeepSpeed's .float() drops the imaginary parts of complex numbers."""
    return value if value.is_complex() else value.float()


def untrained_truth(case):
    """name -> tensor: buffers, frozen parameters and tied names."""
    if case in oracle.model_parallel_cases():
        trained = {name: value for (name, state), (value, _) in model_parallel_truth(case).items() if state == "fp32"}
        return {name: widened(value) for name, value in mp.untrained(case).items()} | \
            {alias: trained[owner] for alias, owner in mp.aliases(case).items()}
    return {name: widened(value) for name, value in case.truth().items() if name not in case.masters}


def steps(case):
    """name -> how often it was stepped, as the checkpoint says it, of the parameters that have it. Stages 0 to 2."""
    if case.stage == 0 and case in oracle.model_parallel_cases():  # no names in the files: all were stepped alike
        state, *_ = load(model_files(case.tag_folder)[0])["optimizer"]["state"].values()
        return {local_name(case, name): state["step"] for name, _ in model_parallel_truth(case)}
    if case.stage == 0:
        optimizer = load(model_files(case.tag_folder)[0])["optimizer"]
        states = list(optimizer.get("optimizer_state_dict", optimizer)["state"].values())
        groups = [group["names"] for group in case.facts["param_groups"]]
        if len(states) == len(groups):  # flat, so one state for a whole group
            states = [state for state, names in zip(states, groups) for _ in names]
        found = zip([name for names in groups for name in names], states, strict=True)
    else:
        shards = [load(path)["optimizer_state_dict"] for path in optim_files(case.tag_folder)]
        found = [(name, shard["base_optimizer_state"]["state"][group] if isinstance(shard["base_optimizer_state"], dict)
                  else shard["base_optimizer_state"][group])
                 for shard in shards for group, names in enumerate(shard["param_slice_mappings"]) for name in names]
    return {name: state["step"] for name, state in found if "step" in state}


class UniversalTest(oracle.OracleTest):

    def ours(self, case):
        done, output = conversion(case)
        self.assertEqual(done.returncode, 0, done.stderr)
        return output

    def each(self, cases, what):
        self.require(cases, what)
        return cases

    def assert_same(self, ours, theirs, what=""):
        self.assertIsNone(difference(ours, theirs), what)


class EqualsDeepSpeed(UniversalTest):

    def test_deepspeed_fails_where_it_is_known_to(self):
        """So that no case slips out of the comparison."""
        for case in self.each(every_case(), "case"):
            with self.subTest(case=case.name):
                _, error = deepspeeds(case)
                if case in oracle.model_parallel_cases():
                    answers = case.facts["deepspeed_answers"]
                    expected = answers.get("universal_inject", answers["universal"])
                    expected = "" if expected == "ok" else expected.split("[")[0].split("'")[0]
                else:
                    expected = next((text for pattern, text in DEEPSPEED_FAILS.items()
                                     if re.search(pattern, case.name)), "")
                self.assertEqual(bool(error), bool(expected), error)
                self.assertIn(expected, error)

    def compared(self):
        cases = [case for case in every_case() if deepspeeds(case)[0]]
        return self.each(cases, "case that DeepSpeed converts")

    def test_the_same_files(self):
        for case in self.compared():
            with self.subTest(case=case.name):
                ours, theirs = self.ours(case), deepspeeds(case)[0]
                # DeepSpeed drops what is not Adam's.
                extra = {f"zero/{key.replace('|', '/')}.pt" for key in case.expected("master") or ()
                         if key.rsplit("|", 1)[1] not in ("fp32", *ADAM)}
                if case.facts.get("topology", {}).get("pp", 1) > 1:
                    extra |= {f"zero/{name}/fp32.pt" for name in mp.untrained(case)}  # it has no layer's buffers
                self.assertEqual(sorted(files_in(ours) - extra), sorted(files_in(theirs)))
                self.assertLessEqual(extra, files_in(ours))

    def test_equal_objects(self):
        for case in self.compared():
            with self.subTest(case=case.name):
                ours, theirs = self.ours(case), deepspeeds(case)[0]
                tied = mp.aliases(case) if case in oracle.model_parallel_cases() else case.tied
                aliases = {f"zero/{alias}/fp32.pt" for alias in tied} if half(case) else set()
                for path in sorted(files_in(theirs)):
                    mine, other = load(ours / path), load(theirs / path)
                    if path == OPTIMIZER_STATE and case.stage == 3:
                        other = lean(other)
                    if path in aliases:
                        # DeepSpeed writes the 16-bit copy: ours is what that was rounded from.
                        self.assert_same(mine["param"].to(half(case)).float(), other["param"], path)
                        mine, other = without_values(mine), without_values(other)
                    elif is_round_robin(case) and re.sub(r"zero/(.*)/(fp32|exp_avg|exp_avg_sq)\.pt", r"\1",
                                                         path) in case.masters:
                        mine, other = without_values(mine), without_values(other)
                    elif path in complex_buffers(case):
                        self.assert_same(mine["param"].real.float(), other["param"], path)
                        mine, other = list(mine), list(other)
                    self.assert_same(mine, other, path)

    def test_copied_files_are_the_same_to_the_byte(self):
        for case in self.compared():
            with self.subTest(case=case.name):
                ours, theirs = self.ours(case), deepspeeds(case)[0]
                for path in model_files(theirs):
                    if path.read_bytes() == (case.tag_folder / path.name).read_bytes():
                        self.assertEqual((ours / path.name).read_bytes(), path.read_bytes(), path.name)
                    else:
                        self.assertEqual(case.facts.get("kind"), "autoep", path.name)

    def test_round_robin_partitions_are_scrambled_by_deepspeed_alone(self):
        for case in self.each([case for case in oracle.all_cases() if is_round_robin(case)], "round-robin case"):
            with self.subTest(case=case.name):
                theirs, _ = deepspeeds(case)
                wrong = []
                for name, value in case.masters.items():
                    path = f"zero/{name}/fp32.pt"
                    self.assertTrue(oracle.same_bits(load(self.ours(case) / path)["param"].detach(), value), name)
                    if not oracle.same_bits(load(theirs / path)["param"].detach(), value):
                        wrong.append(name)
                self.assertTrue(wrong, "DeepSpeed is right here: no exception is needed")

    def test_tied_names_have_the_master_and_not_its_rounding(self):
        cases = [case for case in oracle.all_cases()
                 if case.tied and case.stage != 3 and half(case) and deepspeeds(case)[0]]
        for case in self.each(cases, "16-bit case with tied names"):
            with self.subTest(case=case.name):
                for alias, owner in case.tied.items():
                    ours, theirs = [load(folder / f"zero/{alias}/fp32.pt")["param"]
                                    for folder in (self.ours(case), deepspeeds(case)[0])]
                    self.assertTrue(oracle.same_bits(ours, case.masters[owner]), alias)
                    self.assertFalse(oracle.same_bits(theirs, case.masters[owner]),
                                     "DeepSpeed is right here: no exception is needed")

    def test_complex_buffers_keep_what_deepspeed_drops(self):
        cases = [case for case in oracle.all_cases() if case.stage != 3 and complex_buffers(case)]
        for case in self.each(cases, "case with complex buffers"):
            with self.subTest(case=case.name):
                for name, value in case.module.items():
                    if value.is_complex():
                        path = f"zero/{name}/fp32.pt"
                        self.assertTrue(oracle.same_bits(load(self.ours(case) / path)["param"], value), path)
                        self.assertTrue(value.imag.any(), "no exception is needed")

    def test_latest_universal_in_the_folder_above_names_the_folder(self):
        for case in self.compared():
            with self.subTest(case=case.name):
                ours, theirs = [folder.parent for folder in (self.ours(case), deepspeeds(case)[0])]
                self.assertEqual((ours / "latest_universal").read_bytes(), (theirs / "latest_universal").read_bytes())
                self.assertEqual(sorted(path.name for path in ours.iterdir()), ["latest_universal", "universal"])


class Truth(UniversalTest):

    def check_tensor(self, value, expected, what):
        self.assertTrue(oracle.same_bits(value.detach(), expected.contiguous()), f"{what}: {value.dtype} "
                        f"{tuple(value.shape)} is not {expected.dtype} {tuple(expected.shape)}, bit for bit")
        self.assertTrue(value.is_contiguous(), what)
        self.assertEqual(value.untyped_storage().nbytes(), value.numel() * value.element_size(), what)

    def check_trained(self, case, truth, flat):
        """`truth`: (name, state) -> tensor and the rest of the dict; what `flat` says yes to has neither."""
        output = self.ours(case)
        for (name, state), (expected, extra) in truth.items():
            path = f"zero/{name}/{state}.pt"
            value = load(output / path)
            if flat(extra):
                self.check_tensor(value, expected.reshape(-1), path)
            else:
                self.check_tensor(value["param"], expected, path)
                self.assert_same({key: item for key, item in value.items() if key != "param"}, extra, path)

    def check_untrained(self, case, truth):
        for name, expected in truth.items():
            path = f"zero/{name}/fp32.pt"
            value = load(self.ours(case) / path)
            self.check_tensor(value["param"], expected, path)
            self.assertEqual(list(value), ["param"], path)

    def check_steps_and_files(self, case, trained, untrained):
        output = self.ours(case)
        expected = {f"zero/{name}/{state}.pt" for name, state in trained} | {OPTIMIZER_STATE}
        expected |= {f"zero/{name}/fp32.pt" for name in untrained}
        expected |= {path.name for path in model_files(case.tag_folder)}
        if case.stage != 3:
            known = steps(case)
            for name in {name for name, _ in trained if local_name(case, name) in known}:
                expected.add(f"zero/{name}/step.pt")
                self.assert_same(load(output / f"zero/{name}/step.pt"), known[local_name(case, name)], name)
        self.assertEqual(sorted(files_in(output)), sorted(expected))

    def test_trained_parameters_have_every_state_of_the_live_engine(self):
        for case in self.each(oracle.all_cases(), "data-parallel case"):
            with self.subTest(case=case.name):
                truth = {key: (value, {"cat_dim": 0}) for key, value in data_parallel_truth(case).items()}
                self.check_trained(case, truth, lambda extra: case.stage == 3)

    def test_buffers_frozen_parameters_and_tied_names_have_the_live_values(self):
        for case in self.each([case for case in oracle.all_cases() if case.stage != 3], "case of stages 0 to 2"):
            with self.subTest(case=case.name):
                self.check_untrained(case, untrained_truth(case))

    def test_steps_and_the_set_of_files(self):
        for case in self.each(oracle.all_cases(), "data-parallel case"):
            with self.subTest(case=case.name):
                self.check_steps_and_files(case, data_parallel_truth(case),
                                           {} if case.stage == 3 else untrained_truth(case))

    def test_slices_of_model_parallel_ranks_are_merged_by_their_rules(self):
        cases = oracle.model_parallel_cases()
        for case in self.each(cases, "model-parallel case"):
            with self.subTest(case=case.name):
                plain = case.stage == 3 and case.facts["topology"]["tp"] == 1
                truth = merged_truth(case)
                self.check_trained(case, truth, lambda extra: plain and "is_expert_param" not in extra)
                untrained = {} if case.stage == 3 else untrained_truth(case)
                self.check_untrained(case, untrained)
                self.check_steps_and_files(case, truth, untrained)

    def test_experts_of_all_ranks_have_global_names_where_deepspeed_fails(self):
        cases = [case for case in oracle.model_parallel_cases() if case.facts["kind"] == "moe"
                 and case.facts["topology"]["ep"] > 1]
        for case in self.each(cases, "case with native experts on several ranks"):
            with self.subTest(case=case.name):
                self.assertIsNone(deepspeeds(case)[0])
                numbers = {int(found[1]) for found in (re.search(r"deepspeed_experts\.(\d+)", path)
                                                       for path in files_in(self.ours(case))) if found}
                self.assertEqual(numbers, set(range(case.facts["num_experts"])))

    def test_model_files_of_stage_0_are_left_without_the_optimizer(self):
        for case in self.each([case for case in oracle.all_cases() if case.stage == 0], "stage-0 case"):
            with self.subTest(case=case.name):
                path, = model_files(case.tag_folder)
                self.assert_same(load(self.ours(case) / path.name), {**load(path), "optimizer": None})


class FakeStage3(types.SimpleNamespace):
    """As much of a stage-3 optimizer on one rank as its universal loader touches."""
    load_hp_checkpoint_state = stage3.DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state
    load_everything = stage3.DeepSpeedZeroOptimizer_Stage3.load_hp_checkpoint_state_from_checkpoint_dir_stage3
    _load_global_state_stage3 = stage3.DeepSpeedZeroOptimizer_Stage3._load_global_state_stage3

    def __init__(self, sizes):
        parameters = {name: torch.nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
        flat, low = torch.zeros(sum(sizes.values())), torch.zeros(sum(sizes.values()))
        super().__init__(
            fp16_groups=[list(parameters.values())], fp16_partitioned_groups=[list(parameters.values())],
            fp16_partitioned_groups_flat=[low], fp32_partitioned_groups_flat=[flat], flat=flat,
            param_names={value: name for name, value in parameters.items()}, swap_optimizer=False,
            loss_scaler=None, dynamic_loss_scale=None, overflow=None, dp_process_group=None,
            optimizer=types.SimpleNamespace(state=defaultdict(dict), param_groups=[{"params": []}, {"params": []}]))

    def _get_param_partition_group(self, param):
        return None

    def unflatten(self, flat, parameters):
        return flat.split([value.numel() for value in parameters])

    def loaded(self):
        return {"fp32": self.flat, "states": dict(self.optimizer.state[self.flat]),
                "groups": self.optimizer.param_groups, "scaler": self.loss_scaler,
                "dynamic": self.dynamic_loss_scale, "overflow": self.overflow}


class OptimizerState(UniversalTest):

    def stage3_cases(self):
        return [case for case in every_case() if case.stage == 3]

    def test_stage_3_has_no_flat_tensors(self):
        for case in self.each(self.stage3_cases(), "stage-3 case"):
            with self.subTest(case=case.name):
                state = load(self.ours(case) / OPTIMIZER_STATE)
                self.assertEqual([tuple(tensor.shape) for tensor in tensors_in(state) if tensor.dim()], [])

    def test_stage_3_has_everything_else_that_rank_0_has(self):
        """Where DeepSpeed's converter fails, too."""
        for case in self.each(self.stage3_cases(), "stage-3 case"):
            with self.subTest(case=case.name):
                shard = dict(first_shard(case))
                shard["param_groups"] = shard["optimizer_state_dict"]["param_groups"]
                self.assert_same(load(self.ours(case) / OPTIMIZER_STATE), lean(shard))

    def test_stages_1_and_2_have_what_is_not_of_one_rank(self):
        for case in self.each([case for case in every_case() if case.stage in (1, 2)], "case of stages 1 and 2"):
            with self.subTest(case=case.name):
                shard = first_shard(case)
                base = shard["base_optimizer_state"]
                state = {key: value for key, value in shard.items() if key not in (
                    "base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups")}
                # As DeepSpeedCheckpoint.get_zero_checkpoint_state has them: parameters are no longer cut.
                state["group_paddings"] = [0] * len(state["group_paddings"])
                state["partition_count"] = [case.facts.get("topology", {}).get("dp", case.facts["world_size"])
                                            ] * len(state["partition_count"])
                # Elastic checkpoints have no hyper-parameters.
                state["param_groups"] = [{"params": [i]} for i in range(len(base))] if isinstance(base, list) else \
                    base["param_groups"]
                self.assert_same(load(self.ours(case) / OPTIMIZER_STATE), state)

    def load_at_stage_3(self, folder, sizes):
        engine = FakeStage3(sizes)
        world = types.SimpleNamespace(get_rank=lambda group=None: 0, get_world_size=lambda group=None: 1)
        with unittest.mock.patch.object(stage3, "dist", world):
            engine.load_everything(str(folder))
        return engine.loaded()

    def test_deepspeeds_stage_3_loader_gets_all_it_reads(self):
        """Its own code runs on both folders, and on ours gives the engine's values."""
        cases = [case for case in oracle.all_cases() if case.stage == 3 and deepspeeds(case)[0]]
        for case in self.each(cases, "stage-3 case that DeepSpeed converts"):
            with self.subTest(case=case.name):
                sizes = {name: value.numel() for name, value in case.masters.items()}
                ours = self.load_at_stage_3(self.ours(case), sizes)
                self.assert_same(ours, self.load_at_stage_3(deepspeeds(case)[0], sizes))
                truth = data_parallel_truth(case)
                for state, value in [("fp32", ours["fp32"]), *[(key, ours["states"][key]) for key in ADAM]]:
                    expected = torch.cat([truth[name, state].reshape(-1) for name in sizes])
                    self.assertTrue(oracle.same_bits(value, expected), state)
                self.assert_same(ours["states"]["step"], first_shard(case)["optimizer_state_dict"]["state"][0]["step"])

    def test_deepspeeds_loader_of_parameters_gets_the_live_values(self):
        """Its own code, on one rank that holds every parameter whole."""
        for case in self.each([case for case in oracle.all_cases() if case.stage < 3], "case of stages 0 to 2"):
            with self.subTest(case=case.name):
                truth, known = data_parallel_truth(case), steps(case)
                for name, master in case.masters.items():
                    parameter = torch.nn.Parameter(torch.zeros_like(master))
                    flat = torch.zeros(master.numel())
                    parameter._hp_mapping = types.SimpleNamespace(
                        lp_fragment_address=fragment_address(numel=master.numel(), start=0),
                        get_hp_fragment=lambda flat=flat: flat)
                    step = universal_checkpoint.load_hp_checkpoint_state(
                        parameter, str(self.ours(case) / "zero" / name), 0, 1)
                    self.assert_same(step, known.get(name), name)
                    loaded = {"fp32": flat, **parameter._hp_mapping.optim_fragment}
                    self.assert_same(loaded, {key: value.reshape(-1) for (owner, key), value in truth.items()
                                              if owner == name}, name)

    def test_deepspeeds_other_loader_gets_all_it_reads(self):
        for case in self.each([case for case in every_case() if case.stage < 3], "case of stages 0 to 2"):
            with self.subTest(case=case.name):
                state = load(self.ours(case) / OPTIMIZER_STATE)
                engine = types.SimpleNamespace(loss_scaler=None, dynamic_loss_scale=None, overflow=None, clip_grad=None,
                                               compute_grad_norm=True, partition_gradients=case.stage == 2)
                DeepSpeedZeroOptimizer._load_global_state(engine, state)
                self.assertEqual(engine.clip_grad, case.facts["ds_config"].get("gradient_clipping", 0.0) if
                                 case.stage == 0 else first_shard(case)["clip_grad"])
                if "loss_scaler" in state or case.stage == 0:
                    self.assertIn(type(engine.loss_scaler), (LossScaler, DynamicLossScaler))
                    self.assertEqual(engine.dynamic_loss_scale, engine.loss_scaler.dynamic)
                    self.assertIs(engine.overflow, False)

    def test_stage_0_has_the_loss_scale_and_the_hyper_parameters(self):
        for case in self.each([case for case in oracle.all_cases() if case.stage == 0], "stage-0 case"):
            with self.subTest(case=case.name):
                state = load(self.ours(case) / OPTIMIZER_STATE)
                optimizer = load(model_files(case.tag_folder)[0])["optimizer"]
                inner = optimizer.get("optimizer_state_dict", optimizer)
                self.assert_same(state["param_groups"], inner["param_groups"])
                self.assertEqual(state["ds_version"], case.facts["deepspeed_version"])
                if not optimizer.get("dynamic_loss_scale"):
                    self.assert_same(state["loss_scaler"], LossScaler(optimizer.get("cur_scale", 1.0)))
                    continue
                settings = case.facts["ds_config"]["fp16"]
                expected = DynamicLossScaler(
                    init_scale=optimizer["cur_scale"], scale_window=optimizer["scale_window"],
                    min_scale=settings.get("min_loss_scale", 1), delayed_shift=settings.get("hysteresis", 2),
                    consecutive_hysteresis=settings.get("consecutive_hysteresis", False))
                expected.cur_iter = optimizer["cur_iter"]
                expected.last_overflow_iter = optimizer["last_overflow_iter"]
                self.assertEqual(vars(state["loss_scaler"]), vars(expected))
                self.assertIs(type(state["loss_scaler"]), DynamicLossScaler)


class Refusals(UniversalTest):

    def check_refused(self, source, folder, code, *patterns, options=()):
        """Nothing is left behind, and an older folder stays the latest."""
        (folder / "latest_universal").write_text("older")
        done = tools.run_tool("to-universal", "--input_folder", source, "--output_folder", folder / "out", *options)
        self.assertEqual(done.returncode, code, done.stderr)
        for pattern in patterns:
            self.assertRegex(done.stderr, pattern)
        self.assertEqual([path.name for path in folder.iterdir()], ["latest_universal"])
        self.assertEqual((folder / "latest_universal").read_text(), "older")

    def case(self, name):
        found = next((case for case in oracle.model_parallel_cases() if case.name == name), None)
        self.require(found, f"case {name}")
        return found

    def copy(self, case, folder, pattern, change):
        """A copy of the checkpoint, in which `change(state, path)` has been at the files."""
        target = folder / "input" / case.tag_folder.name
        shutil.copytree(case.tag_folder, target)
        paths = sorted(target.glob(pattern))
        self.assertTrue(paths, pattern)
        for path in paths:
            state = torch.load(path, weights_only=False)
            change(state, path)
            torch.save(state, path)
        (folder / "output").mkdir()
        return target, folder / "output"

    @staticmethod
    def add_pattern(pattern):
        def change(state, _):
            state["universal_checkpoint_info"]["parameter_to_average_patterns"].append(pattern)
        return change

    def test_an_unused_pattern_is_an_error_unless_not_strict(self):
        case = self.case("mpu_tp2_dp1_z1_bf16")
        with tempfile.TemporaryDirectory() as folder:
            source, output = self.copy(case, pathlib.Path(folder), "mp_rank_*", self.add_pattern(r".*no_such\.weight$"))
            self.assertIn("no_such", run_deepspeed(source, output.parent / "deepspeeds"))
            self.check_refused(source, output, 2, r"no_such\\+\.weight\$", "--no.strict")
            self.assertEqual(run_deepspeed(source, output.parent / "deepspeeds", strict=False), "")
            options = ["--input_folder", source, "--output_folder", output / "out", "--no_strict"]
            done = tools.run_tool("to-universal", *options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"note: .*no_such\\+\.weight\$")
            self.assertEqual(files_in(output / "out"), files_in(output.parent / "deepspeeds"))
            for path in files_in(output / "out"):
                self.assert_same(torch.load(output / "out" / path, weights_only=False),
                                 torch.load(output.parent / "deepspeeds" / path, weights_only=False), path)

    @staticmethod
    def add_to(name, state_key):
        """Changes the first element that a shard has of a parameter."""
        def change(state, _):
            inner = state["optimizer_state_dict"]
            for group, mapping in enumerate(inner["param_slice_mappings"]):
                if name in mapping:
                    flat = inner["single_partition_of_fp32_groups"][group] if state_key == "fp32" else \
                        inner["base_optimizer_state"]["state"][group][state_key]
                    flat.detach()[mapping[name].start] += 1
        return change

    def test_replicated_parameters_that_differ_are_named_with_their_ranks(self):
        case = self.case("mpu_tp3_dp1_z1_fp32")
        for state in ("fp32", "exp_avg_sq"):
            with self.subTest(state), tempfile.TemporaryDirectory() as folder:
                name = "layers.1.input_layernorm.weight"
                source, output = self.copy(case, pathlib.Path(folder), "*mp_rank_02_optim_states.pt",
                                           self.add_to(name, state))
                self.assertTrue(run_deepspeed(source, output.parent / "deepspeeds").startswith("AssertionError"))
                self.check_refused(source, output, 3, re.escape(name), state, r"\b0\b.*\b2\b")

    def same_as_deepspeed(self, source, output):
        self.assertEqual(run_deepspeed(source, output.parent / "deepspeeds"), "")
        out = self.convert_to_universal(source, output / "out")
        for path in sorted(files_in(output.parent / "deepspeeds")):
            self.assert_same(torch.load(out / path, weights_only=False),
                             torch.load(output.parent / "deepspeeds" / path, weights_only=False), path)
        return out

    def test_averaged_parameters_may_differ(self):
        case = self.case("mpu_tp3_dp1_z1_fp32")
        name = "layers.1.attention.head_scale"
        with tempfile.TemporaryDirectory() as folder:
            source, output = self.copy(case, pathlib.Path(folder), "*mp_rank_02_optim_states.pt",
                                       self.add_to(name, "fp32"))
            out = self.same_as_deepspeed(source, output)
            path = f"zero/{name}/fp32.pt"
            change = torch.load(out / path)["param"] - load(self.ours(case) / path)["param"]
            expected = torch.zeros_like(change)
            expected[0] = 1 / 3
            torch.testing.assert_close(change, expected)

    def test_the_copy_of_a_later_stage_does_not_count(self):
        case = self.case("pp2_tp2_dp1_z1_bf16")
        name = "tied_modules.embed.position_embeddings.weight"
        with tempfile.TemporaryDirectory() as folder:
            source, output = self.copy(case, pathlib.Path(folder), "*mp_rank_03_optim_states.pt",
                                       self.add_to(name, "fp32"))
            out = self.same_as_deepspeed(source, output)
            path = f"zero/{name}/fp32.pt"
            self.assert_same(torch.load(out / path), load(self.ours(case) / path))


if __name__ == "__main__":
    tools.main()
