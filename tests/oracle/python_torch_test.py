"""The objects that dsckpt.open gives torch: types and devices while reading, models that are filled, states,
and workers, each against torch itself. By the compiled module or by the program alone."""
import pickle
import subprocess
import sys
import unittest
import warnings
from unittest import mock

from opened_case import NATIVE, OpenedCase  # first: it decides whether the module is there

import dsckpt
import oracle
import safetensors.torch
import tools
import torch
from dsckpt import _checkpoint

TIED = "hf_trainer_gpt2_z2_bf16_w2"

# Reads a file as bfloat16; prints whether all of it is 7, and how many MiB that took at its peak.
MEMORY_OF = """
import resource, sys, dsckpt, torch
torch.full([9], 7.0).bfloat16()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
read, = dsckpt.open(sys.argv[1], dtype="bf16").state_dict().values()
print(read.dtype, bool((read[::999] == 7).all()), peak() - before)
"""


class Tensors(torch.utils.data.Dataset):
    """Each tensor by its number, read in the worker."""

    def __init__(self, checkpoint):
        self.checkpoint, self.names = checkpoint, list(checkpoint)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, number):
        return self.checkpoint[self.names[number]].torch()


class Model(torch.nn.Module):
    """A module whose state dict has these tensors under these names; tied ones are one parameter."""

    def __init__(self, tensors, tied=(), dtype=None):
        super().__init__()
        tied = dict(tied)
        for name in sorted(tensors, key=lambda name: name in tied):
            *modules, last = name.split(".")
            place = self
            for module in modules:
                if not hasattr(place, module):
                    place.add_module(module, torch.nn.Module())
                place = getattr(place, module)
            value = tensors[name]
            if name in tied:
                setattr(place, last, self.get_parameter(tied[name]))
            elif value.is_floating_point():
                setattr(place, last, torch.nn.Parameter(torch.zeros(value.shape, dtype=dtype or value.dtype)))
            else:
                place.register_buffer(last, torch.zeros_like(value))


class TorchTest(OpenedCase):

    def setUp(self):
        super().setUp()
        self.enterContext(warnings.catch_warnings())
        warnings.simplefilter("ignore", dsckpt.DsckptWarning)
        self.case = oracle.case_named("z3_bf16_w2")
        self.truth = self.case.truth(dtype="keep")
        self.ckpt = dsckpt.open(self.case.load_dir)

    def assert_same(self, got, expected):
        self.assertEqual((got.dtype, got.shape), (expected.dtype, expected.shape))
        self.assertTrue(oracle.same_bits(got, expected))

    def cast(self, value, dtype):
        return value.to(dtype) if value.is_floating_point() else value


class FormTest(TorchTest):

    def test_types_are_torchs(self):
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "float16"), (torch.float64, "fp64")):
            for given in (dtype, name):
                for value, expected in self.pairs(dsckpt.open(self.case.load_dir, dtype=given).state_dict()):
                    self.assert_same(value, self.cast(expected, dtype))
        name = max(self.ckpt, key=lambda name: self.ckpt[name].numel)
        for value in (self.ckpt[name].to(torch.bfloat16), self.ckpt[name].to("cpu", torch.bfloat16),
                      self.ckpt[name].torch(dtype="bf16"), dsckpt.open(self.case.load_dir, dtype="bf16")[name][:]):
            self.assert_same(value, self.truth[name].bfloat16())
        self.assertEqual(self.ckpt[name].ndim, self.truth[name].ndim)

    def pairs(self, found):
        self.assertEqual(set(found), set(self.truth))
        return [(found[name], expected) for name, expected in self.truth.items()]

    def test_pieces_are_the_whole(self):
        with mock.patch.object(_checkpoint, "PIECE", 100), mock.patch("dsckpt._arrays.PIECE", 100):
            for value, expected in self.pairs(self.ckpt.state_dict(dtype=torch.bfloat16)):
                self.assert_same(value, self.cast(expected, torch.bfloat16))

    @unittest.skipUnless(NATIVE, "the program reads a tensor at once")
    def test_there_is_no_second_copy(self):
        path = self.root / "large.safetensors"
        safetensors.torch.save_file({"large": torch.full([1 << 15, 1 << 10], 7.0)}, path)  # 128 MiB
        done = subprocess.run([sys.executable, "-c", MEMORY_OF, path], capture_output=True, text=True)
        dtype, right, peak = done.stdout.split()
        self.assertEqual((dtype, right), ("torch.bfloat16", "True"), done.stderr)
        self.assertLess(float(peak), 128)  # 64 of the result, 32 of a piece, and what threads take

    def test_devices(self):
        """On a machine without a GPU the other device is meta, which has no values."""
        device = "cuda" if torch.cuda.is_available() else "meta"
        ckpt = dsckpt.open(self.case.load_dir, device=device)
        tensor = ckpt["gain"]
        values = [tensor[:1], tensor.torch(), self.ckpt["gain"].to(device), self.ckpt["gain"].to(torch.device(device)),
                  *ckpt.state_dict().values(), *self.ckpt.state_dict(["gain"], device=device).values(),
                  *next(self.ckpt.iter_batches(device=device)).values()]
        self.assertEqual({value.device.type for value in values}, {device})
        self.assertEqual({tensor.to("cpu").device.type, tensor.torch(device="cpu").device.type}, {"cpu"})
        self.assert_same(torch.from_dlpack(tensor), self.truth["gain"])
        self.assertEqual(tensor.to(device, torch.float16).dtype, torch.float16)


class ModelTest(TorchTest):

    def test_a_model_gets_what_load_state_dict_would_give_it(self):
        for dtype in (None, torch.bfloat16):
            model, other = Model(self.truth, dtype=dtype), Model(self.truth, dtype=dtype)
            before = {name: value.data_ptr() for name, value in model.state_dict().items() if value.numel()}
            self.assertEqual(self.ckpt.load_into(model), other.load_state_dict(self.truth))
            for name, value in other.state_dict().items():
                self.assert_same(model.state_dict()[name], value)
            after = {name: value.data_ptr() for name, value in model.state_dict().items() if value.numel()}
            self.assertEqual(after, before)
            self.assertTrue(all(value.requires_grad for value in model.parameters()))

    def test_in_pieces_too(self):
        model, told = Model(self.truth), []
        with mock.patch.object(_checkpoint, "PIECE", 100), mock.patch("dsckpt._arrays.PIECE", 100):
            self.ckpt.load_into(model, progress=lambda done, total: told.append((done, total)))
        for name, value in model.state_dict().items():
            self.assert_same(value, self.truth[name])
        self.assertEqual(told[-1][0], told[-1][1])

    def test_tied_ones(self):
        case = oracle.case_named(TIED)
        truth = case.truth(dtype="keep")
        weights = self.new_path()
        dsckpt.convert(case.folder / "ckpt", weights, safe_serialization=True)
        for path in (case.folder / "ckpt", weights):
            ckpt = dsckpt.open(path)
            for tied in (case.tied, {}):  # a model that has one parameter, and one that has two
                model = Model(truth, tied)
                self.assertEqual(ckpt.load_into(model), ([], []))
                for name, value in model.state_dict().items():
                    self.assert_same(value, truth[name].to(value.dtype))
            alias, owner = next(iter(case.tied.items()))
            for left_out in (alias, owner):  # names that a model does not have
                model = Model({name: value for name, value in truth.items() if name != left_out})
                self.assertEqual(ckpt.load_into(model), ([], []))

    def test_what_one_side_lacks(self):
        fewer = {name: value for name, value in self.truth.items() if name != "gain"}
        more = {**self.truth, "extra.weight": torch.zeros(3)}
        for tensors, missing, unexpected in ((fewer, [], ["gain"]), (more, ["extra.weight"], [])):
            model = Model(tensors)
            with self.assertRaisesRegex(dsckpt.InconsistentError, (missing + unexpected)[0]):
                self.ckpt.load_into(model)
            self.assertFalse(any(value.any() for value in model.parameters()), "nothing is copied")
            self.assertEqual(self.ckpt.load_into(model, strict=False), (missing, unexpected))
            theirs = Model(tensors).load_state_dict(self.truth, strict=False)
            self.assertEqual((theirs.missing_keys, theirs.unexpected_keys), (missing, unexpected))
        wrong = Model({**self.truth, "gain": torch.zeros(99)})
        for strict in (True, False):
            with self.assertRaisesRegex(dsckpt.InconsistentError, "gain"):
                self.ckpt.load_into(wrong, strict=strict)
        with self.assertRaisesRegex(dsckpt.UsageError, "to_empty"):
            self.ckpt.load_into(Model(self.truth).to("meta"))

    def test_a_sharded_model_is_refused(self):
        for member in ("device_mesh", "ds_tensor"):
            model = Model(self.truth)
            setattr(model.get_parameter("gain"), member, None)
            with self.assertRaisesRegex(dsckpt.UsageError, "sharded"):
                self.ckpt.load_into(model)

    def test_a_wrong_record_is_an_error(self):
        folder, _ = self.damaged("z2_bf16_w2")
        model = Model(oracle.case_named("z2_bf16_w2").truth(dtype="keep"))
        with self.assertRaises(dsckpt.CorruptError):
            dsckpt.open(folder).load_into(model)


class IntoMemoryTest(TorchTest):

    def test_arrays_tensors_and_dlpack_are_filled(self):
        class Exporter:
            """Memory that is known by DLPack alone."""

            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack__(self, **options):
                return self.tensor.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

        names = [name for name, value in self.truth.items() if value.dtype in (torch.float32, torch.int64, torch.bool)]
        self.assertGreater(len(names), 3)
        tensors = {name: torch.full_like(self.truth[name], 1) for name in names}
        self.ckpt.read_into(tensors)
        arrays = {name: torch.full_like(self.truth[name], 1).numpy() for name in names}
        self.ckpt.read_into(arrays)
        exported = {name: torch.full_like(self.truth[name], 1) for name in names}
        wrapped = {name: Exporter(value) for name, value in exported.items() if value.dtype != torch.bool}
        self.ckpt.read_into(wrapped)
        for name in names:
            self.assert_same(tensors[name], self.truth[name])
            self.assert_same(torch.from_numpy(arrays[name]), self.truth[name])
            if name in wrapped:
                self.assert_same(exported[name], self.truth[name])

    def test_other_types_and_strides_get_the_values_too(self):
        [name, *_] = [name for name, value in self.truth.items() if value.dim() == 2 and value.dtype == torch.float32]
        truth = self.truth[name]
        turned, narrow = torch.zeros(truth.t().shape).t(), torch.zeros(truth.shape, dtype=torch.bfloat16)
        array = torch.zeros(truth.shape).double().numpy()
        self.ckpt.read_into({name: turned})
        self.ckpt.read_into({name: narrow})
        self.ckpt.read_into({name: array})
        self.assertTrue(torch.equal(turned, truth))
        self.assertTrue(torch.equal(narrow, truth.bfloat16()))
        self.assertTrue(torch.equal(torch.from_numpy(array).float(), truth))

    def test_what_does_not_fit_is_refused_before_anything_is_read(self):
        first, second = list(self.truth)[:2]
        good = torch.full_like(self.truth[first], 1)
        locked = torch.full_like(self.truth[second].float(), 1).numpy()
        locked.flags.writeable = False
        for wrong, kind in ((torch.zeros(3, 5, 7), dsckpt.InconsistentError), (locked, dsckpt.UsageError),
                            ([1.0], dsckpt.UsageError), (self.truth[second].to("meta"), dsckpt.UsageError)):
            with self.assertRaises(kind):
                self.ckpt.read_into({first: good, second: wrong})
            self.assertTrue((good == 1).all())
        with self.assertRaises(KeyError):
            self.ckpt.read_into({first: good, "no such tensor": good})

    def test_a_wrong_record_is_an_error(self):
        folder, _ = self.damaged("z2_bf16_w2")
        truth = oracle.case_named("z2_bf16_w2").truth(dtype="keep")
        with self.assertRaises(dsckpt.CorruptError):
            dsckpt.open(folder).read_into({name: torch.empty_like(value) for name, value in truth.items()})


class StatesTest(TorchTest):

    def test_states_are_the_live_optimizers(self):
        for name in ("z3_bf16_w2", "z2_fp32_full_w3"):
            case = oracle.case_named(name)
            states = dsckpt.open(case.load_dir).state_dict(states=True)
            compared = 0
            for key, expected in case.expected("master").items():
                parameter, state = key.rsplit("|", 1)
                if state in ("exp_avg", "exp_avg_sq"):
                    self.assertEqual(states[parameter][state].shape,
                                     torch.Size(case.facts["param_shapes"][parameter]))
                    self.assertTrue(oracle.same_bits(states[parameter][state].flatten(), expected.flatten()))
                    compared += 1
            self.assertGreater(compared, 10)


class WorkersTest(TorchTest):

    def test_spawned_workers_read(self):
        loader = torch.utils.data.DataLoader(Tensors(self.ckpt), batch_size=None, num_workers=2,
                                             multiprocessing_context="spawn")
        read = dict(zip(self.ckpt, loader))
        self.assertEqual(set(read), set(self.truth))
        for name, value in read.items():
            self.assert_same(value, self.truth[name])

    def test_options_go_along(self):
        ckpt = pickle.loads(pickle.dumps(dsckpt.open(self.case.load_dir, dtype=torch.bfloat16)))
        self.assertEqual(ckpt["gain"].torch().dtype, torch.bfloat16)


if __name__ == "__main__":
    tools.main()
