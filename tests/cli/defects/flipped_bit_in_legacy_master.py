"""A file in torch's old format has no checksums; but a master with a wrong bit is not what the bf16 weight was rounded
from. Either file may be the bad one."""
from plant import MASTERS, find, flip, load_shard

CASE = "z2_bf16_legacyserial_w2"
OPTIM = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
EXPECT = {"check": "rounding", "file": (OPTIM, "mp_rank_00_model_states.pt"), "tensor": "conv.bias"}


def plant(folder):
    path = find(folder, OPTIM)
    state = load_shard(path)["optimizer_state_dict"]
    start = state["param_slice_mappings"][0]["conv.bias"].start
    content = state[MASTERS][0].tobytes()
    flip(path, path.read_bytes().index(content) + (start + 3) * 4 + 3, 0x80)  # the sign
