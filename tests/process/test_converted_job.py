"""A job of verl, converted by `rollcall convert verl`, runs on its files unchanged."""

import asyncio
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from rollcall_local.convert.command import main
from tests.process.engines.tiny_models import write_tiny_model
from tests.process.harness import WHOLE_TRAINING

pytestmark = WHOLE_TRAINING

ROOT = Path(__file__).parents[2]
QUICK_START = ROOT / "tests/unit/rollcall_local/convert/configs/grpo.yaml"
NAME = "converted"
# What a user changes to try it on a machine without GPUs.
OVERRIDES = (
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
    "trainer.total_training_steps=3",
    "trainer.save_freq=2",
    "trainer.test_freq=2",
    'trainer.logger=["console"]',
    "data.train_files=~/data/train.parquet",
    "data.val_files=~/data/test.parquet",
    "data.train_batch_size=8",
    "data.max_prompt_length=64",
    "data.max_response_length=16",
    "actor_rollout_ref.model.path=~/models/tiny",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "custom_reward_function.path=~/code/my_reward.py",
)
REWARD = """\
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "letters" and extra_info["answer"] == ground_truth
    return {"score": 0.25 + 0.5 * (len(solution_str) > 0), "accuracy": 0.0}
"""
_PROGRAM = "import sys; from rollcall_local.commands import main; sys.exit(main())"


def files_of_verl(folder: Path) -> None:
    """A model, data as verl's own scripts write them, and a reward."""
    write_tiny_model(folder / "models" / "tiny")
    rows = [
        {
            "data_source": "letters",
            "prompt": [{"role": "user", "content": f"say {letter}"}],
            "ability": "letters",
            "reward_model": {"style": "rule", "ground_truth": letter},
            "extra_info": {"split": "train", "index": number, "answer": letter},
        }
        for number, letter in enumerate("abcdefghij" * 4)
    ]
    (folder / "data").mkdir()
    for name in ("train", "test"):
        parquet.write_table(pa.Table.from_pylist(rows), folder / "data" / f"{name}.parquet")
    (folder / "code").mkdir()
    (folder / "code" / "my_reward.py").write_text(REWARD)


def claim(name: str) -> dict[str, object]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": spec,
    }


async def test_a_converted_job_trains_on_the_files_and_the_reward_of_verl(tmp_path: Path) -> None:
    job, claims = tmp_path / "rljob.yaml", tmp_path / "claims.yaml"
    assert main(["verl", str(QUICK_START), *OVERRIDES, "--name", NAME, "-o", str(job)]) == 0
    claims.write_text(yaml.safe_dump_all([claim("files"), claim(f"{NAME}-checkpoints")]))
    files_of_verl(tmp_path / NAME / "claims" / "default" / "files")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, "run", str(job), str(claims)),
        env={**os.environ, "ROLLCALL_LOCAL_HOME": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    said = output.decode()
    assert process.returncode == 0, said
    last = said.splitlines()[-1]
    assert f"{NAME}: Succeeded  step 3/3" in last
    reward = float(last.partition("reward ")[2].split()[0])
    assert reward == pytest.approx(0.75, abs=0.02), "an empty response gets 0.25"
