"""A shard was saved anew with another moment. Everything in it is consistent; only the manifest that was written before
knows better."""
from plant import find, load_shard, optimizer, record_of

CASE = "z2_fp32_full_w3"
MANIFEST = True
EXPECT = {"check": "manifest", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt"}


def plant(folder):
    path = find(folder, EXPECT["file"])
    with optimizer(path) as state:
        state["base_optimizer_state"]["state"][0]["exp_avg"][8] *= 2
    moment = load_shard(path)["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"]
    return {"member": record_of(path, moment)[0]}
