"""What AReaL's own rollout controller does when a rollout worker is lost: the baseline."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from areal.api import WeightUpdateMeta, Worker
from areal.infra.controller.rollout_controller import RolloutController

from tests.plugins.trainers_of_ones_own.areal.program import config


class Scheduler:
    """In the place of AReaL's, after the worker `rollout/1` has been lost; records calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def async_call_engine(self, worker_id: str, *_: Any, **__: Any) -> None:
        """As AReaL's LocalScheduler: an error, once its retries are over."""
        self.called.append(worker_id)
        if worker_id == "rollout/1":
            raise ConnectionError(worker_id)


def controller(folder: Path) -> tuple[RolloutController, Scheduler]:
    scheduler = Scheduler()
    made = RolloutController(object, config("model", folder, {"steps": 1}).rollout, scheduler)
    made._worker_role = "rollout"
    made.workers = [Worker(f"rollout/{n}", "127.0.0.1", [], []) for n in range(2)]
    return made, scheduler


def test_an_update_fails_for_all_and_the_lost_worker_stays(tmp_path: Path) -> None:
    made, scheduler = controller(tmp_path)
    for _ in range(2):  # no update after it succeeds
        with pytest.raises(ConnectionError):
            asyncio.run(made.update_weights_from_disk(WeightUpdateMeta("disk", str(tmp_path))))
    assert scheduler.called == ["rollout/0", "rollout/1"] * 2
    with pytest.raises(ConnectionError):
        made.set_version(1)


def test_samples_go_on_being_asked_of_the_lost_worker(tmp_path: Path) -> None:
    made, _ = controller(tmp_path)
    assert [made._choose_worker()[0].id for _ in range(4)] == ["rollout/0", "rollout/1"] * 2
