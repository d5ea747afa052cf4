"""Every converted tensor against the live engine's own values, bit for bit."""
from safetensors import safe_open
from safetensors.torch import load_file

import oracle
import tools


def metadata(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


class TruthTest(oracle.OracleTest):

    def check_safetensors(self, case, path, truth):
        self.assert_same_tensors(load_file(path), case.without_aliases(truth))
        aliases = {name: owner for name, owner in case.tied.items() if name in truth}
        self.assertEqual(metadata(path), {"format": "pt", **aliases})

    def check_bin(self, case, path, truth):
        tensors = oracle.load_bin(path)
        self.assert_same_tensors(tensors, truth)
        self.assertTrue(all(value.is_contiguous() for value in tensors.values()))
        owners = {}
        for name, value in tensors.items():
            owner = case.tied.get(name, name)
            if value.numel():
                pointer = value.untyped_storage().data_ptr()
                self.assertEqual(owners.setdefault(pointer, owner), owner, f"{name} shares another's storage")
                self.assertEqual(value.untyped_storage().nbytes(), value.numel() * value.element_size(), name)
        for alias, owner in case.tied.items():
            if alias in tensors:
                self.assertEqual(tensors[alias].data_ptr(), tensors[owner].data_ptr(), alias)

    def test_safetensors_hold_the_live_values(self):
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out", "--safe_serialization")
                self.check_safetensors(case, out / "model.safetensors", case.truth())
                self.assertEqual([path.name for path in out.glob("*.safetensors*")], ["model.safetensors"])

    def test_bin_holds_the_live_values_and_shares_tied_storage(self):
        for case in oracle.all_cases():
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out")
                self.check_bin(case, out / "pytorch_model.bin", case.truth())
                self.assertEqual([path.name for path in out.glob("*.bin*")], ["pytorch_model.bin"])

    def test_excluding_frozen_parameters_drops_them_and_nothing_else(self):
        for case in oracle.all_cases():
            if case.frozen:
                with self.each_case(case) as folder:
                    truth = case.truth(exclude_frozen=True)
                    out = self.convert(case.load_dir, folder / "st", "--safe_serialization",
                                       "--exclude_frozen_parameters")
                    self.check_safetensors(case, out / "model.safetensors", truth)
                    out = self.convert(case.load_dir, folder / "bin", "--exclude-frozen-parameters")
                    self.check_bin(case, out / "pytorch_model.bin", truth)

    def test_equals_deepspeeds_command_where_that_is_right(self):
        compared = 0
        for case in oracle.all_cases():
            command = case.expected("command")
            if command is None:
                continue
            compared += 1
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out")
                tensors = oracle.load_bin(out / "pytorch_model.bin")
                # At stage 1 DeepSpeed leaves out whatever its optimizer does not own.
                extra = (set(case.facts["frozen"]) if case.stage == 1 else set()) - set(command)
                names = [name for name in tensors if name not in extra]
                self.assertEqual(names, case.facts["command_names"])
                self.assert_same_tensors({name: tensors[name] for name in names}, command)
        self.require(compared, "case with an output of DeepSpeed's command")

    def test_round_robin_partitions_equal_deepspeeds_api(self):
        compared = 0
        for case in oracle.all_cases():
            if not case.facts["ds_config"]["zero_optimization"].get("round_robin_gradients"):
                continue
            compared += 1
            with self.each_case(case) as folder:
                out = self.convert(case.load_dir, folder / "out", "--safe_serialization")
                api = case.expected("fp32")
                trained = {name: value for name, value in load_file(out / "model.safetensors").items()
                           if name in case.masters}
                self.assertEqual(len(trained), len(case.masters))
                self.assert_same_tensors(trained, {name: api[name] for name in trained})
        self.require(compared, "round-robin case")

    def test_tag_folder_and_tag_option_find_the_same_checkpoint(self):
        for case in oracle.all_cases():
            if case.stage == 2:
                with self.each_case(case) as folder:
                    tag = case.facts["tag"]
                    runs = [self.convert(case.load_dir, folder / "a", "--safe_serialization"),
                            self.convert(case.load_dir, folder / "b", "--safe_serialization", "-t", tag),
                            self.convert(case.load_dir, folder / "c", "--safe_serialization", "--tag", tag),
                            self.convert(case.load_dir / tag, folder / "d", "--safe-serialization")]
                    self.assertEqual(len({(run / "model.safetensors").read_bytes() for run in runs}), 1)


if __name__ == "__main__":
    tools.main()
