"""Loads a checkpoint into a running DeepSpeed engine, without files. Imports torch and DeepSpeed.

reshard's planner plans the files of each rank. The elements of their tensors are read straight into the engine's tensors.
Then DeepSpeed's own load_checkpoint reads these files from memory. Their tensors are the engine's own, so DeepSpeed
copies them onto themselves, and it sets all other values itself.
"""
import functools
import itertools
import os

from . import _agreement, _engine, _patching, _planning
from ._errors import UnsupportedError, warn
from ._load_run import RunLoad
from ._load_weights import WeightsLoad
from ._reader import is_far

_WEIGHTS_ALONE = "these are only weights: the optimizer's states, counters and schedules of the engine do not change"
_calls = itertools.count()  # ranks load equally often, so they agree on the number


def load_checkpoint(engine,
                    path,
                    tag=None,
                    load_module_strict=True,
                    load_optimizer_states=True,
                    load_lr_scheduler_states=True,
                    load_module_only=False,
                    custom_load_fn=None,
                    *,
                    roots=(),
                    model=None,
                    tp_rules=(),
                    check=False):
    """Implements dsckpt.load_checkpoint()."""
    _engine.check(engine)
    own = {"load_module_strict": load_module_strict, "load_optimizer_states": load_optimizer_states,
           "load_lr_scheduler_states": load_lr_scheduler_states, "load_module_only": load_module_only}  # fmt: skip
    states = load_optimizer_states and not load_module_only
    why = "only DeepSpeed itself calls custom_load_fn" if custom_load_fn is not None else \
        _engine.why_unknown(engine)
    if why is not None:
        return _by_deepspeed(engine, path, tag, why, {**own, "custom_load_fn": custom_load_fn})
    place = _planning.Place(path, tag, tuple(roots), model, tuple(tp_rules))
    call = f"dsckpt/load/{next(_calls)}"
    with _agreement.agreement(_agreement.NOTHING_CHANGED):
        place.check()
        facts = _engine.facts(engine, _engine.wrapper_of(engine), load_module_strict)
    engines = _agreement.gathered((_planning.of_engine(facts), _engine.rank_of(engine)))
    with _agreement.agreement(_agreement.NOTHING_CHANGED):
        plan = _planning.plan(place, facts, engines, call, _agreement.described)
        if plan.is_of_weights():
            load, notes = WeightsLoad(engine, plan, load_module_strict), [_WEIGHTS_ALONE]
        else:
            load, notes = RunLoad(engine, plan, states, load_module_strict, call), plan.notes()
        load.prepare()
    if _agreement.rank() == 0:
        warn(notes)
    with _agreement.agreement(_agreement.HALF_FILLED):
        load.fill(check)
    with _agreement.agreement(_agreement.HALF_FILLED):
        return load.finish(os.fspath(path), tag, own)


def patch_engine():
    """Replaces load_checkpoint of every DeepSpeedEngine. Returns [(class, name, original)]."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    theirs = DeepSpeedEngine.load_checkpoint
    if hasattr(theirs, "_dsckpt_original"):
        return []

    @functools.wraps(theirs)
    def patched(engine, load_dir, tag=None, *arguments, **options):
        if tag is None and not is_far(load_dir) and not any(os.path.lexists(os.path.join(load_dir, name))
                                   for name in ("latest", "latest_universal", ".metadata")):
            return theirs(engine, load_dir, tag, *arguments, **options)
        return load_checkpoint(engine, load_dir, tag, *arguments, **options)

    patched._dsckpt_original = theirs
    DeepSpeedEngine.load_checkpoint = patched
    return [(DeepSpeedEngine, "load_checkpoint", theirs)]


def _by_deepspeed(engine, path, tag, why, options):
    warn([f"{why}: DeepSpeed's own load_checkpoint is called"])
    try:
        return _patching.original(engine)(engine, path, tag=tag, **options)
    except Exception as error:
        raise UnsupportedError(f"{why}; and DeepSpeed's own load_checkpoint cannot load {os.fspath(path)}: {error}",
                               hint="reshard, or to-universal, writes a checkpoint that DeepSpeed loads") from error
