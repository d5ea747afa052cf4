"""reshard's output, taken apart with torch alone: every parameter, layout rule, object and round trip.

native_checkpoint.py reads the files by DeepSpeed's own rules and knows nothing of the library.
reshard_resume_test.py checks that engines load the files.
"""
import contextlib
import io
import pathlib
import tempfile

import torch

import native_checkpoint
import oracle
import tools
from native_checkpoint import NativeCheckpoint, differences, is_state, numel, round_up

# Checkpoints that cannot be resharded, and a word of the reason.
REFUSED = {
    # DeepSpeed itself cannot resume these, and the second lacks hyper-parameters.
    "z3_fp32_adagrad_w2": "Adagrad",
    "z1_fp32_elastic_torchadam_w2": "base_optimizer_state_step",
}
# Cut by the number of ranks: recomputed by check_layout, and of no meaning to anybody else.
FLAT_KEYS = ("single_partition_of_fp32_groups", "group_paddings", "partition_count", "param_slice_mappings")
STAGE3_KEYS = ("fp32_flat_groups", "partition_count")


def refusal_of_stage(case, stage):
    """The exit status and a word of the reason why a case is not written for another stage."""
    if native(case).bf16_optimizer and stage == 0:
        return 2, "gradients"  # fp32 gradients of bf16 need ZeRO
    if native(case).elastic and (stage in (0, 3) or case.name in REFUSED):
        return 3, "elastic"  # its files lack hyper-parameters
    if case.facts["optimizer_classes"]["base"] == "torch.optim.adagrad.Adagrad" and stage == 3:
        return 3, "Adagrad"
    if stage == 0 and any(not numel(shape) for shape in case.facts["param_shapes"].values()):
        return 3, "has no elements"  # stage 0 counts it, if the optimizer has it
    return None


def counts(case):
    """Other numbers of ranks."""
    world = case.facts["world_size"]
    return sorted({1, world - 1, world + 1, 8} - {0, world})


def native(case, folder=None):
    """The case's own files, or those that were made of it in `folder`."""
    return NativeCheckpoint((folder or case.load_dir) / case.facts["tag"], case.facts.get("param_groups", ()))


def by_name(values):
    """Round-robin gradients put the parameters in another order for every number of ranks."""
    return dict(sorted(values.items()))


def zero_config(config):
    return config.get("zero_optimization", {})


def is_bf16(config):
    return any(config.get(key, {}).get("enabled") for key in ("bf16", "bfloat16"))


def element_size(config):
    return 2 if is_bf16(config) or config.get("fp16", {}).get("enabled") else 4


def uses_bf16_optimizer(config, stage):
    grads = config.get("data_types", {}).get("grad_accum_dtype")
    return stage == 1 and is_bf16(config) and grads == "fp32" and "offload_optimizer" not in zero_config(config)


def original_order(case, source):
    """Names by group as the optimizer was given them, of parameters with elements."""
    shapes = case.facts["param_shapes"]
    if zero_config(source.config).get("round_robin_gradients") or source.stage == 0:
        return [[name for name in group["names"] if numel(shapes[name])] for group in case.facts["param_groups"]]
    groups = {}
    for group, members in source.layout():
        groups.setdefault(group, []).extend(members)
    return [groups[group] for group in sorted(groups)]


def order_of_flat_groups(case, source, config, world):
    order = original_order(case, source)
    if zero_config(config).get("round_robin_gradients"):
        order = [[name for rank in range(world) for name in group[rank::world]] for group in order]
    return order


def alignment_gaps(shapes, config):
    """Zeros behind each parameter, so that the next one starts at a multiple of 16 bytes."""
    gaps = [0] * len(shapes)
    if zero_config(config).get("parameter_alignment"):
        unit = 16 // element_size(config)
        gaps = [round_up(numel(shape), unit) - numel(shape) for shape in shapes]
        gaps[-1] = 0
    return gaps


def sub_groups(names, shapes, limit, world):
    """One parameter group in stage 3's sub-groups."""
    result, current, size = [], [], 0
    for at, name in enumerate(names):
        current.append(name)
        size += -(-numel(shapes[name]) // world)
        if size >= limit or at == len(names) - 1:
            result.append(current)
            current, size = [], 0
    return result


class ReshardTest(oracle.OracleTest):

    def reshard(self, case, source, output, world, *options):
        """Returns what was written for `world` ranks from the folder `source`."""
        self.run_well("reshard", output, source, output, "--tag", case.facts["tag"], "--dp", world, *options)
        return native(case, output)

    def converted(self):
        cases = [case for case in oracle.all_cases() if case.name not in REFUSED]
        self.require(cases, "data-parallel case")
        return cases

    def kept_as_they_are(self):
        """Cases that reshard leaves as they are but for what the ranks have: an optimizer on NVMe comes back (cli.nvme)."""
        return [case for case in self.converted() if "_nvme" not in case.name]

    @contextlib.contextmanager
    def each_size(self, case, world):
        """A sub-test with a scratch folder of its own."""
        with self.subTest(case=case.name, ranks=world), tempfile.TemporaryDirectory() as folder:
            yield pathlib.Path(folder)

    def assert_no_differences(self, found):
        self.assertEqual(found[:5], [], f"{len(found)} in all")

    def assert_tensors_are_those_of_the_live_engine(self, case, source, result):
        got, expected = result.tensors(), source.tensors()
        self.assertEqual(got.keys(), expected.keys())
        truth = case.expected("master")
        self.assertLessEqual(truth.keys(), got.keys())
        for key, value in expected.items():
            self.assertTrue(native_checkpoint.equal_bits(got[key], value), f"{key} is not the source's")
        for key, value in truth.items():
            self.assertTrue(torch.equal(got[key].float(), value), f"{key} is not the live engine's")

    def test_every_parameter_and_state_comes_back_whole(self):
        for case in self.converted():
            source = native(case)
            for world in counts(case):
                with self.each_size(case, world) as folder:
                    result = self.reshard(case, case.load_dir, folder / "out", world)
                    self.assert_tensors_are_those_of_the_live_engine(case, source, result)
                    self.assert_untrained_are_those_of_the_live_model(case, source, result)

    def assert_untrained_are_those_of_the_live_model(self, case, source, result):
        module, shapes = case.expected("module"), case.facts["param_shapes"]
        frozen = set()
        if result.stage >= 2 and not case.facts["exclude_frozen_parameters"]:
            frozen = {*case.facts["frozen"], *(name for name, shape in shapes.items() if not numel(shape))}
        # Files that never told of frozen parameters leave open whether there are any: None, as when left out.
        self.assertEqual(set(result.frozen() or ()), frozen)
        for name in frozen:
            self.assertTrue(native_checkpoint.equal_bits(result.frozen()[name].detach(), module[name]), name)
        for model in result.models:
            self.assertEqual(list(model["module"]), list(source.model["module"]))
            for name, value in model["module"].items():
                if result.stage < 3 or name in model["buffer_names"]:
                    self.assertTrue(native_checkpoint.equal_bits(value.detach(), module[name]), f"module's {name}")
                else:
                    self.assertEqual((value.shape, value.dtype), (torch.Size([0]), module[name].dtype), name)

    def test_layout_follows_the_rules_for_the_new_number_of_ranks(self):
        for case in self.converted():
            source = native(case)
            for world in [*counts(case), source.world]:
                with self.each_size(case, world) as folder:
                    result = self.reshard(case, case.load_dir, folder / "out", world)
                    self.assertEqual((folder / "out" / "latest").read_text(), case.facts["tag"])
                    self.check_layout(case, source, result, source.config, source.stage, world)

    def check_layout(self, case, source, result, config, stage, world):
        prefix = "bf16_" if is_bf16(config) else ""
        optim = [f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(world)]
        model = [f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt" for rank in range(world)]
        expected = {*(optim if stage else []), *(model if stage == 3 else ["mp_rank_00_model_states.pt"])}
        self.assertEqual({path.name for path in result.folder.iterdir()}, expected)
        self.assertEqual([m["dp_world_size"] for m in result.models], [world] * len(result.models))
        self.assertEqual(result.stage, stage)
        if stage == 0:
            self.assertIsNone(result.model["param_shapes"])
        elif stage == 3:
            self.check_stage3_layout(case, source, result, config, world)
        else:
            self.check_flat_layout(case, source, result, config, world)

    def check_flat_layout(self, case, source, result, config, world):
        shapes = case.facts["param_shapes"]
        bf16_optimizer = uses_bf16_optimizer(config, result.stage)
        self.assertEqual(result.bf16_optimizer, bf16_optimizer)
        order = order_of_flat_groups(case, source, config, world)
        self.assertEqual([[(name, list(shape)) for name, shape in group.items()]
                          for group in result.model["param_shapes"]],
                         [[(name, shapes[name]) for name in group] for group in order])
        for rank, optim in enumerate(result.optims):
            self.assertEqual(optim["partition_count"], [world] * len(order))
            self.assertEqual(len(optim["single_partition_of_fp32_groups"]), len(order))
            for group, names in enumerate(order):
                gaps = alignment_gaps([shapes[name] for name in names], config)
                if "param_alignment_paddings" in optim:
                    self.assertEqual(optim["param_alignment_paddings"][group], gaps)
                else:
                    self.assertEqual(sum(gaps), 0)
                mapping, at = {}, 0
                starts = []
                for name, gap in zip(names, gaps):
                    starts.append(at)
                    at += numel(shapes[name]) + gap
                size = round_up(at, 2 * world) // world
                padding = max(0, min(size, (rank + 1) * size - at))
                if bf16_optimizer:
                    padding = size * world - at if rank == world - 1 else 0
                for name, start in zip(names, starts):
                    low, high = max(start, rank * size), min(start + numel(shapes[name]), (rank + 1) * size)
                    if low < high:
                        mapping[name] = (low - rank * size, high - low)
                where = f"group {group} on rank {rank}"
                self.assertEqual(optim["group_paddings"][group], padding, where)
                self.assertEqual({name: (place.start, place.numel) for name, place in
                                  optim["param_slice_mappings"][group].items()}, mapping, where)
                self.assertEqual(list(optim["param_slice_mappings"][group]), list(mapping), where)
                master = optim["single_partition_of_fp32_groups"][group]
                self.assertEqual((master.dtype, tuple(master.shape), master.requires_grad),
                                 (torch.float32, (size if bf16_optimizer else size - padding, ), True), where)
                states = result.base(rank)["state"].get(group, {})
                for key, value in states.items():
                    if is_state(key, value) and not result.whole_momentum(group):
                        self.assertEqual(tuple(value.shape), (size - padding if result.elastic else size, ),
                                         f"{key} of {where}")

    def check_stage3_layout(self, case, source, result, config, world):
        shapes = case.facts["param_shapes"]
        limit = zero_config(config).get("sub_group_size", 10**9)
        cut = [sub_groups(names, shapes, limit, world) for names in original_order(case, source)]
        flat = [names for group in cut for names in group]
        for rank, (optim, model) in enumerate(zip(result.optims, result.models)):
            self.assertEqual([[(name, list(shape)) for name, shape in group.items()]
                              for group in model["param_shapes"]],
                             [[(name, shapes[name]) for name in names] for names in flat])
            self.assertIs(type(optim["partition_count"]), int)
            self.assertEqual(optim["partition_count"], world)
            base, at = result.base(rank), 0
            for group, options in zip(cut, base["param_groups"], strict=True):
                self.assertEqual(options["params"], list(range(at, at + len(group))))
                at += len(group)
            lengths = [sum(-(-numel(shapes[name]) // world) for name in names) for names in flat]
            self.assertEqual([tuple(part.shape) for part in optim["fp32_flat_groups"]], [(n, ) for n in lengths])
            self.assertLessEqual(base["state"].keys(), set(range(len(flat))))
            for entry, state in base["state"].items():
                for key, value in state.items():
                    if is_state(key, value):
                        self.assertEqual(tuple(value.shape), (lengths[entry], ), f"{key} of sub-group {entry}")
            if rank:
                self.assertEqual(model["shared_params"], {})
            for name, fragment in (model["frozen_param_fragments"] or {}).items():
                self.assertEqual(tuple(fragment.shape), (-(-numel(shapes[name]) // world), ), f"frozen {name}")

    def test_other_stages_hold_the_same_by_their_own_rules(self):
        world = 3
        for case in oracle.all_cases():
            for stage in {0, 1, 2, 3} - {case.stage}:
                with self.subTest(case=case.name, stage=stage), tempfile.TemporaryDirectory() as folder:
                    folder, refusal = pathlib.Path(folder), refusal_of_stage(case, stage)
                    if refusal:
                        done = tools.run_tool("reshard", case.load_dir, folder / "out", "--dp", world,
                                               "--stage", stage)
                        self.assertEqual(done.returncode, refusal[0], done.stderr)
                        self.assertIn(refusal[1], done.stderr)
                        continue
                    source = native(case)
                    self.reshard(case, case.load_dir, folder / "out", world, "--stage", stage)
                    result = NativeCheckpoint(folder / "out" / case.facts["tag"],
                                              [{"names": names} for names in original_order(case, source)])
                    self.assert_tensors_are_those_of_the_live_engine(case, source, result)
                    self.assert_untrained_are_those_of_the_live_model(case, source, result)
                    self.check_layout(case, source, result, source.config, stage, world)
                    for rank in range(world if stage else 1):
                        self.assert_no_differences(differences(by_name(result.scalars(rank)),
                                                               by_name(source.scalars()), where=f"rank {rank}"))
                    if source.hyper() is not None:
                        self.assert_no_differences(differences(by_name(result.hyper()), by_name(source.hyper())))

    def test_all_other_objects_are_the_sources(self):
        for case in self.kept_as_they_are():
            source = native(case)
            for world in counts(case):
                with self.each_size(case, world) as folder:
                    result = self.reshard(case, case.load_dir, folder / "out", world)
                    self.assert_same_objects(source, result)

    def assert_same_objects(self, source, result):
        if source.hyper() is not None:
            self.assert_no_differences(differences(by_name(result.hyper()), by_name(source.hyper()), where="groups"))
        for rank, file in enumerate(result.files):
            self.assert_no_differences(differences(self.without_cuts(result, file), self.without_cuts(source),
                                                   where=f"rank {rank}"))
            self.assert_no_differences(differences(by_name(result.scalars(rank)), by_name(source.scalars()),
                                                   where=f"rank {rank}"))
        ignore = {"dp_world_size", "param_shapes", *(("frozen_param_fragments", ) if source.stage == 3 else ())}
        for rank, model in enumerate(result.models):
            also = {"shared_params"} if rank else set()
            self.assert_no_differences(differences(model, source.model, ignore | also, f"model of rank {rank}"))

    @staticmethod
    def without_cuts(checkpoint, file=None):
        """An optimizer file less what depends on the number of ranks; tensors are left as their dtypes."""
        file = file or checkpoint.files[0]
        optim = {key: value for key, value in file["optimizer_state_dict"].items()
                 if key not in (STAGE3_KEYS if checkpoint.stage == 3 else FLAT_KEYS)}
        key = "optimizer_state_dict" if checkpoint.stage == 3 else "base_optimizer_state"
        base = optim[key]
        states = base if isinstance(base, list) else base["state"].values()
        kinds = [{name: value.dtype if is_state(name, value) else value
                  for name, value in state.items()} for state in states]
        if checkpoint.stage == 3:
            owners = [group for group, _ in checkpoint.layout()]
            first = {group: kinds[owners.index(group)] for group in dict.fromkeys(owners)} if kinds else {}
            kinds = first
            optim[key] = {**base, "state": kinds, "param_groups": [
                {**group, "params": None} for group in base["param_groups"]]}
        else:
            optim[key] = kinds if isinstance(base, list) else {**base, "state": dict(zip(base["state"], kinds))}
        return {**file, "optimizer_state_dict": optim}

    def test_there_and_back_again_is_where_one_was(self):
        for case in self.kept_as_they_are():
            source = native(case)
            for world in [*counts(case), source.world]:
                with self.each_size(case, world) as folder:
                    there = self.reshard(case, case.load_dir, folder / "there", world)
                    if world == source.world:
                        self.assert_same_but_for_padding(source, there)
                    back = self.reshard(case, folder / "there", folder / "back", source.world)
                    self.assert_same_but_for_padding(source, back)

    def assert_same_but_for_padding(self, source, result):
        self.assertEqual([path.name for path in result.optim_paths], [path.name for path in source.optim_paths])
        self.assertEqual([path.name for path in result.model_paths], [path.name for path in source.model_paths])
        for kind in ("files", "models"):
            for rank, (got, expected) in enumerate(zip(self.with_zero_padding(result, kind),
                                                       self.with_zero_padding(source, kind), strict=True)):
                self.assert_no_differences(differences(got, expected, ("param_slice_mappings", ),
                                                       f"{kind} of rank {rank}"))

    @staticmethod
    def with_zero_padding(checkpoint, kind):
        """The files' objects, with zeros wherever no parameter has an element."""
        world, stage = checkpoint.world, checkpoint.stage

        def valid_in_group(rank, group):
            extents, _, size = checkpoint.extents(group)
            mask = torch.zeros(size * world, dtype=torch.bool)
            for _, shape, at in extents:
                mask[at:at + numel(shape)] = True
            return mask[rank * size:(rank + 1) * size]

        def valid_in_parts(rank, shapes):
            masks = [torch.empty(0, dtype=torch.bool)]
            for shape in shapes:
                part = -(-numel(shape) // world)
                masks.append(torch.arange(rank * part, (rank + 1) * part) < numel(shape))
            return torch.cat(masks)

        def cleared(value, mask):
            result = torch.where(mask[:value.numel()], value.detach(), torch.zeros((), dtype=value.dtype))
            return result.requires_grad_(value.requires_grad)

        def cleared_states(state, mask):
            return {key: cleared(value, mask) if is_state(key, value) else value
                    for key, value in state.items()}

        if kind == "models" or stage == 0:
            models = [dict(model) for model in checkpoint.models]
            for rank, model in enumerate(models):
                if stage == 3 and model["frozen_param_fragments"]:
                    model["frozen_param_fragments"] = {
                        name: cleared(value, valid_in_parts(rank, [model["frozen_param_shapes"][name]]))
                        for name, value in model["frozen_param_fragments"].items()}
            return models if kind == "models" else []
        files = []
        for rank, file in enumerate(checkpoint.files):
            optim = dict(file["optimizer_state_dict"])
            masters, base = (("fp32_flat_groups", "optimizer_state_dict") if stage == 3 else
                             ("single_partition_of_fp32_groups", "base_optimizer_state"))
            masks = [valid_in_parts(rank, members.values()) if stage == 3 else valid_in_group(rank, entry)
                     for entry, (_, members) in enumerate(checkpoint.layout())]
            optim[masters] = [cleared(value, mask) for value, mask in zip(optim[masters], masks, strict=True)]
            states = optim[base] if isinstance(optim[base], list) else optim[base]["state"]
            pairs = enumerate(states) if isinstance(states, list) else states.items()
            states = {entry: state if checkpoint.whole_momentum(entry) else cleared_states(state, masks[entry])
                      for entry, state in pairs}
            optim[base] = list(states.values()) if isinstance(optim[base], list) else {**optim[base], "state": states}
            files.append({**file, "optimizer_state_dict": optim})
        return files

    def test_zero_to_fp32_of_the_output_is_that_of_the_source(self):
        for case in self.converted():
            for world in counts(case):
                with self.each_size(case, world) as folder:
                    expected = self.convert(case.load_dir, folder / "expected", "--safe_serialization")
                    self.reshard(case, case.load_dir, folder / "out", world)
                    got = self.convert(folder / "out", folder / "got", "--safe_serialization")
                    self.assertEqual([path.name for path in sorted(got.iterdir())],
                                     [path.name for path in sorted(expected.iterdir())])
                    for path in expected.iterdir():
                        self.assertTrue((got / path.name).read_bytes() == path.read_bytes(), f"{path.name} differs")

    def test_to_universal_of_the_output_is_that_of_the_source(self):
        compared = 0
        for case in self.converted():
            with self.each_case(case) as folder:
                done = self.universal(case, case.load_dir, folder / "expected")
                if done.returncode:
                    continue
                compared += 1
                expected = self.tensors_below(folder / "expected")
            for world in counts(case):
                with self.each_size(case, world) as folder:
                    self.reshard(case, case.load_dir, folder / "out", world)
                    done = self.universal(case, folder / "out", folder / "got")
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assert_no_differences(differences(self.tensors_below(folder / "got"), expected))
        self.require(compared, "case that to-universal converts")

    @staticmethod
    def universal(case, source, output):
        return tools.run_tool("to-universal", "--input_folder", source, "--tag", case.facts["tag"],
                               "--output_folder", output)

    @staticmethod
    def tensors_below(folder):
        return {str(path.relative_to(folder)): native_checkpoint.load(path)
                for path in sorted((folder / "zero").glob("*/*.pt"))}

    def test_output_does_not_depend_on_threads(self):
        for case in self.converted():
            with self.each_case(case) as folder:
                world = case.facts["world_size"] + 1
                for threads in (1, 2):
                    self.reshard(case, case.load_dir, folder / str(threads), world, "--threads", threads)
                one, two = ({str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")
                             if path.is_file()} for root in (folder / "1", folder / "2"))
                self.assertEqual(one.keys(), two.keys())
                self.assertEqual([name for name in one if one[name] != two[name]], [])

    def test_deepspeeds_zero_to_fp32_makes_the_same_of_the_output(self):
        from deepspeed.utils import zero_to_fp32
        zero_to_fp32.tqdm = lambda files, **_: files
        for case in self.converted():
            if case.facts["deepspeed_answers"]["fp32"] != "ok":
                continue
            expected = case.expected("fp32")
            for world in counts(case):
                with self.each_size(case, world) as folder:
                    self.reshard(case, case.load_dir, folder / "out", world)
                    with contextlib.redirect_stdout(io.StringIO()):
                        got = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(folder / "out"),
                                                                                   tag=case.facts["tag"])
                    self.assert_same_tensors({name: value.detach() for name, value in got.items()}, expected)

    def test_deepspeeds_converter_to_universal_makes_the_same_of_the_output(self):
        from make_checkpoints import run_forked
        from make_model_parallel import UNIVERSAL_OPTIONS, ask_universal

        def convert(source, folder, output):
            return run_forked(ask_universal, folder / "logs", [(source, case.facts["tag"], folder / output,
                                                                UNIVERSAL_OPTIONS["universal_inject"])])

        compared = 0
        for case in self.converted():
            if case.stage == 0 or zero_config(native(case).config).get("round_robin_gradients"):
                continue  # not converted, or scrambled
            world = counts(case)[-1]
            with self.each_size(case, world) as folder:
                if convert(case.load_dir, folder, "theirs"):
                    continue
                compared += 1
                self.reshard(case, case.load_dir, folder / "out", world)
                self.assertIsNone(convert(folder / "out", folder, "got"))
                self.assert_no_differences(differences(self.tensors_below(folder / "got"),
                                                       self.tensors_below(folder / "theirs")))
        self.require(compared, "case that DeepSpeed converts")

    def test_what_cannot_be_recut_is_refused_with_the_reason(self):
        refused = [case for case in oracle.all_cases() if case.name in REFUSED]
        self.require(refused, "case to refuse")
        for case in refused:
            with self.each_case(case) as folder:
                for world in counts(case):
                    done = tools.run_tool("reshard", case.load_dir, folder / "out", "--dp", world)
                    self.assertEqual(done.returncode, 3, done.stderr)
                    self.assertIn(REFUSED[case.name], done.stderr)
                    self.assertFalse((folder / "out").exists())


if __name__ == "__main__":
    tools.main()
