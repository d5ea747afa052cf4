"""dsckpt.load_checkpoint into engines whose models are split: over tensor-parallel ranks, pipeline stages or experts.

As in live_load_test.py, an engine must hold, bit for bit, what one holds that has loaded reshard's files itself. Both
then make two steps. A refusal must leave all ranks with the same reason, and the engine as it was.

DSCKPT_CASES restricts it to cases with this in their names; DSCKPT_ALL=1 makes all loads, not only a few of each kind.
"""
from __future__ import annotations

import json
import os
import pathlib
import pickle
import shutil
import tempfile
import unittest
import warnings

import torch
from safetensors.torch import load_file, save_file

import make_model_parallel
import oracle
import resume_check
from live_load_test import TIMEOUT, after, held, raised, tool, unlike
from make_checkpoints import free_port, run_forked
from model_parallel_truth import universal_info
from regrid_test import words

ALL = bool(os.environ.get("DSCKPT_ALL"))

# A case, and the differences between its engine and the one that saved it: ranks, type of elements, ZeRO stage. Its
# source may be "packed": then DeepSpeed itself would find no files. And the options of the load.
LOADS = [
    ("autotp2_dp1_z1_bf16", {"dp": 2}),
    ("autotp2_dp2_z2_bf16", {"dp": 1}),
    ("autotp2_dp2_z3_bf16", {"dp": 1}),
    ("mpu_tp2_dp2_z2_bf16", {"dp": 1}),
    ("autotp2_dp2_z1_fp32", {"tp": 1}),
    ("autotp2_dp2_z3_bf16", {"tp": 1}),
    ("mpu_tp2_dp2_z2_bf16", {"tp": 4, "dp": 1}),
    ("mpu_tp2_dp2_z1_fp32", {"tp": 3, "dp": 1}),
    ("autotp2_dp1_z0_fp32", {"tp": 1}),
    ("moe_ep2_dp2_z1_bf16", {"dp": 4}),
    ("moe_ep2_dp4_z1_fp32", {"dp": 2, "ep": 1}, "packed"),
    ("moe_ep2_dp2_z1_bf16", {"dtype": "fp32", "stage": 2}),
    ("moe_ep2_tp2_dp2_z2_bf16", {"dp": 1, "ep": 1}),
    ("moe_ep2_tp2_dp2_z2_bf16", {"tp": 1}),
    ("moe_ep2_dp2_z0_fp32", {"dp": 4}),
    ("moe_ep2_dp2_z1_bf16", {"dp": 4, "ep": 4, "stage": 0, "model": "marked"}),
    ("autoep2_dp2_z0_fp32", {"ep": 1}, "packed"),
    ("autoep2_dp2_z0_fp32", {"stage": 3}),
    ("autoep2_dp4_z3_fp32", {"dp": 2, "stage": 1}),
    ("autoep2_dp2_z1_bf16", {"ep": 1}, "packed"),
    ("autoep2_dp4_z3_fp32", {"dp": 2}),
    ("autoep2_dp4_z3_fp32", {"dp": 2}, "native", {"load_optimizer_states": False}),
    ("pp2_dp2_z1_bf16", {"dp": 1}, "packed"),
    ("pp2_dp2_z1_fp32", {"dtype": "bf16"}),
    ("pp2_dp2_z1_bf16", {"pp": 3, "dp": 1}),
    ("pp2_dp2_z1_bf16", {"partition": "type:layernorm"}),
    ("pp2_dp1_z0_fp32", {"dp": 2}),
    ("pp2_tp2_dp2_z1_fp32", {"tp": 1}),
]
MORE = [
    ("moe_ep1_dp2_z1_bf16", {"dp": 1}),
    ("moe_ep2_dp2_z1_bf16", {"dp": 3, "ep": 1}),
    ("moe_ep2_dp2_z0_fp32", {"ep": 1, "dp": 3}),
    ("moe_ep2_dp2_z0_fp32", {}, "packed"),
    ("autoep2_dp2_z0_fp32", {"dp": 4, "ep": 4}),
    ("autoep2_dp2_z0_fp32", {"stage": 1}),
    ("autoep2_dp2_z1_bf16", {"stage": 0}),
    ("autoep2_dp2_z1_bf16", {"dtype": "fp32", "stage": 0}),
    ("autoep2_dp4_z2_fp32", {"stage": 3, "dp": 2}),
    ("autoep2_dp4_z3_fp32", {"stage": 0, "dp": 2, "ep": 1}),
    ("autoep2_dp4_z3_fp32", {"stage": 2, "dtype": "bf16"}),
    ("moe_ep2_dp4_z2_fp32", {"dp": 2}),
    ("moe_ep2_dp4_z2_fp32", {"ep": 4}),
    ("autoep2_dp4_z2_fp32", {"ep": 4}),
    ("moe_ep2_tp2_dp2_z2_bf16", {"stage": 1}),
    ("moe_ep2_tp2_dp2_z2_bf16", {"tp": 4, "dp": 1, "ep": 1}),
    ("moe_ep2_tp2_dp2_z2_bf16", {"tp": 1, "dtype": "fp32", "stage": 1}),
    ("moe_ep2_tp2_dp2_z2_bf16", {"tp": 1, "ep": 1}, "packed"),
    ("autoep2_dp4_z3_fp32", {"dp": 2}, "native", {"load_module_only": True}),
    ("pp2_tp2_dp2_z1_fp32", {"dp": 1}),
    ("pp2_tp2_dp1_z1_bf16", {"tp": 1, "pp": 1}),
    ("autotp2_dp1_z0_fp32", {"dp": 2}),
    ("autotp2_dp1_z0_fp32", {"tp": 1, "dp": 2, "stage": 2}),
    ("pp2_dp1_z0_fp32", {"pp": 1, "dp": 2}),
    ("pp2_dp1_z0_fp32", {"pp": 3, "stage": 1}),
    ("pp2_dp1_z0_fp32", {"partition": "type:layernorm"}),
    ("autotp2_dp1_z1_bf16", {"tp": 1, "stage": 0}),
    ("autotp2_dp1_z0_fp32", {"stage": 1}),
    ("pp2_dp1_z0_fp32", {"stage": 1, "dp": 2}),
    ("pp2_dp2_z1_fp32", {"stage": 0}),
    ("autoep2_dp4_z3_fp32", {"ep": 4}),
    ("pp2_dp2_z1_bf16opt", {"dp": 3}),
    ("pp2_dp1_z1_fp16", {"dp": 2}),
    ("pp2_dp2_parwrite_z1_fp32", {"dp": 1}),
    ("pp2_dp2_noinfo_z1_fp32", {"dp": 1}),
    ("pp3_dp1_z1_fp32", {"dp": 2}),
    ("pp3_dp1_z1_fp32", {"pp": 1}),
    ("moe_ep2_dp2_z1_bf16", {"ep": 1}, "native", {"load_optimizer_states": False}),
    ("pp2_dp2_z1_bf16", {"dp": 1}, "native", {"load_module_only": True}),
    ("pp2_tp2_dp1_z1_bf16", {"pp": 1}),
]


def start(resume, rank, port):
    engine, step, _ = resume_check.start_model_parallel(resume, resume.case(False), rank, port)
    return engine, step


def compare_worker(rank, world, port, resume, source, tag, reference, report, options):
    import dsckpt
    engine, step = start(resume, rank, port)
    _, client_state = engine.load_checkpoint(str(reference), **options)
    native = after(engine, step, client_state)
    engine, step = start(resume, rank, port)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*DeepSpeed's own load_checkpoint", dsckpt.DsckptWarning)
        _, client_state = dsckpt.load_checkpoint(engine, source, tag=tag, **options)
    lines = resume_check.everywhere(unlike(after(engine, step, client_state), native, False))
    if rank == 0:
        report.write_text(json.dumps(lines))
    torch.distributed.barrier()


def load_of(case, size, source="native", options=()):
    """A row of a table as arguments of compared()."""
    return oracle.Case(resume_check.case_folder(case)), size, source, dict(options)


def compared(saved, size, source, options, scratch):
    """Why a rank failed, or None; and what the engines hold otherwise than by DeepSpeed's load of reshard's files."""
    resume, old = resume_check.Resume(saved.folder, size), saved.facts["topology"]
    new, port, report = {**old, **size}, free_port(), scratch / "report.json"
    other_grid = (new["tp"], new["pp"]) != (old["tp"], old["pp"])
    grid = words(saved, new["tp"], new["pp"], new["dp"], []) if other_grid else ["--dp", new["dp"]]
    grid += ["--stages", "uniform"] if old["pp"] != new["pp"] > 1 else []
    grid += ["--stages", "0,6"] if "partition" in size else []
    grid += ["--ep", new["ep"]] if new["ep"] != old["ep"] else []
    grid += ["--stage", size["stage"]] if "stage" in size else []
    if "dtype" in size:
        (scratch / "ds_config.json").write_text(json.dumps(make_model_parallel.ds_config(resume.case(False))))
        grid += ["--ds-config", scratch / "ds_config.json"]
    tool("reshard", saved.load_dir, scratch / "reference", *map(str, grid))
    world, load_dir = new["pp"] * new["tp"] * new["dp"], saved.load_dir
    if source == "packed":
        load_dir = scratch / "packed"
        tool("ckpt-pack", "pack", saved.load_dir, load_dir)
    error = run_forked(compare_worker, scratch / "logs",
                       [(rank, world, port, resume, load_dir, resume.facts["tag"], scratch / "reference", report,
                         options)
                        for rank in range(world)], timeout=TIMEOUT)
    return error, None if error else json.loads(report.read_text())


# --- values without files of ranks, which the rules of the engine's model cut

# As LOADS; the source is the whole model in a folder of torch.distributed.checkpoint, or its weights alone.
DCP, WEIGHTS_ALONE = "to-dcp", "zero-to-fp32"
VALUES = [
    ("autotp2_dp2_z1_fp32", {}, DCP),
    ("autotp2_dp2_z2_bf16", {"dp": 1}, DCP),
    ("autotp2_dp2_z3_bf16", {"dp": 1}, WEIGHTS_ALONE),
    ("autotp2_dp1_z1_uneven", {}, DCP),
    ("autotp2_dp2_z2_fused", {"dp": 1}, WEIGHTS_ALONE),
    ("autotp2_dp1_z1_bigcode", {}, DCP),
    ("mpu_tp2_dp2_z2_bf16", {"dp": 1}, DCP),
    ("mpu_tp2_dp1_z1_bf16", {}, WEIGHTS_ALONE),
    ("pp2_dp2_z1_fp32", {"dp": 1}, DCP),
    ("pp2_dp1_z1_bf16", {}, WEIGHTS_ALONE),
    ("pp2_tp2_dp2_z1_fp32", {"dp": 1}, DCP),
]


def values_worker(rank, world, port, resume, source, reference, report, kinds, rules):
    import dsckpt
    engine, _ = start(resume, rank, port)
    engine.load_checkpoint(str(reference))
    native = held(engine, None)
    engine, _ = start(resume, rank, port)
    if rules and not hasattr(engine.module, "universal_checkpoint_info"):  # Megatron's modules have this method
        engine.module.universal_checkpoint_info = lambda: rules
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*DeepSpeed's own load_checkpoint", dsckpt.DsckptWarning)
        dsckpt.load_checkpoint(engine, source)
    live = held(engine, None)
    native, live = ({key: value for key, value in each.items() if key.startswith(kinds)} for each in (native, live))
    lines = resume_check.everywhere(unlike(live, native, False))
    if rank == 0:
        report.write_text(json.dumps(lines if native else ["nothing was compared"]))
    torch.distributed.barrier()


# --- plans of weights alone, without engines

def planned(folder, tensors, tp=2, mp_rank=0, stages=(), rules=None):
    """The state_dict that a rank of an engine with `tensors`, shapes by name, would load."""
    import dsckpt_native
    from dsckpt._storages import Storages
    facts = {"dp": 1, "stages": list(stages), "tp": tp, "mp_rank": mp_rank, "stage": 1, "precision": "fp32",
             "wrapper": "DeepSpeedZeroOptimizer", "ds_version": "0.19.8", "ds_config": "{}", "round_robin": False,
             "parameter_alignment": False, "sub_group_size": 0, "strict": True,
             "universal_info": pickle.dumps(rules, protocol=2) if rules else b""}  # fmt: skip
    reader = dsckpt_native.Reader(dsckpt_native.FarFolders(), os.fsencode(folder), "", "", [], [], True, [], tp)
    entries = [(name, "trainable", "float32", list(shape), "", 0) for name, shape in tensors.items()]
    plan = dsckpt_native.Resume.of_weights(reader, facts, entries, [], pickle.dumps([], protocol=2))
    [(text, storages)] = plan.files()
    records, loaded = Storages(storages), {}
    for name, tensor in records.unpickle(text).items():
        key = records.key_of(tensor)
        memory = records.allocate(key)
        plan.open_files([(0, key)])
        plan.gather_into([(0, key, 0, memory.numel(), memory.data_ptr())], False, None)
        loaded[name] = torch.as_strided(memory, tensor.shape, tensor.stride(), tensor.storage_offset())
    return loaded


class PlansOfWeightsTest(unittest.TestCase):

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def save(self, weights):
        torch.save(weights, self.folder / "pytorch_model.bin")

    def test_the_engine_cuts_two_names_of_one_tensor_differently(self):
        embedding = torch.arange(32.0).view(8, 4)
        self.save({"embed.weight": embedding, "lm_head.weight": embedding})
        rules = {"universal_checkpoint_version": 0.2, "tp_replicated_parameter_patterns": [r"embed\.weight"],
                 "parameter_with_row_parallelism_patterns": [r"lm_head\.weight"]}
        for rank in range(2):
            found = planned(self.folder, {"embed.weight": (8, 4), "lm_head.weight": (8, 2)}, mp_rank=rank, rules=rules)
            self.assertTrue(torch.equal(found["embed.weight"], embedding))
            self.assertTrue(torch.equal(found["lm_head.weight"], embedding[:, 2 * rank:2 * rank + 2]))

    def test_a_stage_sees_what_it_does_not_have_itself(self):
        """All but the layers of other stages. A strict load then refuses it."""
        self.save({name: torch.ones(2) for name in ("0.w", "0.more", "1.w", "2.w", "tied_modules.a.w", "junk.w")})
        for rank, own, names in [(0, "0.w", {"0.w", "0.more", "1.w", "junk.w"}), (1, "2.w", {"2.w", "junk.w"})]:
            found = planned(self.folder, {own: (2,)}, tp=1, mp_rank=rank, stages=[0, 2])
            self.assertEqual(set(found), names)

    def test_the_widths_of_sub_parameters_tell_the_ranks_parts(self):
        whole = torch.arange(12.0).view(6, 2)
        self.save({"qkv.weight": whole})
        rules = {"universal_checkpoint_version": 0.5,
                 "parameter_with_sub_params": [{"patterns": [r"qkv\.weight"], "shape": ((4, 2), 2), "partition_dim": 0}],
                 "sub_param_shard_widths": {r"qkv\.weight": [[3, 1], [1, 1]]}}
        for rank, rows in enumerate([[0, 1, 2, 4], [3, 5]]):
            found = planned(self.folder, {"qkv.weight": (len(rows), 2)}, mp_rank=rank, rules=rules)
            self.assertTrue(torch.equal(found["qkv.weight"], whole[rows]))


# --- what is left to DeepSpeed

# An engine's case, and why DeepSpeed itself loads it.
LEFT = [("autoep2_autotp2_z1_fp32", "AutoEP is folded with tensor parallelism, which is not resharded")]


def left_worker(rank, world, port, resume, source, tag, report):
    """The warnings of a load, and the faults of what the engine then holds."""
    import dsckpt
    engine, step = start(resume, rank, port)
    engine.load_checkpoint(str(source), tag=tag)
    native = after(engine, step, None)
    engine, step = start(resume, rank, port)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", dsckpt.DsckptWarning)
        dsckpt.load_checkpoint(engine, source, tag=tag)
    texts = [str(each.message) for each in said if each.category is dsckpt.DsckptWarning]
    lines = resume_check.everywhere(unlike(after(engine, step, None), native, False))
    if rank == 0:
        report.write_text(json.dumps([texts, lines]))
    torch.distributed.barrier()


# --- what is refused

# The engine: its case, ranks and experts in a layer. The source: a case, or made of the engine's own. The error: its
# class and a part of its text.
OWN, LOST_EXPERT, LOST_TENSOR = "its own", "without an expert's file", "without an expert's tensor"
OTHER_LAYER, FOREIGN, WEIGHTS = "with a tensor more in a layer", "of torch.distributed.checkpoint", "weights alone"
MORE_WEIGHTS = "weights alone with a tensor more in a layer"
REFUSED = [
    ("moe_ep2_dp2_z1_bf16", {}, 8, OWN, "InconsistentError", "gate.wg.weight: has shape [8, 8]"),
    ("moe_ep2_dp2_z1_bf16", {}, 4, LOST_EXPERT, "InconsistentError", "layer_1_expert_2_mp_rank_00_model_states.pt"),
    ("moe_ep2_dp2_z1_bf16", {}, 4, LOST_TENSOR, "InconsistentError", "0.up.bias is in the engine, but in no file"),
    ("moe_ep2_dp2_z1_bf16", {}, 4, WEIGHTS, "UnsupportedError", "an engine with experts"),
    ("moe_ep2_dp2_z1_bf16", {}, 4, FOREIGN, "UnsupportedError", "an engine with experts"),
    ("pp2_dp1_z1_bf16", {}, 0, OTHER_LAYER, "InconsistentError", "1.more: is not in the engine"),
    ("pp2_dp1_z1_bf16", {}, 0, MORE_WEIGHTS, "InconsistentError", "1.more is in the weights, but is not in the engine"),
    ("autotp2_dp1_z1_bf16", {}, 0, "autoep2_dp2_z1_bf16", "UnsupportedError", "has experts of AutoEP"),
    ("mpu_tp2_dp1_z1_bf16", {}, 0, FOREIGN, "UnsupportedError", "has no rule that says how 2 tensor-parallel ranks"),
    ("mpu_tp2_dp1_z1_bf16", {}, 0, WEIGHTS, "UnsupportedError", "has no rule that says how 2 tensor-parallel ranks"),
    ("autotp2_dp1_z1_bf16", {}, 0, "pp2_dp1_z1_bf16", "InconsistentError", "of a pipeline, and the engine is none"),
]


def refused_worker(rank, world, port, resume, experts, work, report):
    """[what each rank raised] for each of the sources, and whether one changed the engine."""
    make_model_parallel.EXPERTS = experts
    engine, _ = start(resume, rank, port)
    before, found = held(engine, None), []
    for source, tag in work:
        found.append(raised(str(source), engine, source, tag))
    changed = resume_check.everywhere(unlike(held(engine, None), before, False))
    everyone = [None] * world
    torch.distributed.all_gather_object(everyone, found)
    if rank == 0:
        report.write_text(json.dumps([everyone, changed]))
    torch.distributed.barrier()


def refused_source(case, what, scratch):
    """(path, tag) of what an engine of `case` refuses."""
    if what not in (OWN, LOST_EXPERT, LOST_TENSOR, OTHER_LAYER, FOREIGN, WEIGHTS, MORE_WEIGHTS):
        case = oracle.Case(resume_check.case_folder(what))
    target, tag = scratch / what, case.facts["tag"]
    if what == FOREIGN:
        tool("to-dcp", case.load_dir, target, "--dp", "2")
        return target, None
    if what in (WEIGHTS, MORE_WEIGHTS):
        tool("zero-to-fp32", case.load_dir, target, "--tag", tag, "--safe-serialization")
        if what == MORE_WEIGHTS:
            save_file({**load_file(target / "model.safetensors"), "1.more": torch.ones(3)}, target / "model.safetensors")
        return target, None
    if what not in (LOST_EXPERT, LOST_TENSOR, OTHER_LAYER):
        return case.load_dir, tag
    shutil.copytree(case.load_dir, target)
    expert = target / tag / "layer_1_expert_2_mp_rank_00_model_states.pt"
    if what == LOST_EXPERT:
        expert.unlink()
    elif what == LOST_TENSOR:
        torch.save({key: value for key, value in torch.load(expert).items() if not key.endswith("up.bias")}, expert)
    else:
        layer = target / tag / "layer_01-model_states.pt"
        torch.save({**torch.load(layer), "more": torch.ones(3)}, layer)
    return target, tag


class LiveSplitTest(unittest.TestCase):
    maxDiff = None

    def test_ranks_of_a_split_model_hold_what_they_would_hold_of_reshards_files(self):
        for row in LOADS + (MORE if ALL else []):
            if os.environ.get("DSCKPT_CASES", "") not in row[0]:
                continue
            with self.subTest(load=row), tempfile.TemporaryDirectory() as scratch:
                error, lines = compared(*load_of(*row), pathlib.Path(scratch))
                self.assertIsNone(error)
                self.assertEqual(lines, [])

    def test_pipelines_with_experts_hold_what_they_would_hold_of_reshards_files(self):
        for case in make_model_parallel.MORE_CASES:
            with tempfile.TemporaryDirectory() as scratch:
                scratch = pathlib.Path(scratch)
                error, lines = compared(resume_check.saved_now(case, scratch / case.name), {"dp": 1, "ep": 1}, "native", {}, scratch)
                self.assertIsNone(error)
                self.assertEqual(lines, [])

    def test_ranks_hold_their_parts_of_values_without_files_of_ranks(self):
        """The same as after DeepSpeed's own load of what reshard makes of them, like a checkpoint of the run."""
        for name, size, maker in VALUES:
            if os.environ.get("DSCKPT_CASES", "") not in name:
                continue
            with self.subTest(case=name, of=maker), tempfile.TemporaryDirectory() as scratch:
                scratch, case = pathlib.Path(scratch), oracle.Case(resume_check.case_folder(name))
                resume = resume_check.Resume(case.folder, size)
                options = ["--dp", "2"] if maker == DCP else ["--safe-serialization"]
                tool(maker, case.load_dir, scratch / "values", *options)
                tool("reshard", scratch / "values", scratch / "reference", "--dp",
                     str({**case.facts["topology"], **size}["dp"]), "--like", case.load_dir)
                kinds = ("module ", "master ", "state ") if maker == DCP else ("module ", "master ")
                port, report, world = free_port(), scratch / "report.json", resume.case(False).world
                error = run_forked(values_worker, scratch / "logs",
                                   [(rank, world, port, resume, scratch / "values", scratch / "reference", report,
                                     kinds, universal_info(case))
                                    for rank in range(world)], timeout=TIMEOUT)
                self.assertIsNone(error)
                self.assertEqual(json.loads(report.read_text()), [])

    def test_engines_that_are_left_to_deepspeed_say_why(self):
        for name, why in LEFT:
            case = oracle.Case(resume_check.case_folder(name))
            resume = resume_check.Resume(case.folder, {})
            with self.subTest(case=name), tempfile.TemporaryDirectory() as scratch:
                port, report, world = free_port(), pathlib.Path(scratch, "report.json"), resume.case(False).world
                error = run_forked(left_worker, pathlib.Path(scratch, "logs"),
                                   [(rank, world, port, resume, case.load_dir, case.facts["tag"], report)
                                    for rank in range(world)], timeout=TIMEOUT)
                self.assertIsNone(error)
                texts, lines = json.loads(report.read_text())
                self.assertEqual(lines, [])
                self.assertEqual(texts, [f"{why}: DeepSpeed's own load_checkpoint is called"])

    def test_all_ranks_refuse_what_reshard_would_and_keep_what_they_have(self):
        engines = {}
        for case, size, experts, *refusal in REFUSED:
            if os.environ.get("DSCKPT_CASES", "") in case:
                engines.setdefault((case, tuple(size.items()), experts), []).append(refusal)
        for (name, size, experts), refusals in engines.items():
            with tempfile.TemporaryDirectory() as scratch:
                scratch, case = pathlib.Path(scratch), oracle.Case(resume_check.case_folder(name))
                resume = resume_check.Resume(case.folder, dict(size))
                work = [refused_source(case, what, scratch) for what, _, _ in refusals]
                port, report, world = free_port(), scratch / "report.json", resume.case(False).world
                error = run_forked(refused_worker, scratch / "logs",
                                   [(rank, world, port, resume, experts, work, report) for rank in range(world)],
                                   timeout=TIMEOUT)
                self.assertIsNone(error)
                everyone, changed = json.loads(report.read_text())
            self.assertEqual(changed, [])
            for number, (what, kind, part) in enumerate(refusals):
                with self.subTest(engine=name, what=what):
                    said = [found[number] for found in everyone]
                    self.assertEqual(said, [said[0]] * len(said))
                    self.assertEqual(said[0][0], kind, said[0])
                    for words_of_it in (part, "the engine is unchanged"):
                        self.assertIn(words_of_it, " ".join(map(str, said[0])))


if __name__ == "__main__":
    unittest.main()
