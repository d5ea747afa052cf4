"""Checkpoints of a pipeline of tensor-parallel stages, as Megatron-DeepSpeed trains BLOOM: BF16_Optimizer."""
import collections
import math
import re

from simulate_archive import BFloat16Storage, Pickled, Storage, Tensor, save
from simulate_checkpoint import (DEEPSPEED_VERSION, STEPS, Writer, adam, fail, flat_partition, grouped, numel, padded,
                                 slice_mapping)
from simulate_models import AVERAGED, COLUMN, REPLICATED, ROW, VOCABULARY, is_tied, modules_of

VOCAB_MULTIPLE = 128  # Megatron pads the vocabulary to this many rows a rank
TIED_LAYER = 1  # Megatron's layer 0 has no parameters
CUT_DIM = {COLUMN: 0, VOCABULARY: 0, ROW: 1}


def slice_shape(name, shape, how, tp):
    dim = CUT_DIM.get(how)
    if dim is None:
        return shape
    if shape[dim] % tp != 0:
        fail(f"{name}: {shape[dim]} cannot be cut into {tp} slices")
    return (*shape[:dim], shape[dim] // tp, *shape[dim + 1:])


class PipelineWriter(Writer):
    """With universal_checkpoint_info.

    The first element of each slice of a parameter that tensor-parallel ranks cut is their rank + 1. Were all
    slices equal, readers would have to compare them to the end before they believe that it is cut.
    """

    def __init__(self, folder, model, *, pp, tp, dp):
        super().__init__(folder, model, dp=dp, stage=1)
        self.pp, self.tp = pp, tp
        self.mp = {"pp_degree": pp, "tp_degree": tp}

    def prepare(self):
        self.vocab = padded(self.model.vocab, VOCAB_MULTIPLE * self.tp)
        self.modules = modules_of(self.model, self.vocab)
        total = sum(module.counts for module in self.modules)
        if total < self.pp:
            fail(f"{total} modules cannot be {self.pp} pipeline stages")
        self.stages, self.cut, before = [{} for _ in range(self.pp)], set(), 0
        for module in self.modules:
            stage = self.stages[before * self.pp // total]
            for name, shape, how in module.params:
                name = module.pipeline_prefix + name
                stage[name] = slice_shape(name, shape, how, self.tp)
                if how in CUT_DIM:
                    self.cut.add(name)
            before += module.counts

    def write_files(self):
        self.write_layers()
        config = self.config(data_types={"grad_accum_dtype": "fp32"})
        info = self.universal_checkpoint_info()
        for pp_rank, shapes in enumerate(self.stages):
            groups = grouped(shapes, self.dp)
            pickled = Pickled(self.model_states(None, param_shapes=[group.shapes for group in groups], config=config,
                                                universal_checkpoint_info=info, iteration=STEPS))
            for tp_rank in range(self.tp):
                mp_rank = pp_rank * self.tp + tp_rank
                self.save_model(pickled, mp_rank)
                for dp_rank in range(self.dp):
                    states = self.optimizer_states(groups, tp_rank, dp_rank)
                    self.save_optimizer(Pickled(self.optimizer_file(states, config)), dp_rank, mp_rank)

    def write_layers(self):
        """16-bit weights. A tied layer has one file, under the number of its first place."""
        for prefix, module in {module.pipeline_prefix: module for module in self.modules}.items():
            layer = TIED_LAYER if prefix.startswith("tied_modules.") else int(prefix.removesuffix("."))
            for tp_rank in range(self.tp):
                tensors = collections.OrderedDict()
                for name, shape, how in module.params:
                    shape = slice_shape(name, shape, how, self.tp)
                    values = {0: tp_rank + 1} if how in CUT_DIM else {}
                    tensors[name] = Tensor(Storage(math.prod(shape), BFloat16Storage, values), shape)
                save(self.tag / f"layer_{layer:02d}-model_{tp_rank:02d}-model_states.pt", Pickled(tensors))

    def universal_checkpoint_info(self):
        patterns = collections.defaultdict(dict)  # as ordered sets
        for module in self.modules:
            prefix = re.sub(r"\d+", r"\\d+", module.pipeline_prefix.replace(".", r"\."))
            for name, _, how in module.params:
                patterns[how]["^" + prefix + name.replace(".", r"\.") + "$"] = None
        return {
            "universal_checkpoint_version": 0.2,
            "original_vocab_size": self.model.vocab,
            "padded_vocab_size": self.vocab,
            "vocabulary_parameter_patterns": list(patterns[VOCABULARY]),
            "pipeline_replicated_parameter_patterns": [r"^tied_modules\.embed\."] if is_tied(self.modules) else [],
            "tp_replicated_parameter_patterns": list(patterns[REPLICATED]),
            "parameter_to_average_patterns": list(patterns[AVERAGED]),
            "parameter_with_row_parallelism_patterns": list(patterns[ROW])}

    def first_elements(self, group, dp_rank):
        """Indices in the rank's partition at which slices of cut parameters begin."""
        partition, begin, result = flat_partition(group), 0, []
        for name, shape in group.shapes.items():
            if name in self.cut and begin // partition == dp_rank:
                result.append(begin % partition)
            begin += math.prod(shape)
        return result

    def optimizer_states(self, groups, tp_rank, dp_rank):
        """BF16_Optimizer's, which keeps the padding, and books all of it on the last rank."""
        sizes = list(map(flat_partition, groups))
        masters = [Storage(size, values=dict.fromkeys(self.first_elements(group, dp_rank), tp_rank + 1))
                   for size, group in zip(sizes, groups)]
        return {
            "clip_grad": 1.0,
            "base_optimizer_state": adam([(size,) for size in sizes],
                                         [(group.options, [i]) for i, group in enumerate(groups)]),
            "single_partition_of_fp32_groups": [Tensor(storage, requires_grad=True) for storage in masters],
            "group_paddings": [size * self.dp - numel(group.shapes) if dp_rank == self.dp - 1 else 0
                               for size, group in zip(sizes, groups)],
            "partition_count": [self.dp] * len(groups),
            "ds_version": DEEPSPEED_VERSION,
            "param_slice_mappings": [slice_mapping(group, dp_rank) for group in groups]}
