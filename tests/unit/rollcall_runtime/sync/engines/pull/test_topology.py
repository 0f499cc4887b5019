"""Who sends to whom: every receiver is reached once, and no further away than the shape allows."""

import math

import pytest

from rollcall_runtime.sync.engines.pull.topology import Topology, choose, downstream, upstream

SHAPES = [Topology.STAR, Topology.TREE, Topology.CHAIN]


def depth(rank: int, topology: Topology) -> int:
    return 0 if rank == 0 else 1 + depth(upstream(rank, topology), topology)


@pytest.mark.parametrize("topology", SHAPES)
@pytest.mark.parametrize("size", [2, 3, 4, 9, 17, 64])
def test_upstream_and_downstream_say_the_same(topology: Topology, size: int) -> None:
    reached = [rank for source in range(size) for rank in downstream(source, size, topology)]
    assert sorted(reached) == list(range(1, size))
    for rank in range(1, size):
        assert rank in downstream(upstream(rank, topology), size, topology)


@pytest.mark.parametrize(
    ("topology", "copies_out", "steps"),
    [
        (Topology.STAR, 64, 1),
        (Topology.TREE, 2, math.ceil(math.log2(64)) + 1),
        (Topology.CHAIN, 1, 64),
    ],
)
def test_what_a_shape_costs(topology: Topology, copies_out: int, steps: int) -> None:
    assert max(len(downstream(rank, 65, topology)) for rank in range(65)) <= copies_out
    assert max(depth(rank, topology) for rank in range(1, 65)) <= steps


@pytest.mark.parametrize(
    ("receivers", "buckets", "chosen"),
    [
        (1, 1, Topology.STAR),
        (2, 100, Topology.STAR),
        (8, 8, Topology.CHAIN),
        (8, 7, Topology.TREE),
        (65, 1000, Topology.TREE),
    ],
)
def test_auto_goes_by_receivers_and_buckets(receivers: int, buckets: int, chosen: Topology) -> None:
    assert choose(Topology.AUTO, receivers=receivers, buckets=buckets) is chosen


def test_a_shape_that_is_asked_for_is_taken() -> None:
    assert choose(Topology.STAR, receivers=500, buckets=1) is Topology.STAR
