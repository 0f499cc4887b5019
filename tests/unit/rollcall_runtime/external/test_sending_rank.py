"""Which of the job's trainer ranks a process of the user's program is."""

from typing import Any, cast

import pytest

from rollcall_runtime.external.sending_rank import RankPlace
from rollcall_runtime.worker.environment import Pod, TrainerEnvironment
from rollcall_runtime.worker.errors import SpecError
from tests.unit.rollcall_runtime.jobs import external_job_config


def pod(number: int, *, of: int) -> TrainerEnvironment:
    """What the operator gives a pod of the trainer."""
    return TrainerEnvironment(
        job=external_job_config(trainer_replicas=of),
        pod=Pod(f"reverse-trainer-{number}", f"uid-{number}", "127.0.0.1"),
        coordinator="127.0.0.1",
        token=lambda: "",
        trust=cast("Any", None),
        state_dir=cast("Any", None),
        rank=number,
    )


@pytest.mark.parametrize(("number", "local"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_ranks_are_counted_pod_by_pod(number: int, local: int) -> None:
    rank = 2 * number + local
    found = RankPlace(rank, 4, local, 2).within(pod(number, of=2))
    assert (found.rank, found.local_rank) == (rank, local)
    assert found.job.coordinator.trainer_processes == 2, "pods may speak for their own ranks"


def test_a_pod_whose_program_has_fewer_ranks_is_refused() -> None:
    with pytest.raises(SpecError, match="3 ranks are not those of 2 pods with 2 each"):
        RankPlace(0, 3, 0, 2).within(pod(0, of=2))


def test_a_rank_of_another_pod_is_refused() -> None:
    with pytest.raises(SpecError, match="rank 2 is not process 0 of pod 0"):
        RankPlace(2, 4, 0, 2).within(pod(0, of=2))
