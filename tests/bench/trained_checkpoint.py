#!/usr/bin/env python3
"""Writes a DeepSpeed checkpoint of a small language model that has really been trained.

    scripts/python tests/bench/trained_checkpoint.py FOLDER [--steps N] [--width N] [--layers N] [--seed N]

How small tensors become when they are packed depends on what they hold, so generated numbers show nothing. This
trains a transformer of bytes on the sources of Python's standard library with DeepSpeed (ZeRO stage 2,
bfloat16, AdamW, one process, no GPU) and saves it. It has 3.3 M parameters with the defaults, and takes about
half a second a step on a core. Needs torch and deepspeed.
"""
import argparse
import os
import pathlib
import sysconfig

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
os.environ.setdefault("MASTER_PORT", "29531")

import deepspeed
import torch
from torch import nn
from torch.nn import functional

CONTEXT, BATCH = 128, 8
CONFIG = {
    "train_micro_batch_size_per_gpu": BATCH,
    "optimizer": {"type": "AdamW", "params": {"lr": 6e-4, "weight_decay": 0.1, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 40, "warmup_max_lr": 6e-4}},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "steps_per_print": 50,
}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = width // 64

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, text):
        x = self.bytes(text[:, :-1]) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


def corpus():
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    deepspeed.init_distributed("gloo")
    engine, *_ = deepspeed.initialize(model=Model(options.width, options.layers), config=CONFIG)
    text = corpus()
    for _ in range(options.steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
        loss = engine(torch.stack([text[at:at + CONTEXT + 1] for at in starts.tolist()]).long())
        engine.backward(loss)
        engine.step()
    print(f"loss {loss.item():.3f} after {options.steps} steps")
    engine.save_checkpoint(options.folder)


if __name__ == "__main__":
    main()
