"""Which rank reads from which in a session: a star, a binary tree or a chain. Rank 0 is the sender.

In a star the sender sends one copy to each receiver, one after the other on its link. In a chain
every member receives one copy and sends one, so the time stays flat as receivers are added, but for
the bucket that fills the pipe; a slow member slows all after it. A binary tree is between the two:
two copies out of each member, and log N steps until the last one begins.

Receivers of different shards form topologies of their own, all of which begin at the sender.
"""

from collections.abc import Sequence
from enum import StrEnum

_STAR_RECEIVERS = 2
_CHAIN_RECEIVERS = 64


class Topology(StrEnum):
    """AUTO chooses by the number of receivers and of buckets."""

    AUTO = "auto"
    STAR = "star"
    TREE = "tree"
    CHAIN = "chain"


def choose(wanted: Topology, *, receivers: int, buckets: int) -> Topology:
    """Resolve AUTO: a star for few receivers, a chain as long as buckets keep it filled."""
    if wanted is not Topology.AUTO:
        return wanted
    if receivers <= _STAR_RECEIVERS:
        return Topology.STAR
    # In a chain the last one begins after one bucket for each member before it.
    if receivers <= _CHAIN_RECEIVERS and buckets >= receivers:
        return Topology.CHAIN
    return Topology.TREE


def upstream(rank: int, topology: Topology) -> int:
    """The rank that receiver `rank` (1 or more) reads from."""
    if topology is Topology.STAR:
        return 0
    return rank - 1 if topology is Topology.CHAIN else (rank - 1) // 2


def hops(rank: int, topology: Topology) -> int:
    """How many transfers bring the bytes of rank 0 to receiver `rank`."""
    steps = 0
    while rank:
        rank, steps = upstream(rank, topology), steps + 1
    return steps


def downstream(rank: int, size: int, topology: Topology) -> tuple[int, ...]:
    """The ranks that read from `rank` in a session of `size`."""
    return tuple(other for other in range(1, size) if upstream(other, topology) == rank)


def ranks_of_same_shard(shards: Sequence[str], rank: int) -> tuple[int, ...]:
    """The sender and the ranks that receive the same shard as `rank`: these form one topology.

    `shards` has what each rank receives (see `shards.Shard.key`), empty for everything.
    """
    return (0, *(r for r in range(1, len(shards)) if shards[r] == shards[rank]))
