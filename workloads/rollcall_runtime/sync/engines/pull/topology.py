"""Who sends to whom in a session, by ranks; rank 0 is the sender.

A star costs the sender one copy for each receiver, one after the other on its link. A chain costs
everybody one copy in and one out, so that its time stays flat as receivers are added, but for the
bucket that fills the pipe; a slow member slows all after it. A binary tree is between the two: two
copies out, and log N steps until the last one begins.

Receivers that take different parts of the weights stand in lines of their own, all from the sender.
"""

from collections.abc import Sequence
from enum import StrEnum

_STAR_RECEIVERS = 2
_CHAIN_RECEIVERS = 64


class Topology(StrEnum):
    """AUTO goes by the number of receivers and of buckets."""

    AUTO = "auto"
    STAR = "star"
    TREE = "tree"
    CHAIN = "chain"


def choose(wanted: Topology, *, receivers: int, buckets: int) -> Topology:
    """What AUTO means: a star for few receivers, a chain as long as buckets keep it filled."""
    if wanted is not Topology.AUTO:
        return wanted
    if receivers <= _STAR_RECEIVERS:
        return Topology.STAR
    # In a chain the last one begins after one bucket for each member before it.
    if receivers <= _CHAIN_RECEIVERS and buckets >= receivers:
        return Topology.CHAIN
    return Topology.TREE


def upstream(rank: int, topology: Topology) -> int:
    """The rank that receiver `rank` (1 or more) takes from."""
    if topology is Topology.STAR:
        return 0
    return rank - 1 if topology is Topology.CHAIN else (rank - 1) // 2


def hops(rank: int, topology: Topology) -> int:
    """How many members the bytes of rank 0 pass until receiver `rank` has them, itself included."""
    steps = 0
    while rank:
        rank, steps = upstream(rank, topology), steps + 1
    return steps


def downstream(rank: int, size: int, topology: Topology) -> tuple[int, ...]:
    """The ranks that take from `rank` in a session of `size`."""
    return tuple(other for other in range(1, size) if upstream(other, topology) == rank)


def line(shards: Sequence[str], rank: int) -> tuple[int, ...]:
    """The sender and the ranks that want what `rank` wants, among which the topology holds.

    `shards` has what each rank takes (see `shards.Shard.key`), empty for everything.
    """
    return (0, *(r for r in range(1, len(shards)) if shards[r] == shards[rank]))
