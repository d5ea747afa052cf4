"""Without ZeRO there are no shards: a norm that every tensor-parallel rank has whole differs in their model files."""
from plant import find, module

CASE = "autotp2_dp1_z0_fp32"
FILES = [f"mp_rank_{mp:02}_model_states.pt" for mp in (0, 1)]
EXPECT = {"check": "replica", "file": tuple(FILES), "tensor": "model.norm.weight"}


def plant(folder):
    with module(find(folder, FILES[1])) as weights:
        weights["model.norm.weight"][3] += 0.5
