"""The invariants hold in every state that a small group can get into, and it always recovers."""

import pytest

from tests.unit.rollcall_protocol.model.alone import explore_member
from tests.unit.rollcall_protocol.model.scope import ROLLOUT_FAULTS, Scope
from tests.unit.rollcall_protocol.model.scopes import LARGE, QUICK
from tests.unit.rollcall_protocol.model.search import Search


def explore(scope: Scope, floor: int) -> None:
    found = Search(scope).run()
    print(found)
    assert not found.violation, str(found)
    assert found.states >= floor, "the exploration has become smaller than it was"


@pytest.mark.parametrize(("scope", "floor"), QUICK, ids=lambda value: getattr(value, "name", ""))
def test_no_interleaving_breaks_an_invariant(scope: Scope, floor: int) -> None:
    explore(scope, floor)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("scope", "floor"), LARGE, ids=lambda value: getattr(value, "name", ""))
def test_no_interleaving_of_a_larger_group_breaks_an_invariant(scope: Scope, floor: int) -> None:
    explore(scope, floor)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_member_does_right_whatever_it_is_told_in_any_order() -> None:
    states, violation = explore_member()
    print(f"{states} states")
    assert not violation, violation
    assert states >= 10_000


@pytest.mark.parametrize("reduced", [True, False])
def test_one_order_of_moves_that_commute_is_enough(reduced: bool) -> None:
    scope = Scope("all orders", ((0,), (0, 1)), 1, ROLLOUT_FAULTS, running=True, reduced=reduced)
    assert not Search(scope).run().violation
