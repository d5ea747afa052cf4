"""One bit of an exported model in torch's format is wrong."""
from plant import SHARDED_BIN, flip_bit, load_shard

CASE = "z2_bf16_offload_w2"
MADE = SHARDED_BIN
EXPECT = {"check": "crc"}


def plant(folder):
    path = min(folder.glob("pytorch_model-00002-of-*.bin"))
    name = next(iter(load_shard(path)))
    return {"file": path.name, **flip_bit(path, lambda weights: weights[name], element=1)}
