"""The run once had two tensor-parallel ranks: the second one's model file is left."""
from plant import find, load_shard, save_under

CASE = "z1_fp32_w2"
EXPECT = {"check": "extra", "file": "mp_rank_01_model_states.pt"}


def plant(folder):
    model = find(folder, "mp_rank_00_model_states.pt")
    save_under(model.with_name(EXPECT["file"]), load_shard(model))
