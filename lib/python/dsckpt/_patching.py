"""DeepSpeed's own load_checkpoint, which reads from memory meanwhile. Imports torch and DeepSpeed."""
import contextlib
import os

from . import _engine

MODEL, OPTIMIZER = 0, 1  # numbers of the files


def original(engine):
    """DeepSpeed's own method, even if it has been replaced."""
    method = type(engine).load_checkpoint
    return getattr(method, "_dsckpt_original", method)


@contextlib.contextmanager
def reading_from_memory(engine, wrapper, folder, dicts):
    """Makes the engine's own load_checkpoint find these files of its rank in memory."""
    from deepspeed.runtime import engine as module
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    def load_file(self, path, map_location=None):
        return dict(dicts[OPTIMIZER if path.endswith("optim_states.pt") else MODEL])

    def load_module(checkpoint, **options):
        # Stage 3 would gather parameters and copy whole ones from a file into them.
        options = {**options, **dict.fromkeys(options.keys() & {"z3_params_to_fetch"}), "fetch_z3_params": False}
        if not _engine.is_pipeline(engine):
            return type(engine).load_module_state_dict(engine, checkpoint, **options)
        # A pipeline's own method would open the files of layers, and then do this.
        module.DeepSpeedEngine.load_module_state_dict(engine, checkpoint, **options)
        return engine.module._synchronize_tied_weights()

    there = folder if os.path.exists(folder) else os.curdir  # DeepSpeed looks whether it is; a URL is not
    overrides = {
        "checkpoint_engine": type("InMemory", (TorchCheckpointEngine, ), {"load": load_file})(), "_get_all_ckpt_names": lambda *place: [there] * engine.mp_world_size,
        "load_universal_checkpoint": lambda: False, "load_module_state_dict": load_module,
    }  # fmt: skip
    if hasattr(engine, "zero_nvme_offload_optimizer"):  # it would copy swap files, and read no optimizer states
        overrides["zero_nvme_offload_optimizer"] = lambda: False
    of_optimizer = {"_restore_from_bit16_weights": wrapper.restore_masters} if wrapper.swapped() else {}
    whole_weights, no_more_files = lambda *place, **options: dicts[MODEL]["module"], lambda *place, **options: None
    with _replaced(module, "get_fp32_state_dict_from_zero_checkpoint", whole_weights), \
         _replaced(module.DeepSpeedEngine, "load_moe_state_dict", staticmethod(no_more_files)), \
         _overridden(engine, overrides), _overridden(engine.optimizer, of_optimizer):
        yield


@contextlib.contextmanager
def _replaced(owner, name, value):
    """Sets an attribute of a module or a class meanwhile."""
    usual = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, usual)


@contextlib.contextmanager
def _overridden(owner, attributes):
    usual = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    vars(owner).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(owner)[name]
        vars(owner).update(usual)
