"""The report holds what is known of the job, and says what is not."""

import re

from rollcall_cli.html_report.charts import draw
from rollcall_cli.html_report.page import render
from rollcall_protocol.step_history import StepRow
from tests.unit.rollcall_cli.example_record import BEGAN, job, record


def test_it_has_the_jobs_state_epochs_and_spec() -> None:
    page = render(record())
    for text in ("team/reverse", "9 of 10", "MemberLost", "lost: reverse-cpu-x (gone)", "maxSteps"):
        assert text in page
    assert page.count("<svg") == 1
    assert 'src="' not in page, "one file that needs nothing else"


def test_texts_of_a_job_are_no_html() -> None:
    condition = {"type": "Running", "status": "False", "message": "<script>alert(1)</script>"}
    page = render(record(job=job(conditions=[condition])))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_events_stand_in_the_order_of_their_times() -> None:
    series = {"lastObservedTime": "2027-01-15T08:00:02.000000Z"}
    events = [
        {"reason": "Later", "eventTime": "2027-01-15T08:00:01.000000Z", "series": series},
        {"reason": "Sooner", "eventTime": "2027-01-15T08:00:01.500000Z"},
    ]
    page = render(record(events=events))
    assert page.index("Sooner") < page.index("Later")


def test_a_job_that_has_not_begun_has_a_report_too() -> None:
    bare = job()
    del bare["status"]
    page = render(record(job=bare, steps=[], missing=["The figures could not be read: no pod."]))
    assert "The figures could not be read: no pod." in page
    assert "<svg" not in page


def test_each_figure_that_was_recorded_has_a_panel() -> None:
    labels = texts(draw(record()))
    for title in ("reward", "loss", "tokens a second", "step (s)", "weight sync (s)"):
        assert title in labels


def test_epochs_rebuilt_sessions_and_warnings_have_rows_above_the_same_axis() -> None:
    at = "2027-01-15T08:00:40Z"
    lost = {"session": "2.1.1", "cause": "MemberLost", "time": at}
    follows = {"session": "2.1.2", "cause": "NewRoster", "time": at}
    groups = [job()["status"]["syncGroups"][0] | {"sessions": [lost, follows]}]
    events = [
        {"type": "Warning", "reason": "Restarting", "eventTime": at},
        {"type": "Warning", "reason": "TooEarly", "eventTime": "2027-01-15T07:00:00Z"},
        {"type": "Normal", "reason": "Running", "eventTime": at},
    ]
    labels = texts(draw(record(job=job(syncGroups=groups), events=events)))
    for row in ("epoch: MemberLost", "session: MemberLost", "warning: Restarting"):
        assert row in labels
    for row in ("epoch: JobStarted", "NewRoster", "TooEarly", "Running"):
        assert row not in labels, "before the first step, or nothing unusual"


def test_times_are_read_in_utc_to_the_second() -> None:
    page = render(record())
    assert "<td>2027-01-15 08:00:35</td>" in page
    assert "08:00:35.5" not in page


def test_figures_that_were_not_recorded_have_none() -> None:
    steps = [StepRow(step, BEGAN + step, {"train/loss": 1.0 / step}) for step in (1, 2, 3)]
    labels = texts(draw(record(steps=steps)))
    assert "loss" in labels
    assert "reward" not in labels
    assert draw(record(steps=[])) == ""


def texts(svg: str) -> str:
    """All texts of a picture: matplotlib draws shapes, each after a comment with its text."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", svg, re.DOTALL))
