#!/usr/bin/env python3
"""Writes lib/checkpoint/names/rules.jsonl: the differences between names of transformers' models and on the hub.

    scripts/python scripts/make_names.py [--check] [CLASS ...]

The source is the installed release of transformers. For each class of model that its auto classes know, a model is
made from the default configuration without memory for weights. The rules are those of the conversion mapping that
save_pretrained() reverts: transformers.conversion_mapping.get_model_conversion_mapping(model, add_legacy=False).
Changes of prefixes are left out. core_model_loading.revert_weight_conversion() also leaves them out for a model
that was not loaded from a folder.

The file has only facts: names, patterns, operations with their sizes. lib/checkpoint/names/README.md describes
its reader. --check writes nothing, and fails if the file is not current. With CLASS, only these classes are
examined and printed.
"""
import collections
import json
import os
import re
import sys
import warnings

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILE = os.path.join(ROOT, "lib", "checkpoint", "names", "rules.jsonl")

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.simplefilter("ignore")

import torch
import transformers
from transformers import conversion_mapping, core_model_loading
from transformers.models.auto import configuration_auto, modeling_auto

# Operations that can describe tensors, as (name, arguments). Any other operation makes a rule "unknown".
OPERATIONS = {
    "Chunk": lambda op: ["chunk", op.dim] + ([op.num_shards_attribute] if op.num_shards_attribute else []),
    "Concatenate": lambda op: ["cat", op.dim] + ([op.num_shards_attribute] if op.num_shards_attribute else []),
    "Split": lambda op: ["split", op.dim],
    "MergeModulelist": lambda op: ["stack", op.dim],
    "SplitModulelist": lambda op: ["unstack", op.dim],
    "Transpose": lambda op: ["transpose", op.dim0, op.dim1] + (["if_unlike"] if op.check_dims else []),
    "Interleave": lambda op: ["interleave", op.dim, bool(op.inverse)],
    "PermuteForRope": lambda op: ["rope", op.subconfig_key or "", bool(op.inverse), op.permute_layer_names or []],
    "ErnieFuseAndSplitTextVisionExperts": lambda op: ["fuse_kinds", op.stack_dim, op.concat_dim],
    "ErnieSplitAndDecoupleTextVisionExperts": lambda op: ["split_kinds", op.stack_dim, op.concat_dim],
}


def one_way(transform):
    """A transform in the direction in which it is applied: the pattern and its replacement."""
    branches = []
    # WeightTransform.__init__ and hub_names.cpp do the same.
    for i, source in sorted(enumerate(transform.source_patterns), key=lambda item: -len(item[1])):
        pattern = source.replace("*.", r".*\.")
        if re.search(r"[a-zA-Z0-9]$", pattern):
            pattern += r"(?!\w)"
        branches.append(f"(?P<g{i}>{pattern})")
    assert "|".join(branches) == transform.compiled_sources.pattern, transform
    way = {"from": transform.source_patterns, "to": transform.target_patterns}
    if len(transform.source_patterns) == 1:
        way |= without_lookarounds(transform.source_patterns[0])
    return way


def without_lookarounds(source):
    """Removes lookarounds, which RE2 lacks: the pattern without those at its ends, and the texts that may not be
    beside it.

    Others stay, and RE2 refuses them.
    """
    group = r"(?:[^()\\]|\\.|\((?!\?)(?:[^()\\]|\\.)*\)|\(\?:(?:[^()\\]|\\.)*\))+"
    match = re.fullmatch(rf"((?:\(\?<!{group}\))*)(.*?)(?:\(\?!({group})\))?", source)
    behind, rest, ahead = re.findall(rf"\(\?<!({group})\)", match[1]), match[2], match[3]
    if not behind and not ahead:
        return {}
    if re.search(r"[a-zA-Z0-9]$", rest) and not ahead:
        rest += r"\b"
    return {"find": rest, "not_behind": behind, "not_ahead": [ahead] if ahead else []}


def rule_of(transform):
    kind = type(transform).__name__
    if kind not in ("WeightRenaming", "WeightConverter", "GroupWeightRename"):
        return {"unknown": kind}
    rule = {"save": one_way(transform.reverse_transform()), "load": one_way(transform)}
    if kind == "WeightConverter":
        reverse = transform.reverse_transform()
        try:
            rule["save"]["do"] = [OPERATIONS[type(op).__name__](op) for op in reverse.operations]
            rule["load"]["do"] = [OPERATIONS[type(op).__name__](op) for op in transform.operations]
        except KeyError as operation:
            return {"unknown": operation.args[0], "save": rule["save"], "load": rule["load"]}
    elif kind == "GroupWeightRename":
        rule["group"] = True
    return rule


def classes():
    """{class name: model type} of all classes that the auto classes know."""
    found = {}
    for name, value in vars(modeling_auto).items():
        if name.startswith("MODEL_") and name.endswith("_MAPPING_NAMES"):
            for model_type, models in value.items():
                for model in (models,) if isinstance(models, str) else models:
                    found.setdefault(model, model_type)
    # Bare models, which are parts of other models.
    return found


# Arguments for classes whose default configuration makes no model, by the beginning of their names.
ARGUMENTS = {
    "AyaVision": {"vision_config": {"model_type": "siglip_vision_model", "num_attention_heads": 16}},
    "Dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "moe_intermediate_size": 1408},
    "HunYuan": {"head_dim": 128},
    "Lfm2Moe": {"layer_types": ["full_attention", "conv"], "num_hidden_layers": 2},
    "Ministral": {"head_dim": 128},
    "Nemotron": {"num_key_value_heads": 48},
}


def make(name, model_type):
    model_class = getattr(transformers, name, None)
    if model_class is None or getattr(model_class, "config_class", None) is None:
        raise ValueError("no class with a configuration")
    arguments = next((value for key, value in ARGUMENTS.items() if name.startswith(key)), {})
    config = model_class.config_class(**arguments)
    with torch.device("meta"):
        return model_class(config)


def uses_of(model):
    """[[prefix, rules]] in the order of get_model_conversion_mapping().

    The prefix is None for the model's own rules.
    """
    uses = []
    mapping = conversion_mapping.get_checkpoint_conversion_mapping
    seen = collections.defaultdict(list)

    def is_claimed(key, place):
        return any(at == "" or place.startswith(at + ".") for at in seen[key])

    total = 0
    for place, part in model.named_modules():
        if not isinstance(part, transformers.PreTrainedModel):
            continue
        name, model_type = type(part).__name__, part.config.model_type
        if is_claimed(name, place):
            continue
        by_class = mapping(name) is not None
        if not by_class and model_type and is_claimed(model_type, place):
            continue
        key = name if by_class else model_type
        rules = mapping(key) if key else None
        if rules is None:
            continue
        total += len(rules)
        scope = None if place == "" else place.removeprefix(model.base_model_prefix).removeprefix(".")
        uses.append([scope, key])
        seen[name].append(place)
        if not by_class and model_type:
            seen[model_type].append(place)
    whole = conversion_mapping.get_model_conversion_mapping(model, add_legacy=False)
    assert len(whole) == total, (type(model), len(whole), total)
    return uses


def parts_of(model):
    """{key of the configuration: [place, model type]} of parts that are models themselves."""
    parts = {}
    for key in getattr(model.config, "sub_configs", None) or {}:
        config = getattr(model.config, key, None)
        if config is None:
            continue
        for place, part in model.named_modules():
            if place and isinstance(part, transformers.PreTrainedModel) and part.config is config:
                parts[key] = [place, config.model_type]
                break
    return parts


def comes_back(model):
    """Returns whether loading restores the module's names from the saved ones, without knowing the module's names.

    transformers knows them: a name in the module stays if the rules would change it to one that is not there.
    """
    rules = conversion_mapping.get_model_conversion_mapping(model, add_legacy=False)
    rules = [rule for rule in rules if not is_prefix_change(rule)]
    saved = {new for name in sorted(model.state_dict())
             for new in all_names(name, [rule.reverse_transform() for rule in rules[::-1]], saving=True)}
    loaded = {new for name in sorted(saved) for new in all_names(name, rules, saving=False)}
    return loaded == set(model.state_dict()) and not any(
        type(op).__name__ == "Split" for rule in rules for op in getattr(rule, "operations", ()))


def all_names(name, rules, saving):
    """The new name of a tensor, if every list of modules had one member."""
    renamings = [rule for rule in rules if isinstance(rule, core_model_loading.WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, core_model_loading.WeightConverter)]
    if not saving:
        name = core_model_loading.apply_renamings(name, renamings)
    found = None
    for rule in converters:
        name, found = rule.rename_source_key(name)
        if found is not None:
            break
    names = [name]
    if found is not None:
        names = [name.replace(rule.target_patterns[0], target).replace("*", "0") for target in rule.target_patterns]
    return [core_model_loading.apply_renamings(each, renamings) for each in names] if saving else names


def children_of(module):
    return [name for name, _ in [*module.named_children(), *module.named_parameters(recurse=False),
                                 *module.named_buffers(recurse=False)]]


def collect(names):
    mapping = conversion_mapping._build_checkpoint_conversion_mapping()
    models, plain, left_out = {}, [], {}
    for name, model_type in sorted(names.items()):
        try:
            model = make(name, model_type)
            uses = uses_of(model)
        except Exception as error:  # no defaults for something
            left_out[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"
            continue
        parts = parts_of(model)
        own = [use for use in uses if any(not is_prefix_change(rule) for rule in mapping[use[1]])]
        if not own and not parts:
            plain.append(name)
            continue
        tops = children_of(model)
        row = {"type": model.config.model_type, "base": model.base_model_prefix, "tops": tops}
        # A module that looks like a wrapper around the model, but is none.
        nested = [f"{child}.{name}" for child, part in model.named_children() for name in children_of(part)
                  if name in tops]
        if nested:
            row["nested"] = nested
        row["uses"] = own
        if own and not comes_back(model):
            row["one_way"] = True
        if parts:
            row["parts"] = parts
        models[name] = row
    return models, plain, left_out


def is_prefix_change(rule):
    return type(rule) is core_model_loading.PrefixChange


def rules_file():
    models, plain, left_out = collect(classes())
    mapping = conversion_mapping._build_checkpoint_conversion_mapping()
    used = sorted({key for row in models.values() for _, key in row["uses"]})
    rules, first = {}, {}
    for key in used:
        own = [rule_of(rule) for rule in mapping[key] if not is_prefix_change(rule)]
        text = json.dumps(own)
        # A type with the same rules refers to the first one.
        rules[key] = first[text] if text in first else own
        first.setdefault(text, key)
    bases = {}
    for model_type, name in modeling_auto.MODEL_MAPPING_NAMES.items():
        name = name if isinstance(name, str) else name[0]
        if name in models or name in plain:
            bases[model_type] = name
    lines = [["release", "transformers", transformers.__version__]]
    lines += [["rules", key, own] for key, own in rules.items()]
    lines += [["model", name, models.get(name)] for name in sorted([*models, *plain])]
    lines += [["base", model_type, name] for model_type, name in sorted(bases.items())]
    counts = (sum(len(own) for own in rules.values() if isinstance(own, list)), len(models), len(plain))
    return "".join(json.dumps(line) + "\n" for line in lines), counts, left_out


def main():
    arguments = sys.argv[1:]
    check = "--check" in arguments
    names = [name for name in arguments if name != "--check"]
    if names:
        known = classes()
        print(json.dumps(collect({name: known[name] for name in names}), indent=1))
        return 0
    text, (rules, models, plain), left_out = rules_file()
    print(f"transformers {transformers.__version__}: {rules} rules, {models} classes with rules or parts, {plain} "
          f"without, {len(left_out)} left out")
    for name, why in sorted(left_out.items()):
        print(f"  {name}: {why}")
    if check:
        with open(FILE, encoding="utf-8") as old:
            return int(old.read() != text)
    with open(FILE, "w", encoding="utf-8") as new:
        new.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
