"""The composition root: exit statuses, and an end that is asked for or forced by a lost part."""

import asyncio
from pathlib import Path

import pytest

from rollcall_operator.app import EXIT_BAD_SETTINGS, EXIT_FAILED, EXIT_OK, Operator, StoppedError
from rollcall_operator.config import Settings
from rollcall_operator.control.leader_election import LeadershipLostError


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    kubeconfig = str(tmp_path / "none")
    return Operator(Settings(kubeconfig=kubeconfig, http_host="127.0.0.1", http_port=0))


async def test_an_unreadable_configuration_has_an_error_of_its_own(operator: Operator) -> None:
    assert await operator.run() == EXIT_BAD_SETTINGS


async def never() -> None:
    await asyncio.sleep(3600)


async def fail(error: Exception) -> None:
    raise error


async def test_waiting_ends_with_the_first_part_that_is_done(operator: Operator) -> None:
    slow = asyncio.create_task(never())
    await operator._race(asyncio.create_task(asyncio.sleep(0)), slow)
    slow.cancel()


async def test_waiting_ends_when_asked_to_stop(operator: Operator) -> None:
    slow = asyncio.create_task(never())
    asyncio.get_running_loop().call_later(0.01, operator.stop)
    with pytest.raises(StoppedError):
        await operator._race(slow)
    slow.cancel()


async def test_a_lost_lease_leaves_running_reconciles_no_time_and_is_said_at_once(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    slow = asyncio.create_task(never())
    with pytest.raises(LeadershipLostError):
        await operator._race(slow, asyncio.create_task(fail(LeadershipLostError("taken"))))
    assert operator._drain == 0.0
    assert "Stopping: taken" in caplog.messages
    assert operator._last_resort is not None
    operator._last_resort.cancel()
    slow.cancel()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoppedError(), EXIT_OK),
        (LeadershipLostError("taken"), EXIT_FAILED),
        (RuntimeError("kopf gave up"), EXIT_FAILED),
    ],
)
async def test_the_exit_status_says_how_it_ended(
    operator: Operator, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    monkeypatch.setattr(operator, "_serve", lambda _stack: fail(error))
    assert await operator.run() == status


async def test_it_is_ready_only_when_it_has_started(operator: Operator) -> None:
    assert operator._ready() == "starting"
    operator._wait_on("no rljobs.rollcall.dev")
    assert operator._ready() == "no rljobs.rollcall.dev"
    operator._watching()
    assert operator._ready() == ""
