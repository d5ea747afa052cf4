"""One rank's model file of stage 3 says that a parameter has another shape, of as many elements."""
import torch_files

from plant import edited, find

CASE = "z3_fp32_full_w8"
EXPECT = {"check": "shape", "file": "zero_pp_rank_5_mp_rank_00_model_states.pt", "rank": (5, 0),
          "tensor": "narrow.weight"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as shard:
        group, = (shapes for shapes in shard["param_shapes"] if EXPECT["tensor"] in shapes)
        group[EXPECT["tensor"]] = torch_files.Size(reversed(group[EXPECT["tensor"]]))
