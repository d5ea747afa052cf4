"""Checkpoints of mixtures of experts: DeepSpeed's own layers, of stages 0 to 2, and AutoEP, of stage 3.

Rank D is expert-parallel rank D % ep and has the experts from (D % ep) * count / ep on; the optimizer cuts
them over dp / ep ranks.
"""
import collections
import math

from simulate_archive import BFloat16Storage, FloatStorage, Pickled, save
from simulate_checkpoint import Group, Writer, adam, fail, grouped
from simulate_models import EXPERT_PREFIX, modules_of, shapes_of

# split_params_into_different_moe_groups_for_optimizer: the most elements of a group of experts.
EXPERT_GROUP_SIZE = 178956971


class MoeWriter(Writer):
    def __init__(self, folder, model, *, dp, ep, stage):
        super().__init__(folder, model, dp=dp, stage=stage)
        self.ep = ep

    def prepare(self):
        if self.dp % self.ep != 0:
            fail(f"{self.dp} ranks cannot be groups of {self.ep} expert-parallel ranks")
        count = self.model.experts.count
        if count % self.ep != 0:
            fail(f"{count} experts cannot be on {self.ep} expert-parallel ranks")
        self.modules, self.aliases = modules_of(self.model), {}
        self.layers = [module for module in self.modules if module.expert]
        self.dense = shapes_of(self.modules)
        self.shapes = shapes_of(self.modules, count // self.ep)  # those of a rank
        self.groups = [*self.dense_groups(), *self.expert_groups()]

    def dense_groups(self):
        groups = grouped(self.dense, self.dp)
        for group, name in zip(groups, ("matrices", "vectors")):
            group.options = {"name": name, **group.options}
        return groups

    def expert_groups(self):
        """The tensors of the rank's own experts."""
        members = [{}]
        size = 0
        for name, shape in self.shapes.items():
            if name in self.dense:
                continue
            if size + math.prod(shape) > EXPERT_GROUP_SIZE:
                members.append({})
                size = 0
            members[-1][name] = shape
            size += math.prod(shape)
        return [Group(shapes, self.dp // self.ep, name=f"ep_size_{self.ep}", weight_decay=0.1, moe=True)
                for shapes in members]

    def shape_dict(self, shapes):
        """engine.py _save_moe_checkpoint clones the state by a function that makes tuples of torch.Size."""
        return collections.OrderedDict(shapes)

    def model_states(self, module, **entries):
        return super().model_states(module, **entries, num_experts=[self.model.experts.count] * len(self.layers),
                                    ds_autoep_layers=None)

    def write_files(self):
        self.write_experts(BFloat16Storage if self.stage else FloatStorage)
        super().write_files()

    def write_experts(self, kind):
        for i, module in enumerate(self.layers):
            for number in range(self.model.experts.count):
                shapes = {f"{module.path}{EXPERT_PREFIX}{number}.{name}": shape for name, shape in module.expert}
                save(self.tag / f"layer_{i}_expert_{number}_mp_rank_00_model_states.pt",
                     Pickled(dict(self.whole_tensors(shapes, kind))))

    def write_stage0(self):
        """Not cut into groups: one with all parameters. All expert-parallel ranks' tensors have the same shapes."""
        optimizer = adam(self.shapes.values(), [({"name": "dense", "weight_decay": 0.1}, range(len(self.shapes)))])
        self.save_model(Pickled(self.model_states(self.whole_tensors(self.dense, FloatStorage), optimizer=optimizer)))
        pickled = Pickled({"optimizer": optimizer})
        for ep_rank in range(self.ep):
            save(self.tag / f"expp_rank_{ep_rank}_mp_rank_00_optim_states.pt", pickled)

    def write_stage1_or_2(self):
        self.save_model(Pickled(self.model_states(self.whole_tensors(self.dense, BFloat16Storage),
                                                  param_shapes=[group.shapes for group in self.groups])))
        for dp_rank in range(self.dp):
            ranks = [(group, dp_rank // (self.dp // group.ranks)) for group in self.groups]
            self.save_optimizer(Pickled(self.optimizer_file(self.flat_optimizer(ranks))), dp_rank)


class AutoEpWriter(MoeWriter):
    """A layer's experts are fused into three parameters, w1, w2 and w3; a rank has some of their rows."""

    def prepare(self):
        super().prepare()
        self.dense = {name.replace("deepspeed_moe.gate.wg", "router.gate"): shape for name, shape in self.dense.items()}
        self.shapes = {}
        for name, shape in self.dense.items():
            self.shapes[name] = shape
            if name.endswith(".router.gate.weight"):
                self.shapes.update(self.fused(name.removesuffix("router.gate.weight"), self.local_count()))
        self.groups = [*self.dense_groups(), *self.expert_groups()]

    def local_count(self):
        return self.model.experts.count // self.ep

    def fused(self, prefix, count):
        width, inner = self.model.hidden, self.model.experts.inner
        return {f"{prefix}experts.w1": (count, inner, width), f"{prefix}experts.w2": (count, width, inner),
                f"{prefix}experts.w3": (count, inner, width)}

    def affine_map(self, shape):
        count, *expert = shape
        strides = [math.prod(expert), expert[1], 1]
        shard = [self.local_count(), *expert]
        return {"logical_shape": [count, *expert], "ranks": {
            rank: {"shard_shape": shard, "pieces": [
                {"shape": shard, "source": [rank * math.prod(shard), strides], "dest": [0, strides],
                 "locations": [rank]}]}
            for rank in range(self.ep)}}

    def autoep_layer(self, number, module, dp_rank):
        count, local, ep_rank = self.model.experts.count, self.local_count(), dp_rank % self.ep
        maps = {name: self.affine_map(shape) for name, shape in self.fused(f"{module.path}mlp.", count).items()}
        return {
            "moe_layer_id": number, "module_path": f"{module.path}mlp", "num_experts": count,
            "num_local_experts": local, "ep_size": self.ep,
            "expert_placement": {"version": 1, "num_experts": count, "ep_size": self.ep, "ranks": [
                {"rank": rank, "experts": list(range(rank * local, (rank + 1) * local))} for rank in range(self.ep)]},
            "affine_maps": {"version": 1, "params": maps}, "expert_key_prefix": f"{module.path}mlp.experts",
            "checkpoint_format": "zero3_partitioned", "checkpoint_format_version": 1,
            "ep_group_name": f"ep_size_{self.ep}", "ep_rank": ep_rank,
            "expert_data_parallel_rank": dp_rank // self.ep, "expert_data_parallel_world_size": self.dp // self.ep,
            "global_expert_start": ep_rank * local, "global_expert_end": (ep_rank + 1) * local}

    def model_states(self, module, *, dp_rank, **entries):
        layers = [self.autoep_layer(i, layer, dp_rank) for i, layer in enumerate(self.layers)]
        return {**super().model_states(module, **entries), "ds_autoep_layers": layers, "universal_checkpoint_info": {
            "universal_checkpoint_version": 0.4, "expert_parameter_patterns": [r".*\.experts\.w[123]$"],
            "ds_autoep_layers": layers}}

    def partition_group(self, number, group, dp_rank):
        """Over which ranks a sub-group is cut: all, or those with the same experts."""
        step = self.dp // group.ranks
        expert = "moe" in group.options
        return {"sub_group": number, "partition_count": group.ranks, "partition_rank": dp_rank // step,
                "partition_ranks": list(range(dp_rank % step, self.dp, step)),
                "families": ["autoep_expert" if expert else "replicated"],
                "group_names": [group.options["name"] if expert else "replicated"]}

    def write_files(self):
        sub_groups, indices = self.sub_groups()
        # The router has a second name, of the module that it replaced.
        module = self.placeholders(name for router in self.dense for name in dict.fromkeys(
            (router, router.replace("mlp.router.gate", "mlp.gate.gate"))))
        for dp_rank in range(self.dp):
            self.save_rank(Pickled(self.model_states(
                module, dp_rank=dp_rank, param_shapes=[group.shapes for group in sub_groups])), dp_rank)
            partitions = [self.partition_group(i, group, dp_rank) for i, group in enumerate(sub_groups)]
            self.save_optimizer(Pickled(self.optimizer_file(self.sub_group_optimizer(
                sub_groups, indices, ds_zero_partition_groups=partitions))), dp_rank)
