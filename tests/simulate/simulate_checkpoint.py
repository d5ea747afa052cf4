"""Checkpoints of data parallelism alone, of stages 0 to 3: lib/checkpoint/LAYOUTS.md says what is in them."""
import collections
import math
import pathlib

from simulate_archive import (BFloat16Storage, FloatStorage, FragmentAddress, LossScaler, Pickled, Size, Storage,
                              Tensor, ZeroStageEnum, save, with_attributes)
from simulate_models import is_tied, modules_of, shapes_of

STEPS = 1000
TAG = f"global_step{STEPS}"
DEEPSPEED_VERSION = "0.19.8"
SUB_GROUP_SIZE = 10**9  # DeepSpeed's default


def fail(message):
    raise SystemExit(f"simulate.py: error: {message}")


def padded(size, multiple):
    return -(-size // multiple) * multiple


def numel(shapes):
    return sum(map(math.prod, shapes.values()))


class Group:
    """Parameters that the optimizer has in one flat tensor, or cuts into sub-groups (stage 3)."""

    def __init__(self, shapes, ranks, **options):
        self.shapes, self.ranks = shapes, ranks
        self.options = options  # its part of the hyper-parameters


def is_matrix(shape):
    return len(shape) > 1


def grouped(shapes, ranks):
    """Matrices, then vectors, which have no weight decay."""
    return [Group({name: shape for name, shape in shapes.items() if is_matrix(shape) == matrices}, ranks,
                  weight_decay=weight_decay)
            for matrices, weight_decay in ((True, 0.1), (False, 0.0))]


def flat_partition(group):
    """The elements of a rank: stage_1_and_2.py pads to nccl_start_alignment_factor (2) times the ranks."""
    return padded(numel(group.shapes), 2 * group.ranks) // group.ranks


def slice_mapping(group, rank):
    """Where the group's parameters lie in this rank's partition."""
    partition = flat_partition(group)
    low, high = partition * rank, partition * (rank + 1)
    mapping, begin = collections.OrderedDict(), 0
    for name, shape in group.shapes.items():
        end = begin + math.prod(shape)
        start, stop = max(begin, low), min(end, high)
        if start < stop:
            mapping[name] = with_attributes(FragmentAddress(), numel=stop - start, start=start - low)
        begin = end
    return mapping


def adam_state(shape):
    return {"step": Tensor(Storage(1, values={0: STEPS}), ()), "exp_avg": Tensor(Storage(math.prod(shape)), shape),
            "exp_avg_sq": Tensor(Storage(math.prod(shape)), shape)}


def adam(shapes, groups):
    """torch's state_dict, for tensors of `shapes`. `groups`: (options, indices of its tensors)."""
    return {
        "state": {i: adam_state(shape) for i, shape in enumerate(shapes)},
        "param_groups": [{
            **options, "lr": 6e-05, "betas": (0.9, 0.95), "eps": 1e-08, "amsgrad": False, "maximize": False,
            "foreach": None, "capturable": False, "differentiable": False, "fused": None,
            "decoupled_weight_decay": True, "params": list(indices)}
            for options, indices in groups]}


def loss_scaler():
    return with_attributes(LossScaler(), cur_scale=1.0, dynamic=False)


class Writer:
    def __init__(self, folder, model, *, dp, stage):
        self.folder = pathlib.Path(folder)
        self.tag = self.folder / TAG
        self.model, self.dp, self.stage = model, dp, stage
        self.mp = {"pp_degree": 1, "tp_degree": 1}
        self.frozen = {}  # shapes of the parameters that are not trained

    def write(self):
        self.prepare()
        try:
            self.tag.mkdir(parents=True)
        except FileExistsError:
            fail(f"{self.tag}: exists already")
        self.write_files()
        (self.folder / "latest").write_text(TAG)

    def prepare(self):
        """Works out what there is to write; fails if that cannot be."""
        modules = modules_of(self.model)
        self.shapes = shapes_of(modules)
        self.aliases = {"lm_head.weight": next(iter(self.shapes))} if is_tied(modules) else {}
        self.groups = grouped(self.shapes, self.dp)

    def names(self):
        """The names of all parameters, in the order of the model."""
        return list(self.shapes)

    def write_files(self):
        (self.write_stage0, self.write_stage1_or_2, self.write_stage1_or_2, self.write_stage3)[self.stage]()

    def config(self, **more):
        return {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": self.stage}, **({"bf16": {"enabled": True}} if self.stage else {}), **more}

    def shape_dict(self, shapes):
        return collections.OrderedDict((name, Size(shape)) for name, shape in shapes.items())

    def model_states(self, module, *, optimizer=None, param_shapes=None, aliases=None, config=None, **client_state):
        keeps_frozen = self.stage >= 2
        return {
            "module": module,
            "buffer_names": [],
            "optimizer": optimizer,
            "param_shapes": param_shapes and list(map(self.shape_dict, param_shapes)),
            "frozen_param_shapes": self.shape_dict(self.frozen) if keeps_frozen else None,
            "shared_params": (aliases or {}) if self.stage else None,
            "frozen_param_fragments": self.frozen_fragments() if keeps_frozen else None,
            "lr_scheduler": None,
            "data_sampler": None,
            "random_ltd": None,
            "skipped_steps": 0,
            "global_steps": STEPS,
            "global_samples": STEPS * self.dp,
            "dp_world_size": self.dp,
            "mp_world_size": math.prod(self.mp.values()),
            "checkpoint_parallel_dimensions": self.mp,
            "ds_config": config or self.config(),
            "ds_version": DEEPSPEED_VERSION,
            **client_state}

    def frozen_fragments(self):
        """Whole copies at stage 2, at stage 3 a rank's pieces, all of which are equally long."""
        if self.stage == 3:
            shapes = {name: (-(-math.prod(shape) // self.dp),) for name, shape in self.frozen.items()}
        else:
            shapes = self.frozen
        return collections.OrderedDict((name, Tensor(Storage(math.prod(shape), BFloat16Storage), shape))
                                       for name, shape in shapes.items())

    def optimizer_file(self, states, config=None):
        return {"optimizer_state_dict": states, "ds_config": config or self.config(), "ds_version": DEEPSPEED_VERSION}

    def save_model(self, pickled, mp_rank=0):
        save(self.tag / f"mp_rank_{mp_rank:02d}_model_states.pt", pickled)

    def save_optimizer(self, pickled, dp_rank, mp_rank=0):
        save(self.tag / f"bf16_zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_optim_states.pt", pickled)

    def whole_tensors(self, shapes, kind):
        """Each in a storage of its own; tied names have one."""
        tensors = collections.OrderedDict((name, Tensor(Storage(math.prod(shape), kind), shape))
                                          for name, shape in shapes.items())
        tensors.update((alias, tensors[owner]) for alias, owner in self.aliases.items())
        return tensors

    # --- stage 0: a run in fp32. In 16 bit its masters are found by their values, which are all the same here.

    def write_stage0(self):
        indices, first = [], 0
        for group in self.groups:
            indices.append((group.options, range(first, first + len(group.shapes))))
            first += len(group.shapes)
        shapes = [shape for group in self.groups for shape in group.shapes.values()]
        self.save_model(Pickled(self.model_states(self.whole_tensors(self.shapes, FloatStorage),
                                                  optimizer=adam(shapes, indices))))

    # --- stages 1 and 2

    def write_stage1_or_2(self):
        self.save_model(Pickled(self.model_states(self.views_of_flat_weights(), aliases=self.aliases,
                                                  param_shapes=[group.shapes for group in self.groups])))
        for dp_rank in range(self.dp):
            states = self.flat_optimizer([(group, dp_rank) for group in self.groups])
            self.save_optimizer(Pickled(self.optimizer_file(states)), dp_rank)

    def views_of_flat_weights(self):
        tensors = {}
        for group in self.groups:
            flat, begin = Storage(flat_partition(group) * group.ranks, BFloat16Storage), 0
            for name, shape in group.shapes.items():
                tensors[name] = Tensor(flat, shape, offset=begin)
                begin += math.prod(shape)
        for name, shape in self.frozen.items():
            tensors[name] = Tensor(Storage(math.prod(shape), BFloat16Storage), shape)
        tensors.update((alias, tensors[owner]) for alias, owner in self.aliases.items())
        return collections.OrderedDict((name, tensors[name]) for name in [*self.names(), *self.aliases])

    def flat_optimizer(self, groups):
        """DeepSpeedZeroOptimizer's. `groups`: of each the rank, of those that the group is cut over."""
        sizes = [flat_partition(group) for group, _ in groups]
        paddings = [min(size, max(0, size * (rank + 1) - numel(group.shapes)))
                    for size, (group, rank) in zip(sizes, groups)]
        return {
            "loss_scaler": loss_scaler(),
            "dynamic_loss_scale": False,
            "overflow": False,
            "clip_grad": 1.0,
            "base_optimizer_state": adam([(size,) for size in sizes],
                                         [(group.options, [i]) for i, (group, _) in enumerate(groups)]),
            "single_partition_of_fp32_groups": [Tensor(Storage(size), (size - padding,), requires_grad=True)
                                                for size, padding in zip(sizes, paddings)],
            "zero_stage": ZeroStageEnum(self.stage),
            "group_paddings": paddings,
            "param_alignment_paddings": [[0] * len(group.shapes) for group, _ in groups],
            "partition_count": [group.ranks for group, _ in groups],
            "ds_version": DEEPSPEED_VERSION,
            "param_slice_mappings": [slice_mapping(group, rank) for group, rank in groups]}

    # --- stage 3

    def sub_groups(self):
        """The sub-groups, and for each group its options and the indices of its sub-groups.

        stage3.py: the parameter that reaches sub_group_size closes the sub-group.
        """
        result, indices = [], []
        for group in self.groups:
            first, current, size = len(result), {}, 0
            for name, shape in group.shapes.items():
                current[name] = shape
                size += -(-math.prod(shape) // group.ranks)
                if size >= SUB_GROUP_SIZE:
                    result.append(Group(current, group.ranks, **group.options))
                    current, size = {}, 0
            if current:
                result.append(Group(current, group.ranks, **group.options))
            indices.append((group.options, range(first, len(result))))
        return result, indices

    def placeholders(self, names):
        return collections.OrderedDict((name, Tensor(Storage(0, BFloat16Storage))) for name in names)

    def sub_group_optimizer(self, sub_groups, indices, **more):
        """The same on all ranks, whose partitions are equally long."""
        order = {name: i for i, name in enumerate(self.names())}
        sizes, flat = [], []
        for group in sub_groups:
            sizes.append(sum(-(-math.prod(shape) // group.ranks) for shape in group.shapes.values()))
            first, *_, last = [*group.shapes, *group.shapes]
            flat.append(Tensor(Storage(sizes[-1]), requires_grad=True, ds_id=f"{order[first]}_{order[last]}"))
        return {
            "zero_stage": ZeroStageEnum(3),
            "loss_scaler": loss_scaler(),
            "dynamic_loss_scale": False,
            "overflow": False,
            "partition_count": self.dp,
            **more,
            "optimizer_state_dict": adam([(size,) for size in sizes], indices),
            "fp32_flat_groups": flat}

    def save_rank(self, pickled, dp_rank):
        save(self.tag / f"zero_pp_rank_{dp_rank}_mp_rank_00_model_states.pt", pickled)

    def write_stage3(self):
        sub_groups, indices = self.sub_groups()
        module = self.placeholders([*self.names(), *self.aliases])
        # Only rank 0 tells which names are tied.
        for dp_ranks, tied in ((range(1), self.aliases), (range(1, self.dp), {})):
            pickled = Pickled(self.model_states(module, param_shapes=[group.shapes for group in sub_groups],
                                                aliases=tied))
            for dp_rank in dp_ranks:
                self.save_rank(pickled, dp_rank)
        pickled = Pickled(self.optimizer_file(self.sub_group_optimizer(sub_groups, indices)))
        for dp_rank in range(self.dp):
            self.save_optimizer(pickled, dp_rank)
