"""The HTTP endpoint that takes completions, on a listener of its own beside that of weights."""

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from aiohttp import web

from rollcall_protocol.job_config import JobConfig
from rollcall_protocol.prompts.sample_check import MAX_POSITIONS, SampleBounds
from rollcall_protocol.wire.messages import Completion
from rollcall_protocol.wire.trajectories import MOST_PARTS
from rollcall_runtime.coordinator.posted_body import read_posted
from rollcall_runtime.membership.long_messages import load_message
from rollcall_runtime.worker.auth import current_caller, impersonation

AT_ONCE = 8  # a rollout posts 4 at a time, and all of them again when its stream opens
MAX_COMPLETION_BYTES = 64 * 2**20
# As JSON: a token with its log-probability and version; a sample with what its reward raised.
_TOKEN_BYTES, _SAMPLE_BYTES, _COMPLETION_BYTES = 64, 2**13, 2**16


class CompletionVerdict(StrEnum):
    """What the coordinator decided about a completion."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"  # its lease is not the current one of the prompt
    WRONG_JOB = "wrong_job"
    BAD_SAMPLES = "bad_samples"  # they cannot be trained on


def longest_completion(config: JobConfig, bounds: SampleBounds) -> int:
    """Bytes of the longest completion that a rollout of this job can send."""
    evaluation, positions = config.evaluation, bounds.positions or MAX_POSITIONS
    samples = max(config.algorithm.group_size, evaluation.samples if evaluation else 0)
    samples = max(samples, MOST_PARTS if config.data.from_front else 0)
    own = samples * (_SAMPLE_BYTES + positions * _TOKEN_BYTES)
    return min(_COMPLETION_BYTES + own, MAX_COMPLETION_BYTES)


class CompletionEndpoint:
    """Takes completions for `complete`; of one pod AT_ONCE at a time. `refused` counts by kind.

    `suspicious` is called with the uid of a pod whose completion is none, and the problem.
    """

    def __init__(
        self,
        complete: Callable[[Completion], CompletionVerdict],
        refused: Callable[[str], None],
        suspicious: Callable[[str, str], None],
    ) -> None:
        self._complete, self._refused, self._suspicious = complete, refused, suspicious
        self._there = Counter[str]()

    async def handle(self, request: web.Request) -> web.Response:
        """POST of a completion: 200 counted, 409 dropped for good, 400 malformed. Idempotent.

        403 for one in another's name, 413 for a longer one than the application takes, 408 for one
        that comes slowly, 503 beyond AT_ONCE.
        """
        pod = current_caller().identity.pod_uid
        if self._there[pod] >= AT_ONCE:
            self._refused("too_many_completions")
            problem = f"{AT_ONCE} completions of this pod are here already"
            return web.json_response({"error": problem}, status=503)
        self._there[pod] += 1
        try:
            return await self._handle(request)
        finally:
            self._there[pod] -= 1
            if not self._there[pod]:
                del self._there[pod]

    async def _handle(self, request: web.Request) -> web.Response:
        parse = partial(load_message, expected=(Completion,))
        own = current_caller().identity
        malformed = partial(self._suspicious, own.pod_uid)
        completion = await read_posted(request, parse, refused=self._refused, malformed=malformed)
        if isinstance(completion, web.Response):
            return completion
        if completion.member.pod_uid != own.pod_uid:
            problem = f"pod {own.pod} sends a completion of pod {completion.member.pod_uid}"
            return impersonation(self._refused, problem)
        verdict = self._complete(completion)
        if verdict is CompletionVerdict.COUNTED:
            return web.json_response({})
        if verdict is not CompletionVerdict.BAD_SAMPLES:  # these are counted by kind
            self._refused(f"{verdict.value}_completion")
        return web.json_response({"error": f"{verdict.value} completion"}, status=409)
