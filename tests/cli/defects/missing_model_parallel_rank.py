"""All files of the last model-parallel rank are missing: only what the others note of the run's size tells."""
from plant import find

CASE = "mpu_tp3_dp1_z1_fp32"
EXPECT = [{"check": "missing", "file": "mp_rank_02_model_states.pt"},
          {"check": "missing", "file": "zero_pp_rank_0_mp_rank_02_optim_states.pt", "rank": (0, 2)}]


def plant(folder):
    for finding in EXPECT:
        find(folder, finding["file"]).unlink()
