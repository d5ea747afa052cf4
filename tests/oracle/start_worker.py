"""One rank of a DeepSpeed run that starts from weights; start_test.py runs as many as there are ranks.

    start_worker.py OPTIONS.json

A run like the one that is to start is saved, and the tools convert the weights. Engines that load the results
are held against one whose model had the weights from the beginning: masters, buffers and losses. The first rank
writes what it found to OPTIONS["found"].
"""
import json
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed import comm as dist  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

VOCABULARY, WIDTH = 13, 8


class Net(torch.nn.Module):
    """Tied head, frozen parameter, buffers of reals and of integers."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.fc = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.fixed = torch.nn.Parameter(torch.rand(WIDTH), requires_grad=False)
        self.register_buffer("scale", torch.rand(WIDTH))
        self.register_buffer("order", torch.randperm(WIDTH))

    def forward(self, tokens):
        hidden = self.norm(self.fc(self.embed(tokens) + self.fixed) * self.scale[self.order])
        return torch.nn.functional.cross_entropy(self.head(hidden[:, :-1]).flatten(0, 1).float(),
                                                 tokens[:, 1:].flatten())


def batch(step):
    torch.manual_seed(1000 * step + dist.get_rank())
    return torch.randint(VOCABULARY, (2, 6))


class Run:

    def __init__(self, options):
        self.options = options
        self.folder = pathlib.Path(options["folder"])
        self.dtype = torch.bfloat16 if options["bf16"] else torch.float32

    def engine(self, model, universal=False):
        config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True,
                  "zero_optimization": {"stage": self.options["stage"]},
                  "bf16": {"enabled": self.options["bf16"]},
                  "checkpoint": {"load_universal": universal}}
        if self.options["warmup"]:
            config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 1e-2,
                                                                  "warmup_num_steps": 4}}
        model = model.to(self.dtype)
        decay = [p for p in model.parameters() if p.requires_grad and p.dim() > 1]
        rest = [p for p in model.parameters() if p.requires_grad and p.dim() == 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups if self.options["groups"] == 2 else decay + rest, lr=1e-2)
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

    def train(self, engine, steps):
        losses = []
        for step in range(steps):
            loss = engine(batch(step).to(engine.device))
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses

    def saved_like(self):
        engine = self.engine(Net(seed=1))
        self.train(engine, self.options["like_steps"])
        engine.save_checkpoint(str(self.folder / "like"), tag="like")
        dist.barrier()

    def write_weights(self):
        state = {name: value.to(self.dtype) if value.is_floating_point() else value
                 for name, value in Net(seed=2).state_dict().items()}
        del state["head.weight"]  # as transformers leaves it out
        (self.folder / "hf").mkdir()
        save_file(state, self.folder / "hf" / "model.safetensors", metadata={"format": "pt"})
        return state

    def convert(self):
        like, weights = self.folder / "like", self.folder / "hf"
        for name, arguments in {
                "alone": ["to-universal", "--input_folder", weights, "--output_folder", self.folder / "alone" / "start"],
                "told": ["to-universal", "--input_folder", weights, "--output_folder", self.folder / "told" / "start",
                         "--like", like],
                "native": ["reshard", weights, self.folder / "native", "--dp", dist.get_world_size(), "--like", like]
        }.items():
            tool, *rest = map(str, arguments)
            (self.folder / name).parent.mkdir(exist_ok=True)
            done = subprocess.run([pathlib.Path(os.environ["DSCKPT_BIN"]) / tool, *rest], capture_output=True,
                                  text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr}")

    def from_the_beginning(self):
        """The weights are those of the model before DeepSpeed sees it."""
        return self.engine(Net(seed=2))

    def loaded(self, name):
        model = Net(seed=3)
        if name != "native":  # universal checkpoints do not restore them
            source = Net(seed=2)
            model.fixed.data.copy_(source.fixed.data)
            model.load_state_dict({"scale": source.scale, "order": source.order}, strict=False)
        engine = self.engine(model, universal=name != "native")
        path, client = engine.load_checkpoint(str(self.folder / name))
        assert path, name
        return engine, client

    def state_of(self, engine):
        # At stage 0 there is no access to masters; the parameters have their values, as the weights are not rounded.
        master = safe_get_full_fp32_param if self.options["stage"] else lambda p: p.float()
        state = {name: master(p) for name, p in engine.module.named_parameters() if p.requires_grad}
        state.update({name: value.clone() for name, value in engine.module.named_buffers()})
        return {name: value.detach().clone() for name, value in state.items()}

    def run(self):
        self.saved_like()
        if dist.get_rank() == 0:
            self.write_weights()
            self.convert()
        dist.barrier()
        weights = {name: value for name, value in Net(seed=2).to(self.dtype).state_dict().items()}
        reference = self.train(self.from_the_beginning(), 4)
        found = {"reference": reference}
        for name in self.options["starts"]:
            engine, client = self.loaded(name)
            state = self.state_of(engine)
            wrong = [key for key, value in state.items()
                     if not torch.equal(value, weights[key].float() if value.is_floating_point() and key not in
                                        ("scale",) else weights[key])]
            found[name] = {"wrong": wrong, "held": sorted(state), "global_steps": engine.global_steps,
                           "client": sorted(client), "losses": self.train(engine, 4)}
        if dist.get_rank() == 0:
            pathlib.Path(self.options["found"]).write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    Run(json.loads(pathlib.Path(sys.argv[1]).read_text())).run()
    dist.barrier()
