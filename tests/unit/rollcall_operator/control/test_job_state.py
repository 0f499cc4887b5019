"""What the operator remembers of a job ends with that job: another one of its name starts anew."""

from rollcall_operator.control.job_reader import Sight
from rollcall_operator.control.job_state import JobState, RefusedChild
from rollcall_operator.control.reconciler import _recognise
from rollcall_operator.plan.model import ReconcileMemory, Refusal


def sight(uid: str) -> Sight:
    job = {"metadata": {"namespace": "ns", "name": "a", "uid": uid}}
    return Sight(
        job=job, pools=(), children=(), pods=(), token_exists=False, token="", coordinator=None
    )


def remembering() -> JobState:
    state = JobState()
    _recognise(state, sight("uid-1"))
    state.memory = ReconcileMemory(told=frozenset({"uid-t"}))
    state.refused["Service/s"] = RefusedChild({}, Refusal("digest", "no"), retry_at=1.0)
    return state


def test_the_same_job_is_remembered() -> None:
    state = remembering()
    _recognise(state, sight("uid-1"))
    assert state.memory.told
    assert state.refused


def test_another_job_of_the_same_name_starts_with_an_empty_memory() -> None:
    state = remembering()
    _recognise(state, sight("uid-2"))
    assert state.memory == ReconcileMemory()
    assert not state.refused
