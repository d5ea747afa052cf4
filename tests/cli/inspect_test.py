"""ckpt-inspect list against the facts and the truth of every test checkpoint."""
import math
import shutil

import cli_common
import tools
import torch_files
from cli_common import CliTest
from edits import load_shard

COLUMNS = 6  # name, kind, type, shape, bytes, files


class InspectTest(CliTest):

    def listed(self, source, *arguments):
        """The data object of `list --json`."""
        done = self.tool("ckpt-inspect", "list", source, "--json", *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        line, = self.json_lines(done.stdout)
        self.assertEqual(line["type"], "list")
        return line["data"]

    def rows(self, source, *arguments):
        """The columns of the text."""
        done = self.tool("ckpt-inspect", "list", source, *arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        self.assertEqual({len(row) for row in rows}, {COLUMNS})
        return rows

    def left_out(self, case):
        """The parts that were not saved."""
        return case.frozen if case.facts["exclude_frozen_parameters"] else set()

    def test_names_shapes_types_and_aliases_are_the_live_models(self):
        for case in tools.all_cases():
            with self.subTest(case=case.name):
                data = self.listed(case.load_dir)
                truth = {name: case.masters.get(case.tied.get(name, name), stored)
                         for name, stored in case.module.items() if name not in self.left_out(case)}
                tensors = {tensor["name"]: tensor for tensor in data["tensors"]}
                self.assertEqual(len(tensors), len(data["tensors"]))
                self.assertEqual(sorted(tensors), sorted(truth))
                for name, value in truth.items():
                    tensor = tensors[name]
                    self.assertEqual(tensor["shape"], list(value.shape), name)
                    self.assertEqual(tensor["dtype"], value.dtype, name)
                    self.assertEqual(tensor["bytes"], value.nbytes, name)
                self.assertEqual({name: t["alias_of"] for name, t in tensors.items() if "alias_of" in t}, case.tied)

    def test_kinds_are_the_engines(self):
        for case in tools.all_cases():
            with self.subTest(case=case.name):
                kinds = {t["name"]: t["kind"] for t in self.listed(case.load_dir)["tensors"]}
                persistent = {n for n, facts in case.facts["buffers"].items() if facts["persistent"]}
                self.assertEqual({n for n, kind in kinds.items() if kind == "buffer"}, persistent)
                frozen = {n for n, kind in kinds.items() if kind == "frozen"}
                aliases = {a for a, owner in case.tied.items() if owner in frozen}
                self.assertEqual(frozen - aliases, case.frozen - self.left_out(case))

    def test_facts_are_those_of_the_run(self):
        for case in tools.all_cases():
            with self.subTest(case=case.name):
                facts = self.listed(case.load_dir)["checkpoint"]
                self.assertEqual(facts["zero_stage"], case.stage)
                self.assertEqual(facts["tag"], case.facts["tag"])
                self.assertEqual(facts["folder"], str(case.load_dir / case.facts["tag"]))
                self.assertEqual(facts["mesh"], {"pp": 1, "tp": 1, "dp": case.facts["world_size"], "ep": 1})
                self.assertEqual(facts["ds_version"], case.facts["deepspeed_version"])
                self.assertEqual(facts["global_steps"], len(case.facts["losses_before_save"]))
                if case.facts.get("optimizer_classes", {}).get("wrapper") and case.stage:
                    self.assertEqual(facts["optimizer_wrapper"],
                                     case.facts["optimizer_classes"]["wrapper"].split(".")[-1])

    def test_files_are_those_that_hold_the_bytes(self):
        case = tools.case_named("z2_fp32_full_w3")
        tag = case.facts["tag"]
        files = {t["name"]: t["files"] for t in self.listed(case.load_dir)["tensors"]}
        held = {}  # parameter -> the ranks whose file maps a part of it
        for rank in range(3):
            state = load_shard(
                case.load_dir / tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")["optimizer_state_dict"]
            for mapping in state["param_slice_mappings"]:
                for name in mapping:
                    held.setdefault(name, []).append(f"{tag}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        self.assertIn(2, {len(ranks) for ranks in held.values()})
        for name in case.module:
            self.assertEqual(files[name], held.get(case.tied.get(name, name), [f"{tag}/mp_rank_00_model_states.pt"]),
                             name)

        case = tools.case_named("z3_fp32_w3")
        tag = case.facts["tag"]
        for tensor in self.listed(case.load_dir)["tensors"]:
            if tensor["kind"] == "trainable":
                pieces = -(-(tensor["bytes"] // 4) // 3)
                ranks = -(-(tensor["bytes"] // 4) // pieces)
                self.assertEqual(tensor["files"], [f"{tag}/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
                                                   for rank in range(ranks)], tensor["name"])
                self.assertEqual(tensor["ranks"], [{"dp_rank": rank, "mp_rank": 0} for rank in range(ranks)])

    def test_text_and_json_say_the_same(self):
        for name in ["z2_fp32_full_w3", "z3_bf16_full_w6", "z0_bf16_full_w2"]:
            case = tools.case_named(name)
            tensors = self.listed(case.load_dir)["tensors"]
            rows = self.rows(case.load_dir)
            self.assertEqual(len(rows), len(tensors))
            for row, tensor in zip(rows, tensors):
                self.assertEqual(row[:4], [tensor["name"], tensor["kind"], tensor["dtype"],
                                           "[" + ", ".join(map(str, tensor["shape"])) + "]"])
                size = torch_files.zeros(1, dtype=tensor["dtype"]).nbytes
                self.assertEqual(int(row[4]), math.prod(tensor["shape"]) * size)
                if "alias_of" in tensor:
                    self.assertEqual(row[5], "= " + tensor["alias_of"])
                elif len(tensor["files"]) == 1:
                    self.assertEqual(row[5], tensor["files"][0])
                else:
                    dp = [rank["dp_rank"] for rank in tensor["ranks"]]
                    self.assertEqual(dp, list(range(dp[0], dp[-1] + 1)))
                    self.assertEqual(row[5], f"{len(tensor['files'])} files, dp {dp[0]}-{dp[-1]}")

    def test_match_searches_and_sort_orders(self):
        case = tools.case_named("z2_fp32_full_w3")
        everything = [row[0] for row in self.rows(case.load_dir)]
        self.assertEqual(everything, case.facts["command_names"])
        self.assertEqual([row[0] for row in self.rows(case.load_dir, "--match", r"ln_1\.")],
                         [name for name in everything if "ln_1." in name])
        self.assertEqual([t["name"] for t in self.listed(case.load_dir, "--match=^stats")["tensors"]],
                         [name for name in everything if name.startswith("stats")])
        self.assertEqual([row[0] for row in self.rows(case.load_dir, "--sort=name")], sorted(everything))
        self.assertEqual([row[0] for row in self.rows(case.load_dir, "--sort", "order")], everything)
        sizes = [t["bytes"] for t in self.listed(case.load_dir, "--sort=size")["tensors"]]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        nothing = self.tool("ckpt-inspect", "list", case.load_dir, "--match=no such name")
        self.assertEqual((nothing.returncode, nothing.stdout), (0, ""))

    def test_tags_and_tag_folders_can_be_named(self):
        case = tools.case_named("z2_bf16_w2")
        expected = self.rows(case.load_dir)
        self.assertEqual(self.rows(case.load_dir, "-t", case.facts["tag"]), expected)
        self.assertEqual(self.rows(case.load_dir, f"--tag={case.facts['tag']}"), expected)
        self.assertEqual(self.rows(case.load_dir / case.facts["tag"]), expected)
        self.assertEqual(self.rows(case.load_dir / "latest"), expected)
        for command in ([], ["verify"]):
            of_latest = self.tool("ckpt-inspect", *command, case.load_dir / "latest")
            self.assertEqual(of_latest.stdout, self.tool("ckpt-inspect", *command, case.load_dir).stdout)

    def test_which_of_several_it_is_is_said(self):
        output = self.new_path()
        for step in (1, 2):
            shutil.copytree(self.scratch("z2_bf16_w2").folder, output / f"checkpoint-{step}")
            cli_common.set_step(output / f"checkpoint-{step}", step)
        for command in ([], ["list"], ["tree"], ["stats"], ["verify"], ["where", "temperature"]):
            place = [*command[:1], output, *command[1:]]
            done = self.tool("ckpt-inspect", *place)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr.count("note: reading checkpoint-2, the newest of 2 checkpoints"), 1, place)

    def test_a_tensor_without_states_is_said_to_have_none(self):
        folder = tools.case_named("z3_bf16_full_subgroups_w4").load_dir
        done = self.tool("ckpt-inspect", "where", folder, "frozen_scalar", "--state", "exp_avg")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'frozen_scalar' has no states of an optimizer", done.stderr)

    def test_bad_calls_and_bad_input_have_their_exit_codes(self):
        case = tools.case_named("z2_bf16_w2")
        text = self.new_path("text")
        text.write_text("global_step3")
        for code, arguments, pattern in [
            (2, ["list"], "path"),
            (2, ["lists", case.load_dir], "lists"),
            (2, ["list", case.load_dir, "--match", "("], r"--match '\('"),
            (2, ["list", case.load_dir, "--sort", "colour"], "colour"),
            (2, ["list", case.load_dir, "extra"], "extra"),
            (2, ["list", self.root / "nowhere"], "nowhere"),
            (3, ["list", self.tmp], "no DeepSpeed shards"),
            (3, ["list", case.load_dir, "-t", "nope"], "no such tag"),
            (3, ["list", text], "not a file written by torch.save"),
        ]:
            with self.subTest(arguments=arguments):
                done = self.tool("ckpt-inspect", *arguments)
                self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
                self.assertRegex(done.stderr, rf"\Ackpt-inspect: error: (.|\n)*{pattern}")
                self.error_of(self.tool("ckpt-inspect", *arguments, "--json"), code)


if __name__ == "__main__":
    cli_common.main()
