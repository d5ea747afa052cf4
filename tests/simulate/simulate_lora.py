"""Checkpoints of a model that is frozen but for adapters on its attention, as PEFT's LoRA makes them, stages 1 to 3.

Experts are as Hugging Face has them, modules like all others: DeepSpeed does not know of them.
"""
from simulate_checkpoint import Writer, grouped
from simulate_models import EXPERT_PREFIX, modules_of, shapes_of

PREFIX = "base_model.model."  # PeftModel, and the tuner in it


def plain_name(name):
    """Without DeepSpeed's MoE layer."""
    return name.replace(EXPERT_PREFIX, "mlp.experts.").replace("mlp.deepspeed_moe.gate.wg.", "mlp.gate.")


def is_adapted(name, shape):
    return len(shape) == 2 and (".self_attn." in name or ".self_attention." in name)


class LoraWriter(Writer):
    def __init__(self, folder, model, *, dp, stage, rank):
        super().__init__(folder, model, dp=dp, stage=stage)
        self.rank = rank
        self.order = []

    def names(self):
        return self.order

    def prepare(self):
        super().prepare()
        experts = self.model.experts.count if self.model.experts else 0
        self.aliases = {PREFIX + alias: PREFIX + owner for alias, owner in self.aliases.items()}
        self.shapes = {}
        for name, shape in shapes_of(modules_of(self.model), experts).items():
            name = PREFIX + plain_name(name)
            if not is_adapted(name, shape):
                self.order.append(name)
                self.frozen[name] = shape
                continue
            module, rows, columns = name.removesuffix("weight"), *shape
            adapters = {f"{module}lora_A.default.weight": (self.rank, columns),
                        f"{module}lora_B.default.weight": (rows, self.rank)}
            self.frozen[f"{module}base_layer.weight"] = shape
            self.shapes.update(adapters)
            self.order += [f"{module}base_layer.weight", *adapters]
        self.groups = [group for group in grouped(self.shapes, self.dp) if group.shapes]
