"""What must hold whatever happens to the job: pure functions from what was seen to violations.

Each violation says when and what, so that the history can be looked at.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from hack.soak.fault_plan import FaultKind
from hack.soak.soak_history import ROLLOUT, TRAINER, MetricsReading, SoakHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEARNED = 0.9
GATE_GRACE_S = 8.0  # the bound of suspicion, and the way through operator, API and kubelet
_AWAY_GRACE_S = 45.0  # until kubelet has restarted an operator that was killed again and again
_SESSION = re.compile(r"^session (\S+) formed: \d+ members?, [\d.]+ s after(?: (\w+))?")
_UNVERSIONED = "a logprob and version for each token"  # the trainer's check of each batch
_COUNTERS = ("dispatched", "accepted", "rejected", "requeued", "duplicate")


def violations(history: SoakHistory) -> list[str]:
    """All of them, by invariant."""
    return [f"{check.__name__}: {found}" for check in CHECKS for found in check(history)]


def no_prompt_lost_or_counted_twice(history: SoakHistory) -> Iterator[str]:
    """The ledger always adds up, and its counters never go back in a trainer's incarnation."""
    before: dict[tuple[str, str], float] = {}
    for reading in _of(history, TRAINER):
        prompts = {name: reading.values.get(f"prompts_total{{{name}}}") for name in _COUNTERS}
        found = {name: count for name, count in prompts.items() if count is not None}
        if len(found) < len(_COUNTERS):
            continue  # the ledger was not open yet
        found["in_flight"] = reading.values["prompts_in_flight"]
        parts = sum(found[name] for name in ("accepted", "rejected", "requeued", "in_flight"))
        if found["dispatched"] != parts:
            yield f"{_when(history, reading.time)}: {found} does not add up"
        for name in _COUNTERS:
            key = (reading.worker.incarnation, name)
            if found[name] < before.get(key, 0):
                yield f"{_when(history, reading.time)}: {name} went back to {found[name]:.0f}"
            before[key] = found[name]


def versions_never_go_back(history: SoakHistory) -> Iterator[str]:
    """A rollout incarnation's version grows, unless another trainer incarnation has begun.

    A trainer that comes back continues from the highest version that any rollout reported; a
    rollout that was out of reach then may hold a higher one of the old incarnation.
    """
    # By rollout incarnation: the trainer incarnation, and the version that it published.
    held: dict[str, tuple[str, float]] = {}
    trainer = ""
    for readings in history.readings:
        trainer = next(
            (r.worker.incarnation for r in readings if r.worker.role == TRAINER), trainer
        )
        for reading in (r for r in readings if r.worker.role == ROLLOUT):
            version = reading.values.get("weight_version", -1.0)
            incarnation = reading.worker.incarnation
            under, last = held.get(incarnation, (trainer, -1.0))
            if version == last:
                continue  # it may be the old trainer's still
            if version < last and under == trainer:
                yield (
                    f"{_when(history, reading.time)}: {reading.worker.pod} went from version "
                    f"{last:.0f} to {version:.0f}"
                )
            held[incarnation] = (trainer, version)


def no_prompt_is_trained_on_that_is_too_stale(history: SoakHistory) -> Iterator[str]:
    """No batch has a prompt sampled with weights older than maxStaleness allows."""
    for reading in _of(history, TRAINER):
        counted = reading.values.get("staleness_versions_count")
        fresh = reading.values.get(f"staleness_versions_bucket{{{float(history.max_staleness)}}}")
        if counted is not None and fresh is not None and counted > fresh:
            yield f"{_when(history, reading.time)}: {counted - fresh:.0f} prompts were staler"


def ready_means_current(history: SoakHistory) -> Iterator[str]:
    """A rollout stays Ready with weights older than maxStaleness allows for no longer than the
    way from the coordinator to its gate takes, unless operator, API or a node is away.
    """
    late: dict[str, float] = {}  # rollout's incarnation to since when
    reported: set[str] = set()
    for readings in history.readings:
        trainer = next((r for r in readings if r.worker.role == TRAINER), None)
        for reading in readings:
            incarnation = reading.worker.incarnation
            lag = _lag(trainer, reading)
            ready = _ready(history, reading)
            if reading.worker.role != ROLLOUT or not ready or lag <= history.max_staleness:
                late.pop(incarnation, None)
                continue
            if _away(history, reading.time):
                late.pop(incarnation, None)
                continue
            since = late.setdefault(incarnation, reading.time)
            if reading.time - since > GATE_GRACE_S and incarnation not in reported:
                reported.add(incarnation)
                yield (
                    f"{_when(history, since)}: {reading.worker.pod} was Ready and "
                    f"{lag:.0f} versions behind for over {GATE_GRACE_S:.0f} s"
                )


def no_token_without_its_version(history: SoakHistory) -> Iterator[str]:
    """The trainer refuses a batch with such a token, and says so."""
    for line in history.lines:
        if _UNVERSIONED in line.message:
            yield f"{_when(history, line.time)}: {line.pod}: {line.message[:200]}"


def no_epoch_without_a_cause(history: SoakHistory) -> Iterator[str]:
    """Every epoch in status has a cause, none is missing, and so has every session in the log."""
    epochs: dict[int, str] = {}
    for sight in history.sights:
        for epoch, cause in sight.epochs.items():
            if epochs.setdefault(epoch, cause) != cause:
                yield f"epoch {epoch}: its cause was {epochs[epoch]!r} and became {cause!r}"
    yield from (f"epoch {epoch} has no cause" for epoch, cause in epochs.items() if not cause)
    if epochs:
        missing = sorted(set(range(1, max(epochs) + 1)) - set(epochs))
        if missing:
            yield f"epochs {missing} never appeared in status"
    for line in history.lines:
        session = _SESSION.match(line.message)
        if session and not session[2]:
            yield f"{_when(history, line.time)}: session {session[1]} has no cause"


def rollouts_have_learned(history: SoakHistory) -> Iterator[str]:
    """At the end all rollouts that are wanted serve, and generate good samples themselves."""
    if len(history.final) != history.wanted:
        yield f"{len(history.final)} rollouts serve at the end, {history.wanted} are wanted"
    for reading in history.final:
        reward = reading.values.get("rollout_reward")
        if reward is None or not reward >= LEARNED:
            yield f"{reading.worker.pod}: reward of its own samples is {reward}, under {LEARNED}"


def training_goes_on(history: SoakHistory) -> Iterator[str]:
    """After the last fault was healed the trainer makes steps again."""
    calm = max((fault.healed for fault in history.faults), default=history.began)
    steps = [
        r.values["step"] for r in _of(history, TRAINER) if r.time > calm and "step" in r.values
    ]
    if len(steps) < 2 or steps[-1] <= steps[0]:
        yield f"steps seen after the last fault: {steps[:1]} to {steps[-1:]}"


def nothing_is_left_behind(history: SoakHistory) -> Iterator[str]:
    """Once the job is deleted, so is everything that it had."""
    left = history.leftovers
    if left is None:
        yield "leftovers were not looked for"
        return
    for what, names in (
        ("API objects", left.objects),
        ("processes", left.processes),
        ("network namespaces, with their connections and ports", left.namespaces),
        ("shared memory", left.shared_memory),
        ("mounts and control groups", left.mounts),
    ):
        if names:
            yield f"{what}: {', '.join(names[:8])}"


CHECKS: tuple[Callable[[SoakHistory], Iterator[str]], ...] = (
    no_prompt_lost_or_counted_twice,
    versions_never_go_back,
    no_prompt_is_trained_on_that_is_too_stale,
    ready_means_current,
    no_token_without_its_version,
    no_epoch_without_a_cause,
    rollouts_have_learned,
    training_goes_on,
    nothing_is_left_behind,
)


def _of(history: SoakHistory, role: str) -> Iterator[MetricsReading]:
    every = itertools.chain.from_iterable(history.readings)
    return (reading for reading in every if reading.worker.role == role)


def _lag(trainer: MetricsReading | None, rollout: MetricsReading) -> float:
    # The trainer was read before the rollouts, so this is never more than the truth.
    if trainer is None:
        return 0.0
    return trainer.values.get("weight_version", -1) - rollout.values.get("weight_version", -1)


def _ready(history: SoakHistory, reading: MetricsReading) -> bool:
    """Whether the pod was Ready before and after it was read, as far as that was observed."""
    before = after = None
    for sight in history.sights:
        if sight.time <= reading.time:
            before = sight
        elif after is None:
            after = sight
    near = (before, after)
    return all(s is not None and s.ready.get(reading.worker.uid, False) for s in near)


def _away(history: SoakHistory, time: float) -> bool:
    kinds = {FaultKind.KILL_OPERATOR, FaultKind.API_OUTAGE, FaultKind.NODE_LOSS}
    return any(
        fault.kind in kinds and fault.began <= time <= fault.healed + _AWAY_GRACE_S
        for fault in history.faults
    )


def _when(history: SoakHistory, time: float) -> str:
    return f"at {time - history.began:.1f} s"
