"""The tables in the docs are those of the parts, the areas and the last full run."""

import pytest

from hack.test_parts import pages, record
from hack.test_parts.parts import PARTS

RAN = record.Outcome(
    commit="0123456789abcdef",
    date="2026-01-31",
    minutes=1.5,
    processor_minutes=2,
    passed=3,
    failed=1,
    skipped={"no accelerator": 2},
)


def test_a_part_shows_its_last_run_and_why_tests_were_skipped() -> None:
    table = pages.parts_table({"unit": RAN})
    (row,) = [line for line in table.splitlines() if line.startswith("| `unit` ")]
    assert row.endswith("| 1.5 | 2 | 3 | 1 | 2 | `01234567` | 2026-01-31 |")
    assert table.endswith("- `unit`: 2 because: no accelerator")


def test_a_part_that_never_ran_says_so() -> None:
    rows = pages.parts_table({}).splitlines()[2:]
    assert len(rows) == len(PARTS)
    assert all("| never ran |" in row for row in rows)
    assert len({row.count("|") for row in pages.parts_table({"unit": RAN}).splitlines()[:9]}) == 1


def test_each_area_shows_its_parts() -> None:
    assert "| the chart | `charts/` | `lint unit apiserver" in pages.areas_table()


def test_a_table_takes_the_place_of_the_one_before() -> None:
    begin = "<!-- one: written by python -m hack.test_parts.pages -->"
    page = f"before\n{begin}\nold\n<!-- end -->\nafter"
    made = pages.with_table(page, "one", "new")
    assert made == f"before\n{begin}\n\nnew\n\n<!-- end -->\nafter"
    assert pages.with_table(made, "one", "new") == made


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no <!-- one"):
        pages.with_table("text", "one", "new")
