"""Every command of this project in a README runs as it stands there, on the checkpoints of testdata."""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import cli_common
import tools
from cli_common import CliTest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ["README.md", "lib/python/README.md",
         *(f"apps/{tool}/README.md" for tool in ("zero_to_fp32", "to_universal", "reshard", "to_dcp", "ckpt_inspect",
                                                 "ckpt_pack"))]
TOOLS = ("zero-to-fp32", "to-universal", "reshard", "to-dcp", "ckpt-inspect", "ckpt-pack")
# Words that stand for something else: PATH, "tree|list", [options].
PLACEHOLDER = re.compile(r"\b[A-Z][A-Z_]+\b|\b[A-Z]\b|\w\|\w|\[options\]|\.\.\.|<")


def commands():
    """(page, command) of all blocks of a shell."""
    for page in PAGES:
        for block in re.findall(r"(?ms)^```\w*\n(.*?)^```", (ROOT / page).read_text()):
            for line in block.splitlines():
                line = re.sub(r" +(#|  ).*", "", line)
                if line.split(" ")[0] in TOOLS and not PLACEHOLDER.search(line):
                    yield page, line


class CommandsTest(CliTest):

    def setUp(self):
        super().setUp()
        self.model = tools.case_named("hf_trainer_llama_z1_bf16_w3").load_dir
        self.split = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "model_parallel/pp2_tp2_dp2_z1_fp32/ckpt"
        self.adapter = pathlib.Path(os.environ["DSCKPT_TESTDATA"]) / "peft/z3_bias_w3/ckpt"

    def retagged(self, source, target, tag):
        shutil.copytree(source, target)
        old = (target / "latest").read_text().strip()
        (target / old).rename(target / tag)
        (target / "latest").write_text(tag)

    def place(self, command):
        """A folder with what the command's words name, and in which it runs."""
        place = self.new_path("place")
        place.mkdir()
        words = shlex.split(command)
        if "." in words:
            place = place / "run"
            self.retagged(self.model, place, "global_step100")
            for step in range(101, 105):
                shutil.copytree(place / "global_step100", place / f"global_step{step}")
                cli_common.set_step(place / f"global_step{step}", step)
            return place
        steps = {"checkpoint-500": 500, "checkpoint-50": 50, "ckpt": 5, "first_steps": 2}
        for name, step in steps.items():
            is_adapter = bool({"--peft", "--merge", "--unfreeze"} & set(words))
            is_split = "--tp" in words or "--pp" in words
            source = self.adapter if is_adapter else self.split if is_split else self.model
            self.retagged(source, place / name, f"global_step{step}")
            if is_adapter:
                shutil.copy(self.adapter.parent / "expected/adapter/adapter_config.json", place / name)
        if "--merge" in words:
            shutil.copytree(self.adapter.parent / "base", place / "base")
        if "--add" in words:
            header = b'{"score.weight":{"dtype":"F32","shape":[2,12],"data_offsets":[0,96]}}'
            (place / "new_head.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(96))
        if "--last" in words:
            for step in range(6, 10):
                shutil.copytree(place / "ckpt/global_step5", place / f"ckpt/global_step{step}")
                cli_common.set_step(place / f"ckpt/global_step{step}", step)
        if "unpack" in words:
            shutil.rmtree(place / words[-1])  # what is to come back
        if "fsdp2" in words:
            self.done("to-dcp", place / "ckpt", place / "fsdp2", "--dp", "2")
        self.split_over_nodes(place)
        weights = ["converted", "Llama-3-8B", *(["mean"] if "--weights-from" in words else [])]
        for name in weights:
            self.done("zero-to-fp32", place / "ckpt", place / name, "--safe-serialization", "--include", ".")
        if "pack" not in words:
            self.done("ckpt-pack", "pack", place / "first_steps", place / "checkpoint-500-packed")
        (place / "new_run.json").write_text(json.dumps({
            "train_batch_size": 12, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}))
        return place

    def split_over_nodes(self, place):
        for node in range(3):
            shutil.copytree(place / "first_steps", place / f"node{node}/ckpt")
            for file in (place / f"node{node}/ckpt/global_step2").iterdir():
                rank = re.search(r"zero_pp_rank_(\d+)", file.name)
                if rank and int(rank[1]) % 3 != node:
                    file.unlink()

    def done(self, *command):
        done = self.tool(*command)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_command_runs(self):
        found = list(commands())
        for tool in TOOLS:
            self.assertTrue(any(command.startswith(tool) for _, command in found), tool)
        self.assertGreater(len(found), 20)
        path = f"{os.environ['DSCKPT_BIN']}:{os.environ['PATH']}"
        for page, command in found:
            with self.subTest(page=page, command=command):
                done = subprocess.run(["bash", "-euc", command], cwd=self.place(command), capture_output=True, text=True,
                                      timeout=60, env={**self.environment, "PATH": path})
                self.assertEqual(done.returncode, 0, done.stderr + done.stdout)


if __name__ == "__main__":
    cli_common.main()
