"""Checkpoints of DeepSpeed's own mixture of experts, of stages 0 to 2.

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
