"""The rollouts that the front may send requests to, as the coordinator streams them to it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServingRollout:
    """A rollout in sync: its agent's `address` (host:port), and the `ticket` to show there."""

    pod: str
    address: str
    ticket: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ServingRollouts:
    """All rollouts that serve current weights and do not drain, in the order of their ranks."""

    rollouts: tuple[ServingRollout, ...] = ()
