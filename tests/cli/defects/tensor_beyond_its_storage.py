"""An edited pickle: a weight is said to lie past the end of the record that holds it."""
from plant import edited, fake_tensor, find

CASE = "z1_bf16_full_w2"
EXPECT = {"check": ("unreadable", "layout"), "file": "mp_rank_00_model_states.pt", "member": "module.stats.freq_table"}


def plant(folder):
    with edited(find(folder, EXPECT["file"])) as shard:
        table = shard["module"]["stats.freq_table"]
        shard["module"]["stats.freq_table"] = fake_tensor(table.storage, 1, tuple(table.shape), table.stride())
