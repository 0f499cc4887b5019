"""Records the completions of trajectories with the coordinator, and sends it their rewards."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp

from rollcall_plugins.front.openai.bad_request import BadRequestError
from rollcall_plugins.front.openai.chat_messages import read_messages
from rollcall_plugins.front.openai.trajectories import (
    NAME,
    RecordedCompletion,
    TrajectoryRecords,
    UntrainableError,
    new_name,
)
from rollcall_plugins.front.openai.turn_store import TrajectoryGoneError, TurnStore
from rollcall_protocol.wire.json_codec import to_json
from rollcall_protocol.wire.reward_errors import MAX_REWARD
from rollcall_protocol.wire.trajectories import (
    DONE,
    LATER,
    MAX_TRAJECTORY_NAME,
    Digest,
    FinishedTrajectory,
    TrajectoryTurn,
    TrajectoryVerdict,
    TurnVerdict,
)
from rollcall_runtime.worker.backoff import BackoffDelays
from rollcall_runtime.worker.http_client import plain_session
from rollcall_runtime.worker.identity.own_tokens import TokenSource, bearer
from rollcall_runtime.worker.name_look_ups import NameLookUps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollcall_plugins.front.openai.answering import Answer, Choice
    from rollcall_plugins.front.openai.metrics import FrontMetrics
    from rollcall_plugins.front.openai.openai_requests import CompletionRequest
    from rollcall_plugins.front.openai.prompts import PromptReader
    from rollcall_protocol.front_config import FrontConfig
    from rollcall_protocol.job_config import JobConfig
    from rollcall_runtime.worker.identity.tls import TlsContext

TRAJECTORY_HEADER = "X-Rollcall-Trajectory"
DELIVER_SECONDS = 30.0  # for a trajectory, with all attempts
ATTEMPT_SECONDS = 10.0
FIRST_DELAY, LONGEST_DELAY = 0.1, 2.0
RECORD_SECONDS = 30.0  # for an answer, also while others of its trajectory come
_ENDED = "has its reward already, or has lost its earlier answers"
_WHY = {
    TurnVerdict.ENDED: "has its reward already",
    TurnVerdict.LOST: "has lost its earlier answers: the trainer has restarted, or it was idle for "
    "long (spec.front.trajectorySeconds)",
}
LONGEST_VERDICT = 1 << 16  # bytes


class RefusedTrajectoryError(RuntimeError):
    """A request or a reward of a trajectory that takes none; `status` is the answer's."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class CoordinatorAwayError(RuntimeError):
    """The coordinator, which keeps trajectories, does not answer as it should."""

    def __init__(self, more: str = "") -> None:
        away = "the trainer, which keeps trajectories, does not answer now; send the request again"
        super().__init__(f"{away}: {more}" if more else away)


class TrajectorySender:
    """Posts trajectories to the coordinator at `url` until it decides about them."""

    def __init__(self, *, url: str, token: TokenSource, tls: TlsContext) -> None:
        self._url, self._token, self._tls = url, token, tls

    async def deliver(self, finished: FinishedTrajectory) -> TrajectoryVerdict:
        """What the coordinator decided; TimeoutError after DELIVER_SECONDS without a decision."""
        delays = BackoffDelays(first=FIRST_DELAY, longest=LONGEST_DELAY)
        body = await asyncio.to_thread(to_json, finished)
        async with (
            asyncio.timeout(DELIVER_SECONDS),
            plain_session(
                connector=NameLookUps().connector(),
                timeout=aiohttp.ClientTimeout(total=ATTEMPT_SECONDS),
            ) as session,
        ):
            while True:
                verdict = await self._attempt(session, body)
                if verdict is not None and verdict not in LATER:
                    return verdict
                await asyncio.sleep(delays.next_delay())

    async def _attempt(self, session: aiohttp.ClientSession, body: str) -> TrajectoryVerdict | None:
        """None if the coordinator does not answer, or with what is no verdict."""
        try:
            headers, tls = bearer(self._token()), self._tls()
            async with session.post(self._url, data=body, headers=headers, ssl=tls) as answer:
                if answer.status in {400, 413}:
                    return TrajectoryVerdict.BAD_SAMPLE
                said = await answer.content.read(LONGEST_VERDICT)
                return TrajectoryVerdict(json.loads(said).get("verdict"))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, AttributeError):
            return None


class Recording:
    """What a pod of the front does with trajectories. Belongs to one event loop.

    They are recorded, and their rewards taken, if the job's data is builtin:front: `store` keeps
    their turns for all pods, and `sender` brings them away.
    """

    def __init__(
        self,
        *,
        job: JobConfig,
        settings: FrontConfig,
        reader: PromptReader,
        sender: TrajectorySender,
        store: TurnStore,
        metrics: FrontMetrics,
    ) -> None:
        self._job, self._reader, self._sender, self._metrics = job, reader, sender, metrics
        self._store, self._seconds = store, settings.trajectory_seconds
        self._records = TrajectoryRecords(
            most=settings.most_trajectories,
            most_tokens=settings.most_tokens,
            seconds=settings.trajectory_seconds,
        )
        self._rewarding: set[str] = set()

    async def open(self, given: str) -> str:
        """The trajectory of a request whose header has `given`, with all its turns so far.

        BadRequestError, RefusedTrajectoryError; CoordinatorAwayError if these cannot be had.
        """
        if not given:
            return new_name()
        if not NAME.fullmatch(given):
            wanted = f"letters, digits and . _ : -, at most {MAX_TRAJECTORY_NAME}"
            raise BadRequestError(f"{TRAJECTORY_HEADER} may have {wanted}", TRAJECTORY_HEADER)
        if self._records.has_ended(given) or given in self._rewarding:
            raise RefusedTrajectoryError(409, f"the trajectory {given} {_ENDED}")
        if self._job.data.from_front:
            await self._catch_up(given)
        return given

    async def _catch_up(self, name: str) -> None:
        """Learn the turns that other pods have recorded."""
        try:
            for turn in await self._store.since(name, self._records.find(name).count):
                known = self._records.find(name)
                if turn.number >= known.count:  # not learnt meanwhile
                    self._learn(known.completion(turn), turn)
        except TrajectoryGoneError as error:
            self._end(name, error.why.value)
            problem = f"the trajectory {name} {_WHY.get(error.why, error.why.value)}"
            raise RefusedTrajectoryError(409, problem) from error
        except TimeoutError:
            raise CoordinatorAwayError from None
        except ValueError as error:
            raise CoordinatorAwayError(f"what it keeps of {name} cannot be read") from error

    def _learn(self, completion: RecordedCompletion, turn: TrajectoryTurn) -> None:
        """The next turn; ValueError for one that no model samples."""
        bad = self._reader.bounds.check_request(completion.prompt, completion.response)
        if bad is not None:
            raise ValueError(bad.problem)
        self._records.record(turn.trajectory, completion, time.monotonic())
        self._metrics.trajectories_kept.set(len(self._records))

    async def continued(
        self, name: str, text: str, asked: CompletionRequest
    ) -> tuple[tuple[int, ...], str]:
        """Of a prompt that says `text`: the tokens that are known, and the text behind them.

        Where it goes on from the trajectory so far, those that were sampled stay as they are: what
        they say may have other tokens, too, and special tokens are not in an answer's text.
        """
        before = self._records.find(name)
        known, said, end = before.sequence(), before.said, before.end
        if said.length and digest_of(text[: said.length]) == said:
            return known, text[said.length :].removeprefix(end)
        # A template may take long.
        behind = await asyncio.to_thread(self._behind, before.messages, end, text, asked)
        return ((), text) if behind is None else (known, behind)

    def _behind(
        self, before: Digest, last_end: str, text: str, asked: CompletionRequest
    ) -> str | None:
        """What the chat template writes behind the last answer, if the messages are the same.

        It may write that answer in another way than it was sampled, as it does with calls of tools.
        """
        count, messages, tools = before.length, asked.messages or (), asked.tools
        if not count or _turn(tools, messages[:count]) != before:
            return None
        try:
            sent = self._reader.chat_text(messages[: count - 1], tools, answer_follows=False)
            answered = self._reader.chat_text(messages[:count], tools, answer_follows=False)
        except BadRequestError:
            return None
        ends = [self._reader.decode([token]) for token in self._reader.eos]
        end = max((answered.rfind(each) for each in ends), default=-1)
        if end < len(sent) or not text.startswith(answered):
            return None
        return text[end:].removeprefix(last_end)

    async def record(self, name: str, answer: Answer, text: str | None) -> None:
        """Keep a whole answer, if it may be trained on. CoordinatorAwayError."""
        if not self._job.data.from_front or self._records.has_ended(name):
            return
        own, usual = answer.asked.sampling, self._job.algorithm.sampling
        same = (own.temperature, own.top_p, own.top_k) == (
            usual.temperature,
            usual.top_p,
            usual.top_k,
        )
        # Of a constrained answer the log-probabilities are those among what was allowed.
        as_usual = same and not answer.asked.json_schema
        for one in answer.choices:
            if one.oldest is None or not one.response.tokens:
                continue
            last, asked = one.response.tokens[-1], answer.asked
            turn = (*(asked.messages or ()), _message(one))
            completion = RecordedCompletion(
                one.prompt,
                one.response,
                one.oldest,
                as_usual,
                # A call is not in the answer's text.
                said=Digest() if text is None or one.calls else digest_of(text + one.written),
                end=self._reader.decode([last]) if last in self._reader.eos else "",
                messages=_turn(asked.tools, turn) if asked.chat else Digest(),
            )
            try:
                async with asyncio.timeout(RECORD_SECONDS):
                    await self._keep(name, completion)
            except TrajectoryGoneError as error:  # the next request is answered with the reason
                self._end(name, error.why.value)
                return
            except TimeoutError:
                raise CoordinatorAwayError from None

    async def _keep(self, name: str, completion: RecordedCompletion) -> None:
        """Have the coordinator keep it, behind those of other requests that came before."""
        while True:
            known = self._records.find(name)
            turn = known.turn(completion, job_uid=self._job.uid, seconds=self._seconds)
            if await self._store.add(turn):
                if self._records.find(name).count == turn.number:  # not learnt meanwhile
                    self._learn(completion, turn)
                return
            await self._catch_up(name)

    async def reward(self, name: str, body: Any) -> TrajectoryVerdict:
        """End a trajectory: what the coordinator decided. RefusedTrajectoryError, BadRequestError.

        TimeoutError or CoordinatorAwayError if the coordinator does not decide: the trajectory is
        kept for another attempt.
        """
        reward, group = _reward(body)
        if not self._job.data.from_front:
            problem = "this job does not train on trajectories: spec.data.prompts is not "
            raise RefusedTrajectoryError(409, f"{problem}builtin:front")
        if self._records.has_ended(name) or name in self._rewarding:
            raise RefusedTrajectoryError(409, f"the trajectory {name[:200]} {_ENDED}")
        if NAME.fullmatch(name):
            await self._catch_up(name)
        trajectory = self._records.find(name)
        if not trajectory.count:
            problem = "has no answer, or the trainer has restarted since"
            raise RefusedTrajectoryError(404, f"the trajectory {name[:200]} {problem}")
        try:
            parts, oldest = trajectory.parts(reward)
        except UntrainableError as error:
            self._end(name, "untrainable")
            with suppress(TimeoutError):  # then its time ends it
                await self._store.end(name)
            raise RefusedTrajectoryError(409, f"the trajectory is dropped: {error}") from error
        finished = FinishedTrajectory(self._job.uid, name, group, parts, oldest)
        self._rewarding.add(name)
        try:
            verdict = await self._sender.deliver(finished)
        finally:
            self._rewarding.discard(name)
        self._end(name, verdict.value)
        if verdict not in DONE:
            raise RefusedTrajectoryError(409, f"the trajectory is dropped: {verdict.value}")
        return verdict

    def _end(self, name: str, outcome: str) -> None:
        self._records.end(name)
        self._metrics.trajectories(outcome=outcome).inc()
        self._metrics.trajectories_kept.set(len(self._records))


def digest_of(text: str) -> Digest:
    """Of all of a text, which need be no Unicode."""
    return Digest(len(text), hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest())


def _turn(tools: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> Digest:
    """Of all `messages`, and of the tools with them."""
    written = json.dumps([tools, messages], sort_keys=True)
    return Digest(len(messages), digest_of(written).sha256)


def _message(one: Choice) -> Mapping[str, Any]:
    """An answer as the message that the agent sends with its next request."""
    message: dict[str, Any] = {"role": "assistant", "content": one.written}
    if one.calls:
        message["tool_calls"] = [call.body() for call in one.calls]
    (read,) = read_messages([message])
    return read


def _reward(body: Any) -> tuple[float, str]:
    if not isinstance(body, dict) or not set(body) <= {"reward", "group"}:
        raise BadRequestError("the body must be an object with reward, and maybe group")
    reward, group = body.get("reward"), body.get("group", "")
    if isinstance(reward, bool) or not isinstance(reward, (int, float)):
        raise BadRequestError("reward must be a number", "reward")
    if not abs(reward) <= MAX_REWARD:
        raise BadRequestError(f"reward must be within {MAX_REWARD:g}", "reward")
    if not isinstance(group, str) or len(group) > MAX_TRAJECTORY_NAME:
        raise BadRequestError(f"group must be a text of {MAX_TRAJECTORY_NAME} characters", "group")
    return float(reward), group
