"""The scopes that are explored: small ones in each run of the tests, large ones as slow tests."""

from tests.unit.rollcall_protocol.model.scope import (
    ENGINE_FAULTS,
    ROLLOUT_FAULTS,
    TRAINER_FAULTS,
    Fault,
    Scope,
)

COME_AND_GO = ((0, 1), (0, 1, 2), (0, 2))  # three epochs: one joins, then another leaves
RESTARTED = frozenset({Fault.RESTART, Fault.STRAY_PUSH})
REPLACED = frozenset({Fault.REPLACE, Fault.STRAY_PUSH})
ANY_ROLLOUT = ROLLOUT_FAULTS | ENGINE_FAULTS
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
        Scope("the trainer fails, one joins", ((0,), (0, 1)), 1, RESTARTED, running=True),
        500,
    ),
    (Scope("one leaves", ((0, 1), (0,)), 0, frozenset(), versions=2, running=True), 100),
    (
        Scope("one comes and dies", ((0,), (0, 1)), 1, frozenset({Fault.CRASH}), running=True),
        100,
    ),
    (Scope("the trainer is replaced", ((0,),), 2, REPLACED, running=True), 500),
)

LARGE = (
    (
        Scope("one comes", ((0,), (0, 1)), 1, frozenset({Fault.LATE}), versions=2, running=True),
        50_000,
    ),
    (Scope("three come and go, one fails", COME_AND_GO, 1, ROLLOUT_FAULTS, running=True), 400_000),
    (Scope("two fail", ((0, 1),), 2, ROLLOUT_FAULTS, running=True), 20_000),
    (
        Scope("one leaves while a version is sent", ((0, 1), (0,)), 1, ROLLOUT_FAULTS, 2, 0, True),
        50_000,
    ),
    (
        Scope("one comes and engines fail", ((0,), (0, 1)), 1, ENGINE_FAULTS, 2, 0, True),
        4_000,
    ),
    (
        Scope("versions pass by", ((0, 1),), 1, SILENCE, 3, 1, True),
        40_000,
    ),
    (
        Scope("engines fail twice", ((0, 1),), 2, ENGINE_FAULTS, 3, 1, True),
        30_000,
    ),
    (
        Scope("one comes while the trainer fails", ((0,), (0, 1)), 1, TRAINER_FAULTS, running=True),
        250_000,
    ),
    (Scope("the trainer fails twice", ((0,),), 2, TRAINER_FAULTS, 1, 0, True), 30_000),
    (
        Scope(
            "one, in full, with engines", ((0,),), 1, ANY_ROLLOUT, 1,
            reduced=False, prompt_sender=False,
        ),
        20_000,
    ),
)  # fmt: skip
