"""The places of an engine's tensors, by the class that DeepSpeed wraps around its optimizer. Imports torch."""
import contextlib

import torch

from ._errors import UnsupportedError


class Wrapper:
    """A class that DeepSpeed wraps around an optimizer, as a rank holds it.

    base: the key of the optimizer's own state_dict in the rank's file. None: the file has nothing else.
    masters: the key of the fp32 parameters, and the attribute that has them.
    groups: the attribute with the parameters of each group, in the optimizer's order.
    weights: the attributes with the flat 16-bit parameters of each group, and with the ranks' parts of them; None
        if ranks have no parts.
    """

    base: "str | None" = None
    masters, groups = ("", ""), ""
    weights: "tuple[str, str] | None" = None

    def __init__(self, engine):
        self.engine, self.optimizer = engine, engine.optimizer
        self.inner = engine.optimizer if self.base is None else engine.optimizer.optimizer

    def param_groups(self):
        return [list(group) for group in getattr(self.optimizer, self.groups)]

    def flats(self):
        """The tensors that the optimizer updates, in the order of its state_dict."""
        return [flat for flat in getattr(self.optimizer, self.masters[1]) if flat is not None]

    def master_places(self, saved):
        """(list, index in it, the engine's tensor) of the fp32 parameters in the rank's file"""
        live = getattr(self.optimizer, self.masters[1])
        _same_length(saved[self.masters[0]], live, "tensors of fp32 parameters")
        for at, flat in enumerate(live):
            if flat is not None:
                yield saved[self.masters[0]], at, flat.data

    def pieces(self):
        """(parameter, its first element on this rank, this rank's masters from there on) of trained parameters"""
        for params, flat, parts, masters, group in self.partitions():
            begin = torch.distributed.get_rank(group) * masters.numel()
            for p in params:
                offset = offset_in(p, flat)
                low, high = max(begin, offset), min(begin + masters.numel(), offset + p.numel())
                if low < high:
                    yield p, low - offset, masters.data[low - begin:high - begin]

    def swapped(self):
        """The elements of those of flats() that are on NVMe, by their numbers. They have none in memory."""
        return {}

    def set_weights(self):
        """Sets the 16-bit parameters from the masters, except those of partitions() and swapped()."""

    def partitions(self):
        """(parameters, their flat tensor, the ranks' parts of it, this rank's masters, process group) of each group"""
        if self.weights is None:
            return []
        flat, parts = (getattr(self.optimizer, name) for name in self.weights)
        return list(zip(self.param_groups(), flat, parts, self.flats(), self.optimizer.real_dp_process_group))


class Plain(Wrapper):
    """No wrapper: stage 0 in fp32. The parameters are their own masters."""

    def param_groups(self):
        return [list(group["params"]) for group in self.optimizer.param_groups]

    def flats(self):
        return [p for group in self.param_groups() for p in group]

    def master_places(self, saved):
        return iter(())

    def pieces(self):
        return ((p, 0, p.data.view(-1)) for p in self.flats() if p.numel())


class Fp16Optimizer(Wrapper):
    base, masters, groups = "optimizer_state_dict", ("fp32_groups_flat", "fp32_groups_flat"), "fp16_groups"

    def pieces(self):
        for params, flat in zip(self.param_groups(), self.optimizer.fp32_groups_flat):
            if flat is not None:
                _same_length(range(sum(p.numel() for p in params)), flat, "elements of a group")
                parts = flat.data.split([p.numel() for p in params])
                yield from ((p, 0, part) for p, part in zip(params, parts))

    def set_weights(self):
        for p, _, masters in self.pieces():
            p.data.copy_(masters.view(p.shape))


class Fp16UnfusedOptimizer(Wrapper):
    base, masters, groups = "optimizer_state_dict", ("fp32_groups", "fp32_groups"), "fp16_groups"

    def flats(self):
        return [master for group in self.optimizer.fp32_groups for master in group]

    def pieces(self):
        params = [p for group in self.param_groups() for p in group]
        return ((p, 0, master.data.view(-1)) for p, master in zip(params, self.flats()))

    set_weights = Fp16Optimizer.set_weights

    def master_places(self, saved):
        _same_length(saved["fp32_groups"], self.optimizer.fp32_groups, "groups of fp32 parameters")
        for group, live in zip(saved["fp32_groups"], self.optimizer.fp32_groups):
            _same_length(group, live, "fp32 parameters in a group")
            yield from ((group, at, master.data) for at, master in enumerate(live))


class Zero12Optimizer(Wrapper):
    base = "base_optimizer_state"
    masters = ("single_partition_of_fp32_groups", "single_partition_of_fp32_groups")
    groups, weights = "bit16_groups", ("bit16_groups_flat", "parallel_partitioned_bit16_groups")


class Bf16Optimizer(Zero12Optimizer):
    masters = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition")
    groups, weights = "bf16_groups", ("bf16_groups_flat", "bf16_partitioned_groups")


class Zero3Optimizer(Wrapper):
    base, masters = "optimizer_state_dict", ("fp32_flat_groups", "fp32_partitioned_groups_flat")
    groups = "fp16_groups"  # sub-groups

    def param_groups(self):
        groups = [[] for _ in self.inner.param_groups]
        for number, members in enumerate(self.optimizer.fp16_groups):
            groups[self.optimizer.sub_group_to_group_id[number]] += members
        return groups

    def pieces(self):
        return (piece for at in range(len(self.flats())) if at not in self.swapped() for piece in self.pieces_of(at))

    def pieces_of(self, at):
        """The pieces of a sub-group, whose masters are in memory."""
        members, flat = self.optimizer.fp16_groups[at], self.flats()[at]
        for p, part in zip(members, flat.data.split([p.partition_numel() for p in members])):
            first, count = part_of(p)
            yield p, first, part[:count]

    def swapped(self):
        sizes = self.optimizer.fp16_partitioned_groups_flat_numel if self.optimizer.swap_optimizer else []
        return {at: int(size) for at, size in enumerate(sizes) if self.optimizer._swappable_optimizer_subgroup(at)}

    @contextlib.contextmanager
    def swapped_in(self, at):
        """Has a sub-group of swapped() in memory, with its states. Afterwards sets its 16-bit parameters."""
        optimizer, swapper, flat = self.optimizer, self.optimizer.optimizer_swapper, self.flats()[at]
        swapper.swap_in_optimizer_state(parameter=flat, async_parameter=None)
        try:
            yield flat
            optimizer._reassign_or_swap_out_partitioned_parameters(at)
        finally:
            swapper.swap_out_optimizer_state(parameter=flat, async_swap=False)
            flat.grad = None

    def restore_masters(self):
        """Does the same as stage 3's _restore_from_bit16_weights, except for what is on NVMe."""
        swapped = self.swapped()
        for at, (flat, weights) in enumerate(zip(self.flats(), self.optimizer.fp16_partitioned_groups_flat)):
            if at not in swapped:
                flat.data.copy_(weights.data)

    def round_masters(self, at):
        """Makes the masters of a sub-group in memory the 16-bit parameters that they give."""
        flat = self.flats()[at]
        flat.data.copy_(flat.data.to(self.optimizer.dtype))

    def set_weights(self):
        """Does the same as stage 3's own load."""
        optimizer = self.optimizer
        for flat, masters, parts in zip(optimizer.fp16_partitioned_groups_flat, self.flats(),
                                        optimizer.fp16_partitioned_groups):
            if masters.numel():
                flat.data.copy_(masters.data)
            for part, piece in zip(parts, optimizer.unflatten(flat, parts)):
                part.data = piece.data
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].partition(optimizer.persistent_parameters)


WRAPPERS = {
    "": Plain,
    "FP16_Optimizer": Fp16Optimizer,
    "FP16_UnfusedOptimizer": Fp16UnfusedOptimizer,
    "DeepSpeedZeroOptimizer": Zero12Optimizer,
    "BF16_Optimizer": Bf16Optimizer,
    "DeepSpeedZeroOptimizer_Stage3": Zero3Optimizer,
}


def part_of(param):
    """This rank's first element of a parameter that stage 3 has partitioned, and the number of its elements."""
    size = param.partition_numel()
    first = torch.distributed.get_rank(param.ds_process_group) * size
    return first, max(0, min(size, param.ds_numel - first))


def offset_in(param, flat):
    """The offset of a parameter in the flat tensor of its group. Raises UnsupportedError if it is not in there."""
    offset, rest = divmod(param.data_ptr() - flat.data_ptr(), flat.element_size())
    inside = not rest and param.dtype == flat.dtype and 0 <= offset <= flat.numel() - param.numel()
    if param.numel() and not inside:
        raise UnsupportedError("the engine has parameters elsewhere than in the flat tensors of their groups")
    return max(0, min(offset, flat.numel()))


def _same_length(saved, live, what):
    if len(saved) != len(live):
        raise UnsupportedError(f"the plan has {len(saved)} {what}, the engine {len(live)}")
