"""Tiny random models of transformers' classes, and comparisons of their names with those on the hub.

Needs torch and transformers.
"""
import os
import pathlib
import re
import sys

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

import tools

sys.path.append(os.path.join(os.environ["DSCKPT_SOURCE"], "scripts"))
import make_names

MOST_ELEMENTS = 110_000_000

# Sizes by their names in configurations: patterns for whole names; the first match counts.
SIZES = [
    (r"first_k_dense_replace|n_group|topk_group|num_nextn_predict_layers", 1),
    (r"(num_)?(hidden_layers|layers|encoder_layers|decoder_layers|blocks)|n_layers?|depth", 2),
    (r"num_(decoder|encoder|hidden)_layers", 2),
    (r"(num_|n_|moe_num_|num_local_)(routed_)?experts|num_local_experts", 4),
    (r"num_experts_per_tok|moe_k|moe_topk|top_k", 2),
    (r"moe_intermediate_size|shared_expert_intermediate_size|expert_ffn_hidden_size", 32),
    (r"hidden_size|d_model|n_embd|embed_dim|word_embed_proj_dim|width|projection_dim|out_hidden_size", 64),
    (r"intermediate_size|ffn_dim|d_ff|(encoder|decoder)_ffn_dim|ffn_hidden_size|n_inner", 96),
    (r"num_attention_heads|n_heads?|num_heads|(encoder|decoder)_attention_heads", 4),
    (r"num_key_value_heads|num_kv_heads", 2),
    (r"head_dim|qk_nope_head_dim|v_head_dim|d_kv|global_head_dim", 16),
    (r"qk_rope_head_dim", 8),
    (r"kv_lora_rank|q_lora_rank", 24),
    (r"linear_(key|value)_head_dim", 8),
    (r"linear_num_(key|value)_heads", 4),
    (r"vocab_size|vocab_size_per_layer_input", 128),
    (r"max_position_embeddings|n_positions|max_source_positions|max_target_positions", 64),
    (r"hidden_size_per_layer_input", 8),
]
LAYERS_ONLY = SIZES[:5]
LAYERS_AND_WORDS = LAYERS_ONLY + [size for size in SIZES if "vocab" in size[0]]


def smaller(values, sizes):
    """A configuration's dict with small numbers. Lists with an item for each layer get as many items as there are
    layers."""
    old_layers = values.get("num_hidden_layers", values.get("num_layers"))
    made = {}
    for key, value in values.items():
        if not isinstance(key, str):  # of labels
            pass
        elif isinstance(value, dict):
            value = smaller(value, sizes)
        elif isinstance(value, int) and not isinstance(value, bool):
            value = next((min(value, size) for pattern, size in sizes if re.fullmatch(pattern, key)), value)
            if len(sizes) > len(LAYERS_ONLY) and key.endswith(("_token_id", "_token_index")) and value >= 128:
                value = 3 + sum(map(ord, key)) % 100
        elif isinstance(value, list) and old_layers and len(value) == old_layers and old_layers > 2:
            value = [value[0], value[-1]]
        made[key] = value
    return made


def make(name, seed=1):
    """A model with random numbers everywhere, or None if a configuration alone makes no model."""
    model_class = getattr(transformers, name)
    arguments = next((value for key, value in make_names.ARGUMENTS.items() if name.startswith(key)), {})
    defaults = model_class.config_class(**arguments)
    for sizes in (SIZES, LAYERS_AND_WORDS, LAYERS_ONLY, []):
        try:
            config = model_class.config_class.from_dict(smaller(defaults.to_dict(), sizes) if sizes else {})
            with torch.device("meta"):
                elements = sum(value.numel() for value in model_class(config).state_dict().values())
            if elements > MOST_ELEMENTS:
                continue
            model = model_class(config)
        except Exception:  # such sizes are impossible for this model
            continue
        fill(model, seed)
        return model
    return None


def fill(model, seed):
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=random, dtype=torch.float32))


def save(model, folder):
    """Writes folder/hub with save_pretrained, and folder/module: the state_dict beside the same config.json."""
    hub, module = pathlib.Path(folder, "hub"), pathlib.Path(folder, "module")
    model.save_pretrained(hub)
    module.mkdir()
    torch.save(model.state_dict(), module / "pytorch_model.bin")
    (module / "config.json").write_bytes((hub / "config.json").read_bytes())
    return hub, module


def files_of(folder):
    return sorted(pathlib.Path(folder).glob("*.safetensors"))


def tensors_in(folder):
    return {name: value for path in files_of(folder) for name, value in load_file(path).items()}


def with_aliases(folder):
    """The tensors, and the names that are tied to them by the metadata."""
    tensors = tensors_in(folder)
    for path in files_of(folder):
        with safe_open(path, "pt") as file:
            for alias, owner in (file.metadata() or {}).items():
                if owner in tensors:
                    tensors[alias] = tensors[owner]
    return tensors


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) if a.dim() else torch.equal(a, b)


def differences(theirs, ours, ignored=()):
    """The errors in `ours`: it must have all of their tensors, bit by bit, and no others except tied ones."""
    found = [f"lacks {name}" for name in theirs if name not in ours]
    found += [f"unlike: {name}" for name in theirs if name in ours and not same_bits(theirs[name], ours[name])]
    for name in ours:
        if name not in theirs and not any(re.search(pattern, name) for pattern in ignored) and not any(
                same_bits(ours[name], value) for value in theirs.values()):
            found.append(f"has {name}")
    return found


def ignored_by(model):
    ignored = model._keys_to_ignore_on_save or ()
    return [pattern if isinstance(pattern, str) else pattern.pattern for pattern in ignored]


def check_to_hub(model, hub, module, output):
    """The differences between zero-to-fp32's output for the module's tensors and save_pretrained's."""
    done = tools.run_tool("zero-to-fp32", module, output, "--safe-serialization", "--dtype=keep", "--json")
    if done.returncode != 0:
        return [f"zero-to-fp32: exit status {done.returncode}: {done.stderr}"]
    theirs = tensors_in(hub)
    found = differences(theirs, with_aliases(output), ignored_by(model))
    changed = set(theirs) != set(theirs) & set(model.state_dict())
    noted = "names are the hub's" in done.stdout + done.stderr
    if changed and not noted:
        found.append("has no note on its names")
    return found


def check_to_module(model, hub, module, folder):
    """The differences between to-universal's output for save_pretrained's files and the module's parameters.

    If it reports that names alone do not suffice, it gets them with --like.
    """
    output, options = pathlib.Path(folder, "start", "universal"), []
    done = tools.run_tool("to-universal", hub, output)
    if "--like CHECKPOINT takes those of a run" in done.stderr:
        run, output = pathlib.Path(folder, "run"), pathlib.Path(folder, "like", "universal")
        tools.run_tool("to-universal", module, run / "universal")
        done = tools.run_tool("to-universal", hub, output, "--like", run)
        options = ["with --like"]
    if done.returncode != 0:
        return [f"to-universal: exit status {done.returncode}: {done.stderr}"], options
    ours = {path.parent.name: torch.load(path, weights_only=False)["param"]
            for path in (output / "zero").glob("*/fp32.pt")}
    state = model.state_dict()
    theirs = {name: state[name].float() for name, _ in model.named_parameters() if state[name].is_floating_point()}
    buffers = {name: value.float() for name, value in model.named_buffers() if value.is_floating_point()}
    found = [f"has {name}" for name in ours if name not in state]
    found += [f"lacks {name}" for name in theirs if name not in ours and name not in tied_names(model)]
    # A universal checkpoint has no scalar tensors.
    found += [f"unlike: {name}" for name, value in {**buffers, **theirs}.items()
              if name in ours and not same_bits(torch.atleast_1d(value).contiguous(), ours[name].contiguous())]
    return found, options


def tied_names(model):
    """Names of parameters that have other names too, and may be left out."""
    by_place = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        by_place.setdefault(value.data_ptr(), []).append(name)
    return {name for names in by_place.values() if len(names) > 1 for name in names}
