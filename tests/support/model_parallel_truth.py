"""What the live engines of the model-parallel cases held, put together: the rules that testdata/README.md speaks of,
applied with NumPy. Tensors are those of the case, torch's or torch_files.py's."""
import functools
import re
from collections import defaultdict

import numpy
import torch_files
from numpy.lib.stride_tricks import as_strided



def is_expert_file(path):
    return "_expert_" in path.name


def model_files(folder):
    return sorted(path for path in folder.glob("*_model_states.pt")
                  if not is_expert_file(path) and not path.name.startswith("layer_"))


def natural(path):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def optim_files(folder):
    """By rank: 10 comes after 9."""
    return sorted(folder.glob("*_optim_states.pt"), key=natural)


@functools.lru_cache(maxsize=8)
def universal_info(case):
    """As the program has noted it where its classes are needed to load the file."""
    if "universal_info" in case.facts:
        return case.facts["universal_info"]
    return torch_files.load(model_files(case.tag_folder)[0]).get("universal_checkpoint_info") or {}


def block_of(array, shape, place):
    """A view of a contiguous array; `place` is an offset and strides, in elements."""
    offset, stride = place
    return as_strided(array.reshape(-1)[offset:], shape, [step * array.itemsize for step in stride])


def merge_affine(entry, parts):
    """Each piece is a block: where it lies in the whole tensor (source), and where in a rank's shard (dest)."""
    whole = numpy.full(entry["logical_shape"], numpy.nan, "f4")
    for rank, part in enumerate(parts):
        for piece in entry["ranks"][rank]["pieces"]:
            block_of(whole, piece["shape"], piece["source"])[...] = block_of(part, piece["shape"], piece["dest"])
    if numpy.isnan(whole).any():
        raise AssertionError("the pieces leave gaps")
    return whole


def merge_sub_params(info, name, parts):
    """The merged tensor, and the entry that the file has of its form."""
    entry, pattern = next((entry, pattern) for entry in info["parameter_with_sub_params"]
                          for pattern in entry["patterns"] if re.match(pattern, name))
    dim, shape = entry["partition_dim"], list(entry["shape"])
    if not isinstance(shape[dim], tuple):
        count = shape[dim]
        shape[dim] = (sum(part.shape[dim] for part in parts) // count, ) * count
    widths = info["sub_param_shard_widths"][pattern] if info["universal_checkpoint_version"] >= 0.4 else \
        [[size // len(parts)] * len(parts) for size in shape[dim]]
    cut = [numpy.split(part, numpy.cumsum([width[rank] for width in widths])[:-1], dim)
           for rank, part in enumerate(parts)]
    merged = numpy.concatenate([pieces[i] for i in range(len(widths)) for pieces in cut], dim)
    return merged, {"patterns": entry["patterns"], "shape": tuple(shape), "partition_dim": dim}


def merge(case, name, parts):
    """The whole of a parameter's slices by rank, and what else the file says of it. `parts`: tp -> slice."""
    parts = [case.array(part) for part in parts]
    info = universal_info(case)
    rules = case.facts["rules"]
    rule = next(rule for rule, names in rules.items() if name in names
                and rule not in ("vocabulary", "on_several_stages"))
    extra = {}
    if rule in ("whole", "cat_dim_0", "cat_dim_1"):
        extra["cat_dim"] = 1 if rule == "cat_dim_1" else 0
        merged = numpy.concatenate(parts, extra["cat_dim"])
    elif rule == "affine_map":
        entries = info["affine_map"]["params"]
        merged = merge_affine(next(entries[key] for key in entries if re.match(key, name)), parts)
    elif rule == "replicated":
        merged = parts[0]
    elif rule == "average":
        merged = sum(parts) / len(parts)
    elif rule == "two_sub_params":
        halves = [(part[:(len(part) + 1) // 2], part[(len(part) + 1) // 2:]) for part in parts]
        merged = numpy.concatenate([half[i] for i in (0, 1) for half in halves])
        extra = {"cat_dim": 0, "param_n_sub_params": 2}
    elif rule == "sub_params":
        merged, extra["sub_param_shape"] = merge_sub_params(info, name, parts)
    if name in rules.get("vocabulary", ()):
        merged = merged[:info["original_vocab_size"]]
        extra["vocab_tensor"] = True
    return case.tensor(merged), extra


@functools.lru_cache(maxsize=1)
def model_parallel_truth(case):
    """(name, state) -> tensor and what else the file says of it; trained parameters, under their global names."""
    slices = defaultdict(dict)
    for key, value in case.expected("live").items():
        name, state, *place = key.split("|")
        slices[name, state][tuple(int(part[2:]) for part in place)] = value
    experts, ep = case.facts["num_experts"], case.facts["topology"]["ep"]
    result = {}
    for (name, state), parts in slices.items():
        first = min(pp for pp, _, _ in parts)
        if name not in case.facts["rules"].get("experts", ()):
            result[name, state] = merge(case, name, [parts[place] for place in sorted(parts) if place[0] == first])
        elif case.facts["kind"] == "moe":
            prefix, local, rest = re.fullmatch(r"(.*\.deepspeed_experts\.)(\d+)(\..*)", name).groups()
            for (_, _, rank), value in parts.items():
                number = rank * (experts // ep) + int(local)
                result[f"{prefix}{number}{rest}", state] = value, {"cat_dim": 0}
        else:
            result[name, state] = (case.tensor(numpy.concatenate([case.array(parts[place]) for place in sorted(parts)])),
                                   {"cat_dim": 0, "is_expert_param": True, "ep_num_experts": experts})
    return result


def local_name(case, name):
    """A native expert's name on its own rank."""
    if case.facts.get("kind") != "moe":
        return name
    local = case.facts["num_experts"] // case.facts["topology"]["ep"]
    return re.sub(r"(?<=deepspeed_experts\.)\d+", lambda found: str(int(found[0]) % local), name)


def aliases(case):
    """alias -> owner: AutoEP calls a layer's router by its old name as well."""
    names = {key.split("|")[0] for key in case.expected("module")}
    found = {name: name.replace(".gate.gate.", ".router.gate.") for name in names if ".mlp.gate.gate." in name}
    return {name: owner for name, owner in found.items() if owner in names}


def untrained(case):
    """name -> tensor in its own type: buffers, those of the first ranks that have them."""
    trained = {name for name, _ in model_parallel_truth(case)} | {*case.facts["rules"].get("experts", ())}
    result = {}
    for key, value in sorted(case.expected("module").items()):
        name, _, tp, _ = key.split("|")
        if name not in trained and name not in aliases(case) and tp == "tp0":
            result.setdefault(name, value)
    return result


def weights(case):
    """name -> what zero-to-fp32 has to write, aliases included."""
    result = {name: value for (name, state), (value, _) in model_parallel_truth(case).items() if state == "fp32"}
    result |= {name: case.cast(value, "float32") if value.is_floating_point() else value for name, value in untrained(case).items()}
    return result | {alias: result[owner] for alias, owner in aliases(case).items()}
