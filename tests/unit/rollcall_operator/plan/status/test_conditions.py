"""Conditions of a job, and which of its pools they are about."""

from tests.unit.rollcall_operator.plan.simulator import JobSimulator, lent_pool


def two_pools(own: int, lent: int) -> JobSimulator:
    """A running job with so many rollouts of its own, and so many lent ones."""
    simulator = JobSimulator({"spec.rollouts[0].replicas": own})
    simulator.pools["lent"] = lent_pool({"spec.replicas": lent})
    simulator.to_running()
    return simulator


def test_one_pools_surplus_does_not_hide_what_another_lacks() -> None:
    simulator = two_pools(own=2, lent=1)
    simulator.scale("bad-cpu", 1)
    simulator.scale("lent", 2)
    simulator.converge(2)
    condition = simulator.condition("RolloutsReady")
    assert (condition["status"], condition["reason"]) == ("False", "Starting")
    assert condition["message"] == "2 of 3 rollouts are ready"
