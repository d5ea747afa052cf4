"""dsckpt.load_checkpoint: what a running engine holds after it, against one that has loaded reshard's files itself.

Every tensor, number and text of the engine, its optimizer and its scheduler, bit for bit. Again after two more
steps, with the losses. Real DeepSpeed on gloo. The ranks of one size are forked once, for all their loads.

DSCKPT_CASES restricts it to loads with this in their names; DSCKPT_LOAD_ONLY=1 makes no steps, for releases of DeepSpeed
that cannot with this torch. DSCKPT_NVME=1 builds what optimizers on NVMe need.
"""
from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import warnings
from unittest import mock

import torch

import live_load_cost
import make_checkpoints
import object_server
import resume_check
import tools
from make_checkpoints import STEPS_BEFORE, free_port, run_forked
from object_server import Store, serving

TIMEOUT = 300  # seconds; the machine may be busy with other things
NO_GRADS = {"data_types": None}
LOAD_ONLY = bool(os.environ.get("DSCKPT_LOAD_ONLY"))


@dataclasses.dataclass(frozen=True)
class Load:
    """One engine, and what it loads."""
    case: str
    world: int
    stage: int | None = None
    zero: dict = dataclasses.field(default_factory=dict)
    config: dict = dataclasses.field(default_factory=dict)
    # Or "universal", "dcp", "packed": made of it by the tools; "s3": in a bucket; "roots": each rank's files
    # are in a folder of their own.
    source: str = "native"
    steps_before: int = 0  # the engine has made some
    staged: bool = False  # all through the ring of buffers, as to a GPU
    options: dict = dataclasses.field(default_factory=dict)  # of load_checkpoint
    # reshard needs a checkpoint of the new run, and takes from it what is not a tensor.
    like: bool = False
    # The optimizer is on NVMe. There DeepSpeed loads only its own files, so the other engine has it in RAM.
    nvme: bool = False

    def resume(self):
        return resume_check.Resume(resume_check.case_folder(self.case), {"world": self.world}, stage=self.stage,
                                   zero=self.zero, config=self.config)

    def in_ram(self):
        return dataclasses.replace(self, zero={**self.zero, **make_checkpoints.OFFLOAD}) if self.nvme else self

    def __str__(self):
        others = {**self.zero, **self.config, **self.options}
        return " ".join([self.case, self.source, "->", f"{self.world} ranks",
                         *([] if self.stage is None else [f"stage {self.stage}"]),
                         *(f"{key}={value}" for key, value in others.items()),
                         *(["stepped"] if self.steps_before else []), *(["staged"] if self.staged else [])])


LOADS = [
    Load("z2_bf16_full_b120_w3", 1),
    Load("z3_fp32_full_b120_w2", 1, stage=2),
    Load("z2_fp32_amsgrad_full_b120_w4", 1, stage=3),
    Load("z1_bf16opt_full_b120_w4", 2),
    Load("z2_bf16_full_b120_w3", 2, steps_before=1),
    Load("z2_bf16_full_b120_w3", 2, stage=3, steps_before=1, staged=True),
    Load("z2_bf16_full_b120_w3", 2, stage=0),
    Load("z3_bf16_full_b120_w4", 2, steps_before=1),
    Load("z3_bf16_full_b120_w4", 2, stage=1, staged=True),
    Load("z3_fp16_full_b120_w3", 2, stage=1),
    Load("z2_bf16_roundrobin_full_w3", 2),
    Load("z2_bf16_offload_w2", 2),
    Load("z0_fp32_w2", 2),
    Load("z0_fp16_w2", 2, steps_before=1),
    Load("z2_bf16_full_b120_w3", 2, source="universal"),
    Load("z3_fp32_full_b120_w2", 2, source="universal"),
    Load("z2_bf16_full_b120_w3", 2, source="packed"),
    Load("z3_fp32_full_b120_w2", 2, source="s3"),
    Load("z2_bf16_full_b120_w3", 2, source="roots"),
    Load("z2_bf16_full_b120_w3", 2, source="dcp", like=True),
    Load("z3_fp32_full_b120_w2", 2, source="dcp", like=True),
    Load("z2_bf16_full_b120_w3", 2, options={"load_module_only": True}),
    Load("z2_bf16_full_b120_w3", 2, options={"load_optimizer_states": False}),
    Load("hf_trainer_llama_z3_bf16_w2", 2, options={"load_optimizer_states": False}),
    Load("z2_bf16_full_b120_w3", 2, options={"load_lr_scheduler_states": False}),
    Load("z3_fp32_full_b120_w2", 3, zero={"sub_group_size": 150}),
    Load("z2_bf16_roundrobin_full_w3", 3, zero={"parameter_alignment": True}),
    Load("z3_bf16_oddbuffers_w2", 3),
    Load("z0_bf16_full_w2", 3, stage=1, config=make_checkpoints.FP32_GRADS),
    Load("z1_bf16opt_full_b120_w4", 3, stage=3, config=NO_GRADS),
]


NVME_LOADS = [
    Load("z3_bf16_nvme_w2", 2, nvme=True),
    Load("z3_bf16_nvme_w2", 2, nvme=True, steps_before=1),
    Load("z3_bf16_nvme_w2", 2, nvme=True, options={"load_optimizer_states": False}),
    Load("z3_fp32_nvme_full_w3", 2, nvme=True),
    Load("z3_fp32_nvme_full_w3", 1, nvme=True, steps_before=1, staged=True),
]


def picture(value):
    """Something that is equal for equal values, bit for bit, and shows where others differ."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().view(-1)
        return [str(value.dtype), list(value.shape), flat.view(torch.uint8).numpy().tobytes().hex()]
    if isinstance(value, dict):
        return {str(key): picture(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [picture(each) for each in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value.hex()
    return {"class": type(value).__name__, **picture({key: each for key, each in vars(value).items()
                                                      if is_plain(each)})} if hasattr(value, "__dict__") else repr(value)


def is_plain(value):
    return value is None or isinstance(value, (bool, int, float, str))


# Keys of the client's state that describe how the files were made.
OF_THE_FILES = {"ds_config", "module", "optimizer", "ds_version"}
# Attributes that count calls, depend on addresses in memory, or say where files are.
OF_THE_PROCESS = {"training", "checkpoint_engine", "_curr_ckpt_path"}
OF_NVME = {"optimizer.swap_optimizer", "optimizer.optimizer_swapper"}


@contextlib.contextmanager
def in_memory(engine, flat, at):
    """Has a sub-group of an optimizer on NVMe in memory."""
    optimizer = engine.optimizer
    if not getattr(optimizer, "swap_optimizer", False) or not optimizer._swappable_optimizer_subgroup(at):
        yield
        return
    optimizer.optimizer_swapper.swap_in_optimizer_state(parameter=flat, async_parameter=None)
    yield
    optimizer.optimizer_swapper.swap_out_optimizer_state(parameter=flat, async_swap=False)
    flat.grad = None


def without_padding(engine, at, flat):
    """The elements of a sub-group of stage 3. Others are arbitrary once an optimizer on NVMe has stepped."""
    from dsckpt import _wrappers
    members = engine.optimizer.fp16_groups[at]
    parts = flat.split([p.partition_numel() for p in members])
    return torch.cat([part[:_wrappers.part_of(p)[1]] for p, part in zip(members, parts)])


def held(engine, client_state, padding=True):
    """All that an engine holds, by name."""
    from dsckpt import _engine, _wrappers
    wrapper = _engine.wrapper_of(engine)
    inner = wrapper.inner
    found = {}
    for name, tensor in _engine.state_of(engine).items():
        whole = getattr(tensor, "ds_tensor", tensor).data
        partitioned = hasattr(tensor, "ds_tensor") and not padding
        found[f"module {name}"] = picture(whole.view(-1)[:_wrappers.part_of(tensor)[1]] if partitioned else whole)
    for at, flat in enumerate(wrapper.flats()):
        with in_memory(engine, flat, at):
            for key, value in {"": flat, **inner.state.get(flat, {})}.items():
                if not padding and isinstance(value, torch.Tensor) and value.shape == flat.shape:
                    value = without_padding(engine, at, value.data)
                found[f"state {at} {key}" if key else f"master {at}"] = picture(value)
    for at, group in enumerate(inner.param_groups):
        found.update((f"group {at} {key}", picture(value)) for key, value in group.items() if key != "params")
    for what, holder in (("engine", engine), ("optimizer", engine.optimizer)):
        found.update((f"{what}.{key}", picture(value)) for key, value in vars(holder).items()
                     if is_plain(value) and key not in OF_THE_PROCESS)
    for key in ("loss_scaler", "loss_scale_config"):
        if hasattr(engine.optimizer, key):
            found[key] = picture(getattr(engine.optimizer, key))
    if engine.lr_scheduler is not None:
        found["lr_scheduler"] = picture(engine.lr_scheduler.state_dict())
    found.update((f"client_state {key}", picture(value)) for key, value in (client_state or {}).items()
                 if key not in OF_THE_FILES)
    return found


def unlike(live, native, tensors_only):
    if tensors_only:
        live, native = ({key: value for key, value in each.items() if key.startswith(("module ", "master ", "state "))}
                        for each in (live, native))
    lines = [f"{key} is only there {'live' if key in live else 'natively'}" for key in sorted(live.keys() ^ native.keys())]
    return lines + [f"{key}: {str(live[key])[:200]} and not {str(native[key])[:200]}"
                    for key in sorted(live.keys() & native.keys()) if live[key] != native[key]]


def start(load, rank, port):
    engine, step, _ = resume_check.start_data_parallel(load.resume(), load.resume().case(False), rank, port)
    for number in range(0 if LOAD_ONLY else load.steps_before):
        step(90 + number)
    return engine, step


def after(engine, step, client_state, padding=True):
    first = held(engine, client_state, padding)
    if LOAD_ONLY:
        return first
    losses = [step(STEPS_BEFORE + number).hex() for number in range(2)]
    return {**first, **{f"then {key}": value for key, value in held(engine, None, padding).items()}, "losses": losses}


def compare_worker(rank, world, port, work, reports):
    """Each of `work` is (load, its source, its tag, further arguments, what reshard made of it, tag there)."""
    import dsckpt
    from dsckpt import _storages
    os.chdir(reports)  # NVMe is a folder here
    for number, (load, source, tag, roots, reference, reference_tag) in enumerate(work):
        engine, step = start(load.in_ram(), rank, port)
        _, client_state = engine.load_checkpoint(str(reference), tag=reference_tag, **load.options)
        native = after(engine, step, client_state, not load.nvme)
        engine, step = start(load, rank, port)
        usual = _storages.Read.is_direct, _storages.RING_BYTES
        if load.staged:
            _storages.Read.is_direct, _storages.RING_BYTES = False, 96
        path, client_state = dsckpt.load_checkpoint(engine, source, tag=tag, roots=roots, **load.options)
        _storages.Read.is_direct, _storages.RING_BYTES = usual
        lines = unlike(after(engine, step, client_state, not load.nvme), native, load.like)
        if load.nvme:
            lines = [line for line in lines if not line.removeprefix("then ").startswith(tuple(OF_NVME))]
            if not any(pathlib.Path("nvme").rglob("exp_avg-*.swp")):
                lines.append("nothing is on NVMe")
        if load.source != "s3" and not os.path.exists(path):
            lines.append(f"{path} is not there")
        lines = resume_check.everywhere(lines)
        if rank == 0:
            (reports / f"{number}.json").write_text(json.dumps(lines))
        del engine, step
    torch.distributed.barrier()


def tool(*arguments):
    done = subprocess.run([resume_check.tool_folder() / arguments[0], *arguments[1:]], capture_output=True, text=True,
                          timeout=TIMEOUT)
    if done.returncode:
        raise AssertionError(f"{arguments[0]}: {done.stderr}")


def made(load, scratch):
    """The source of a load, and what reshard makes of that: (source, tag, roots, reference, tag there)."""
    resume, case = load.resume(), load.resume().case(False)
    source, tag = resume.folder / resume.facts["load_dir"], resume.facts["tag"]
    target = scratch / f"{load.case}-{load.source}"
    roots = []
    if load.source == "s3":
        shutil.copytree(source, scratch / "buckets" / target.name)
        source = f"s3://{target.name}"
    elif load.source == "roots":
        shutil.copytree(source, target)
        roots = [scratch / "root"]
        (roots[0] / tag).mkdir(parents=True)
        for shard in (target / tag).glob("*_rank_1_*"):
            shutil.move(shard, roots[0] / tag)
    elif load.source != "native":
        if not target.exists():
            command = {"universal": ["to-universal", "--input-folder", source, "--tag", tag, "--output-folder", target],
                       "dcp": ["to-dcp", source, target, "--tag", tag, "--dp", "2"],
                       "packed": ["ckpt-pack", "pack", source, target]}[load.source]
            tool(*command)
        source, tag = target, (tag if load.source == "packed" else None)
    output = scratch / f"reference-{abs(hash(str(load)))}"
    config = scratch / "ds_config.json"
    config.write_text(json.dumps(make_checkpoints.ds_config(case)))
    run = ["--like", resume.folder / resume.facts["load_dir"]] if load.like else ["--ds-config", config]
    more = [*(["--tag", tag] if tag else []), *(word for root in roots for word in ("--root", root))]
    tool("reshard", source, output, "--dp", str(case.world), *run, *more)
    return source, tag, roots, output, (output / "latest").read_text()


# --- weights alone


def weights_worker(rank, world, port, work, reports):
    """The masters are the weights' numbers exactly, the model's are these rounded, and all else is as it was."""
    import dsckpt
    from dsckpt import _engine
    from safetensors.torch import load_file
    os.chdir(reports)
    for number, (load, weights) in enumerate(work):
        engine, _ = start(load, rank, port)
        wanted, before = load_file(weights / "model.safetensors"), held(engine, None)
        path, client_state = dsckpt.load_checkpoint(engine, weights, load_module_strict=False)
        lines = [] if (path, client_state) == (os.fspath(weights), {}) else [f"{path}, {client_state}"]
        wrapper = _engine.wrapper_of(engine)
        pieces = [(*piece[:2], piece[2].clone()) for piece in wrapper.pieces()]
        for at in wrapper.swapped():
            with in_memory(engine, wrapper.flats()[at], at):
                pieces += [(*piece[:2], piece[2].clone()) for piece in wrapper.pieces_of(at)]
        names = {id(tensor): name for name, tensor in reversed(_engine.state_of(engine).items()) if name in wanted}
        for p, first, masters in pieces:
            expected = wanted[names[id(p)]].view(-1)[first:first + masters.numel()].float()
            if not torch.equal(masters, expected):
                lines.append(f"master of {names[id(p)]}")
        lines += [f"{name} of the model" for name, value in make_checkpoints.live_module(engine).items()
                  if name in wanted and not torch.equal(value, wanted[name].to(value.dtype))]
        lines += [key for key, value in held(engine, None).items()
                  if not key.startswith(("module ", "master ")) and value != before[key]]
        lines = resume_check.everywhere(lines if pieces or world > 2 else [*lines, "no masters"])
        if rank == 0:
            (reports / f"{number}.json").write_text(json.dumps(lines))
    torch.distributed.barrier()


WEIGHTS = [
    Load("z2_bf16_full_b120_w3", 2),
    Load("z3_bf16_full_b120_w4", 2, steps_before=1),
    Load("z1_bf16opt_full_b120_w4", 2),
    Load("z0_fp16_full_w2", 2),
    Load("z0_fp32_w2", 2),
    Load("z2_bf16_roundrobin_full_w3", 2),
]


# --- what is wrong


def raised(work, *arguments, **options):
    import dsckpt
    try:
        dsckpt.load_checkpoint(*arguments, **options)
    except dsckpt.Error as error:
        return [type(error).__name__, str(error), error.file, error.tensor]
    return [f"{work}: nothing was raised"]


def faults_worker(rank, world, port, folder, good, tag, report):
    """{what is wrong: what each rank raised}, and whether the engine was changed by it."""
    from dsckpt import _live
    from dsckpt._load_run import RunLoad
    load = Load("z2_bf16_full_b120_w3", world)
    engine, step = start(load, rank, port)
    before, found = held(engine, None), {}
    found["no engine"] = raised("no engine", engine.module, good, tag)
    found["wrong model"] = raised("wrong model", engine, resume_check.case_folder("z2_bf16_w4") / "ckpt")
    found["missing shard"] = raised("missing shard", engine, folder / "missing")
    found["nothing there"] = raised("nothing there", engine, folder / "no such folder")
    usual = RunLoad.prepare
    if rank == 1:  # as if the disk of its node had gone
        RunLoad.prepare = lambda self: (_ for _ in ()).throw(OSError("a disk is gone"))
    try:
        raised("one rank", engine, good, tag)
    except RuntimeError as error:
        found["one rank"] = [type(error).__name__, str(error), None, None]
    if rank == 1:  # as if its node had not this file, which rank 0 has open
        RunLoad.prepare = lambda self: (next((folder / "lost" / tag).glob("*_rank_1_*")).unlink(), usual(self))
    found["lost file"] = raised("lost file", engine, folder / "lost", tag)
    RunLoad.prepare = usual
    unchanged = held(engine, None) == before
    found["flipped bit"] = raised("flipped bit", engine, folder / "flipped", check=True)
    lines = []
    if not unchanged:
        lines.append("an engine was changed by what was refused")
    _live.load_checkpoint(engine, good, tag)
    native, native_step = start(load, rank, port)
    native.load_checkpoint(str(folder / "reference"), tag=tag)
    lines += unlike(after(engine, step, None), after(native, native_step, None), False)
    lines += patch_lines(engine, folder, tag)
    everyone = [None] * world
    torch.distributed.all_gather_object(everyone, found)
    lines = resume_check.everywhere(lines)
    if rank == 0:
        report.write_text(json.dumps([everyone, lines]))


def opened_worker(rank, world, port, load, source, tag, folder):
    """The files of `source` that the module has open before it ends: they are closed with the plan that read them."""
    import dsckpt
    from dsckpt._load_run import RunLoad
    engine, _ = start(load, rank, port)
    usual, opened = RunLoad.fill, set()

    def fill(self, check):
        usual(self, check)
        for descriptor in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink(f"/proc/self/fd/{descriptor}")
            except FileNotFoundError:
                continue
            if path.startswith(f"{source}{os.sep}"):
                opened.add(os.path.basename(path))

    RunLoad.fill = fill
    torch.distributed.barrier()
    dsckpt.load_checkpoint(engine, source if rank == 0 else folder / "told by rank 0", tag=tag)
    (folder / f"{rank}.json").write_text(json.dumps(sorted(opened)))
    torch.distributed.barrier()


def savers_of(rank, folder):
    """Which of 8 ranks saved an element at stage 3 that `rank` of 4 loads."""
    shapes = torch.load(folder / "zero_pp_rank_0_mp_rank_00_model_states.pt", weights_only=False)["param_shapes"]
    savers = set()
    for numel in (shape.numel() for group in shapes for shape in group.values()):
        own, theirs = -(-numel // 4), -(-numel // 8)
        end = min(numel, (rank + 1) * own)
        if rank * own < end:
            savers.update(range(rank * own // theirs, -(-end // theirs)))
    return sorted(savers)


def stuck_worker(rank, world, port, good, tag, folder):
    """Rank 1 fails in DeepSpeed's part while the others are in a collective there."""
    from dsckpt import _live, _patching
    engine, _ = start(Load("z2_bf16_full_b120_w3", world), rank, port)
    sys.stderr = (folder / f"{rank}.txt").open("w")

    def theirs(engine, path, **options):
        if rank == 1:
            time.sleep(1)
            raise ValueError("rank 1 has a bad day")
        torch.distributed.barrier()

    _patching.original = lambda engine: theirs
    try:
        _live.load_checkpoint(engine, good, tag)
    except RuntimeError as error:
        (folder / f"{rank}.txt").write_text(str(error))
    os._exit(0)


def patch_lines(engine, folder, tag):
    """The faults of the patch of DeepSpeed's load_checkpoint, and of loads that it leaves to DeepSpeed."""
    import dsckpt
    usual, lines = type(engine).load_checkpoint, []
    restore = dsckpt.patch_deepspeed(load=True)
    patched = type(engine).load_checkpoint
    dsckpt.patch_deepspeed(load=True)()
    if type(engine).load_checkpoint is not patched or patched is usual:
        lines.append("patched twice, or not at all")
    if engine.load_checkpoint(str(folder / "logs")) != (None, None):
        lines.append("without a checkpoint DeepSpeed does not answer")
    if engine.load_checkpoint(str(folder / "reference"), tag)[0] is None:
        lines.append("nothing was loaded")
    restore()
    if type(engine).load_checkpoint is not usual:
        lines.append("DeepSpeed's own was not put back")
    called = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        path, _ = dsckpt.load_checkpoint(engine, folder / "reference", tag,
                                         custom_load_fn=lambda src, dst: called.append(dst.load_state_dict(src)))
    if not called or path is None or not any(issubclass(each.category, dsckpt.DsckptWarning) for each in said):
        lines.append("custom_load_fn is not DeepSpeed's to call")
    return lines


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def place_in_masters(path):
    """An offset in the elements of the first masters of an optimizer-states file."""
    import zipfile
    value = torch.load(path, weights_only=False)["optimizer_state_dict"]["single_partition_of_fp32_groups"][0]
    raw = value.detach().contiguous().view(torch.uint8).numpy().tobytes()
    at = path.read_bytes().find(raw)
    if at < 0 or not zipfile.is_zipfile(path):
        raise AssertionError(f"{path} does not hold its masters")
    return at + 5


COST_LOADS = [(live_load_cost.Run(3, 2), live_load_cost.Run(3, 1), False),
              (live_load_cost.Run(3, 2), live_load_cost.Run(2, 2), False),
              (live_load_cost.Run(2, 1, tp=2, split=True), live_load_cost.Run(2, 1, split=True), False)]


class LiveLoadTest(unittest.TestCase):
    maxDiff = None

    def test_the_trainer_and_accelerate_resume_at_other_numbers_of_ranks(self):
        """With nothing changed in them but patch_deepspeed(load=True)."""
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            entries = resume_check.run_reshard_matrix(False, "hf_trainer_gpt2_z2.* 3 |hf_accelerate_llama_z3.* 1 ",
                                                      scratch / "work", scratch / "cases", live=True)
        self.assertEqual(len(entries), 2)
        self.assertEqual([entry["wrong"] for entry in entries], [[], []])

    def test_a_rank_reads_its_own_partitions_and_takes_little_memory(self):
        with tempfile.TemporaryDirectory() as scratch:
            found = list(live_load_cost.measured(16, pathlib.Path(scratch), COST_LOADS))
        for each in found:
            with self.subTest(load=f"{each['from']} -> {each['to']}"):
                self.assertLess(each["read_MB"], 1.2 * 12 * each["params"] / each["ranks"] / 1e6 + 8)
                self.assertLess(each["over_MiB"], 48)

    def test_a_rank_opens_only_the_files_that_have_its_bytes(self):
        """Eight ranks saved it, four load it: all but rank 0 need two optimizer files, and need not see the folder."""
        load = Load("z3_fp32_full_w8", 4)
        resume = load.resume()
        with tempfile.TemporaryDirectory() as scratch:
            scratch, port = pathlib.Path(scratch), free_port()
            error = run_forked(opened_worker, scratch / "logs",
                               [(rank, 4, port, load, resume.folder / resume.facts["load_dir"], resume.facts["tag"], scratch)
                                for rank in range(4)], timeout=TIMEOUT)
            self.assertIsNone(error)
            opened = [json.loads((scratch / f"{rank}.json").read_text()) for rank in range(4)]
        self.assertEqual(len(opened[0]), 16)
        for rank in (1, 2, 3):
            with self.subTest(rank=rank):
                names = [name for name in opened[rank] if name.endswith("_optim_states.pt")]
                self.assertEqual(names, [f"zero_pp_rank_{saver}_mp_rank_00_optim_states.pt"
                                         for saver in savers_of(rank, resume.folder / resume.facts["load_dir"] /
                                                                resume.facts["tag"])])
                self.assertLess(len(opened[rank]), 12)

    def test_weights_alone_become_the_masters(self):
        self.load_weights(WEIGHTS)

    def load_weights(self, loads):
        with tempfile.TemporaryDirectory() as scratch:
            scratch, work = pathlib.Path(scratch), []
            for load in loads:
                resume, weights = load.resume(), scratch / load.case
                tool("zero-to-fp32", resume.folder / resume.facts["load_dir"], weights, "--tag", resume.facts["tag"],
                     "--safe-serialization")
                work.append((load, weights))
            port = free_port()
            error = run_forked(weights_worker, scratch / "logs",
                               [(rank, 2, port, work, scratch) for rank in range(2)], timeout=TIMEOUT)
            self.assertIsNone(error)
            for number, (load, _) in enumerate(work):
                with self.subTest(load=str(load)):
                    self.assertEqual(json.loads((scratch / f"{number}.json").read_text()), [])

    def test_no_rank_waits_for_one_that_fails_in_deepspeeds_part(self):
        case = resume_check.case_folder("z2_bf16_full_b120_w3")
        facts = json.loads((case / "case.json").read_text())
        with tempfile.TemporaryDirectory() as scratch:
            scratch, port, began = pathlib.Path(scratch), free_port(), time.monotonic()
            run_forked(stuck_worker, scratch / "logs",
                       [(rank, 3, port, case / facts["load_dir"], facts["tag"], scratch) for rank in range(3)],
                       timeout=120)
            self.assertLess(time.monotonic() - began, 100)
            texts = [(scratch / f"{rank}.txt").read_text() for rank in range(3)]
        for text in texts:
            self.assertIn("ValueError: rank 1 has a bad day", text)
            self.assertIn("half filled", text)
        # The other of the two may hear it from the first, whose connections close.
        self.assertTrue(any("this rank waited for it" in texts[rank] for rank in (0, 2)), texts)
        self.assertNotIn("this rank waited for it", texts[1])

    def test_all_ranks_raise_what_one_finds_and_can_go_on(self):
        case = resume_check.case_folder("z2_bf16_full_b120_w3")
        facts = json.loads((case / "case.json").read_text())
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            for name in ("missing", "flipped", "lost"):
                shutil.copytree(case / facts["load_dir"], scratch / name)
            shards = [scratch / name / facts["tag"] / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
                      for name in ("missing", "flipped")]
            shards[0].unlink()
            flip(shards[1], place_in_masters(shards[1]))
            tool("reshard", case / facts["load_dir"], scratch / "reference", "--dp", "2", "--tag", facts["tag"])
            port, report = free_port(), scratch / "report.json"
            error = run_forked(faults_worker, scratch / "logs",
                               [(rank, 2, port, scratch, case / facts["load_dir"], facts["tag"], report)
                                for rank in range(2)], timeout=TIMEOUT)
            self.assertIsNone(error)
            everyone, lines = json.loads(report.read_text())
        self.assertEqual(lines, [])
        first = everyone[0]
        self.assertEqual(everyone, [first, first])
        self.assertEqual({what: said[0] for what, said in first.items()},
                         {"no engine": "UsageError", "wrong model": "InconsistentError",
                          "missing shard": "InconsistentError", "nothing there": "UsageError",
                          "one rank": "RuntimeError", "lost file": "IoError", "flipped bit": "CorruptError"})
        for what in ("wrong model", "missing shard", "nothing there", "one rank", "lost file"):
            self.assertIn("the engine is unchanged", first[what][1])
        self.assertIn("deepspeed.initialize()", first["no engine"][1])
        self.assertIsNotNone(first["wrong model"][3])  # the tensor
        self.assertIn("is the checkpoint of the new run's model?", first["wrong model"][1])
        self.assertIn("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", first["missing shard"][1])
        self.assertIn("rank 1: OSError: a disk is gone", first["one rank"][1])
        self.assertIn("all ranks must see the same files", first["lost file"][1])
        self.assertIn("half filled", first["flipped bit"][1])
        self.assertIn("bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", first["flipped bit"][2])

    def test_engines_hold_what_they_would_hold_of_reshards_files(self):
        self.compare(LOADS)

    def test_an_optimizer_on_nvme_holds_what_it_would_hold_in_ram(self):
        built = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], "async_io", "async_io.so")
        if not built.exists() and "DSCKPT_NVME" not in os.environ:
            self.skipTest("DSCKPT_NVME=1 builds DeepSpeed's async_io, with libaio-dev, which takes minutes")
        self.load_weights([Load("z3_fp32_nvme_full_w3", 2, nvme=True)])
        self.compare(NVME_LOADS)

    def compare(self, loads):
        chosen = [load for load in loads if os.environ.get("DSCKPT_CASES", "") in str(load)
                  and (load.source != "s3" or tools.reads_object_stores())]
        if not chosen:
            self.skipTest("no case selected")
        for world in sorted({load.world for load in chosen}):
            with tempfile.TemporaryDirectory() as scratch:
                scratch = pathlib.Path(scratch)
                loads = [load for load in chosen if load.world == world]
                (scratch / "buckets").mkdir()
                store = Store(scratch / "buckets")
                with serving(store) as endpoint, \
                     mock.patch.dict(os.environ, object_server.environment(endpoint)):
                    work = [(load, *made(load.in_ram(), scratch)) for load in loads]
                    store.requests.clear()
                    port = free_port()
                    error = run_forked(compare_worker, scratch / "logs",
                                       [(rank, world, port, work, scratch) for rank in range(world)], timeout=TIMEOUT)
                self.assertIsNone(error)
                listings = [target for _, target, _ in store.requests if "list-type=2" in target]
                self.assertEqual(len(listings), len(set(listings)), "not only rank 0 lists")
                for number, load in enumerate(loads):
                    with self.subTest(load=str(load)):
                        self.assertEqual(json.loads((scratch / f"{number}.json").read_text()), [])


if __name__ == "__main__":
    unittest.main()
