"""The true values of the model-parallel cases, merged from the live engines by the rules of testdata/README.md, with
NumPy. Tensors are those of the case: torch's or torch_files.py's."""
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
    """Sorted by rank as a number: 10 comes after 9."""
    return sorted(folder.glob("*_optim_states.pt"), key=natural)


@functools.lru_cache(maxsize=8)
def universal_info(case):
    """The information that the program wrote separately, since loading the file needs its classes."""
    if "universal_info" in case.facts:
        return case.facts["universal_info"]
    return torch_files.load(model_files(case.tag_folder)[0]).get("universal_checkpoint_info") or {}


def block_of(array, shape, place):
    """A view of a contiguous array; `place` is an offset and strides, in elements."""
    offset, stride = place
    return as_strided(array.reshape(-1)[offset:], shape, [step * array.itemsize for step in stride])


def merge_affine(entry, parts):
    """Merges pieces. Each is a block with a place in the whole tensor (source) and in a rank's shard (dest)."""
    whole = numpy.full(entry["logical_shape"], numpy.nan, "f4")
    for rank, part in enumerate(parts):
        for piece in entry["ranks"][rank]["pieces"]:
            block_of(whole, piece["shape"], piece["source"])[...] = block_of(part, piece["shape"], piece["dest"])
    if numpy.isnan(whole).any():
        raise AssertionError("the pieces leave gaps")
    return whole


def merge_sub_params(info, name, parts):
    """The merged tensor, and the file's entry about its form."""
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
    """Merges a parameter's slices of all ranks. Returns the whole, and other entries of the file. `parts`: tp ->
    slice."""
    parts = [case.array(part) for part in parts]
    info = universal_info(case)
    rules = case.facts["rules"]
    rule = next(rule for rule, names in rules.items() if name in names
                and rule not in ("vocabulary", "on_several_stages", "experts"))
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
    """(name, state) -> tensor and the file's other entries, for trained parameters under their global names."""
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
        elif case.facts["kind"].endswith("moe"):
            prefix, local, rest = re.fullmatch(r"(.*\.deepspeed_experts\.)(\d+)(\..*)", name).groups()
            for rank in range(ep):
                slices = [parts[place] for place in sorted(parts) if place[2] == rank]
                merged = merge(case, name, slices) if len(slices) > 1 else (slices[0], {"cat_dim": 0})
                result[f"{prefix}{rank * (experts // ep) + int(local)}{rest}", state] = merged
        else:
            result[name, state] = (case.tensor(numpy.concatenate([case.array(parts[place]) for place in sorted(parts)])),
                                   {"cat_dim": 0, "is_expert_param": True, "ep_num_experts": experts})
    return result


def local_name(case, name):
    """A native expert's name on its own rank."""
    if not case.facts.get("kind", "").endswith("moe"):
        return name
    local = case.facts["num_experts"] // case.facts["topology"]["ep"]
    return re.sub(r"(?<=deepspeed_experts\.)\d+", lambda found: str(int(found[0]) % local), name)


def aliases(case):
    """alias -> owner: AutoEP also uses the old name of a layer's router."""
    names = {key.split("|")[0] for key in case.expected("module")}
    found = {name: name.replace(".gate.gate.", ".router.gate.") for name in names if ".mlp.gate.gate." in name}
    return {name: owner for name, owner in found.items() if owner in names}


def untrained(case):
    """name -> tensor in its own type: buffers of the first ranks that have them."""
    trained = {name for name, _ in model_parallel_truth(case)} | {*case.facts["rules"].get("experts", ())}
    result = {}
    for key, value in sorted(case.expected("module").items()):
        name, _, tp, _ = key.split("|")
        if name not in trained and name not in aliases(case) and tp == "tp0":
            result.setdefault(name, value)
    return result


def weights(case):
    """name -> the weights that zero-to-fp32 must write, including aliases."""
    result = {name: value for (name, state), (value, _) in model_parallel_truth(case).items() if state == "fp32"}
    result |= {name: case.cast(value, "float32") if value.is_floating_point() else value for name, value in untrained(case).items()}
    return result | {alias: result[owner] for alias, owner in aliases(case).items()}
