"""What the coordinator keeps of trajectories, without sockets; several fronts may share it."""

import asyncio

from rollcall_plugins.front.openai.turn_store import TrajectoryGoneError
from rollcall_protocol.prompts.sample_check import SampleBounds
from rollcall_protocol.wire.json_codec import decode, parse, to_json
from rollcall_protocol.wire.trajectories import TrajectoryTurn, TurnVerdict
from rollcall_runtime.coordinator.turn_keeper import TurnKeeper
from tests.unit.rollcall_runtime.jobs import job_config
from tests.unit.rollcall_runtime.rollout.counting_rollouts import VOCABULARY


class MemoryStore:
    """`away`: the coordinator does not answer."""

    def __init__(self) -> None:
        self.away = False
        self.added: list[TrajectoryTurn] = []
        self.restart()

    def restart(self) -> None:
        """The trainer's process ends, and another one begins."""
        self.keeper = TurnKeeper(
            job_uid=job_config().uid,
            wanted=True,
            bounds=SampleBounds(VOCABULARY),
            counted=(),
            refused=lambda _: None,
        )

    async def since(self, name: str, number: int) -> tuple[TrajectoryTurn, ...]:
        await self._reach()
        verdict, turns = self.keeper.kept.since(name, number)
        if verdict is not TurnVerdict.KEPT:
            raise TrajectoryGoneError(verdict)
        return tuple(decode(TrajectoryTurn, parse(turn)) for turn in turns)

    async def add(self, turn: TrajectoryTurn) -> bool:
        await self._reach()
        verdict = self.keeper.add(turn, to_json(turn).encode())
        if verdict not in {TurnVerdict.KEPT, TurnVerdict.BEHIND}:
            raise TrajectoryGoneError(verdict)
        if verdict is TurnVerdict.KEPT:
            self.added.append(turn)
        return verdict is TurnVerdict.KEPT

    async def end(self, name: str) -> None:
        await self._reach()
        self.keeper.kept.end(name)

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise TimeoutError
