"""Panels and variables as Rollcall's dashboards have them, in the terms of Grafana's library.

A query follows the variables `$namespace` and `$job` where its metrics have these labels, and is an
aggregate by the labels of its legend: Prometheus adds labels of the scraped pod, each of which
would be a line of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.models import common, dashboard

if TYPE_CHECKING:
    from collections.abc import Iterator

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH, HEIGHT, PANELS_IN_A_ROW = 8, 8, 3
RATE = "$__rate_interval"


class Query(NamedTuple):
    """PromQL, and what a line of its result is called: `{{label}}` stands for a label's value."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """Lines over time. `unit` is one of Grafana's (`s`, `bytes`, `percentunit`, `short`, ...).

    `description` says what a reader concludes. `stacked`: the lines add up to something. `bars`:
    what happened in each interval.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    stacked: bool = False
    bars: bool = False


class Section(NamedTuple):
    """Panels below a heading."""

    title: str
    panels: tuple[Panel, ...]


def add(board: builders.Dashboard, sections: tuple[Section, ...]) -> builders.Dashboard:
    """Put the panels of all sections on a dashboard, three beside each other."""
    row, number = 0, 0
    for section in sections:
        number += 1
        position = _place(x=0, y=row, w=24, h=1)
        board.with_row(builders.Row(section.title).id(number).grid_pos(position))
        row += 1
        for index, panel in enumerate(section.panels):
            number += 1
            line, column = divmod(index, PANELS_IN_A_ROW)
            position = _place(x=column * WIDTH, y=row + line * HEIGHT, w=WIDTH, h=HEIGHT)
            board.with_panel(_lines(panel).id(number).grid_pos(position))
        row += -(-len(section.panels) // PANELS_IN_A_ROW) * HEIGHT
    return board


def new_dashboard(title: str, uid: str, description: str) -> builders.Dashboard:
    """An empty one, with the variable for the data source."""
    return (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["rollcall"])
        .editable()
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
        .link(
            builders.DashboardLink("Rollcall")
            .type(dashboard.DashboardLinkType.DASHBOARDS)
            .tags(["rollcall"])
            .as_dropdown(as_dropdown=True)
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
    )


def variable(name: str, query: str, *, several: bool) -> builders.QueryVariable:
    """A choice among a label's values; with `several` any number of them, all at first."""
    made = (
        builders.QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATASOURCE)
        .query(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(several)
        .include_all(several)
    )
    if several:
        chosen = dashboard.VariableOption(text=["All"], value=["$__all"], selected=True)
        made.current(chosen)
    return made


def mean_of(histogram: str, by: str, selector: str) -> str:
    """PromQL: the mean of what a histogram has seen of late, by labels."""
    total, count = (
        f"sum by ({by}) (rate({histogram}_{part}{{{selector}}}[{RATE}]))"
        for part in ("sum", "count")
    )
    return f"{total} / {count}"


def quantile_of(quantile: float, histogram: str, by: str, selector: str) -> str:
    """PromQL: a quantile of what a histogram has seen of late, by labels."""
    labels = f"{by}, le" if by else "le"
    rates = f"sum by ({labels}) (rate({histogram}_bucket{{{selector}}}[{RATE}]))"
    return f"histogram_quantile({quantile}, {rates})"


def _lines(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(DATASOURCE)
        .unit(panel.unit)
        .axis_soft_min(0)
        .fill_opacity(20 if panel.stacked else 0)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if panel.stacked or panel.bars:
        mode = common.StackingMode.NORMAL
        made.stacking(common_builders.StackingConfig().mode(mode).group("A"))
    if panel.bars:
        made.draw_style(common.GraphDrawStyle.BARS).fill_opacity(80)
    for reference, query in zip(_references(), panel.queries, strict=False):
        made.with_target(
            prometheus.Dataquery()
            .expr(query.expression)
            .legend_format(query.legend)
            .ref_id(reference)
        )
    return made


def _references() -> Iterator[str]:
    yield from "ABCDEFGH"


def _place(*, x: int, y: int, w: int, h: int) -> dashboard.GridPos:
    return dashboard.GridPos(x=x, y=y, w=w, h=h)
