#!/usr/bin/env python3
"""Makes testdata/peft: ZeRO checkpoints of models with a trained PEFT adapter, and peft's own files for each.

A case has base/ (the model before, for from_pretrained), ckpt/ (DeepSpeed's) and expected/. It has adapter/
(peft's own save_pretrained of the live engine) and logits.safetensors (the live model's answer to `tokens`).
"""
import argparse
import contextlib
import dataclasses
import os
import pathlib
import shutil
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

from make_checkpoints import free_port, run_forked, start_distributed  # noqa: E402

SEED = 1234


@dataclasses.dataclass(frozen=True)
class PeftCase:
    name: str
    stage: int
    world: int
    lora: dict
    attention_bias: bool = False


CASES = [
    PeftCase("z2_modules_to_save_w2", 2, 2,
             {"r": 3, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]}),
    PeftCase("z3_bias_w3", 3, 3, {"r": 2, "lora_alpha": 5, "target_modules": ["k_proj"], "bias": "lora_only"},
             attention_bias=True),
    PeftCase("z2_dora_some_layers_w2", 2, 2,
             {"r": 2, "lora_alpha": 4, "use_dora": True, "target_modules": ["up_proj"],
              "layers_to_transform": [1], "layers_pattern": "layers"}),
]


def tokens_of(step, rank, rows=2):
    import torch
    return torch.randint(67, (rows, 9), generator=torch.Generator().manual_seed(100 * step + rank))


def base_model(case):
    import torch
    import transformers
    torch.manual_seed(SEED)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=67, hidden_size=12, intermediate_size=27, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2,
        attention_bias=case.attention_bias))


def worker(rank, world, port, case, folder):
    import deepspeed
    import peft
    import torch
    from safetensors.torch import save_file
    start_distributed(rank, world, port)
    model = base_model(case)
    if rank == 0:
        model.save_pretrained(folder / "base")
    model = peft.get_peft_model(model, peft.LoraConfig(**case.lora))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=[p for p in model.parameters() if p.requires_grad],
        config={"train_micro_batch_size_per_gpu": 2, "steps_per_print": 10**9,
                "optimizer": {"type": "AdamW", "params": {"lr": 0.02, "torch_adam": True}},
                "zero_optimization": {"stage": case.stage, "stage3_param_persistence_threshold": 0}})
    for step in range(3):
        tokens = tokens_of(step, rank)
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    engine.save_checkpoint(folder / "ckpt")
    engine.eval()
    with torch.no_grad():
        logits = engine(input_ids=tokens_of(99, 0)).logits
    whole = (deepspeed.zero.GatheredParameters(list(model.parameters())) if case.stage == 3
             else contextlib.nullcontext())
    with whole:
        if rank == 0:
            state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            model.save_pretrained(folder / "expected" / "adapter", state_dict=state)
            save_file({"tokens": tokens_of(99, 0), "logits": logits.contiguous()},
                      folder / "expected" / "logits.safetensors")


def make_case(case, out):
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "expected").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as logs:
        port = free_port()
        error = run_forked(worker, pathlib.Path(logs), [(rank, case.world, port, case, folder)
                                                        for rank in range(case.world)])
    if error:
        raise RuntimeError(error)
    for pattern in ("zero_to_fp32.py", "zero_to_torch.py", "README.md", "generation_config.json"):
        for path in folder.rglob(pattern):
            path.unlink()
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path, help="testdata/peft")
    arguments = parser.parse_args()
    for case in CASES:
        print(f"{case.name}: {make_case(case, arguments.out) >> 10} KiB", flush=True)


if __name__ == "__main__":
    main()
