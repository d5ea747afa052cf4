#!/usr/bin/env python3
"""Make checkpoints by the programs that people train with, on the CPU, together with what these programs held.

    make_programs.py --list
    make_programs.py --out SCRATCH --case all
    make_programs.py --out SCRATCH --case trainer_t5_z3,lightning_plain_z2 --seed 7 --world 3 --hidden 32

The programs are the Hugging Face Trainer, TRL's, Accelerate, Lightning and plain DeepSpeed. They train tiny
models of well-known architectures, whole or with a PEFT adapter, for three steps over gloo, save, and train two
more.  A case is a folder:

    case.json                       facts: program, versions, model, stage, ranks, losses after the save
    ckpt/                           what the program wrote
    base/                           the model before an adapter was put on it, where there is one
    expected/truth.safetensors      by name: the live engine's fp32 masters, and what has none as it was
    expected/states.safetensors     the live optimizer's states, `name|exp_avg` ...

A name says PROGRAM_MODEL_TRAITS_STAGE. testdata/programs has some of the cases (`kept` in --list), without
files that no tool reads. tests/oracle/program_matrix.py makes all of them and has each program load the tools'
outputs.

Needs what make_programs.txt lists.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import pathlib
import shutil
import sys
import time

import make_checkpoints  # noqa: F401  it sets the environment, so it comes first
from make_checkpoints import (DEFAULT_SEED, STEPS_AFTER, STEPS_BEFORE, engine_facts, free_port, live_masters,
                              live_module, make_each, relax_deepspeed, run_forked, start_distributed,
                              use_gloo_in_accelerate, whole)

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCABULARY = 64
BATCH = 12  # rows of the global batch, which 1, 2, 3, 4 and 6 ranks share
TOKENS = 8
PACKAGES = ("accelerate", "deepspeed", "lightning", "peft", "torch", "transformers", "trl")


@dataclasses.dataclass(frozen=True)
class Case:
    program: str  # a key of PROGRAMS
    model: str  # a key of MODELS
    stage: int
    adapter: str = ""  # a key of ADAPTERS
    dtype: str = "bf16"  # or fp32
    traits: str = ""  # further parts of the name
    arguments: dict = dataclasses.field(default_factory=dict)  # more of the program's own
    config: dict = dataclasses.field(default_factory=dict)  # more of DeepSpeed's configuration

    @property
    def kept(self):
        return self.name in KEPT

    @property
    def name(self):
        dtype = "" if self.dtype == "bf16" else self.dtype
        return "_".join(filter(None, (self.program, self.model, self.adapter, self.traits, dtype, f"z{self.stage}")))


# Models. `h` is the hidden size. There is no dropout, so that losses show whether a run resumed correctly.


def decoder(h, **more):
    return dict(vocab_size=VOCABULARY, hidden_size=h, intermediate_size=h + 8, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32, **more)


def llama(h, **more):
    from transformers import LlamaConfig, LlamaForCausalLM
    return LlamaForCausalLM(LlamaConfig(**decoder(h, bos_token_id=1, eos_token_id=2), **more))


def llama_classifier(h):
    from transformers import LlamaConfig, LlamaForSequenceClassification
    return LlamaForSequenceClassification(LlamaConfig(**decoder(h), pad_token_id=0, num_labels=2))


def gpt2(h):
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=h, n_layer=2, n_head=2, n_positions=32,
                                      resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def mixtral(h):
    from transformers import MixtralConfig, MixtralForCausalLM
    return MixtralForCausalLM(MixtralConfig(**decoder(h), num_local_experts=4))


def qwen3_moe(h):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**decoder(h), num_experts=4, num_experts_per_tok=2,
                                              moe_intermediate_size=8, head_dim=8))


def gpt_oss(h):
    from transformers import GptOssConfig, GptOssForCausalLM
    return GptOssForCausalLM(GptOssConfig(**decoder(h), num_local_experts=4, num_experts_per_tok=2, head_dim=8))


def deepseek(h):
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
    return DeepseekV3ForCausalLM(DeepseekV3Config(**{
        **decoder(h), "num_key_value_heads": 2, "moe_intermediate_size": 8, "n_shared_experts": 1,
        "n_routed_experts": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
        "qk_nope_head_dim": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}))


def gemma3(h):
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    return Gemma3ForCausalLM(Gemma3TextConfig(**decoder(h), head_dim=8))


def mamba(h):
    from transformers import MambaConfig, MambaForCausalLM
    return MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=h, state_size=4, num_hidden_layers=1))


def t5(h):
    from transformers import T5Config, T5ForConditionalGeneration
    return T5ForConditionalGeneration(T5Config(vocab_size=VOCABULARY, d_model=h, d_kv=8, d_ff=h + 8, num_layers=1,
                                               num_heads=2, decoder_start_token_id=0, dropout_rate=0))


def bart(h):
    from transformers import BartConfig, BartForConditionalGeneration
    return BartForConditionalGeneration(BartConfig(
        vocab_size=VOCABULARY, d_model=h, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=h, decoder_ffn_dim=h,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=32, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, dropout=0))


def bert(h):
    from transformers import BertConfig, BertForMaskedLM
    return BertForMaskedLM(BertConfig(vocab_size=VOCABULARY, hidden_size=h, num_hidden_layers=1,
                                      num_attention_heads=2, intermediate_size=h + 8, max_position_embeddings=32,
                                      hidden_dropout_prob=0, attention_probs_dropout_prob=0))


def bert_classifier(h):
    from transformers import BertConfig, BertForSequenceClassification
    return BertForSequenceClassification(BertConfig(
        vocab_size=VOCABULARY, hidden_size=h, num_hidden_layers=1, num_attention_heads=2, intermediate_size=h + 8,
        max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0))


def whisper(h):
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    return WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=VOCABULARY, num_mel_bins=8, d_model=h, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=h, decoder_ffn_dim=h,
        max_source_positions=20, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=3, suppress_tokens=None, begin_suppress_tokens=None, dropout=0))


def wav2vec2(h):
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
    return Wav2Vec2ForCTC(Wav2Vec2Config(
        vocab_size=VOCABULARY, hidden_size=h, num_hidden_layers=1, num_attention_heads=2, intermediate_size=h,
        conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0., ctc_loss_reduction="mean",
        hidden_dropout=0, attention_dropout=0, activation_dropout=0, feat_proj_dropout=0, final_dropout=0,
        layerdrop=0))


def clip(h):
    from transformers import CLIPConfig, CLIPModel
    tower = dict(hidden_size=h, intermediate_size=h, num_hidden_layers=1, num_attention_heads=2)
    return CLIPModel(CLIPConfig(
        text_config=dict(vocab_size=VOCABULARY, max_position_embeddings=32, eos_token_id=2, **tower),
        vision_config=dict(image_size=8, patch_size=4, **tower), projection_dim=8))


def resnet(h):
    from transformers import ResNetConfig, ResNetForImageClassification
    return ResNetForImageClassification(ResNetConfig(embedding_size=8, hidden_sizes=[8, h], depths=[1, 1],
                                                     layer_type="basic", num_labels=3))


def llava(h):
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration
    return LlavaForConditionalGeneration(LlavaConfig(
        vision_config=CLIPVisionConfig(hidden_size=h, intermediate_size=h, num_hidden_layers=2,
                                       num_attention_heads=2, image_size=8, patch_size=4),
        text_config=LlamaConfig(**decoder(h)), image_token_index=VOCABULARY - 1))


def plain(h):
    """A user's own model: a tied head, a frozen layer, a buffer."""
    import torch

    class Plain(torch.nn.Module):

        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(VOCABULARY, h)
            self.up = torch.nn.Linear(h, 2 * h)
            self.norm = torch.nn.LayerNorm(2 * h)
            self.down = torch.nn.Linear(2 * h, h)
            self.still = torch.nn.Linear(3, 3).requires_grad_(False)
            self.head = torch.nn.Linear(h, VOCABULARY, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, input_ids, labels):
            hidden = self.up(self.embed(input_ids))
            logits = self.head(self.down(torch.nn.functional.gelu(self.norm(hidden))))
            self.seen += 1
            return {"loss": torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())}

    return Plain()


def optimized_linear(h, sharded=False):
    """DeepSpeed's OptimizedLinear: LoRA on a frozen base weight, which the ranks may share."""
    import torch
    from deepspeed.linear import LoRAConfig, OptimizedLinear

    class Model(torch.nn.Module):

        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(VOCABULARY, h, dtype=torch.bfloat16)
            self.body = OptimizedLinear(h, h, lora_config=LoRAConfig(
                lora_r=4, lora_alpha=8, target_mods=["body"],
                base_weight_sharding=torch.distributed.get_world_size() if sharded else 1))
            self.head = torch.nn.Linear(h, VOCABULARY, dtype=torch.bfloat16)

        def forward(self, input_ids, labels):
            logits = self.head(self.body(self.embed(input_ids)))
            return {"loss": torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())}

    return Model()


MODELS = {
    "llama": llama, "llamatied": functools.partial(llama, tie_word_embeddings=True), "llamacls": llama_classifier,
    "gpt2": gpt2, "mixtral": mixtral, "qwen3moe": qwen3_moe, "gptoss": gpt_oss, "deepseek": deepseek,
    "gemma3": gemma3, "mamba": mamba, "t5": t5, "bart": bart, "bert": bert, "bertcls": bert_classifier,
    "whisper": whisper, "wav2vec2": wav2vec2, "clip": clip, "resnet": resnet, "llava": llava, "plain": plain,
    "optlinear": optimized_linear, "optlinearsharded": functools.partial(optimized_linear, sharded=True),
}


def sample(model, i, seed):
    """Row i of the data of a model."""
    import torch
    random = torch.Generator().manual_seed(seed * 131 + i)
    tokens = torch.randint(3, VOCABULARY - 2, (TOKENS, ), generator=random)
    if model == "whisper":
        return {"input_features": torch.randn(8, 40, generator=random), "labels": tokens}
    if model == "clip":
        return {"pixel_values": torch.randn(3, 8, 8, generator=random), "input_ids": tokens,
                "attention_mask": torch.ones_like(tokens)}
    if model == "resnet":
        return {"pixel_values": torch.randn(3, 32, 32, generator=random), "labels": torch.tensor(i % 3)}
    if model in ("bertcls", "llamacls"):
        return {"input_ids": tokens, "labels": torch.tensor(i % 2)}
    if model == "wav2vec2":
        return {"input_values": torch.randn(400, generator=random), "labels": tokens[:3]}
    return {"input_ids": tokens, "labels": tokens.clone()}


def rows(model, indices, seed):
    import torch
    batch = torch.utils.data.default_collate([sample(model, i, seed) for i in indices])
    return {**batch, "return_loss": True} if model == "clip" else batch


def data_set(model, seed):
    import torch

    class Rows(torch.utils.data.Dataset):

        def __len__(self):
            return 96

        def __getitem__(self, i):
            return sample(model, i, seed)

    return Rows()


# Adapters: peft's configuration, from its module.


def lora(**options):
    return lambda peft: peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], **options})


CAUSAL = {"task_type": "CAUSAL_LM"}
ADAPTERS = {
    "lora": lora(),
    "dora": lora(use_dora=True),
    "rslora": lora(use_rslora=True, rank_pattern={"v_proj": 2}, alpha_pattern={"v_proj": 3}),
    "lorasave": lora(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"]),
    "loraembed": lora(target_modules=["q_proj", "embed_tokens"]),
    "loratied": lora(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True),
    "loratokens": lora(target_modules=["q_proj"], trainable_token_indices=[1, 5, 7]),
    "loraexperts": lora(r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"]),
    "loraclass": lora(target_modules=["q_proj"], task_type="SEQ_CLS"),
    "lorabert": lora(target_modules=["query"], task_type="SEQ_CLS"),
    "lorat5": lora(target_modules=["q", "v"], task_type="SEQ_2_SEQ_LM"),
    "loraconv": lora(target_modules=["convolution"], modules_to_save=["classifier"]),
    "twoadapters": lora(target_modules=["q_proj"]),
    "ia3": lambda peft: peft.IA3Config(target_modules=["k_proj", "v_proj", "down_proj"],
                                       feedforward_modules=["down_proj"], **CAUSAL),
    "vera": lambda peft: peft.VeraConfig(r=4, target_modules=["q_proj"]),
    "prompt": lambda peft: peft.PromptTuningConfig(num_virtual_tokens=4, **CAUSAL),
    "prefix": lambda peft: peft.PrefixTuningConfig(num_virtual_tokens=4, **CAUSAL),
    "ptuning": lambda peft: peft.PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=8, **CAUSAL),
    "tokens": lambda peft: peft.TrainableTokensConfig(token_indices=[1, 5, 7], target_modules=["embed_tokens"]),
    "loha": lambda peft: peft.LoHaConfig(r=4, target_modules=["q_proj"]),
    "lokr": lambda peft: peft.LoKrConfig(r=4, target_modules=["q_proj"]),
    "adalora": lambda peft: peft.AdaLoraConfig(init_r=4, target_r=2, target_modules=["q_proj"], total_step=100),
    "oft": lambda peft: peft.OFTConfig(r=0, oft_block_size=4, target_modules=["q_proj"]),
    "layernorm": lambda peft: peft.LNTuningConfig(target_modules=["input_layernorm"]),
    "fourier": lambda peft: peft.FourierFTConfig(n_frequency=20, target_modules=["q_proj"]),
    **{name.lower(): (lambda peft, name=name, options=options: getattr(peft, f"{name}Config")(
        target_modules=["q_proj"], **options))
       for name, options in (("BOFT", {"boft_block_size": 4}), ("HRA", {"r": 4}), ("Miss", {"r": 4}),
                             ("C3A", {"block_size": 8}), ("Road", {"group_size": 8}),
                             ("WaveFT", {"n_frequency": 20}), ("Deft", {}), ("Delora", {}),
                             ("Glora", {}), ("Gralora", {}), ("Hira", {}), ("Lily", {}), ("Psoft", {"r": 4}), ("Beft", {}),
                             ("RandLora", {}), ("VBLoRA", {"vector_length": 8, "num_vectors": 16, "topk": 2}),
                             ("Pvera", {}), ("TinyLora", {}), ("UniLora", {}))},
}


def build_model(case, run):
    """The model, with its adapter. With an adapter, the base is that of the first run. Otherwise a run that resumes
    starts from other weights."""
    import torch
    torch.manual_seed(run.seed if case.adapter or run.same_start else run.model_seed)
    model = MODELS[case.model](run.hidden)
    if not case.adapter:
        return model
    import peft
    if not run.resume and int(os.environ["RANK"]) == 0:
        model.save_pretrained(run.folder / "base")
    torch.manual_seed(run.model_seed + 1)
    first = {"adapter_name": "first"} if case.adapter == "twoadapters" else {}
    model = peft.get_peft_model(model, ADAPTERS[case.adapter](peft), **first)
    if first:
        model.add_adapter("second", lora(r=2, target_modules=["k_proj"])(peft))
    return model


# Programs.


@dataclasses.dataclass(frozen=True)
class Run:
    """One training: from the start until it is saved after STEPS_BEFORE steps, or resumed from `resume`."""
    folder: pathlib.Path
    world: int
    seed: int = DEFAULT_SEED
    hidden: int = 16
    resume: pathlib.Path | None = None  # the program's folder
    universal: bool = False

    @property
    def same_start(self):
        """Universal checkpoints have no frozen parameters and no buffers."""
        return not self.resume or self.universal

    @property
    def model_seed(self):
        return self.seed + (0 if self.same_start else 1000)

    @property
    def steps(self):
        return STEPS_BEFORE + STEPS_AFTER


@dataclasses.dataclass
class Seen:
    """The state of a run after STEPS_BEFORE steps, and the losses of the later steps."""
    truth: dict = dataclasses.field(default_factory=dict)
    states: dict = dataclasses.field(default_factory=dict)
    facts: dict = dataclasses.field(default_factory=dict)
    losses: list = dataclasses.field(default_factory=list)
    step: int = -1
    rates: list = dataclasses.field(default_factory=list)  # of each later step, by parameter group

    def look(self, engine, step):
        """Every rank calls it, before a step."""
        import torch
        if step < STEPS_BEFORE:
            return
        self.rates.append([float(rate) for rate in engine.get_lr()])
        if self.step >= 0:
            return
        self.step = step
        self.facts = engine_facts(engine)
        stage = engine.zero_optimization_stage()
        masters = live_masters(engine, stage, torch.distributed.get_world_size())
        module = live_module(engine)
        tied = self.facts["tied"]
        self.truth = {name: masters.get(f"{tied.get(name, name)}|fp32", value) for name, value in module.items()}
        self.states = {key: value for key, value in masters.items() if not key.endswith("|fp32")}

    def lost(self, loss):
        """The mean of the ranks' losses."""
        import torch
        mean = loss.detach().float().clone()
        torch.distributed.all_reduce(mean)
        self.losses.append(float(mean) / torch.distributed.get_world_size())


def zero_config(case):
    zero = {"stage": case.stage}
    if case.stage == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}
    config = {"zero_optimization": zero, "zero_allow_untested_optimizer": True, "steps_per_print": 10**9,
              "bf16": {"enabled": case.dtype == "bf16"}}
    for key, value in case.config.items():
        config[key] = {**config.get(key, {}), **value} if isinstance(value, dict) else value
    return config


def universal_config(run):
    return {"checkpoint": {"load_universal": True}} if run.universal else {}


def trainer_arguments(kind, case, run, **more):
    """TrainingArguments, or a class derived from them."""
    import transformers
    use_gloo_in_accelerate()
    # bf16=True asks for a GPU unless use_cpu is set, and use_cpu turns DeepSpeed off.
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    config = {**zero_config(case), **universal_config(run), "train_batch_size": "auto",
              "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
              "gradient_clipping": "auto"}
    return kind(output_dir="run", deepspeed=config, bf16=case.dtype == "bf16", max_steps=run.steps,
                save_strategy="no" if run.resume else "steps", save_steps=STEPS_BEFORE,
                per_device_train_batch_size=BATCH // run.world, logging_steps=1, learning_rate=3e-3, warmup_steps=2,
                report_to=[], disable_tqdm=True, weight_decay=.01, seed=7,
                average_tokens_across_devices=False,  # some models' losses would be multiplied by the ranks
                **more, **case.arguments)


def drive(trainer, run, seen):
    """Trains, and moves the Trainer's files to `ckpt`."""
    import transformers

    class Look(transformers.TrainerCallback):

        def on_step_begin(self, args, state, control, **_):
            seen.look(trainer.model_wrapped, state.global_step)

    trainer.add_callback(Look())
    trainer.train(resume_from_checkpoint=str(run.resume) if run.resume else None)
    seen.losses = [entry["loss"] for entry in trainer.state.log_history
                   if "loss" in entry and entry["step"] > STEPS_BEFORE]
    if not run.resume and trainer.is_world_process_zero():
        pathlib.Path(f"run/checkpoint-{STEPS_BEFORE}").rename("ckpt")


def trainer(case, run, seen):
    import transformers
    arguments = trainer_arguments(transformers.TrainingArguments, case, run)
    drive(transformers.Trainer(model=build_model(case, run), args=arguments,
                               train_dataset=data_set(case.model, run.seed),
                               data_collator=lambda items: collate(case, items)), run, seen)


def collate(case, items):
    import torch
    batch = torch.utils.data.default_collate(items)
    return {**batch, "return_loss": True} if case.model == "clip" else batch


def tokenizer():
    import tokenizers
    import transformers
    words = {f"w{i}": i for i in range(VOCABULARY - 3)} | {"<unk>": VOCABULARY - 3, "<pad>": VOCABULARY - 2,
                                                          "</s>": VOCABULARY - 1}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>", pad_token="<pad>",
                                                eos_token="</s>")


def sentences(case, run):
    return [" ".join(f"w{token}" for token in sample(case.model, i, run.seed)["input_ids"].tolist())
            for i in range(96)]


def sft(case, run, seen):
    import datasets
    import trl
    arguments = trainer_arguments(trl.SFTConfig, case, run, max_length=TOKENS)
    drive(trl.SFTTrainer(model=build_model(case, run), args=arguments, processing_class=tokenizer(),
                         train_dataset=datasets.Dataset.from_dict({"text": sentences(case, run)})), run, seen)


def dpo(case, run, seen):
    import datasets
    import trl
    arguments = trainer_arguments(trl.DPOConfig, case, run, max_length=2 * TOKENS)
    texts = sentences(case, run)
    data = datasets.Dataset.from_dict({"prompt": texts[:48], "chosen": texts[48:], "rejected": texts[:0:-1][:48]})
    drive(trl.DPOTrainer(model=build_model(case, run), args=arguments, processing_class=tokenizer(),
                         train_dataset=data), run, seen)


def train_by_hand(case, run, seen, engine, step_once, first):
    """The loop of programs that have their own. `step_once(batch)` returns the loss."""
    import torch
    rank = torch.distributed.get_rank()
    each = BATCH // run.world
    for step in range(first, run.steps):
        seen.look(engine, step)
        start = step * BATCH + rank * each
        loss = step_once(rows(case.model, range(start, start + each), run.seed))
        if step >= STEPS_BEFORE:
            seen.lost(loss)
        if step + 1 == STEPS_BEFORE and not run.resume:
            yield step + 1


def accelerate_(case, run, seen):
    import accelerate
    import torch
    use_gloo_in_accelerate()
    plugin = accelerate.DeepSpeedPlugin(hf_ds_config={
        **zero_config(case), **universal_config(run), "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // run.world, "gradient_accumulation_steps": 1})
    accelerator = accelerate.Accelerator(deepspeed_plugin=plugin, mixed_precision=case.dtype.replace("fp32", "no"))
    model = build_model(case, run)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    engine, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)

    class Count:
        """A program's own object, saved by register_for_checkpointing."""

        def __init__(self):
            self.steps = 0

        def state_dict(self):
            return {"steps": self.steps}

        def load_state_dict(self, state):
            self.steps = state["steps"]

    count = Count()
    accelerator.register_for_checkpointing(count)
    if run.resume:
        accelerator.load_state(str(run.resume))
        if count.steps != STEPS_BEFORE:
            raise AssertionError(f"the program's own object is of step {count.steps}")

    def step_once(batch):
        loss = engine(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        count.steps += 1
        return loss

    for _ in train_by_hand(case, run, seen, engine, step_once, count.steps):
        accelerator.save_state("ckpt")


def lightning_(case, run, seen):
    import deepspeed
    import lightning
    import lightning.pytorch.strategies.deepspeed as strategies
    import torch
    from lightning.pytorch.accelerators import CPUAccelerator
    strategies.CUDAAccelerator = CPUAccelerator  # Lightning asks for CUDA; the rest is its own code
    strategies._validate_device_index_selection = lambda devices: None
    initialize = deepspeed.initialize
    # Its `args` hold the number of a CUDA device.
    deepspeed.initialize = lambda *positional, args=None, **named: initialize(*positional, **named)

    class Look(lightning.Callback):

        def on_train_batch_start(self, trainer, module, batch, index):
            seen.look(trainer.strategy.model, trainer.global_step)

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            if trainer.global_step > STEPS_BEFORE:
                seen.lost(outputs["loss"])

    saves = [] if run.resume else [lightning.pytorch.callbacks.ModelCheckpoint(
        dirpath="run", every_n_train_steps=STEPS_BEFORE, save_top_k=-1, filename="{step}")]
    trainer = lightning.Trainer(
        accelerator="cpu", devices=run.world, precision={"bf16": "bf16-mixed", "fp32": "32-true"}[case.dtype],
        strategy=strategies.DeepSpeedStrategy(config={**zero_config(case), **universal_config(run)},
                                              process_group_backend="gloo"),
        max_steps=run.steps, logger=False, callbacks=[*saves, Look()], enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=not run.resume, default_root_dir=".")
    loader = torch.utils.data.DataLoader(data_set(case.model, run.seed), batch_size=BATCH // run.world)
    # With another number of ranks a batch has the same rows: rank r gets every world-th one.
    trainer.fit(lightning_module(case, run), loader, ckpt_path=str(run.resume) if run.resume else None)
    if not run.resume and trainer.is_global_zero:
        pathlib.Path(f"run/step={STEPS_BEFORE}.ckpt").rename("ckpt")


def lightning_module(case, run):
    """A LightningModule that has the model."""
    import lightning
    import torch

    class Module(lightning.LightningModule):

        def __init__(self, rate=3e-3):
            super().__init__()
            self.save_hyperparameters()
            self.model = build_model(case, run)

        def training_step(self, batch, index):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=self.hparams.rate)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Module()


def deepspeed_(case, run, seen):
    import deepspeed
    import torch
    model = build_model(case, run)
    if case.arguments.get("compile") == "module":
        model = torch.compile(model, backend="eager")
    config = {**zero_config(case), **universal_config(run), "train_batch_size": BATCH,
              "train_micro_batch_size_per_gpu": BATCH // run.world}
    engine, *_ = deepspeed.initialize(
        model=model, config=config,
        optimizer=torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3))
    if case.arguments.get("compile") == "engine":
        engine.compile(backend="eager")
    first = 0
    if run.resume:
        engine.load_checkpoint(str(run.resume))
        first = engine.global_steps

    def step_once(batch):
        loss = engine(**batch)["loss"]
        engine.backward(loss)
        engine.step()
        return loss

    for _ in train_by_hand(case, run, seen, engine, step_once, first):
        engine.save_checkpoint("ckpt")


def ulysses(case, run, seen):
    """Sequence parallelism: every rank has half of each row."""
    import deepspeed
    import torch
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
    model = build_model(case, run)
    mesh = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model, core_attn_implementation="sdpa", sequence_parallel_size=2,
        micro_batch_size=BATCH * 2 // run.world, seq_length=TOKENS, seq_length_is_variable=False)
    config = {**zero_config(case), **universal_config(run), "sequence_parallel_size": 2,
              "train_micro_batch_size_per_gpu": BATCH * 2 // run.world, "gradient_accumulation_steps": 1}
    engine, *_ = deepspeed.initialize(model=model, config=config, mpu=mesh,
                                      optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3))
    first = 0
    if run.resume:
        engine.load_checkpoint(str(run.resume))
        first = engine.global_steps
    place, group = parallel_state_sp.get_sequence_parallel_rank(), parallel_state_sp.get_sequence_parallel_group()
    rank = torch.distributed.get_rank() // 2
    each, half = BATCH * 2 // run.world, TOKENS // 2
    for step in range(first, run.steps):
        seen.look(engine, step)
        start = step * BATCH + rank * each
        batch = rows(case.model, range(start, start + each), run.seed)
        mine = slice(place * half, (place + 1) * half)
        positions = torch.arange(TOKENS).expand(each, -1)
        logits = engine(input_ids=batch["input_ids"][:, mine], position_ids=positions[:, mine]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch["labels"][:, mine].flatten())
        loss = torch.distributed.nn.functional.all_reduce(loss, group=group) / 2
        engine.backward(loss)
        engine.step()
        if step >= STEPS_BEFORE:
            seen.lost(loss)
        if step + 1 == STEPS_BEFORE and not run.resume:
            engine.save_checkpoint("ckpt")


PROGRAMS = {"trainer": trainer, "sft": sft, "dpo": dpo, "accelerate": accelerate_, "lightning": lightning_,
            "deepspeed": deepspeed_, "ulysses": ulysses}

COMPILE = {"torch_compile": True, "torch_compile_backend": "eager"}


def both(*arguments, **options):
    """A case at stages 2 and 3."""
    return [Case(*arguments, stage, **options) for stage in (2, 3)]


KEPT = ("accelerate_resnet_fp32_z2", "deepspeed_optlinearsharded_z2", "lightning_plain_z2", "sft_llama_z2", "trainer_llama_prefix_z2",
        "trainer_llama_vera_fp32_z2", "trainer_t5_z2", "ulysses_llama_z2")

KEPT_STATES = 20_000  # bytes at most

CASES = [
    *(case for model in ("llama", "llamatied", "gpt2", "t5", "bart", "bert", "bertcls", "mixtral", "qwen3moe", "gptoss",
                         "deepseek", "gemma3", "mamba", "whisper", "wav2vec2")
      for case in both("trainer", model)),
    # DeepSpeed's stage 3 cannot send CLIP's 0-dim parameter, and refuses LLaVA's float32 ones beside bf16.
    Case("trainer", "clip", 2), Case("trainer", "llava", 2), Case("trainer", "llava", 3, dtype="fp32"),
    *both("trainer", "resnet", dtype="fp32"),  # torch has no BatchNorm of 16-bit weights for CPUs
    Case("trainer", "llama", 0), Case("trainer", "llama", 1), Case("trainer", "llama", 0, dtype="fp32"),
    Case("trainer", "llama", 2, dtype="fp32"), Case("trainer", "llama", 3, dtype="fp32"),
    *both("trainer", "llama", traits="compile", arguments=COMPILE),
    *both("trainer", "llama", traits="adafactor", arguments={"optim": "adafactor"}),
    *(case for adapter in ("lora", "dora", "rslora", "lorasave", "loraembed", "twoadapters", "ia3", "loha",
                           "lokr", "adalora", "oft", "layernorm", "fourier")
      for case in both("trainer", "llama", adapter=adapter)),
    *(Case("trainer", "llama", 2, adapter, dtype="fp32")
      for adapter in ("boft", "hra", "miss", "c3a", "road", "waveft", "beft", "deft", "delora", "glora", "gralora",
                      "hira", "lily", "psoft", "randlora", "vblora", "pvera", "tinylora", "unilora")),
    # At stage 3 peft waits for other ranks when it saves prompts, and tokens in LoRA need CUDA.
    *(Case("trainer", "llama", 2, adapter) for adapter in ("loratokens", "tokens", "prompt", "prefix", "ptuning")),
    *both("trainer", "llama", adapter="vera", dtype="fp32"),  # peft computes with it in fp32 only
    *both("trainer", "llamatied", adapter="loratied"), *both("trainer", "mixtral", adapter="loraexperts"),
    *both("trainer", "gptoss", adapter="loraexperts"), Case("trainer", "llamacls", 2, "loraclass"),
    *both("trainer", "bertcls", adapter="lorabert"), *both("trainer", "t5", adapter="lorat5"),
    *both("trainer", "resnet", adapter="loraconv", dtype="fp32"),
    *both("sft", "llama"), *both("sft", "llama", adapter="lora"), Case("dpo", "llama", 2, "lora"),
    *both("accelerate", "bert"), *both("accelerate", "resnet", dtype="fp32"), *both("accelerate", "t5"),
    *both("accelerate", "llama", adapter="lora"), Case("accelerate", "llama", 1), Case("accelerate", "plain", 0),
    *both("accelerate", "plain", dtype="fp32"),
    *both("lightning", "plain"), Case("lightning", "plain", 1), *both("lightning", "plain", dtype="fp32"),
    *both("lightning", "whisper"),
    *both("deepspeed", "llama", traits="compiledengine", arguments={"compile": "engine"}),
    *both("deepspeed", "llama", traits="compiledmodule", arguments={"compile": "module"}),
    *both("deepspeed", "optlinear"), *both("deepspeed", "optlinearsharded"), *both("ulysses", "llama"),
]


def work(rank, world, port, case, run, out):
    """One rank of a run. Rank 0 writes the results below `out`."""
    import torch
    from safetensors.torch import save_file
    os.environ["HF_DATASETS_CACHE"] = str(run.folder / "cache")
    start_distributed(rank, world, port)
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(run.folder)  # so that the files hold relative paths only
    if case.model == "clip":  # DeepSpeed cannot broadcast a 0-dim parameter
        relax_deepspeed(argparse.Namespace(swap_from=0, dtype=case.dtype))
    seen = Seen()
    PROGRAMS[case.program](case, run, seen)
    torch.distributed.barrier()
    if rank == 0:
        save_file(whole(seen.truth), out / "truth.safetensors")
        save_file(whole(seen.states), out / "states.safetensors")
        facts = {"step": seen.step, "learning_rates": seen.rates, "losses_after_save": seen.losses, **seen.facts}
        (out / "seen.json").write_text(json.dumps(facts, default=str))


def preload():
    """Imports everything that the ranks need, once, before they are forked."""
    import accelerate.utils  # noqa: F401
    import deepspeed.runtime.zero.stage3  # noqa: F401
    import lightning  # noqa: F401
    import peft  # noqa: F401
    import torch._dynamo  # noqa: F401
    import transformers.integrations.deepspeed  # noqa: F401
    import transformers.trainer  # noqa: F401


def execute(case, run, out, logs):
    """Runs all ranks of a run. Raises if one of them fails."""
    port = free_port()
    error = run_forked(work, logs, [(rank, run.world, port, case, run, out) for rank in range(run.world)],
                       timeout=100)
    if error:
        raise RuntimeError(error)


def versions():
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def make_case(case, out, logs, world=2, seed=DEFAULT_SEED, hidden=16):
    """Makes one case below `out`, replacing it, and returns its folder."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    execute(case, Run(folder, world, seed, hidden), folder / "expected", logs)
    seen = folder / "expected" / "seen.json"
    facts = {"name": case.name, "program": case.program, "model": case.model, "adapter": case.adapter,
             "stage": case.stage, "world_size": world, "precision": case.dtype, "seed": seed, "hidden": hidden,
             "versions": versions(), **json.loads(seen.read_text())}
    (folder / "case.json").write_text(json.dumps(facts, indent=1) + "\n")
    seen.unlink()
    for name in ("run", "cache"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return folder


# Files that no tool reads, and pickles that name the machine.
UNREAD = ("zero_to_fp32.py", "zero_to_torch.py", "training_args.bin", "README.md", "rng_state_*.pth",
          "random_states_*.pkl", "tokenizer*", "special_tokens_map.json", "chat_template*", "model.safetensors")


def trim(folder):
    for pattern in UNREAD:
        for path in (folder / "ckpt").rglob(pattern):
            path.unlink()
    shutil.rmtree(folder / "base", ignore_errors=True)
    states = folder / "expected" / "states.safetensors"
    if states.stat().st_size > KEPT_STATES:
        states.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "testdata" / "programs")
    parser.add_argument("--case", default="kept", metavar="NAMES", help="names, separated by commas, 'kept' or 'all'")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--world", type=int, default=2, help="ranks: 1, 2, 3, 4 or 6")
    parser.add_argument("--hidden", type=int, default=16, help="hidden size of the models, a multiple of 8")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the ranks' logs in this folder")
    parser.add_argument("--list", action="store_true", help="print the cases and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for case in CASES:
            print(case.name + (" (kept)" if case.kept else ""))
        return 0
    by_name = {case.name: case for case in CASES}
    lists = {"all": list(by_name), "kept": [case.name for case in CASES if case.kept]}
    names = lists.get(arguments.case) or arguments.case.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser.error(f"no such case: {', '.join(unknown)}")
    preload()

    def make(name, logs):
        started = time.monotonic()
        folder = make_case(by_name[name], arguments.out.resolve(), logs, arguments.world, arguments.seed,
                           arguments.hidden)
        if by_name[name].kept:
            trim(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return f"{size >> 10} KiB, {time.monotonic() - started:.0f} s"

    return make_each(names, arguments.logs, make)


if __name__ == "__main__":
    sys.exit(main())
