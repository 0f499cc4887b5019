"""How long a container that has ended waits."""

from rollcall_local.kubelet.restart_delays import FORGOTTEN_AFTER, RestartDelays


def test_the_first_end_costs_nothing_and_the_next_ones_double() -> None:
    delays = RestartDelays()
    assert [delays.after(1.0) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_container_that_has_run_for_long_begins_again() -> None:
    delays = RestartDelays()
    for _ in range(5):
        delays.after(FORGOTTEN_AFTER - 1)
    assert delays.after(FORGOTTEN_AFTER - 1) == 160
    assert delays.after(FORGOTTEN_AFTER) == 0
    assert delays.after(1.0) == 10
