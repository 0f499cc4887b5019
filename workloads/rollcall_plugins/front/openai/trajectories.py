"""What a pod of the front knows of agents' trajectories that have no reward yet. Pure: no I/O, no
clock. It is a copy of what the coordinator keeps, and may be forgotten at any time.

A completion that goes on from the one before, token by token, is one sequence with it: sampled
tokens, and between them those that the agent gave. Any other one begins another sequence, so that a
trajectory may be several samples; no sampled token is in two of them as sampled.
"""

import re
import secrets
from collections import OrderedDict
from dataclasses import dataclass

from rollcall_protocol.wire.ids import Version
from rollcall_protocol.wire.messages import Sample
from rollcall_protocol.wire.partial_responses import NOT_SAMPLED, Response
from rollcall_protocol.wire.trajectories import (
    MAX_TRAJECTORY_NAME,
    MOST_PARTS,
    Digest,
    TrajectoryPart,
    TrajectoryTurn,
)

NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{MAX_TRAJECTORY_NAME - 1}}}")
MOST_ENDED = 65_536  # names that may not be used again


class UntrainableError(ValueError):
    """A trajectory that gives no samples; the message says why."""


@dataclass(frozen=True, slots=True)
class RecordedCompletion:
    """One answer: its prompt, what was sampled, and the oldest of the tokens' versions.

    `usual`: sampled as the job's own rollouts sample, so that its log-probabilities are of the
    distribution that is trained. `said` is the text that prompt and answer say. `end`: the text of
    the special token that the response ends with; the chat template writes it, too. `messages` are
    those of prompt and answer.
    """

    prompt: tuple[int, ...]
    response: Response
    oldest: Version
    usual: bool = True
    said: Digest = Digest()  # noqa: RUF009 - it does not change
    end: str = ""
    messages: Digest = Digest()  # noqa: RUF009


class _Sequence:
    """Completions of which each goes on from the one before."""

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self.prompt = prompt
        self._tokens: list[int] = []  # behind it
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self.prompt) + len(self._tokens)

    def whole(self) -> tuple[int, ...]:
        return (*self.prompt, *self._tokens)

    def add(self, completion: RecordedCompletion) -> None:
        given, response = completion.prompt[len(self) :], completion.response
        self._tokens += [*given, *response.tokens]
        self._logprobs += [*([0.0] * len(given)), *response.logprobs]
        self._versions += [*([NOT_SAMPLED] * len(given)), *response.versions]

    def part(self, reward: float) -> TrajectoryPart:
        columns = tuple(self._tokens), tuple(self._logprobs), tuple(self._versions)
        return TrajectoryPart(self.prompt, Sample(*columns, reward))


class Trajectory:
    """The completions of one name so far.

    `said`, `end` and `messages` are those of the last one. `used`: when it was needed last, seconds
    of the caller's clock. `count`: the number of completions.
    """

    def __init__(self, name: str) -> None:
        self.name, self.end, self.used, self.count = name, "", 0.0, 0
        self.said, self.messages = Digest(), Digest()
        self._sequences: list[_Sequence] = []
        self._oldest: Version | None = None
        self._problem = ""

    @property
    def tokens(self) -> int:
        """How many tokens are kept."""
        return sum(map(len, self._sequences))

    def sequence(self) -> tuple[int, ...]:
        """The tokens of the last prompt and response."""
        return self._sequences[-1].whole() if self._sequences else ()

    def add(self, completion: RecordedCompletion) -> None:
        """The next one. Where it does not go on from the one before, another sequence begins."""
        before = self.sequence()
        if not before or completion.prompt[: len(before)] != before:
            self._sequences.append(_Sequence(completion.prompt))
        self._sequences[-1].add(completion)
        if not completion.usual:
            self._problem = self._problem or (
                f"completion {self.count} was not sampled with the job's temperature, top_p "
                "and top_k (spec.algorithm.sampling), or it had a response_format"
            )
        if len(self._sequences) > MOST_PARTS:
            self._problem = self._problem or (
                f"more than {MOST_PARTS} of its prompts do not begin with the tokens of prompt and "
                "response before them: the agent drops or changes what was said"
            )
        self._oldest = min(self._oldest or completion.oldest, completion.oldest)
        self.said, self.end, self.messages = completion.said, completion.end, completion.messages
        self.count += 1

    def turn(
        self, completion: RecordedCompletion, *, job_uid: str, seconds: float
    ) -> TrajectoryTurn:
        """The next one, for the coordinator to keep for `seconds`."""
        before, prompt = self.sequence(), completion.prompt
        pairs = enumerate(zip(before, prompt, strict=False))
        goes_on = prompt[: len(before)] == before  # as nearly all do
        differs = len(before) if goes_on else next((at for at, (a, b) in pairs if a != b), None)
        known = min(len(before), len(prompt)) if differs is None else differs
        return TrajectoryTurn(
            job_uid=job_uid,
            trajectory=self.name,
            number=self.count,
            known=known,
            given=prompt[known:],
            response=completion.response,
            oldest=completion.oldest,
            usual=completion.usual,
            said=completion.said,
            end=completion.end,
            messages=completion.messages,
            seconds=seconds,
        )

    def completion(self, turn: TrajectoryTurn) -> RecordedCompletion:
        """What a turn that is the next one stands for. ValueError if it cannot be."""
        if turn.number != self.count or not 0 <= turn.known <= len(self.sequence()):
            problem = f"turn {turn.number} with {turn.known} known tokens does not follow"
            raise ValueError(f"{problem} {self.count} turns with {len(self.sequence())}")
        return RecordedCompletion(
            (*self.sequence()[: turn.known], *turn.given),
            turn.response,
            turn.oldest,
            turn.usual,
            turn.said,
            turn.end,
            turn.messages,
        )

    def parts(self, reward: float) -> tuple[tuple[TrajectoryPart, ...], Version]:
        """Its samples, in their order, and the oldest version; UntrainableError."""
        if self._problem or self._oldest is None:
            raise UntrainableError(self._problem or "it has no completion")
        return tuple(one.part(reward) for one in self._sequences), self._oldest


class TrajectoryRecords:
    """Copies of trajectories without a reward, within bounds: number, tokens, seconds unused."""

    def __init__(self, *, most: int, most_tokens: int, seconds: float) -> None:
        self._most, self._most_tokens, self._seconds = most, most_tokens, seconds
        self._kept: OrderedDict[str, Trajectory] = OrderedDict()  # the longest unused first
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._tokens = 0

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, name: str) -> Trajectory:
        """What is known of `name`; an empty one if that is nothing."""
        return self._kept.get(name) or Trajectory(name)

    def has_ended(self, name: str) -> bool:
        """Whether it got its reward."""
        return name in self._ended

    def record(self, name: str, completion: RecordedCompletion, now: float) -> None:
        """Add a completion, and forget what is beyond the bounds."""
        trajectory = self._kept.setdefault(name, Trajectory(name))
        before = trajectory.tokens
        trajectory.add(completion)
        self._tokens += trajectory.tokens - before
        trajectory.used = now
        self._kept.move_to_end(name)
        self._forget(now)

    def end(self, name: str) -> None:
        """It has its reward: its tokens are dropped, and its name is not used again."""
        self._drop(name)
        self._ended[name] = None
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)

    def _forget(self, now: float) -> None:
        while self._kept:
            oldest = next(iter(self._kept.values()))
            many = len(self._kept) > self._most or self._tokens > self._most_tokens
            if not many and now - oldest.used < self._seconds:
                break
            self._drop(oldest.name)

    def _drop(self, name: str) -> None:
        gone = self._kept.pop(name, None)
        if gone is not None:
            self._tokens -= gone.tokens


def new_name() -> str:
    """A name for a trajectory whose agent gives none."""
    return f"t-{secrets.token_hex(12)}"
