"""verl's own trainers, clients and load balancers, made elastic by `rollcall.verl_elastic`."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcall_protocol.wire.roster import EpochCause
from tests.process.harness import FAST, LocalJob
from tests.process.pods import AT_IMPORT, ROOT
from tests.unit.rollcall_runtime.jobs import external_job_config

pytestmark = pytest.mark.timeout(300)
QUICK = {**FAST, "heartbeat": 0.2, "suspect_after": 1.0}
ELASTIC = {"VERL_USE_EXTERNAL_MODULES": "rollcall.verl_elastic"}
PROGRAM = "tests.plugins.trainers_of_ones_own.verl.elastic_program"
CHOICE = """
import sys
import verl
from verl.checkpoint_engine import CheckpointEngineManager
from verl.experimental.fully_async_policy import fully_async_trainer
from verl.trainer.ppo.v1 import trainer_base
from verl.workers.config import CheckpointEngineConfig
assert trainer_base.CheckpointEngineManager is CheckpointEngineManager
assert fully_async_trainer.CheckpointEngineManager is CheckpointEngineManager
for backend, module in (("naive", None), ("rollcall", "rollcall.verl")):
    config = CheckpointEngineConfig(backend=backend, custom_backend_module=module)
    print(type(CheckpointEngineManager(config=config, actor_wg=None, replicas=[])).__name__)
"""

PLACES = """
import ray
from types import SimpleNamespace
trainer = {"NodeID": "a", "Alive": True, "Resources": {"CPU": 1, "rollcall_trainer": 1}}
rollout = {"NodeID": "b", "Alive": True, "Resources": {"CPU": 1, "rollcall_rollout": 1}}
ray.nodes = lambda: [rollout, trainer]
from rollcall import verl_elastic
from verl.experimental.agent_loop import agent_loop
from verl.experimental.reward_loop import reward_loop
from transfer_queue.utils import common
spreading = (agent_loop, reward_loop, common)
print([node["NodeID"] for module in spreading for node in module.ray.nodes()])
looks = []
def create(self):
    looks.append(1)
    if len(looks) == 1:
        raise ValueError("Total available GPUs 0 is less than total desired GPUs 1")
pools = {"rollout_pool_0": SimpleNamespace(), "global_pool": SimpleNamespace()}
verl_elastic.places_by_kind(create)(SimpleNamespace(resource_pool_dict=pools))
print(len(looks), [pool.accelerator_type for pool in pools.values()])
"""
ENDS = """
from types import SimpleNamespace
from rollcall.verl_elastic import finishes
seen = []
fit = finishes(lambda self: seen.append("fit"), SimpleNamespace(finish=seen.append))
fit(SimpleNamespace(global_steps=4))
print(seen)
"""


async def run(*arguments: str, **variables: str) -> tuple[int | None, str]:
    """The exit code of a Python program, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={**os.environ, **AT_IMPORT, **ELASTIC, **variables},
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(240):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, out.decode()


async def test_a_trainer_that_names_its_managers_class_gets_rollcalls() -> None:
    code, out = await run("-c", CHOICE)
    assert (code, out.split()) == (0, ["CheckpointEngineManager", "RollcallManager"])
    code, out = await run("-c", CHOICE, VERL_USE_EXTERNAL_MODULES="")
    assert out.split() == ["CheckpointEngineManager"] * 2, "the plug-in is not named"


async def test_actors_get_pods_of_their_kind_once_there_are_enough() -> None:
    code, out = await run("-c", PLACES)
    assert (code, out.splitlines()) == (
        0,
        ["['a', 'a', 'a']", "2 ['rollcall_rollout', 'rollcall_trainer']"],
    )


async def test_a_job_whose_training_has_ended_has_succeeded() -> None:
    code, out = await run("-c", ENDS)
    assert (code, out.strip()) == (0, "['fit', 4]")


async def test_pods_that_come_are_replicas_and_lost_ones_cost_no_request(tmp_path: Path) -> None:
    async with LocalJob(tmp_path, external_job_config(membership=QUICK)) as job:
        job.operator.start()
        pods = [job.place() for _ in range(3)]
        variables = [job.trainer.variables, *(pod.variables for pod in pods)]
        running = asyncio.create_task(run("-m", PROGRAM, json.dumps(variables)))
        await job.push_roster(EpochCause.JOB_STARTED)
        code, out = await running
        lines = [line for line in out.splitlines() if line.startswith("{")]  # Ray prints, too
        seen: list[dict[str, Any]] = [json.loads(line) for line in lines]
        assert code == 0
        assert seen[0] == {"manager": "RollcallManager"}
        assert seen[1] == {"update": 1, "replicas": 1}
        assert seen[2] == {"outside_of_rollout_pods": True}
        step = seen[8]["update"]
        assert seen[3:-1] == [
            {"replicas": 2, "whole": True},
            {"servers": ["server-0", "server-1"]},
            {"answered": [0, 1]},
            {"answered_after_a_loss": [0] * 8},
            {"servers": ["server-0"]},
            {"update": step, "left_out": [1], "whole": True},
            {"replicas": 2, "whole": True},
        ]
        assert seen[-1]["finished"] > step
