"""The scopes that are explored: small ones in each run of the tests, large ones as slow tests."""

from tests.unit.rollcall_protocol.model.scope import (
    ENGINE_FAULTS,
    ROLLOUT_FAULTS,
    TRAINER_FAULTS,
    Fault,
    Scope,
)

COME_AND_GO = ((0, 1), (0, 1, 2), (0, 2))  # three epochs: one joins, then another leaves
SILENCE = frozenset({Fault.CRASH, Fault.LATE})

QUICK = (
    (Scope("three start", ((0, 1, 2),), 0, frozenset()), 1_000),
    (Scope("come and go", COME_AND_GO, 0, frozenset(), running=True), 500),
    (
        Scope("one, in full", ((0,),), 1, ROLLOUT_FAULTS, reduced=False, prompt_sender=False),
        500,
    ),
    (
        Scope("engines fail", ((0, 1),), 1, ENGINE_FAULTS, versions=2, running=True),
        500,
    ),
    (
        Scope("rollouts fail", ((0, 1),), 1, SILENCE, versions=2, max_staleness=1, running=True),
        500,
    ),
    (
        Scope("the trainer fails", ((0,),), 1, TRAINER_FAULTS, versions=2, running=True),
        500,
    ),
    (
        Scope("the trainer fails, one joins", ((0,), (0, 1)), 1, TRAINER_FAULTS, running=True),
        500,
    ),
    (Scope("one leaves", ((0, 1), (0,)), 0, frozenset(), versions=2, running=True), 100),
    (
        Scope("one comes", ((0,), (0, 1)), 1, frozenset({Fault.LATE}), versions=2, running=True),
        500,
    ),
)
