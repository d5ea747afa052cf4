"""One rank of FSDP2 that goes on from what to-dcp wrote, by the code of apps/to_dcp/README.md."""
import json
import os
import pathlib
import re
import types

import make_checkpoints
import torch

README = pathlib.Path(__file__).resolve().parents[2] / "apps/to_dcp/README.md"


def guide(folder, how):
    """The Python of the guide, with another folder. `flattened`: with the optimizer's state in that form. Only
    the parts of other loaders that make model and optimizer."""
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    assert code.count('"ckpt_dcp"') == 1 and code.count("get_state_dict(model, optimizer)") == 1
    code = code.replace('"ckpt_dcp"', repr(str(folder)))
    if how == "flattened":
        options = "options=StateDictOptions(flatten_optimizer_state_dict=True)"
        code = code.replace("get_state_dict(model, optimizer)", f"get_state_dict(model, optimizer, {options})")
        code = code.replace("optim_state_dict=optim_state)", f"optim_state_dict=optim_state, {options})")
        code = "from torch.distributed.checkpoint.state_dict import StateDictOptions\n" + code
    return code if how in ("nested", "flattened") else code[:code.index("model_state, optim_state")]


def load_by_accelerate(model, optimizer, folder):
    """As Accelerator.load_state does it, which wants a GPU."""
    from accelerate import PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils
    PartialState(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator = types.SimpleNamespace(wait_for_everyone=torch.distributed.barrier, is_fsdp2=True)
    fsdp_utils.load_fsdp_model(plugin, accelerator, model, str(folder))
    fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder))


def load_by_lightning(model, optimizer, folder):
    """As Fabric.load does it with ModelParallelStrategy, which wants a GPU."""
    from lightning.fabric.strategies import model_parallel
    state = {"model": model, "optimizer": optimizer, "global_steps": None}
    model_parallel._load_checkpoint(pathlib.Path(folder), state, strict=True)
    assert state["global_steps"] == make_checkpoints.STEPS_BEFORE, state


OTHER_LOADERS = {"accelerate": load_by_accelerate, "lightning": load_by_lightning}


def case_named(name):
    case, = (case for case in make_checkpoints.CASES if case.name == name)
    return case


def other_model(case):
    """The case's model with other weights; FSDP2 takes row-major parameters only."""
    model = make_checkpoints.build_model(case, seed=99999)
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    return model


def parameter_groups(facts):
    """The run's groups by name, with options that must not survive."""
    groups = facts["param_groups"]

    def of(model):
        named = dict(model.named_parameters())
        return [{"params": [named[name] for name in group["names"]], "lr": 123.0, "weight_decay": 9.0,
                 "betas": (0.1, 0.2)} for group in groups]
    return of


def whole(tensor):
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def train(model, optimizer, case, facts, rank, world):
    losses = []
    for step in range(make_checkpoints.STEPS_BEFORE, make_checkpoints.STEPS_BEFORE + make_checkpoints.STEPS_AFTER):
        loss = model(*make_checkpoints.batch(step, rank, world, facts["seed"], case.batch))
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        losses.append(float(mean / world))
        loss.backward()
        trained = [p for p in model.parameters() if p.requires_grad]
        torch.nn.utils.clip_grad_norm_(trained, facts["ds_config"]["gradient_clipping"])
        optimizer.step()
        optimizer.zero_grad()
    return losses


def work(rank, world, port, name, testdata, folder, how, out):
    """Loads `folder`: `how` is nested, flattened, or one of OTHER_LOADERS. Rank 0 leaves in `out` what it held then and
    the next losses, and after `nested` beside it what FSDP2 itself saves."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    torch.distributed.device_mesh.init_device_mesh("cpu", (world,))
    case = case_named(name)
    facts = json.loads((pathlib.Path(testdata) / "checkpoints" / name / "case.json").read_text())
    names = {"build_model": lambda: other_model(case), "parameter_groups": parameter_groups(facts)}
    exec(guide(folder, how), names)  # noqa: S102: the guide itself
    model, optimizer = names["model"], names["optimizer"]
    if how in OTHER_LOADERS:
        OTHER_LOADERS[how](model, optimizer, folder)
    held = {f"model|{key}": whole(value) for key, value in model.state_dict().items()}
    for key, parameter in model.named_parameters():
        for state, value in optimizer.state.get(parameter, {}).items():
            held[f"{state}|{key}"] = whole(value)
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    if how == "nested":
        own = {"model": names["model_state"], "optim": names["optim_state"]}
        torch.distributed.checkpoint.save(own, checkpoint_id=str(out) + "_own")
    losses = train(model, optimizer, case, facts, rank, world) if facts["precision"] == "fp32" else []
    if rank == 0:
        torch.save({"held": held, "options": options, "losses": losses}, out)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
