"""The invariants hold in every state that a small group can get into, and it always recovers."""

import pytest

from tests.unit.rollcall_protocol.model.exhaustive_search import ExhaustiveSearch
from tests.unit.rollcall_protocol.model.search_scopes import (
    LARGE,
    LARGEST,
    ONE_JOINS,
    QUICK,
    ROLLOUT_FAULTS,
    SearchScope,
)
from tests.unit.rollcall_protocol.model.single_member import explore_member

SINGLE_MEMBER_STATES = 14_083


def explore(scope: SearchScope) -> None:
    found = ExhaustiveSearch(scope).run()
    print(found)
    assert not found.violation, str(found)
    assert found.states == scope.states, "the exploration has changed: docs/protocol.md lists it"


@pytest.mark.parametrize("scope", QUICK, ids=str)
def test_no_interleaving_breaks_an_invariant(scope: SearchScope) -> None:
    explore(scope)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "scope",
    [*LARGE, *LARGEST],
    ids=str,
)
def test_no_interleaving_of_a_larger_group_breaks_an_invariant(scope: SearchScope) -> None:
    explore(scope)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_member_keeps_its_invariants_whatever_it_receives_in_any_order() -> None:
    states, violation = explore_member()
    print(f"{states} states")
    assert not violation, violation
    assert states == SINGLE_MEMBER_STATES


@pytest.mark.parametrize("reduced", [True, False])
def test_one_order_of_moves_that_commute_is_enough(reduced: bool) -> None:
    scope = SearchScope("all orders", ONE_JOINS, 1, ROLLOUT_FAULTS, reduced=reduced)
    assert not ExhaustiveSearch(scope).run().violation
