"""The commands that a newcomer types on the first day. Each works at once, against a checkpoint of testdata.

The folder is a run of the Trainer, with what lies beside it; commands run in the folder above it.
"""
import shutil
import stat

import cli_common
import tools
from cli_common import CliTest

RUN = "hf_trainer_llama_z3_bf16_w2"

# {checkpoint}: the checkpoint's folder; {run}: the folder above it. Each line is written as for a shell.
COMMANDS = """
zero-to-fp32 {checkpoint} weights --safe-serialization
zero-to-fp32 {run} weights --safe-serialization
zero-to-fp32 . weights --safe_serialization
zero-to-fp32 {checkpoint} pytorch_model.bin
zero-to-fp32 {checkpoint} weights --dtype bf16 --max-shard-size 20KB
zero-to-fp32 {checkpoint} weights --dtype=auto
zero-to-fp32 {checkpoint}/ weights/ --dry-run
zero-to-fp32 {checkpoint} weights --include embed --json
zero-to-fp32 {checkpoint} weights --states
zero-to-fp32 {checkpoint} weights --torch-optimizer
zero-to-fp32 {checkpoint} averaged --average
reshard {checkpoint} on3/{checkpoint} --dp 3
reshard {checkpoint} on1 --dp=1 --stage 2
reshard {run} on4 --dp 4 --plan-batch
reshard {checkpoint} on3 --dp 3 --dry-run
to-universal {checkpoint} {checkpoint}/universal
to-universal --input_folder {checkpoint} --output_folder universal
to-dcp {checkpoint} dcp --dp 2
to-dcp {checkpoint} resume --dp 2 --preset trainer
to-dcp {checkpoint} weights_dcp --dp 1 --weights-only --dtype bf16
ckpt-inspect {checkpoint}
ckpt-inspect {run}
ckpt-inspect list {checkpoint}
ckpt-inspect tree {checkpoint}
ckpt-inspect verify {checkpoint}
ckpt-inspect verify {run} --tag all
ckpt-inspect stats {checkpoint}
ckpt-inspect diff {checkpoint} {checkpoint}
ckpt-inspect scan {checkpoint}
ckpt-inspect where {checkpoint} lm_head.weight
ckpt-inspect print {checkpoint} model.norm.weight
ckpt-inspect {checkpoint} --html report.html
ckpt-pack pack {checkpoint} packed
ckpt-pack strip {checkpoint} stripped --keep weights
dsckpt verify {checkpoint}
dsckpt convert {checkpoint} weights
"""


class FirstDayTest(CliTest):

    def test_each_command_works_at_once(self):
        case = tools.case_named(RUN)
        lines = COMMANDS.strip().splitlines()
        self.assertGreaterEqual(len(lines), 30)
        for line in lines:
            with self.subTest(line):
                place = self.new_path("place")
                run = place / "out"
                run.mkdir(parents=True)
                name = f"checkpoint-{case.facts.get('steps', 3)}"
                shutil.copytree(case.load_dir, run / name)
                for path in [run / name, *(run / name).rglob("*")]:
                    path.chmod(path.stat().st_mode | stat.S_IWUSR)
                words = [word.format(checkpoint=f"out/{name}", run="out") for word in line.split()]
                done = self.tool(words[0], *words[1:], cwd=place)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertNotIn("error:", done.stderr)


if __name__ == "__main__":
    cli_common.main()
