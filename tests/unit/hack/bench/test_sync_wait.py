"""How the waits of blocking and asynchronous jobs are compared."""

from hack.bench.sync_wait import compare, mean


def waits(*seconds: float) -> list[dict[str, float]]:
    return [{"visible_wait_seconds": one, "step_seconds": 2.0} for one in seconds]


def test_the_two_jobs_of_a_pair_are_compared_with_each_other() -> None:
    pairs = list(zip(waits(1.0, 4.0, 3.0), waits(0.1, 0.2, 0.1), strict=True))
    found = compare(pairs)
    assert found["wait_ratio"] == {"median": 20.0, "least": 10.0, "most": 30.0}
    assert found["blocking"] == {"visible_wait_seconds": 3.0, "step_seconds": 2.0}
    assert found["asynchronous"]["visible_wait_seconds"] == 0.1
    assert found["reached"]
    assert not compare(pairs[:1])["reached"]


def test_a_mean_is_that_of_what_came_between_the_samples() -> None:
    before, after = ({"w_sum": 5.0, "w_count": 10.0}, {"w_sum": 8.0, "w_count": 14.0})
    assert mean("w", before, after) == 0.75
