"""A sub-group on NVMe refers to another one's swap file."""
from plant import find, optimizer

CASE = "z3_bf16_nvme_w2"
EXPECT = {"check": "layout", "file": "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "rank": (0, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as optim:
        groups = optim["fp32_flat_groups"]
        first, second = [i for i, group in enumerate(groups) if not group.numel()][:2]
        groups[first].ds_id = groups[second].ds_id
        for key in ("exp_avg", "exp_avg_sq"):
            state = optim["optimizer_state_dict"]["state"]
            state[first][key].ds_id = state[second][key].ds_id
