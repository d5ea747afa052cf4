"""Checkpoints of Megatron-Core in its format torch_dist, by its own code on CPUs, with the values that they hold.

    make_torch_dist.py --out FOLDER [--case NAME] [--list]

Needs megatron-core (made with 0.16.1) and torch; gloo connects the ranks, and no GPU is needed. Megatron's
forked processes become threads, and its CUDA streams nothing: torch_dist itself has neither. Each case has
`ckpt`, which Megatron saved, and `expected/truth.safetensors`. The latter has NAME, NAME|master, NAME|exp_avg
and NAME|exp_avg_sq of the parameters of all ranks. The rules of their modules join them, not torch_dist.
"""
import argparse
import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import types

CASES = {  # tensor- and pipeline-parallel ranks, gated feed-forward, experts, bf16 with masters
    "tp2_pp1_fp32": (2, 1, True, False, False), "tp2_pp2_bf16": (2, 2, True, False, True),
    "tp1_pp1_moe": (1, 1, False, True, False)}
LAYERS, WIDTH, HEADS, VOCABULARY = 2, 8, 4, 16


def without_gpu():
    import torch
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    context = types.SimpleNamespace(Queue=queue.Queue, JoinableQueue=queue.Queue, Process=threading.Thread,
                                    Manager=lambda: types.SimpleNamespace(Queue=queue.Queue))
    filesystem_async.mp = types.SimpleNamespace(get_context=lambda kind: context, Queue=queue.Queue)
    torch.cuda.synchronize = lambda *ignored: None
    torch.cuda.current_device = lambda: "cpu"


def joined(name, parts, gated):
    """A parameter from those of the tensor-parallel ranks: ColumnParallelLinear, RowParallelLinear, or copies."""
    import torch
    if len(parts) == 1 or "norm" in name or "router" in name:
        return parts[0]
    if "linear_proj" in name or "linear_fc2" in name:
        return torch.cat(parts, 1)
    if gated and "linear_fc1" in name:  # each rank has its part of both factors
        return torch.cat([half for i in (0, 1) for half in [part.chunk(2)[i] for part in parts]])
    return torch.cat(parts)


def rank(name, out):
    import torch
    import torch.distributed as dist
    without_gpu()
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.optimizer import (get_param_id_to_sharded_param_map, make_sharded_optimizer_tensor,
                                                            optim_state_to_sharding_state)
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig
    from safetensors.torch import save_file
    tp, pp, gated, experts, half = CASES[name]
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tp, pp)
    dtype = torch.bfloat16 if half else torch.float32
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS, num_query_groups=2, use_cpu_initialization=True,
        pipeline_dtype=dtype, params_dtype=dtype, bf16=half, tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp,
        gated_linear_unit=gated, add_bias_linear=False, num_moe_experts=2 if experts else None)
    model = GPTModel(config, get_gpt_layer_local_spec(num_experts=2 if experts else None), vocab_size=VOCABULARY,
                     max_sequence_length=8, pre_process=parallel_state.is_pipeline_first_stage(),
                     post_process=parallel_state.is_pipeline_last_stage(), share_embeddings_and_output_weights=False,
                     position_embedding_type="rope").to(dtype)
    params = dict(model.named_parameters())
    values = {}  # of this rank, by name and what they are
    masters = []
    for key, param in params.items():
        copied = "norm" in key or "router" in key
        seed = sum(map(ord, key)) + 1000 * parallel_state.get_pipeline_model_parallel_rank()
        seed += 0 if copied else 100 * parallel_state.get_tensor_model_parallel_rank()
        generator = torch.Generator().manual_seed(seed)
        masters.append(torch.randn(param.shape, generator=generator))
        param.data.copy_(masters[-1])
        values[key] = param.detach().clone()
    if half:
        masters = [torch.nn.Parameter(master) for master in masters]
    else:
        masters = list(params.values())
    optimizer = torch.optim.AdamW(masters, lr=0.01, weight_decay=0.1)
    for master in masters:
        master.grad = master.detach() * 0.1
    optimizer.step()
    for key, param, master in zip(params, params.values(), masters):
        param.data.copy_(master)
        values[key] = param.detach().clone()
        if half:
            values[key + "|master"] = master.detach().clone()
        for state in ("exp_avg", "exp_avg_sq"):
            values[f"{key}|{state}"] = optimizer.state[master][state]
    sharded = model.sharded_state_dict()
    # As FP32Optimizer and Float16OptimizerWithFloat16Params have it, which want CUDA.
    of_model = get_param_id_to_sharded_param_map({**sharded, **model.sharded_state_dict()}, params.values())
    if len(of_model) != len(params):
        raise SystemExit(f"{len(of_model)} of {len(params)} parameters are sharded")
    state = optimizer.state_dict()
    step = state["state"][0]["step"]
    optim_state_to_sharding_state(state, of_model, exclude_keys="step")
    state["state"]["common_step"] = step
    if half:
        state = {"optimizer": state, "fp32_from_fp16_params": [
            [make_sharded_optimizer_tensor(of_model[i], master.data, prefix="optimizer.state.fp32_param")
             for i, master in enumerate(masters)]]}
    folder = pathlib.Path(out) / name
    if dist.get_rank() == 0:
        (folder / "ckpt").mkdir(parents=True)
        (folder / "expected").mkdir()
    dist.barrier()
    dist_checkpointing.save({"model": sharded, "optimizer": state, "iteration": 7, "checkpoint_version": 3.0},
                            str(folder / "ckpt"))
    everything = [None] * dist.get_world_size()
    where = (parallel_state.get_pipeline_model_parallel_rank(), parallel_state.get_tensor_model_parallel_rank())
    dist.all_gather_object(everything, (where, values))
    if dist.get_rank() == 0:
        truth = {}
        for stage in range(pp):
            ranks = [values for at, values in sorted(everything, key=lambda each: each[0]) if at[0] == stage]
            for key in ranks[0]:
                numbered = key
                if ".layers." in key:  # layers are numbered within their stage
                    front, rest = key.split(".layers.")
                    number, rest = rest.split(".", 1)
                    numbered = f"{front}.layers.{int(number) + stage * (LAYERS // pp)}.{rest}"
                truth[numbered] = joined(key, [values[key] for values in ranks], gated).contiguous()
        save_file(truth, folder / "expected" / "truth.safetensors")
        (folder / "case.json").write_text(json.dumps(
            {"name": name, "tp": tp, "pp": pp, "steps": 7, "load_dir": "ckpt", "masters": half, "step": 1.0}, indent=1) + "\n")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--case", action="append")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        return print("\n".join(CASES))
    if "RANK" in os.environ:
        return rank(arguments.case[0], arguments.out)
    for number, name in enumerate(arguments.case or CASES):
        world = CASES[name][0] * CASES[name][1]
        environment = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(29700 + number), "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([sys.executable, "-W", "ignore", __file__, "--out", arguments.out, "--case", name],
                                  env={**environment, "RANK": str(i), "LOCAL_RANK": str(i)}) for i in range(world)]
        if any(each.wait() for each in ranks):
            raise SystemExit(f"{name} failed")


if __name__ == "__main__":
    main()
