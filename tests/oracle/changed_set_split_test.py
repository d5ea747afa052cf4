"""Another set of trained parameters of split models against DeepSpeed.

Engines of which some parameters are frozen load what reshard --freeze made of a checkpoint that trained all of them.
Masters, states and weights are the saved ones, bit for bit, and the files list what the engine's own do. The first loss
is the uninterrupted run's, the next those of engines that load a universal checkpoint of the source. The engines then
save, and --unfreeze takes that back, but for pipelines: former states are there again, those of the others are zero.
DSCKPT_CASES, a regular expression, restricts it to some cases.
"""
import dataclasses
import json
import os
import pathlib
import re
import tempfile
import unittest

import torch

import make_model_parallel
import oracle
import tools
from make_checkpoints import DEFAULT_SEED, STEPS_AFTER, STEPS_BEFORE, free_port, live_module, run_forked

TESTDATA = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "model_parallel"
NOTHING = "^$"
# Case, and the frozen parameters.
ROWS = [
    ("autotp2_dp1_z0_fp32", r"mlp\.down_proj"),  # stage 0 has no names: shapes tell what is trained
    ("autotp2_dp2_z1_fp32", r"self_attn\.q_proj|input_layernorm"),
    ("autotp2_dp2_z2_bf16", r"self_attn\.|lm_head"),
    ("autotp2_dp2_z3_bf16", r"mlp\.|layers\.1\.input_layernorm"),
    ("mpu_tp2_dp2_z2_bf16", r"layernorm|dense_h_to_4h"),
    ("pp2_dp2_z1_bf16", r"^(1\.norm|4\.|2\.fc2)"),
    ("pp2_tp2_dp2_z1_fp32", r"layernorm"),
    ("moe_ep2_dp4_z2_fp32", r"^(embed|mid)\."),
    ("autoep2_dp4_z3_fp32", r"self_attn\.|embed_tokens"),
]
FACTS = ("param_shapes", "frozen_param_shapes", "buffer_names", "shared_params")


def load(path):
    return torch.load(path, map_location="cpu", weights_only=False)


def start_frozen(rank, world, port, case, pattern):
    """An engine of other weights. The parameters that `pattern` fits are frozen."""
    import deepspeed
    usual = deepspeed.initialize

    def initialize(*arguments, model, **options):
        for name, parameter in model.named_parameters():
            if re.search(pattern, name):
                parameter.requires_grad_(False)
        if case.stage == 0 and "optimizer" not in options:  # ZeRO leaves them out by itself
            options["model_parameters"] = [each for each in model.parameters() if each.requires_grad]
        return usual(*arguments, model=model, **options)

    deepspeed.initialize = initialize
    try:
        return make_model_parallel.start(rank, world, port, case, DEFAULT_SEED, DEFAULT_SEED + 1)
    finally:
        deepspeed.initialize = usual


def set_untrained(run, case, saved):
    """Gives a rank the values that DeepSpeed's universal loader leaves alone."""
    place = f"|pp{run.pp}|tp{run.tp}|"
    saved = {key.split("|")[0]: value for key, value in saved.items() if place in key}
    tensors = [*run.engine.module.named_parameters(), *run.engine.module.named_buffers()]
    with torch.no_grad():
        for name, tensor in tensors:
            if not tensor.requires_grad and name in saved:
                tensor.copy_(saved[name])


def worker(rank, world, port, case, folder, name, pattern, universal):
    """Loads folder/NAME, and writes what the engine holds and its next losses."""
    from safetensors.torch import load_file, save_file
    run = start_frozen(rank, world, port, case, pattern)
    if universal:
        set_untrained(run, case, load_file(TESTDATA / case.name / "expected" / "module.safetensors"))
    path, _ = run.engine.load_checkpoint(str(folder / name), tag="universal" if universal else None)
    if path is None:
        raise AssertionError("DeepSpeed loaded nothing")
    live = make_model_parallel.gathered_by_place(run, make_model_parallel.live_masters(run.engine, case.stage))
    module = make_model_parallel.gathered_by_place(run, live_module(run.engine))
    if not universal:
        run.engine.save_checkpoint(str(folder / f"{name}_saved"), tag="global_step3", client_state=run.client_state)
    losses = [run.step(STEPS_BEFORE + number) for number in range(STEPS_AFTER)]
    if rank == 0:
        save_file(make_model_parallel.whole(live), folder / f"{name}.live")
        save_file(make_model_parallel.whole(module), folder / f"{name}.module")
        (folder / f"{name}.losses").write_text(json.dumps(losses))
    torch.distributed.barrier()


class ChangedSetSplitTest(unittest.TestCase):

    def run_tool(self, *arguments):
        done = tools.run_tool(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def train(self, case, folder, name, pattern, universal=False):
        port = free_port()
        if universal:
            case = dataclasses.replace(case, config={**case.config, "checkpoint": {"load_universal": True}})
        error = run_forked(worker, folder / f"{name}.logs",
                           [(rank, case.world, port, case, folder, name, pattern, universal)
                            for rank in range(case.world)])
        self.assertFalse(error, f"{name}: {error}")
        return (oracle.load_file(folder / f"{name}.live"), oracle.load_file(folder / f"{name}.module"),
                json.loads((folder / f"{name}.losses").read_text()))

    def test_what_is_frozen_and_comes_back(self):
        by_name = {case.name: case for case in make_model_parallel.CASES}
        for name, pattern in ROWS:
            if not re.search(os.environ.get("DSCKPT_CASES", ""), name):
                continue
            with self.subTest(case=name), tempfile.TemporaryDirectory() as scratch:
                self.check(by_name[name], pattern, pathlib.Path(scratch))

    def check(self, case, pattern, folder):
        saved = oracle.Case(TESTDATA / case.name)
        live, module = saved.expected("live"), saved.expected("module")
        is_frozen = lambda key: re.search(pattern, key.split("|")[0])  # noqa: E731
        self.assertTrue(any(map(is_frozen, live)))
        self.run_tool("reshard", saved.load_dir, folder / "frozen", "--dp", case.dp, "--freeze", pattern)
        held, weights, losses = self.train(case, folder, "frozen", pattern)
        self.same(held, {key: value for key, value in live.items() if not is_frozen(key)})
        stale = make_model_parallel.stale_copies(module)
        self.same({key: value for key, value in weights.items() if key not in stale},
                  {key: value for key, value in module.items() if key not in stale})
        uninterrupted = saved.facts["losses_after_save"]
        self.assertAlmostEqual(losses[0], uninterrupted[0], delta=1e-6)
        self.assertNotEqual(losses[1], uninterrupted[1])
        self.files(case, folder, "frozen")
        # DeepSpeed's universal loader is right at these; Megatron's ranks have copies that drift apart.
        if case.stage in (1, 2) and case.ep == 1 and "megatron" not in case.kind:
            self.run_tool("to-universal", saved.load_dir, folder / "all" / "universal")
            *_, expected = self.train(case, folder, "all", pattern, universal=True)
            self.assertEqual(losses, expected)
        if "pipeline" in case.kind:
            return
        self.run_tool("reshard", folder / "frozen_saved", folder / "back", "--dp", case.dp, "--unfreeze", pattern)
        held, weights, _ = self.train(case, folder, "back", NOTHING)
        self.same({key: value for key, value in weights.items() if key not in stale},
                  {key: value for key, value in module.items() if key not in stale})
        for key, value in held.items():
            name, state, place = key.split("|", 2)
            wanted = live[key]
            if is_frozen(key):
                wanted = module[f"{name}|{place}"].float() if state == "fp32" else torch.zeros_like(wanted)
            self.assertTrue(torch.equal(value.view(wanted.shape), wanted), key)
        missing = [key for key in live.keys() - held.keys() if not (is_frozen(key) and case.stage == 0)]
        self.assertEqual(missing, [])
        self.files(case, folder, "back")

    def same(self, found, wanted):
        self.assertEqual(sorted(found), sorted(wanted))
        for key, value in wanted.items():
            self.assertTrue(torch.equal(found[key], value), key)

    def files(self, case, folder, name):
        """A rank's file lists the same as the one that an engine of this set saves."""
        own = folder / f"{name}_saved" / "global_step3"
        for path in sorted(own.glob("*_model_states.pt")):
            if path.name.startswith("layer_"):
                continue
            mine, made = load(path), load(folder / name / "global_step3" / path.name)
            for key in FACTS:
                a, b = made[key], mine[key]
                if key == "param_shapes" and b:
                    a, b = ([list(group.items()) for group in each if group] for each in (a, b))
                self.assertEqual(a, b, f"{name} {path.name} {key}")
        self.assertEqual({path.name for path in (folder / name / "global_step3").iterdir()},
                         {path.name for path in own.iterdir()})

    def test_what_is_not_changed_is_refused_before_anything_is_written(self):
        for name, options, said in (
                ("autotp2_dp2_z1_fp32", ["--add", TESTDATA / "autotp2_dp2_z1_fp32" / "expected" / "live.safetensors"],
                 "nothing tells how they share what is new"),
                ("autotp2_dp2_z1_fp32", ["--resize-vocab", 64], "nothing tells how they share what is new"),
                ("pp2_dp2_z1_bf16", ["--drop", r"^1\.norm"], "whose files of layers --drop leaves as they are"),
                ("pp2_dp2_z1_bf16", ["--unfreeze", "norm"], "--unfreeze gives them to no stage"),
                ("moe_ep2_dp4_z2_fp32", ["--freeze", "moe_a"], "is an expert's parameter"),
                ("autoep2_dp4_z3_fp32", ["--freeze", "experts"], "is an expert's parameter")):
            with self.subTest(case=name, options=options), tempfile.TemporaryDirectory() as scratch:
                out = pathlib.Path(scratch, "out")
                done = tools.run_tool("reshard", oracle.Case(TESTDATA / name).load_dir, out, "--dp", 2, *options)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertIn(said, done.stderr)
                self.assertFalse(out.exists())

    def test_dropped_parameters_are_in_no_file(self):
        saved = oracle.Case(TESTDATA / "autotp2_dp2_z2_bf16")
        with tempfile.TemporaryDirectory() as scratch:
            out = pathlib.Path(scratch, "out")
            self.run_tool("reshard", saved.load_dir, out, "--dp", 2, "--drop", r"layers\.1\.")
            for path in saved.tag_folder.glob("*_model_states.pt"):
                old, new = load(path), load(out / saved.facts["tag"] / path.name)
                kept = [name for name in old["module"] if "layers.1." not in name]
                self.assertEqual(sorted(new["module"]), sorted(kept))
                for name in kept:
                    self.assertTrue(torch.equal(new["module"][name], old["module"][name]), name)
                self.assertEqual([[name for name in group if "layers.1." not in name] for group in old["param_shapes"]],
                                 [list(group) for group in new["param_shapes"]])


if __name__ == "__main__":
    unittest.main()
