"""A state on NVMe is said to be in the swap file of another one."""
from plant import find, optimizer

CASE = "z3_fp32_nvme_full_w3"
EXPECT = {"check": "layout", "file": "zero_pp_rank_1_mp_rank_00_optim_states.pt", "rank": (1, 0)}


def plant(folder):
    with optimizer(find(folder, EXPECT["file"])) as optim:
        at = next(i for i, group in enumerate(optim["fp32_flat_groups"]) if not group.numel())
        states = optim["optimizer_state_dict"]["state"][at]
        states["exp_avg"].ds_id = states["exp_avg_sq"].ds_id
        return {"member": f"optimizer_state_dict.state[{at}].exp_avg"}
