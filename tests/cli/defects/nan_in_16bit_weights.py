"""A weight and its master are NaN: they agree, and the model is lost."""
from plant import byte_of, edited, find, load_shard

CASE = "z0_fp16_w2"
ARGUMENTS = ["--finite"]
EXPECT = {"check": "nonfinite", "file": "mp_rank_00_model_states.pt", "tensor": "wide.weight"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with edited(path) as shard:
        shard["module"]["wide.weight"][6, 2] = float("nan")
        index = list(shard["module"]).index("wide.weight")
        shard["optimizer"]["fp32_groups"][0][index][6, 2] = float("nan")
    return {"offset": byte_of(path, load_shard(path)["module"]["wide.weight"], element=6 * 11 + 2)}
