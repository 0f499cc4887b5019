"""The invariants hold in every state that a small group can get into, and it always recovers."""

import pytest

from tests.unit.rollcall_protocol.model.alone import explore_member
from tests.unit.rollcall_protocol.model.scope import Scope
from tests.unit.rollcall_protocol.model.scopes import QUICK
from tests.unit.rollcall_protocol.model.search import Search


@pytest.mark.parametrize(("scope", "floor"), QUICK, ids=lambda value: getattr(value, "name", ""))
def test_no_interleaving_breaks_an_invariant(scope: Scope, floor: int) -> None:
    found = Search(scope).run()
    print(found)
    assert not found.violation, str(found)
    assert found.states >= floor, "the exploration has become smaller than it was"


def test_a_member_does_right_whatever_it_is_told_in_any_order() -> None:
    states, violation = explore_member()
    assert not violation, violation
    assert states >= 10_000
