"""Folders of torch.distributed.checkpoint that hold several models, names of wrappers, numbered optimizers, or lie on
several disks.
"""
import pathlib
import shutil
import tempfile

import tools
import torch
import torch.distributed.checkpoint as dcp
from oracle import OracleTest, load_bin
from safetensors.torch import load_file
from tools import run_tool


def trained(seed, width=6):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(5, width), torch.nn.LayerNorm(width), torch.nn.Linear(width, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(3):
        net(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return net, optimizer


def named(net, optimizer):
    """As get_optimizer_state_dict has it."""
    names = {param: name for name, param in net.named_parameters()}
    state = {names[param]: dict(values) for param, values in optimizer.state.items()}
    group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    return {"state": state, "param_groups": [{**group, "params": list(names.values())}]}


class DcpModelsTest(OracleTest):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="dsckpt-dcp-")
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def save(self, state, name="ckpt"):
        dcp.save(state, checkpoint_id=self.folder / name, no_dist=True)
        return self.folder / name

    def assert_weights(self, net, *arguments, prefix="", states=None):
        out = self.folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        done = run_tool("zero-to-fp32", *arguments, out, *(["--states"] if states else []))
        self.assertEqual(done.returncode, 0, done.stderr)
        found = load_bin(out / "pytorch_model.bin")
        self.assertEqual({name.removeprefix(prefix) for name in found}, set(net.state_dict()))
        for name, value in net.state_dict().items():
            self.assertTrue(torch.equal(found[prefix + name], value), name)
        if states:
            moments = load_file(out / "optimizer_states" / "exp_avg.safetensors")
            for name, param in net.named_parameters():
                self.assertTrue(torch.equal(moments[prefix + name], states.state[param]["exp_avg"]), name)
        return done

    def test_one_of_several_models_with_its_optimizer(self):
        actor, critic = trained(1), trained(2, width=4)
        twin = trained(3)
        for models in ({"actor": actor, "critic": critic}, {"actor": actor, "twin": twin, "critic": critic}):
            state = {name: net.state_dict() for name, (net, _) in models.items()}
            state |= {f"{name}_optim": named(*pair) for name, pair in models.items()}
            folder = self.save(state, f"of{len(models)}")
            for words in (["zero-to-fp32", folder, self.folder / "no"], ["to-dcp", folder, self.folder / "no", "--dp", "1"],
                          ["to-universal", "--input-folder", folder, "--output-folder", self.folder / "no" / "u"],
                          ["ckpt-inspect", "list", folder]):
                done = run_tool(*words)
                self.assertEqual(done.returncode, 3, (words, done.stderr))
                self.assertIn("'actor'", done.stderr)
                self.assertIn("--model actor", done.stderr)
            for name, (net, optimizer) in models.items():
                self.assert_weights(net, folder, "--model", name, states=optimizer)
            done = run_tool("zero-to-fp32", folder, self.folder / "no", "--model", "nobody")
            self.assertEqual(done.returncode, 2)

    def test_an_average_beside_the_model_is_another_model(self):
        net, optimizer = trained(1)
        ema = trained(4)[0]
        folder = self.save({"model": net.state_dict(), "ema": ema.state_dict(), "optim": named(net, optimizer)})
        self.assertEqual(run_tool("zero-to-fp32", folder, self.folder / "no").returncode, 3)
        self.assert_weights(ema, folder, "--model", "ema")
        self.assert_weights(net, folder, "--model", "model")

    def test_prefixes_of_wrappers_on_one_side_do_not_matter(self):
        net, optimizer = trained(1)
        for prefix in ("_orig_mod.", "module.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module._orig_mod."):
            model = {prefix + name: value for name, value in net.state_dict().items()}
            folder = self.save({"model": model, "optim": named(net, optimizer)}, prefix)
            self.assert_weights(net, folder, prefix=prefix, states=optimizer)
            self.assertEqual(run_tool("ckpt-inspect", "verify", folder).returncode, 0)
            state = named(net, optimizer)
            state["state"] = {prefix + name: value for name, value in state["state"].items()}
            state["param_groups"][0]["params"] = [prefix + name for name in state["param_groups"][0]["params"]]
            self.assert_weights(net, self.save({"model": net.state_dict(), "optim": state}, prefix + "2"), states=optimizer)

    def test_numbers_with_names_beside_them(self):
        net, optimizer = trained(1)
        numbered = optimizer.state_dict()
        folder = self.save({"model": net.state_dict(), "optim": numbered}, "without")
        done = self.assert_weights(net, folder)
        done = run_tool("reshard", folder, self.folder / "no", "--dp", "1")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("--like", done.stderr)
        # As torch saves those that were made of named_parameters().
        numbered["param_groups"][0]["param_names"] = [name for name, _ in net.named_parameters()]
        self.assert_weights(net, self.save({"model": net.state_dict(), "optim": numbered}, "with"), states=optimizer)

    def test_files_on_several_disks(self):
        net, optimizer = trained(1)
        folder = self.save({"model": net.state_dict(), "optim": named(net, optimizer)})
        data = sorted(folder.glob("*.distcp"))
        self.assertTrue(data)
        other = self.folder / "other"
        other.mkdir()
        shutil.move(data[-1], other / data[-1].name)
        done = run_tool("zero-to-fp32", folder, self.folder / "no")
        self.assertEqual(done.returncode, 3)
        self.assertIn(data[-1].name, done.stderr)
        self.assertIn("--root", done.stderr)
        self.assert_weights(net, folder, "--root", other, states=optimizer)
        self.assert_weights(net, other, "--root", folder, states=optimizer)
        self.assertEqual(run_tool("ckpt-inspect", "verify", folder, "--root", other).returncode, 0)


if __name__ == "__main__":
    tools.main()
