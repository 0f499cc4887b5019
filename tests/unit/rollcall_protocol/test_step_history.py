"""What a history of steps keeps, and what is read of a damaged one."""

from rollcall_protocol.step_history import StepRow, read_rows, thinned


def test_further_lines_of_a_step_add_figures_to_it() -> None:
    lines = [
        StepRow(2, 20.0, {"reward/mean": 0.5}),
        StepRow(1, 10.0, {"reward/mean": 0.25}),
        StepRow(2, 21.0, {"timing_s/stage": 0.1}),
    ]
    assert read_rows("".join(row.line() for row in lines)) == [
        StepRow(1, 10.0, {"reward/mean": 0.25}),
        StepRow(2, 20.0, {"reward/mean": 0.5, "timing_s/stage": 0.1}),
    ]


def test_what_is_no_row_is_left_out() -> None:
    good = StepRow(3, 30.0, {"reward/mean": 1.0}).line()
    bad = [
        "",
        "[1, 2]",
        "nonsense",
        good[:20],
        '{"step": -1, "time": 1, "figures": {}}',
        '{"step": 1.5, "time": 1, "figures": {}}',
        '{"step": true, "time": 1, "figures": {}}',
        '{"step": 1, "time": "now", "figures": {}}',
        '{"step": 1, "time": 1, "figures": [1]}',
        '{"step": 1, "time": 1, "figures": {"x": "high"}}',
        "[" * 100_000,
    ]
    assert read_rows("\n".join([*bad, good.strip()])) == [StepRow(3, 30.0, {"reward/mean": 1.0})]


def test_figures_that_are_not_finite_are_left_out() -> None:
    (row,) = read_rows('{"step": 1, "time": 1, "figures": {"a": NaN, "b": Infinity, "c": 2}}')
    assert row.figures == {"c": 2.0}


def test_every_second_step_is_thinned_out_but_no_evaluation() -> None:
    rows = [StepRow(step, float(step)) for step in range(10)]
    rows[3].figures["eval/reward/mean"] = 0.5
    assert [row.step for row in thinned(rows)] == [0, 2, 3, 4, 6, 8]


def test_where_each_step_is_evaluated_half_of_them_goes_too() -> None:
    rows = [StepRow(step, float(step), {"eval/reward/mean": 0.5}) for step in range(10)]
    assert [row.step for row in thinned(rows)] == [0, 2, 4, 6, 8]
