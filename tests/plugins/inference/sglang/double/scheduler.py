"""The stand-in's scheduler: one token of each request a step, and calls in their order.

As SGLang's it samples one step ahead of what it hands over: a token that is sampled is a response's
a step later. A pause in place leaves it where it is, so that it counts for the weights of the time
after the pause; a pause that retracts hands it over before.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 64
STEP_SECONDS = 0.005


@dataclass
class Request:
    """One that runs. `events`: versions that ended, and the tokens there were by then."""

    body: dict[str, Any]
    outputs: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    events: list[tuple[str, int]] = field(default_factory=list)
    ahead: tuple[int, float] | None = None  # sampled, and not handed over
    finished: bool = False

    @property
    def rid(self) -> str:
        return str(self.body["rid"])


class Scheduler:
    """`weight` is the number that all weights have: a token's log-probability is its negative.

    `fault(route)` is the fault that a test wants there now, or "".
    """

    def __init__(self, *, ranks: int, fault: Callable[[str], str]) -> None:
        self.weight, self.version = 0.0, "default"
        self.weights_of_ranks = [0.0] * ranks
        self.running: list[Request] = []
        self._fault, self._paused = fault, False
        self._calls: asyncio.Queue[Callable[[], None]] = asyncio.Queue()

    def send(self, call: Callable[[], None]) -> None:
        """Make the call before a later step, after those that were sent before it."""
        self._calls.put_nowait(call)

    async def ask(self, call: Callable[[], Any]) -> Any:
        """What `call` returns there."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(lambda: answer.set_result(call()))
        return await answer

    async def run(self) -> None:
        while True:
            await asyncio.sleep(STEP_SECONDS)
            with suppress(asyncio.QueueEmpty):
                while True:
                    self._calls.get_nowait()()
            if not self._paused:
                self._step()

    def _step(self) -> None:
        for request in list(self.running):
            self._hand_over(request)
            if not request.finished:
                at = len(request.body["input_ids"]) + len(request.tokens)
                request.ahead = at % VOCABULARY, -self.weight

    def _hand_over(self, request: Request) -> None:
        if request.ahead is None:
            return
        token, logprob = request.ahead
        request.ahead = None
        request.tokens.append(token)
        request.logprobs.append(logprob)
        sampling = request.body["sampling_params"]
        reason: dict[str, Any] | None = None
        if token in (sampling.get("stop_token_ids") or ()):
            reason = {"type": "stop", "matched": token}
        elif any(chr(97 + token % 26) == stop for stop in sampling.get("stop") or ()):
            reason = {"type": "stop", "matched": sampling["stop"][0]}
        elif len(request.tokens) >= sampling["max_new_tokens"]:
            reason = {"type": "length", "length": len(request.tokens)}
        self._give(request, reason)

    def _give(self, request: Request, reason: dict[str, Any] | None, *, new: int = 1) -> None:
        first = len(request.tokens) - new
        entries = zip(request.logprobs[first:], request.tokens[first:], strict=True)
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": reason,
            "prompt_tokens": len(request.body["input_ids"]),
            "completion_tokens": len(request.tokens),
            "weight_version": self.version,
            "output_token_logprobs": [[logprob, token, None] for logprob, token in entries],
        }
        if reason is not None:
            request.finished = True
            self.running.remove(request)
            meta["weight_versions"] = self._spans(request)
        outputs = {"text": "", "output_ids": request.tokens[first:], "meta_info": meta}
        request.outputs.put_nowait(outputs)

    def _spans(self, request: Request) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        for version, end in [*request.events, (self.version, len(request.tokens))]:
            start = spans[-1]["end"] if spans else 0
            if end > start or not spans:
                spans.append({"version": version, "start": start, "end": end})
        return spans

    # --- calls ---------------------------------------------------------------------------------

    def abort(self, rid: str, *, every: bool) -> None:
        """Those whose name begins with `rid`. SGLang gives their last token again."""
        for request in list(self.running):
            if every or request.rid.startswith(rid):
                reason = {"type": "abort", "message": "Aborted", "status_code": None}
                self._give(request, reason | {"err_type": None}, new=min(len(request.tokens), 1))

    def pause(self, mode: str) -> None:
        self._paused = True
        if mode == "retract":
            for request in list(self.running):
                self._hand_over(request)

    def resume(self) -> None:
        self._paused = False

    def load(self, body: dict[str, Any]) -> tuple[bool, str]:
        """Read the weights; as SGLang, it answers for the first rank alone."""
        try:
            weight = _weight_of(Path(body["model_path"]) / "model.safetensors")
        except (OSError, ValueError) as error:
            self.weight = -1.0  # a part of the new ones
            return False, f"Failed to update weights: {error}.\nRolling back to original weights."
        kept = self._fault("/update_weights_from_disk") == "rank 1 keeps its weights"
        others = [self.weights_of_ranks[-1] if kept else weight] * (len(self.weights_of_ranks) - 1)
        self.weight, self.weights_of_ranks = weight, [weight, *others]
        for request in self.running:
            if request.tokens:
                request.events.append((self.version, len(request.tokens)))
        self.version = body["weight_version"]
        if body["flush_cache"] and any(request.ahead for request in self.running):
            return False, "Weights were updated, but the cache was not flushed"
        return True, "Succeeded to update model weights."


def _weight_of(path: Path) -> float:
    """The number that all float32 tensors of the file have; ValueError if it is damaged."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    end = max(t["data_offsets"][1] for name, t in header.items() if name != "__metadata__")
    if 8 + length + end != len(data):
        raise ValueError("the file has another size than its header says")
    numbers = set(memoryview(data[8 + length :]).cast("f"))
    (number,) = numbers
    return float(number)
