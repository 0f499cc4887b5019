"""A picture shows what was recorded, and a gap where nothing was."""

import math
from typing import Any, cast

import pytest

from hack.monitoring.dashboard_queries import PanelQuery
from hack.monitoring.pictures import draw
from hack.monitoring.prometheus_server import Line
from tests.apiserver.monitored_job import MadeFault, Recording


def recording() -> Recording:
    query = PanelQuery("job", "Lag", "{{pod}} {{absent}}", "x")
    points = [(100.0 + t / 2, 1.0) for t in range(20)] + [(130.0 + t / 2, 2.0) for t in range(20)]
    return Recording(
        began=100.0,
        calm=102.0,
        ended=140.0,
        faults=[MadeFault("a rollout is killed", 110.0, 120.0)],
        queries=[query],
        lines={query.name: [Line({"pod": "a"}, points)]},
    )


def test_a_panel_has_its_lines_with_their_names_and_a_gap_without_samples() -> None:
    figure = draw("job", recording())
    axes = figure.axes[0]
    (line,) = (line for line in axes.lines if str(line.get_label()).startswith("a"))
    assert line.get_label() == "a "
    values = cast("list[float]", list(cast("Any", line.get_ydata())))
    assert sum(math.isnan(value) for value in values) == 1
    assert axes.get_title(loc="left") == "Lag"


def test_a_dashboard_that_was_not_recorded_is_an_error() -> None:
    with pytest.raises(ValueError, match="fleet"):
        draw("fleet", recording())
