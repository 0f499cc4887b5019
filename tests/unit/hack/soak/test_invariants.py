"""Each invariant holds for a sound history and fails for one that is broken in its own way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from hack.soak.fault_plan import FaultKind
from hack.soak.invariants import GATE_GRACE_S, violations
from hack.soak.soak_history import ApiObservation, InjectedFault, Leftovers, LogLine, MetricsReading
from tests.unit.hack.soak.histories import BEGAN, CAUSES, ledger, rollout, sight, sound, trainer

if TYPE_CHECKING:
    from hack.soak.soak_history import SoakHistory


def changed(reading: MetricsReading, **values: float) -> MetricsReading:
    return replace(reading, values={**reading.values, **values})


def names(history: SoakHistory) -> set[str]:
    return {violation.split(":")[0] for violation in violations(history)}


def test_a_sound_history_violates_nothing() -> None:
    assert violations(sound()) == []


def test_a_lost_prompt() -> None:
    history = sound()
    history.readings[7][0] = changed(history.readings[7][0], **ledger(in_flight=29))
    assert names(history) == {"no_prompt_lost_or_counted_twice"}


def test_a_prompt_counted_twice() -> None:
    history = sound()
    history.readings[7][0] = changed(history.readings[7][0], **ledger(accepted=61))
    assert names(history) == {"no_prompt_lost_or_counted_twice"}


def test_a_counter_that_goes_back_though_the_sums_are_right() -> None:
    history = sound()
    history.readings[7][0] = changed(history.readings[7][0], **ledger(dispatched=99, in_flight=29))
    (found,) = (v for v in violations(history) if "dispatched" in v)
    assert "at 7.0 s: dispatched went back to 99" in found


def test_counters_may_restart_with_another_incarnation_of_the_trainer() -> None:
    history = sound()
    history.readings[20:] = [
        [trainer(s, incarnation="t2", **ledger(dispatched=80 + s, accepted=40 + s)), *readings[1:]]
        for s, readings in enumerate(history.readings[20:], start=20)
    ]
    assert violations(history) == []


def test_a_version_that_goes_back() -> None:
    history = sound()
    history.readings[7][1] = changed(history.readings[7][1], weight_version=55)
    assert any("cpu-a went from version 61 to 55" in found for found in violations(history))


def test_a_version_may_go_back_under_another_trainer_or_in_another_incarnation_of_the_rollout() -> (
    None
):
    history = sound()
    for second in range(20, 40):
        version = (second - 5) * 10
        history.readings[second] = [
            trainer(second, incarnation="t2", weight_version=version),
            rollout(second, "cpu-a", weight_version=version),
            rollout(second, "cpu-b", incarnation="cpu-b.2", weight_version=version),
        ]
    assert violations(history) == []


def test_a_rollout_may_hold_the_old_trainers_version_for_a_while_but_go_back_only_once() -> None:
    history = sound()
    for second in range(20, 40):
        held = 190 if second < 25 else 170 + second
        history.readings[second] = [
            trainer(second, incarnation="t2", weight_version=170 + second),
            rollout(second, "cpu-a", weight_version=held),
            rollout(second, "cpu-b"),
        ]
    history.readings[19][1] = rollout(19, "cpu-a", weight_version=190)
    assert not any("went from" in found for found in violations(history) if "cpu-a" in found)
    history.readings[35][1] = rollout(35, "cpu-a", weight_version=180)
    assert any("cpu-a went from version 204 to 180" in found for found in violations(history))


def test_a_prompt_that_was_too_stale_to_train_on() -> None:
    history = sound()
    history.readings[9][0] = changed(
        history.readings[9][0], **{"staleness_versions_bucket{2.0}": 99}
    )
    assert names(history) == {"no_prompt_is_trained_on_that_is_too_stale"}


def late(history: SoakHistory, seconds: int) -> SoakHistory:
    """cpu-a keeps version 50 from second 5 on, and stays Ready for so long."""
    for second in range(5, 40):
        history.readings[second][1] = rollout(second, "cpu-a", weight_version=50)
        history.sights[second] = sight(second + 0.5, a=second < 5 + seconds)
    return history


def test_a_stale_rollout_that_stays_ready() -> None:
    assert names(late(sound(), 30)) == {"ready_means_current"}


def test_a_stale_rollout_that_is_not_ready_in_time() -> None:
    assert violations(late(sound(), int(GATE_GRACE_S) - 2)) == []


@pytest.mark.parametrize(
    "kind", [FaultKind.API_OUTAGE, FaultKind.KILL_OPERATOR, FaultKind.NODE_LOSS]
)
def test_readiness_is_not_judged_while_the_operator_or_api_is_away(kind: FaultKind) -> None:
    history = late(sound(), 30)
    history.faults.append(InjectedFault(kind, BEGAN + 1, BEGAN + 5))
    assert "ready_means_current" not in names(history)


def test_a_token_without_its_version() -> None:
    history = sound()
    said = "ValueError: a sample needs a prompt, and a logprob and version for each token"
    history.lines.append(LogLine(BEGAN + 9, "job-trainer-0", "uid-t", said, "raw"))
    assert names(history) == {"no_token_without_its_version"}


@pytest.mark.parametrize("epochs", [{1: "JobStarted", 2: ""}, {1: "JobStarted", 3: "MemberLost"}])
def test_an_epoch_that_has_no_cause_or_is_missing(epochs: dict[int, str]) -> None:
    history = sound()
    history.sights = [replace(seen, epochs=epochs) for seen in history.sights]
    assert names(history) == {"no_epoch_without_a_cause"}


def test_an_epoch_whose_cause_changes() -> None:
    history = sound()
    history.sights[9] = replace(history.sights[9], epochs=CAUSES | {2: "MemberLost"})
    assert names(history) == {"no_epoch_without_a_cause"}


def test_a_session_without_a_cause() -> None:
    history = sound()
    history.lines.append(
        LogLine(BEGAN + 9, "job-trainer-0", "uid-t", "session 1.1.3 formed: 2 members, 0.1 s after")
    )
    assert names(history) == {"no_epoch_without_a_cause"}


def test_a_rollout_that_has_not_learned() -> None:
    history = sound()
    history.final[0] = changed(history.final[0], rollout_reward=0.07)
    assert names(history) == {"rollouts_have_learned"}
    history.final[0] = changed(history.final[0], rollout_reward=float("nan"))
    assert names(history) == {"rollouts_have_learned"}


def test_a_rollout_that_never_came_back() -> None:
    history = sound()
    del history.final[0]
    assert names(history) == {"rollouts_have_learned"}


def test_training_that_stands_still_after_the_last_fault() -> None:
    history = sound()
    for readings in history.readings[11:]:
        readings[0] = changed(readings[0], step=110)
    assert names(history) == {"training_goes_on"}


@pytest.mark.parametrize(
    "left",
    [
        Leftovers(objects=("Secret/token",)),
        Leftovers(processes=("12 rollcall-rollout",)),
        Leftovers(namespaces=("net:[4026532]",)),
        Leftovers(shared_memory=("/dev/shm/weights",)),
        Leftovers(mounts=("/var/lib/kubelet/pods/uid/volumes",)),
        None,
    ],
)
def test_what_is_left_behind(left: Leftovers | None) -> None:
    history = sound()
    history.leftovers = left
    assert names(history) == {"nothing_is_left_behind"}


def test_what_the_api_did_not_say_is_not_held_against_a_rollout() -> None:
    history = late(sound(), 30)
    history.sights = [
        ApiObservation(BEGAN, {}, {}, CAUSES),
        ApiObservation(BEGAN + 39, {}, {}, CAUSES),
    ]
    assert violations(history) == []
