"""Scores a share of the samples again where the trainer runs: rollouts may lie about rewards."""

import asyncio
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rollcall_protocol.wire.ids import MemberId
from rollcall_protocol.wire.messages import Completion, PromptLease, Sample
from rollcall_protocol.wire.reward_errors import RewardError
from rollcall_runtime.tasks.reward_process import RewardScorer, Score

log = logging.getLogger(__name__)

WAITING = 64  # samples; more are not checked while a slow function scores these
UNGUESSABLE = random.SystemRandom().random  # which samples are checked
MAX_WRONG = 3  # rewards of one pod, after which it is excluded
TOLERANCE = 1e-6  # of the reward, and absolute: processors round differently


@dataclass(frozen=True, slots=True)
class _Checked:
    member: MemberId
    prompt: tuple[int, ...]
    row: Mapping[str, Any]
    sample: Sample


class RewardCheck:
    """Checks each sample with the probability `share`. Belongs to one event loop.

    `wrong` is called with a member and what it said once its pod has given MAX_WRONG rewards that
    the function does not give here, and `counted` for each of them. A function that gives another
    number the second time here proves nothing.
    """

    def __init__(
        self,
        scorer: RewardScorer,
        *,
        share: float,
        counted: Callable[[str], None],
        chance: Callable[[], float] = UNGUESSABLE,
    ) -> None:
        self._scorer, self._share = scorer, share
        self._counted, self._chance = counted, chance
        self._waiting: asyncio.Queue[_Checked] = asyncio.Queue(WAITING)
        self._wrong: Counter[str] = Counter()

    def offer(self, completion: Completion, lease: PromptLease) -> None:
        """Perhaps check samples of a completion that was counted. Never waits."""
        for sample in completion.samples:
            if self._chance() < self._share and not self._waiting.full():
                self._waiting.put_nowait(
                    _Checked(completion.member, lease.tokens, lease.row, sample)
                )

    async def run(self, wrong: Callable[[MemberId, str], None]) -> None:
        """Check what waits until cancelled; `wrong` gets a member after MAX_WRONG wrong rewards."""
        while True:
            checked = await self._waiting.get()
            problem = await self._compare(checked)
            if not problem:
                continue
            self._counted("wrong_reward")
            log.warning("member %s gave a wrong reward: %s", checked.member, problem)
            self._wrong[checked.member.pod_uid] += 1
            if self._wrong[checked.member.pod_uid] == MAX_WRONG:
                wrong(checked.member, f"{MAX_WRONG} wrong rewards, the last: {problem}")

    async def _compare(self, checked: _Checked) -> str:
        """What is wrong with the reward; empty if nothing is known to be wrong."""
        said, ours = checked.sample.reward, await self._score(checked)
        if isinstance(ours, RewardError) or _alike(ours, said):
            return ""
        again = await self._score(checked)
        if isinstance(again, RewardError) or not _alike(ours, again):
            self._counted("unsteady_reward")
            log.warning(
                "spec.reward.function gave %s and then %s for one sample: "
                "spec.reward.verifyShare cannot check such a function",
                *(ours, again),
            )
            return ""
        return f"{said:g} for a sample that scores {ours:g}"

    async def _score(self, checked: _Checked) -> Score:
        (score,) = await self._scorer.score(checked.prompt, [checked.sample.tokens], checked.row)
        return score


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
