"""--allow-missing: what is complete is written and right, what is not is listed, and never filled up."""
import json
import math
import re
import shlex

import cli_common
import torch_files
from cli_common import CliTest
from edits import load_shard

STAGE_2 = ["z2_fp32_full_w3", "z2_bf16_full_w8", "z1_fp32_full_w6", "z1_bf16opt_full_w3", "z2_bf16_roundrobin_full_w3",
           "z1_bf16_muon_w2", "z1_fp32_tinygroup_w4", "z2_bf16_w4", "z2_bf16_paramalign_w2", "z1_fp32_elastic_w2"]
STAGE_3 = ["z3_fp32_full_w8", "z3_bf16_full_w6", "z3_fp32_w3", "z3_bf16_full_subgroups_w4", "z3_fp32_tinygroup_w4",
           "z3_bf16_hpz_w4"]


def lost_of_flat_groups(scratch, ranks):
    """{name: lost ranks that have elements of it} at stages 1 and 2, from the files as they were saved."""
    shapes = load_shard(scratch.model())["param_shapes"]
    state = load_shard(scratch.optim(0))["optimizer_state_dict"]
    world = scratch.case.facts["world_size"]
    found = {}
    for number, group in enumerate(shapes):
        paddings = (state.get("param_alignment_paddings") or [[0] * len(group)] * len(shapes))[number]
        ends, at = [], 0
        for (name, shape), padding in zip(group.items(), paddings):
            ends.append((name, at, at + math.prod(shape)))
            at += math.prod(shape) + padding
        part = -(-at // (2 * world)) * 2
        for name, begin, end in ends:
            found[name] = [rank for rank in ranks if max(begin, rank * part) < min(end, (rank + 1) * part)]
    return found


def lost_of_pieces(scratch, optims, models):
    """The same of stage 3, where each parameter is cut by itself; trained ones lie in the optimizer's files."""
    state = load_shard(scratch.model(0))
    world = scratch.case.facts["world_size"]
    found = {}

    def add(shapes, ranks):
        for name, shape in shapes.items():
            count = math.prod(shape)
            piece = -(-count // world)
            found[name] = [rank for rank in ranks if rank * piece < count]

    for group in state["param_shapes"]:
        add(group, optims)
    if state.get("frozen_param_fragments"):
        add({name: shape for name, shape in (state["frozen_param_shapes"] or {}).items() if name not in found}, models)
    return found


def with_other_name(data):
    """A file that opens, but one of whose tensors has a name in front of it that differs from the directory's."""
    at = data.index(b"PK\x03\x04", data.index(b"/data/1") - 200) + 30
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1:]


class SalvageTest(CliTest):

    def salvage(self, scratch, files, *options):
        """Runs --allow-missing; the tensors that were written and the JSON."""
        output = self.new_path()
        done = self.zero_to_fp32(scratch.folder, output, "--safe-serialization", "--allow-missing", "--json", *options)
        line, = self.json_lines(done.stdout)
        if line["type"] == "error":
            return done, {}, line["data"]
        data = line["data"]
        self.assertEqual(sorted(lost["file"].split("/")[-1] for lost in data["lost_files"]), sorted(files))
        return done, torch_files.load_file(output / "model.safetensors"), data

    def check(self, scratch, lost, files, *options):
        """`lost` is {name: lost ranks}."""
        case = scratch.case
        done, written, data = self.salvage(scratch, files, *options)
        broken = {name: ranks for name, ranks in lost.items() if ranks}
        broken |= {alias: broken[owner] for alias, owner in case.tied.items() if owner in broken}
        truth = {name: value for name, value in case.truth().items() if name not in broken}
        if not truth:
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("no parameter is complete", data["message"])
            return 0
        listed = {entry["name"]: sorted({int(file.split("pp_rank_")[1].split("_")[0]) for file in entry["files"]})
                  for entry in data["incomplete"]}
        self.assertEqual(listed, broken)
        self.assertEqual(done.returncode, 1 if broken else 0, done.stderr)
        stored = case.without_aliases(truth)
        self.assertEqual(sorted(written), sorted(stored))
        for name, value in stored.items():
            self.assertTrue(torch_files.same_bits(written[name], value), name)
        return len(broken)

    def test_stages_1_and_2_lose_what_lies_in_the_partitions(self):
        found = 0
        for name in STAGE_2:
            world = int(name.rsplit("w", 1)[1])
            for ranks in ([0], [world - 1], [0, world - 1], [world // 2]):
                if len(set(ranks)) == world:
                    continue
                with self.subTest(name, ranks=ranks):
                    scratch = self.scratch(name)
                    lost = lost_of_flat_groups(scratch, sorted(set(ranks)))
                    files = [scratch.optim(rank).name for rank in sorted(set(ranks))]
                    for file in files:
                        (scratch.tag / file).unlink()
                    found += self.check(scratch, lost, files)
        self.assertGreater(found, 50)

    def test_stage_3_loses_what_has_a_piece_on_the_rank(self):
        for name in STAGE_3:
            world = int(name.rsplit("w", 1)[1])
            for optims, models in (([0], []), ([world - 1], [world - 1]), ([], [0]), ([1, world - 1], [1])):
                with self.subTest(name, optims=optims, models=models):
                    scratch = self.scratch(name)
                    lost = lost_of_pieces(scratch, optims, models)
                    files = [*(scratch.optim(rank) for rank in optims), *(scratch.model(rank) for rank in models)]
                    for file in files:
                        file.unlink()
                    self.check(scratch, lost, [file.name for file in files])

    def test_damaged_files_are_lost_too(self):
        for name, damage in (("z2_bf16_w4", lambda data: data[:len(data) // 2]), ("z2_bf16_w4", lambda data: b""),
                             ("z2_bf16_w4", with_other_name), ("z3_fp32_full_w8", with_other_name),
                             ("z3_fp32_full_w8", lambda data: b"<html>" + data[6:])):
            with self.subTest(name):
                scratch = self.scratch(name)
                lost = lost_of_pieces(scratch, [1], []) if "z3" in name else lost_of_flat_groups(scratch, [1])
                path = scratch.optim(1)
                path.write_bytes(damage(path.read_bytes()))
                self.check(scratch, lost, [path.name])

    def test_states_are_of_what_is_complete_only(self):
        for name in ("z2_bf16_w4", "z3_fp32_w3", "z1_bf16_muon_w2"):
            with self.subTest(name):
                scratch = self.scratch(name)
                lost = lost_of_pieces(scratch, [1], []) if "z3" in name else lost_of_flat_groups(scratch, [1])
                path = scratch.optim(1)
                path.unlink()
                output = self.new_path()
                done = self.zero_to_fp32(scratch.folder, output, "--allow-missing", "--states")
                complete = {name for name, ranks in lost.items() if not ranks}
                if not complete:
                    self.assertEqual(done.returncode, 3 if not scratch.case.frozen else 2, done.stderr)
                    continue
                self.assertEqual(done.returncode, 1, done.stderr)
                master = scratch.case.expected("master")
                for file in sorted((output / "optimizer_states").glob("*.safetensors")):
                    for param, value in torch_files.load_file(file).items():
                        self.assertIn(param, complete)
                        live = master.get(f"{param}|{file.stem}")  # a matrix of Muon's has none there
                        self.assertTrue(live is None or torch_files.equal(value, live), (param, file))

    def test_a_dry_run_lists_and_answers_the_same(self):
        scratch = self.scratch("z2_fp32_full_w3")
        lost = {name for name, ranks in lost_of_flat_groups(scratch, [1]).items() if ranks}
        scratch.optim(1).unlink()
        done = self.zero_to_fp32(scratch.folder, self.new_path(), "--allow-missing", "--dry-run")
        self.assertEqual(done.returncode, 1, done.stderr)
        listed = {line.split("\t")[1] for line in done.stdout.splitlines() if line.startswith("incomplete\t")}
        aliases = {alias for alias, owner in scratch.case.tied.items() if owner in lost}
        self.assertEqual(listed, lost | aliases)

    def test_nothing_lost_is_a_plain_run(self):
        scratch = self.scratch("z2_fp32_full_w3")
        self.check(scratch, {}, [])

    def test_only_chosen_parameters_count(self):
        scratch = self.scratch("z2_fp32_full_w3")
        lost = lost_of_flat_groups(scratch, [1])
        scratch.optim(1).unlink()
        complete = next(name for name, ranks in lost.items() if not ranks)
        done = self.zero_to_fp32(scratch.folder, self.new_path(), "--allow-missing", "--include",
                                 f"^{complete}$".replace(".", "\\."))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_without_the_option_missing_ranks_are_refused(self):
        scratch = self.scratch("z2_fp32_full_w3")
        scratch.optim(1).unlink()
        self.assert_refused(scratch.folder, 3, "1 of 3 files are missing")

    def test_a_lost_model_file_that_alone_has_the_names_is_an_error(self):
        scratch = self.scratch("z2_fp32_full_w3")
        scratch.model().write_bytes(b"")
        self.assert_refused(scratch.folder, 3, "mp_rank_00_model_states.pt", "--allow-missing", inspect=False)

    def test_nothing_left_of_the_optimizer_is_an_error(self):
        scratch = self.scratch("z2_fp32_full_w3")
        for rank in range(3):
            scratch.optim(rank).write_bytes(b"")
        self.assert_refused(scratch.folder, 3, "optim_states.pt", "--allow-missing", inspect=False)


class DamagedLookTest(CliTest):
    """ckpt-inspect of a damaged checkpoint: what is there, what is lost, and commands that go on from there."""

    def lose(self, name, *files):
        scratch = self.scratch(name)
        for file in files:
            (scratch.tag / file).unlink()
        return scratch

    def commands_in(self, hint):
        return [shlex.split(command) for command in re.findall("`([^`]*)`", hint)]

    def test_a_lost_rank_costs_what_lies_in_it(self):
        for name, rank in [("z3_bf16_full_w6", 4), ("z2_fp32_full_w3", 1), ("z1_fp32_full_w6", 5)]:
            with self.subTest(case=name):
                scratch = self.scratch(name)
                gone = scratch.optim(rank).name
                scratch.optim(rank).unlink()
                whole = self.zero_to_fp32(scratch.folder, self.new_path(), "--allow-missing", "--json")
                facts = json.loads(whole.stdout)["data"]
                lost = {each["name"] for each in facts["incomplete"]}
                listed = self.tool("ckpt-inspect", "list", scratch.folder, "--json")
                self.assertEqual(listed.returncode, 1)
                data = json.loads(listed.stdout)["data"]
                self.assertEqual({each["name"] for each in data["tensors"] if each.get("lost_in_part")}, lost)
                self.assertEqual(data["damage"]["incomplete"], facts["incomplete"])
                self.assertEqual(data["damage"]["lost_files"], facts["lost_files"])
                self.assertIn("files are missing", data["damage"]["error"]["message"])
                total = len({each["name"] for each in data["tensors"]})
                for command in ([], ["tree"], ["list"]):
                    done = self.tool("ckpt-inspect", *command, scratch.folder)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(gone, done.stderr)
                    self.assertIn(f"lost in part: {len(lost)} of {total} tensors", done.stderr)
                    if command != ["tree"]:
                        self.assertIn(gone, done.stdout)
                summary = json.loads(self.tool("ckpt-inspect", scratch.folder, "--json").stdout)["data"]
                self.assertEqual([each["possible"] for each in summary["conversions"]], [False] * 4)

    def test_the_commands_of_the_hint_do_what_it_says(self):
        for name in ("z3_bf16_full_w6", "z2_fp32_full_w3"):
            with self.subTest(case=name):
                scratch = self.scratch(name)
                scratch.optim(1).unlink()
                moved = scratch.folder.rename(scratch.folder.with_name(f"{scratch.folder.name}: it's mine"))
                error = self.tool("reshard", moved, self.new_path(), "--dp", 1)
                self.assertEqual(error.returncode, 3)
                self.assertIn("--root DIR", error.stderr)
                verify, salvage = self.commands_in(error.stderr)
                self.assertEqual(self.tool(*verify).returncode, 1)
                output = self.new_path()
                salvage[salvage.index("OUT")] = output
                self.assertIn(self.tool(*salvage).returncode, (0, 1))
                self.assertTrue(list(output.iterdir()))

    def test_a_tag_that_latest_does_not_name_is_in_the_hint(self):
        scratch = self.scratch("z3_bf16_w2")
        scratch.optim(1).unlink()
        (scratch.folder / "latest").write_text("global_step9")
        error = self.tool("reshard", scratch.folder, self.new_path(), "--dp", 1, "--tag", "global_step3")
        for command in self.commands_in(error.stderr):
            self.assertEqual(command[command.index("--tag") + 1], "global_step3")

    def test_a_file_that_opens_but_is_damaged_is_lost_and_named(self):
        scratch = self.scratch("z3_bf16_full_subgroups_w4")
        scratch.optim(2).write_bytes(with_other_name(scratch.optim(2).read_bytes()))
        done = self.tool("ckpt-inspect", scratch.folder)
        self.assertEqual(done.returncode, 1, done.stderr)
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        self.assertIn(f"{scratch.tag.name}/{scratch.optim(2).name}", [row[0] for row in rows if "another name" in row[-1]])
        # Tied parameters that are lost count once.
        self.assertIn("3,577 trainable in 21 tensors", done.stdout)
        self.assertIn("1 tied", done.stdout)

    def test_without_the_only_file_of_the_model_files_are_listed_one_by_one(self):
        scratch = self.scratch("z2_bf16_w2")
        scratch.model().write_bytes(scratch.model().read_bytes()[:5000])
        done = self.tool("ckpt-inspect", scratch.folder)
        self.assertEqual(done.returncode, 3)
        rows = [line.split("\t") for line in done.stdout.splitlines() if "\t" in line]
        self.assertEqual({row[0].split("/")[-1] for row in rows}, {path.name for path in scratch.shards()})
        self.assertEqual([row[2] for row in rows].count("opens"), len(rows) - 1)
        self.assertIn("truncated", done.stderr)
        self.assertEqual(len(self.commands_in(done.stderr)), 1)  # --allow-missing would not help

    def test_damaged_bytes_of_one_rank_are_lost_as_a_missing_file_is(self):
        scratch = self.scratch("z3_bf16_w2")
        scratch.optim(1).write_bytes(scratch.optim(1).read_bytes()[:-700])
        done = self.tool("ckpt-inspect", "tree", scratch.folder)
        self.assertEqual(done.returncode, 1)
        self.assertIn("lost in part", done.stdout)
        verify, salvage = self.commands_in(done.stderr)
        self.assertEqual(self.tool(*verify).returncode, 1)
        self.assertIn("--allow-missing", salvage)


if __name__ == "__main__":
    cli_common.main()
