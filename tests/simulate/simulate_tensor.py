"""Checkpoints of tensor-parallel ranks without a pipeline, as AutoTP trains Llama: DeepSpeedZeroOptimizer."""
import collections
import math

from simulate_archive import BFloat16Storage, Pickled, Storage, Tensor
from simulate_checkpoint import grouped, padded
from simulate_models import COLUMN, REPLICATED, ROW, VOCABULARY, modules_of
from simulate_pipeline import CUT_DIM, PipelineWriter, slice_shape


class TensorWriter(PipelineWriter):
    """Stage 2. Every rank has the embeddings; the head is cut, so the vocabulary is padded for the ranks."""

    def __init__(self, folder, model, *, tp, dp):
        super().__init__(folder, model, pp=1, tp=tp, dp=dp)
        self.stage = 2

    def prepare(self):
        modules = modules_of(self.model, padded(self.model.vocab, self.tp))
        params = [(module.path + name, shape, how) for module in modules for name, shape, how in module.params]
        self.how = {name: COLUMN if how == VOCABULARY else how for name, _, how in params}
        self.how[params[0][0]] = REPLICATED
        self.shapes = {name: slice_shape(name, shape, self.how[name], self.tp) for name, shape, _ in params}
        self.cut = {name for name, how in self.how.items() if how in CUT_DIM}
        self.groups = grouped(self.shapes, self.dp)

    def write_files(self):
        info, shapes = self.universal_checkpoint_info(), [group.shapes for group in self.groups]
        for tp_rank in range(self.tp):
            self.save_model(Pickled(self.model_states(self.weights(tp_rank), param_shapes=shapes,
                                                      universal_checkpoint_info=info)), tp_rank)
            for dp_rank in range(self.dp):
                self.save_optimizer(Pickled(self.optimizer_file(self.flat_states(tp_rank, dp_rank))), dp_rank, tp_rank)

    def weights(self, tp_rank):
        return collections.OrderedDict(
            (name, Tensor(Storage(math.prod(shape), BFloat16Storage, {0: tp_rank + 1} if name in self.cut else {}),
                          shape)) for name, shape in self.shapes.items())

    def flat_states(self, tp_rank, dp_rank):
        states = self.flat_optimizer([(group, dp_rank) for group in self.groups])
        for group, master in zip(self.groups, states["single_partition_of_fp32_groups"]):
            master.storage.values = dict.fromkeys(self.first_elements(group, dp_rank), tp_rank + 1)
        return states

    def universal_checkpoint_info(self):
        patterns = collections.defaultdict(list)
        for name, how in self.how.items():
            patterns[how].append("^" + name.replace(".", r"\.") + "$")
        return {"universal_checkpoint_version": 0.2,
                "tp_replicated_parameter_patterns": patterns[REPLICATED],
                "parameter_with_row_parallelism_patterns": patterns[ROW]}
