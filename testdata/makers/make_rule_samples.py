#!/usr/bin/env python3
"""Writes testdata/samples/tp_rules.json: slices of parameters with the results of DeepSpeed's own code
(ds_to_universal.py merge_tp_slices, affine.py, autoep_affine.py). Broken forms of `universal_checkpoint_info`
are there, too. Needs torch and deepspeed.

    DS_ACCELERATOR=cpu testdata/makers/make_rule_samples.py

Pickles are in hexadecimal. Tensors are texts: "SIZE SIZE: ELEMENT ELEMENT ...". An element k of a slice stands for
float(k) / 7; elements of a merged tensor are bits in hexadecimal.
"""

import contextlib
import copy
import json
import os
import pathlib
import pickle
import re
import sys
import tempfile

with contextlib.redirect_stdout(sys.stderr):
    import torch
    from deepspeed.checkpoint import affine
    from deepspeed.checkpoint import autoep_affine
    from deepspeed.checkpoint import ds_to_universal

NAME = "h.0.w"


def tensor(shape, first=0):
    """Different numbers, most of them inexact; value() in the test makes the same ones."""
    count = torch.Size(shape).numel()
    return (torch.arange(first, first + count, dtype=torch.float32) / 7.0).reshape(shape)


def numbers(value):
    """The numbers from which tensor() made `value`."""
    found = [round(x * 7.0) for x in value.double().flatten().tolist()]
    assert torch.equal(torch.tensor(found, dtype=torch.float32) / 7.0, value.flatten())
    return found


def pickled(value):
    return pickle.dumps(value, protocol=2).hex()


def merge(info, slices, name):
    """The universal dict that DeepSpeed writes for the slices, and the patterns that it did not use."""
    with tempfile.TemporaryDirectory() as folder:
        for rank, one in enumerate(slices):
            if one.numel() == 0:
                continue  # such a rank writes no fragment
            parent = os.path.join(folder, "slices", name, str(rank))
            os.makedirs(parent)
            for state in ("fp32", "exp_avg", "exp_avg_sq"):
                torch.save(one.flatten().clone(), os.path.join(parent, state + ".00"))
        shapes = [tuple(one.shape) for one in slices]
        unused = ds_to_universal.merge_tp_slices(info, os.path.join(folder, "out"),
                                                 os.path.join(folder, "slices"), len(slices),
                                                 (name, shapes))
        made = torch.load(os.path.join(folder, "out", name, "fp32.pt"), weights_only=False)
    return made, sorted(unused)


def form_text(made):
    """The keys beside `param`, in the form of the test's form_text()."""
    out = []
    for key in sorted(made):
        if key == "param":
            continue
        value = made[key]
        if key == "sub_param_shape":
            value = f"{value.patterns} {value.shape!r} {value.partition_dim}"
        out.append(f"{key}={value}")
    return "; ".join(out)


samples = []


def sample(title, info, slices, fails=None, name=NAME, full=None, whole=None):
    """`fails`: (error class, part of its text), and DeepSpeed must refuse it too. `full`: the expected result, if it
    is known without merging. `whole`: the bare slices if they are not from tensor()."""
    expected, form, unused = None, "", []
    if fails is None:
        made, unused = merge(info, slices, name)
        expected, form = made["param"], form_text(made)
        assert full is None or torch.equal(full, expected), title
    else:
        try:
            merge(info, slices, name)
        except (AssertionError, ValueError, RuntimeError, KeyError, IndexError, TypeError,
                NotImplementedError):
            pass
        else:
            sys.exit(f"DeepSpeed takes {title}")
    samples.append((title, info, name, slices, expected, form, unused, fails))


def cut(full, widths, dim):
    return list(torch.split(full, widths, dim=dim))


def exact(name=NAME):
    return "^" + re.escape(name) + "$"


def with_map(*maps, version=1, **more):
    params = {exact(): maps[0].to_dict() if hasattr(maps[0], "to_dict") else maps[0]}
    return {"universal_checkpoint_version": 0.4, "affine_map": {"version": version, "params": params}, **more}


def affine_sample(title, one, **more):
    full = tensor(one.logical_shape)
    ranks = range(len(one.shard_shapes))
    with contextlib.suppress(NotImplementedError):
        one.validate_coverage()
    sample(title, with_map(one, **more), [one.extract(full, rank) for rank in ranks], full=full)


# Plain concatenation.
sample("no rules at all", {}, cut(tensor([5, 3]), [3, 2], 0), full=tensor([5, 3]))
sample("one rank", {}, [tensor([4, 2])])
sample("vectors, one rank without elements", {}, cut(tensor([5]), [3, 0, 2], 0))
sample("row parallel", {"parameter_with_row_parallelism_patterns": [r"h\.\d+\.w"]},
       cut(tensor([3, 7]), [4, 3], 1), full=tensor([3, 7]))
sample("row parallel, one rank without elements",
       {"parameter_with_row_parallelism_patterns": [exact(), "^other$"]},
       cut(tensor([3, 4]), [2, 2, 0], 1), full=tensor([3, 4]))
sample("patterns are not anchored at the end", {"parameter_with_row_parallelism_patterns": ["h"]},
       cut(tensor([2, 4]), [2, 2], 1))
sample("patterns are anchored at the start", {"parameter_with_row_parallelism_patterns": ["0.w"]},
       cut(tensor([4, 2]), [2, 2], 0))
sample("an exact pattern is not a prefix", {"parameter_with_row_parallelism_patterns": ["^h\\.0$"]},
       cut(tensor([4, 2]), [2, 2], 0))
sample("a dot in an exact pattern matches anything",
       {"parameter_with_row_parallelism_patterns": ["^h.0.w$"]}, cut(tensor([2, 4]), [2, 2], 1),
       name="h-0-w")
sample("slices that differ elsewhere", {}, [tensor([2, 3]), tensor([2, 4])],
       fails=("InconsistentError", "dimension 0: [2, 3], [2, 4]"))
sample("a row parallel vector", {"parameter_with_row_parallelism_patterns": ["h"]},
       [tensor([2]), tensor([2])], fails=("InconsistentError", "dimension 1"))
sample("scalars of several ranks", {}, [tensor([]), tensor([])],
       fails=("InconsistentError", "dimension 0"))
sample("two row parallel patterns", {"parameter_with_row_parallelism_patterns": ["h", "^h\\.0\\.w$"]},
       [tensor([2, 2]), tensor([2, 2])],
       fails=("InconsistentError", "parameter_with_row_parallelism_patterns match: 'h', '^h\\.0\\.w$'"))

# Replicated and averaged.
sample("replicated", {"tp_replicated_parameter_patterns": ["h", "unused"]}, [tensor([2, 3])] * 3)
sample("replicated, one rank", {"tp_replicated_parameter_patterns": ["h"]}, [tensor([3])])
sample("replicated scalar", {"tp_replicated_parameter_patterns": ["h"]}, [tensor([])] * 2)
sample("replicated goes before row parallel, which stays unused",
       {"tp_replicated_parameter_patterns": ["h"], "parameter_with_row_parallelism_patterns": ["h."]},
       [tensor([2, 3])] * 2)
sample("one pattern in two lists is used once and for all",
       {"tp_replicated_parameter_patterns": ["h"], "parameter_with_row_parallelism_patterns": ["h"]},
       [tensor([2, 3])] * 2)
sample("replicas that differ", {"tp_replicated_parameter_patterns": ["h"]},
       [tensor([2, 3]), tensor([2, 3], first=1)],
       fails=("differ", "fp32 of 'h.0.w' on tensor-parallel ranks 0 and 1"))
sample("the third of three replicas differs", {"tp_replicated_parameter_patterns": ["h"]},
       [tensor([2]), tensor([2]), tensor([2], first=1)],
       fails=("differ", "fp32 of 'h.0.w' on tensor-parallel ranks 0 to 2"))
sample("replicas of different shapes", {"tp_replicated_parameter_patterns": ["h"]},
       [tensor([2, 3]), tensor([3, 2])], fails=("InconsistentError", "replicated"))
sample("two replicated patterns", {"tp_replicated_parameter_patterns": ["h", "h"]}, [tensor([2])] * 2,
       fails=("InconsistentError", "several patterns"))
sample("averaged over three ranks", {"parameter_to_average_patterns": ["h"]},
       [tensor([2, 3], first=first) for first in (1, 100, 20000)])
sample("averaged, one rank", {"parameter_to_average_patterns": ["h"]}, [tensor([5])])
sample("averaged, of different shapes", {"parameter_to_average_patterns": ["h"]},
       [tensor([2]), tensor([3])], fails=("InconsistentError", "averaged"))

# Two sub-parameters.
TWO = {"parameter_with_2_sub_params_cat_dim_0": ["h"]}
sample("two sub-parameters", TWO, [tensor([4, 2]), tensor([4, 2], first=50)])
sample("two sub-parameters of odd and uneven slices", TWO,
       [tensor([5, 2]), tensor([3, 2], first=50), tensor([2, 2], first=80)])
sample("two sub-parameters, a rank without elements", TWO, [tensor([4]), tensor([0])])
sample("two sub-parameters, one rank", TWO, [tensor([7])])
sample("two sub-parameters in one row", TWO, [tensor([2, 2]), tensor([1, 2])],
       fails=("InconsistentError", "rank 1 has one row"))


# Sub-parameters.
def sub(shape, dim, version=0.4, widths=None, pattern="h"):
    info = {"parameter_with_sub_params": [{"patterns": ["never", pattern], "shape": shape, "partition_dim": dim}]}
    if version is not None:
        info["universal_checkpoint_version"] = version
    if widths is not None:
        info["sub_param_shard_widths"] = {pattern: widths}
    return info


def slices_of(widths, dim, other, flat=False):
    """A slice for each rank: its widths of the sub-parameters along dim."""
    made = []
    for rank in range(len(widths[0])):
        shape = list(other)
        shape.insert(dim, sum(row[rank] for row in widths))
        made.append(tensor(shape, first=100 * rank))
    return [one.flatten() for one in made] if flat else made


GQA = [[3, 2], [2, 1], [2, 1]]
sample("sub-parameters, a list, widths uneven", sub([(5, 3, 3), -1], 0, widths=GQA), slices_of(GQA, 0, [3]))
sample("sub-parameters, a tuple, widths uneven", sub(((5, 3, 3), -1), 0, widths=GQA), slices_of(GQA, 0, [3]))
sample("sub-parameters along dimension 1", sub((-1, (5, 3, 3)), 1, widths=GQA), slices_of(GQA, 1, [2]))
sample("sub-parameters, dimension counted from the end", sub((2, (5, 3, 3)), -1, widths=GQA), slices_of(GQA, 1, [2]))
sample("sub-parameters, slices flat", sub([(5, 3, 3), 3], 0, widths=GQA), slices_of(GQA, 0, [3], flat=True))
sample("sub-parameters of a bias get a dimension", sub([(5, 3, 3), -1], 0, widths=GQA), slices_of(GQA, 0, []))
sample("sub-parameters of a vector", sub([(5, 3, 3)], 0, widths=GQA), slices_of(GQA, 0, []))
EMPTY = [[4, 0], [1, 0]]
sample("sub-parameters, a rank without elements", sub([(4, 1), -1], 0, widths=EMPTY), slices_of(EMPTY, 0, [2]))
sample("sub-parameters, widths of zero", sub([(3, 3), -1], 0, widths=[[0, 3], [3, 0]]), slices_of([[0, 3], [3, 0]], 0, [2]))
sample("sub-parameters, one rank", sub([(2, 3), -1], 0, widths=[[2], [3]]), slices_of([[2], [3]], 0, [2]))
sample("sub-parameters with a tuple in another dimension", sub([(2, 2), (1, 2)], 0, widths=[[1, 1], [1, 1]]),
       slices_of([[1, 1], [1, 1]], 0, [3]))
sample("sub-parameters of version 1", sub([(2, 2), -1], 0, version=1, widths=[[1, 1], [1, 1]]),
       slices_of([[1, 1], [1, 1]], 0, [3]))
EVEN = [[2, 2], [1, 1], [1, 1]]
sample("sub-parameters before widths were written", sub(((4, 2, 2), -1), 0, version=0.2), slices_of(EVEN, 0, [3]))
sample("the same, as a list", sub([(4, 2, 2), -1], 0, version=0.2), slices_of(EVEN, 0, [3]))
sample("the same, without a version", sub(((4, 2, 2), -1), 0, version=None), slices_of(EVEN, 0, [3]))
sample("widths are not read before 0.4", sub(((4, 2, 2), -1), 0, version=0.3, widths=[[9, 9]]), slices_of(EVEN, 0, [3]))
THREE = [[2, 2]] * 3
sample("a count of sub-parameters", sub((3, -1), 0, version=0.2), slices_of(THREE, 0, [2]))
sample("a count of sub-parameters, as a list", sub([3, -1], 0, version=0.2), slices_of(THREE, 0, [2]))
sample("a count of sub-parameters along dimension 1", sub((2, 3), 1, version=0.2), slices_of(THREE, 1, [2]))
sample("a count that does not divide", sub((4, -1), 0, version=0.2), slices_of(GQA, 0, [2]),
       fails=("InconsistentError", "4 sub-parameters that cannot be equal parts of 11"))
sample("a count of none", sub((0, -1), 0, version=0.2), slices_of(THREE, 0, [2]),
       fails=("InconsistentError", "0 sub-parameters"))
sample("a count of sub-parameters of flat slices", sub((-1, 3), 1, version=0.2), slices_of(THREE, 1, [2], flat=True),
       fails=("InconsistentError", "dimension 1"))
sample("sizes that ranks cannot share evenly", sub(((5, 3), -1), 0, version=0.2), slices_of([[3, 2], [2, 1]], 0, [2]),
       fails=("InconsistentError", "size 5"))
sample("a count from version 0.4 on", sub((3, -1), 0, widths=THREE), slices_of(THREE, 0, [2]),
       fails=("CorruptError", "counts"))
sample("no widths from version 0.4 on", sub([(6, 6), -1], 0), slices_of([[3, 3]] * 2, 0, [2]),
       fails=("CorruptError", "no sub_param_shard_widths for 'h'"))
sample("widths of another number of sub-parameters", sub([(6, 6), -1], 0, widths=[[3, 3]]), slices_of([[3, 3]] * 2, 0, [2]),
       fails=("InconsistentError", "2 sub-parameters but widths of 1"))
sample("widths of another number of ranks", sub([(6, 6), -1], 0, widths=[[3, 3], [2, 2, 2]]),
       slices_of([[3, 3]] * 2, 0, [2]), fails=("InconsistentError", "widths of 3 ranks"))
sample("widths that add up to something else", sub([(6, 6), -1], 0, widths=[[3, 3], [3, 2]]),
       slices_of([[3, 3]] * 2, 0, [2]), fails=("InconsistentError", "size 6 whose widths add up to 5"))
sample("a slice of a different size than its widths", sub([(6, 6), 2], 0, widths=[[3, 3], [2, 4]]),
       slices_of([[3, 3]] * 2, 0, [2]), fails=("InconsistentError", "rank 0 holds 12 elements"))
sample("no sub-parameters", sub([(), -1], 0, widths=[]), slices_of([[1, 1]], 0, [2]),
       fails=("InconsistentError", "no sub-parameters"))
sample("two open dimensions", sub([(6, 6), -1, -1], 0, widths=[[3, 3]] * 2), slices_of([[3, 3]] * 2, 0, [2]),
       fails=("InconsistentError", "two open dimensions"))
sample("an open dimension that does not come out", sub([(6, 6), 5, -1], 0, widths=[[3, 3]] * 2),
       slices_of([[3, 3]] * 2, 0, [2]), fails=("InconsistentError", "do not divide 24"))
twice = sub([(6, 6), -1], 0, widths=[[3, 3]] * 2)
twice["parameter_with_sub_params"].append({"patterns": ["h.0"], "shape": [(1, 1), -1], "partition_dim": 0})
sample("of two sub-parameter entries the first counts", twice, slices_of([[3, 3]] * 2, 0, [2]))
sample("replicated goes before sub-parameters, which are used all the same",
       {**sub([(6, 6), -1], 0), "tp_replicated_parameter_patterns": ["h.0"]}, [tensor([2])] * 2)

# Vocabulary.
VOCABULARY = {"vocabulary_parameter_patterns": ["h"], "original_vocab_size": 5, "padded_vocab_size": 8}
sample("vocabulary", VOCABULARY, cut(tensor([8, 2]), [4, 4], 0), full=tensor([5, 2]))
sample("vocabulary without padding", {**VOCABULARY, "original_vocab_size": 9}, cut(tensor([8, 2]), [4, 4], 0))
sample("vocabulary, replicated", {**VOCABULARY, "tp_replicated_parameter_patterns": ["h.0"]}, [tensor([8, 2])] * 2)
sample("vocabulary, row parallel", {**VOCABULARY, "parameter_with_row_parallelism_patterns": ["h"]},
       cut(tensor([6, 4]), [2, 2], 1))
sample("vocabulary, averaged", {**VOCABULARY, "parameter_to_average_patterns": ["h."]},
       [tensor([6, 1]), tensor([6, 1], first=33)])
sample("a vocabulary that is a vector", VOCABULARY, [tensor([4]), tensor([4])],
       fails=("InconsistentError", "not a matrix"))
sample("a vocabulary without size", {"vocabulary_parameter_patterns": ["h"]}, cut(tensor([8, 2]), [4, 4], 0),
       fails=("CorruptError", "original_vocab_size"))

# Affine maps, by every builder.
affine_sample("map: replicated", affine.replicated_map((3, 2), 3))
affine_sample("map: replicated scalar", affine.replicated_map((), 2))
affine_sample("map: split along dimension 0", affine.contiguous_split_map((5, 3), [3, 2], 0))
affine_sample("map: split along dimension 1", affine.contiguous_split_map((3, 13), [7, 6], 1))
affine_sample("map: split along the middle", affine.contiguous_split_map((2, 5, 3), [2, 2, 1], 1))
affine_sample("map: split, a rank without elements", affine.contiguous_split_map((4, 3), [3, 0, 1], 0))
affine_sample("map: split of a dimension of size 1", affine.contiguous_split_map((1, 3), [1, 0], 0))
affine_sample("map: split, one row a rank", affine.contiguous_split_map((2, 3), [1, 1], 0))
affine_sample("map: split of columns, one a rank", affine.contiguous_split_map((3, 2), [1, 1], 1))
affine_sample("map: split of a vector", affine.contiguous_split_map((7, ), [4, 3], 0))
affine_sample("map: sub-parameters along dimension 0", affine.sub_param_map((11, 3), [5, 3, 3], GQA, 0))
affine_sample("map: sub-parameters along dimension 1", affine.sub_param_map((2, 11), [5, 3, 3], GQA, 1))
affine_sample("map: sub-parameters, widths of zero",
              affine.sub_param_map((6, 2), [3, 3], [[0, 3], [3, 0]], 0))
affine_sample("map: split and replicated segments along dimension 0",
              affine.segmented_map((9, 2), [(5, False), (4, True)], 0, 2, [[3, 2]]))
affine_sample("map: split and replicated segments along dimension 1",
              affine.segmented_map((2, 9), [(4, True), (5, False)], 1, 3, [[2, 2, 1]]))
affine_sample("map: blocks out of order",
              affine.block_gather_map((16, 3), {0: [0, 1, 6, 3], 1: [5, 4, 2, 7]}, 2, 0))
affine_sample("map: blocks along dimension 1", affine.block_gather_map((3, 8), {0: [3, 0], 1: [1, 2]}, 2, 1))


def piece(shape, source, dest, ranks, **more):
    return {"shape": shape, "source": list(source), "dest": list(dest), "locations": ranks, **more}


def entry(logical, *ranks):
    return {"logical_shape": logical,
            "ranks": {rank: {"shard_shape": shape, "pieces": pieces} for rank, (shape, pieces) in enumerate(ranks)}}


def entry_sample(title, one, fails=None, slices=None, **more):
    parsed = affine.ParamAffineMap.from_dict(one)
    full = tensor(parsed.logical_shape)
    if slices is None:
        slices = [parsed.extract(full, rank) for rank in range(len(parsed.shard_shapes))]
    sample(title, with_map(one, **more), slices, fails=fails, full=full if fails is None else None)


HALVES = entry([4, 6], ([2, 6], [piece([2, 6], (0, [6, 1]), (0, [6, 1]), [0])]),
               ([2, 6], [piece([2, 6], (12, [6, 1]), (0, [6, 1]), [1])]))
texts = copy.deepcopy(HALVES)
texts["ranks"] = {str(rank): value for rank, value in texts["ranks"].items()}
entry_sample("map: ranks as texts", texts)
backwards = copy.deepcopy(HALVES)
backwards["ranks"] = {rank: backwards["ranks"][rank] for rank in (1, 0)}
entry_sample("map: ranks in any order", backwards)
entry_sample("map: pieces that are runs of elements",
             entry([4, 6], ([2, 6], [piece([12], (12, [1]), (0, [1]), [0])]),
                   ([2, 6], [piece([12], (0, [1]), (0, [1]), [1])])))
entry_sample("map: pieces that merge and add dimensions",
             entry([4, 2, 3], ([2, 2, 3], [piece([1, 4, 3], (0, [5, 3, 1]), (0, [7, 3, 1]), [0])]),
                   ([2, 2, 3], [piece([2, 6, 1], (12, [6, 1, 9]), (0, [6, 1, 9]), [1])])))
entry_sample("map: the shard has a different shape than the block",
             entry([4, 6], ([12], [piece([12], (0, [1]), (0, [1]), [0])]),
                   ([2, 6], [piece([2, 6], (12, [6, 1]), (0, [6, 1]), [1])])))
entry_sample("map: blocks in both dimensions",
             entry([4, 6],
                   ([4, 3], [piece([2, 3], (0, [6, 1]), (6, [3, 1]), [0]), piece([2, 3], (15, [6, 1]), (0, [3, 1]), [0])]),
                   ([2, 6], [piece([2, 3], (3, [6, 1]), (3, [6, 1]), [1]), piece([2, 3], (12, [6, 1]), (0, [6, 1]), [1])])))
sample("map goes before the lists, whose patterns count as used",
       with_map(affine.replicated_map((8, 2), 2), tp_replicated_parameter_patterns=["h.0.w", "other"],
                parameter_with_row_parallelism_patterns=["h"], parameter_with_2_sub_params_cat_dim_0=["h.0"],
                parameter_to_average_patterns=["h."], **{k: v for k, v in VOCABULARY.items() if k != "vocabulary_parameter_patterns"},
                vocabulary_parameter_patterns=["h.0."],
                parameter_with_sub_params=[{"patterns": ["h.0.."], "shape": [1], "partition_dim": 0}]),
       [tensor([8, 2])] * 2)
sample("map: of another parameter", {"affine_map": {"params": {"^other$": HALVES}}}, cut(tensor([4, 6]), [2, 2], 0))
sample("map: without anything", {"affine_map": {}}, cut(tensor([4, 6]), [2, 2], 0))
sample("map: replicas that differ", with_map(affine.replicated_map((2, 2), 2)), [tensor([2, 2]), tensor([2, 2], first=3)],
       fails=("differ", "fp32 of 'h.0.w' on tensor-parallel ranks 0 and 1"))
sample("map: one of two matches too many",
       {"affine_map": {"params": {"^h": HALVES, exact(): HALVES}}}, cut(tensor([4, 6]), [2, 2], 0),
       fails=("InconsistentError", "several patterns of affine_map match"))
sample("map: two superseded patterns", with_map(HALVES, tp_replicated_parameter_patterns=["h", "h."]),
       cut(tensor([4, 6]), [2, 2], 0), fails=("InconsistentError", "several patterns"))
sample("map: shards of other sizes", with_map(HALVES), cut(tensor([4, 6]), [3, 1], 0),
       fails=("InconsistentError", "is for shards of the shapes [2, 6], [2, 6], the ranks' slices have [3, 6], [1, 6]"))
sample("map: more ranks than slices", with_map(HALVES), [tensor([2, 6])],
       fails=("InconsistentError", "is for shards"))
sample("map: a piece outside the shard", with_map(entry([2], ([2], [piece([2], (0, [1]), (1, [1]), [0])]))), [tensor([2])],
       fails=("CorruptError", "piece 0 of rank 0: in the shard: reaches element 2"))
sample("map: a piece outside the tensor", with_map(entry([2], ([2], [piece([2], (1, [1]), (0, [1]), [0])]))), [tensor([2])],
       fails=("CorruptError", "in the tensor: reaches element 2"))
sample("map: pieces that do not fill the shard",
       with_map(entry([2], ([2], [piece([1], (0, [1]), (0, [1]), [0])]))), [tensor([2])],
       fails=("CorruptError", "gap in the shard of rank 0"))
sample("map: pieces that write the shard twice",
       with_map(entry([2], ([2], [piece([1], (0, [1]), (0, [1]), [0]), piece([1], (1, [1]), (0, [1]), [0])]))), [tensor([2])],
       fails=("CorruptError", "the shard of rank 0"))

placements = []


def placement_sample(experts_by_rank, num_experts, shape):
    placement = autoep_affine.make_autoep_placement_descriptor(num_experts, experts_by_rank)
    one = autoep_affine.autoep_placement_to_affine_map(placement, shape)
    full = tensor(shape)
    slices = [autoep_affine.extract_autoep_rank_tensor(full, one, rank) for rank in range(len(experts_by_rank))]
    assert torch.equal(one.rebuild(dict(enumerate(slices))), full)
    placements.append((placement, one.to_dict(), slices, full))


placement_sample([[0, 1], [2, 3]], 4, (4, 2, 3))
placement_sample([[3, 1], [0, 2]], 4, (4, 2))
placement_sample([[0, 1, 2], [2, 3, 4], [2]], 5, (5, 2))
placement_sample([[0, 1], [0, 1], []], 2, (2, 3))
placement_sample([[0, 1, 2]], 3, (3, ))

bad_placements = []


def bad_placement(error, part, shape=(2, 3), **changes):
    placement = autoep_affine.make_autoep_placement_descriptor(2, [[0], [1]])
    for key, value in changes.items():
        placement[key] = value
        if value is None:
            del placement[key]
    try:
        autoep_affine.autoep_placement_to_affine_map(placement, shape)
    except (ValueError, TypeError):
        bad_placements.append((placement, error, part, shape))
    else:
        sys.exit(f"DeepSpeed takes {changes}")


bad_placement("UnsupportedError", "version: is 2, not 1", version=2)
bad_placement("CorruptError", "version", version="1")
bad_placement("CorruptError", "version", version=None)
bad_placement("CorruptError", "num_experts", num_experts=0)
bad_placement("CorruptError", "num_experts", num_experts=True)
bad_placement("CorruptError", "no rank for expert 2", num_experts=3)
# DeepSpeed would put all of them into a set.
bad_placements.append(({"version": 1, "num_experts": 10**15, "ep_size": 1, "ranks": [{"rank": 0, "experts": [0]}]},
                       "CorruptError", "no rank for expert 1", (10**15, )))
bad_placement("CorruptError", "ep_size", ep_size=-1)
bad_placement("CorruptError", "2 entries for ep_size 3", ep_size=3)
bad_placement("CorruptError", "ranks", ranks={})
bad_placement("CorruptError", "ranks[1]", ranks=[{"rank": 0, "experts": [0, 1]}, 7])
bad_placement("CorruptError", "rank 0 appears twice", ranks=[{"rank": 0, "experts": [0]}, {"rank": 0, "experts": [1]}])
bad_placement("CorruptError", "ranks[1].rank", ranks=[{"rank": 0, "experts": [0]}, {"rank": 2, "experts": [1]}])
bad_placement("CorruptError", "ranks[1].rank", ranks=[{"rank": 0, "experts": [0]}, {"rank": True, "experts": [1]}])
bad_placement("CorruptError", "ranks[1].experts", ranks=[{"rank": 0, "experts": [0]}, {"rank": 1, "experts": "1"}])
bad_placement("CorruptError", "none of 2", ranks=[{"rank": 0, "experts": [0]}, {"rank": 1, "experts": [2]}])
bad_placement("CorruptError", "none of 2", ranks=[{"rank": 0, "experts": [0]}, {"rank": 1, "experts": [-1]}])
bad_placement("CorruptError", "none of 2", ranks=[{"rank": 0, "experts": [0]}, {"rank": 1, "experts": [1.0]}])
bad_placement("CorruptError", "expert 1 twice", ranks=[{"rank": 0, "experts": [0]}, {"rank": 1, "experts": [1, 1]}])
bad_placement("CorruptError", "no rank for expert 1", ranks=[{"rank": 0, "experts": [0]}, {"rank": 1, "experts": []}])
bad_placement("InconsistentError", "shape is [3, 2]", shape=(3, 2))
bad_placement("InconsistentError", "shape is []", shape=())

# Infos that are refused when they are read: (info, error, part of its text).
malformed = []
UC = "universal_checkpoint_info"


def bad(error, part, **info):
    malformed.append((info, error, part))


for key in ("tp_replicated_parameter_patterns", "parameter_to_average_patterns",
            "parameter_with_row_parallelism_patterns", "vocabulary_parameter_patterns",
            "parameter_with_2_sub_params_cat_dim_0", "pipeline_replicated_parameter_patterns"):
    bad("CorruptError", f"{UC}.{key}", **{key: "h"})
    bad("CorruptError", f"{UC}.{key}", **{key: {"h": 1}})
    bad("CorruptError", f"{UC}.{key}", **{key: ["h", 1]})
    bad("UnsupportedError", "'(?!h)'", **{key: ["(?!h)"]})
    bad("UnsupportedError", "'h{,3}'", **{key: ["h{,3}"]})
bad("CorruptError", f"{UC}.universal_checkpoint_version", universal_checkpoint_version="0.4")
bad("CorruptError", f"{UC}.universal_checkpoint_version", universal_checkpoint_version=float("nan"))
bad("CorruptError", f"{UC}.original_vocab_size", original_vocab_size=5.0)
bad("CorruptError", f"{UC}.original_vocab_size", original_vocab_size=-5)
bad("CorruptError", f"{UC}.original_vocab_size", original_vocab_size=10**20)
bad("CorruptError", f"{UC}.autotp_unsupported_parameter_patterns", autotp_unsupported_parameter_patterns=["h"])
bad("CorruptError", f"{UC}.autotp_unsupported_parameter_patterns", autotp_unsupported_parameter_patterns={"h": 1})
bad("UnsupportedError", "'a': odd, 'h': scattered",
    autotp_unsupported_parameter_patterns={"h": "scattered", "a": "odd"})
SUBS = "parameter_with_sub_params"
bad("CorruptError", f"{UC}.{SUBS}", **{SUBS: "h"})
bad("CorruptError", f"{UC}.{SUBS}[0]", **{SUBS: ["h"]})
GOOD = {"patterns": ["h"], "shape": [(2, 2), -1], "partition_dim": 0}
for key in GOOD:
    bad("CorruptError", f"{UC}.{SUBS}[1]", **{SUBS: [GOOD, {k: v for k, v in GOOD.items() if k != key}]})
for change in ({"patterns": "h"}, {"patterns": [1]}, {"shape": 3}, {"shape": [(2, -2), -1]}, {"shape": [[2, 2], -1]},
               {"shape": [(2, 2), None]}, {"shape": [(2, 2), 1.5]}, {"shape": [(2, 2.0), 1]}, {"partition_dim": 2},
               {"partition_dim": -3}, {"partition_dim": "0"}, {"shape": []}):
    bad("CorruptError", f"{UC}.{SUBS}[0]", **{SUBS: [{**GOOD, **change}]})
bad("UnsupportedError", "'more'", **{SUBS: [{**GOOD, "more": 1}]})
bad("UnsupportedError", "'(?=h)'", **{SUBS: [{**GOOD, "patterns": ["(?=h)"]}]})
WIDTHS = "sub_param_shard_widths"
for value in ([], "h", {"h": 1}, {"h": [1]}, {"h": [[1.0]]}, {"h": [[-1]]}, {1: [[1]]}):
    bad("CorruptError", f"{UC}.{WIDTHS}", **{WIDTHS: value})


def bad_map(error, part, change):
    one = copy.deepcopy(HALVES)
    change(one)
    bad(error, part, affine_map={"version": 1, "params": {"h": one}})


MAP = f"{UC}.affine_map"
bad("CorruptError", MAP, affine_map=[1])
bad("CorruptError", f"{MAP}.version", affine_map={"version": "1"})
bad("UnsupportedError", f"{MAP}.version: is 2", affine_map={"version": 2, "params": 7})
bad("CorruptError", f"{MAP}.params", affine_map={"params": ["h"]})
bad("CorruptError", f"{MAP}.params", affine_map={"params": {1: HALVES}})
bad("CorruptError", f"{MAP}.params[h]", affine_map={"params": {"h": 1}})
bad("UnsupportedError", "'(?!h)'", affine_map={"params": {"(?!h)": HALVES}})
AT = f"{MAP}.params[h]"
bad_map("CorruptError", f"{AT}: ", lambda m: m.pop("logical_shape"))
bad_map("CorruptError", f"{AT}: ", lambda m: m.pop("ranks"))
for value in (4, [4, -6], [4, 6.0], [2**40, 2**40]):
    bad_map("CorruptError", f"{AT}.logical_shape", lambda m, v=value: m.update(logical_shape=v))
for value in ([], {}, {0.5: 1}, {"x": 1}, {"": 1}, {-1: 1}, {"-1": 1}, {0: 1, "0": 1}, {7: 1}, {0: 1}):
    bad_map("CorruptError", f"{AT}.ranks", lambda m, v=value: m.update(ranks=v))
bad_map("CorruptError", f"{AT}.ranks[0]: appears twice", lambda m: m["ranks"].update({"0": m["ranks"][0]}) or m["ranks"].update({2: m["ranks"][0]}))
bad_map("CorruptError", f"{AT}.ranks[2]: is one of 2", lambda m: m["ranks"].update({2: m["ranks"].pop(1)}))
RANK = f"{AT}.ranks[1]"
bad_map("CorruptError", RANK, lambda m: m["ranks"][1].pop("shard_shape"))
bad_map("CorruptError", RANK, lambda m: m["ranks"][1].pop("pieces"))
bad_map("CorruptError", f"{RANK}.shard_shape", lambda m: m["ranks"][1].update(shard_shape=[-2, 6]))
bad_map("CorruptError", f"{RANK}.pieces", lambda m: m["ranks"][1].update(pieces={}))
bad_map("CorruptError", f"{RANK}.pieces[0]", lambda m: m["ranks"][1].update(pieces=[1]))
PIECE = f"{RANK}.pieces[0]"
for key in ("shape", "source", "dest", "locations"):
    bad_map("CorruptError", PIECE, lambda m, k=key: m["ranks"][1]["pieces"][0].pop(k))
for key, values in {
        "shape": (2, [2, -6], [2, "6"], [2**62, 2**62], [12]),
        "source": (1, [1], [-1, [6, 1]], [0, 1], [0, [-6, 1]], [0.0, [6, 1]], [0, [6]], [0, [6, 1], 1], [2**70, [6, 1]]),
        "dest": ({}, [1], [-1, [6, 1]], [0, "61"], [0, [6, -1]], [0, [6, 1, 1]]),
        "locations": (1, [-1], ["0"], {0: 1}),
        "scale": (0, 0.0, float("inf"), float("nan"), "1", None),
}.items():
    for value in values:
        bad_map("CorruptError", PIECE, lambda m, k=key, v=value: m["ranks"][1]["pieces"][0].update({k: v}))

# Entries that cannot be assembled, though DeepSpeed's tool, which checks less, may accept them: (entry, error, text).
bad_assemblies = []


def bad_assembly(error, part, one):
    bad_assemblies.append((one, error, part))


def changed(key, value):
    one = copy.deepcopy(HALVES)
    one["ranks"][1]["pieces"][0][key] = value
    return one


bad_assembly("UnsupportedError", "piece 0 of rank 1 is scaled by 0.5", changed("scale", 0.5))
bad_assembly("CorruptError", "is held by rank 1, but its `locations`", changed("locations", [0, 1]))
bad_assembly("CorruptError", "is held by rank 1, but its `locations`", changed("locations", []))
bad_assembly("CorruptError", "is held by ranks 0 and 1, but its `locations`", changed("source", [0, [6, 1]]))
bad_assembly("CorruptError", "overlap", changed("source", [6, [6, 1]]))
bad_assembly("CorruptError", "gap in the tensor", {**HALVES, "logical_shape": [5, 6]})
bad_assembly("CorruptError", "gap in the tensor", entry([3], ([1], [piece([1], (1, [1]), (0, [1]), [0])])))
bad_assembly("CorruptError", "gap in the tensor", entry([3], ([0], [])))
bad_assembly("CorruptError", "reaches element", {**HALVES, "logical_shape": [3, 6]})
bad_assembly("CorruptError", "reaches element", {**HALVES, "logical_shape": [0, 6]})
bad_assembly("CorruptError", "overflows", changed("source", [0, [2**63 - 1, 2**63 - 1]]))
for one in (
        # Steps that are not the tensor's, a run that turns a corner, transposed columns.
        entry([4], ([2], [piece([2], (0, [2]), (0, [1]), [0])]), ([2], [piece([2], (1, [2]), (0, [1]), [1])])),
        entry([2, 3], ([4], [piece([4], (0, [1]), (0, [1]), [0])]), ([2], [piece([2], (4, [1]), (0, [1]), [1])])),
        entry([2, 3], ([2], [piece([2], (2, [1]), (0, [1]), [0])]),
              ([4], [piece([2], (0, [1]), (0, [1]), [1]), piece([2], (4, [1]), (2, [1]), [1])])),
        entry([2, 2], ([2, 2], [piece([2, 2], (0, [1, 2]), (0, [2, 1]), [0])])),
        entry([2, 2], ([2, 2], [piece([4], (0, [0]), (0, [1]), [0])])),
):
    bad_assembly("UnsupportedError", "is not a box of the tensor", one)
bad_assembly("UnsupportedError", "is not a box of the shard",
             entry([2, 2], ([2, 2], [piece([2, 2], (0, [2, 1]), (0, [1, 2]), [0])])))


def pinwheel(centre):
    """Boxes that no straight cut separates, round a centre of 3 x 3."""
    def box(row, column, rows, columns):
        return piece([rows, columns], (3 * row + column, [3, 1]), (0, [columns, 1]), [0])
    boxes = [box(0, 0, 1, 2), box(0, 2, 2, 1), box(2, 1, 1, 2), box(1, 0, 2, 1)] + ([box(1, 1, 1, 1)] if centre else [])
    ranks = []
    for rank, one in enumerate(boxes):
        one["locations"] = [rank]
        ranks.append((one["shape"], [one]))
    return entry([3, 3], *ranks)


bad_assembly("UnsupportedError", "interlock", pinwheel(True))
bad_assembly("CorruptError", "gap in the tensor", pinwheel(False))


def tensor_text(shape, elements):
    return " ".join(str(dim) for dim in shape) + ": " + " ".join(elements)


def slices_text(slices):
    return "; ".join(tensor_text(one.shape, map(str, numbers(one))) for one in slices)


def merged_text(value):
    if value is None:
        return ""
    words = value.contiguous().flatten().view(torch.int32).tolist() if value.numel() else []
    return tensor_text(value.shape, (f"{word & 0xffffffff:x}" for word in words))


def bad_samples(bads):
    return [{"python": str(value), "pickle": pickled(value), "error": error, "error_text": part,
             "shape": " ".join(map(str, shape))} for value, error, part, shape in bads]


def main():
    path = pathlib.Path(__file__).resolve().parent.parent / "samples" / "tp_rules.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({
        # `form` are the keys beside `param`; `error` a class, or "differ" when the plan is run; "" for none.
        "rules": [{"title": title, "info": pickled(info), "name": name, "slices": slices_text(slices),
                   "merged": merged_text(expected), "form": form, "unused": "\n".join(unused),
                   "error": fails[0] if fails else "", "error_text": fails[1] if fails else ""}
                  for title, info, name, slices, expected, form, unused, fails in samples],
        # `map` is ParamAffineMap.to_dict().
        "placements": [{"placement": pickled(placement), "map": pickled(one), "slices": slices_text(slices),
                        "merged": merged_text(full)} for placement, one, slices, full in placements],
        # Infos that are refused when they are read.
        "malformed_infos": bad_samples((*one, ()) for one in malformed),
        # Entries of affine maps that can be read, but not assembled.
        "bad_assemblies": bad_samples((*one, ()) for one in bad_assemblies),
        "bad_placements": bad_samples(bad_placements),
    }, indent=0) + "\n")


main()
