#!/usr/bin/env python3
"""hub_names_test.py for each type that lib/checkpoint/names/rules.jsonl has rules for: prints what differs.

    scripts/python tests/oracle/hub_names_all.py [PATTERN]

One of the classes of a type with the same rules is taken. Exits 1 if the tensors of zero-to-fp32 are not those
of save_pretrained. "hub fits, back not" are types whose weights of the hub do not become the module's.
"""
import collections
import gc
import json
import os
import pathlib
import re
import sys
import tempfile
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
warnings.simplefilter("ignore")

import torch

import tiny_models

RULES = pathlib.Path(os.environ["DSCKPT_SOURCE"], "lib/checkpoint/names/rules.jsonl")


def check(name):
    try:
        model = tiny_models.make(name)
    except Exception as error:
        return "no tiny model", [type(error).__name__]
    if model is None:
        return "no tiny model", []
    with tempfile.TemporaryDirectory() as folder:
        try:
            hub, module = tiny_models.save(model, folder)
        except Exception as error:
            return "save_pretrained fails", [f"{type(error).__name__}: {str(error)[:200]}"]
        found = tiny_models.check_to_hub(model, hub, module, pathlib.Path(folder, "out"))
        if found:
            return "UNLIKE", found
        found, options = tiny_models.check_to_module(model, hub, module, folder)
        if found:
            return "hub fits, back not", options + found
        return ("fits, back with --like", []) if options else ("fits", [])


def main():
    patterns = sys.argv[1:]
    rows = [json.loads(line) for line in RULES.read_text().splitlines()]
    models = {key: row for kind, key, row in rows if kind == "model"}
    alike = collections.defaultdict(list)
    for name, row in models.items():
        if row and row["uses"] and re.search(patterns[0] if patterns else "", name):
            alike[row["type"], json.dumps(row["uses"])].append(name)
    counts, types = collections.Counter(), collections.defaultdict(set)
    for (model_type, _), names in alike.items():
        for name in names:
            verdict, found = check(name)
            if verdict != "no tiny model":
                break
        counts[verdict] += 1
        types[verdict].add(model_type)
        if not verdict.startswith("fits"):
            print(f"{name}: {verdict}: {'; '.join(found[:4])[:600]}", flush=True)
        gc.collect()
    for verdict, count in counts.most_common():
        print(f"{verdict}: {count} of {sum(counts.values())}, of {len(types[verdict])} types")
    print(f"transformers {tiny_models.transformers.__version__}, rules of {rows[0][2]}: "
          f"{sum(len(row) for kind, _, row in rows if kind == 'rules' and isinstance(row, list))}")
    return int(counts["UNLIKE"] > 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
