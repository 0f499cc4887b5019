"""The pictures of imports show each direction once."""

import pytest

from hack.docs.import_graph import box_of, diagram, without_shortcuts


def test_a_module_is_box_of_its_folder() -> None:
    assert box_of("rollcall_operator.plan.children.front") == "rollcall_operator.plan"
    assert box_of("rollcall_operator.handlers") == "rollcall_operator"
    assert box_of("rollcall_protocol.job_config") == "rollcall_protocol.settings"


def test_an_arrow_that_a_chain_replaces_is_left_out() -> None:
    chain = {("p.a", "p.b"), ("p.b", "p.c"), ("p.c", "p.d")}
    assert without_shortcuts(chain | {("p.a", "p.d"), ("p.b", "p.d")}) == chain


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match=r"p\.a and p\.b import each other"):
        without_shortcuts({("p.a", "p.b"), ("p.b", "p.a")})


def test_packages_are_frames() -> None:
    assert diagram({("p.a", "q.b")}).splitlines()[2:5] == [
        "  subgraph p",
        '    p_a["a"]',
        "  end",
    ]
