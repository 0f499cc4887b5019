"""The chart's dashboards, rules and alerts: valid, and about metrics and labels that exist."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.monitoring.dashboards.__main__ import FOLDER, rendered
from tests.golden import metrics

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "rollcall-operator"
RUNBOOKS = ROOT / "docs" / "runbooks.md"
WANTED = {
    *("RollcallOperatorDown", "RollcallNoLeader", "RollcallReconcileErrors"),
    *("RollcallApiThrottled", "RollcallCoordinatorSilent", "RollcallEpochUnacknowledged"),
    *("RollcallRolloutsStale", "RollcallTrainerStarved", "RollcallRebuildStorm"),
    *("RollcallSyncSlow", "RollcallCheckpointFailing", "RollcallRewardNotFinite"),
    "RollcallJobStuck",
}
_NAME = re.compile(r"(?<!:)\b(rollcall_\w+)\b(?!:)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
_OTHERS = r"\b(ALERTS|process_start_time_seconds|up)\{"
# What Prometheus adds to each series: the labels of the scraped pod.
_OF_TARGETS = {"pod", "instance", "role"}


@functools.cache
def known() -> dict[str, set[str]]:
    """Labels of each metric as Prometheus stores it."""
    found: dict[str, set[str]] = {}
    for metric in (each for every in metrics.by_process().values() for each in every):
        names = [metric.name]
        if metric.kind in {"histogram", "summary"}:
            names = [f"{metric.name}_{part}" for part in ("sum", "count", "bucket")]
        for stored in names:
            extra = {"le"} if stored.endswith("_bucket") else set()
            found[stored] = found.get(stored, _OF_TARGETS) | set(metric.labels) | extra
    return found


@functools.cache
def dashboards() -> dict[str, dict[str, Any]]:
    """By name of the file."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


@functools.cache
def rules() -> tuple[dict[str, Any], ...]:
    """The rules of the template, with a 1 in the place of each value."""
    template = (CHART / "templates" / "rules.yaml").read_text()
    quoted = re.sub(r"\{\{ `.*?` \}\}", "1", template)
    lines = re.sub(r"\{\{ .*?\}\}", "1", re.sub(r"^ *\{\{-.*$", "", quoted, flags=re.MULTILINE))
    groups = yaml.safe_load(lines)["spec"]["groups"]
    return tuple(rule for group in groups for rule in group["rules"])


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def queries() -> list[Any]:
    """Each query of a panel, with its legend and the variables of its dashboard."""
    return [
        pytest.param(
            target["expr"],
            target["legendFormat"],
            {v["name"] for v in board["templating"]["list"] if v["type"] == "query"},
            id=f"{name} {panel['title']} {target['refId']}",
        )
        for name, board in dashboards().items()
        for panel in panels(board)
        for target in panel["targets"]
    ]


def other_expressions() -> list[Any]:
    """Of variables, marks and rules."""
    found = [rule["expr"] for rule in rules()]
    for board in dashboards().values():
        found += [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
        found += [mark["expr"] for mark in board.get("annotations", {}).get("list", ())]
    return found


def check(expression: str) -> None:
    labels = known()
    for name, selectors in _NAME.findall(expression):
        assert name in labels, expression
        for label in re.findall(r"(\w+) *(?:=~|!~|!=|=)", selectors):
            assert label in labels[name], expression
        for grouped in _GROUPED.findall(expression):
            found = {label.strip() for label in grouped.split(",")}
            assert found <= labels[name] | {"alertname"}, expression


# --- dashboards ----------------------------------------------------------------------------------


def test_the_files_are_what_the_code_makes() -> None:
    assert {path: path.read_text() for path in FOLDER.iterdir()} == rendered()


@pytest.mark.parametrize(("expression", "legend", "variables"), queries())
def test_a_panel_uses_metrics_and_labels_that_exist(
    expression: str, legend: str, variables: set[str]
) -> None:
    assert _NAME.findall(expression) or re.search(_OTHERS, expression)
    check(expression)


@pytest.mark.parametrize("expression", other_expressions())
def test_a_rule_a_mark_or_a_variable_uses_metrics_and_labels_that_exist(expression: str) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = set(re.findall(r"\bjob:rollcall_\w+:\w+", expression))
    assert used <= recorded
    assert used or _NAME.findall(expression) or re.search(_OTHERS, expression)
    check(expression)


@pytest.mark.parametrize(("expression", "legend", "variables"), queries())
def test_a_panel_follows_the_choice_of_namespace_and_job(
    expression: str, legend: str, variables: set[str]
) -> None:
    """And where several jobs are shown, its legend separates those of one name."""
    for name, selectors in _NAME.findall(expression):
        for label in variables & known()[name]:
            assert f'{label}=~"${label}"' in selectors, expression
    if "job" not in variables:
        assert ("{{job}}" in legend) <= ("{{namespace}}" in legend)


@pytest.mark.parametrize(("expression", "legend", "variables"), queries())
def test_a_line_is_an_aggregate_by_the_labels_of_its_legend(
    expression: str, legend: str, variables: set[str]
) -> None:
    """Prometheus adds the scraped pod's labels: without an aggregate each pod is a line."""
    shown = set(re.findall(r"\{\{(\w+)\}\}", legend))
    grouped = [set(re.split(", *", by)) for by in _GROUPED.findall(expression)]
    assert len(grouped) >= len(_NAME.findall(expression)), expression
    for labels in grouped:
        assert shown <= labels, expression


@pytest.mark.parametrize("name", ["fleet", "job"])
def test_a_rollout_without_a_sample_hides_no_mean(name: str) -> None:
    """Its reward is NaN, and so would be the mean of its pool; a comparison leaves it out."""
    targets = [target["expr"] for p in panels(dashboards()[name]) for target in p["targets"]]
    (mean,) = (text for text in targets if "rollcall_rollout_reward" in text)
    assert re.search(r"\(rollcall_rollout_reward\{[^}]*\} >= -Inf\)", mean)


@pytest.mark.parametrize("name", ["fleet", "job", "weight-sync"])
def test_every_panel_has_a_title_a_place_and_the_datasource_variable(name: str) -> None:
    board = dashboards()[name]
    every = board["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert len({panel["title"] for panel in every}) == len(every)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in every]
    assert len(set(places)) == len(places)
    for panel in panels(board):
        assert panel["description"].endswith(".")
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"


# --- alerts --------------------------------------------------------------------------------------


def test_the_alerts_are_those_that_people_need() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert sorted(names) == sorted(WANTED)


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_has_a_runbook(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert alert["annotations"]["runbook_url"] == f"1#{name.lower()}"
    section = RUNBOOKS.read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    for what in ("**What happened.**", "**Look at.**", "**Do.**", "**Tune.**"):
        assert what in section, what


def test_there_is_no_runbook_without_an_alert() -> None:
    assert set(re.findall(r"^## (.*)$", RUNBOOKS.read_text(), re.MULTILINE)) == WANTED


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_what_happened_and_how_bad_it_is(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"]["summary"].endswith(".")
    assert alert["annotations"]["description"].endswith(".")


def test_every_threshold_of_the_values_is_used() -> None:
    template = (CHART / "templates" / "rules.yaml").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())["prometheusRule"]["alerts"]
    used = set(re.findall(r"\$alerts\.(\w+)\.(\w+)", template))
    assert used == {(alert, name) for alert, names in values.items() for name in names}
