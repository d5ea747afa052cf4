"""The plans of all ranks. Imports torch.

Rank 0 opens the checkpoint, and plans for each rank, which then opens only the files that it reads. The store of the
process group carries the plans.
"""
import concurrent.futures
import hashlib
import os
import pickle
import typing

import torch

from ._errors import UnsupportedError
from ._reader import is_native, is_native_for, open_reader

_PART = 4 << 20  # bytes of a value in the store, which takes 8 MiB at most


class Place(typing.NamedTuple):
    """The checkpoint to open."""
    path: typing.Any
    tag: typing.Any
    roots: tuple
    model: "str | None"
    tp_rules: tuple

    def check(self):
        if not is_native():
            raise UnsupportedError("loading into an engine needs the compiled module", hint="pip install dsckpt-native")
        if not is_native_for(self.path, self.roots):
            raise UnsupportedError(f"{os.fspath(self.path)}: the compiled module was built without libcurl, which reads "
                                   "URLs", hint="pip install dsckpt-native; or reshard, and load what it writes")

    def open(self, facts):
        known, _, group_names, _ = facts
        return open_reader(self.path, states=True, group_names=group_names, engine_tp=known["tp"],
                           tag=None if self.tag is None else str(self.tag), model=self.model, roots=self.roots,
                           tp_rules=self.tp_rules)


class RankZeroFailed(Exception):
    """Rank 0 could not plan. `why`: its error, as it described it."""

    def __init__(self, why):
        super().__init__(why)
        self.why = why


def of_engine(facts):
    """A hash of _engine.facts()."""
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogateescape")).digest()


def plan(place, facts, engines, call, describe):
    """This rank's plan, a dsckpt_native.Resume.

    engines: of every rank, of_engine() and its data-parallel rank. call: a text that only this call of all ranks has.
    describe: turns an error of rank 0 into the one that the others raise.
    """
    rank = torch.distributed.get_rank() if len(engines) > 1 else 0
    if len(engines) == 1:
        return _planner(place.open(facts), facts)(engines[rank][1])
    store = torch.distributed.PrefixStore(f"{call}/", torch.distributed.distributed_c10d._get_default_store())
    hashes = [each for each, _ in engines]
    if rank > 0:
        if hashes.index(hashes[rank]) == rank:  # the first with such an engine
            _tell(store, f"facts/{rank}", pickle.dumps(facts))
        return _hear_plan(store, rank)
    return _tell_plans(store, place, facts, engines, describe)


def _tell_plans(store, place, facts, engines, describe):
    """Plans for all ranks, and returns the plan of rank 0."""
    told = 1
    try:
        reader, planners = place.open(facts), {}
        for number, (engine, _) in enumerate(engines):
            if engine not in planners:
                heard = facts if number == 0 else pickle.loads(_hear(store, f"facts/{number}"))
                planners[engine] = _planner(reader, heard)

        def plan_for(rank):
            engine, of_group = engines[rank]
            return planners[engine](of_group)

        threads = min(16, len(os.sched_getaffinity(0)))
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for begin in range(1, len(engines), threads):
                ranks = range(begin, min(begin + threads, len(engines)))
                for rank, plan in zip(ranks, pool.map(lambda rank: plan_for(rank).encode(), ranks)):
                    _tell(store, f"plan/{rank}", b"\1" + plan)
                    told = rank + 1
        return plan_for(0)
    except Exception as error:
        for rank in range(told, len(engines)):
            _tell(store, f"plan/{rank}", b"\0" + pickle.dumps(describe(error)))
        raise


def _planner(reader, facts):
    """A function from data-parallel ranks to their plans."""
    import dsckpt_native
    if reader.facts():
        return dsckpt_native.Plans(reader, *facts).of_rank
    weights = dsckpt_native.Resume.of_weights(reader, *facts)
    return lambda rank: weights


def _hear_plan(store, rank):
    import dsckpt_native
    heard = _hear(store, f"plan/{rank}")
    if heard[:1] == b"\0":
        raise RankZeroFailed(pickle.loads(heard[1:]))
    return dsckpt_native.Resume.decode(dsckpt_native.FarFolders(), heard[1:])


def _tell(store, key, value):
    parts = range(0, len(value), _PART)
    for number, begin in enumerate(parts):
        store.set(f"{key}/{number}", value[begin:begin + _PART])
    store.set(key, str(len(parts)))


def _hear(store, key):
    """Returns what was told, or will be. It is then gone from the store."""
    names = [f"{key}/{number}" for number in range(int(store.get(key)))]
    value = b"".join(map(store.get, names))
    for name in [*names, key]:
        store.delete_key(name)
    return value
