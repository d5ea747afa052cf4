"""A data-parallel DeepSpeed checkpoint, read with torch.load and the layout rules of DeepSpeed's own source:
the reference that tests hold the tools against.  Knows nothing of this project's library.

    native = NativeCheckpoint(folder_of_the_tag, groups=case["param_groups"])
    native.tensors()    {"name|fp32": tensor, "name|exp_avg": ...}, trained parameters in their full shapes
    native.scalars()    {name: {"step": ...}}
    native.hyper()      {name: {"lr": ..., "weight_decay": ...}}

differences() compares any two Python objects as pickle gives them back, types included.
"""
from __future__ import annotations

import collections
import math
import os
import pathlib
import re

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch  # noqa: E402

FRAGMENT = re.compile(r"(bf16_)?zero_pp_rank_(\d+)_mp_rank_00_?(optim|model)_states\.pt")


def round_up(number, factor):
    return -(-number // factor) * factor


def load(path):
    """Any contents of the file; its classes must be importable."""
    return torch.load(path, map_location="cpu", weights_only=False)


def numel(shape):
    return math.prod(shape)


def is_state(key, value):
    """A tensor like the parameter, which may have no dimensions at stage 0, and no count of steps."""
    return torch.is_tensor(value) and (value.dim() > 0 or key != "step")


def bits_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def equal_bits(a, b):
    """Two tensors of one shape and dtype, NaN and -0 included."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits_of(a), bits_of(b))


def attributes(thing):
    """The parts that pickle keeps of an object besides its contents; a tensor's own are recomputed by each
    writer."""
    if isinstance(thing, (torch.Tensor, type)) or callable(thing):
        return {}
    return getattr(thing, "__dict__", {})


def differences(a, b, ignore=(), where="") -> list:
    """Where two objects differ, as lines; `ignore` has keys of dictionaries that are not looked at."""
    if type(a) is not type(b):
        return [f"{where}: {type(a).__name__} {str(a)[:80]} is not {type(b).__name__} {str(b)[:80]}"]
    found = []
    if isinstance(a, torch.Tensor):
        if not equal_bits(a, b):
            found.append(f"{where}: tensor {a.dtype} {tuple(a.shape)} is not {b.dtype} {tuple(b.shape)}, bit for bit")
        if a.requires_grad != b.requires_grad:
            found.append(f"{where}: requires_grad is {a.requires_grad}, not {b.requires_grad}")
        return found
    if isinstance(a, dict):
        keys = [[key for key in one if key not in ignore] for one in (a, b)]
        if keys[0] != keys[1]:
            return [f"{where}: keys {keys[0]} are not {keys[1]}"]
        for key in keys[0]:
            found += differences(a[key], b[key], ignore, f"{where}[{key!r}]")
        if isinstance(a, collections.defaultdict) and a.default_factory is not b.default_factory:
            found.append(f"{where}: default_factory")
    elif isinstance(a, (list, tuple, collections.deque)):
        if len(a) != len(b):
            return [f"{where}: {len(a)} items are not {len(b)}"]
        for at, (x, y) in enumerate(zip(a, b)):
            found += differences(x, y, ignore, f"{where}[{at}]")
        if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
            found.append(f"{where}: maxlen")
    elif type(a).__module__ == "numpy":
        if (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes()):
            found.append(f"{where}: {a} is not {b}")
        return found
    elif not attributes(a) and not (a == b or (a != a and b != b)):
        found.append(f"{where}: {str(a)[:80]} is not {str(b)[:80]}")
    if attributes(a) or attributes(b):
        if not isinstance(a, (dict, list, tuple)) and type(a).__eq__ is not object.__eq__ and a != b:
            found.append(f"{where}: {a} is not {b}")
        found += differences(dict(attributes(a)), dict(attributes(b)), ignore, f"{where}.__dict__")
    return found


class NativeCheckpoint:
    """The files of one tag.  `groups`, of case.json, names the parameters of a stage-0 optimizer."""

    def __init__(self, folder, groups=()):
        self.folder = pathlib.Path(folder)
        ranks = {"optim": {}, "model": {}}
        for path in self.folder.iterdir():
            match = FRAGMENT.fullmatch(path.name)
            if match:
                ranks[match[3]][int(match[2])] = path
        for kind, paths in ranks.items():
            if sorted(paths) != list(range(len(paths))):
                raise AssertionError(f"{kind} files of ranks {sorted(paths)}")
        self.optim_paths = [ranks["optim"][rank] for rank in sorted(ranks["optim"])]
        self.model_paths = ([ranks["model"][rank] for rank in sorted(ranks["model"])]
                            or [self.folder / "mp_rank_00_model_states.pt"])
        self.files = [load(path) for path in self.optim_paths]
        self.models = [load(path) for path in self.model_paths]
        self.optims = [file["optimizer_state_dict"] for file in self.files]
        self.model = self.models[0]
        self.bf16_optimizer = bool(self.optims) and "zero_stage" not in self.optims[0]
        self.stage = int(self.optims[0].get("zero_stage", 1)) if self.optims else 0
        self.world = len(self.optims) or self.model["dp_world_size"]
        self.config = self.model["ds_config"]
        self.names_of_groups = [group["names"] for group in groups]

    def base(self, rank=0):
        """The torch optimizer's state dict; of elastic files, put together without hyper-parameters."""
        if self.stage == 0:
            optimizer = self.model["optimizer"]
            return optimizer.get("optimizer_state_dict", optimizer)
        base = self.optims[rank]["optimizer_state_dict" if self.stage == 3 else "base_optimizer_state"]
        if isinstance(base, list):
            return {"state": dict(enumerate(base)), "param_groups": None}
        return base

    @property
    def elastic(self):
        return self.stage in (1, 2) and isinstance(self.optims[0]["base_optimizer_state"], list)

    def layout(self):
        """For each entry of the base optimizer's state: its group, and the names and shapes in it in order."""
        if self.stage == 3:
            owner = {at: group for group, options in enumerate(self.base()["param_groups"])
                     for at in options["params"]}
            return [(owner[at], dict(shapes)) for at, shapes in enumerate(self.model["param_shapes"])]
        if self.stage:
            return [(at, dict(shapes)) for at, shapes in enumerate(self.model["param_shapes"])]
        shapes = {name: value.shape for name, value in self.model["module"].items()}
        groups = [{name: shapes[name] for name in names} for names in self.names_of_groups]
        if "fp32_groups_flat" in self.model["optimizer"]:
            return list(enumerate(groups))
        return [(group, {name: shape}) for group, members in enumerate(groups) for name, shape in members.items()]

    def alignments(self, group):
        """Zeros behind every parameter of a flat group of stages 1 and 2."""
        none = [[0] * len(shapes) for shapes in self.model["param_shapes"]]
        return self.optims[0].get("param_alignment_paddings", none)[group]

    def extents(self, group):
        """[(name, shape, start)] in the flat group, where its elements end, and a partition's size."""
        at, result = 0, []
        for (name, shape), gap in zip(self.model["param_shapes"][group].items(), self.alignments(group)):
            result.append((name, shape, at))
            at += numel(shape) + gap
        return result, at, round_up(at, 2 * self.world) // self.world

    def held_by(self, rank, group):
        """Names and shapes of the parameters of which a rank's partition has at least one element."""
        extents, _, size = self.extents(group)
        return {name: shape for name, shape, at in extents
                if max(at, rank * size) < min(at + numel(shape), (rank + 1) * size)}

    def whole_momentum(self, group):
        """Muon at stages 1 and 2 keeps the whole momentum of every parameter that a rank has a part of."""
        groups = self.base()["param_groups"] if self.stage in (1, 2) else None
        return bool(groups) and bool(groups[group].get("use_muon"))

    def tensors(self):
        if self.stage == 0:
            return self._tensors_of_stage0()
        return self._tensors_of_stage3() if self.stage == 3 else self._tensors_of_flat_groups()

    def _tensors_of_stage0(self):
        optimizer, result = self.model["optimizer"], {}
        module = self.model["module"]
        if "fp32_groups_flat" in optimizer:
            masters = optimizer["fp32_groups_flat"]
        elif "fp32_groups" in optimizer:
            masters = [master for group in optimizer["fp32_groups"] for master in group]
        else:
            masters = [module[name] for _, members in self.layout() for name in members]
        for (_, members), master, state in zip(self.layout(), masters, self.base()["state"].values(), strict=True):
            columns = {"fp32": master, **{key: value for key, value in state.items()
                                          if is_state(key, value)}}
            at = 0
            for name, shape in members.items():
                for key, value in columns.items():
                    result[f"{name}|{key}"] = value.detach().reshape(-1)[at:at + numel(shape)].reshape(shape)
                at += numel(shape)
        return result

    def _tensors_of_flat_groups(self):
        result = {}
        for group in range(len(self.model["param_shapes"])):
            extents, end, size = self.extents(group)
            columns = {"fp32": [optim["single_partition_of_fp32_groups"][group] for optim in self.optims]}
            states = [self.base(rank)["state"].get(group, {}) for rank in range(self.world)]
            for key in {key: None for state in states for key, value in state.items()
                        if is_state(key, value)}:
                parts = [state[key] for state in states]
                if key == "momentum_buffer" and self.whole_momentum(group):
                    result.update(self._whole_momenta(group, parts))
                else:
                    columns[key] = parts
            for key, parts in columns.items():
                flat = torch.cat([part.detach() for part in parts])
                if flat.numel() < end:
                    raise AssertionError(f"group {group}: {key} has {flat.numel()} elements of {end}")
                for name, shape, at in extents:
                    result[f"{name}|{key}"] = flat[at:at + numel(shape)].reshape(shape)
        return result

    def _whole_momenta(self, group, parts):
        result = {}
        for rank, part in enumerate(parts):
            shapes, at = self.held_by(rank, group), 0
            for name, shape in shapes.items():
                value = part.detach()[at:at + numel(shape)].reshape(shape)
                at += numel(shape)
                if not equal_bits(result.setdefault(f"{name}|momentum_buffer", value), value):
                    raise AssertionError(f"{name}: two ranks hold different momenta")
            if at != part.numel():
                raise AssertionError(f"group {group}, rank {rank}: {part.numel()} elements of momentum, not {at}")
        return result

    def _elements(self, rank, tensor, count):
        """A flat tensor of stage 3, or what is in the swap file that an optimizer on NVMe has in its place."""
        if tensor.numel() or not count:
            return tensor
        path = self.folder / "offloaded_tensors" / f"rank{rank:02d}" / f"{tensor.ds_id}.tensor.swp"
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)[:count]

    def _tensors_of_stage3(self):
        result = {}
        for entry, (_, members) in enumerate(self.layout()):
            columns = {"fp32": [optim["fp32_flat_groups"][entry] for optim in self.optims]}
            for key, value in self.base()["state"].get(entry, {}).items():
                if is_state(key, value):
                    columns[key] = [self.base(rank)["state"][entry][key] for rank in range(self.world)]
            count = sum(-(-numel(shape) // self.world) for shape in members.values())
            columns = {key: [self._elements(rank, part, count) for rank, part in enumerate(parts)]
                       for key, parts in columns.items()}
            at = 0
            for name, shape in members.items():
                part = -(-numel(shape) // self.world)
                for key, parts in columns.items():
                    pieces = torch.cat([piece.detach()[at:at + part] for piece in parts])
                    result[f"{name}|{key}"] = pieces[:numel(shape)].reshape(shape)
                at += part
            for key, parts in columns.items():
                counts = [piece.numel() for piece in parts]
                if set(counts) != {at}:
                    raise AssertionError(f"sub-group {entry}: {key} has {counts} elements, not {at}")
        return result

    def scalars(self, rank=0):
        """By parameter, the states that are not tensors with elements in a row: counts of steps."""
        state = self.base(rank)["state"]
        return {name: {key: value for key, value in state.get(entry, {}).items()
                       if not is_state(key, value)}
                for entry, (_, members) in enumerate(self.layout()) for name in members}

    def hyper(self):
        """By parameter, its group's options; None where the files do not hold them (elastic)."""
        groups = self.base()["param_groups"]
        if groups is None:
            return None
        return {name: {key: value for key, value in groups[group].items() if key != "params"}
                for group, members in self.layout() for name in members}

    def frozen(self):
        """Frozen parameters put together from the ranks' fragments; None where the files have none."""
        shapes, fragments = self.model.get("frozen_param_shapes"), [model.get("frozen_param_fragments")
                                                                    for model in self.models]
        if shapes is None or fragments[0] is None:
            return None
        if self.stage != 3:
            return dict(fragments[0])
        return {name: torch.cat([rank[name] for rank in fragments])[:numel(shape)].reshape(shape)
                for name, shape in shapes.items()}

    def scaler(self):
        """The loss scaler: its attributes, or what a stage-0 optimizer keeps of them."""
        if self.stage:
            return dict(vars(self.optims[0]["loss_scaler"])) if "loss_scaler" in self.optims[0] else {}
        return {key: self.model["optimizer"][key] for key in
                ("cur_scale", "cur_iter", "last_overflow_iter", "scale_factor", "scale_window")
                if key in self.model["optimizer"]}
