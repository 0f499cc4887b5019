"""A trainer outside of Kubernetes admits rollouts itself."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import torch

from rollcall import Outcome, RollcallError, Rollout, Trainer
from rollcall_protocol import pod_contract
from rollcall_runtime.models.open_model import open_model
from rollcall_runtime.worker.identity.trust_file import TrustFile
from tests.networks import own_network
from tests.process.external_job import (
    PROMPTS,
    Weights,
    external_job,
    in_thread,
    random_weights,
)
from tests.process.harness import STEP_SECONDS
from tests.process.pods import AT_IMPORT, ROOT

MODEL = "builtin:reverse-tiny"
PROGRAM = Path(sys.executable).with_name("rollcall-rollout")


class OwnMachine:
    """Trainer and rollouts as processes of this machine, with one address."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.address = folder, f"{own_network()}.1"
        self.trainer: Trainer
        self.rollouts: dict[str, asyncio.subprocess.Process] = {}

    async def open(self) -> None:
        self.trainer = await in_thread(
            Trainer.without_operator,
            self._folder / "job",
            address=self.address,
            model=MODEL,
            engine="gloo",
        )

    async def admit(self, name: str) -> dict[str, str]:
        return await in_thread(self.trainer.admit, name, self.address, engine="tiny")

    async def add(self, name: str) -> None:
        variables = {"PATH": os.environ["PATH"], **AT_IMPORT, **await self.admit(name)}
        self.rollouts[name] = await asyncio.create_subprocess_exec(
            str(PROGRAM), env=variables, cwd=ROOT
        )

    async def publish(self, seed: int) -> Outcome:
        return await in_thread(self.trainer.publish, weights(seed).items(), seed)

    async def until_members(self, *names: str, seed: int) -> None:
        """Publish until these are the members."""
        async with asyncio.timeout(STEP_SECONDS):
            while set((await self.publish(seed)).members) != set(names):
                await asyncio.sleep(0.2)

    async def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.rollouts.pop(name)
        process.send_signal(number)
        await asyncio.wait_for(process.wait(), 20)


def weights(seed: int) -> Weights:
    return random_weights(open_model(MODEL).build(), seed)


@asynccontextmanager
async def own_machine(folder: Path) -> AsyncIterator[OwnMachine]:
    machine = OwnMachine(folder)
    await machine.open()
    try:
        yield machine
    finally:
        for name in list(machine.rollouts):
            await machine.end(name)
        await in_thread(machine.trainer.close)


@pytest.mark.slow
async def test_rollouts_are_admitted_and_removed(tmp_path: Path) -> None:
    async with own_machine(tmp_path) as machine:
        for name in ("one", "two"):
            await machine.add(name)
        await machine.until_members("one", "two", seed=1)
        groups = await in_thread(machine.trainer.generate, PROMPTS, 2, max_tokens=5)
        assert [len(group.samples) for group in groups] == [2, 2]
        await in_thread(machine.trainer.remove, "one")
        assert (await machine.publish(2)).members == ("two",)
        await machine.end("one", signal.SIGTERM)
        await machine.add("three")
        await machine.until_members("two", "three", seed=3)
        await machine.end("two")
        await machine.until_members("three", seed=4)
        await machine.add("two-again")
        await machine.until_members("three", "two-again", seed=5)
        # A trainer that starts again with the folder finds them.
        await in_thread(machine.trainer.close)
        await machine.open()
        await machine.until_members("three", "two-again", seed=6)
        await in_thread(machine.trainer.finish, 6)
        await in_thread(machine.trainer.stay)  # returns: no operator restarts the program
        await in_thread(machine.trainer.close)
        with pytest.raises(RollcallError, match="over since step 6; take another folder to train"):
            await machine.open()


async def test_a_program_joins_and_takes_weights(tmp_path: Path) -> None:
    async with own_machine(tmp_path) as machine:
        variables = {**os.environ, **await machine.admit("mine")}
        with await in_thread(Rollout.join, environment=variables) as rollout:
            await machine.publish(7)
            found = await in_thread(lambda: dict(rollout.receive()))
            for name, tensor in weights(7).items():
                assert torch.equal(found[name], tensor)


async def test_the_coordinator_speaks_tls_alone(tmp_path: Path) -> None:
    async with own_machine(tmp_path) as machine:
        variables = await machine.admit("one")
        url = f"{machine.address}:{variables[pod_contract.COORDINATOR_PORT]}"
        trust = TrustFile(Path(variables[pod_contract.TRUST_DIR]) / pod_contract.TRUST_FILE)
        route = pod_contract.MEMBER_STREAM_ROUTE
        async with aiohttp.ClientSession() as session:
            async with session.get(f"https://{url}{route}", ssl=trust.client_context()) as answer:
                assert answer.status == 401, "no token was shown"
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://{url}{route}")


@pytest.mark.slow
async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with own_machine(tmp_path) as machine:
        variables = await machine.admit("one")
        port = variables[pod_contract.COORDINATOR_PORT]
        with pytest.raises(RollcallError, match=f"cannot listen at {machine.address}:{port}"):
            await machine.open()  # another trainer with the folder


async def test_in_a_job_the_operator_decides(tmp_path: Path) -> None:
    async with external_job(tmp_path, rollouts=0) as job:
        with pytest.raises(RollcallError, match="or begin with Trainer"):
            job.rollcall.admit("one", "127.0.0.1")
        with pytest.raises(RollcallError, match="or begin with Trainer"):
            job.rollcall.remove("one")
