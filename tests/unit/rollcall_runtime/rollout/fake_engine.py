"""An inference engine that samples without a model and stops where a test wants it to."""

import threading
from collections.abc import Iterable, Sequence

from torch import Tensor

from rollcall_protocol.wire.messages import PromptLease
from rollcall_protocol.wire.partial_responses import PartialResponses, Response
from rollcall_runtime.rollout.inference_engine import (
    InferenceEngine,
    PartialOutputCallback,
    PauseMode,
)
from rollcall_runtime.worker.telemetry import RolloutMetrics

TOKENS = (3, 4, 2)
WAIT_SECONDS = 5.0


def rollout_metrics() -> RolloutMetrics:
    return RolloutMetrics(namespace="default", job="reverse", pool="cpu", group="default")


def lease(
    number: int, *, group_size: int = 2, begun: PartialResponses | None = None
) -> PromptLease:
    return PromptLease(
        f"1.1.{number}", number, (0, 5, 6, 1), group_size, seed=number, partial=begun
    )


class FakeEngine(InferenceEngine):
    """Each call waits for `go`, then answers; the first `cut_short` calls give one token each.

    Before that it reports one token each, `partials` times, until the callback returns False.
    """

    def __init__(self, *, cut_short: int = 0, blocked: bool = False, partials: int = 0) -> None:
        self.calls: list[tuple[int, object]] = []  # prompts, partials
        self.go = threading.Event()
        self.called = threading.Semaphore(0)
        self.loaded: list[int] = []
        self.pauses: list[PauseMode] = []
        self.resumes = 0
        self.error: Exception | None = None  # of `generate`
        self.refuse: Exception | None = None  # of `load_weights`
        self._version: int | None = 0
        self._cut_short, self._partials = cut_short, partials
        self.wanted: list[bool] = []  # what the callback returned
        self.seeds: list[int] = []
        if not blocked:
            self.go.set()

    @property
    def version(self) -> int | None:
        return self._version

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        group_size: int,
        seed: int,
        timeout: float,
        partials: Sequence[Sequence[Response]] | None = None,
        on_partial: PartialOutputCallback | None = None,
    ) -> list[list[Response]]:
        self.calls.append((len(prompts), partials))
        self.seeds.append(seed)
        begun = partials or [[Response()] * group_size] * len(prompts)
        for _ in range(self._partials):
            assert on_partial is not None
            self.wanted.append(
                on_partial.callback([[self._sample(g, 1) for g in group] for group in begun])
            )
        self.called.release()
        if not self.go.wait(WAIT_SECONDS):
            raise TimeoutError("the test never let the engine go")
        if self.error is not None:
            raise self.error
        count = 1 if len(self.calls) <= self._cut_short else len(TOKENS)
        return [[self._sample(part, count) for part in group] for group in begun]

    def _sample(self, begun: Response, count: int) -> Response:
        count = max(count, len(begun.tokens))
        new = count - len(begun.tokens)
        version = self._version or 0
        return Response(
            tokens=TOKENS[:count],
            logprobs=begun.logprobs + (-1.0,) * new,
            versions=begun.versions + (version,) * new,
            finished=count == len(TOKENS),
        )

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        for _ in weights:
            pass
        if self.refuse is not None:
            raise self.refuse
        self.loaded.append(version)
        self._version = version

    def pause(self, mode: PauseMode, *, timeout: float) -> None:
        self.pauses.append(mode)

    def resume(self) -> None:
        self.resumes += 1

    def close(self) -> None:
        self.go.set()
