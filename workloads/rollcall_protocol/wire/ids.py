"""Identities and their order: members, sessions, lineages and versions of weights."""

from dataclasses import dataclass

MAX_VERSION_NUMBER = 2**53  # far above what any job reaches, and exact as a float


def check_counts(**counts: int | None) -> None:
    """ValueError for a count that cannot be true, by its name; None is none."""
    for name, count in counts.items():
        if count is not None and not 0 <= count <= MAX_VERSION_NUMBER:
            raise ValueError(f"{name} is {count}, and must be from 0 to {MAX_VERSION_NUMBER}")


@dataclass(frozen=True, slots=True, order=True)
class SessionId:
    """One forming of a sync group: (roster epoch, coordinator boot, attempt), ordered.

    A receiver keeps the highest it has seen and refuses lower ones (fencing).
    """

    epoch: int
    boot: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.boot}.{self.attempt}"


@dataclass(frozen=True, slots=True, order=True)
class Lineage:
    """One incarnation of the trainer: the epoch that first named its pod, and its boot."""

    epoch: int
    boot: int


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A weight version. Lineage comes first: after a trainer restart numbers may repeat."""

    lineage: Lineage
    number: int

    def __str__(self) -> str:
        return f"{self.number}@{self.lineage.epoch}.{self.lineage.boot}"


@dataclass(frozen=True, slots=True, order=True)
class MemberId:
    """One incarnation of a worker container. A restart is another member of the same pod."""

    pod_uid: str
    boot_id: str

    def __str__(self) -> str:
        return f"{self.pod_uid}/{self.boot_id}"
