"""Checkpoints of any size, as far as tools read them: fp32 parameters at stage 2 or 3, with or without Adam's
states."""
import collections
import math

import numpy
import torch_files
from torch_files import Size, tensor, zeros

TAG = "global_step1"
HIDDEN = 256
VERSION = {"ds_version": "0.19.8", "ds_config": {}}


def decoder(params):
    """name -> values of about so many parameters. The first parameter cannot be cut into equal parts."""
    shapes = {"scale": (1, ), "embed.weight": (params // 8 // HIDDEN, HIDDEN)}
    while sum(map(math.prod, shapes.values())) < params:
        layer = f"layers.{len(shapes) // 3}"
        shapes |= {f"{layer}.up.weight": (4 * HIDDEN, HIDDEN), f"{layer}.down.weight": (HIDDEN, 4 * HIDDEN),
                   f"{layer}.norm.weight": (HIDDEN, )}
    random = numpy.random.default_rng(3)
    return {name: random.standard_normal(shape, "f4") for name, shape in shapes.items()}


def write(folder, values, stage=2, ranks=1, states=True):
    (folder / TAG).mkdir(parents=True)
    (folder / "latest").write_text(TAG)
    shapes = [collections.OrderedDict((name, Size(value.shape)) for name, value in values.items())]
    for rank in range(ranks if stage == 3 else 1):
        # At stage 3 the module's parameters have no elements.
        module = {name: zeros(0) for name in values} if stage == 3 else {}
        torch_files.save({"module": module, "buffer_names": [], "param_shapes": shapes, "dp_world_size": ranks,
                          "global_steps": 1, **VERSION},
                         folder / TAG / f"{f'zero_pp_rank_{rank}_' if stage == 3 else ''}mp_rank_00_model_states.pt")
    parts = parts_of(values, stage, ranks)
    for rank, part in enumerate(parts):
        optimizer = {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        if states:
            optimizer["state"][0] = {"step": tensor(1.0), "exp_avg": tensor(-part), "exp_avg_sq": tensor(part * part)}
        wrapper = {"fp32_flat_groups": [tensor(part)], "optimizer_state_dict": optimizer, "partition_count": ranks,
                   "zero_stage": 3} if stage == 3 else \
                  {"single_partition_of_fp32_groups": [tensor(part)], "base_optimizer_state": optimizer,
                   "group_paddings": [parts[0].size - part.size], "partition_count": [ranks], "zero_stage": 2}
        torch_files.save({"optimizer_state_dict": wrapper, **VERSION},
                         folder / TAG / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def parts_of(values, stage, ranks):
    """The flat group of each rank. At stage 3 it has a part of each parameter."""
    if stage == 2:
        whole = numpy.concatenate([value.reshape(-1) for value in values.values()])
        size = -(-whole.size // (2 * ranks)) * 2
        return [whole[size * rank:size * (rank + 1)] for rank in range(ranks)]
    padded = [numpy.pad(value.reshape(-1), (0, -value.size % ranks)).reshape(ranks, -1) for value in values.values()]
    return [numpy.concatenate([value[rank] for value in padded]) for rank in range(ranks)]


def write_one(folder, elements):
    """A checkpoint with one parameter, whose elements are 0, 1, 2 ..."""
    write(folder, {"weight": numpy.arange(elements, dtype="f4")}, states=False)
