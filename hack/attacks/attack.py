"""What an attack is, and the list of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hack.attacks.target import AttackedJob

ATTACK_SECONDS = 30.0


class NotRefusedError(Exception):
    """A worker took what it must refuse, or gave what it must not give; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack.

    Attributes:
        name: in the result, and after `--only`.
        role: who the attacker is to the job, as in `worker.identity.roles`.
        counted: kinds of `rollcall_refused_total`, one of which must grow at a worker; empty if the
            project does not promise to count what is refused.
        run: does it; NotRefusedError if a worker takes it.
        seconds: how long it may take; more than that counts as not refused.
        quick: whether `make test` does it, too.
    """

    name: str
    role: str
    counted: tuple[str, ...]
    run: Callable[[AttackedJob], Awaitable[None]]
    seconds: float = ATTACK_SECONDS
    quick: bool = False

    @property
    def what(self) -> str:
        """What it does, and what must happen."""
        return " ".join((self.run.__doc__ or "").split())


ATTACKS: dict[str, Attack] = {}


def attack(
    role: str,
    *counted: str,
    name: str = "",
    seconds: float = ATTACK_SECONDS,
    quick: bool = False,
) -> Callable[[Callable[[AttackedJob], Awaitable[None]]], Callable[[AttackedJob], Awaitable[None]]]:
    """Register a function as an attack, under its own name unless `name` is given."""

    def register(
        run: Callable[[AttackedJob], Awaitable[None]],
    ) -> Callable[[AttackedJob], Awaitable[None]]:
        chosen = name or run.__name__
        if chosen in ATTACKS:
            raise ValueError(f"two attacks are called {chosen}")
        ATTACKS[chosen] = Attack(
            name=chosen, role=role, counted=counted, run=run, seconds=seconds, quick=quick
        )
        return run

    return register


def expect(holds: bool, problem: str) -> None:
    """NotRefusedError with `problem` unless it `holds`."""
    if not holds:
        raise NotRefusedError(problem)
