"""The condition RewardsUsable, and its event."""

from dataclasses import replace

from rollcall_protocol.wire.reward_errors import RewardError, RewardErrorKind, RewardFailure
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

RAISED = RewardFailure(
    "task:score", RewardError(0, RewardErrorKind.RAISED, "KeyError: 'a'", "task.py", 12), 7, (0, 4)
)
TEXT = "task:score raised KeyError: 'a' (task.py:12), for prompt 7 (tokens 0 4). "


def running() -> JobSimulator:
    simulator = JobSimulator()
    simulator.to_running()
    return simulator


def condition(simulator: JobSimulator) -> tuple[str, str, str]:
    (found,) = (c for c in simulator.status["conditions"] if c["type"] == "RewardsUsable")
    return found["status"], found["reason"], found["message"]


def warnings(simulator: JobSimulator) -> list[str]:
    events = [event for plan in simulator.plans for event in plan.events]
    return [event.reason for event in events if event.type == "Warning"]


def test_before_the_first_sample_nothing_is_known_of_rewards() -> None:
    simulator = running()
    assert condition(simulator) == ("Unknown", "Starting", "no sample has a reward yet")
    simulator.report(reward=0.0)
    simulator.converge(2)
    assert condition(simulator)[0] == "True"


def test_rewards_are_usable_until_the_coordinator_reports_an_error() -> None:
    simulator = running()
    simulator.report(reward=0.5)
    simulator.converge(2)
    assert condition(simulator)[:2] == ("True", "RewardsUsable")
    simulator.report(reward_failure=RAISED)
    simulator.converge(2)
    status, reason, message = condition(simulator)
    assert (status, reason) == ("False", "RewardRaised")
    assert message.startswith(TEXT)
    simulator.report(step=1)
    simulator.converge(2)
    assert condition(simulator)[0] == "True"


def test_the_same_error_is_one_event() -> None:
    simulator = running()
    for prompt in range(3):
        simulator.report(step=prompt, reward_failure=replace(RAISED, prompt=prompt))
        simulator.converge(20)
    assert warnings(simulator) == ["RewardRaised"]


def test_without_a_report_the_condition_stays() -> None:
    simulator = running()
    simulator.report(reward_failure=RAISED)
    simulator.converge(2)
    simulator.snapshot = None
    simulator.converge(2)
    assert condition(simulator)[1] == "RewardRaised"


def test_an_error_of_the_environment_has_a_reason_of_its_own() -> None:
    simulator = running()
    error = replace(RAISED.error, environment=True)
    failure = replace(RAISED, function="games:Chess", error=error)
    simulator.report(reward_failure=failure)
    simulator.converge(2)
    status, reason, message = condition(simulator)
    assert (status, reason) == ("False", "EnvironmentFailed")
    assert message.startswith("games:Chess raised KeyError")
