"""The condition Learning, and its events."""

from rollcall_protocol.wire.learning import LearningReport, LearningState
from tests.unit.rollcall_operator.plan.simulator import JobSimulator

LEARNS = LearningReport(LearningState.LEARNING, 1, 20)
ALIKE = LearningReport(LearningState.REWARDS_ALIKE, 31, 50, low=0.25, high=0.25)
CONVERGED = LearningReport(LearningState.CONVERGED, 91, 110, low=0.96875, high=1)


def reported(*reports: LearningReport | None) -> JobSimulator:
    simulator = JobSimulator()
    simulator.to_running()
    for step, report in enumerate(reports, start=1):
        simulator.report(step=step, learning=report)
        simulator.converge(20)
    return simulator


def condition(simulator: JobSimulator) -> tuple[str, str, str]:
    (found,) = (c for c in simulator.status["conditions"] if c["type"] == "Learning")
    return found["status"], found["reason"], found["message"]


def events(simulator: JobSimulator) -> list[tuple[str, str]]:
    found = [event for plan in simulator.plans for event in plan.events]
    states = set(map(str, LearningState))
    return [(event.type, str(event.reason)) for event in found if str(event.reason) in states]


def test_before_there_are_enough_steps_there_is_no_condition() -> None:
    kinds = {c["type"] for c in reported(None).status["conditions"]}
    assert "Learning" not in kinds


def test_a_standstill_says_what_was_seen_and_what_to_do() -> None:
    status, reason, message = condition(reported(ALIKE))
    assert (status, reason) == ("False", "RewardsAlike")
    assert message.startswith("from step 31 to 50 no sample was better than another one")
    assert "(rewards all 0.25)" in message
    assert "See whether the reward function looks at the response" in message


def test_a_job_that_has_converged_does_not_stand_still() -> None:
    status, reason, message = condition(reported(CONVERGED))
    assert (status, reason) == ("True", "Converged")
    assert "rewards (0.9688 to 1)" in message


def test_without_a_report_the_condition_stays() -> None:
    """A trainer that has restarted does not know enough steps."""
    assert condition(reported(ALIKE, None))[1] == "RewardsAlike"


def test_each_change_is_one_event_but_not_that_a_job_learns_from_the_start() -> None:
    assert events(reported(LEARNS, LEARNS, ALIKE, ALIKE, LEARNS, CONVERGED)) == [
        ("Warning", "RewardsAlike"),
        ("Normal", "Learning"),
        ("Normal", "Converged"),
    ]


def test_the_status_counts_the_steps_that_changed_nothing() -> None:
    simulator = JobSimulator()
    simulator.to_running()
    simulator.report(step=10, steps_alike=10)
    simulator.converge(20)
    assert simulator.status["progress"]["stepsAlike"] == 10
