"""Three bad messages within a minute exclude a pod; fewer, or slower ones, do not."""

from rollcall_protocol.membership.bad_messages import WINDOW_SECONDS, BadMessageCounter


def test_the_third_within_the_window_excludes_once() -> None:
    counter = BadMessageCounter()
    assert [counter.add("a", now) for now in (0, 1, 2, 3)] == [False, False, True, False]
    assert counter.excluded == {"a"}


def test_those_of_another_pod_or_of_long_ago_do_not_count() -> None:
    counter = BadMessageCounter()
    assert not any(counter.add(pod, 0) for pod in "aabb")
    assert not counter.add("a", WINDOW_SECONDS + 1)
    assert not counter.add("a", WINDOW_SECONDS + 2)
    assert counter.add("a", WINDOW_SECONDS + 3)


def test_pods_that_are_gone_are_forgotten() -> None:
    counter = BadMessageCounter()
    for now in (0, 1, 2):
        counter.add("a", now)
    counter.add("b", 0)
    counter.keep_only({"c"})
    assert counter.excluded == set()
    assert not counter.add("b", 1)
    assert not counter.add("b", 2)
